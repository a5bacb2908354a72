/* Options: one table of rows provides the parser of flags and YAML, --help, validation, and the dump of the resolved
 * run.
 *
 * A row names a field of a struct by its offset. A command passes its tables, a zeroed struct and its arguments. Its
 * tables are its own rows and, when it takes a run's configuration, the sections of run.h. After the parse every field
 * holds the given value or its default. The `struct config` of the parse owns the strings in the struct.
 *
 * YAML is read as plain data: sections of keys with scalars or lists of scalars. Anchors, aliases, tags, merge keys,
 * null, duplicate keys and several documents are refused with file, line and column. */
#pragma once

#include "kernels/device.h"

enum config_type {
    CONFIG_INT,      /* int64_t; YAML integer; plain digits without a unit */
    CONFIG_FLOAT,    /* double */
    CONFIG_SIZE,     /* int64_t, bytes: plain digits, or with a unit after them: K or KiB, M or MiB, G or GiB, T or TiB
                        for powers of 1,024; KB, MB, GB, TB for powers of 1,000; in either case */
    CONFIG_QUANTITY, /* struct config_quantity: a number with the row's unit, "80 GB"; bounds may follow: "8 us (1 us to
                        20 us)" */
    CONFIG_BOOL,     /* bool; true|false; a bare --flag means true */
    CONFIG_STRING,   /* const char *; NULL when not given and without a default */
    CONFIG_CHOICE,   /* int: the index in `choices` */
    CONFIG_LIST,     /* struct config_list: a YAML sequence, "--key w1 w2" or "--key=[w1, w2]"; one unquoted text of a
                        section's key is split at white space and commas, a command's own --key never is */
};

struct config_list {
    const char **items;
    size_t count;
};

/* A number in its base unit (B, B/s, FLOP/s, s, or none), and the bounds that were written after it; 0: none were. */
struct config_quantity {
    double value, low, high;
};

enum { CONFIG_ITEM_BYTES = 24 };

struct config_row {
    const char *path; /* "section.key" in YAML and --section.key=V; without a dot: a command's own --key, or
                         a top-level YAML key where the row stands in section_rows */
    enum config_type type;
    size_t offset;              /* of the field in the command's struct */
    const char *default_text;   /* as a user would type it; NULL: unset (0, false, NULL, empty). It may lie outside the
                                   range: such a value means "not given", and the dump omits it */
    double minimum, maximum;    /* of numbers, both inclusive; both 0: no bounds */
    const char *const *choices; /* NULL-terminated */
    const char *bare_text;      /* of a CHOICE: the value of a bare --key; NULL: it needs a value */
    const char *unit;           /* of a QUANTITY: "B", "B/s", "FLOP/s", "s", or "" for a plain number */
    const char *help;           /* a sentence fragment in lower case, with the unit */
    const char *metavar;        /* the name of the value in --help; NULL: derived from the type */
    bool is_path; /* a STRING or LIST of files: an empty text means "not given", an empty item is refused */
    bool is_required;
    /* For a list that is empty once the run is resolved: writes item `index` of what it was resolved to, from its
     * field. Returns false past the last item. */
    bool (*item)(const void *field, size_t index, char text[CONFIG_ITEM_BYTES]);
    bool may_differ; /* between the ranks of a run, because it is a property of a host or a rank */
    /* For a STRING: refuses a text with STATUS_USAGE and the reason; NULL: every text is allowed. */
    int (*check)(const char *text);
};

/* Rows by type, where `at` is the field's offset. The arguments after `fallback`, the default as a user would type it
 * or NULL, are the type's own. The last argument is the help; further members may follow it. */
#define ROW_NUMBER(type_, path_, at, fallback, low, high, ...)                                                         \
    {                                                                                                                  \
        .path = path_, .type = type_, .offset = at, .default_text = fallback, .minimum = low, .maximum = high,         \
        .help = __VA_ARGS__                                                                                            \
    }
#define ROW_INT(...)   ROW_NUMBER(CONFIG_INT, __VA_ARGS__)
#define ROW_FLOAT(...) ROW_NUMBER(CONFIG_FLOAT, __VA_ARGS__)
#define ROW_SIZE(...)  ROW_NUMBER(CONFIG_SIZE, __VA_ARGS__)
#define ROW_BOOL(path_, at, fallback, ...)                                                                             \
    { .path = path_, .type = CONFIG_BOOL, .offset = at, .default_text = fallback, .help = __VA_ARGS__ }
#define ROW_CHOICE(path_, at, fallback, words, ...)                                                                    \
    {                                                                                                                  \
        .path = path_, .type = CONFIG_CHOICE, .offset = at, .default_text = fallback, .choices = words,                \
        .help = __VA_ARGS__                                                                                            \
    }
#define ROW_WORDS(type_, path_, at, metavar_, ...)                                                                     \
    { .path = path_, .type = type_, .offset = at, .metavar = metavar_, .help = __VA_ARGS__ }
#define ROW_TEXT(...) ROW_WORDS(CONFIG_STRING, __VA_ARGS__)
#define ROW_LIST(...) ROW_WORDS(CONFIG_LIST, __VA_ARGS__)
/* A file or directory, and a list of them. */
#define ROW_PATH(...)  ROW_WORDS(CONFIG_STRING, __VA_ARGS__, .is_path = true)
#define ROW_PATHS(...) ROW_WORDS(CONFIG_LIST, __VA_ARGS__, .is_path = true)

/* The row of --device: a string field, NULL when not given. */
#define CONFIG_DEVICE_ROW(at)                                                                                          \
    ROW_TEXT("device", (at), "NAME",                                                                                   \
             "where to compute: cpu, or cuda (an NVIDIA GPU; cuda:1 is the second); when not given, cpu",              \
             .check = device_check_name)

