/* Models by their size or name only, and the grids of NVIDIA's auto-configurator (NeMo-Framework-Launcher 22.06,
 * hp_tool). Pure arithmetic; any thread. */
#pragma once

#include "config/run.h"

/* The shape of a model, and the batch that suits it. */
struct size_shape {
    int64_t layers, hidden, heads, global_batch;
    double lr;
};
enum { SIZES_MOST = 16 };
/* A grid of layouts: values, 0 after the last. */
struct size_grid {
    int tensor[SIZES_MOST], micro_batch[SIZES_MOST];
    int least_pipeline, most_pipeline; /* that divide the layers */
    bool is_large; /* sequence parallel and selective recomputation, in place of full recomputation */
};

/* The tables are for this vocabulary and for samples of this length. */
enum { SIZE_VOCABULARY = 51200, SIZE_SEQ_LENGTH = 2048 };

/* Sets the keys that the model decides, with a batch and a learning rate that suit it. `text` is a size ("20B",
 * "126M"), in the shape of the tables, or the name of an open model ("llama-3.1-8b", in either case), in its own shape.
 * Stores the nominal billions of parameters. STATUS_USAGE, with the names. */
int size_take(const char *text, int64_t seq_length, struct run_config *run, double *billions);
/* Finds the shape of a size up to 1,100 billion parameters. STATUS_USAGE for others. */
int size_shape(double billions, int64_t vocab, int64_t seq_length, struct size_shape *shape);
/* Returns the parameters of a GPT of the shape, in billions. */
double size_parameters(const struct size_shape *shape, int64_t vocab, int64_t seq_length);
/* Finds the tool's grid for devices of 80 GB. STATUS_USAGE as size_shape. */
int size_grid(double billions, struct size_grid *grid);
/* The rule 8TP/(nX): returns the days that `tokens` take, and the size that `days` allow, in billions. */
double size_rule_days(double billions, double tokens, double devices, double flops);
double size_rule_billions(double days, double tokens, double devices, double flops);
/* Sets the keys of a run's configuration that the shape decides. */
void size_apply(const struct size_shape *shape, int64_t vocab, int64_t seq_length, struct run_config *run);
