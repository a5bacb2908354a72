/* What is measured: one function a benchmark, each printing JSON objects a line, the summary last.
 *
 * A figure alone says little: machines differ by more than 2x and drift within minutes. So every benchmark measures its
 * ceiling (GEMM FLOP/s, streaming read) just before and just after in the same process, and gives the ratio. */
#ifndef CAMBIUM_BENCH_BENCH_H
#define CAMBIUM_BENCH_BENCH_H

#include "config/run.h"
#include "parallel/rank.h"
#include "peft/config.h"

#include <jansson.h>

/* With has_peer, train, finetune, prefill and decode have Hugging Face's libraries beside them: transformers.h. */
struct bench_options {
    const char *model;       /* "gpt2-124m" or a model directory */
    const char *tokenizer;   /* directory */
    const char *input;       /* a text file */
    const char *peer_python; /* that runs the peers */
    bool has_peer;
    const char *device; /* backend; NULL: the first that the machine has */
    const char *filter; /* of op cases and figures of the engine: a part of the text that names each */
    int64_t micro_batch_size, seq_length, steps, threads;
    int64_t ranks, global_batch_size; /* of train and checkpoint; 0: not given */
    int precision;                    /* enum precision */
    bool has_precision;               /* given: operations of the other are left out */
    bool has_dropout, has_baseline;
    struct run_config run;         /* of train: the section `parallel`; of finetune: recomputation */
    struct comm *world;            /* of train: the processes of a launch, or NULL */
    struct peft_config peft;       /* of finetune: the adapter, and what trains it */
    const struct trainee *trainee; /* for train_run */
};

int bench_gemm(const struct bench_options *options);
int bench_ops(const struct bench_options *options);
/* In turn with tiktoken and tokenizers, where peer_python has them. */
int bench_tokenizer(const struct bench_options *options);
/* The trainer's own step, beside that of one rank with as many threads in turn with it. A rank of `world` that fails
 * has called comm_abort. */
int bench_train(const struct bench_options *options);
/* The step of a method on a frozen base, beside one that trains the whole model, in turn with it; peak memory of both,
 * each in a process of its own; and how long the adapter takes to load. */
int bench_finetune(const struct bench_options *options);
/* Saves of the trainer, in the foreground and in the background, `steps` of each, beside a plain write of the disk. */
int bench_checkpoint(const struct bench_options *options);
/* A model's files, from closed to an engine that can serve, beside reading their bytes. */
int bench_load(const struct bench_options *options);
int bench_prefill(const struct bench_options *options);
int bench_decode(const struct bench_options *options);
/* What scheduling, adapters, caching and swapping cost beside bare steps of the engine: engine.h. */
int bench_engine(const struct bench_options *options);

/* ---- what they share: report.c ---- */

/* Whether it is the name of a published shape, which gets random weights. */
bool bench_is_shape(const char *model);
/* That shape with its published dropout, or what DIR's config.json says. */
int bench_model_config(const char *model, struct model_config *config);
/* A directory of its own in $TMPDIR or /tmp, for whoever makes it to remove: training.c. */
enum { BENCH_DIRECTORY_BYTES = 64 };
int bench_make_directory(char directory[BENCH_DIRECTORY_BYTES], const char *purpose);
/* Prints an object (and frees it) as one line. */
int bench_print(json_t *object);
double bench_median(double *values, int64_t count);
/* The value that a share of them does not exceed; sorts them. */
double bench_quantile(double *values, int64_t count, double share);
/* Numbers, as many as come; {0} is none. */
struct bench_series {
    double *values;
    int64_t count, room;
};
int bench_series_add(struct bench_series *series, double value);
void bench_series_free(struct bench_series *series);
/* Until threads that spin while they wait for their turn have gone to sleep. */
void bench_pause(void);
/* The most memory that a process of its own takes for it. Before anything has started threads. */
int bench_peak_of(int (*work)(const void *context), const void *context, size_t *bytes);
/* The mean of two measurements of a ceiling: before and after. */
struct bench_ceiling {
    double gemm, read; /* FLOP/s in the run's precision; bytes/s */
};
int bench_measure_ceiling(struct device *device, enum dtype dtype, struct bench_ceiling *ceiling);
struct bench_ceiling bench_mean(struct bench_ceiling before, struct bench_ceiling after);
/* Mean seconds of a step in each phase; `total` seconds of all `steps` make up the rest. */
json_t *bench_phases(const double seconds[PHASE_COUNT], double total, int64_t steps);

#endif
