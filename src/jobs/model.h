/* The model of a job: its directory with adapters, and the ranks that hold it together.
 *
 * The first rank alone reads standard input and files, and sends what it read to the others; it alone prints. */
#ifndef CAMBIUM_JOBS_MODEL_H
#define CAMBIUM_JOBS_MODEL_H

#include "config/config.h"
#include "infer/engine.h"

struct job_model {
    const char *model, *tokenizer; /* directories; tokenizer NULL: the model's own */
    struct config_list adapters;   /* directories; all apply */
    struct config_list names;      /* of the model for clients; none: its directory's */
    const char *device;            /* backend; NULL: the first that the machine has */
    int64_t threads;               /* of each rank; 0: all cores, or one where ranks share them */
    int64_t ranks;                 /* 0: not given */
    int64_t max_model_len;         /* tokens; 0: the model's positions */
    int64_t tensor, pipeline, first_layers, last_layers;
    int precision;         /* of model_precisions; -1 of it is engine_options.precision */
    struct rank_grid grid; /* of the ranks, when their number is known */
};

/* Puts the names of the model for clients into `names`: those that were given, or the last part of its path. *own keeps
 * that part, and the caller frees it. STATUS_MEMORY. */
int job_model_names(const struct job_model *job, const char **own, struct config_list *names);
/* As a rank of `world`: opens the engine, which the caller closes. `options` has the numbers of rows and sequences. All
 * ranks get the first failure: those of engine_open, and those of finding cores. */
int job_model_open(const struct job_model *job, struct comm *world, struct engine_options options,
                   struct engine **engine);
/* Sends `ids` of the first rank to all, whose buffers grow. STATUS_MEMORY, STATUS_PEER. */
int job_share_ids(struct comm *world, struct token_buffer *ids);

#endif
