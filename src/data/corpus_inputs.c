/* The files of a corpus: their formats and sizes. */
#include "data-internal.h"

#include <sys/stat.h>
#include <unistd.h>

enum corpus_format corpus_format_of(const struct preprocess_options *options, size_t file) {
    if (options->format != CORPUS_AUTO)
        return (enum corpus_format)options->format;
    const char *name = options->inputs.items[file];
    size_t length = strlen(name);
    if (length > 3 && !strcmp(name + length - 3, ".gz"))
        length -= 3;
    bool is_text = (length > 4 && !strncmp(name + length - 4, ".txt", 4)) ||
                   (length > 5 && !strncmp(name + length - 5, ".text", 5));
    return is_text ? CORPUS_FILE : CORPUS_JSONL;
}

int corpus_input_bytes(const char *path, int64_t *bytes) {
    struct stat info;
    if (stat(path, &info) || access(path, R_OK))
        return status_fail_errno("cannot read %s", path);
    if (S_ISDIR(info.st_mode))
        return status_fail(STATUS_INVALID, "%s is a directory, expected a file", path);
    *bytes = S_ISREG(info.st_mode) ? info.st_size : -1;
    return STATUS_OK;
}
