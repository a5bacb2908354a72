/* The time and memory of serving on a cluster: prompts of one length, completions of one length, in batches.
 *
 * The engine's own plan gives memory and the work of a step (infer/engine.h). Weights and pages are read at a share of
 * the memory's speed, and products of prompts take their FLOPs. A layer takes at least a floor. A sum over tensor ranks
 * has a latency that grows with their number. */
#pragma once

#include "planner/cluster.h"

#include "infer/engine.h"

enum { SERVE_STEP_ROWS = 512 }; /* of `serve` when --max-batch-tokens is not given */

struct serve_layout {
    int tensor, pipeline;
    int64_t batch, input_len, output_len;
    int64_t adapters, adapter_rank; /* LoRA adapters in memory, which the batch's texts use in turn; 0: none */
    int load_in;                    /* index into load_in_names (pretrained/encodings.h) */
    int precision;                  /* enum precision: fp32 or bf16 */
    int64_t step_rows;              /* of a step, as --max-batch-tokens of `serve`; at least `batch`; 0: the default */
    struct ckpt_tensors *encoded;   /* the files whose bits the weights have; NULL: those of `precision` */
};

/* The work of a layout: of a step of the prompts and of a later step, for the first and the last stage. */
struct serve_work {
    struct engine_plan plan;               /* of the stage that takes most */
    struct work_list prompts[2], token[2]; /* a layout of one stage has only the first of both */
    struct serve_layout layout;
    double prompt_steps; /* in which the prompts of a batch are computed */
    double layers;       /* of a stage */
    double image_bytes;  /* of an adapter, at the stage that has most */
    enum dtype dtype;
};

/* Plans the engine of a layout without opening it. `cache` has room for the batch's texts. The caller frees *work.
 * STATUS_USAGE for an impossible layout; the errors of engine_plan_work. */
int serve_work_make(const struct model_config *model, const struct serve_layout *layout, const struct cluster *cluster,
                    struct serve_work *work);
void serve_work_free(struct serve_work *work);

/* The predicted seconds. */
struct serve_times {
    double prompts, token, latency; /* of all prompts of a batch, of one further token of each, and of a whole batch */
    double tokens_per_s;            /* of all devices of the layout together */
};
/* Predicts the times of a layout from its work. */
void serve_times_find(const struct serve_work *work, const struct cluster *cluster, struct serve_times *times);

/* A search over layouts of at most `devices` devices. */
struct serve_search {
    const struct cluster *cluster;
    const struct model_config *model;
    int devices;
    int64_t input_len, output_len, batch; /* batch 0: 1, 2, 4, ... 256 */
    int tensor, pipeline;                 /* 0: every size */
    int64_t adapters, adapter_rank;       /* of each layout */
    int load_in, precision;               /* of each layout */
    int64_t step_rows;                    /* of each layout */
    struct ckpt_tensors *encoded;         /* of each layout */
    bool is_tool;                         /* only layouts of NVIDIA's tool */
    double max_latency, min_tokens_per_s; /* seconds; 0: no limit */
    double memory_share;
};
struct serve_row {
    struct serve_layout layout;
    struct serve_times times;
    struct engine_plan plan;
    size_t image_bytes;         /* of an adapter */
    double per_device;          /* requests per second */
    bool is_pareto, is_allowed; /* no row is better in both latency and requests per device; within the limits */
};
struct serve_result {
    const struct cluster *cluster; /* of the search */
    struct serve_row *rows;        /* [count] by latency */
    int count, best;               /* the allowed row with most requests per device; -1: none */
    int nearest;                   /* without an allowed row, the one that misses the limits least; -1: no row */
    int refused, no_memory;
    struct serve_row smallest; /* of those without memory, the one that takes least */
};
/* Finds all layouts that fit. The caller frees result->rows. */
int serve_search_run(const struct serve_search *search, struct serve_result *result);
