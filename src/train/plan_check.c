/* Refuses a plan that needs more memory than the host or a device has, and names the options that would help. */
#include "train/plan.h"
#include "train/train.h"

static void add_word(struct strbuf *text, const char *word) {
    strbuf_format(text, "%s%s", text->length ? ", " : "", word);
}

/* Lists the options that would make the plan smaller. */
static void list_help(const struct train_run *run, const struct train_plan *plan, struct strbuf *help) {
    const struct run_config *config = &run->config;
    int copies = plan->grid.data * plan->grid.context;
    add_word(help, "a smaller data.seq_length");
    if (config->parallel.recompute_granularity != GRANULARITY_FULL)
        add_word(help, "parallel.recompute_granularity full");
    if (copies > 1 && run_sharding(config) == SHARDING_NONE)
        add_word(help, "parallel.use_distributed_optimizer");
    if (copies > 1 && run_sharding(config) < SHARDING_OPTIM_GRADS_PARAMS)
        add_word(help, "parallel.data_parallel_sharding_strategy optim_grads_params");
    if (config->train.micro_batch_size > 1)
        add_word(help, "a smaller train.micro_batch_size");
    add_word(help, copies > 1 ? "more tensor or pipeline ranks in place of data ranks"
                              : "tensor or pipeline ranks on more hosts");
}

int train_plan_check(const struct train_run *run, const struct train_plan *plan, const struct memory_limit *limit) {
    struct strbuf help = STRBUF_INIT;
    list_help(run, plan, &help);
    int status = strbuf_status(&help);
    THEN(status, memory_check(train_plan_of_host(plan), limit, strbuf_text(&help)));
    if (!status && plan->device_memory && plan->most_on_device > plan->device_memory)
        status = memory_refuse(plan->most_on_device, "a device, which has", plan->device_memory, strbuf_text(&help));
    strbuf_free(&help);
    return status;
}
