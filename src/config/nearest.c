/* Explains unknown names. Finds the name that a misspelt word meant: one that begins with it, or the nearest by the
 * edit distance of Damerau and Levenshtein (optimal string alignment). */
#include "config-internal.h"

#include "base/smaller.h"

#include <ctype.h>

/* One character of a name: case and the kind of its dashes make no difference. */
static char fold(char character) {
    return character == '_' ? '-' : (char)tolower((unsigned char)character);
}

bool config_is_name(const char *name, size_t length, const char *word) {
    size_t i = 0;
    while (i < length && word[i] && fold(name[i]) == fold(word[i]))
        i++;
    return i == length && !word[i];
}

size_t config_mistakes(const char *a, const char *b) {
    size_t shorter = smaller(strlen(a), strlen(b));
    return shorter < 3 ? 0 : shorter < 6 ? 1 : 2;
}

size_t config_distance(const char *a, const char *b) {
    size_t rows[3][CONFIG_MAX_WORD + 1];
    size_t *before = rows[0], *above = rows[1], *row = rows[2];
    size_t length_a = strlen(a), length_b = strlen(b);
    for (size_t j = 0; j <= length_b; j++)
        before[j] = above[j] = j;
    for (size_t i = 1; i <= length_a; i++) {
        row[0] = i;
        for (size_t j = 1; j <= length_b; j++) {
            size_t cost = above[j - 1] + (fold(a[i - 1]) != fold(b[j - 1]));
            cost = smaller(cost, smaller(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) && fold(a[i - 2]) == fold(b[j - 1]))
                cost = smaller(cost, before[j - 2] + 1);
            row[j] = cost;
        }
        size_t *free_row = before;
        before = above;
        above = row;
        row = free_row;
    }
    return above[length_b];
}

/* Returns the first candidate that begins with the word. */
static const char *find_beginning(const char *word, const char *const *candidates, size_t count) {
    size_t length = strlen(word);
    for (size_t i = 0; i < count && length; i++)
        if (candidates[i] && config_is_name(candidates[i], length, word))
            return candidates[i];
    return NULL;
}

const char *config_nearest(const char *word, const char *const *candidates, size_t count) {
    size_t length = strlen(word);
    const char *best = find_beginning(word, candidates, count);
    size_t best_distance = SIZE_MAX;
    if (best || length == 0 || length > CONFIG_MAX_WORD)
        return best;
    for (size_t i = 0; i < count; i++) {
        size_t candidate_length = candidates[i] ? strlen(candidates[i]) : 0;
        if (candidate_length == 0 || candidate_length > CONFIG_MAX_WORD)
            continue;
        size_t d = config_distance(word, candidates[i]);
        if (d <= config_mistakes(word, candidates[i]) && d < best_distance) {
            best = candidates[i];
            best_distance = d;
        }
    }
    return best;
}

static const char *key_of(const char *path) {
    const char *dot = strchr(path, '.');
    return dot ? dot + 1 : path;
}

const char *config_absence(const struct config_absent *absent, size_t count, const char *path) {
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(absent[i].path);
        if (!strncmp(path, absent[i].path, length) && (!path[length] || path[length] == '.'))
            return absent[i].reason;
    }
    return NULL;
}

/* Names of options: paths, and the keys of these paths, at the same index. */
struct names {
    const char **paths, **keys;
    size_t count;
};

static void add_name(struct names *names, const char *path) {
    names->paths[names->count] = path;
    names->keys[names->count++] = key_of(path);
}

/* Returns the path whose key `key` is, an entry of names->keys; NULL for NULL. */
static const char *path_with(const struct names *names, const char *key) {
    for (size_t i = 0; i < names->count && key; i++)
        if (names->keys[i] == key)
            return names->paths[i];
    return NULL;
}

static const char *suggest(const struct names *names, const char *word) {
    const char *key = key_of(word), *found = NULL;
    for (size_t i = 0; i < names->count && !found; i++) /* the right key without a section, or in the wrong one */
        if (config_is_name(names->keys[i], strlen(names->keys[i]), key))
            found = names->paths[i];
    if (!found)
        found = find_beginning(word, names->paths, names->count);
    if (!found)
        found = path_with(names, find_beginning(key, names->keys, names->count));
    if (!found)
        found = config_nearest(word, names->paths, names->count);
    return found ? found : path_with(names, config_nearest(key, names->keys, names->count));
}

const char *config_suggest(const struct config_command *command, const char *word, bool only_sections) {
    size_t total = config_row_total(command), most = total + 2; /* --help and --version */
    const char **memory = malloc(2 * most * sizeof *memory);
    if (!memory)
        return NULL;
    struct names names = {.paths = memory, .keys = memory + most};
    for (size_t i = 0; i < total; i++)
        if (!only_sections || config_row_is_section(command, i))
            add_name(&names, config_row_at(command, i)->path);
    if (!only_sections) {
        add_name(&names, "help");
        add_name(&names, "version");
    }
    const char *found = suggest(&names, word);
    free(memory);
    return found;
}
