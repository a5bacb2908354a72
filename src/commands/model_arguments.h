/* The options of every command that runs a trained model, and the ranks that hold it together.
 *
 * The first rank alone reads standard input and files, and sends what it read to the others; it alone prints. */
#ifndef CAMBIUM_COMMANDS_MODEL_ARGUMENTS_H
#define CAMBIUM_COMMANDS_MODEL_ARGUMENTS_H

#include "launch.h"

#include "config/config.h"
#include "infer/infer.h"

#include <stddef.h>

struct model_arguments {
    const char *model, *tokenizer; /* tokenizer NULL: the model's own */
    struct config_list adapters;   /* directories; all apply */
    struct config_list names;      /* of the model for clients; none: its directory's */
    const char *device;            /* backend; NULL: the first that the machine has */
    int64_t threads;               /* of each rank; 0: all cores, or one where ranks share them */
    int64_t ranks;                 /* 0: not given */
    int64_t max_model_len;         /* 0: the model's positions */
    int64_t tensor, pipeline, first_layers, last_layers;
    int precision; /* of model_precisions; -1 of it is engine_options.precision */
};

static const char *const model_precisions[] = {"auto", "fp32", "bf16", NULL};

/* Rows of a command whose struct has its model_arguments at `at`. */
#define MODEL_ROW(at)                                                                                                  \
    {                                                                                                                  \
        .path = "model", .type = CONFIG_STRING, .offset = (at) + offsetof(struct model_arguments, model),              \
        .metavar = "DIR", .is_path = true, .is_required = true,                                                        \
        .help = "model directory, or a directory of checkpoints (the newest is taken)"                                 \
    }
#define MODEL_ADAPTER_ROW(at)                                                                                          \
    {                                                                                                                  \
        .path = "adapter", .type = CONFIG_LIST, .offset = (at) + offsetof(struct model_arguments, adapters),           \
        .metavar = "DIR...", .is_path = true,                                                                          \
        .help = "adapters on the model, of finetune or PEFT, or a directory of several; all apply. NAME=DIR, with "    \
                "lines of requests or texts: one for lines that name it"                                               \
    }
#define MODEL_NAME_ROW(at, help_)                                                                                      \
    {                                                                                                                  \
        .path = "model-name", .type = CONFIG_LIST, .offset = (at) + offsetof(struct model_arguments, names),           \
        .metavar = "NAME...", .help = help_                                                                            \
    }
#define MODEL_TOKENIZER_ROW(at)                                                                                        \
    {                                                                                                                  \
        .path = "tokenizer", .type = CONFIG_STRING, .offset = (at) + offsetof(struct model_arguments, tokenizer),      \
        .metavar = "DIR", .is_path = true, .help = "tokenizer, when it is not in the model directory"                  \
    }
#define MODEL_PRECISION_ROW(at)                                                                                        \
    {                                                                                                                  \
        .path = "precision", .type = CONFIG_CHOICE, .offset = (at) + offsetof(struct model_arguments, precision),      \
        .default_text = "auto", .choices = model_precisions, .help = "to compute in; auto is the files' type"          \
    }
#define MODEL_DEVICE_ROW(at) CONFIG_DEVICE_ROW((at) + offsetof(struct model_arguments, device))
#define MODEL_THREADS_ROW(at)                                                                                          \
    {                                                                                                                  \
        .path = "threads", .type = CONFIG_INT, .offset = (at) + offsetof(struct model_arguments, threads),             \
        .default_text = "0", .minimum = 0, .maximum = 4096, .help = "of each rank; 0 is all cores, one where shared",  \
        .may_differ = true                                                                                             \
    }
#define MODEL_MAX_LEN_ROW(at)                                                                                          \
    {                                                                                                                  \
        .path = "max-model-len", .type = CONFIG_INT, .offset = (at) + offsetof(struct model_arguments, max_model_len), \
        .default_text = "0", .minimum = 0, .maximum = 1e9,                                                             \
        .help = "tokens of prompt and text together, for which memory is kept; 0: the model's positions"               \
    }
#define TEMPLATE_TIMEOUT_ROW(path_, at)                                                                                \
    {                                                                                                                  \
        .path = path_, .type = CONFIG_FLOAT, .offset = (at), .default_text = "1", .minimum = 1e-3, .maximum = 1e6,     \
        .help = "seconds that a chat template may take for one rendering; more is an error"                            \
    }
#define MODEL_RANKS_ROW(at)                                                                                            \
    RANKS_ROW((at) + offsetof(struct model_arguments, ranks),                                                          \
              "ranks to run the model on, as threads of this process; 1 when not given, and under mpirun or srun "     \
              "theirs")
#define MODEL_LAYOUT_ROW(at, member, path_, default_, low, help_)                                                      \
    {                                                                                                                  \
        .path = "parallel." path_, .type = CONFIG_INT, .offset = (at) + offsetof(struct model_arguments, member),      \
        .default_text = default_, .minimum = low, .maximum = 65536, .help = help_                                      \
    }
#define MODEL_LAYOUT_ROWS(at)                                                                                          \
    MODEL_LAYOUT_ROW(at, tensor, "tensor_model_parallel_size", "1", 1, "ranks that share each layer"),                 \
        MODEL_LAYOUT_ROW(at, pipeline, "pipeline_model_parallel_size", "1", 1,                                         \
                         "stages that the layers are spread over"),                                                    \
        MODEL_LAYOUT_ROW(at, first_layers, "decoder_first_pipeline_num_layers", "0", 0,                                \
                         "layers of the first stage; 0: an equal share"),                                              \
        MODEL_LAYOUT_ROW(at, last_layers, "decoder_last_pipeline_num_layers", "0", 0,                                  \
                         "layers of the last stage, which also has the head; 0: an equal share")

/* The names of the model for clients: those that were given, or the last part of its path, which *own keeps and the
 * caller frees. `names` points to either. STATUS_MEMORY. */
int model_names(const struct model_arguments *arguments, const char **own, struct config_list *names);
/* The grid of the ranks, before they start; says that the model is being loaded, and refuses a model that is not there
 * and layouts that cannot be. */
int model_grid(const struct model_arguments *arguments, const struct launch *launch, bool takes_data,
               struct rank_grid *grid);
/* Lists what all processes of a launch have to mean: the command's rows and the files of the model. */
int model_facts(const struct model_arguments *arguments, const struct launch *launch,
                const struct config_command *command, const void *values, bool is_help, struct facts *facts);
/* As a rank: opens the engine. `options` has the numbers of rows and sequences. */
int model_engine_open(const struct model_arguments *arguments, struct comm *world, const struct rank_grid *grid,
                      struct engine_options options, struct engine **engine);
/* `ids` of the first rank to all. */
int model_share_ids(struct comm *world, struct token_buffer *ids);

#endif
