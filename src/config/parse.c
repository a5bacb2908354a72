/* The command line: a walk over the words that finds each option's row and value. It is walked twice: first for the
 * YAML file, --help and --version, then for all values, which override the file's. */
#include "config-internal.h"

#include <ctype.h>

/* One option with its value. */
struct option {
    size_t index;      /* of its row */
    const char *value; /* after "=" or the next word; NULL: a bare flag, or the words of a list */
    char **words;      /* of a list given as words */
    int word_count;
};

static int fail_unknown(const struct config_command *command, const char *name, size_t length) {
    char word[128], explained[256];
    snprintf(word, sizeof word, "%.*s", length < 100 ? (int)length : 100, name);
    const char *absence = config_absence(command->absent, command->absent_count, word);
    if (absence)
        return status_fail(STATUS_USAGE, "--%s does nothing here: %s", word, absence);
    if (!strcmp(word, "version"))
        return status_fail(STATUS_USAGE, "option --version takes no value");
    config_explain(command, word, false, explained, sizeof explained);
    return status_fail(STATUS_USAGE, "unknown option --%s%s; 'cambium %s --help' lists them", word, explained,
                       command->name);
}

/* True when the word is a value of a row that also allows a bare flag. */
static bool is_own_value(const struct config_row *row, const char *word) {
    if (row->type == CONFIG_BOOL)
        return !strcmp(word, "true") || !strcmp(word, "false");
    for (size_t i = 0; row->choices[i]; i++)
        if (!strcmp(word, row->choices[i]))
            return true;
    return false;
}

static bool is_flag(const char *word) {
    return word[0] == '-' && word[1] == '-' && word[2];
}

/* Reads the option at argv[*at] and moves *at past it. */
static int read_option(const struct config_command *command, int argc, char **argv, int *at, struct option *option) {
    const char *name = argv[*at] + 2;
    size_t length = strcspn(name, "="), total = config_row_total(command);
    *option = (struct option){.index = config_find_row(command, name, length)};
    if (option->index == total)
        return fail_unknown(command, name, length);
    const struct config_row *row = config_row_at(command, option->index);
    char *next = ++*at < argc ? argv[*at] : NULL;
    if (name[length] == '=') {
        option->value = name + length + 1;
    } else if (row->type == CONFIG_BOOL || row->bare_text) {
        if (next && is_own_value(row, next))
            option->value = argv[(*at)++];
    } else if (!next || is_flag(next) || (row->type == CONFIG_LIST && !strcmp(next, "--"))) {
        return status_fail(STATUS_USAGE, "option --%s needs a value%s%s%s", row->path,
                           next ? " (one that begins with -- is written --" : "", next ? row->path : "",
                           next ? "=VALUE)" : "");
    } else if (row->type == CONFIG_LIST) {
        option->words = &argv[*at];
        while (*at < argc && !is_flag(argv[*at]) && strcmp(argv[*at], "--")) {
            const char *word = argv[*at];
            if (option->word_count && word[0] == '-' && isalpha((unsigned char)word[1]))
                break; /* "--stop x -n 5": an option of another program, and not two more items */
            option->word_count++;
            ++*at;
        }
    } else {
        option->value = argv[(*at)++];
    }
    return STATUS_OK;
}

static int set_list_option(struct config *config, const struct option *option, bool is_repeated) {
    const char *value = option->value;
    size_t length = value ? strlen(value) : 0;
    if (length > 1 && value[0] == '[' && value[length - 1] == ']')
        return config_read_flow_list(config, option->index, value);
    if (value && config_row_is_section(&config->command, option->index))
        return config_split_list(config, option->index, value);
    if (!is_repeated) /* the present items are the default's or the file's */
        config_clear_list(config, option->index);
    if (value)
        return config_add_item(config, option->index, value);
    int status = STATUS_OK;
    for (int i = 0; i < option->word_count && !status; i++)
        status = config_add_item(config, option->index, option->words[i]);
    return status;
}

static int set_option(struct config *config, const struct option *option) {
    const struct config_row *row = config_row_at(&config->command, option->index);
    bool is_repeated = config->sources[option->index] == CONFIG_SOURCE_FLAG;
    const char *bare = row->bare_text ? row->bare_text : "true";
    config->sources[option->index] = CONFIG_SOURCE_FLAG;
    int status = row->type == CONFIG_LIST
                     ? set_list_option(config, option, is_repeated)
                     : config_set_text(config, option->index, option->value ? option->value : bare);
    return status == STATUS_USAGE ? status_wrap(status, "option --%s", row->path) : status;
}

/* Refuses a word that is not an option. "lr=1e-3" has no dashes. Any other word is taken for the value of the first
 * option that must still be given. */
static int fail_word(const struct config *config, const char *word) {
    const struct config_command *command = &config->command;
    char name[100], explained[256] = "";
    size_t length = strcspn(word, "="), next = 0;
    while (next < command->row_count && config->sources[next] != CONFIG_SOURCE_DEFAULT)
        next++;
    const struct config_row *row = next < command->row_count ? &command->rows[next] : NULL;
    snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : 0), word);
    if (word[length] && *name)
        config_explain(command, name, false, explained, sizeof explained);
    else if (row && (next == 0 || row->is_required || (row->metavar && !strcmp(row->metavar, "TEXT"))))
        snprintf(explained, sizeof explained, " (did you mean --%s %.150s?)", row->path, word);
    return status_fail(STATUS_USAGE, "unexpected word '%.200s'%s; 'cambium %s --help' shows the usage", word, explained,
                       command->name);
}

