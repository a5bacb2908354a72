/* Inference: the engine step, sequences over a paged cache, generation and scoring.
 *
 * An engine owns a model opened from a directory, its packed weights, a pool of reference-counted KV pages and the
 * sequences that hold them. A caller (the commands; one day a server's scheduler) makes sequences, and drives steps: a
 * flat list of rows, prefill and decode of any sequences mixed. Nothing is allocated in a step, and the bits of a row
 * do not depend on the other rows of its step. One thread at a time.
 *
 * Ranks that hold one model together have an engine each, with their parts of the weights and of the cache, and make
 * the same calls with the same arguments. One of them finds the results of a step and sends them to the others, so
 * that all go on alike, whatever their processors round to. The caller makes sure that all are asked the same, by files
 * that all read, or by words that one rank read and sent. */
#ifndef CAMBIUM_INFER_INFER_H
#define CAMBIUM_INFER_INFER_H

#include "ckpt/ckpt.h"
#include "infer/kv_pool.h"
#include "model/model.h"
#include "peft/peft.h"
#include "text/text.h"

/* ---- the engine: engine.c, sequence.c, stem.c, step.c ---- */

struct engine;

struct engine_options {
    const char *model;                 /* a model directory, or a directory of checkpoints: the newest */
    const struct model_config *random; /* instead of `model`: random weights of this shape, for benchmarks */
    const char *const *adapters;       /* directories of adapters, which all apply; see peft_files_open */
    size_t adapter_count;
    struct comm *world;                /* all ranks; NULL: this one alone */
    struct rank_grid grid;             /* of the world, filled; data-parallel ranks have the whole model again */
    int64_t first_layers, last_layers; /* of the first and the last stage; 0: as many as the others */
    int precision;                     /* enum precision, or -1: the files' type (fp16 runs as fp32) */
    const char *device;                /* backend; NULL: the first that the machine has */
    int threads;                       /* 0: all cores */
    int64_t max_rows;                  /* of a step */
    int64_t max_logit_rows;            /* of a step */
    int64_t max_sequences;
    int64_t cache_tokens; /* of all sequences, without what adapters put before them; 0: as many as they can have */
};

/* Whether there is a model, and ranks of the grid can hold it; a caller asks before the ranks start. `takes_data`: the
 * caller has work for data-parallel ranks. */
int engine_check(const struct engine_options *options, bool takes_data);
/* Ranks open together. */
int engine_open(const struct engine_options *options, struct engine **engine);
void engine_close(struct engine *engine);
const struct model_config *engine_config(const struct engine *engine);
enum dtype engine_dtype(const struct engine *engine);
int64_t engine_max_rows(const struct engine *engine);
int64_t engine_max_logit_rows(const struct engine *engine);
/* The directory that was opened, and the end-of-text id of its config.json (-1: none). */
const char *engine_directory(const struct engine *engine);
int32_t engine_eos_id(const struct engine *engine);
struct rank *engine_rank(struct engine *engine);
/* A text that the engine can run: with the adapters' virtual tokens at most as many tokens as positions, all of the
 * vocabulary. */
int engine_check_tokens(const struct engine *engine, const char *what, const int32_t *tokens, int64_t count);
/* Bytes: packed weights, cache, activations and workspace. */
size_t engine_planned_bytes(const struct engine *engine);

/* A new sequence (its number), or STATUS_MEMORY when all are in use or no page is free. It has what the adapters put
 * before every text, prefix and virtual tokens: computed once, in pages that sequences share. */
int engine_sequence_new(struct engine *engine);
/* A copy that shares the full pages of `sequence`; the last, partial page is copied. Number or negative status. */
int engine_sequence_fork(struct engine *engine, int sequence);
void engine_sequence_free(struct engine *engine, int sequence);
/* Tokens in the cache, with those that stand before the text. */
int64_t engine_sequence_length(const struct engine *engine, int sequence);
/* Whether adapters predict the first token of a text: their last virtual token has logits, a prefix has none. */
bool engine_predicts_first(const struct engine *engine);

struct engine_sampling {
    double temperature, top_p, repetition_penalty;
    int64_t top_k;
    uint64_t seed;
    uint32_t choice; /* which of several samples of one prompt */
};

/* As a row's token: the last virtual token once more, whose logits are those of a text's first token. It adds nothing
 * to the sequence. Where engine_predicts_first. */
enum { ENGINE_START = -1 };

/* One row of a step: the next token of a sequence, or ENGINE_START. Rows of one sequence stand in their order. */
struct engine_row {
    int32_t token;
    int32_t sequence;
    bool wants_logits;
    int32_t label;                          /* with wants_logits: also log p(label); -1: none */
    const struct engine_sampling *sampling; /* with wants_logits: draw the next token; NULL: none */
};

/* The results of a row that wants logits. */
struct engine_result {
    int32_t token; /* drawn, or -1 */
    float logprob; /* of the drawn token, before temperature and cuts */
    float label_logprob;
};

/* Runs the rows; results[i] belongs to row i. When the rows do not fit (rows, logits, positions or pages) nothing has
 * happened and STATUS_INVALID says which limit. */
int engine_step(struct engine *engine, const struct engine_row *rows, int64_t count, struct engine_result *results);

/* ---- generation: generate.c ---- */

enum finish_reason { FINISH_STOP, FINISH_LENGTH };

struct generate_options {
    const int32_t *prompt; /* ids, at least one */
    int64_t prompt_length;
    int64_t max_new_tokens;
    int64_t samples; /* texts to write, choices 0 .. samples-1 */
    struct engine_sampling sampling;
    const char *const *stop; /* strings; the text ends before the first of them (writer.h) */
    size_t stop_count;
    const int32_t *end_ids; /* tokens, each of which ends a text */
    size_t end_count;
    /* New text of a sample, as soon as no stop string and no half character can be in it; `context` is the caller's.
     * A status other than 0 ends the generation. May be NULL. */
    int (*on_text)(void *context, int64_t sample, const char *bytes, size_t length);
    void *context;
};

struct generated {
    struct token_buffer tokens; /* the new ids; one that ends the text is not among them */
    struct strbuf text;
    enum finish_reason reason;
};

/* Whether a text can have these stop strings. */
int generate_check_stops(const char *const *stop, size_t count);
/* Whether the engine can begin with the prompt. */
int generate_check(const struct engine *engine, const int32_t *prompt, int64_t prompt_length);
/* Writes `samples` texts into `out` [samples] (the caller frees each with generated_free). All samples share the pages
 * of the prompt and advance together, a row each: STATUS_INVALID for more of them than a step has rows. */
int generate(struct engine *engine, const struct tokenizer *tokenizer, const struct generate_options *options,
             struct generated *out);
void generated_free(struct generated *generated);

/* ---- scoring: score.c ---- */

/* logprobs[i] = log p(tokens[i] | tokens[0 .. i-1]) for i >= 1, and for 0 where engine_predicts_first; else logprobs[0]
 * is not touched. STATUS_INVALID as engine_check_tokens. */
int score_tokens(struct engine *engine, const int32_t *tokens, int64_t count, float *logprobs);

#endif
