/* The options of every command that runs a trained model (jobs/model.h). */
#pragma once

#include "launch.h"

#include "config/config.h"
#include "jobs/adapter_names.h"
#include "jobs/model.h"
#include "pretrained/encodings.h"
#include "text/prompt.h"
#include "text/tool_format.h"

static const char *const model_precisions[] = {"auto", "fp32", "bf16", "tf32", NULL};

static const char *const model_on_off[] = {"on", "off", NULL};

/* The rows of these options, for a command whose struct has its job_model at offset `at`. */
#define MODEL_ROW(at)                                                                                                  \
    ROW_PATH("model", (at) + offsetof(struct job_model, model), "PATH",                                                \
             "model directory, GGUF file, or a directory of checkpoints (the newest is taken)", .is_required = true)
static const char *const receipt_modes[] = {"check", "require", "off", NULL};
#define RECEIPTS_ROW(at)                                                                                               \
    ROW_CHOICE("receipts", (at), "check", receipt_modes,                                                               \
               "proofs of adapters: check: replay those that have one; require: refuse adapters without one; "         \
               "off: load all")
#define MODEL_ADAPTER_ROW(at, help_) ROW_PATHS("adapter", (at) + offsetof(struct job_model, adapters), "DIR...", help_)
/* Help on the option's adapters of a command whose requests or texts may name others. */
#define MODEL_ADAPTER_OR_NAMED                                                                                         \
    "adapters on the model, from finetune or PEFT, or a directory of several; all apply. NAME=DIR: an adapter for "    \
    "those lines of requests or texts that name it"
#define MODEL_NAME_ROW(at, help_) ROW_LIST("model-name", (at) + offsetof(struct job_model, names), "NAME...", help_)
#define MODEL_TOKENIZER_ROW(at)                                                                                        \
    ROW_PATH("tokenizer", (at) + offsetof(struct job_model, tokenizer), "PATH",                                        \
             "directory or GGUF file of the tokenizer, when the model has none")
#define MODEL_GRAPHS_ROW(at)                                                                                           \
    ROW_CHOICE("cuda-graphs", (at) + offsetof(struct job_model, cuda_graphs), "on", model_on_off,                      \
               "--device cuda, one rank: record decode steps once, and launch each as a whole")
#define MODEL_PRECISION_ROW(at)                                                                                        \
    ROW_CHOICE("precision", (at) + offsetof(struct job_model, precision), "auto", model_precisions,                    \
               "precision of the computation; auto: the files' type; tf32: fp32 with products in TF32, except those "  \
               "of attention, on a GPU")
#define LOAD_IN_ROW(at)                                                                                                \
    ROW_CHOICE("load-in", (at), "none", load_in_names,                                                                 \
               "round the weights of a plain model's layers while they are loaded: int8 by output, int4 in groups of " \
               "128 inputs, nf4 in blocks of 64, fp8 in blocks of 128 x 128; none: take them as they are")
#define MODEL_LOAD_IN_ROW(at) LOAD_IN_ROW((at) + offsetof(struct job_model, load_in))
#define MODEL_DEVICE_ROW(at)  CONFIG_DEVICE_ROW((at) + offsetof(struct job_model, device))
#define MODEL_THREADS_ROW(at)                                                                                          \
    ROW_INT("threads", (at) + offsetof(struct job_model, threads), "0", 0, 4096,                                       \
            "threads of each rank; 0: all cores, or one if shared", .may_differ = true)
/* How ranks compute, for a command that several ranks may run. */
#define MODEL_COMPUTE_ROWS(at)                                                                                         \
    CONFIG_INVARIANT_ROW((at) + offsetof(struct job_model, batch_invariant)),                                          \
        CONFIG_COLLECTIVES_ROW((at) + offsetof(struct job_model, collectives)),                                        \
        CONFIG_ALGORITHMS_ROW((at) + offsetof(struct job_model, gemm_algorithms)), MODEL_LOAD_IN_ROW(at),              \
        MODEL_PRECISION_ROW(at), MODEL_THREADS_ROW(at), RECEIPTS_ROW((at) + offsetof(struct job_model, receipts))
