/* Refuses a plan that needs more memory than the host or a device has, and names the options that would help. */
#include "train/plan.h"
#include "train/train.h"

static const double GIBIBYTE = 1 << 30;

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

/* Reports that `where` has too few bytes; `where` completes "are planned on ...". */
static int refuse(const struct train_run *run, const struct train_plan *plan, size_t planned, const char *where,
                  size_t has) {
    struct strbuf help = STRBUF_INIT;
    list_help(run, plan, &help);
    int status = strbuf_status(&help);
    if (!status)
        status =
            status_fail(STATUS_MEMORY, "not enough memory: %.1f GiB are planned on %s %.1f GiB; what would help: %s",
                        (double)planned / GIBIBYTE, where, (double)has / GIBIBYTE, strbuf_text(&help));
    strbuf_free(&help);
    return status;
}

int train_plan_check(const struct train_run *run, const struct train_plan *plan, const struct memory_limit *limit) {
    size_t of_host = train_plan_of_host(plan);
    if (of_host > limit->bytes)
        return refuse(run, plan, of_host,
                      limit->is_cgroup ? "this host, which allows its control group" : "this host, which has",
                      limit->bytes);
    if (plan->device_memory && plan->most_on_device > plan->device_memory)
        return refuse(run, plan, plan->most_on_device, "a device, which has", plan->device_memory);
    return STATUS_OK;
}
