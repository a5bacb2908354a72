/* Writes a distributed checkpoint of PyTorch: each tensor as one archive, in one of several files, and the list. */
#include "exchange.h"
#include "save-internal.h"
#include "torch_tensor.h"
#include "torch_write.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define METADATA_MODULE "torch.distributed.checkpoint.metadata"

/* The place of a tensor's archive. */
struct place {
    int file;
    int64_t start, length;
};

struct writing {
    const struct exchange_dcp *request;
    const char *directory;
    struct place *places; /* [tensors] */
};

static void file_name(int file, char out[64]) {
    snprintf(out, 64, "__%d_0.distcp", file);
}

/* ---- a tensor ---- */

/* The texts "0", the name of the record, and torch's name of the host. */
static const char key_and_device[] = "X\x01\0\0\0"
                                     "0X\x03\0\0\0cpu";

static void add_storage(struct strbuf *out, const struct safetensor *tensor, const char *class) {
    strbuf_add_text(out, PICKLE_MARK);
    pickle_add_text(out, "storage");
    pickle_add_global(out, class ? "torch" : "torch.storage", class ? class : "UntypedStorage");
    strbuf_add(out, key_and_device, sizeof key_and_device - 1);
    pickle_add_integer(out, class ? tensor->elements : tensor->bytes);
    strbuf_add_text(out, PICKLE_END_TUPLE PICKLE_FROM_ID);
}

/* Makes the call that rebuilds a tensor. Types without a storage class of their own have a storage of bytes. */
static int describe(const struct safetensor *tensor, struct strbuf *out) {
    const char *class = torch_storage_name(tensor->type);
    int64_t strides[SAFETENSORS_MAX_DIMS], stride = 1;
    for (int i = tensor->dims - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= tensor->shape[i] > 1 ? tensor->shape[i] : 1;
    }
    strbuf_add_text(out, PICKLE_BEGIN);
    pickle_add_global(out, "torch._utils", class ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    strbuf_add_text(out, PICKLE_MARK);
    add_storage(out, tensor, class);
    pickle_add_integer(out, 0);
    pickle_add_sizes(out, tensor->shape, tensor->dims);
    pickle_add_sizes(out, strides, tensor->dims);
    strbuf_add_text(out, PICKLE_WRITE_FALSE);
    pickle_add_global(out, "collections", "OrderedDict");
    strbuf_add_text(out, PICKLE_EMPTY_TUPLE PICKLE_CALL);
    if (!class)
        pickle_add_type(out, tensor->type);
    strbuf_add_text(out, PICKLE_END_TUPLE PICKLE_CALL PICKLE_STOP);
    return strbuf_status(out);
}

struct reading {
    const struct ckpt_tensors *tensors;
    size_t index;
};

static int read_tensor(void *context, int64_t first, int64_t length, void *out) {
    const struct reading *r = context;
    return ckpt_read_bytes(r->tensors, r->index, first, length, out);
}

static int write_tensor(const struct writing *w, size_t index, const char *path, int descriptor) {
    const struct safetensor *tensor = ckpt_tensor_at(w->request->tensors, index);
    struct reading reading = {.tensors = w->request->tensors, .index = index};
    struct strbuf pickle = STRBUF_INIT;
    int status = describe(tensor, &pickle);
    const struct archive archive = {.records = {{"archive/data.pkl", pickle.data, (int64_t)pickle.length},
                                                {"archive/byteorder", "little", 6},
                                                {"archive/version", "3\n", 2},
                                                {"archive/data/0", NULL, tensor->bytes}},
                                    .count = 4,
                                    .read = read_tensor,
                                    .context = &reading};
    if (!status)
        status = archive_write(&archive, path, descriptor, w->places[index].start, &w->places[index].length);
    strbuf_free(&pickle);
    return status;
}

/* ---- files ---- */

/* Gives each file a run of tensors with about the same number of bytes. */
static void choose_files(struct writing *w) {
    const struct ckpt_tensors *tensors = w->request->tensors;
    int64_t total = 1, before = 0;
    for (size_t i = 0; i < tensors->count; i++)
        total += ckpt_tensor_at(tensors, i)->bytes;
    for (size_t i = 0; i < tensors->count; i++) {
        w->places[i].file = (int)((double)before / (double)total * w->request->files);
        before += ckpt_tensor_at(tensors, i)->bytes;
    }
}

static int write_file(const struct writing *w, int file) {
    char name[64], path[PATH_MAX];
    int64_t at = 0;
    file_name(file, name);
    int status = file_join(path, sizeof path, w->directory, name);
    if (status)
        return status;
    int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0)
        return status_fail_errno("cannot create %s", path);
    for (size_t i = 0; i < w->request->tensors->count && !status; i++) {
        if (w->places[i].file != file)
            continue;
        w->places[i].start = at;
        status = write_tensor(w, i, path, descriptor);
        at += w->places[i].length;
    }
    if (!status && fsync(descriptor))
        status = status_fail_errno("cannot write %s", path);
    close(descriptor);
    return status;
}

