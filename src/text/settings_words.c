/* Reads a pre_tokenizer: a pattern with a scanner, or a sequence of steps. */
#include "read-internal.h"

#include "text-internal.h"

enum { MOST_STEPS = 32 };

/* The patterns as files spell them, GPT-2's in two ways; scan-internal.h gives their meaning. */
#define BYTE_LEVEL_WORDS         " ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define CONTRACTION              "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LEAD                     "[^\\r\\n\\p{L}\\p{N}]?"
#define SYMBOLS_AND_SPACES(more) "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n" more "]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA3_WORDS(max)        CONTRACTION "|" LEAD "\\p{L}+|\\p{N}" max SYMBOLS_AND_SPACES("")
#define UPPER                    "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER                    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED_WORDS(contraction, max)                                                                                  \
    LEAD UPPER "*" LOWER "+" contraction "|" LEAD UPPER "+" LOWER "*" contraction "|\\p{N}" max SYMBOLS_AND_SPACES("/")
static const struct {
    enum word_pattern pattern;
    const char *text;
} patterns[] = {
    {WORDS_BYTE_LEVEL, "'s|'t|'re|'ve|'m|'ll|'d|" BYTE_LEVEL_WORDS},
    {WORDS_BYTE_LEVEL, "'(?:[sdmt]|ll|ve|re)|" BYTE_LEVEL_WORDS},
    {WORDS_LLAMA3, LLAMA3_WORDS("{1,3}")},
    {WORDS_QWEN2, LLAMA3_WORDS("")},
    {WORDS_O200K, CASED_WORDS(CONTRACTION "?", "{1,3}")},
    {WORDS_TEKKEN, CASED_WORDS("", "")},
};

const char *settings_pattern_text(enum word_pattern pattern) {
    size_t i = 0;
    while (patterns[i].pattern != pattern)
        i++;
    return patterns[i].text;
}

/* Adds a zeroed step. */
static int add_step(struct tokenizer_rules *rules, struct split_step **step) {
    if (rules->step_count == MOST_STEPS)
        return status_fail(STATUS_UNSUPPORTED, "pre_tokenizer has more than %d steps", MOST_STEPS);
    struct split_step *steps = realloc(rules->steps, (rules->step_count + 1) * sizeof *steps);
    TRY(status_allocated(steps));
    rules->steps = steps;
    *step = &steps[rules->step_count++];
    **step = (struct split_step){.kind = SPLIT_PATTERN};
    return STATUS_OK;
}

/* Reads the last step of byte-level BPE: with GPT-2's pattern, or without any. */
static int read_byte_level(const json_t *value, bool is_alone, struct tokenizer_rules *rules) {
    struct split_step *step = NULL;
    bool use_regex, has_prefix = false;
    if (strcmp(settings_type(value), "ByteLevel"))
        return settings_refuse("pre_tokenizer", settings_type(value));
    int status = settings_bool(value, "use_regex", true, &use_regex);
    THEN(status, settings_bool(value, "add_prefix_space", true, &has_prefix));
    rules->prefix = has_prefix ? PREFIX_SECTIONS : PREFIX_NEVER;
    if (!status && has_prefix && !is_alone)
        status = settings_refuse("pre_tokenizer.add_prefix_space", "true after another step");
    if (!status && use_regex)
        status = add_step(rules, &step); /* zeroed it is GPT-2's */
    return status;
}

static int read_digits(const json_t *value, struct tokenizer_rules *rules) {
    struct split_step *step = NULL;
    bool is_individual;
    int status = settings_bool(value, "individual_digits", false, &is_individual);
    THEN(status, add_step(rules, &step));
    if (!status)
        *step =
            (struct split_step){.kind = SPLIT_DIGITS, .behavior = is_individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS};
    return status;
}

