/* Reads the arguments of a Megatron run from the pickle in common.pt: an argparse.Namespace. */
#include "ckpt-internal.h"
#include "exchange.h"
#include "pickle.h"
#include "zip.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COMMON_LIMIT = 64 << 20 };

/* Adds a value that JSON can have; others are left out. */
static void add_value(json_t *object, const char *key, const struct pickle_node *value) {
    switch (value->kind) {
    case PICKLE_NONE:
        json_object_set_new(object, key, json_null());
        break;
    case PICKLE_BOOL:
        json_object_set_new(object, key, json_boolean(value->integer));
        break;
    case PICKLE_INTEGER:
        json_object_set_new(object, key, json_integer(value->integer));
        break;
    case PICKLE_NUMBER:
        json_object_set_new(object, key, json_real(value->number));
        break;
    case PICKLE_TEXT:
        json_object_set_new(object, key, json_stringn(value->text, value->count));
        break;
    default:
        break;
    }
}

static int make_json(const struct pickle *pickle, const struct pickle_node *arguments, char **text) {
    const struct pickle_node *state = arguments->state;
    if (!pickle_is_object(arguments, "argparse", "Namespace") || !state || state->kind != PICKLE_DICT)
        return pickle_refuse(pickle, arguments, "an argparse.Namespace as args");
    int status = STATUS_OK;
    json_begin();
    json_t *object = json_object();
    for (uint32_t i = 0; i + 1 < state->count && !status; i += 2) {
        char key[256];
        status = pickle_copy_text(pickle, state->items[i], "the name of an argument", key, sizeof key);
        if (!status && json_object_get(object, key))
            status = pickle_refuse(pickle, state->items[i], "the argument '%s' once", key);
        if (!status)
            add_value(object, key, state->items[i + 1]);
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
    if (!status && !record)
        status = status_fail(STATUS_INVALID, "%s: expected an archive with data.pkl", path);
    if (!status)
        status = zip_read(&zip, record, COMMON_LIMIT, &bytes);
    if (!status)
        status = pickle_read(path, record->start, bytes, (size_t)record->bytes, &pickle);
    if (!status)
        status = pickle_find(pickle, pickle_root(pickle), "args", &arguments);
    if (!status && arguments)
        status = make_json(pickle, arguments, text);
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
    int status = file_join(path, sizeof path, directory, "common.pt");
    if (!status)
        status = file_open_to_read(path, &descriptor, &size);
    if (status)
        return status == STATUS_NOT_FOUND ? STATUS_OK : status;
    status = read_common(path, descriptor, size, text);
    close(descriptor);
    return status;
}