/* ---- the list ---- */

static void begin_object(struct strbuf *out, const char *module, const char *class) {
    pickle_add_global(out, module, class);
    strbuf_add_text(out, PICKLE_EMPTY_TUPLE PICKLE_NEW PICKLE_EMPTY_DICT PICKLE_MARK);
}

static void end_object(struct strbuf *out) {
    strbuf_add_text(out, PICKLE_END_DICT PICKLE_SET_STATE);
}

static void add_size(struct strbuf *out, const int64_t *sizes, int count) {
    pickle_add_global(out, "torch", "Size");
    pickle_add_sizes(out, sizes, count);
    strbuf_add_text(out, PICKLE_ONE_TUPLE PICKLE_CALL);
}

static void add_properties(struct strbuf *out, const char *type) {
    pickle_add_global(out, METADATA_MODULE, "TensorProperties");
    strbuf_add_text(out, PICKLE_EMPTY_TUPLE PICKLE_NEW PICKLE_MARK);
    pickle_add_type(out, type);
    pickle_add_global(out, "torch.serialization", "_get_layout");
    pickle_add_text(out, "torch.strided");
    strbuf_add_text(out, PICKLE_ONE_TUPLE PICKLE_CALL PICKLE_WRITE_FALSE);
    pickle_add_global(out, METADATA_MODULE, "_MEM_FORMAT_ENCODING");
    pickle_add_integer(out, 0);
    strbuf_add_text(out, PICKLE_ONE_TUPLE PICKLE_CALL PICKLE_WRITE_FALSE PICKLE_END_TUPLE PICKLE_SET_STATE);
}

static void add_tensor(struct strbuf *out, const struct safetensor *tensor) {
    static const int64_t zeros[SAFETENSORS_MAX_DIMS];
    pickle_add_text(out, tensor->name);
    begin_object(out, METADATA_MODULE, "TensorStorageMetadata");
    pickle_add_text(out, "properties");
    add_properties(out, tensor->type);
    pickle_add_text(out, "size");
    add_size(out, tensor->shape, tensor->dims);
    pickle_add_text(out, "chunks");
    strbuf_add_text(out, PICKLE_EMPTY_LIST PICKLE_MARK);
    begin_object(out, METADATA_MODULE, "ChunkStorageMetadata");
    pickle_add_text(out, "offsets");
    add_size(out, zeros, tensor->dims);
    pickle_add_text(out, "sizes");
    add_size(out, tensor->shape, tensor->dims);
    end_object(out);
    strbuf_add_text(out, PICKLE_END_LIST);
    end_object(out);
}

static void add_place(struct strbuf *out, const struct safetensor *tensor, const struct place *place) {
    static const int64_t zeros[SAFETENSORS_MAX_DIMS];
    char name[64];
    file_name(place->file, name);
    begin_object(out, METADATA_MODULE, "MetadataIndex");
    pickle_add_text(out, "fqn");
    pickle_add_text(out, tensor->name);
    pickle_add_text(out, "offset");
    add_size(out, zeros, tensor->dims);
    pickle_add_text(out, "index");
    pickle_add_integer(out, 0);
    end_object(out);
    begin_object(out, "torch.distributed.checkpoint.filesystem", "_StorageInfo");
    pickle_add_text(out, "relative_path");
    pickle_add_text(out, name);
    pickle_add_text(out, "offset");
    pickle_add_integer(out, place->start);
    pickle_add_text(out, "length");
    pickle_add_integer(out, place->length);
    end_object(out);
}

