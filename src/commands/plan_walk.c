/* cambium plan walk: a pipeline's schedule in time, with given durations. */
#include "launch.h"
#include "plan.h"

#include "config/config.h"
#include "planner/report.h"

enum { MOST_STAGES = 4096, MOST_STEPS = 4 << 20 };

struct options {
    int64_t stages, chunks, micro_batches;
    const char *forward, *backward, *json, *svg, *trace;
    double head, link;
};

#define AT(field) offsetof(struct options, field)
static const struct config_row rows[] = {
    ROW_INT("stages", AT(stages), NULL, 1, MOST_STAGES, "stages of the pipeline", .is_required = true, .metavar = "P"),
    ROW_INT("micro-batches", AT(micro_batches), NULL, 1, 1 << 20, "micro batches of a global batch",
            .is_required = true, .metavar = "M"),
    ROW_INT("chunks", AT(chunks), "1", 1, 64, "chunks of each stage; above 1 the schedule is interleaved",
            .metavar = "V"),
    ROW_TEXT("forward", AT(forward), "F[,F...]",
             "seconds of a whole stage's forward, of which each chunk has an equal part; one number, or one a stage",
             .default_text = "1"),
    ROW_TEXT("backward", AT(backward), "B[,B...]", "seconds of a whole stage's backward", .default_text = "2"),
    ROW_FLOAT("head", AT(head), "0", 0, 1e9,
              "seconds that the head adds to the backward of the last chunk of the last stage", .metavar = "H"),
    ROW_FLOAT("link", AT(link), "0", 0, 1e9, "seconds of a message between stages", .metavar = "L"),
    ROW_TEXT("json", AT(json), "FILE", "write makespan, idle times and all steps as JSON; - is standard output"),
    ROW_TEXT("svg", AT(svg), "FILE", "write the timeline as an SVG image; - is standard output"),
    ROW_TEXT("trace", AT(trace), "FILE", "write the timeline as Chrome's trace events; - is standard output"),
};

/* Reads the times of all stages from one number, or from one for each. */
static int read_times(const char *option, const char *text, int stages, double times[MOST_STAGES]) {
    int count;
    int status = plan_read_numbers(option, text, times, MOST_STAGES, &count);
    if (!status && count != 1 && count != stages)
        return status_fail(STATUS_USAGE, "--%s has %d numbers, but there are %d stages", option, count, stages);
    for (int stage = count; stage < stages && !status; stage++)
        times[stage] = times[0];
    return status;
}

static void print(const struct walk *walk) {
    printf("makespan %.6g s\n", walk->makespan);
    for (int stage = 0; stage < walk->shape.stages; stage++)
        printf("stage %-4d idle %.6g s (%.1f%%)\n", stage, walk->makespan - walk->busy[stage],
               walk->makespan > 0 ? 100 * (1 - walk->busy[stage] / walk->makespan) : 0);
}

static int write_all(const struct options *options, const struct walk *walk) {
    json_begin();
    int status = options->json ? plan_write_json(options->json, report_walk(walk)) : STATUS_OK;
    THEN(status, plan_write_timelines(options->svg, options->trace, walk));
    if (!status && !options->json && !options->svg && !options->trace)
        print(walk);
    return status;
}

static int run(const void *values, const struct config *given) {
    static double forward[MOST_STAGES], backward[MOST_STAGES];
    const struct options *options = values;
    struct walk walk;
    struct walk_stages stages = {.shape = {.stages = (int)options->stages,
                                           .chunks = (int)options->chunks,
                                           .micro_batches = (int)options->micro_batches},
                                 .forward = forward,
                                 .backward = backward,
                                 .head = options->head,
                                 .link = options->link};
    int64_t steps = 2 * options->stages * options->chunks * options->micro_batches;
    if (steps > MOST_STEPS)
        return status_fail(STATUS_USAGE, "a schedule of %lld steps; at most %d can be walked", (long long)steps,
                           MOST_STEPS);
    TRY(read_times("forward", options->forward, stages.shape.stages, forward));
    TRY(read_times("backward", options->backward, stages.shape.stages, backward));
    TRY(walk_stages(&stages, &walk));
    int status = write_all(options, &walk);
    walk_free(&walk);
    return status;
}

int plan_walk_command(int argc, char **argv) {
    static const struct config_command command = {
        .name = "plan walk",
        .synopsis = "cambium plan walk --stages P --micro-batches M [--chunks V] [--forward F[,F...]] "
                    "[--backward B[,B...]] [--head H] [--link L] [--json FILE] [--svg FILE] [--trace FILE]",
        .description =
            "Walks the steps of 1F1B, or of interleaved 1F1B, as the trainer would run them, and prints when "
            "the last one ends and how long each stage is idle. Times are in any unit.",
        .examples =
            "  cambium plan walk --stages 4 --micro-batches 8\n"
            "  cambium plan walk --stages 4 --micro-batches 8 --chunks 2 --head 0.5 --link 0.1 --svg line.svg\n",
        .rows = rows,
        .row_count = sizeof rows / sizeof *rows,
    };
    return command_run(&command, argc, argv, &(struct options){0}, run);
}