static int read_behavior(const json_t *value, struct split_step *step) {
    static const char *const names[] = {[SPLIT_ISOLATED] = "Isolated",
                                        [SPLIT_REMOVED] = "Removed",
                                        [SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
                                        [SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
                                        [SPLIT_CONTIGUOUS] = "Contiguous"};
    const char *name = json_string_value(json_object_get(value, "behavior"));
    size_t i = 0, count = sizeof names / sizeof *names;
    while (i < count && (!name || strcmp(name, names[i]) != 0))
        i++;
    if (i == count)
        return settings_refuse("pre_tokenizer.behavior", name ? name : "null");
    step->behavior = (enum split_behavior)i;
    return settings_bool(value, "invert", false, &step->is_inverted);
}

/* True when a scanner gives the pieces: each match separately, with nothing between matches. */
static bool find_scanner(const char *text, struct split_step *step) {
    if (step->behavior != SPLIT_ISOLATED && !(step->behavior == SPLIT_REMOVED && step->is_inverted))
        return false;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (!strcmp(text, patterns[i].text)) {
            step->kind = SPLIT_PATTERN;
            step->pattern = patterns[i].pattern;
            return true;
        }
    return false;
}

static int read_split(const json_t *value, struct tokenizer_rules *rules) {
    const json_t *pattern = json_object_get(value, "pattern");
    const char *text = json_string_value(json_object_get(pattern, "Regex"));
    const char *string = json_string_value(json_object_get(pattern, "String"));
    struct split_step *step = NULL;
    TRY(add_step(rules, &step));
    TRY(read_behavior(value, step));
    if (!text && !string)
        return settings_refuse("pre_tokenizer.pattern", "neither Regex nor String");
    if (text && find_scanner(text, step))
        return STATUS_OK;
    if (text) {
        step->kind = SPLIT_REGEX;
        return text_regex_open(text, &step->regex);
    }
    step->kind = SPLIT_STRING;
    step->string = strdup(string);
    return status_allocated(step->string);
}

static int read_step(const json_t *value, bool is_alone, bool is_last, struct tokenizer_rules *rules) {
    if (is_last)
        return read_byte_level(value, is_alone, rules);
    if (!strcmp(settings_type(value), "Split"))
        return read_split(value, rules);
    if (!strcmp(settings_type(value), "Digits"))
        return read_digits(value, rules);
    return settings_refuse("pre_tokenizer", settings_type(value));
}

/* Replaces steps that one scanner can do by its pattern. */
static void choose_pattern(struct tokenizer_rules *rules) {
    const struct split_step *steps = rules->steps;
    size_t count = rules->step_count;
    rules->pattern = WORDS_STEPS;
    if (count == 1 && steps[0].kind == SPLIT_PATTERN)
        rules->pattern = steps[0].pattern;
    else if (count == 2 && steps[0].kind == SPLIT_DIGITS && steps[0].behavior == SPLIT_ISOLATED &&
             steps[1].kind == SPLIT_PATTERN && steps[1].pattern == WORDS_BYTE_LEVEL)
        rules->pattern = WORDS_SMOLLM;
    if (rules->pattern != WORDS_STEPS) {
        split_steps_free(rules->steps, rules->step_count);
        rules->steps = NULL;
        rules->step_count = 0;
    }
}

int settings_read_scheme(const json_t *metaspace, enum prefix_space *prefix) {
    static const char *const names[] = {
        [PREFIX_NEVER] = "never", [PREFIX_FIRST] = "first", [PREFIX_SECTIONS] = "always"};
    const json_t *scheme = json_object_get(metaspace, "prepend_scheme");
    const char *name = scheme ? json_string_value(scheme) : "always";
    const char *mark = json_string_value(json_object_get(metaspace, "replacement"));
    bool has_prefix;
    int status = settings_bool(metaspace, "add_prefix_space", true, &has_prefix);
    if (!mark || strcmp(mark, SPACE_MARK) != 0)
        return settings_refuse("replacement", mark ? mark : "null");
    for (int i = 0; i < 3 && name && !status; i++)
        if (!strcmp(name, names[i])) {
            *prefix = (enum prefix_space)i;
            return has_prefix || i == PREFIX_NEVER
                       ? STATUS_OK
                       : status_fail(STATUS_INVALID, "add_prefix_space is false, and prepend_scheme '%s'", name);
        }
    return status ? status : settings_refuse("prepend_scheme", name ? name : "null");
}

static int read_metaspace(const json_t *value, struct tokenizer_rules *rules) {
    bool is_split;
    if (rules->prefix)
        return settings_refuse("pre_tokenizer", "Metaspace after Prepend");
    TRY(settings_read_scheme(value, &rules->prefix));
    TRY(settings_bool(value, "split", true, &is_split));
    rules->is_by_characters = true;
    rules->pattern = is_split ? WORDS_METASPACE : WORDS_WHOLE;
    return STATUS_OK;
}

/* True for a split at spaces after marks have replaced all spaces. */
static bool finds_nothing(const json_t *value) {
    const char *string = json_string_value(json_object_get(json_object_get(value, "pattern"), "String"));
    return !strcmp(settings_type(value), "Split") && string && !strcmp(string, " ") &&
           !json_is_true(json_object_get(value, "invert"));
}

int settings_read_words(const json_t *value, struct tokenizer_rules *rules) {
    const json_t *steps = json_object_get(value, "pretokenizers");
    int status = STATUS_OK;
    if (json_array_size(steps) == 1 && !strcmp(settings_type(value), "Sequence"))
        return settings_read_words(json_array_get(steps, 0), rules);
    if (!strcmp(settings_type(value), "Metaspace"))
        return read_metaspace(value, rules);
    if (rules->is_by_characters && (settings_is_absent(value) || finds_nothing(value))) {
        rules->pattern = WORDS_WHOLE;
        return STATUS_OK;
    }
    if (rules->is_by_characters || settings_is_absent(value))
        return settings_refuse("pre_tokenizer", settings_is_absent(value) ? "null" : settings_type(value));
    if (strcmp(settings_type(value), "Sequence"))
        status = read_step(value, true, true, rules);
    else if (json_array_size(steps) == 0)
        return settings_refuse("pre_tokenizer", "Sequence without steps");
    for (size_t i = 0, count = json_array_size(steps); i < count && !status; i++)
        status = read_step(json_array_get(steps, i), false, i + 1 == count, rules);
    if (!status)
        choose_pattern(rules);
    return status;
}
