/* The arguments of a Megatron run, in the pickle of common.pt: an argparse.Namespace. */
#include "ckpt-internal.h"
#include "exchange.h"
#include "pickle.h"
#include "torch_write.h"
#include "zip.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#define COMMON_FILE "common.pt"

enum {
    COMMON_LIMIT = 64 << 20,
    MOST_ITEMS = 1 << 16 /* of all lists; a pickle may have one list many times */
};

static json_t *make_scalar(const struct pickle_node *value) {
    switch (value->kind) {
    case PICKLE_NONE:
        return json_null();
    case PICKLE_BOOL:
        return json_boolean(value->integer);
    case PICKLE_INTEGER:
        return json_integer(value->integer);
    case PICKLE_NUMBER:
        return isfinite(value->number) ? json_real(value->number) : json_object();
    case PICKLE_TEXT:
        return json_stringn(value->text, value->count);
    default: /* so that a reader sees that there is one */
        return json_object();
    }
}

/* Makes a scalar or a list of them; `most` items may follow, and are counted down. */
static json_t *make_value(const struct pickle_node *value, uint32_t *most) {
    if ((value->kind != PICKLE_TUPLE && value->kind != PICKLE_LIST) || value->count > *most)
        return make_scalar(value);
    json_t *list = json_array();
    *most -= value->count;
    for (uint32_t i = 0; i < value->count; i++)
        json_array_append_new(list, make_scalar(value->items[i]));
    return list;
}

static int make_json(const struct pickle *pickle, const struct pickle_node *arguments, char **text) {
    bool is_there = pickle_is_object(arguments, "argparse", "Namespace");
    const struct pickle_node *state = is_there ? arguments->state : NULL;
    if (!state || state->kind != PICKLE_DICT)
        return pickle_refuse(pickle, arguments, "an argparse.Namespace as args");
    int status = STATUS_OK;
    uint32_t most = MOST_ITEMS;
    json_begin();
    json_t *object = json_object();
    for (uint32_t i = 0; i + 1 < state->count && !status; i += 2) {
        char key[256];
        status = pickle_copy_text(pickle, state->items[i], "the name of an argument", key, sizeof key);
        if (!status && json_object_get(object, key))
            status = pickle_refuse(pickle, state->items[i], "the argument '%s' once", key);
        if (!status)
            json_object_set_new(object, key, make_value(state->items[i + 1], &most));
    }
    if (status) {
        json_decref(object);
        return status;
    }
    return json_end(object, JSON_COMPACT, text);
}

static int read_common(const char *path, int descriptor, int64_t size, char **text) {
    struct zip zip;
    struct pickle *pickle = NULL;
    const struct pickle_node *arguments = NULL;
    char *bytes = NULL;
    int status = zip_open(&zip, path, descriptor, 0, size);
    struct zip_record *record = status ? NULL : zip_find(&zip, "data.pkl");
    THEN_IF(status, !record, status_fail(STATUS_INVALID, "%s: expected an archive with data.pkl", path));
    THEN(status, zip_read(&zip, record, COMMON_LIMIT, &bytes));
    THEN(status, pickle_read(path, record->start, bytes, (size_t)record->bytes, NULL, &pickle));
    THEN(status, pickle_find(pickle, pickle_root(pickle), "args", &arguments));
    THEN_IF(status, arguments, make_json(pickle, arguments, text));
    pickle_free(pickle);
    free(bytes);
    zip_close(&zip);
    return status;
}

int exchange_read_megatron_arguments(const char *directory, char **text) {
    char path[PATH_MAX];
    int descriptor;
    int64_t size;
    *text = NULL;
    int status = file_join(path, sizeof path, directory, COMMON_FILE);
    THEN(status, file_open_to_read(path, &descriptor, &size));
    if (status)
        return status == STATUS_NOT_FOUND ? STATUS_OK : status;
    status = read_common(path, descriptor, size, text);
    close(descriptor);
    return status;
}

/* ---- writing ---- */

static void add_value(struct strbuf *out, const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_STRING:
        pickle_add_text(out, json_string_value(value));
        break;
    case JSON_INTEGER:
        pickle_add_integer(out, json_integer_value(value));
        break;
    case JSON_REAL:
        pickle_add_number(out, json_real_value(value));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        strbuf_add_text(out, json_is_true(value) ? PICKLE_WRITE_TRUE : PICKLE_WRITE_FALSE);
        break;
    case JSON_ARRAY:
        strbuf_add_text(out, PICKLE_MARK);
        for (size_t i = 0; i < json_array_size(value); i++)
            add_value(out, json_array_get(value, i));
        strbuf_add_text(out, PICKLE_END_TUPLE);
        break;
    default:
        strbuf_add_text(out, PICKLE_WRITE_NONE);
    }
}

static void add_common(struct strbuf *out, json_t *arguments) {
    const char *name;
    json_t *value;
    strbuf_add_text(out, PICKLE_BEGIN PICKLE_EMPTY_DICT PICKLE_MARK);
    pickle_add_text(out, "iteration");
    pickle_add_integer(out, 0);
    pickle_add_text(out, "checkpoint_version");
    pickle_add_number(out, 3);
    pickle_add_text(out, "args");
    pickle_add_global(out, "argparse", "Namespace");
    strbuf_add_text(out, PICKLE_EMPTY_TUPLE PICKLE_NEW PICKLE_EMPTY_DICT PICKLE_MARK);
    json_object_foreach(arguments, name, value) {
        pickle_add_text(out, name);
        add_value(out, value);
    }
    strbuf_add_text(out, PICKLE_END_DICT PICKLE_SET_STATE PICKLE_END_DICT PICKLE_STOP);
}

static int write_common(const char *path, const struct strbuf *pickle) {
    const struct archive archive = {.records = {{"common/data.pkl", pickle->data, (int64_t)pickle->length},
                                                {"common/byteorder", "little", 6},
                                                {"common/version", "3\n", 2}},
                                    .count = 3};
    int64_t length;
    int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0)
        return status_fail_errno("cannot create %s", path);
    int status = archive_write(&archive, path, descriptor, 0, &length);
    THEN_IF(status, fsync(descriptor), status_fail_errno("cannot write %s", path));
    close(descriptor);
    return status;
}

int megatron_arguments_write(const char *directory, const char *arguments) {
    char path[PATH_MAX];
    json_t *object;
    json_error_t error;
    struct strbuf pickle = STRBUF_INIT;
    int status = json_read(arguments, strlen(arguments), JSON_REJECT_DUPLICATES, &object, &error);
    if (status)
        return status == STATUS_MEMORY ? status : status_fail(STATUS_INVALID, "arguments: %s", error.text);
    add_common(&pickle, object);
    json_decref(object);
    status = strbuf_status(&pickle);
    THEN(status, file_join(path, sizeof path, directory, COMMON_FILE));
    THEN(status, write_common(path, &pickle));
    strbuf_free(&pickle);
    return status;
}
