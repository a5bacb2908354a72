/* The parts of the conversions. source.c opens a source of tensors, model_source.c sees it as a model in one of several
 * forms, and to_model.c writes one of its targets. */
#pragma once

#include "ckpt/exchange.h"
#include "ckpt/gguf_write.h"
#include "convert.h"

#include "pretrained/gguf_names.h"

/* Returns the type of a model's written weights; is_bf16: that of most of the source's. */
static inline enum dtype convert_dtype(const struct convert_request *request, bool is_bf16) {
    if (request->type == CONVERT_FP16)
        return DTYPE_F16;
    bool is_written_so = request->type == CONVERT_AUTO ? is_bf16 : request->type == CONVERT_BF16;
    return is_written_so ? DTYPE_BF16 : DTYPE_F32;
}

/* ---- source.c ---- */

/* A directory of tensors, or a GGUF file. */
struct source {
    const char *kind;             /* of a directory, for messages */
    char directory[PATH_MAX];     /* or the file */
    struct ckpt_tensors *tensors; /* all of them: a checkpoint's moments too, as exp_avg.NAME */
    struct pretrained file;       /* a GGUF file, which owns the tensors; zeroed: a directory */
};
/* Finds what the path is, and opens it. STATUS_NOT_FOUND, STATUS_IO, STATUS_INVALID, STATUS_UNSUPPORTED, STATUS_MEMORY.
 * Call source_close in any case. */
int source_open(const char *path, struct source *source);
/* Reads the files of a tokenizer, and opens them: a damaged one is refused, one of a kind that is not built is copied.
 */
int source_read_tokenizer(const char *directory, struct tokenizer_files *files);
void source_close(struct source *source);

/* ---- model_source.c ---- */

/* A source as a model: what names and shapes its tensors must have. */
struct model_source {
    struct source *source;
    const struct model_form *form;
    struct strbuf config_text;
    enum dtype config_dtype; /* that it named when it was read */
    struct model_config config;
    struct model_text_ends ends;
    struct param_table table;
    struct tokenizer_files tokenizer;
    struct strbuf state_text; /* trainer_state.json without digests; "" when there is none */
    enum dtype dtype;         /* to write */
};

/* The names and shapes that a source's tensors may have. */
struct model_form {
    bool (*is_there)(const struct source *source);
    /* Makes config.json of a source without one, if the source says what is in it. NULL: it never does. */
    int (*make_config)(struct model_source *model);
    /* Checks the names and shapes of all tensors that the arrays need, as ckpt_check does. STATUS_INVALID. */
    int (*check)(const struct model_source *model, const struct ckpt_array *arrays, int count);
    /* Reads a block of a parameter. Any number of threads. */
    int (*read)(const struct model_source *model, const struct ckpt_array *array, const struct ckpt_block *block,
                void *values);
    bool is_as_in_files; /* as in a model directory; names may have a prefix */
};
extern const struct model_form megatron_form;

/* Reads the configuration and the tokenizer, strips the prefix of the names, and checks all tensors of the model. */
int model_source_open(const struct convert_request *request, struct source *source, struct model_source *model);
void model_source_close(struct model_source *model);
/* Checks the names and shapes of all tensors that the arrays need, as ckpt_check does. STATUS_INVALID. */
int model_source_check(const struct model_source *model, const struct ckpt_array *arrays, int count);
/* Sets the text of config.json to this model's, with a type for its weights. STATUS_MEMORY. */
int model_source_make_config(struct model_source *model, const struct model_config *config, enum dtype dtype);
/* Reads a block of a parameter: `get` of struct ckpt_array, with a struct model_array as its context. */
struct model_array {
    const struct model_source *model;
    struct ckpt_array array; /* how it is read */
};
int model_array_get(void *array, const struct ckpt_block *block, void *values);

/* ---- Megatron core: megatron_config.c, megatron_weights.c, to_megatron.c ---- */

/* Reads the configuration from the run's arguments; *is_there is false when there are none. STATUS_INVALID,
 * STATUS_UNSUPPORTED for what is not built, by the argument's name. */
int megatron_read_config(const char *directory, struct model_config *config, bool *is_there);
enum { MEGATRON_VOCABULARY_GROUP = 128 }; /* each tensor rank has a multiple of these rows, by Megatron's default */

/* Makes the arguments of a run with this model, as a JSON object for free(). STATUS_UNSUPPORTED for what Megatron's
 * arguments cannot say, with `where`. */
int megatron_write_arguments(const char *where, const struct model_config *config, int64_t padded_vocabulary,
                             int tensor_ranks, char **text);

/* A parameter's place: rows of a tensor. */
struct megatron_place {
    char name[PARAM_NAME_BYTES];
    int64_t layer; /* -1: none */
    bool is_qkv, has_more_rows;
};
void megatron_find_place(const struct param *param, struct megatron_place *place);
/* Returns the row of our queries, keys and values that is this row of the fused ones; *rows: how many of the next rows
 * follow it there and here. */
int64_t megatron_our_row(const struct model_config *config, int64_t fused, int64_t *rows);

/* to_megatron.c: writes a checkpoint of Megatron core. */
int write_megatron(const struct convert_request *request, struct source *source);

/* to_dcp.c: writes all tensors, and the texts that are next to them. */
int write_dcp(const struct convert_request *request, struct source *source);
/* to_model.c: writes a model directory, or a checkpoint when the source has a trainer's state. */
int write_model(const struct convert_request *request, struct source *source);

/* ---- a model into a GGUF file ---- */

/* gguf_put_tokenizer.c: appends the keys of the model's tokenizer; a directory without one gives none. */
int gguf_put_tokenizer(const struct model_source *model, struct gguf_output *output);
/* to_gguf.c: writes a GGUF file. */
int write_gguf(const struct convert_request *request, struct source *source);
