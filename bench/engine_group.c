/* Texts in bare steps of the engine: the reference for the scheduler's steps and for steps with adapters. */
#include "engine.h"
#include "infer/sequences.h"
#include "infer/slots.h"

static const struct sampling greedy = {.top_p = 1, .repetition_penalty = 1};

int32_t engine_token(const struct model_config *config, uint64_t text, int64_t index) {
    uint32_t word =
        philox(4, (uint32_t)index, (uint32_t)text, (uint32_t)(text >> 32), (uint32_t)RNG_TEST << 24).word[0];
    return (int32_t)(word % (uint32_t)config->vocab_size);
}

static int run(struct engine_group *group, int64_t rows) {
    int status = engine_step(group->engine, group->rows, rows, group->results);
    for (int64_t i = 0; i < rows && !status; i++)
        for (int64_t k = 0; k < group->count && group->rows[i].wants_logits; k++)
            if (group->sequence[k] == group->rows[i].sequence)
                group->token[k] = group->results[i].token;
    return status;
}

/* Runs prefixes and prompts, text after text, in steps of ENGINE_ROWS. */
static int fill(struct engine_group *group, const int *slots, int64_t in) {
    int64_t rows = 0;
    int status = STATUS_OK;
    for (int64_t k = 0; k < group->count; k++) {
        int64_t virtual_tokens = engine_slot_virtual_tokens(group->engine, slots ? slots[k] : -1);
        for (int64_t i = 0; i < virtual_tokens + in && !status; i++) {
            bool is_last = i == virtual_tokens + in - 1;
            group->rows[rows++] =
                (struct engine_row){.token = i < virtual_tokens ? ENGINE_VIRTUAL_TOKEN
                                                                : engine_token(engine_config(group->engine),
                                                                               (uint64_t)k, i - virtual_tokens),
                                    .sequence = group->sequence[k],
                                    .wants_logits = is_last,
                                    .label = -1,
                                    .sampling = is_last ? &greedy : NULL};
            if (rows < ENGINE_ROWS && (!is_last || k < group->count - 1))
                continue;
            status = run(group, rows);
            rows = 0;
        }
    }
    return status;
}

int engine_group_open(struct engine_group *group, struct engine *engine, const int *slots, int64_t count, int64_t in) {
    *group = (struct engine_group){.engine = engine};
    group->rows = calloc(ENGINE_ROWS, sizeof *group->rows);
    group->results = calloc(ENGINE_ROWS, sizeof *group->results);
    TRY(status_allocated(group->rows && group->results));
    for (; group->count < count; group->count++) {
        struct sequence_beginning text = {.slot = slots ? slots[group->count] : -1};
        int sequence = engine_sequence_open(engine, &text, NULL);
        if (sequence < 0)
            return sequence;
        group->sequence[group->count] = sequence;
    }
    return fill(group, slots, in);
}

int engine_group_step(struct engine_group *group, double *seconds) {
    for (int64_t k = 0; k < group->count; k++)
        group->rows[k] = (struct engine_row){.token = group->token[k],
                                             .sequence = group->sequence[k],
                                             .wants_logits = true,
                                             .label = -1,
                                             .sampling = &greedy};
    double start = clock_seconds();
    int status = run(group, group->count);
    *seconds = clock_seconds() - start;
    return status;
}

int engine_group_run(struct engine *engine, int64_t count, int64_t in, int64_t out, double *seconds) {
    struct engine_group group;
    double unused, start = clock_seconds();
    int status = engine_group_open(&group, engine, NULL, count, in);
    for (int64_t i = 1; i < out && !status; i++)
        status = engine_group_step(&group, &unused);
    *seconds = clock_seconds() - start;
    engine_group_close(&group);
    return status;
}

void engine_group_close(struct engine_group *group) {
    for (int64_t k = 0; k < group->count; k++)
        engine_sequence_close(group->engine, group->sequence[k]);
    free(group->rows);
    free(group->results);
    *group = (struct engine_group){0};
}
