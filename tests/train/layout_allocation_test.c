/* Whichever allocation of a proof fails, at whichever rank: that rank says so, no other waits for it for ever, and what
 * they read lives until all have ended. */
#include "train/layout_support.h"

#include "support/failing.h"

enum { PASSED = 3, DEADLINE = 240 /* seconds */ };

static int prove_layout(void *context) {
    struct verify_layout job = *(const struct verify_layout *)context;
    TRY(file_remove_tree(job.directory));
    TRY(file_make_directories(job.directory));
    int status = comm_local_run(job.ranks, verify_layout_run, &job);
    verify_layout_close(&job);
    return status;
}

static void a_proof_ends_with_a_word(void **state) {
    static const struct layout layouts[] = {
        {.tensor = 2, .data = 1, .pipeline = 1, .chunks = 1, .micro_batch_size = 2},
        {.tensor = 1, .data = 2, .pipeline = 2, .chunks = 2, .micro_batch_size = 1},
    };
    char *prefix = write_text();
    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        struct outcome outcome = {.directory = new_directory()};
        struct verify_layout job = {.run = make_layout_run((const char **)&prefix, &layouts[i], &outcome),
                                    .ranks = ranks_of(&layouts[i]),
                                    .steps = 1,
                                    .directory = outcome.directory};
        test_ok(verify_shrink(&job, false));
        assert_in_range(failing_try_all(prove_layout, &job, 30), 0, PASSED);
        free(outcome.directory);
    }
    free(prefix);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_proof_ends_with_a_word)};
    test_ends_within(DEADLINE);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
