/* The common part of codecs. A format is a row of the table in codec.c, and a file. The row has its tensors, a reader
 * of its configuration, and a function that says where the codes and scales of a linear lie. codec_read.c reads them.
 */
#pragma once

#include "ckpt-internal.h"
#include "codec.h"
#include "text/expression.h"

enum { CODEC_PARTS = 8, CODEC_SHAPE_BYTES = 128 };

enum part_use { PART_NONE, PART_NEEDED, PART_OPTIONAL, PART_SKIPPED /* of activations and caches */ };

/* A tensor of a linear X: its name is X and the ending. */
struct codec_part {
    const char *ending, *types; /* types: names of the format, each between blanks: " I32 " */
    enum part_use use;
};

/* Entries of a configuration that name modules. */
struct codec_names {
    struct codec_name {
        const char *text;                   /* the name of one module, or an expression */
        struct text_expression *expression; /* of Python's re, for the beginning of a name; NULL: the text is a name */
        bool is_class;                      /* a class of modules that includes every linear */
        const json_t *value;                /* what the configuration says of the modules; NULL: nothing */
    } * items;
    size_t count;
};

/* A `quantization_config`, while a model is opened. */
struct codec_config {
    struct json_keys keys;
    const char *where;
    int64_t bits, group; /* 0: not given, or whole rows */
    int64_t block[2];    /* rows and columns that share a scale; 0: no blocks */
    bool is_symmetric;
    bool has_plain_zeros;      /* GPTQ's second version */
    bool needs_order;          /* the inputs of groups do not lie together */
    bool asks_for_activations; /* quantised activations, or a quantised cache */
    struct codec_names names;  /* rules for modules; the first that fits decides */
    struct codec_names ignored;
};

/* Codes [shape[0], shape[1]] of a tensor, packed along an axis in units of 1 or 4 bytes. The first code of a unit has
 * its lowest bits, unless `places` has the place of each. */
struct codec_codes {
    struct tensor_entry tensor;
    int64_t shape[2];
    int bits, unit_bytes, axis;
    const uint8_t *places;
    uint32_t added;  /* to each unit, before it is unpacked */
    uint8_t flipped; /* bits of a code that are inverted: 0x80 makes int8 a code with bias 128 */
};

struct codec;

/* A linear of the files in few bits. */
struct codec_linear {
    char *name; /* X.weight */
    const struct codec *codec;
    struct tensor_entry parts[CODEC_PARTS]; /* as codec->parts; those that are absent have no tensor */
    int64_t rows, columns;
    const char *units;            /* for people: what `columns` fill, where no tensor has their number; or NULL */
    struct encoding encoding;     /* `group`: as in the files */
    struct codec_codes codes;     /* [rows, columns], or turned: [columns, rows]; or flat: [1, rows * columns] */
    struct codec_codes zeros;     /* [rows, groups], or turned; without a tensor there are none */
    bool is_turned;               /* codes, zeros and scales are [inputs or groups, outputs] */
    bool is_flat;                 /* groups run through the flat weight, across rows */
    int64_t scale_rows, groups;   /* rows that share a scale; groups of a row, unless the weight is flat */
    int scales;                   /* their part: [rows / scale_rows, groups], or turned; one number for each group */
    float offset;                 /* of bitsandbytes' scales of scales */
    int64_t nested_block;         /* the same: scales that share one; 0: scales are plain */
    int32_t *group_of, *by_group; /* [columns] the group of each input, and the inputs sorted by it; NULL: in order */
};

/* How a method's linears are read. */
struct codec {
    const char *method;                   /* quant_method */
    const char *form;                     /* for people */
    struct codec_part parts[CODEC_PARTS]; /* the first makes a tensor a linear */
    /* Reads the configuration; errors go to keys.status. Forms that are not read are refused by their names. */
    void (*configure)(struct codec_config *config);
    /* Checks the shapes of a linear's parts, and sets the members of the linear from `rows` on. */
    int (*open)(const struct codec_config *config, struct codec_linear *linear);
    /* Completes the linears of a model, when it depends on all of them; NULL: nothing to do. */
    int (*settle)(const struct codec_config *config, struct codec_linear *linears, size_t count);
    /* Reads scales [first, first + count), flat in the order of their tensor, in the encoding's type. NULL: they are
     * the numbers of their tensor. */
    int (*read_scales)(const struct codec_linear *linear, int64_t first, int64_t count, void *out);
};

