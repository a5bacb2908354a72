/* Writes a distributed checkpoint of PyTorch: each part of a tensor as one archive, in one of several files, and the
 * list. A tensor is one part, or a stack of rows of its first axis. */
#include "exchange.h"
#include "save-internal.h"
#include "torch_tensor.h"
#include "torch_write.h"

#include <fcntl.h>
#include <unistd.h>

/* A part of a tensor, and the place of its archive. */
struct part {
    const struct safetensor *tensor;
    size_t index;             /* of the tensor */
    struct safetensor values; /* the part as its own tensor */
    int64_t row;              /* of the first axis, where it begins */
    int file;
    int64_t start, length;
};

struct writing {
    const struct exchange_dcp *request;
    const char *directory;
    struct part *parts; /* in the order of tensors and rows */
    size_t count;
    struct part object; /* the place of the one object that there is */
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

/* Makes the call that rebuilds a tensor. Types without their own storage class have a storage of bytes. */
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
    const struct part *part;
};

static int read_part(void *context, int64_t first, int64_t length, void *out) {
    const struct reading *r = context;
    return ckpt_read_bytes(r->tensors, r->part->index, r->part->row * r->part->values.bytes + first, length, out);
}

static int write_part(const struct writing *w, struct part *part, const char *path, int descriptor) {
    struct reading reading = {.tensors = w->request->tensors, .part = part};
    struct strbuf pickle = STRBUF_INIT;
    int status = describe(&part->values, &pickle);
    const struct archive archive = {.records = {{"archive/data.pkl", pickle.data, (int64_t)pickle.length},
                                                {"archive/byteorder", "little", 6},
                                                {"archive/version", "3\n", 2},
                                                {"archive/data/0", NULL, part->values.bytes}},
                                    .count = 4,
                                    .read = read_part,
                                    .context = &reading};
    THEN(status, archive_write(&archive, path, descriptor, part->start, &part->length));
    strbuf_free(&pickle);
    return status;
}

/* Writes the object, which all names share. */
static int write_object(struct part *object, const char *path, int descriptor) {
    static const char pickle[] =
        PICKLE_BEGIN PICKLE_EMPTY_LIST PICKLE_MARK PICKLE_WRITE_NONE PICKLE_END_LIST PICKLE_STOP;
    const struct archive archive = {.records = {{"archive/data.pkl", pickle, sizeof pickle - 1},
                                                {"archive/byteorder", "little", 6},
                                                {"archive/version", "3\n", 2}},
                                    .count = 3};
    return archive_write(&archive, path, descriptor, object->start, &object->length);
}

/* ---- files ---- */

static int list_parts(struct writing *w) {
    const struct ckpt_tensors *tensors = w->request->tensors;
    const char *stacked = w->request->stacked;
    size_t capacity = 0;
    for (size_t i = 0; i < tensors->count; i++) {
        const struct safetensor *tensor = ckpt_tensor_at(tensors, i);
        bool is_stack = stacked && !strncmp(tensor->name, stacked, strlen(stacked)) && tensor->dims && tensor->bytes;
        int64_t count = is_stack ? tensor->shape[0] : 1;
        struct part part = {.tensor = tensor, .index = i, .values = *tensor};
        if (is_stack)
            part.values.shape[0] = 1;
        part.values.elements /= count;
        part.values.bytes /= count;
        TRY(array_reserve(&w->parts, &capacity, w->count + (size_t)count, sizeof *w->parts));
        for (part.row = 0; part.row < count; part.row++)
            w->parts[w->count++] = part;
    }
    return STATUS_OK;
}

/* Gives each file a run of parts with about the same number of bytes. */
static void choose_files(struct writing *w) {
    int64_t total = 1, before = 0;
    for (size_t i = 0; i < w->count; i++)
        total += w->parts[i].values.bytes;
    for (size_t i = 0; i < w->count; i++) {
        w->parts[i].file = (int)((double)before / (double)total * w->request->files);
        before += w->parts[i].values.bytes;
    }
}

static int write_file(struct writing *w, int file) {
    char name[64], path[PATH_MAX];
    int64_t at = 0;
    file_name(file, name);
    int status = file_join(path, sizeof path, w->directory, name);
    TRY(status);
    int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0)
        return status_fail_errno("cannot create %s", path);
    if (w->request->object_count && file == w->object.file) {
        status = write_object(&w->object, path, descriptor);
        at = w->object.length;
    }
    for (size_t i = 0; i < w->count && !status; i++) {
        if (w->parts[i].file != file)
            continue;
        w->parts[i].start = at;
        status = write_part(w, &w->parts[i], path, descriptor);
        at += w->parts[i].length;
    }
    THEN_IF(status, fsync(descriptor), status_fail_errno("cannot write %s", path));
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
    pickle_add_global(out, DCP_MODULE, "TensorProperties");
    strbuf_add_text(out, PICKLE_EMPTY_TUPLE PICKLE_NEW PICKLE_MARK);
    pickle_add_type(out, type);
    pickle_add_global(out, "torch.serialization", "_get_layout");
    pickle_add_text(out, "torch.strided");
    strbuf_add_text(out, PICKLE_ONE_TUPLE PICKLE_CALL PICKLE_WRITE_FALSE);
    pickle_add_global(out, DCP_MODULE, "_MEM_FORMAT_ENCODING");
    pickle_add_integer(out, 0);
    strbuf_add_text(out, PICKLE_ONE_TUPLE PICKLE_CALL PICKLE_WRITE_FALSE PICKLE_END_TUPLE PICKLE_SET_STATE);
}