static const char *const config_collectives[] = {"auto", "nccl", "host", NULL};

/* The row of --collectives: an int field, in the order of enum collectives (parallel/connect.h). */
#define CONFIG_COLLECTIVES_ROW(at)                                                                                     \
    ROW_CHOICE("collectives", (at), "auto", config_collectives,                                                        \
               "how ranks on GPUs sum: nccl, from GPU to GPU; or host, through memory of the host; auto: nccl, "       \
               "unless the ranks are threads that share a GPU")

/* The row of --gemm-algorithms: a string field. */
#define CONFIG_ALGORITHMS_ROW(at)                                                                                      \
    ROW_PATH("gemm-algorithms", (at), "FILE",                                                                          \
             "--device cuda: how the library computes products, as 'cambium bench gemm --tune FILE' measured it; the " \
             "first rank reads it for all")

static const char *const config_off_on[] = {"off", "on", NULL};

/* The row of --batch-invariant: an int field, 1 for on. */
#define CONFIG_INVARIANT_ROW(at)                                                                                       \
    ROW_CHOICE("batch-invariant", (at), "off", config_off_on,                                                          \
               "--device cuda: on: log-probabilities and completions have the same bits in training and serving, "     \
               "whatever runs beside them, and steps take longer; the CPU always does this")

/* A key of run_rows, or a whole section of it, that a command does not have. The error for such a key says why. */
struct config_absent {
    const char *path;   /* "data.split", or "model" for its keys */
    const char *reason; /* completes "data.split does nothing here: " */
};

/* Returns the reason for a key or a section in the list, or NULL when neither it nor its section is there. */
const char *config_absence(const struct config_absent *absent, size_t count, const char *path);

/* A command's usage: its rows, and the texts of --help before and after them. */
struct config_command {
    const char *name;        /* "pretrain" */
    const char *synopsis;    /* "cambium pretrain --config FILE.yaml [--section.key=value ...]" */
    const char *description; /* a paragraph */
    const char *examples;    /* lines that work as shown */
    const struct config_row *rows;
    size_t row_count;
    const struct config_row *section_rows; /* run_rows, or NULL: rows that may also occur in the YAML file */
    size_t section_row_count;
    size_t section_offset;              /* of the struct run_config within the command's struct */
    const struct config_absent *absent; /* [absent_count] */
    size_t absent_count;
    const char *config_flag; /* name of the row whose value is a YAML file to read first ("config"), or NULL */
    bool takes_words;        /* words that are not options; otherwise such words are refused */
    size_t words_offset;     /* of a struct config_list for them */
};

struct facts;
struct config; /* The parsed strings, and which rows were given. */

/* Parses `argv` (without the command's name) into `values`. It reads the YAML file first, then the flags in order,
 * which override it. Flags are "--key=value" or "--key value"; a LIST flag takes the words up to the next flag, or up
 * to a word that begins with a dash and a letter. For --help (-h, --help=SECTION) and --version (-V) it prints the
 * answer to standard output and sets *is_answered.
 *
 * Returns STATUS_OK, STATUS_USAGE (with file and line for YAML, and the nearest name for an unknown one), STATUS_IO or
 * STATUS_MEMORY. config_free ends *config; NULL is allowed. */
int config_parse(const struct config_command *command, int argc, char **argv, void *values, struct config **config,
                 bool *is_answered);
/* Reads a YAML text of the command's section rows over their defaults, without a command line. Errors name it `name`.
 * STATUS_USAGE with the line, STATUS_MEMORY. config_free ends *config. */
int config_parse_text(const struct config_command *command, const char *name, const char *text, size_t length,
                      void *values, struct config **config);
void config_free(struct config *config);
/* True when a flag or the file gave the row `path`. */
bool config_is_given(const struct config *config, const char *path);
/* Returns the line of the row `path` in the YAML file, counted from 1; 0: it is not there. */
size_t config_line(const struct config *config, const char *path);
/* Prints the resolved values of the section rows as YAML that config_parse can read. */
void config_dump(const struct config_command *command, const void *values, FILE *out);
/* Adds the same to a text. STATUS_MEMORY. */
int config_dump_text(const struct config_command *command, const void *values, struct strbuf *out);
/* Writes a value as a user would type it, a list with spaces between its items. Cuts it to fit. */
void config_value_text(const struct config_row *row, const void *field, char *out, size_t bytes);
/* Adds the facts that all ranks of a command must share: the values of all rows, in order, except those that may
 * differ. A path counts only as given or not, and a list of paths by its length, because hosts may keep the same files
 * in other places. STATUS_MEMORY. */
int config_facts(const struct config_command *command, const void *values, struct facts *facts);
/* Prints the help text of the command, or only the rows of one section. STATUS_USAGE for a section that the command
 * lacks; STATUS_MEMORY, when part of the text may be missing. */
int config_help(const struct config_command *command, const char *section, FILE *out);
/* Prints the program's name and version as one line. */
void config_print_version(FILE *out);
/* Reads a number with the row's unit, and its bounds. STATUS_USAGE with the reason. */
int config_read_quantity(const struct config_row *row, const char *text, struct config_quantity *out);
/* Returns the number of insertions, deletions, replacements and swaps of neighbours that turn one word into the other,
 * without regard to case, and with '_' equal to '-'. Both words have at most CONFIG_MAX_WORD bytes. */
enum { CONFIG_MAX_WORD = 64 };
size_t config_distance(const char *a, const char *b);
/* Returns the distance at which one of two words may still be meant by the other. */
size_t config_mistakes(const char *a, const char *b);
/* Returns the first candidate that begins with `word`, else the nearest by edit distance, or NULL when none is near. */
const char *config_nearest(const char *word, const char *const *candidates, size_t count);
