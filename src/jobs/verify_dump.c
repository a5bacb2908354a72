/* The files of --dump: one tensor a text, in the order of the texts. */
#include "verify-internal.h"

static const char *const file_names[VERIFY_FILES] = {"training.safetensors", "serving.safetensors"};

struct verify_dump {
    int64_t row_bytes;
    int *numbers; /* [texts] in the header */
    struct safetensors_header *header;
    struct file_writer writers[VERIFY_FILES];
};

int verify_check_dump(const char *directory) {
    char **names = NULL;
    size_t count = 0;
    if (!directory || !file_exists(directory))
        return STATUS_OK;
    TRY(file_list(directory, &names, &count));
    int status =
        count ? status_fail(STATUS_INVALID, "--dump %s: the directory is not empty (it has %s)", directory, names[0])
              : STATUS_OK;
    file_list_free(names, count);
    return status;
}

static int make_header(const struct verify *v, const char *path, struct verify_dump *d) {
    TRY(safetensors_header_new(&d->header));
    d->numbers = calloc((size_t)v->count, sizeof *d->numbers);
    TRY(status_allocated(d->numbers));
    for (int64_t i = 0; i < v->count; i++) {
        char name[32];
        const int64_t shape[2] = {v->texts[i].count, v->vocab};
        snprintf(name, sizeof name, "text.%lld", (long long)i);
        d->numbers[i] = safetensors_header_add(d->header, name, "F32", 2, shape);
        if (d->numbers[i] < 0)
            return d->numbers[i];
    }
    return safetensors_header_place(d->header, path);
}

int verify_dump_open(const struct verify *v, const char *directory, struct verify_dump **out) {
    struct verify_dump *d = *out = calloc(1, sizeof *d);
    TRY(status_allocated(d));
    d->row_bytes = v->vocab * (int64_t)sizeof(float);
    TRY(make_header(v, directory, d));
    TRY(verify_check_dump(directory));
    TRY(file_make_directories(directory));
    for (int f = 0; f < VERIFY_FILES; f++) {
        char path[PATH_MAX];
        size_t bytes;
        int64_t file_bytes;
        const char *header = safetensors_header_bytes(d->header, &bytes, &file_bytes);
        TRY(file_join(path, sizeof path, directory, file_names[f]));
        TRY(file_writer_open(&d->writers[f], path));
        TRY(file_pwrite_all(fileno(d->writers[f].stream), header, bytes, 0, path));
    }
    return STATUS_OK;
}

int verify_dump_row(struct verify_dump *d, enum verify_file file, int64_t text, int64_t token, const float *row) {
    if (!d)
        return STATUS_OK;
    const struct file_writer *writer = &d->writers[file];
    int64_t at = safetensors_header_start(d->header, d->numbers[text]) + token * d->row_bytes;
    return file_pwrite_all(fileno(writer->stream), row, (size_t)d->row_bytes, at, writer->path);
}

int verify_dump_commit(struct verify_dump *d) {
    for (int f = 0; f < VERIFY_FILES; f++)
        TRY(file_writer_commit(&d->writers[f]));
    return STATUS_OK;
}

void verify_dump_close(struct verify_dump *d) {
    if (!d)
        return;
    for (int f = 0; f < VERIFY_FILES; f++)
        file_writer_abort(&d->writers[f]);
    safetensors_header_free(d->header);
    free(d->numbers);
    free(d);
}
