/* Checkpoints in a run's directory that the run did not write. */
#include "ckpt-internal.h"

static int compare_iterations(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int ckpt_list_above(const char *root, int64_t iteration, int64_t **iterations, size_t *count) {
    char **names;
    size_t name_count;
    *iterations = NULL;
    *count = 0;
    int status = directory_check(root);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    THEN(status, file_list(root, &names, &name_count));
    TRY(status);
    int64_t *found = calloc(name_count + 1, sizeof *found);
    for (size_t i = 0; found && i < name_count; i++) {
        char path[PATH_MAX], target[NAME_MAX + 1];
        int64_t number = checkpoint_iteration(staging_displaced(root, names[i], path, target) ? target : names[i]);
        if (number >= 0 && number > iteration)
            found[(*count)++] = number;
    }
    file_list_free(names, name_count);
    TRY(status_allocated(found));
    qsort(found, *count, sizeof *found, compare_iterations);
    *iterations = found;
    return STATUS_OK;
}

bool checkpoint_is_among(int64_t iteration, const int64_t *iterations, size_t count) {
    return count && bsearch(&iteration, iterations, count, sizeof *iterations, compare_iterations);
}
