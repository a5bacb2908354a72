/* The step: rows of any sequences through the model, and the results of those that want logits. */
#include "engine-internal.h"

#include <string.h>

static bool is_of_vocabulary(const struct engine *engine, int32_t token) {
    return token >= 0 && token < engine_config(engine)->vocab_size;
}

static int fail_token(const struct engine *engine, int32_t token) {
    return status_fail(STATUS_INVALID, "token %d is not in the vocabulary of %lld", token,
                       (long long)engine_config(engine)->vocab_size);
}

int engine_check_tokens(const struct engine *engine, const char *what, const int32_t *tokens, int64_t count) {
    int64_t positions = engine_config(engine)->max_position_embeddings, stem = engine_stem_tokens(engine);
    if (count > positions - stem && stem)
        return status_fail(STATUS_INVALID,
                           "%s%lld tokens, with the adapters' %lld virtual tokens more than the model's %lld positions",
                           what, (long long)count, (long long)stem, (long long)positions);
    if (count > positions)
        return status_fail(STATUS_INVALID, "%s%lld tokens, more than the model's %lld positions", what,
                           (long long)count, (long long)positions);
    for (int64_t i = 0; i < count; i++)
        if (!is_of_vocabulary(engine, tokens[i]))
            return fail_token(engine, tokens[i]);
    return STATUS_OK;
}

static int fail_length(const struct engine *engine) {
    long long positions = (long long)engine_config(engine)->max_position_embeddings,
              stem = (long long)engine_stem_tokens(engine);
    return stem ? status_fail(
                      STATUS_INVALID,
                      "a text that with the adapters' %lld virtual tokens has more than the model's %lld positions",
                      stem, positions)
                : status_fail(STATUS_INVALID, "a text of more than the model's %lld positions", positions);
}

/* Refuses rows that cannot run, before anything has changed. `length` counts up over the rows and is put back. */
static int check_rows(struct engine *engine, const struct engine_row *rows, int64_t count) {
    const struct model_config *config = engine_config(engine);
    const struct engine_options *o = &engine->options;
    int64_t wanted = 0, pages = 0, done = 0;
    int status = STATUS_OK;
    if (count < 1 || count > o->max_rows)
        return status_fail(STATUS_INVALID, "a step of %lld rows in an engine opened for %lld", (long long)count,
                           (long long)o->max_rows);
    for (; done < count; done++) {
        const struct engine_row *row = &rows[done];
        if (row->sequence < 0 || row->sequence >= o->max_sequences || !engine->sequences[row->sequence].is_used) {
            status = status_fail(STATUS_INVALID, "row %lld: no sequence %d", (long long)done, row->sequence);
            break;
        }
        bool is_start = row->token == ENGINE_START && engine_predicts_first(engine);
        if (!(is_start || is_of_vocabulary(engine, row->token)) || row->label >= config->vocab_size) {
            status = fail_token(engine, row->label >= config->vocab_size ? row->label : row->token);
            break;
        }
        struct sequence *sequence = &engine->sequences[row->sequence];
        if (sequence->length + !is_start > config->max_position_embeddings) {
            status = fail_length(engine);
            break;
        }
        pages += !is_start && sequence->length % KV_PAGE_TOKENS == 0;
        sequence->length += !is_start;
        wanted += row->wants_logits;
    }
    for (int64_t i = 0; i < done; i++)
        engine->sequences[rows[i].sequence].length -= rows[i].token != ENGINE_START;
    if (!status && wanted > o->max_logit_rows)
        status = status_fail(STATUS_INVALID, "logits of %lld rows in an engine opened for %lld", (long long)wanted,
                             (long long)o->max_logit_rows);
    if (!status && pages > engine->pool.free_count)
        status = status_fail(STATUS_INVALID, "the KV cache has %lld free pages of %lld and %lld are needed",
                             (long long)engine->pool.free_count, (long long)engine->pool.count, (long long)pages);
    return status;
}

static void place_row(struct engine *engine, const struct engine_row *row, int64_t i) {
    struct sequence *sequence = &engine->sequences[row->sequence];
    engine->row_sequence[i] = row->sequence;
    if (row->token == ENGINE_START) { /* its key and value are in the stem's pages */
        engine->tokens[i] = engine_virtual_id(engine, engine_virtual_tokens(engine) - 1);
        engine->positions[i] = (int32_t)engine_stem_tokens(engine) - 1;
        engine->places[i] = -1;
        return;
    }
    engine->tokens[i] = row->token;
    engine->positions[i] = (int32_t)sequence->length;
    engine->places[i] = engine_extend(engine, sequence);
    if (is_of_vocabulary(engine, row->token)) /* or virtual, which no text repeats */
        sequence->seen[row->token / 64] |= 1ull << row->token % 64;
}

