/* Comparisons of `verify serving`: what counts as a difference, and the line that names the first one. */
#include "support/test.h"

#include "verify-internal.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { TOKENS = 3, VOCAB = 4 };

struct scene {
    struct verify_serving job;
    int32_t ids[TOKENS];
    struct verify_text text;
    float reference[TOKENS * VOCAB], row[VOCAB];
    struct verify verify;
    struct verify_path path;
};

static struct scene *begin(void) {
    struct scene *s = calloc(1, sizeof *s);
    assert_non_null(s);
    for (int i = 0; i < TOKENS * VOCAB; i++)
        s->reference[i] = -1.0f - (float)i;
    s->job.is_equal = true;
    s->text = (struct verify_text){.tokens = s->ids, .count = TOKENS};
    s->verify = (struct verify){.job = &s->job,
                                .is_first = true,
                                .ids = {.ids = s->ids, .count = TOKENS},
                                .texts = &s->text,
                                .count = 1,
                                .vocab = VOCAB,
                                .reference = s->reference};
    s->path.name = "decode";
    return s;
}

/* Compares the row after token 1, in which `id` has another value. */
static void compare(struct scene *s, int id, float value) {
    memcpy(s->row, s->reference + VOCAB, sizeof s->row);
    s->row[id] = value;
    verify_compare(&s->verify, &s->path, 0, 1, s->row);
}

static void equal_rows_do_not_differ(void **state) {
    struct scene *s = begin();
    compare(s, 2, s->reference[VOCAB + 2]);
    assert_int_equal(s->path.tokens, 1);
    assert_int_equal(s->path.differ, 0);
    assert_true(s->path.max_abs == 0);
    free(s);
}

static void one_bit_is_a_difference(void **state) {
    struct scene *s = begin();
    float next = nextafterf(s->reference[VOCAB + 2], 0);
    compare(s, 2, next);
    assert_int_equal(s->path.differ, 1);
    assert_int_equal(s->path.first.token, 1);
    assert_int_equal(s->path.first.id, 2);
    assert_true(s->path.first.serving == next);
    assert_true(s->path.max_abs == (double)next - (double)s->reference[VOCAB + 2]);
    compare(s, 0, 5); /* the first difference stays, the largest counts */
    assert_int_equal(s->path.differ, 2);
    assert_int_equal(s->path.first.id, 2);
    assert_true(s->path.max_abs == 5 - (double)s->reference[VOCAB]);
    free(s);
}

static void signs_of_zeros_and_missing_numbers_differ(void **state) {
    struct scene *s = begin();
    s->reference[VOCAB] = 0.0f;
    compare(s, 0, -0.0f);
    assert_int_equal(s->path.differ, 1);
    compare(s, 1, NAN);
    assert_int_equal(s->path.differ, 2);
    assert_true(isnan(s->path.max_abs));
    free(s);
}

/* Returns what verify_tell prints, in `line`. */
static void tell(struct scene *s, char *line, size_t size) {
    FILE *file = tmpfile();
    int before = dup(STDOUT_FILENO);
    assert_non_null(file);
    fflush(stdout);
    assert_true(dup2(fileno(file), STDOUT_FILENO) >= 0);
    int status = verify_tell(&s->verify, &s->path);
    fflush(stdout);
    assert_true(dup2(before, STDOUT_FILENO) >= 0);
    close(before);
    assert_int_equal(status, STATUS_OK);
    rewind(file);
    line[fread(line, 1, size - 1, file)] = '\0';
    fclose(file);
}

static void the_first_difference_is_named(void **state) {
    struct scene *s = begin();
    char line[512];
    compare(s, 1, s->reference[VOCAB + 1]);
    tell(s, line, sizeof line);
    assert_string_equal(line, "{\"path\":\"decode\",\"texts\":1,\"tokens\":1,\"vocabulary\":4,\"differ\":0,"
                              "\"max_abs\":0.0}\n");
    assert_true(s->job.is_equal);
    compare(s, 3, -8.5f);
    tell(s, line, sizeof line);
    assert_string_equal(line, "{\"path\":\"decode\",\"texts\":1,\"tokens\":2,\"vocabulary\":4,\"differ\":1,"
                              "\"max_abs\":0.5,\"first\":{\"text\":0,\"token\":1,\"id\":3,"
                              "\"training\":\"-0x1p+3\",\"serving\":\"-0x1.1p+3\"}}\n");
    assert_false(s->job.is_equal);
    assert_true(s->job.gap == 0.5);
    free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_rows_do_not_differ),
        cmocka_unit_test(one_bit_is_a_difference),
        cmocka_unit_test(signs_of_zeros_and_missing_numbers_differ),
        cmocka_unit_test(the_first_difference_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
