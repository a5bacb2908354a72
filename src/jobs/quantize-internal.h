/* The parts of `quantize` that follow samples. quantize_samples.c reads texts, and quantize_layers.c sums the inputs of
 * each layer's linears. quantize_solve.c finds codes that keep the outputs. */
#pragma once

#include "ckpt/quantize.h"
#include "model/model.h"
#include "pretrained/pretrained.h"
#include "quantize.h"

/* ---- quantize_samples.c ---- */

/* Pieces of texts, of equal lengths. */
struct samples {
    int32_t *tokens; /* [count, length] */
    int64_t count, length;
    int64_t held_back; /* the last ones, which nothing is fitted to */
};
/* Reads job->data, and draws samples from it. A tenth is held back, at least one. STATUS_INVALID for too short a file;
 * errors of the file and the tokenizer. */
int samples_read(const struct quantize_job *job, const struct pretrained *model, struct samples *samples);
void samples_free(struct samples *samples);

/* ---- quantize_layers.c ---- */

/* Samples on their way through the model. One layer at a time is in memory. */
struct calibration;

/* Reads the samples, and runs them through the embedding. All ranks of the world call it together, and what follows;
 * each takes a share of the samples. The caller closes it, even after a failure. STATUS_USAGE for fewer samples than
 * ranks. */
int calibration_open(const struct quantize_job *job, const struct pretrained *model, const struct param_table *table,
                     struct comm *world, int threads, struct calibration **calibration);
void calibration_close(struct calibration *calibration);
/* Takes the samples to a layer, and sums its inputs. They go through the layers before it with the weights that
 * calibration_set gave. */
int calibration_reach(struct calibration *calibration, int64_t layer);
/* Returns sums [in, in] of x x' over the inputs x of the present layer's linear at a place. */
const float *calibration_sums(const struct calibration *calibration, int place);
/* Sets the weights of a linear of the present layer: what its codes mean. */
int calibration_set(struct calibration *calibration, const struct quantized_linear *linear,
                    const struct encoded_rows *rows);
/* Returns the next slice of a parameter in a module of the files, and advances *number, which starts as 0; NULL: no
 * more. */
const struct param_slice *quantized_slice(const struct param *row, const char *module, int *number);
/* Copies up to `most` rows of the present layer's weight at a place, [count, in]. The caller frees *rows.
 * STATUS_MEMORY. */
int calibration_rows(const struct calibration *calibration, int place, int64_t most, float **rows, int64_t *count);
/* Sets a vector of the present layer. */
void calibration_set_vector(struct calibration *calibration, const struct quantized_vector *vector);
/* Takes the samples to the end. *divergence is the mean of Kullback-Leibler's, in nats a token, from the model's to the
 * quantised one's distribution of the next token, on the samples that were held back. */
int calibration_finish(struct calibration *calibration, double *divergence);

/* ---- quantize_solve.c: ranks of a world divide the rows of a linear, and get equal results ---- */

/* Adds numbers [count] that one rank has each, the others having 0, in their order. All ranks have them afterwards. The
 * errors of comm_all_reduce. */
int ranks_add(struct comm *world, double *numbers, int64_t count, double *sum);
/* Rounds a linear so that its outputs change little: GPTQ (arXiv 2210.17323), in the order of the inputs. `sums` is
 * that of calibration_sums. STATUS_MEMORY, and the errors of collectives. */
int solve_gptq(struct comm *world, const struct rounding_call *call, const float *sums);
/* Finds the factors [in] of the inputs that make the error of the outputs the smallest, when they multiply the values
 * of a call before nearest rounding. This is AWQ (arXiv 2306.00978). `sizes` [in] has the mean squares of the inputs,
 * up to one factor: equal ones get equal factors. The call has no target. STATUS_MEMORY, and the errors of collectives.
 */
int solve_factors(struct comm *world, const struct rounding_call *call, const float *sums, const float *sizes,
                  float *factors);
/* Adds the squares of the outputs, and of their change by rounding, for some of the rows. The values are `factors`
 * (NULL: 1) times those that the sums belong to. STATUS_MEMORY, and the errors of collectives. */
int solve_errors(struct comm *world, const struct rounding_call *call, const float *sums, const float *factors,
                 double *error, double *size);