/* The changes of a row's draw, for the step's list; returns how many. */
static int32_t put_changes(const struct engine *engine, const struct engine_row *row, struct sample_change *changes) {
    const uint64_t *seen = engine->sequences[row->sequence].seen;
    int32_t count = 0;
    for (int64_t w = 0; row->sampling->repetition_penalty != 1 && w < engine->seen_words; w++)
        for (uint64_t bits = seen[w]; bits; bits &= bits - 1)
            changes[count++] = (struct sample_change){.id = (int32_t)(w * 64 + __builtin_ctzll(bits)), .is_seen = true};
    return count;
}

static struct sample_row sample_row_of(struct engine *engine, const struct engine_row *row, int64_t position,
                                       int64_t *change_count) {
    const struct engine_sampling *s = row->sampling;
    if (!s)
        return (struct sample_row){.draws = false};
    int32_t count = put_changes(engine, row, engine->changes + *change_count), first = (int32_t)*change_count;
    *change_count += count;
    return (struct sample_row){
        .temperature = (float)s->temperature,
        .top_p = (float)s->top_p,
        .repetition_penalty = (float)s->repetition_penalty,
        .top_k = (int32_t)s->top_k,
        .seed = s->seed,
        .choice = s->choice,
        .position = (uint32_t)position,
        .first_change = first,
        .change_count = count,
        .draws = true,
    };
}

/* Runs of rows with one adapter slot. */
static int64_t find_segments(struct engine *engine, const struct engine_row *rows, int64_t count) {
    int64_t segments = 0;
    for (int64_t i = 0; i < count; i++) {
        int slot = engine->sequences[rows[i].sequence].slot;
        if (slot < 0)
            continue;
        struct peft_segment *last = segments ? &engine->segments[segments - 1] : NULL;
        if (!last || last->first_row + last->rows != i) {
            last = &engine->segments[segments++];
            *last = (struct peft_segment){.first_row = i, .count = engine->image_count};
            memcpy(last->images, engine->images, sizeof last->images);
        }
        last->rows++;
    }
    return segments;
}

/* The results of the wanted rows, from the rank that has them to the others. */
static int give_results(struct engine *engine, const struct engine_row *rows, int64_t wanted,
                        struct engine_result *results) {
    for (int64_t i = 0; i < wanted; i++) {
        const struct engine_row *row = &rows[engine->logit_row[i]];
        engine->given[i] = (struct engine_result){
            .token = row->sampling ? engine->drawn[i] : -1,
            .logprob = row->sampling ? engine->logprob[i] : 0,
            .label_logprob = row->label >= 0 ? engine->label_logprob[i] : 0,
        };
    }
    const struct rank_grid *grid = &engine->rank.grid;
    struct comm_data data = {.send = engine->given,
                             .receive = engine->given,
                             .count = wanted * (int64_t)sizeof *engine->given,
                             .dtype = DTYPE_U8};
    int status = STATUS_OK;
    if (engine->holders && wanted)
        status = comm_broadcast(engine->holders, &data, (grid->pipeline - 1) * grid->tensor);
    for (int64_t i = 0; i < wanted && !status; i++)
        results[engine->logit_row[i]] = engine->given[i];
    return status;
}

int engine_run_rows(struct engine *engine, const struct engine_row *rows, int64_t count,
                    struct engine_result *results) {
    int64_t wanted = 0, change_count = 0;
    bool has_labels = false, has_sampling = false;
    for (int64_t i = 0; i < count; i++) {
        const struct engine_row *row = &rows[i];
        place_row(engine, row, i);
        if (!row->wants_logits)
            continue;
        engine->logit_row[wanted] = (int32_t)i;
        engine->labels[wanted] = row->label >= 0 ? row->label : 0;
        engine->sample[wanted] = sample_row_of(engine, row, engine->positions[i] + 1, &change_count);
        has_labels |= row->label >= 0;
        has_sampling |= row->sampling != NULL;
        wanted++;
    }
    struct model_step step = {
        .rows = count,
        .tokens = engine->tokens,
        .positions = engine->positions,
        .sequence = engine->row_sequence,
        .cached = engine->positions,
        .place = engine->places,
        .sequences = engine->sequence_count,
        .max_pages = engine->max_pages,
        .page_table = engine->page_table,
        .logit_rows = wanted,
        .logit_row = engine->logit_row,
        .sample = has_sampling ? engine->sample : NULL,
        .change_count = change_count,
        .changes = engine->changes,
        .labels = has_labels ? engine->labels : NULL,
    };
    struct model_step_result result = {
        .token = engine->drawn, .logprob = engine->logprob, .label_logprob = engine->label_logprob};
    int status =
        engine->bank ? peft_bank_step(engine->bank, engine->segments, find_segments(engine, rows, count)) : STATUS_OK;
    if (!status)
        status = model_infer(engine->model, &engine->kv, &step, &result);
    return status ? status : give_results(engine, rows, wanted, results);
}

int engine_step(struct engine *engine, const struct engine_row *rows, int64_t count, struct engine_result *results) {
    int status = check_rows(engine, rows, count);
    return status ? status : engine_run_rows(engine, rows, count, results);
}
