/* A method's configuration: its keys in the section `peft` of a run and in an adapter_config.json, and the lines of
 * `adapter show`. */
#ifndef CAMBIUM_PEFT_FORMAT_INTERNAL_H
#define CAMBIUM_PEFT_FORMAT_INTERNAL_H

#include "base/json_keys.h"
#include "method-internal.h"

#include <stddef.h>

/* A key that other methods have, too: its path, and the one for this method alone, where several train together; NULL:
 * there is none, as the method's files cannot say it, or as no other method has it in the end. */
struct peft_shared_key {
    const char *path, *alone;
};

struct peft_reader;

/* A tensor of an adapter's files, where the base is not known. */
struct peft_shape {
    const struct peft_config *config;
    const struct ckpt_tensors *tensors;
    const char *directory;
    const struct safetensor *tensor;
    int free_axis; /* whose size may differ between layers; -1: none */
};

/* Members that a method does not need are NULL. */
struct peft_format {
    /* Keys of the section `peft` that the method declares, and those of others that it has; each key is declared once:
     * by the first method that has it, or by rows.c. */
    const struct config_row *keys;
    size_t key_count;
    const struct peft_shared_key *shared; /* {0} behind the last; with those that it declares for others */
    const char *const *run_keys; /* paths of those that are a run's, not the adapter's: its files do not say them */
    /* Fails on a key of a run that would do nothing beside the others. */
    int (*check_run)(const struct peft_config *config);

    /* ---- adapter_config.json ---- */
    const char *type;                   /* PEFT's peft_type; NULL: the file is another library's, */
    bool (*is_own)(const json_t *root); /* and this one says whether it is such a file */
    const char *const *known;   /* keys that are read, or say nothing of what is computed; NULL behind the last */
    const char *const *refused; /* keys that compute something else where they are set */
    void (*read)(struct peft_reader *r);
    /* Beside peft_type, and what all files of PEFT's have. */
    int (*write)(const struct peft_config *config, const struct model_config *base, const char *base_directory,
                 json_t *object);

    /* Checks the shape of a tensor of its files as far as the configuration fixes it; sets free_axis. */
    int (*check_shape)(struct peft_shape *shape);

    /* ---- adapter show ---- */
    /* Adds to "method: TITLE" what varies of it, the end of the line, and a line for each key. */
    void (*show)(const struct peft_config *config, struct strbuf *text);
};

/* ---- rows of keys ---- */

#define PEFT_KEY(name, kind, ...)                                                                                      \
    { .path = "peft." #name, .type = kind, .offset = offsetof(struct peft_config, name), __VA_ARGS__ }
#define PEFT_INT(name, fallback, low, high, text)                                                                      \
    PEFT_KEY(name, CONFIG_INT, .default_text = fallback, .minimum = low, .maximum = high, .help = text)
#define PEFT_FLOAT(name, fallback, low, high, text)                                                                    \
    PEFT_KEY(name, CONFIG_FLOAT, .default_text = fallback, .minimum = low, .maximum = high, .help = text)
#define PEFT_BOOL(name, fallback, text) PEFT_KEY(name, CONFIG_BOOL, .default_text = fallback, .help = text)
#define PEFT_LIST(name, what, text)     PEFT_KEY(name, CONFIG_LIST, .metavar = what, .help = text)
#define PEFT_CHOICE(name, fallback, names, text)                                                                       \
    PEFT_KEY(name, CONFIG_CHOICE, .default_text = fallback, .choices = names, .help = text)
/* A key that others have, too: "peft.METHOD.NAME" is of this one alone. */
#define PEFT_SHARED(method, name)                                                                                      \
    { "peft." #name, "peft." method "." #name }

/* NULL behind the last; read by p-tuning's keys and by reader_tokens. */
extern const char *const peft_encoder_names[];

/* ---- reading: reader.c, beside base/json_keys.h ---- */

struct peft_reader {
    struct json_keys keys;
    struct peft_config *config;
};

enum { SHOWN_BYTES = 64 }; /* of a text of the file in a message */
/* Whether the value says nothing: null, false, empty, "none". */
bool reader_is_neutral(const json_t *value);
/* Fails where the key says something. */
void reader_refuse_set(struct peft_reader *r, const char *key);
/* Texts and lists live as long as the configuration. */
const char *reader_keep(struct peft_reader *r, const char *text);
const char *reader_text(struct peft_reader *r, const char *key);
/* The index of the key's text in `names` [count]; a NULL there is no name. */
int reader_choice(struct peft_reader *r, const char *key, const char *const *names, int count, int fallback);
/* Names, or one text: a regular expression, "all-linear". */
void reader_names(struct peft_reader *r, const char *key, struct config_list *list);
/* The same of target_modules, where an empty list is no module at all, and not the method's own. */
void reader_targets(struct peft_reader *r);
/* A layer, or several. */
void reader_layers(struct peft_reader *r, const char *key, struct config_list *list);
/* {"KEY": number}, in the file's order, which PEFT goes by. */
void reader_patterns(struct peft_reader *r, const char *key, bool is_rank, struct config_list *list);
void reader_add_item(struct peft_reader *r, struct config_list *list, const char *text);
/* The keys of methods with virtual tokens: PEFT's files of one may have those of another. */
void reader_tokens(struct peft_reader *r);

/* ---- writing: write_config.c ---- */

void writer_set(json_t *object, const char *key, json_t *value);
/* A list of suffixes; a single text where PEFT would read a list otherwise than we did. */
json_t *writer_names(const struct config_list *list, const char *const *defaults);
/* target_modules and exclude_modules. */
void writer_targets(json_t *object, const struct peft_config *config, const struct model_family *base);
/* {"KEY": number} of "KEY=number". */
json_t *writer_patterns(const struct config_list *list, bool is_integer);
json_t *writer_layers(const struct config_list *list);
json_t *writer_number(double value);
/* num_virtual_tokens, and encoder_hidden_size where the method has an encoder. */
void writer_tokens(json_t *object, const struct peft_config *config);

/* ---- shapes: shapes.c ---- */

/* STATUS_INVALID with the adapter, the tensor, its shape and the reason. */
int shape_fail(const struct peft_shape *shape, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Fails where the tensor has not `dims` dimensions. */
int shape_check_dims(const struct peft_shape *shape, int dims);
/* Fails where a matrix has along the axis none of the sizes that `is_size` knows; where the other axis has, it is
 * transposed. `key` says what the size is. */
int shape_check_axis(const struct peft_shape *shape, int axis,
                     bool (*is_size)(const struct peft_config *config, int64_t size), const char *key);
/* Checks the shape of a table of virtual tokens. */
int shape_check_tokens(struct peft_shape *shape);

/* ---- showing: show.c ---- */

/* "WHAT: a, b"; without items `otherwise`; NULL: no line. */
void show_list(struct strbuf *text, const char *what, const struct config_list *list, const char *otherwise);
extern const char show_default[]; /* what the base's family says, of which the files do not tell */
void show_tokens(const struct peft_config *config, struct strbuf *text);

#endif
