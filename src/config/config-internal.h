/* Shared by the files of this room: the rows of a command as one list, and the typed assignment of one value. */
#ifndef CAMBIUM_CONFIG_INTERNAL_H
#define CAMBIUM_CONFIG_INTERNAL_H

#include "config.h"

#include "base/base.h"

/* Where a value came from; later sources go over earlier ones. */
enum config_source { CONFIG_SOURCE_DEFAULT, CONFIG_SOURCE_FILE, CONFIG_SOURCE_FLAG };

struct config_block;

struct config {
    struct config_command command;
    unsigned char *sources;      /* enum config_source of each row */
    size_t *lines;               /* the line of each row in the YAML file, counted from 1; 0: not there */
    void *values;                /* the command's struct, while parsing */
    struct config_block *blocks; /* what the strings and lists of the struct live in */
};

static inline size_t config_row_total(const struct config_command *command) {
    return command->row_count + command->section_row_count;
}

/* Row `index` of a command: its own rows first, then those of the sections. */
static inline const struct config_row *config_row_at(const struct config_command *command, size_t index) {
    return index < command->row_count ? &command->rows[index] : &command->section_rows[index - command->row_count];
}

/* Where the field of row `index` lies in the command's struct. */
static inline size_t config_field_offset(const struct config_command *command, size_t index) {
    return config_row_at(command, index)->offset + (index < command->row_count ? 0 : command->section_offset);
}

/* Whether the row may stand in a YAML file. */
bool config_row_is_section(const struct config_command *command, size_t index);

/* `bytes` that live as long as `config`, or NULL with the error text set. */
void *config_allocate(struct config *config, size_t bytes);
const char *config_copy_text(struct config *config, const char *text);

/* Sets the field of row `index` from the text as typed; the error text says what is wrong with the value, not where. */
int config_set_text(struct config *config, size_t index, const char *text);
/* The list of row `index`: empties it, adds a copy of `text`, or fills it from one text split at white space and
 * commas. */
void config_clear_list(struct config *config, size_t index);
int config_add_item(struct config *config, size_t index, const char *text);
int config_split_list(struct config *config, size_t index, const char *text);
/* Adds a copy of `text` to a list that only this function has filled. */
int config_push(struct config *config, struct config_list *list, const char *text);
/* Sets the field of row `index` to its default. */
int config_set_default(struct config *config, size_t index);
/* Whether a number lies in the range of its row. */
bool config_is_in_range(const struct config_row *row, double value);
/* "from 1 to 8", "at least 1" or "" into `out`. */
void config_range_text(const struct config_row *row, char *out, size_t bytes);

/* Whether a field holds something else than what means "not given"; its value as YAML. */
bool config_has_value(const struct config_row *row, const void *field);
void config_write_value(FILE *out, const struct config_row *row, const void *field);

/* Reads the YAML file over the defaults. */
int config_read_yaml(struct config *config, const char *path);
/* The same from memory; `name` stands for the file in errors. */
int config_read_yaml_text(struct config *config, const char *name, const char *text, size_t length);
/* The items of a YAML flow sequence "[a, b]" as the list of row `index`. */
int config_read_flow_list(struct config *config, size_t index, const char *text);

/* The path of the row that somebody who wrote `word` may have meant: the same key in any section, or the nearest name;
 * NULL when none is near. `only_sections` leaves a command's own rows out. */
const char *config_suggest(const struct config_command *command, const char *word, bool only_sections);

#endif
