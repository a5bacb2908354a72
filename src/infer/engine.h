/* Inference: an engine on the ranks that hold a model.
 *
 * An engine owns a model opened from a directory, its packed weights, a cache of keys and values in pages, and a bank
 * of adapters. It can have several such bases, which share ranks, device, stream and workspace. A struct engine is the
 * engine as one of its bases: sequences, adapters and steps belong to that base, and steps of all bases may be under
 * way together. One of the ranks that hold the model leads. Only the leader has sequences. It submits steps: flat lists
 * of rows that mix prefill and decode of any sequences with any adapters. The other ranks follow (engine_follow): they
 * run the plans that the leader sends. A step allocates no memory. On the CPU, and elsewhere with is_batch_invariant,
 * the bits of a row depend neither on the other rows of its step nor on how its sequence was divided into steps. One
 * thread at a time may call.
 *
 * The engine's adapters and sequences are in images.h, slots.h and sequences.h; generate.h and score.h generate and
 * score texts. A scheduler (scheduler.h) uses the engine to run many requests at once. */
#pragma once

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
    const char *model; /* a model directory, or a directory of checkpoints, of which the newest is opened */
    const struct model_config *random; /* for benchmarks: random weights of this shape instead of `model`; or NULL */
    struct ckpt_tensors *encoded;      /* for plans, with `random`: files whose bits the weights have; NULL: plain */
    const char *const
        *adapters; /* [adapter_count] directories of adapters, which form the opened slot: see peft_find */
    size_t adapter_count;
    size_t tuning_memory;  /* bytes on each rank for tuning runs (tuning.h); 0: there are none */
    size_t adapter_memory; /* bytes on each rank for further adapters; 0: none can be loaded */
    struct comm *world;    /* all ranks; NULL: one rank */
    struct rank_grid grid; /* of the world, filled; data-parallel ranks hold replicas of the model; zeroed: one rank */
    int64_t first_layers, last_layers; /* of the first and the last stage; 0: as many as the other stages */
    int load_in;                       /* index into load_in_names: plain weights are rounded while they are loaded */
    int precision;                     /* enum precision, or -1: the files' type (fp16 runs as fp32) */
    const char *device;                /* for device_open; NULL: the CPU */
    int device_number;                 /* for device_open */
    int collectives;                   /* enum collectives */
    const char *gemm_algorithms;       /* a file of algorithms (parallel/algorithms.h), or NULL */
    int device_sharers;                /* ranks that open the same device; 0: 1 */
    int threads;                       /* 0: all cores */
    int64_t max_rows;                  /* of a step */
    int64_t max_logit_rows;            /* of a step */
    int64_t max_sequences;
    int64_t max_positions;            /* of a sequence, including virtual tokens; 0: the model's positions */
    const char *max_positions_option; /* its name in errors; NULL: --max-model-len */
    int64_t cache_tokens; /* of all sequences together; 0: as many as they can have and the device's memory holds */
    size_t cache_bytes;   /* on each rank, instead of cache_tokens; 0: not given */
    bool has_no_prefix_cache;
    bool has_no_graphs;      /* run every decode step anew, also on a device that records */
    bool is_batch_invariant; /* the bits of a row do not depend on the other rows, also on a device whose products do */
    int receipts;            /* enum receipt_mode: what adapters without or with a receipt must prove */
    bool touches_cache;      /* allocate the cache's memory at the opening, not when steps first write to it */
    const struct engine_options *next; /* the next base; ranks, device and precision are the first one's. NULL: none */
};
/* The maximum number of ids of a completion whose logits change, besides its tokens: biases, stop ids, ends (ask.h). */
enum { ENGINE_MAX_BIASES = 1024 + 1022 + PROMPT_MAX_ENDS };
#define ENGINE_ADAPTER_BYTES ((size_t)4 << 30) /* limit of an adapter's files */

/* Checks, before the ranks start, that the model exists and that the grid's ranks can hold it. `takes_data`: the caller
 * has work for data-parallel ranks. STATUS_USAGE; errors of reading the model's files. */
int engine_check(const struct engine_options *options, bool takes_data);
/* Opens the engine; all ranks call it together, and return the first failure of any. STATUS_USAGE, STATUS_INVALID,
 * STATUS_NOT_FOUND, STATUS_IO, STATUS_MEMORY, STATUS_PEER. */
int engine_open(const struct engine_options *options, struct engine **engine);
/* Closes all bases; `engine` is the first. */
void engine_close(struct engine *engine);
/* Returns the engine as its base `number`, 0 being the first, which engine_open gives. */
struct engine *engine_of_base(struct engine *engine, int number);

/* ---- facts about an open engine ---- */

const struct model_config *engine_config(const struct engine *engine);
enum dtype engine_dtype(const struct engine *engine);
/* Returns the name of its precision: "fp32", "bf16" or "tf32". */
const char *engine_precision(const struct engine *engine);
int64_t engine_max_rows(const struct engine *engine);
int64_t engine_max_sequences(const struct engine *engine);
int64_t engine_max_positions(const struct engine *engine);
/* Returns how its weights are held in few bits: "gptq, 4 bits, groups of 128"; "" if they are plain. */
const char *engine_quantization(const struct engine *engine);
/* Returns the directory that was opened. */
const char *engine_directory(const struct engine *engine);
/* Returns the ends of a text: the tokenizer's end-of-text first, if it has one, then those of the model's files.
 * `tokenizer` may be NULL. */