static void add_chunk(struct strbuf *out, const struct part *part) {
    const int64_t offsets[SAFETENSORS_MAX_DIMS] = {part->row};
    begin_object(out, DCP_MODULE, "ChunkStorageMetadata");
    pickle_add_text(out, "offsets");
    add_size(out, offsets, part->values.dims);
    pickle_add_text(out, "sizes");
    add_size(out, part->values.shape, part->values.dims);
    end_object(out);
}

/* Adds the tensor of a part, with all of its parts; returns the next part. */
static const struct part *add_tensor(struct strbuf *out, const struct part *part, const struct part *end) {
    const struct safetensor *tensor = part->tensor;
    pickle_add_text(out, tensor->name);
    begin_object(out, DCP_MODULE, "TensorStorageMetadata");
    pickle_add_text(out, "properties");
    add_properties(out, tensor->type);
    pickle_add_text(out, "size");
    add_size(out, tensor->shape, tensor->dims);
    pickle_add_text(out, "chunks");
    strbuf_add_text(out, PICKLE_EMPTY_LIST PICKLE_MARK);
    for (; part < end && part->tensor == tensor; part++)
        add_chunk(out, part);
    strbuf_add_text(out, PICKLE_END_LIST);
    end_object(out);
    return part;
}

/* Adds where a part of the tensor or object of this name lies. An object has no offset. */
static void add_place(struct strbuf *out, const char *fqn, const struct part *part) {
    const int64_t offsets[SAFETENSORS_MAX_DIMS] = {part->row};
    char name[64];
    file_name(part->file, name);
    begin_object(out, DCP_MODULE, "MetadataIndex");
    pickle_add_text(out, "fqn");
    pickle_add_text(out, fqn);
    pickle_add_text(out, "offset");
    if (part->tensor)
        add_size(out, offsets, part->values.dims);
    else
        strbuf_add_text(out, PICKLE_WRITE_NONE);
    pickle_add_text(out, "index");
    if (part->tensor)
        pickle_add_integer(out, part->row);
    else
        strbuf_add_text(out, PICKLE_WRITE_NONE);
    end_object(out);
    begin_object(out, DCP_PLACE_MODULE, "_StorageInfo");
    pickle_add_text(out, "relative_path");
    pickle_add_text(out, name);
    pickle_add_text(out, "offset");
    pickle_add_integer(out, part->start);
    pickle_add_text(out, "length");
    pickle_add_integer(out, part->length);
    end_object(out);
}

static void add_list(struct strbuf *out, const struct writing *w) {
    const struct exchange_dcp *request = w->request;
    const struct ckpt_tensors *tensors = request->tensors;
    strbuf_add_text(out, PICKLE_BEGIN);
    begin_object(out, DCP_MODULE, "Metadata");
    pickle_add_text(out, "state_dict_metadata");
    strbuf_add_text(out, PICKLE_EMPTY_DICT PICKLE_MARK);
    for (const struct part *part = w->parts; part < w->parts + w->count;)
        part = add_tensor(out, part, w->parts + w->count);
    for (size_t i = 0; i < request->object_count; i++) {
        pickle_add_text(out, request->objects[i]);
        pickle_add_global(out, DCP_MODULE, "BytesStorageMetadata");
        strbuf_add_text(out, PICKLE_EMPTY_TUPLE PICKLE_NEW);
    }
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
    for (size_t i = 0; i < w->count; i++)
        add_place(out, w->parts[i].tensor->name, &w->parts[i]);
    for (size_t i = 0; i < request->object_count; i++)
        add_place(out, request->objects[i], &w->object);
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
    THEN(status, file_join(path, sizeof path, w->directory, DCP_LIST_FILE));
    THEN(status, file_write_atomic(path, list.data, list.length));
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
    struct writing w = {.request = request};
    int status = check_types(request->tensors);
    THEN(status, list_parts(&w));
    THEN(status, save_check_replaceable(request->directory));
    THEN(status, staging_begin(&staging, request->directory));
    w.directory = staging.directory;
    if (!status)
        choose_files(&w);
    for (int file = 0; file < request->files && !status; file++)
        status = write_file(&w, file);
    THEN(status, write_list(&w));
    THEN_IF(status, request->arguments, megatron_arguments_write(w.directory, request->arguments));
    if (!status)
        status = save_texts(w.directory, &(const struct ckpt_save){.model = {.config_text = request->config_text,
                                                                             .texts = request->texts,
                                                                             .text_count = request->text_count,
                                                                             .tokenizer = request->tokenizer}});
    THEN(status, staging_commit(&staging));
    staging_abort(&staging);
    free(w.parts);
    return status ? status_wrap(status, "%s was not written", request->directory) : STATUS_OK;
}
