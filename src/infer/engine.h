/* Inference: an engine on the ranks that hold a model together.
 *
 * An engine owns a model opened from a directory, its packed weights, a cache of keys and values in pages, and adapters
 * in a bank. Of the ranks that hold one model together one leads: it alone has texts. It makes sequences, and drives
 * steps: a flat list of rows, prefill and decode of any sequences mixed, each sequence with any adapters. The others
 * follow it (engine_follow), and are told by messages what to run. Nothing is allocated in a step, and the bits of a
 * row depend neither on the other rows of its step nor on how its text was cut into steps. One thread at a time.
 *
 * images.h, slots.h and sequences.h have the engine's adapters and sequences. generate.h and score.h write and score
 * texts. A scheduler (scheduler.h) stands above the engine and keeps it busy with many texts. */
#ifndef CAMBIUM_INFER_ENGINE_H
#define CAMBIUM_INFER_ENGINE_H

#include "ckpt/ckpt.h"
#include "infer/kv_pool.h"
#include "infer/scheduler.h"
#include "model/model.h"
#include "peft/bank.h"
#include "peft/peft.h"
#include "text/prompt.h"
#include "text/text.h"

/* ---- the engine: engine.c ---- */

struct engine;

struct engine_options {
    const char *model;                 /* a model directory, or a directory of checkpoints: the newest */
    const struct model_config *random; /* instead of `model`: random weights of this shape, for benchmarks */
    const char *const *adapters;       /* directories of adapters, which are one slot: see peft_find */
    size_t adapter_count;
    size_t adapter_memory; /* bytes on each rank for adapters beside these; 0: none come */
    struct comm *world;    /* all ranks; NULL: this one alone */
    struct rank_grid grid; /* of the world, filled; data-parallel ranks have the whole model again; 0: one rank */
    int64_t first_layers, last_layers; /* of the first and the last stage; 0: as many as the others */
    int precision;                     /* enum precision, or -1: the files' type (fp16 runs as fp32) */
    const char *device;                /* backend; NULL: the first that the machine has */
    int device_number;                 /* a rank's place on its host */
    int threads;                       /* 0: all cores */
    int64_t max_rows;                  /* of a step */
    int64_t max_logit_rows;            /* of a step */
    int64_t max_sequences;
    int64_t max_positions; /* of a text, with what stands before it; 0: the model's */
    int64_t cache_tokens;  /* of all sequences; 0: as many as they can have */
    size_t cache_bytes;    /* on each rank, instead of cache_tokens; 0: not said */
    bool has_no_prefix_cache;
    bool touches_cache; /* the cache's memory is there before the first step; else it comes where steps first write */
};
/* Changes of logits that a text can have beside those of its own tokens: biases, stop ids, ends (ask.h). */
enum { ENGINE_MAX_BIASES = 1024 + 1022 + PROMPT_MAX_ENDS };
#define ENGINE_ADAPTER_BYTES ((size_t)4 << 30) /* of an adapter's files, at most */

/* Checks that the model exists and that the grid's ranks can hold it. Call it before the ranks start. `takes_data`: the
 * caller has work for data-parallel ranks. */
int engine_check(const struct engine_options *options, bool takes_data);
/* Ranks open together. */
int engine_open(const struct engine_options *options, struct engine **engine);
void engine_close(struct engine *engine);
const struct model_config *engine_config(const struct engine *engine);
enum dtype engine_dtype(const struct engine *engine);
int64_t engine_max_rows(const struct engine *engine);
int64_t engine_max_logit_rows(const struct engine *engine);
int64_t engine_max_sequences(const struct engine *engine);
int64_t engine_max_positions(const struct engine *engine);
/* The directory that was opened. */
const char *engine_directory(const struct engine *engine);
/* The ends of a text: the tokenizer's end-of-text first, where there is a tokenizer and it has one, then those of the
 * model's files. */
struct model_text_ends engine_text_ends(const struct engine *engine, const struct tokenizer *tokenizer);
struct rank *engine_rank(struct engine *engine);
/* The work of a step on this rank, between steps: as model_step_work. */
int engine_step_work(struct engine *engine, const struct model_step_shape *shape, struct work_list *list);
/* Steps that may be under way at once. */
int engine_depth(const struct engine *engine);
/* Bytes that a rank takes at the opening, by memory and purpose. */
struct engine_plan {
    size_t weights, cache, adapters, workspace; /* the device's; workspace: with activations */
    size_t transfers;                           /* the host's: what copies from and to the device go through */
    size_t steps;                               /* the host's: arrays of steps and plans, and who has which page */
    int64_t pages;                              /* of keys and values */
    int threads;                                /* that this rank computes with */
};
/* Plans rank `number` of the options' grid without opening it: options.world is not looked at, so any process can plan
 * any rank. Configuration and adapters are read, weights are not. The errors of engine_open that follow from the
 * options and the files. */
int engine_plan_make(const struct engine_options *options, int number, struct engine_plan *plan);
size_t engine_plan_device_bytes(const struct engine_plan *plan);
size_t engine_plan_host_bytes(const struct engine_plan *plan);
/* The same plan of an open engine, and its device's bytes. */
void engine_read_plan(const struct engine *engine, struct engine_plan *plan);
size_t engine_planned_bytes(const struct engine *engine);

/* ---- ranks: link.c ---- */

/* Runs what the leader plans, until it ends; returns at once on the leader. */
int engine_follow(struct engine *engine);
/* The leader calls it after its last step: the others' engine_follow returns. On the others it does nothing. */
int engine_end(struct engine *engine);

/* Signs of life of the thread that is a rank of the world. Any thread. */
struct comm_signs engine_signs_of(const struct engine *engine, int rank);

/* ---- what follows is the leader's ---- */
bool engine_leads(const struct engine *engine);

/* A text of the slot that the engine can run: with its stem at most as many tokens as positions, all of the vocabulary.
 */
int engine_check_tokens(const struct engine *engine, int slot, const char *what, const int32_t *tokens, int64_t count);

/* Starts a step, and returns before its results are there. At most engine_depth are under way, and one more where the
 * leader is the only stage. When the rows do not fit (rows, logits, positions or pages)
 * nothing has happened and STATUS_INVALID says which limit. */
int engine_submit(struct engine *engine, const struct engine_row *rows, int64_t count);
/* Seconds of the last step that was submitted and collected. */
double engine_step_seconds(const struct engine *engine);
/* Waits for the oldest step under way; results[i] belongs to its row i, where that wants logits. */
int engine_collect(struct engine *engine, struct engine_result *results);
/* Both. */
int engine_step(struct engine *engine, const struct engine_row *rows, int64_t count, struct engine_result *results);

/* A scheduler over the engine: `options` without what the engine knows of itself, which may have a smaller depth. */
int engine_open_scheduler(struct engine *engine, const struct scheduler_options *options, struct scheduler **scheduler);

#endif