/* The rows of each format's file. */
extern const struct codec codec_gptq, codec_awq, codec_compressed_packed, codec_compressed_plain, codec_fp8,
    codec_bitsandbytes_4, codec_bitsandbytes_8;

/* A rectangle of a linear. */
struct codec_rect {
    int64_t row, rows, column, columns;
};

/* ---- for formats ---- */

/* Fails with "FILE: tensor 'NAME' ..." of a part. */
#define codec_fail(linear, part, format, ...)                                                                          \
    status_fail(STATUS_INVALID, "%s: tensor '%s' " format, (linear)->parts[part].file->path,                           \
                shown((linear)->parts[part].tensor->name, (char[SHOWN_BYTES]){0}), __VA_ARGS__)
/* Checks the shape of a part. STATUS_INVALID. */
int codec_expect(const struct codec_linear *linear, int part, int dims, int64_t first, int64_t second);
/* Sets codes packed in units along an axis, and checks the shape of their tensor. STATUS_INVALID. */
int codec_set_codes(const struct codec_linear *linear, int part, struct codec_codes layout, struct codec_codes *codes);
/* Reads the group of each input from an I32 tensor, which must be below `groups`. STATUS_INVALID, STATUS_IO,
 * STATUS_MEMORY. */
int codec_set_order(struct codec_linear *linear, int part, int64_t groups);
/* Refuses a word for a key that is not read: "FILE: 'KEY' "WORD" is not supported". */
void codec_refuse(struct codec_config *config, const char *key, const char *word);
/* Sets the scales of a linear with rows and columns: a part with one for each block of that many rows and columns, 0
 * meaning all. The part's shape may lack dimensions of 1 at its end. It is turned where the linear is. STATUS_INVALID.
 */
int codec_set_scales(struct codec_linear *linear, int part, int64_t block_rows, int64_t block_columns);
/* Adds an entry; `text` lives as long as the configuration. STATUS_INVALID, STATUS_MEMORY. */
int codec_names_add(struct codec_config *config, struct codec_names *names, const char *key, const char *text,
                    bool is_expression, const json_t *value);
/* Refuses a key that is there, and neither null nor empty. */
void codec_refuse_key(struct codec_config *config, const char *key);
void codec_names_free(struct codec_names *names);
/* Finds the first entry that matches the module of a linear, its name without ".weight"; NULL: none. */
int codec_names_find(const struct codec_config *config, const struct codec_names *names,
                     const struct codec_linear *linear, const struct codec_name **found);

/* ---- codec_codes.c ---- */

/* Reads a rectangle of codes, one a byte: out[i * row_step + j * column_step] has element [row + i, column + j]. */
int codec_read_codes(const struct codec_codes *codes, const struct codec_rect *rect, int64_t row_step,
                     int64_t column_step, uint8_t *out);

/* ---- codec_read.c ---- */

/* Describes a rectangle's encoding. */
void codec_describe(const struct codec_linear *linear, const struct codec_rect *rect, struct encoded_part *part);
/* Reads a rectangle as it was described. STATUS_INVALID, STATUS_IO, STATUS_MEMORY. */
int codec_read(const struct codec_linear *linear, const struct codec_rect *rect, const struct encoded_rows *to);
/* Reads a rectangle's values as DTYPE_F32, DTYPE_BF16 or DTYPE_F16, dense. The same errors. */
int codec_read_values(const struct codec_linear *linear, const struct codec_rect *rect, enum dtype dtype, void *out);

/* ---- what is attached to tensors: codec.c ---- */

/* The linears of one model. */
struct codec_set {
    struct ckpt_quantization quantization;
    struct codec_linear *linears; /* sorted by name */
    size_t count;
    struct tensor_entry *parts; /* their tensors, and those that are skipped */
    size_t part_count;
    struct safetensors *file; /* the weights */
    enum dtype dtype;         /* theirs */
};

/* Returns the linear that an entry of these tensors stands for; NULL: it is a plain tensor. */
static inline const struct codec_linear *codec_of(const struct ckpt_tensors *tensors,
                                                  const struct tensor_entry *entry) {
    const struct codec_set *set = tensors->codecs;
    return set && entry->file == set->file ? &set->linears[entry->tensor->start] : NULL;
}
