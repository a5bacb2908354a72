/* The model of a job: its directory, its adapters, and the layout of the ranks that hold it.
 *
 * Only the first rank reads standard input and files; it sends what it read to the others. Only the first rank
 * prints. */
#pragma once

#include "config/config.h"
#include "infer/engine.h"
#include "memory.h"
#include "train/train.h"

struct job_model {
    const char *model, *tokenizer; /* directories; tokenizer NULL: that of the model */
    struct config_list adapters;   /* directories; all apply */
    struct config_list names;      /* names of the model for clients; empty: the directory's name */
    const char *device;            /* name of a backend; NULL: the first that the machine has */
    int collectives;               /* enum collectives */
    const char *gemm_algorithms;   /* a file, or NULL */
    int64_t threads;               /* of each rank; 0: all cores, or one where ranks share them */
    int64_t ranks;                 /* 0: not given */
    int64_t max_model_len;         /* tokens; 0: the model's positions */
    int64_t tensor, pipeline, first_layers, last_layers;
    int cuda_graphs;       /* index into model_on_off */
    int batch_invariant;   /* 1: on */
    int receipts;          /* enum receipt_mode */
    int load_in;           /* index into load_in_names (pretrained/encodings.h) */
    int precision;         /* index into model_precisions; one less is engine_options.precision */
    struct rank_grid grid; /* set when the number of ranks is known */
};

#define JOB_RECEIPTS_OFF "--receipts off: adapters are loaded without a proof"

/* Returns a copy of the last part of a path, which the caller frees; NULL when there is no memory. */
char *job_last_part(const char *path);
/* Sets `names` to the model's names for clients: those given, or the last part of its path. That part is stored in
 * *directory_name, which the caller frees. STATUS_MEMORY. */
int job_model_names(const struct job_model *job, const char **directory_name, struct config_list *names);
/* Completes `options`, which has the numbers of rows and sequences, and plans the engine with job_memory_plan; on a
 * device with its own memory, only if `is_asked`. All ranks call it together. Errors of rank_site_find and
 * job_memory_plan. */
int job_model_plan(const struct job_model *job, struct comm *world, bool is_asked, struct engine_options *options,
                   struct job_memory *memory);
/* Plans the engine, refuses a plan beyond the host's memory, and opens it on this rank of `world`. All ranks call it,
 * and close the engine. All return the first failure of any rank: STATUS_MEMORY, and errors of job_model_plan and
 * engine_open. */
int job_model_open(const struct job_model *job, struct comm *world, struct engine_options options,
                   struct job_memory *memory, struct engine **engine);
/* Sets the rows, sequences and cache of an engine that scores many texts: room for two long ones, or for many short
 * ones at once. Errors of reading the model's configuration. */
int job_size_for_texts(const struct job_model *job, struct engine_options *options);
/* Opens the chat template of a prompt: the option's; else that of the first adapter in `directories` [count] that has
 * one; else the one in the files of `tokenizer`. *template is NULL when there is none. The errors of reading them. */
int job_chat_template(const char *option, const char *const *directories, size_t count, const char *tokenizer,
                      struct chat_template **template);
/* The same for the adapters of a job. */
int job_template_of(const struct job_model *job, const char *option, const char *tokenizer,
                    struct chat_template **template);
/* Appends standard input to `text`, which is empty, without a byte-order mark and a line end at its ends.
 * STATUS_INVALID for text in UTF-16 or UTF-32; STATUS_IO, STATUS_MEMORY. */
int job_read_input(struct strbuf *text);
/* Writes bytes to standard output at once. STATUS_IO. */
int job_print(const char *bytes, size_t length);
/* The same for a text of a model, to a stream. At a terminal, control characters except line ends and tabs are shown as
 * ^[ or <U+009B>, so that a model cannot command the terminal. The bytes are whole characters. STATUS_IO,
 * STATUS_MEMORY. */
int job_print_text(FILE *stream, const char *bytes, size_t length);
/* Copies the first rank's data[count] to all ranks. STATUS_PEER. */
int job_share(struct comm *world, void *data, int64_t count, enum dtype dtype);
/* Copies the first rank's `ids` to the buffers of all ranks. STATUS_MEMORY, STATUS_PEER. */
int job_share_ids(struct comm *world, struct token_buffer *ids);
/* Returns the leader that has the fewest tokens of a round, the first of equal ones: it gets the next row. */
int job_fewest(const int64_t *tokens, int leaders);

/* Returns the base of a run, or what it wrote when it trains all weights, on `tensor` ranks. */
struct job_model job_model_of_run(const struct train_run *run, int tensor);
/* Calls `work` on the tensor ranks of one model: the first ranks of a run's world. The others return at once. All call
 * it together. Errors of comm_subgroup and of `work`. */
int job_on_tensor_ranks(struct comm *world, const struct train_run *run,
                        int (*work)(struct comm *ranks, const struct train_run *run, void *context), void *context);
