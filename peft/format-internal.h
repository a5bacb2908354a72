/* A method's configuration: its keys in the section `peft` of a run and in an adapter_config.json, and the lines of
 * `adapter show`. */
#pragma once

#include "base/json_keys.h"
#include "method-internal.h"

/* A key that several methods have: its path, and the path only for this method when several train together. `alone` is
 * NULL when this method's files cannot hold the key, or when the key belongs to this method only. */
struct peft_shared_key {
    const char *path, *alone;
};

struct peft_reader;

/* A tensor of an adapter's files, when the base is not known. */
struct peft_shape {
    const struct peft_config *config;
    const struct ckpt_tensors *tensors;
    const char *directory;
    const struct safetensor *tensor;
    int free_axis; /* the axis whose size may differ between layers; -1: none */
};

/* Members that a method does not need are NULL. */
struct peft_format {
    /* Keys of the section `peft`: those that the method declares, and those of others that it has. Each key is declared
     * once, by the first method that has it or by rows.c. */
    const struct config_row *keys;
    size_t key_count;
    const struct peft_shared_key *shared; /* ends with {0}; includes those that it declares for others */
    const char *const
        *run_keys; /* paths of keys that belong to a run, not to the adapter: its files do not hold them */
    /* Refuses a key of a run that would have no effect together with the other keys. STATUS_USAGE. */
    int (*check_run)(const struct peft_config *config);

    /* ---- adapter_config.json ---- */
    const char *type;                       /* PEFT's peft_type; NULL: the file comes from another library, */
    bool (*recognises)(const json_t *root); /* and this function recognises such a file */
    const char *const *known;   /* keys that are read, or that do not affect the computation; ends with NULL */
    const char *const *refused; /* keys that would compute something else when set */
    void (*read)(struct peft_reader *r);
    /* Writes the method's keys. peft_type and the keys common to all of PEFT's files are written already. */
    int (*write)(const struct peft_config *config, const struct model_config *base, const char *base_directory,
                 json_t *object);

    /* Checks the shape of a tensor as far as the configuration fixes it; sets free_axis. */
    int (*check_shape)(struct peft_shape *shape);

    /* ---- adapter show ---- */
    /* Called after "method: TITLE" was added: adds details of the method, the end of the line, and a line for each key.
     */
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
/* A key that other methods also have: "peft.METHOD.NAME" is only for this one. */
#define PEFT_SHARED(method, name)                                                                                      \
    { "peft." #name, "peft." method "." #name }

/* NULL-terminated; used by p-tuning's keys and by reader_tokens. */
extern const char *const peft_encoder_names[];

/* ---- reading: reader.c, over base/json_keys.h ---- */

struct peft_reader {
    struct json_keys keys;
    struct peft_config *config;
};

enum { SHOWN_BYTES = 64 }; /* of a text from the file that a message shows */
/* True when the value is neutral: null, false, empty, "none". */
bool reader_is_neutral(const json_t *value);
/* Fails when the key has a value that is not neutral. */
void reader_refuse_set(struct peft_reader *r, const char *key);
/* Copy texts that live as long as the configuration. */
const char *reader_keep(struct peft_reader *r, const char *text);
const char *reader_text(struct peft_reader *r, const char *key);
/* Returns the index of the key's text in `names` [count]; a NULL entry is no name. */
int reader_choice(struct peft_reader *r, const char *key, const char *const *names, int count, int fallback);
/* Reads names, or one text: a regular expression, or "all-linear". */
void reader_names(struct peft_reader *r, const char *key, struct config_list *list);
/* The same for target_modules, in which an empty list means no module at all, not the method's default. */
void reader_targets(struct peft_reader *r);
/* Reads one layer or several. */
void reader_layers(struct peft_reader *r, const char *key, struct config_list *list);
/* reader_patterns reads {"KEY": number} in the file's order, which PEFT follows. reader_add_item adds a copy of a
 * text. */
void reader_patterns(struct peft_reader *r, const char *key, bool is_rank, struct config_list *list);
void reader_add_item(struct peft_reader *r, struct config_list *list, const char *text);
/* Reads the keys of methods with virtual tokens. PEFT's files of one such method may have the keys of another. */
void reader_tokens(struct peft_reader *r);

/* ---- writing: write_config.c ---- */

void writer_set(json_t *object, const char *key, json_t *value);
/* Returns a list of suffixes, or a single text when PEFT would read a list in another way than we do. */
json_t *writer_names(const struct config_list *list, const char *const *defaults);
/* Writes target_modules and exclude_modules. */
void writer_targets(json_t *object, const struct peft_config *config, const struct model_family *base);
/* writer_patterns converts "KEY=number" to {"KEY": number}. The others convert layers and numbers. */
json_t *writer_patterns(const struct config_list *list, bool is_integer);
json_t *writer_layers(const struct config_list *list);
json_t *writer_number(double value);
/* Writes num_virtual_tokens, and encoder_hidden_size when the method has an encoder. */
void writer_tokens(json_t *object, const struct peft_config *config);

/* ---- shapes: shapes.c ---- */

/* Fails with STATUS_INVALID; the text names the adapter, the tensor, its shape and the reason. */
int shape_fail(const struct peft_shape *shape, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Fails unless the tensor has `dims` dimensions. */
int shape_check_dims(const struct peft_shape *shape, int dims);
/* Fails when `is_size` rejects a matrix's size along the axis; the text says "transposed" when it accepts the other
 * axis. `key` names the key that gives the size. */
int shape_check_axis(const struct peft_shape *shape, int axis,
                     bool (*is_size)(const struct peft_config *config, int64_t size), const char *key);
/* Checks the shape of a table of virtual tokens. */
int shape_check_tokens(struct peft_shape *shape);

/* ---- showing: show.c ---- */

/* Adds "WHAT: a, b". An empty list shows `otherwise`, or no line when that is NULL. */
void show_list(struct strbuf *text, const char *what, const struct config_list *list, const char *otherwise);
extern const char show_default[]; /* shown for the default of the base's family, which the files do not name */
void show_tokens(const struct peft_config *config, struct strbuf *text);
