/* A run that was saved under one sharding strategy resumes under another, and has the losses, norms and files of one
 * rank. The long form has every pair of strategies. Heads are tied and untied, tensor ranks are one or two that cut
 * the sequence, and no layer or two layers stay gathered. */
#include "train/layout_support.h"

enum { STRATEGIES = SHARDING_OPTIM_GRADS_PARAMS + 1, KEPT = 2 };

/* The run of one rank, and how the others differ from it. */
struct table {
    const char **prefix;
    struct outcome whole;
    bool is_untied, is_sequence_parallel;
};

static struct layout layout_of(const struct table *table, int sharding, int kept) {
    return (struct layout){.tensor = table->is_sequence_parallel ? 2 : 1,
                           .data = 2,
                           .pipeline = 1,
                           .chunks = 1,
                           .micro_batch_size = 1,
                           .sharding = sharding,
                           .kept = kept,
                           .is_untied = table->is_untied,
                           .is_sequence_parallel = table->is_sequence_parallel};
}

/* Resumes a run in the middle of which `half` was saved. */
static void resume(const struct table *table, const struct layout *from, const struct outcome *half, int to) {
    struct layout layout = layout_of(table, to, from->kept);
    struct outcome moved = *half;
    print_message("from %s, %d kept, to\n", run_shardings[from->sharding], from->kept);
    continue_elsewhere(table->prefix, &layout, half, &moved);
    compare(&table->whole, &moved, &layout);
    free(moved.directory);
}

/* Saves under a strategy, and resumes under every one; the short form: under the next one. Kept layers say something
 * where the weights are cut. */
static void check_from(const struct table *table, int from, int kept) {
    struct layout layout = layout_of(table, from, kept);
    struct outcome half;
    train(table->prefix, &layout, 0, steps() / 2, &half);
    for (int to = 0; to < STRATEGIES; to++) {
        bool cuts_weights = from == STRATEGIES - 1 || to == STRATEGIES - 1;
        if (kept && !cuts_weights)
            continue;
        if (test_is_long() || to == (from + 1) % STRATEGIES)
            resume(table, &layout, &half, to);
    }
    free(half.directory);
}

static void check_table(struct table *table) {
    struct layout one = one_rank;
    one.is_untied = table->is_untied;
    train(table->prefix, &one, 0, steps(), &table->whole);
    for (int from = 0; from < STRATEGIES; from++)
        for (int kept = 0; kept <= KEPT; kept += KEPT)
            if (test_is_long() || (kept > 0) == (from + table->is_untied) % 2)
                check_from(table, from, kept);
    free(table->whole.directory);
}

static void a_run_resumes_under_any_other_strategy(void **state) {
    (void)state;
    char *prefix = write_text();
    for (int which = 0; which < 4; which++) {
        struct table table = {
            .prefix = (const char **)&prefix, .is_untied = which % 2, .is_sequence_parallel = which / 2};
        if (test_is_long() || table.is_untied == table.is_sequence_parallel)
            check_table(&table);
    }
    free(prefix);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_resumes_under_any_other_strategy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
