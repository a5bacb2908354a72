/* Prints the plan. */
#include "train/plan.h"

static const double MEBIBYTE = 1 << 20;

void train_plan_print(const struct train_plan *plan, const char *prefix, FILE *out) {
    const struct train_bytes bytes = train_plan_bytes(plan);
    bool is_elsewhere = plan->threads == 0; /* device and host are then not one memory */
    const struct {
        const char *name;
        size_t bytes;
    } parts[] = {
        {"weights", plan->weights},
        {"gradients", plan->gradients},
        {"optimizer", plan->optimizer},
        {"activations", plan->activations},
        {"workspace", plan->workspace},
        {"data", plan->data},
        {"checkpoint", plan->checkpoint.device + plan->checkpoint.host},
        {"program", plan->program},
    };
    if (*plan->encodings)
        fprintf(out, "%smodel: %s\n", prefix, plan->encodings);
    fprintf(out, "%smemory plan of %lld parameters", prefix, (long long)plan->parameters);
    if (plan->ranks > 1)
        fprintf(out, ", rank %d of %d (tensor %d, data %d, pipeline %d), which takes most",
                rank_grid_rank(&plan->grid, &plan->place), plan->ranks, plan->place.tensor, plan->place.data,
                plan->place.pipeline);
    if (!is_elsewhere)
        fprintf(out, ", %d thread%s (%s)", plan->threads, plan->threads > 1 ? "s" : "", plan->cores);
    fprintf(out, ":\n");
    for (size_t i = 0; i < sizeof parts / sizeof *parts - is_elsewhere; i++)
        fprintf(out, "%s  %-12s %10.1f MiB\n", prefix, parts[i].name, (double)parts[i].bytes / MEBIBYTE);
    if (is_elsewhere)
        fprintf(out, "%s  %-12s %10.1f MiB\n%s  %-12s %10.1f MiB\n", prefix, "device", (double)bytes.device / MEBIBYTE,
                prefix, "host", (double)bytes.host / MEBIBYTE);
    else
        fprintf(out, "%s  %-12s %10.1f MiB\n", prefix, "total",
                (double)(train_plan_total(plan) + plan->program) / MEBIBYTE);
    if (plan->ranks > 1 && !is_elsewhere)
        fprintf(out, "%s  %-12s %10.1f MiB of %d rank%s\n", prefix, "this host",
                (double)(plan->here.device + plan->here.host + plan->program * (size_t)plan->processes_here) / MEBIBYTE,
                plan->ranks_here, plan->ranks_here > 1 ? "s" : "");
}
