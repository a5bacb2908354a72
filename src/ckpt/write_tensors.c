/* Writes tensors as they are: header by header, file by file, a piece at a time. */
#include "exchange.h"
#include "save-internal.h"

#include <fcntl.h>
#include <unistd.h>

enum { PIECE_BYTES = 4 << 20 };
static const int64_t default_shard_bytes = 50000000000; /* transformers' */

struct writing {
    const struct ckpt_tensors *tensors;
    const size_t *order; /* NULL: by name */
    const char *directory;
    int *shards;  /* [tensors] */
    int *numbers; /* [tensors] in their file's header */
    int shard_count;
    char *piece;
};

/* Returns the tensor at a place in the order of writing. */
static size_t tensor_at(const struct writing *w, size_t place) {
    return w->order ? w->order[place] : place;
}

static int choose_shards(struct writing *w, int64_t limit) {
    int64_t bytes = 0;
    w->shard_count = 1;
    for (size_t place = 0; place < w->tensors->count; place++) {
        size_t i = tensor_at(w, place);
        int64_t more = w->tensors->entries[i].tensor->bytes;
        if (bytes && more > limit - bytes) {
            w->shard_count++;
            bytes = 0;
        }
        bytes += more;
        w->shards[i] = w->shard_count - 1;
    }
    return w->shard_count > 99999 ? status_fail(STATUS_INVALID, "more than 99999 shards: allow larger ones")
                                  : STATUS_OK;
}

static void shard_name(const struct writing *w, int shard, char out[64]) {
    if (w->shard_count == 1)
        snprintf(out, 64, MODEL_FILE);
    else
        snprintf(out, 64, "model-%05d-of-%05d.safetensors", shard + 1, w->shard_count);
}

static int write_tensor(const struct writing *w, size_t index, int descriptor, int64_t start, const char *path) {
    const struct tensor_entry *entry = &w->tensors->entries[index];
    int status = STATUS_OK;
    for (int64_t at = 0; at < entry->tensor->bytes && !status; at += PIECE_BYTES) {
        int64_t left = entry->tensor->bytes - at, bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
        status = ckpt_read_bytes(w->tensors, index, at, bytes, w->piece);
        THEN(status, file_pwrite_all(descriptor, w->piece, (size_t)bytes, start + at, path));
    }
    return status;
}

/* Writes the file whose header is complete. */
static int write_file(const struct writing *w, int shard, const struct safetensors_header *header, const char *path) {
    size_t header_bytes;
    int64_t file_bytes;
    const char *bytes = safetensors_header_bytes(header, &header_bytes, &file_bytes);
    int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0)
        return status_fail_errno("cannot create %s", path);
    int status = file_pwrite_all(descriptor, bytes, header_bytes, 0, path);
    for (size_t place = 0; place < w->tensors->count && !status; place++) {
        size_t i = tensor_at(w, place);
        if (w->shards[i] == shard)
            status = write_tensor(w, i, descriptor, safetensors_header_start(header, w->numbers[i]), path);
    }
    THEN_IF(status, fsync(descriptor), status_fail_errno("cannot write %s", path));
    close(descriptor);
    return status;
}

static int write_shard(const struct writing *w, int shard) {
    char name[64], path[PATH_MAX];
    struct safetensors_header *header;
    shard_name(w, shard, name);
    int status = file_join(path, sizeof path, w->directory, name);
    THEN(status, safetensors_header_new(&header));
    TRY(status);
    for (size_t i = 0; i < w->tensors->count && !status; i++)
        if (w->shards[i] == shard) {
            const struct safetensor *tensor = w->tensors->entries[i].tensor;
            w->numbers[i] = safetensors_header_add(header, tensor->name, tensor->type, tensor->dims, tensor->shape);
            status = w->numbers[i] < 0 ? w->numbers[i] : STATUS_OK;
        }
    THEN(status, safetensors_header_place(header, path));
    THEN(status, write_file(w, shard, header, path));
    safetensors_header_free(header);
    return status;
}

static int write_index(const struct writing *w) {
    char path[PATH_MAX], name[64], *text = NULL;
    int64_t bytes = 0;
    json_begin();
    json_t *map = json_object();
    for (size_t i = 0; i < w->tensors->count; i++) {
        shard_name(w, w->shards[i], name);
        json_object_set_new(map, w->tensors->entries[i].tensor->name, json_string(name));
        bytes += w->tensors->entries[i].tensor->bytes;
    }
    int status = json_end(json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)bytes, "weight_map", map),
                          JSON_INDENT(2), &text);
    THEN(status, file_join(path, sizeof path, w->directory, MODEL_INDEX_FILE));
    THEN(status, file_write_atomic(path, text, strlen(text)));
    free(text);
    return status;
}

int exchange_write_tensors(const struct exchange_files *files) {
    struct staging staging = {.mark = -1};
    struct writing w = {.tensors = files->tensors, .order = files->order};
    size_t count = files->tensors->count;
    w.shards = calloc(count + 1, sizeof *w.shards);
    w.numbers = calloc(count + 1, sizeof *w.numbers);
    w.piece = malloc(PIECE_BYTES);
    int status = w.shards && w.numbers && w.piece ? save_check_replaceable(files->directory) : status_no_memory();
    THEN(status, choose_shards(&w, files->max_shard_bytes > 0 ? files->max_shard_bytes : default_shard_bytes));
    THEN(status, staging_begin(&staging, files->directory));
    w.directory = staging.directory;
    for (int i = 0; i < w.shard_count && !status; i++)
        status = write_shard(&w, i);
    THEN_IF(status, w.shard_count > 1, write_index(&w));
    if (!status)
        status = save_texts(w.directory, &(const struct ckpt_save){.model = {.config_text = files->config_text,
                                                                             .texts = files->texts,
                                                                             .text_count = files->text_count,
                                                                             .tokenizer = files->tokenizer}});
    THEN(status, staging_commit(&staging));
    staging_abort(&staging);
    free(w.shards);
    free(w.numbers);
    free(w.piece);
    return status ? status_wrap(status, "%s was not written", files->directory) : STATUS_OK;
}