#define MODEL_MAX_LEN_ROW(at)                                                                                          \
    ROW_INT("max-model-len", (at) + offsetof(struct job_model, max_model_len), "0", 0, 1e9,                            \
            "limit of tokens of prompt and completion together; 0: the model's positions")
/* `what` becomes text by this template; `automatic`: what "auto" means. */
#define CHAT_TEMPLATE_ROW(path_, at, what, automatic)                                                                  \
    ROW_TEXT(path_, (at), "NAME|FILE",                                                                                 \
             "how " what " become text: " CHAT_TEMPLATE_CHOICES " in Jinja; auto: " automatic, .default_text = "auto")
/* `what` are texts that no template makes. */
#define SPECIAL_TOKENS_ROW(path_, at, what)                                                                            \
    ROW_CHOICE(path_, (at), "parse", special_tokens_names,                                                             \
               "names of special tokens in " what                                                                      \
               ", like <|endoftext|>: parse: they are the tokens; text: they are ordinary text")
#define TEMPLATE_TIMEOUT_ROW(path_, at)                                                                                \
    ROW_FLOAT(path_, (at), "1", 1e-3, 1e6, "seconds that a chat template may take for one rendering; more is an error")
static const char *const reasoning_choices[] = {"auto", "none", NULL};
/* `of` is put before each help text; the fields are indices of the choices. */
#define CALLS_ROWS(format_at, reasoning_at, of)                                                                        \
    ROW_CHOICE("tool-format", (format_at), "auto", tool_format_choices,                                                \
               of "how the model writes calls of tools; auto: as the chat template does"),                             \
        ROW_CHOICE("reasoning", (reasoning_at), "auto", reasoning_choices,                                             \
                   of "auto: what stands in <think> comes apart from the text, if the chat template has <think>; "     \
                      "none: it is text")
#define MODEL_RANKS_ROW(at)                                                                                            \
    RANKS_ROW((at) + offsetof(struct job_model, ranks),                                                                \
              "ranks to run the model on, as threads of this process; 1 when not given, and under mpirun or srun "     \
              "theirs")
#define MODEL_LAYOUT_ROW(at, member, path_, default_, low, help_)                                                      \
    ROW_INT("parallel." path_, (at) + offsetof(struct job_model, member), default_, low, 65536, help_)
#define MODEL_LAYOUT_ROWS(at)                                                                                          \
    MODEL_LAYOUT_ROW(at, tensor, "tensor_model_parallel_size", "1", 1, "ranks that share each layer"),                 \
        MODEL_LAYOUT_ROW(at, pipeline, "pipeline_model_parallel_size", "1", 1,                                         \
                         "stages over which the layers are spread"),                                                   \
        MODEL_LAYOUT_ROW(at, first_layers, "decoder_first_pipeline_num_layers", "0", 0,                                \
                         "layers of the first stage; 0: an equal share"),                                              \
        MODEL_LAYOUT_ROW(at, last_layers, "decoder_last_pipeline_num_layers", "0", 0,                                  \
                         "layers of the last stage, which also has the head; 0: an equal share")

#define ADAPTER_ROOT_ROW(at)                                                                                           \
    ROW_PATH("adapter-root", (at) + offsetof(struct adapter_names, root), "DIR",                                       \
             "a directory of adapters, each known by the name of its directory")
#define ADAPTER_MEMORY_ROW(at)                                                                                         \
    ROW_SIZE("adapter-memory", (at) + offsetof(struct adapter_names, memory), "1G", 1, 1e15,                           \
             "memory for adapters by name on each rank; unused ones make room for others")

/* Notes whether --adapter-memory is given; refuses it when no adapter has a name. STATUS_USAGE. */
int adapter_memory_check(struct adapter_names *names, const struct config *config);
/* Computes the grid of the ranks before they start, and logs that the model is being loaded. STATUS_USAGE for an
 * impossible layout; errors of reading the model's configuration. */
int model_grid(struct job_model *arguments, const struct launch *launch, bool takes_data);
/* Adds the facts that all processes must have in common besides the options: the model's files. `job_model`: a struct
 * job_model. STATUS_MEMORY, STATUS_IO. */
int model_facts(void *job_model, struct facts *facts);