static void add_list(struct strbuf *out, const struct writing *w) {
    const struct ckpt_tensors *tensors = w->request->tensors;
    strbuf_add_text(out, PICKLE_BEGIN);
    begin_object(out, METADATA_MODULE, "Metadata");
    pickle_add_text(out, "state_dict_metadata");
    strbuf_add_text(out, PICKLE_EMPTY_DICT PICKLE_MARK);
    for (size_t i = 0; i < tensors->count; i++)
        add_tensor(out, ckpt_tensor_at(tensors, i));
    strbuf_add_text(out, PICKLE_END_DICT);
    pickle_add_text(out, "planner_data");
    strbuf_add_text(out, PICKLE_EMPTY_DICT PICKLE_MARK);
    for (size_t i = 0; i < tensors->count; i++) {
        pickle_add_text(out, ckpt_tensor_at(tensors, i)->name);
        pickle_add_text(out, ckpt_tensor_at(tensors, i)->name);
        strbuf_add_text(out, PICKLE_ONE_TUPLE);
    }
    strbuf_add_text(out, PICKLE_END_DICT);
    pickle_add_text(out, "storage_data");
    strbuf_add_text(out, PICKLE_EMPTY_DICT PICKLE_MARK);
    for (size_t i = 0; i < tensors->count; i++)
        add_place(out, ckpt_tensor_at(tensors, i), &w->places[i]);
    strbuf_add_text(out, PICKLE_END_DICT);
    pickle_add_text(out, "storage_meta");
    strbuf_add_text(out, PICKLE_WRITE_NONE);
    pickle_add_text(out, "version");
    pickle_add_text(out, "1.0.0");
    end_object(out);
    strbuf_add_text(out, PICKLE_STOP);
}

static int write_list(const struct writing *w) {
    char path[PATH_MAX];
    struct strbuf list = STRBUF_INIT;
    add_list(&list, w);
    int status = strbuf_status(&list);
    if (!status)
        status = file_join(path, sizeof path, w->directory, DCP_LIST_FILE);
    if (!status)
        status = file_write_atomic(path, list.data, list.length);
    strbuf_free(&list);
    return status;
}

static int check_types(const struct ckpt_tensors *tensors) {
    for (size_t i = 0; i < tensors->count; i++) {
        const struct safetensor *tensor = ckpt_tensor_at(tensors, i);
        if (!torch_type_name(tensor->type))
            return status_fail(STATUS_UNSUPPORTED, "%s: tensor '%.200s' of type %s cannot be written",
                               tensors->directory, tensor->name, tensor->type);
    }
    return STATUS_OK;
}

int exchange_write_dcp(const struct exchange_dcp *request) {
    struct staging staging = {.mark = -1};
    struct writing w = {.request = request, .places = calloc(request->tensors->count + 1, sizeof *w.places)};
    int status = w.places ? check_types(request->tensors) : status_fail(STATUS_MEMORY, "out of memory");
    if (!status)
        status = save_check_replaceable(request->directory);
    if (!status)
        status = staging_begin(&staging, request->directory);
    w.directory = staging.directory;
    if (!status)
        choose_files(&w);
    for (int file = 0; file < request->files && !status; file++)
        status = write_file(&w, file);
    if (!status)
        status = write_list(&w);
    if (!status)
        status = save_texts(w.directory, &(const struct ckpt_save){.model = {.config_text = request->config_text,
                                                                             .texts = request->texts,
                                                                             .text_count = request->text_count,
                                                                             .tokenizer = request->tokenizer}});
    if (!status)
        status = staging_commit(&staging);
    staging_abort(&staging);
    free(w.places);
    return status ? status_wrap(status, "%s was not written", request->directory) : STATUS_OK;
}
