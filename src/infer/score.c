/* Log-probabilities of given tokens: a prefill in chunks whose labels are the next tokens. */
#include "infer/infer.h"

#include <stdlib.h>

int score_tokens(struct engine *engine, const int32_t *tokens, int64_t count, float *logprobs) {
    int checked = engine_check_tokens(engine, "", tokens, count);
    if (checked)
        return checked;
    int64_t limit = engine_max_rows(engine), wanted = engine_max_logit_rows(engine);
    int64_t chunk = limit < wanted ? limit : wanted;
    struct engine_row *rows = malloc((size_t)chunk * sizeof *rows);
    struct engine_result *results = malloc((size_t)chunk * sizeof *results);
    int status = rows && results ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    int sequence = status ? status : engine_sequence_new(engine);
    if (sequence < 0)
        status = sequence;
    int64_t first = engine_predicts_first(engine) ? -1 : 0; /* rows are what stands before the tokens */
    for (; first + 1 < count && !status; first += chunk) {
        int64_t part = count - 1 - first < chunk ? count - 1 - first : chunk;
        for (int64_t i = first; i < first + part; i++)
            rows[i - first] = (struct engine_row){.token = i < 0 ? ENGINE_START : tokens[i],
                                                  .sequence = sequence,
                                                  .wants_logits = true,
                                                  .label = tokens[i + 1]};
        status = engine_step(engine, rows, part, results);
        for (int64_t i = 0; i < part && !status; i++)
            logprobs[first + i + 1] = results[i].label_logprob;
    }
    if (sequence >= 0)
        engine_sequence_free(engine, sequence);
    free(results);
    free(rows);
    return status;
}
