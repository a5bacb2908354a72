/* Shared by the files of this room: the rows of a command as one list, and the assignment of typed values. */
#pragma once

#include "config.h"

#include "base/base.h"

/* The text that the command line asks for in place of a run. */
enum config_question { CONFIG_ASKS_NOTHING, CONFIG_ASKS_HELP, CONFIG_ASKS_VERSION };

/* The source of a value; a later source overrides an earlier one. */
enum config_source { CONFIG_SOURCE_DEFAULT, CONFIG_SOURCE_FILE, CONFIG_SOURCE_FLAG };

struct config_block;

struct config {
    struct config_command command;
    unsigned char *sources;      /* enum config_source of each row */
    size_t *lines;               /* the line of each row in the YAML file, counted from 1; 0: absent */
    void *values;                /* the command's struct during the parse */
    struct config_block *blocks; /* memory of the strings and lists in the struct */
    enum config_question question;
    const char *section; /* of --help=SECTION; NULL: all */
};

static inline size_t config_row_total(const struct config_command *command) {
    return command->row_count + command->section_row_count;
}

/* Returns row `index` of a command: first its own rows, then those of the sections. */
static inline const struct config_row *config_row_at(const struct config_command *command, size_t index) {
    return index < command->row_count ? &command->rows[index] : &command->section_rows[index - command->row_count];
}

/* Returns the offset of row `index`'s field in the command's struct. */
static inline size_t config_field_offset(const struct config_command *command, size_t index) {
    return config_row_at(command, index)->offset + (index < command->row_count ? 0 : command->section_offset);
}

/* True when the row may occur in a YAML file. */
static inline bool config_row_is_section(const struct config_command *command, size_t index) {
    return index >= command->row_count || strchr(command->rows[index].path, '.');
}

/* Returns the index of the row whose path is the first `length` characters of `name`, or the number of rows. */
static inline size_t config_find_row(const struct config_command *command, const char *name, size_t length) {
    size_t total = config_row_total(command), i = 0;
    while (i < total &&
           (strncmp(config_row_at(command, i)->path, name, length) || config_row_at(command, i)->path[length]))
        i++;
    return i;
}

/* Sets the field of row `index` from a value as typed. STATUS_USAGE, with a text that says what is wrong but not where;
 * STATUS_MEMORY. */
int config_set_text(struct config *config, size_t index, const char *text);
/* quantity.c: writes a quantity in its base unit, without bounds. */
void config_quantity_text(const struct config_row *row, const struct config_quantity *quantity, char *out,
                          size_t bytes);
/* Change the list of row `index`: empty it, add a copy of `text`, or fill it from a text split at white space and
 * commas. STATUS_USAGE, STATUS_MEMORY. */
void config_clear_list(struct config *config, size_t index);
int config_add_item(struct config *config, size_t index, const char *text);
int config_split_list(struct config *config, size_t index, const char *text);
/* Adds a copy of `text` to a list that only this function has filled. STATUS_MEMORY. */
int config_push(struct config *config, struct config_list *list, const char *text);
/* Sets the field of row `index` to its default. STATUS_MEMORY. */
int config_set_default(struct config *config, size_t index);
/* True when a number is in the range of its row. */
bool config_is_in_range(const struct config_row *row, double value);
/* Writes "from 1 to 8", "at least 1" or "" into `out`. */
void config_range_text(const struct config_row *row, char *out, size_t bytes);

/* config_has_value is false when the field holds the value that means "not given". config_write_value writes the field
 * as YAML. */
bool config_has_value(const struct config_row *row, const void *field);
void config_write_value(FILE *out, const struct config_row *row, const void *field);

/* Reads a YAML file over the defaults. STATUS_USAGE with file and line, STATUS_IO, STATUS_MEMORY. */
int config_read_yaml(struct config *config, const char *path);
/* The same from memory; errors name the file `name`. */
int config_read_yaml_text(struct config *config, const char *name, const char *text, size_t length);
/* Parses a YAML flow sequence "[a, b]" into the list of row `index`. STATUS_USAGE, STATUS_MEMORY. */
int config_read_flow_list(struct config *config, size_t index, const char *text);

/* True when the first `length` characters of `name` are the word, without regard to case and with '_' equal to '-'. */
bool config_is_name(const char *name, size_t length, const char *word);
/* Returns the path of the row that `word` may have been meant for, or NULL when none is near. The same key in any
 * section comes first, then the first row that begins with the word, then the nearest key. `only_sections` excludes a
 * command's own rows, --help and --version. */
const char *config_suggest(const struct config_command *command, const char *word, bool only_sections);
/* Returns the advice for a name that another program has for an option, or NULL. Advice that begins with "--" names an
 * option of the command; other advice is a phrase. `word` may have a section, or still one dash. */
const char *config_other_name(const struct config_command *command, const char *word);
/* Writes what is known about an unknown name into `out`: " (did you mean --optim.lr?)", ": a phrase", or "". In a file
 * keys have no dashes. */
void config_explain(const struct config_command *command, const char *word, bool is_file, char *out, size_t bytes);