struct model_text_ends engine_text_ends(const struct engine *engine, const struct tokenizer *tokenizer);
/* Returns this rank. */
struct rank *engine_rank(struct engine *engine);
/* Lists the work of a step on this rank (model_step_work). Do not call it during a step. */
int engine_step_work(struct engine *engine, const struct model_step_shape *shape, struct work_list *list);
/* Returns how many steps may be under way at once. */
int engine_depth(const struct engine *engine);
/* The bytes that a rank takes at the opening for all bases, by memory and purpose. */
struct engine_plan {
    size_t weights, cache, adapters, workspace; /* of the device; workspace: including activations */
    size_t tuning;                              /* of the device: the limit of tuning runs */
    size_t transfers;                           /* of the host: buffers of copies from and to the device */
    size_t steps;                               /* of the host: arrays of steps and plans, and the pages' bookkeeping */
    size_t program;                             /* of the host: threads and tokenizer, beside what the process has */
    int64_t pages, sequence_pages; /* of the first base: pages of keys and values; those of the longest sequence */
    int threads;                   /* threads of this rank */
};
/* Plans rank `number` of the options' grid without opening it. It ignores options.world, so any process can plan any
 * rank. It reads configuration and adapters, but no weights. Errors of engine_open that follow from the options and the
 * files. */
int engine_plan_make(const struct engine_options *options, int number, struct engine_plan *plan);
/* The same, and the work of each of `count` steps of the first base on this rank (model_step_work). The caller frees
 * the lists (work_free), even after a failure; they start zeroed. */
int engine_plan_work(const struct engine_options *options, int number, const struct model_step_shape *shapes, int count,
                     struct engine_plan *plan, struct work_list *lists);
/* Computes the bytes that an image of such an adapter takes on rank `number`, for options.adapter_memory. Errors of
 * engine_plan_make, and of peft_open. */
int engine_plan_image(const struct engine_options *options, int number, const struct peft_config *adapter,
                      size_t *bytes);
/* Return the plan's total of the device and of the host. */
size_t engine_plan_device_bytes(const struct engine_plan *plan);
size_t engine_plan_host_bytes(const struct engine_plan *plan);
/* Return the plan of an open engine, of all bases, and the bytes of its device. */
void engine_read_plan(const struct engine *engine, struct engine_plan *plan);
size_t engine_planned_bytes(const struct engine *engine);

/* Recorded decode steps, which the device replays: CUDA graphs. There are none on the CPU, nor where stages hold the
 * model, or tensor ranks whose sums pass the host. */
struct engine_graphs {
    int count;      /* 0: none */
    double seconds; /* that their recording took at the opening */
    size_t bytes;   /* of the device's own memory that was free before */
    struct model_replays replays;
};
/* Returns the facts about them. */
struct engine_graphs engine_graphs(const struct engine *engine);

/* ---- ranks: link.c ---- */

/* Runs the leader's plans of all bases until it ends. Returns at once on the leader. `engine` is the first base.
 * STATUS_PEER, and errors of the model. */
int engine_follow(struct engine *engine);
/* Ends engine_follow on the other ranks; the leader calls it after the last step of any base. It does nothing on the
 * others. `engine` is the first base. STATUS_PEER. */
int engine_end(struct engine *engine);

/* Returns the signs of life of a rank of the world. Any thread may call this. */
struct comm_signs engine_signs_of(const struct engine *engine, int rank);

/* True on the leader. */
bool engine_leads(const struct engine *engine);

/* ---- for the leader only ---- */

/* Checks that the engine can run a text with this slot: all ids are of the vocabulary, and virtual tokens and text fit
 * into its positions. `what` begins the message. STATUS_INVALID. */
int engine_check_tokens(const struct engine *engine, int slot, const char *what, const int32_t *tokens, int64_t count);

/* Submits a step, and returns before its results are ready. At most engine_depth steps are under way, or one more when
 * the leader is the only stage. STATUS_INVALID: the rows exceed a limit (rows, logits, positions or pages), which the
 * message names, and nothing has changed. STATUS_PEER, and errors of the model. */
int engine_submit(struct engine *engine, const struct engine_row *rows, int64_t count);
/* Returns the seconds of the last collected step, from its submission to its collection. */
double engine_step_seconds(const struct engine *engine);
/* Waits for the oldest step under way. Sets results[i] for each row i that wants logits. Errors of the model;
 * STATUS_PEER. */
int engine_collect(struct engine *engine, struct engine_result *results);
/* Copies the logits [rows, V] of the rows of the last collected step that wanted any to host memory, in their order.
 * Tensor ranks need a row with top_count. STATUS_INVALID: a later stage has them, or they are more than the head takes
 * at a time. */
int engine_read_logits(struct engine *engine, int64_t rows, float *logits);
/* Submits a step and collects it. */
int engine_step(struct engine *engine, const struct engine_row *rows, int64_t count, struct engine_result *results);

/* Opens a scheduler for the engine, which fills in its limits; `options` may set a smaller depth. STATUS_INVALID,
 * STATUS_MEMORY. */
int engine_open_scheduler(struct engine *engine, const struct scheduler_options *options, struct scheduler **scheduler);
