/* Measuring the engine and its scheduler. Figures are ratios of two sides, measured in turn within one run, so that
 * other programs affect both alike. */
#pragma once

#include "bench.h"

#include "infer/adapters.h"
#include "infer/engine.h"

/* ENGINE_ROWS: of a step. The tokens of a text are shares of the model's positions, given here per 1,024. */
enum {
    ENGINE_TEXTS = 16,
    ENGINE_MOST_TEXTS = 64,
    ENGINE_ROWS = 512,
    ENGINE_IN = 128,
    ENGINE_OUT = 128,
    ENGINE_SHARED = 512,
    ENGINE_UNSHARED = 16
};

/* Adapters of every kind, as files with random values: the options' method as described, two variants for methods with
 * the necessary keys, and every other method. */
enum { ADAPTER_GIVEN, ADAPTER_LARGE /* rank 16 at all projections */, ADAPTER_MAGNITUDES, ADAPTER_OTHERS };
enum { ADAPTER_KINDS = ADAPTER_OTHERS + PEFT_TYPE_COUNT - 1 };

struct engine_bench {
    const struct bench_options *options;
    struct model_config config;
    bool is_shape;                  /* random weights of this shape */
    char directory[64];             /* of the adapters' files; removed with the benchmark */
    int64_t in, out;                /* tokens of a text */
    const char *figure;             /* the one being measured */
    int variant;                    /* of that figure: engine.c */
    json_t *figures;                /* so far */
    char device[96], dtype_text[8]; /* of the first engine */
};

/* ---- figures: engine.c ---- */

/* Opens an engine with the shape, precision and threads of the options; the caller sets the rest. Sums of positions are
 * 0 or given. */
int engine_bench_open(struct engine_bench *bench, struct engine_options options, struct engine **engine);
/* Converts a number of 1,024 positions to this model's positions; at least 1. */
int64_t engine_bench_share(const struct engine_bench *bench, int64_t of_1024);

/* Measurements of two sides in turn. */
struct engine_pairs {
    struct bench_series measured, baseline; /* seconds */
};
/* Adds a pair of measurements and prints a line. STATUS_MEMORY. */
int engine_pairs_add(struct engine_bench *bench, struct engine_pairs *pairs, double measured, double baseline);
/* Makes {"figure", "ratio": the median of pairs, its quartiles, the medians of both sides}, and the speed of
 * measurements of `tokens` tokens. `is_speed`: the ratio is of speeds, not of times. Frees the pairs. */
json_t *engine_pairs_figure(const struct engine_bench *bench, struct engine_pairs *pairs, bool is_speed, double tokens);

/* ---- bare steps: engine_group.c ---- */

/* Texts of one length in steps of the engine. */
struct engine_group {
    struct engine *engine;
    int64_t count;
    int sequence[ENGINE_MOST_TEXTS];
    struct engine_row *rows; /* [ENGINE_ROWS] */
    struct engine_result *results;
    int32_t token[ENGINE_MOST_TEXTS]; /* drawn last */
};
/* Returns token `index` of the random text with this number. */
int32_t engine_token(const struct model_config *config, uint64_t text, int64_t index);
/* Opens `count` texts, at most ENGINE_MOST_TEXTS, text i on slots[i] (NULL: the base). Runs prefix tokens and prompts
 * of `in` tokens in the longest possible steps, and draws the first token of each. Errors of the engine. */
int engine_group_open(struct engine_group *group, struct engine *engine, const int *slots, int64_t count, int64_t in);
/* Draws the next token of each. */
int engine_group_step(struct engine_group *group, double *seconds);
void engine_group_close(struct engine_group *group);
/* Measures `count` texts on the base, from the opening to the last of `out` tokens. */
int engine_group_run(struct engine *engine, int64_t count, int64_t in, int64_t out, double *seconds);

/* ---- texts of a scheduler: engine_load.c ---- */

enum { LOAD_CLASSES = 2, LOAD_NO_CLASS = -1 };

/* A scheduler, and the gaps between its texts' tokens, in classes that the caller sets. */
struct engine_load {
    struct engine *engine;
    struct scheduler *scheduler;
    int gap_class;
    struct bench_series gaps[LOAD_CLASSES];
    bool is_out_of_memory;
};
struct engine_load_text {
    struct engine_load *load;
    uint64_t number;
    double submitted, first, last; /* seconds; of tokens */
    int64_t tokens;
    bool has_gaps, is_done;
};
/* Makes a scheduler without texts. STATUS_MEMORY. */
int engine_load_open(struct engine_load *load, struct engine *engine, int depth, double prefill_stretch);
void engine_load_close(struct engine_load *load);
struct engine_load_request {
    int slot;
    const int32_t *prompt; /* [in] */
    int64_t in, out;
    uint64_t salt;
    bool has_gaps; /* its gaps count */
};
/* Submits a text, which must not move until it is done; runs a step; runs until a text is done. */
int engine_load_submit(struct engine_load *load, const struct engine_load_request *request,
                       struct engine_load_text *text);
int engine_load_step(struct engine_load *load);
int engine_load_finish(struct engine_load *load, const struct engine_load_text *text);
/* The same for texts whose gaps count, and runs steps until each has a token. */
int engine_load_write(struct engine_bench *bench, struct engine_load *load, const int *slots, int64_t count,
                      int64_t out, struct engine_load_text *texts);
/* Measures ENGINE_TEXTS texts from the first step to the last token. */
int engine_load_run(struct engine_bench *bench, struct engine *engine, int depth, double *seconds);

/* ---- adapters: engine_adapters.c ---- */

/* Writes the files of all kinds below bench->directory, in a separate process, because this one must not have started
 * threads. */
int engine_adapters_write(struct engine_bench *bench);
void engine_adapters_path(const struct engine_bench *bench, int kind, char path[96]);

/* Each figure measures, and makes *figure, which the caller releases. */
typedef int engine_figure(struct engine_bench *bench, json_t **figure);
engine_figure engine_figure_adapters, engine_figure_bank, engine_figure_idle_bank, engine_figure_swap;

/* ---- the scheduler's: engine_schedule.c ---- */

engine_figure engine_figure_scheduler, engine_figure_prefix, engine_figure_prompts, engine_figure_pipeline;
/* Returns the layers of the first of two stages with about equal weights; the head counts as a number of layers. */
int64_t engine_first_layers(const struct model_config *c);

/* ---- memory: engine_memory.c ---- */

engine_figure engine_figure_memory;
