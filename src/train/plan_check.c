/* The refusal of a plan that is more than this host has, with the options that would help. */
#include "train/plan.h"
#include "train/train.h"

static const double GIBIBYTE = 1 << 30;

static void add_word(struct strbuf *text, const char *word) {
    strbuf_format(text, "%s%s", text->length ? ", " : "", word);
}

int train_plan_check(const struct train_run *run, const struct train_plan *plan, const struct memory_limit *limit) {
    const struct run_config *config = &run->config;
    struct strbuf help = STRBUF_INIT;
    int copies = plan->grid.data * plan->grid.context;
    if (plan->here <= limit->bytes)
        return STATUS_OK;
    if (config->parallel.recompute_granularity != GRANULARITY_FULL)
        add_word(&help, "parallel.recompute_granularity full");
    if (copies > 1 && !config->parallel.use_distributed_optimizer)
        add_word(&help, "parallel.use_distributed_optimizer");
    if (config->train.micro_batch_size > 1)
        add_word(&help, "a smaller train.micro_batch_size");
    add_word(&help, copies > 1 ? "more tensor or pipeline ranks in place of data ranks"
                               : "tensor or pipeline ranks on more hosts");
    int status = strbuf_status(&help);
    if (!status)
        status = status_fail(STATUS_MEMORY,
                             "not enough memory: %.1f GiB are planned on this host, which %s %.1f GiB; what would "
                             "help: %s",
                             (double)plan->here / GIBIBYTE, limit->is_cgroup ? "allows its control group" : "has",
                             (double)limit->bytes / GIBIBYTE, strbuf_text(&help));
    strbuf_free(&help);
    return status;
}