static struct config_list *words_of(const struct config *config) {
    return (struct config_list *)((char *)config->values + config->command.words_offset);
}

/* Notes a word that asks for a text. */
static bool take_question(struct config *config, const char *word) {
    static const char with_section[] = "--help=";
    size_t length = sizeof with_section - 1;
    if (!strncmp(word, with_section, length))
        config->section = word + length;
    if (config->section || !strcmp(word, "--help") || !strcmp(word, "-h"))
        config->question = CONFIG_ASKS_HELP;
    else if (!strcmp(word, "--version") || !strcmp(word, "-V"))
        config->question = CONFIG_ASKS_VERSION;
    return config->question != CONFIG_ASKS_NOTHING;
}

static int walk(struct config *config, int argc, char **argv, bool is_first, const char **file) {
    const struct config_command *command = &config->command;
    bool is_only_words = false;
    for (int i = 0; i < argc;) {
        const char *word = argv[i];
        int status = STATUS_OK;
        if (!is_only_words && take_question(config, word))
            return STATUS_OK;
        if (!is_only_words && !strcmp(word, "--")) {
            is_only_words = true;
            i++;
        } else if (!is_only_words && is_flag(word)) {
            struct option option;
            status = read_option(command, argc, argv, &i, &option);
            if (!status && is_first && command->config_flag &&
                !strcmp(config_row_at(command, option.index)->path, command->config_flag))
                *file = option.value && *option.value ? option.value : NULL;
            THEN_IF(status, !is_first, set_option(config, &option));
        } else if (!is_only_words && word[0] == '-' &&
                   (!command->takes_words ? word[1] : isalpha((unsigned char)word[1]))) {
            char explained[256];
            config_explain(command, word, false, explained, sizeof explained);
            status = status_fail(STATUS_USAGE, "unknown option %.200s%s; 'cambium %s --help' lists them", word,
                                 explained, command->name);
        } else {
            i++;
            if (!is_first)
                status = command->takes_words ? config_push(config, words_of(config), argv[i - 1])
                                              : fail_word(config, argv[i - 1]);
        }
        TRY(status);
    }
    return STATUS_OK;
}

static int check_required(const struct config *config) {
    for (size_t i = 0; i < config_row_total(&config->command); i++) {
        const struct config_row *row = config_row_at(&config->command, i);
        if (row->is_required && config->sources[i] == CONFIG_SOURCE_DEFAULT)
            return status_fail(STATUS_USAGE, "--%s is required (%s); 'cambium %s --help' shows the usage", row->path,
                               row->help, config->command.name);
    }
    return STATUS_OK;
}

static int parse(struct config *config, int argc, char **argv) {
    const struct config_command *command = &config->command;
    const char *file = NULL;
    int status = STATUS_OK;
    for (size_t i = 0; i < config_row_total(command) && !status; i++)
        status = config_set_default(config, i);
    if (command->takes_words)
        *words_of(config) = (struct config_list){0};
    THEN(status, walk(config, argc, argv, true, &file));
    if (status || config->question)
        return status;
    if (file)
        status = config_read_yaml(config, file);
    THEN(status, walk(config, argc, argv, false, &file));
    return status ? status : check_required(config);
}

static int answer(const struct config *config) {
    int status = STATUS_OK;
    if (config->question == CONFIG_ASKS_HELP)
        status = config_help(&config->command, config->section, stdout);
    else
        config_print_version(stdout);
    THEN_IF(status, (fflush(stdout) || ferror(stdout)), status_fail_errno("cannot write to standard output"));
    return status;
}

/* Makes a parse with nothing read. Returns NULL and sets the error text when there is no memory. */
static struct config *new_config(const struct config_command *command, void *values) {
    size_t total = config_row_total(command);
    struct config *made = calloc(1, sizeof *made);
    if (made) {
        made->command = *command;
        made->values = values;
        made->sources = calloc(total + 1, 1);
        made->lines = calloc(total + 1, sizeof *made->lines);
    }
    if (made && made->sources && made->lines)
        return made;
    config_free(made);
    status_no_memory();
    return NULL;
}

int config_parse_text(const struct config_command *command, const char *name, const char *text, size_t length,
                      void *values, struct config **config) {
    struct config *made = new_config(command, values);
    int status = made ? STATUS_OK : STATUS_MEMORY;
    for (size_t i = 0; i < config_row_total(command) && !status; i++)
        status = config_set_default(made, i);
    THEN(status, config_read_yaml_text(made, name, text, length));
    if (status)
        config_free(made);
    *config = status ? NULL : made;
    return status;
}

int config_parse(const struct config_command *command, int argc, char **argv, void *values, struct config **config,
                 bool *is_answered) {
    *config = NULL;
    *is_answered = false;
    struct config *made = new_config(command, values);
    int status = made ? parse(made, argc, argv) : STATUS_MEMORY;
    *is_answered = !status && made->question;
    if (*is_answered)
        status = answer(made);
    if (status)
        config_free(made);
    else
        *config = made;
    return status;
}

bool config_is_given(const struct config *config, const char *path) {
    size_t index = config_find_row(&config->command, path, strlen(path));
    return index < config_row_total(&config->command) && config->sources[index] != CONFIG_SOURCE_DEFAULT;
}

size_t config_line(const struct config *config, const char *path) {
    size_t index = config_find_row(&config->command, path, strlen(path));
    return index < config_row_total(&config->command) ? config->lines[index] : 0;
}
