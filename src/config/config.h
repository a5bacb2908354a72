/* Options: one row table makes the parser of flags and YAML, --help, validation and the dump of the resolved run.
 *
 * A row names a field of a struct by its offset. A command hands in its tables (its own rows, and the sections of
 * run.h where it takes a run's configuration), the struct with nothing set, and its arguments. After the parse every
 * field holds what was given, or its default. Strings in the struct are owned by the `struct config` that parsed them.
 *
 * YAML is taken as plain data: sections of keys with scalars or lists of scalars. Anchors, aliases, tags, merge keys,
 * null, duplicate keys and several documents are refused with file, line and column. */
#ifndef CAMBIUM_CONFIG_CONFIG_H
#define CAMBIUM_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum config_type {
    CONFIG_INT,    /* int64_t; YAML integer; "k"-free plain digits */
    CONFIG_FLOAT,  /* double */
    CONFIG_SIZE,   /* int64_t, bytes: plain digits, or with a unit after them: K or KiB, M or MiB, G or GiB, T or TiB
                      for powers of 1,024; KB, MB, GB, TB for powers of 1,000; in either case */
    CONFIG_BOOL,   /* bool; true|false; a bare --flag means true */
    CONFIG_STRING, /* const char *; NULL when not given and without default */
    CONFIG_CHOICE, /* int: the index in `choices` */
    CONFIG_LIST,   /* struct config_list: a YAML sequence, "--key w1 w2" or "--key=[w1, w2]"; one unquoted text of a
                      section's key is split at white space and commas, a command's own --key never is */
};

struct config_list {
    const char **items;
    size_t count;
};

enum { CONFIG_ITEM_BYTES = 24 };

struct config_row {
    const char *path; /* "section.key" in YAML and --section.key=V; without a dot: a command's own --key, or
                         a top-level YAML key where the row stands in section_rows */
    enum config_type type;
    size_t offset;              /* of the field in the command's struct */
    const char *default_text;   /* as one would type it; NULL: unset (0, false, NULL, empty). It may lie outside the
                                   range: such a value means "not given", and the dump leaves it out */
    double minimum, maximum;    /* of numbers, both included; both 0: no bounds */
    const char *const *choices; /* NULL-terminated */
    const char *bare_text;      /* of a CHOICE: what --key without a value means; NULL: it needs one */
    const char *help;           /* one sentence fragment, lower case, with the unit */
    const char *metavar;        /* what stands for the value in --help; NULL: from the type */
    bool is_path; /* a STRING or LIST of files: an empty text means "not given", an empty item is refused */
    bool is_required;
    /* Of a list that is empty once the run is resolved, where its field lies: item `index` of what it came to, or false
     * behind the last. */
    bool (*item)(const void *field, size_t index, char text[CONFIG_ITEM_BYTES]);
    bool may_differ; /* between the ranks of a run: what a host or a rank has for itself */
};

/* The row of --device: a text of the values' struct, NULL when not given. */
#define CONFIG_DEVICE_ROW(at)                                                                                          \
    {                                                                                                                  \
        .path = "device", .type = CONFIG_STRING, .offset = (at), .metavar = "NAME",                                    \
        .help = "backend to compute on: cpu, or for tests late; when not given, the first that this machine has"       \
    }

/* The usage of a command: the texts of --help before and after the rows. */
struct config_command {
    const char *name;        /* "pretrain" */
    const char *synopsis;    /* "cambium pretrain --config FILE.yaml [--section.key=value ...]" */
    const char *description; /* a paragraph */
    const char *examples;    /* lines that work as they stand */
    const struct config_row *rows;
    size_t row_count;
    const struct config_row *section_rows; /* run_rows, or NULL: what may also stand in the YAML file */
    size_t section_row_count;
    size_t section_offset;    /* of the struct run_config within the command's struct */
    const char *config_flag;  /* name of the row whose value is a YAML file to read first ("config"), or NULL */
    size_t positional_offset; /* a struct config_list for words that are no options; SIZE_MAX: such words are refused */
};

struct facts;
struct config; /* the parsed strings and which rows were given */

/* Parses `argv` (without the command's name) into `values`. YAML first, then flags over it, in order; "--key=value" and
 * "--key value"; a LIST flag takes the words up to the next flag. Unknown names are refused with the nearest one.
 * Returns STATUS_OK; STATUS_USAGE with the text set (file and line for YAML); on --help prints it to standard output
 * and sets *is_help. */
int config_parse(const struct config_command *command, int argc, char **argv, void *values, struct config **config,
                 bool *is_help);
void config_free(struct config *config);
/* Whether the row `path` was given by flag or file. */
bool config_is_given(const struct config *config, const char *path);
/* Prints the resolved values of the section rows as YAML that config_parse reads back. */
void config_dump(const struct config_command *command, const void *values, FILE *out);
/* A value as one would type it, a list with spaces between its items; cut where it is longer than the room. */
void config_value_text(const struct config_row *row, const void *field, char *out, size_t bytes);
/* Adds what all ranks of a command have in common, in the order of the rows: the values of all rows but those that may
 * differ. Paths count by their number, or as not given: hosts may have the same files in other places. */
int config_facts(const struct config_command *command, const void *values, struct facts *facts);
/* Prints the help text of the command; not all of it where memory lacks. */
int config_help(const struct config_command *command, FILE *out);
/* Insertions, deletions, replacements and swaps of neighbours that turn one word into the other; both have at most
 * CONFIG_MAX_WORD bytes. */
enum { CONFIG_MAX_WORD = 64 };
size_t config_distance(const char *a, const char *b);
/* The candidate nearest to `word` by edit distance (NULL when none is near). */
const char *config_nearest(const char *word, const char *const *candidates, size_t count);

#endif
