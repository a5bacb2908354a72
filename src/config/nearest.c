/* Finds the name that a misspelt word meant, by the edit distance of Damerau and Levenshtein (optimal string
 * alignment). */
#include "config-internal.h"

#include <stdlib.h>
#include <string.h>

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
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
            size_t cost = above[j - 1] + (a[i - 1] != b[j - 1]);
            cost = smaller(cost, smaller(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
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

const char *config_nearest(const char *word, const char *const *candidates, size_t count) {
    size_t length = strlen(word);
    const char *best = NULL;
    size_t best_distance = SIZE_MAX;
    if (length == 0 || length > CONFIG_MAX_WORD)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        size_t candidate_length = candidates[i] ? strlen(candidates[i]) : 0;
        if (candidate_length == 0 || candidate_length > CONFIG_MAX_WORD)
            continue;
        size_t d = config_distance(word, candidates[i]);
        size_t allowed = smaller(length, candidate_length) < 3 ? 1 : 1 + smaller(length, candidate_length) / 3;
        if (d <= allowed && d < best_distance) {
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

const char *config_suggest(const struct config_command *command, const char *word, bool only_sections) {
    size_t total = config_row_total(command), count = 0;
    const char **paths = malloc((2 * total + 1) * sizeof *paths);
    if (!paths)
        return NULL;
    const char **keys = paths + total;
    for (size_t i = 0; i < total; i++) {
        if (only_sections && !config_row_is_section(command, i))
            continue;
        paths[count] = config_row_at(command, i)->path;
        keys[count] = key_of(paths[count]);
        count++;
    }
    const char *found = NULL;
    for (size_t i = 0; i < count && !found; i++) /* the right key without a section, or in the wrong one */
        if (!strcmp(keys[i], key_of(word)))
            found = paths[i];
    if (!found)
        found = config_nearest(word, paths, count);
    const char *key = found ? NULL : config_nearest(key_of(word), keys, count);
    for (size_t i = 0; i < count && !found && key; i++)
        if (keys[i] == key)
            found = paths[i];
    free(paths);
    return found;
}
