/* The benchmarks: one function each. Every one prints JSON objects, one a line, the summary last.
 *
 * A figure by itself says little: machines differ by more than 2x and drift within minutes. Therefore every benchmark
 * measures its ceiling (GEMM FLOP/s, streaming read) just before and just after itself in the same process, and reports
 * the ratio.
 *
 * Functions that return a status print nothing after a failure; they return the errors of what they measure. */
#pragma once

#include "config/run.h"
#include "parallel/rank.h"
#include "peft/config.h"

#include <jansson.h>

/* The options of all benchmarks. With has_peer, train, finetune, prefill and decode are compared with Hugging Face's
 * libraries: transformers.h. */
struct bench_options {
    const char *model;       /* "gpt2-124m" or a model directory */
    const char *tokenizer;   /* directory */
    const char *input;       /* a text file */
    const char *peer_python; /* runs the peers */
    bool has_peer;
    const char *device; /* NULL: the CPU */
    const char *filter; /* for op cases and figures of the engine: a part of the text that names each */
    int64_t layers;     /* of a published shape; 0: its own */
    int64_t micro_batch_size, seq_length, steps, threads;
    int64_t ranks, global_batch_size; /* for train and checkpoint; 0: not given */
    int load_in;                      /* index into load_in_names */
    int precision;                    /* enum precision */
    bool has_precision;               /* given: operations of the other precision are skipped */
    bool only_checks;                 /* for ops: compare the test cases with their references */
    bool has_dropout, has_baseline;
    bool is_batch_invariant;     /* for prefill and decode */
    const char *gemm_algorithms; /* for train, finetune, prefill and decode: a file, or NULL */
    const char *tune;            /* for gemm: measure a model's products, and write this file; or NULL */
    struct run_config run;       /* for train: the section `parallel`; for finetune: recomputation */
    struct comm *world;          /* for train: the processes of a launch, or NULL */
    struct peft_config peft;     /* for finetune: the adapter, and what trains it */
    const struct tuner *tuner;   /* for train_run */
};

/* Measures plain matrix products. */
int bench_gemm(const struct bench_options *options);
/* Measures the algorithms that a GPU's library proposes for the products of a training step, of decode steps and of a
 * prompt, and writes options->tune. */
int bench_tune(const struct bench_options *options);
/* Measures the operations of the op cases, each compared with the ceiling that bounds it. Or checks them all, and fails
 * with STATUS_INVALID where a case fails. */
int bench_ops(const struct bench_options *options);
/* Encodes and learns, in turn with tiktoken and tokenizers if peer_python has them. */
int bench_tokenizer(const struct bench_options *options);
/* Measures the trainer's step, in turn with one of a single rank with as many threads. A rank of `world` that fails has
 * called comm_abort. */
int bench_train(const struct bench_options *options);
/* Measures the step of a method on a frozen base, in turn with one that trains the whole model. Also measures the peak
 * memory of both, each in a separate process, and the time to load the adapter. */
int bench_finetune(const struct bench_options *options);
/* Measures saves of the trainer, `steps` in the foreground and `steps` in the background, and a plain write to the
 * disk. */
int bench_checkpoint(const struct bench_options *options);
/* bench_load measures the time from a model's closed files to an engine that can serve, and the time to read their
 * bytes. */
int bench_load(const struct bench_options *options);
int bench_prefill(const struct bench_options *options);
int bench_decode(const struct bench_options *options);
/* Measures the cost of scheduling, adapters, caching and swapping, compared with bare steps of the engine: engine.h. */
int bench_engine(const struct bench_options *options);

/* Measures a batch of micro_batch_size requests with prompts of seq_length tokens and completions of `output_len`.
 * Stores the median of `steps` steps of the prompts, and for each further token the median of their steps. */
int bench_measure_requests(const struct bench_options *options, int64_t output_len, double *seconds);
/* Measures this machine: products of the model's shapes, steps of a few layers, links between the ranks, what overlaps.
 * Writes a cluster file to `output`, and prints a predicted step next to a measured one. It reads model, precision,
 * ranks, world, threads, device, micro_batch_size and seq_length. Errors as bench_train, STATUS_IO. */
int bench_calibrate(const struct bench_options *options, const char *output);

/* A resolved run of `ranks` threads of this process. */
struct bench_row {
    const struct train_run *run;
    int ranks;
    const char *device; /* without one of the run's */
    int64_t steps;
};
/* Measures steps of a run on random tokens, and stores their median. A run that takes more memory than this host has is
 * refused (STATUS_MEMORY). Errors of the trainer. */
int bench_measure_row(const struct bench_row *row, double *seconds);

/* ---- what they share: report.c ---- */

/* True for the name of a published shape, which gets random weights. */
bool bench_is_shape(const char *model);
/* Returns that shape with its published dropout, with `layers` layers (0: its own), or a model's configuration.
 * STATUS_USAGE: a model's layers cannot change. */
int bench_model_config(const char *model, int64_t layers, struct model_config *config);
/* Makes a directory in $TMPDIR or /tmp, which the caller removes: training.c. */
enum { BENCH_DIRECTORY_BYTES = 64 };
int bench_make_directory(char directory[BENCH_DIRECTORY_BYTES], const char *purpose);
/* bench_print prints an object as one line, and frees it. */
int bench_print(json_t *object);
double bench_median(double *values, int64_t count);
/* Returns the value that the given share of the values does not exceed; sorts them. */
double bench_quantile(double *values, int64_t count, double share);
/* A growing array of numbers; {0} is empty. STATUS_MEMORY. */
struct bench_series {
    double *values;
    int64_t count, room;
};
/* Adds a number (STATUS_MEMORY), and frees the array. */
int bench_series_add(struct bench_series *series, double value);
void bench_series_free(struct bench_series *series);
/* Compares the GELU in a product of bf16 with gelu_forward: gelu.c. *found has how many values differ, and the largest
 * error of each in roundings to bf16; NULL if the device has no such product. The caller frees it. */
int bench_compare_gelu(struct device *device, json_t **found);
/* Waits until threads that spin while they wait have gone to sleep. */
void bench_pause(void);
/* Measures the peak memory of a process that does only `work`. Call it before anything has started threads. */
int bench_peak_of(int (*work)(const void *context), const void *context, size_t *bytes);
/* Returns the memory in use on a device that has its own, by all programs; 0 for others. */
size_t bench_device_bytes(struct device *device);
/* Adds "device_bytes", unless it is 0. */
void bench_add_device_bytes(json_t *object, size_t bytes);
/* The mean of two measurements of a ceiling: before and after. */
struct bench_ceiling {
    double gemm, read; /* FLOP/s in the run's precision; bytes/s */
};
/* Measures the ceilings, and averages two measurements. Errors of device_measure_gemm. */
int bench_measure_ceiling(struct device *device, enum dtype dtype, bool is_tf32, struct bench_ceiling *ceiling);
struct bench_ceiling bench_mean(struct bench_ceiling before, struct bench_ceiling after);
/* Returns the mean seconds of a step in each phase; the rest of the `total` seconds of all `steps` is a phase too. */
json_t *bench_phases(const double seconds[PHASE_COUNT], double total, int64_t steps);
