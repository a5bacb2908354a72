/* Checks without the base that an adapter's tensors agree with its configuration and with each other. `adapter show`
 * uses it to report a tensor that is transposed or has a wrong length. With the base, peft_check_values checks all
 * tensors against it. */
#include "format-internal.h"

#include <stdarg.h>

enum { SHAPE_BYTES = 128 };

static const char *shape_text(const struct safetensor *tensor, char out[SHAPE_BYTES]) {
    int n = snprintf(out, SHAPE_BYTES, "[");
    for (int i = 0; i < tensor->dims && n < SHAPE_BYTES - 24; i++)
        n += snprintf(out + n, (size_t)(SHAPE_BYTES - n), i ? ", %lld" : "%lld", (long long)tensor->shape[i]);
    snprintf(out + n, (size_t)(SHAPE_BYTES - n), "]");
    return out;
}

int shape_fail(const struct peft_shape *shape, const char *format, ...) {
    char reason[512], text[SHAPE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    return status_fail(STATUS_INVALID, "%s: tensor '%.200s' has shape %s: %s", shape->directory, shape->tensor->name,
                       shape_text(shape->tensor, text), reason);
}

int shape_check_dims(const struct peft_shape *shape, int dims) {
    return shape->tensor->dims == dims ? STATUS_OK
                                       : shape_fail(shape, "%d size%s expected", dims, dims > 1 ? "s were" : " was");
}

int shape_check_axis(const struct peft_shape *shape, int axis,
                     bool (*is_size)(const struct peft_config *config, int64_t size), const char *key) {
    int status = shape_check_dims(shape, 2);
    if (status || is_size(shape->config, shape->tensor->shape[axis]))
        return status;
    bool is_turned = is_size(shape->config, shape->tensor->shape[!axis]);
    return shape_fail(shape, "its size %d is not %s of adapter_config.json%s", axis, key,
                      is_turned ? ": it is transposed" : "");
}

static bool is_tokens(const struct peft_config *config, int64_t size) {
    return size == config->num_virtual_tokens;
}

int shape_check_tokens(struct peft_shape *shape) {
    return shape_check_axis(shape, 0, is_tokens, "num_virtual_tokens");
}

/* Copies the name without its layer, the first number between dots; `out` has room for it. */
static void name_without_layer(const char *name, char *out) {
    const char *number = name;
    size_t digits = 0;
    while ((number = strchr(number, '.'))) {
        digits = strspn(++number, "0123456789");
        if (digits && number[digits] == '.')
            break;
    }
    size_t before = number ? (size_t)(number - name) : strlen(name);
    memcpy(out, name, before);
    strcpy(out + before, number ? number + digits : "");
}

/* Finds the first tensor with the same name in another layer; `firsts` has the indexes of the tensors so far. */
static int find_first(const struct peft_shape *shape, size_t index, json_t *firsts, const struct safetensor **first) {
    char *name = malloc(strlen(shape->tensor->name) + 1);
    TRY(status_allocated(name));
    name_without_layer(shape->tensor->name, name);
    json_t *known = json_object_get(firsts, name);
    int failed = known ? 0 : json_object_set_new(firsts, name, json_integer((json_int_t)index));
    *first = known ? ckpt_tensor_at(shape->tensors, (size_t)json_integer_value(known)) : shape->tensor;
    free(name);
    return failed ? status_no_memory() : STATUS_OK;
}

/* Tensors of one kind must be alike in all layers. */
static int check_alike(const struct peft_shape *shape, const struct safetensor *first) {
    const struct safetensor *tensor = shape->tensor;
    char text[SHAPE_BYTES];
    bool is_alike = first->dims == tensor->dims;
    for (int i = 0; i < tensor->dims && is_alike; i++)
        is_alike = i == shape->free_axis || first->shape[i] == tensor->shape[i];
    bool is_turned = tensor->dims == 2 && first->dims == 2 && tensor->shape[0] == first->shape[1] &&
                     tensor->shape[1] == first->shape[0];
    return is_alike ? STATUS_OK
                    : shape_fail(shape, "%.200s has %s, and all layers are alike%s", first->name,
                                 shape_text(first, text), is_turned ? ": one is transposed" : "");
}

int peft_check_shapes(const struct peft_files *files, int index) {
    const struct peft_config *config = &peft_files_configs(files)[index];
    const struct peft_format *format = peft_method(config->type)->format;
    const struct ckpt_tensors *tensors = peft_files_tensors(files, index);
    json_t *firsts = json_object();
    int status = status_allocated(firsts);
    for (size_t i = 0; i < ckpt_count(tensors) && !status; i++) {
        const struct safetensor *first = NULL;
        struct peft_shape shape = {.config = config,
                                   .tensors = tensors,
                                   .directory = peft_files_directory(files, index),
                                   .tensor = ckpt_tensor_at(tensors, i),
                                   .free_axis = -1};
        status = format->check_shape ? format->check_shape(&shape) : STATUS_OK;
        THEN(status, find_first(&shape, i, firsts, &first));
        THEN(status, check_alike(&shape, first));
    }
    json_decref(firsts);
    return status;
}
