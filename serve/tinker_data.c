/* Tensors of anybody become texts, and texts the samples of a pass. Every length, offset and id is checked before it is
 * used. */
#include "tinker_data.h"

#include "proto_check.h"

#include "base/base.h"

#include "tinker.pb-c.h"

#include <math.h>

enum { INPUTS = 4, ROWS_MOST = 1 << 22 /* of all texts of a message */ };
static const char *const input_names[INPUTS] = {"logprobs", "advantages", "weights", "target_tokens"};

typedef TinkerPublic__ForwardBackwardRequest request_message;
typedef TinkerPublic__Tensor tensor_message;

/* A datum under way. */
struct reading {
    struct tinker_data *data;
    const struct loss *loss;
    size_t number; /* of the datum */
    int64_t vocab, rows, columns, all_rows;
    bool is_matrix;
};

/* Sets the error of a datum's field, and returns false. */
static bool refuse(const struct reading *reading, const char *field, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static bool refuse(const struct reading *reading, const char *field, const char *format, ...) {
    char text[256];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return error_set(&reading->data->error, ERROR_ARGUMENT, "data", "data[%zu].%s%s", reading->number, field, text);
}

static bool fail_memory(struct tinker_data *data) {
    return error_set(&data->error, ERROR_OVERLOADED, NULL, "out of memory");
}

/* Returns zeroed memory that lives as long as the data. */
static void *take(struct tinker_data *data, size_t bytes) {
    void **blocks = realloc(data->blocks, (size_t)(data->block_count + 1) * sizeof *blocks);
    void *block = calloc(1, bytes ? bytes : 1);
    if (blocks)
        data->blocks = blocks;
    if (!blocks || !block) {
        free(block);
        fail_memory(data);
        return NULL;
    }
    return data->blocks[data->block_count++] = block;
}

/* ---- tokens ---- */

static bool read_tokens(struct reading *reading, const TinkerPublic__Datum *datum, int32_t **tokens) {
    int64_t rows = 0;
    for (size_t c = 0; c < datum->n_model_input; c++) {
        const TinkerPublic__Chunk *chunk = datum->model_input[c];
        if (chunk->chunk_case != TINKER_PUBLIC__CHUNK__CHUNK_ENCODED_TEXT)
            return refuse(reading, "model_input", "[%zu]: expected encoded_text%s", c,
                          chunk->chunk_case == TINKER_PUBLIC__CHUNK__CHUNK_IMAGE  ? ", not image"
                          : chunk->chunk_case == TINKER_PUBLIC__CHUNK__CHUNK_DMEL ? ", not dmel (audio)"
                                                                                  : "");
        size_t bytes = chunk->encoded_text->tokens.len;
        if (bytes % sizeof(int32_t))
            return refuse(reading, "model_input", "[%zu]: %zu bytes are no int32 tokens", c, bytes);
        rows += (int64_t)(bytes / sizeof(int32_t));
    }
    if (!rows)
        return refuse(reading, "model_input", ": expected at least one token");
    if (rows > ROWS_MOST)
        return refuse(reading, "model_input", ": %lld tokens, at most %d", (long long)rows, ROWS_MOST);
    *tokens = take(reading->data, (size_t)rows * sizeof **tokens);
    if (!*tokens)
        return false;
    reading->rows = 0;
    for (size_t c = 0; c < datum->n_model_input; c++) {
        ProtobufCBinaryData bytes = datum->model_input[c]->encoded_text->tokens;
        if (bytes.len)
            memcpy(*tokens + reading->rows, bytes.data, bytes.len);
        reading->rows += (int64_t)(bytes.len / sizeof(int32_t));
    }
    for (int64_t i = 0; i < rows; i++)
        if ((*tokens)[i] < 0 || (*tokens)[i] >= reading->vocab)
            return refuse(reading, "model_input", "[%lld]: %d is outside the vocabulary of %lld", (long long)i,
                          (*tokens)[i], (long long)reading->vocab);
    return true;
}

/* ---- tensors ---- */

static size_t element_bytes(TinkerPublic__DType type) {
    static const size_t bytes[] = {0, 4, 8, 4, 2};
    return (unsigned)type < sizeof bytes / sizeof *bytes ? bytes[type] : 0;
}

/* Reads element i of checked bytes. Integers of 64 bits may round; ids are checked after. */
static double element(TinkerPublic__DType type, ProtobufCBinaryData bytes, int64_t i) {
    const uint8_t *at = bytes.data + (size_t)i * element_bytes(type);
    float single;
    int64_t whole;
    int32_t half;
    uint32_t bits;
    uint16_t upper;
    switch (type) {
    case TINKER_PUBLIC__DTYPE__DTYPE_FLOAT32:
        memcpy(&single, at, sizeof single);
        return (double)single;
    case TINKER_PUBLIC__DTYPE__DTYPE_INT64:
        memcpy(&whole, at, sizeof whole);
        return (double)whole;
    case TINKER_PUBLIC__DTYPE__DTYPE_INT32:
        memcpy(&half, at, sizeof half);
        return half;
    default:
        memcpy(&upper, at, sizeof upper);
        bits = (uint32_t)upper << 16;
        memcpy(&single, &bits, sizeof single);
        return (double)single;
    }
}

static int64_t index_at(ProtobufCBinaryData bytes, int64_t i) {
    int64_t value;
    memcpy(&value, bytes.data + (size_t)i * sizeof value, sizeof value);
    return value;
}

/* Checks the shape of a tensor. The targets set the columns, and the others must have as many. */
static bool check_shape(struct reading *reading, const char *name, const tensor_message *tensor, int64_t elements) {
    bool is_sparse = tensor->layout_case == TINKER_PUBLIC__TENSOR__LAYOUT_SPARSE_CSR, is_first = !reading->columns;
    int64_t rows = tensor->n_shape ? tensor->shape[0] : elements;
    int64_t columns = tensor->n_shape > 1 ? tensor->shape[1] : 1;
    if (tensor->n_shape > 2 || (is_sparse && tensor->n_shape != 2))
        return refuse(reading, name, ": %zu axes, expected %s", tensor->n_shape, is_sparse ? "2" : "1 or 2");
    if (rows != reading->rows)
        return refuse(reading, name, ": length %lld, expected %lld", (long long)rows, (long long)reading->rows);
    if (columns < 1 || columns > TINKER_COLUMNS)
        return refuse(reading, name, ": %lld columns, expected 1 to %d", (long long)columns, TINKER_COLUMNS);
    if (!is_first && columns != reading->columns)
        return refuse(reading, name, ": %lld columns, expected %lld", (long long)columns, (long long)reading->columns);
    if (!is_sparse && elements != rows * columns)
        return refuse(reading, name, ": %lld values, expected %lld of its shape", (long long)elements,
                      (long long)(rows * columns));
    if (is_first) {
        reading->columns = columns;
        reading->is_matrix = tensor->n_shape == 2;
    }
    return true;
}

static bool check_sparse(const struct reading *reading, const char *name, const TinkerPublic__SparseCsr *csr,
                         int64_t elements) {
    size_t rows = csr->crow_indices.len / sizeof(int64_t), columns = csr->col_indices.len / sizeof(int64_t);
    if (csr->crow_indices.len % sizeof(int64_t) || rows != (size_t)reading->rows + 1)
        return refuse(reading, name, ".crow_indices: length %zu, expected %lld", rows, (long long)reading->rows + 1);
    if (csr->col_indices.len % sizeof(int64_t) || columns != (size_t)elements)
        return refuse(reading, name, ".col_indices: length %zu, expected %lld", columns, (long long)elements);
    for (int64_t i = 0; i <= reading->rows; i++) {
        int64_t at = index_at(csr->crow_indices, i), least = i ? index_at(csr->crow_indices, i - 1) : 0;
        if (at < least || at > elements || (!i && at) || (i == reading->rows && at != elements))
            return refuse(reading, name, ".crow_indices[%lld]: %lld is out of order", (long long)i, (long long)at);
    }
    for (int64_t i = 0; i < elements; i++)
        if (index_at(csr->col_indices, i) < 0 || index_at(csr->col_indices, i) >= reading->columns)
            return refuse(reading, name, ".col_indices[%lld]: %lld is outside %lld columns", (long long)i,
                          (long long)index_at(csr->col_indices, i), (long long)reading->columns);
    return true;
}

/* Sets one value of a text, by its row and column; `which` as in input_names. */
static bool set(const struct reading *reading, int which, const int64_t at[2], double value) {
    struct tinker_text *text = &reading->data->texts[reading->data->count + at[1]];
    if (which < 3) {
        text->values[which][at[0]] = (float)value;
        return isfinite(text->values[which][at[0]]) ||
               refuse(reading, input_names[which], "[%lld]: %g is not finite", (long long)at[0], value);
    }
    if (!(value >= 0 && value < (double)reading->vocab))
        return refuse(reading, input_names[which], "[%lld]: %.0f is outside the vocabulary of %lld", (long long)at[0],
                      value, (long long)reading->vocab);
    text->targets[at[0]] = (int32_t)value;
    return true;
}

static bool read_tensor(struct reading *reading, int which, const tensor_message *tensor) {
    bool is_sparse = tensor->layout_case == TINKER_PUBLIC__TENSOR__LAYOUT_SPARSE_CSR;
    const ProtobufCBinaryData bytes = is_sparse ? tensor->sparse_csr->values : tensor->dense;
    int64_t elements = (int64_t)(bytes.len / element_bytes(tensor->dtype));
    if (!is_sparse) {
        for (int64_t i = 0; i < elements; i++)
            if (!set(reading, which, (int64_t[]){i / reading->columns, i % reading->columns},
                     element(tensor->dtype, bytes, i)))
                return false;
        return true;
    }
    for (int64_t row = 0; row < reading->rows; row++)
        for (int64_t i = index_at(tensor->sparse_csr->crow_indices, row);
             i < index_at(tensor->sparse_csr->crow_indices, row + 1); i++)
            if (!set(reading, which, (int64_t[]){row, index_at(tensor->sparse_csr->col_indices, i)},
                     element(tensor->dtype, bytes, i)))
                return false;
    return true;
}

/* Checks everything of a tensor but its values. */
static bool check_tensor(struct reading *reading, int which, const tensor_message *tensor) {
    const char *name = input_names[which];
    bool is_sparse = tensor->layout_case == TINKER_PUBLIC__TENSOR__LAYOUT_SPARSE_CSR;
    if (tensor->layout_case != TINKER_PUBLIC__TENSOR__LAYOUT_DENSE && !is_sparse)
        return refuse(reading, name, ": it has no values");
    size_t bytes = is_sparse ? tensor->sparse_csr->values.len : tensor->dense.len, each = element_bytes(tensor->dtype);
    bool is_whole =
        tensor->dtype == TINKER_PUBLIC__DTYPE__DTYPE_INT64 || tensor->dtype == TINKER_PUBLIC__DTYPE__DTYPE_INT32;
    if (!each || (which == 3 && !is_whole))
        return refuse(reading, name, ": dtype %d, expected %s", (int)tensor->dtype,
                      which == 3 ? "int64 or int32" : "float32");
    if (bytes % each)
        return refuse(reading, name, ": %zu bytes are no numbers of %zu bytes", bytes, each);
    return check_shape(reading, name, tensor, (int64_t)(bytes / each)) &&
           (!is_sparse || check_sparse(reading, name, tensor->sparse_csr, (int64_t)(bytes / each)));
}

/* ---- data ---- */

static bool find_tensors(struct reading *reading, const TinkerPublic__Datum *datum,
                         const tensor_message *tensors[INPUTS]) {
    bool has_advantages = reading->loss->has_advantages;
    for (size_t i = 0; i < datum->n_loss_fn_inputs; i++) {
        const TinkerPublic__NamedTensor *entry = datum->loss_fn_inputs[i];
        int which = 0;
        while (which < INPUTS && strcmp(entry->key, input_names[which]) != 0)
            which++;
        if (which == INPUTS || (which < 2 && !has_advantages) || (which == 2 && has_advantages))
            return refuse(reading, "loss_fn_inputs", ": %s takes no \"%.64s\"", reading->loss->name, entry->key);
        tensors[which] = entry->value;
    }
    for (int which = 0; which < INPUTS; which++)
        if (!tensors[which] && (which == 3 || (which < 2 && has_advantages)))
            return refuse(reading, input_names[which], ": %s needs it", reading->loss->name);
    return true;
}

/* Makes the texts of a datum, with memory for their values. */
static bool add_texts(struct reading *reading, int32_t *tokens, const tensor_message *const tensors[INPUTS]) {
    struct tinker_data *data = reading->data;
    size_t arrays = 2; /* targets and logprobs */
    for (int which = 0; which < 3; which++)
        arrays += tensors[which] != NULL;
    reading->all_rows += reading->rows * reading->columns;
    if (reading->all_rows > ROWS_MOST)
        return refuse(reading, "target_tokens", ": the message has more than %d targets", ROWS_MOST);
    struct tinker_text *texts = realloc(data->texts, (size_t)(data->count + reading->columns) * sizeof *texts);
    char *at = texts ? take(data, (size_t)(reading->rows * reading->columns) * arrays * sizeof(float)) : NULL;
    data->texts = texts ? texts : data->texts;
    if (!at)
        return fail_memory(data);
    for (int64_t column = 0; column < reading->columns; column++) {
        struct tinker_text *text = &texts[data->count + column];
        float *next = (float *)at + (size_t)(column * reading->rows) * arrays;
        *text = (struct tinker_text){.column = column,
                                     .columns = reading->columns,
                                     .is_matrix = reading->is_matrix,
                                     .rows = reading->rows,
                                     .tokens = tokens,
                                     .targets = (int32_t *)next,
                                     .logprobs = next + reading->rows};
        next += 2 * reading->rows;
        for (int which = 0; which < 3; which++)
            if (tensors[which]) {
                text->values[which] = next;
                next += reading->rows;
            }
    }
    return true;
}

static bool read_datum(struct reading *reading, const TinkerPublic__Datum *datum) {
    const tensor_message *tensors[INPUTS] = {0};
    int32_t *tokens = NULL;
    reading->columns = 0;
    if (!read_tokens(reading, datum, &tokens) || !find_tensors(reading, datum, tensors))
        return false;
    for (int which = INPUTS - 1; which >= 0; which--) /* the targets first */
        if (tensors[which] && !check_tensor(reading, which, tensors[which]))
            return false;
    if (!add_texts(reading, tokens, tensors))
        return false;
    for (int which = 0; which < INPUTS; which++)
        if (tensors[which] && !read_tensor(reading, which, tensors[which]))
            return false;
    reading->data->count += reading->columns;
    return true;
}

/* ---- the loss ---- */

/* The keys of losses, with their defaults; NaN: it must be given. */
static const struct loss_key {
    const char *loss, *name;
    double otherwise;
    size_t place;
} loss_keys[] = {
    {"ppo", "clip_low_threshold", 0.8, offsetof(struct loss_options, clip_low)},
    {"ppo", "clip_high_threshold", 1.2, offsetof(struct loss_options, clip_high)},
    {"cispo", "clip_low_threshold", 0, offsetof(struct loss_options, clip_low)},
    {"cispo", "clip_high_threshold", 4, offsetof(struct loss_options, clip_high)},
    {"dro", "beta", NAN, offsetof(struct loss_options, beta)},
};
enum { LOSS_KEYS = sizeof loss_keys / sizeof *loss_keys };

static bool set_key(struct tinker_data *data, const char *name, const double *value) {
    for (size_t k = 0; k < LOSS_KEYS; k++)
        if (!strcmp(loss_keys[k].loss, data->loss->name) && !strcmp(loss_keys[k].name, name)) {
            if (!value || !(*value >= 0 && *value <= 1e6))
                return error_set(&data->error, ERROR_ARGUMENT, "loss_fn_config",
                                 "loss_fn_config.%s: expected a number from 0 to 1e6", name);
            memcpy((char *)&data->options + loss_keys[k].place, value, sizeof *value);
            return true;
        }
    return error_set(&data->error, ERROR_ARGUMENT, "loss_fn_config", "loss_fn_config.%.64s: %s has no such key", name,
                     data->loss->name);
}

static bool read_keys(struct tinker_data *data, const request_message *request) {
    for (size_t i = 0; i < request->n_loss_fn_config_v2; i++) {
        const TinkerPublic__NamedLossConfigValue *entry = request->loss_fn_config_v2[i];
        bool is_number = entry->value && entry->value->value_case == TINKER_PUBLIC__LOSS_CONFIG_VALUE__VALUE_NUMBER;
        if (!set_key(data, entry->key, is_number ? &entry->value->number : NULL))
            return false;
    }
    for (size_t i = 0; i < request->n_loss_fn_config && !request->n_loss_fn_config_v2; i++)
        if (!set_key(data, request->loss_fn_config[i]->key, &request->loss_fn_config[i]->value))
            return false;
    if (data->options.clip_low > data->options.clip_high)
        return error_set(&data->error, ERROR_ARGUMENT, "loss_fn_config",
                         "loss_fn_config.clip_low_threshold: %g is above clip_high_threshold, %g",
                         data->options.clip_low, data->options.clip_high);
    return !isnan(data->options.beta) || error_set(&data->error, ERROR_ARGUMENT, "loss_fn_config",
                                                   "loss_fn_config.beta: %s needs it", data->loss->name);
}

static bool read_loss(struct tinker_data *data, const request_message *request) {
    char names[128] = "";
    data->loss = loss_of_tokens(request->loss_fn);
    for (const struct loss *loss = loss_table; loss->name && !data->loss; loss++)
        if (loss->is_of_tokens)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", *names ? ", " : "", loss->name);
    if (!data->loss)
        return error_set(&data->error, ERROR_ARGUMENT, "loss_fn", "loss_fn: \"%.64s\" is none of %s", request->loss_fn,
                         names);
    for (size_t k = 0; k < LOSS_KEYS; k++)
        if (!strcmp(loss_keys[k].loss, data->loss->name))
            memcpy((char *)&data->options + loss_keys[k].place, &loss_keys[k].otherwise, sizeof(double));
    return read_keys(data, request);
}

static void read_request(struct tinker_data *data, const request_message *request, int64_t vocab) {
    struct reading reading = {.data = data, .vocab = vocab};
    if (!read_loss(data, request))
        return;
    reading.loss = data->loss;
    if (!request->n_data)
        error_set(&data->error, ERROR_ARGUMENT, "data", "data: expected at least one datum");
    for (; reading.number < request->n_data; reading.number++)
        if (!read_datum(&reading, request->data[reading.number]))
            return;
}

/* ---- the source ---- */

static int read_sample(const struct train_source *source, struct gpt_batch *batch,
                       const struct train_samples *samples) {
    const struct tinker_data *data = (const struct tinker_data *)source;
    batch->rows = batch->segments = batch->padding = 0;
    for (int64_t k = samples->first; k - samples->first < batch->samples && k < data->pack_count; k++)
        for (int64_t t = data->packs[k]; t < data->packs[k + 1]; t++) {
            const struct tinker_text *text = &data->texts[t];
            int64_t at = batch->rows, begin = at;
            if (at + text->rows > batch->samples * batch->seq_length)
                return status_fail(STATUS_INVALID, "%lld rows do not fit a batch", (long long)(at + text->rows));
            batch->segment_start[batch->segments++] = at;
            memcpy(batch->tokens + at, text->tokens, (size_t)text->rows * sizeof *batch->tokens);
            memcpy(batch->labels + at, text->targets, (size_t)text->rows * sizeof *batch->labels);
            for (; at - begin < text->rows; at++) {
                batch->loss_mask[at] = 1;
                batch->positions[at] = (int32_t)(at - begin);
                batch->sample[at] = (uint32_t)t;
                batch->token[at] = (uint32_t)(at - begin);
            }
            batch->rows = at;
        }
    batch->segment_start[batch->segments] = batch->rows;
    return STATUS_OK;
}

static void fill_segment(const struct train_source *source, const struct gpt_batch *batch, int64_t segment,
                         struct loss_segment *filled) {
    const struct tinker_data *data = (const struct tinker_data *)source;
    struct tinker_text *text = &data->texts[batch->sample[batch->segment_start[segment]]];
    memcpy(text->logprobs, filled->values, (size_t)text->rows * sizeof *text->logprobs);
    filled->sampled = text->values[0];
    filled->advantages = text->values[1];
    filled->weights = text->values[2];
}

void tinker_data_pack(struct tinker_data *data, int64_t most) {
    int64_t rows = most + 1;
    if (!data->packs)
        data->packs = calloc((size_t)data->count + 1, sizeof *data->packs);
    if (!data->packs) {
        fail_memory(data);
        return;
    }
    data->pack_count = 0;
    for (int64_t t = 0, datum = -1; t < data->count; t++) {
        int64_t count = data->texts[t].rows;
        datum += !data->texts[t].column;
        if (count > most) {
            error_set(&data->error, ERROR_ARGUMENT, "data",
                      "data[%lld].model_input: %lld tokens, and this run takes %lld", (long long)datum,
                      (long long)count, (long long)most);
            return;
        }
        if (rows + count > most) {
            data->packs[data->pack_count++] = t;
            rows = 0;
        }
        rows += count;
    }
    data->packs[data->pack_count] = data->count;
}

/* ---- opening, and the end ---- */

struct tinker_data *tinker_data_read(const void *bytes, size_t length, int64_t vocab, struct error *error) {
    ProtobufCMessage *message;
    struct proto_fault fault;
    enum proto_result result =
        proto_unpack(&tinker_public__forward_backward_request__descriptor, bytes, length, &message, &fault);
    struct tinker_data *data = result ? NULL : calloc(1, sizeof *data);
    if (result && result != PROTO_MEMORY)
        error_set(error, ERROR_ARGUMENT, fault.field, "%s%s%s", fault.field, *fault.field ? ": " : "", fault.text);
    else if (!data)
        error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
    if (data) {
        const request_message *request = (const request_message *)message;
        data->source = (struct train_source){.read = read_sample, .fill = fill_segment};
        snprintf(data->model_id, sizeof data->model_id, "%s", request->model_id);
        data->seq_id = request->seq_id;
        data->is_forward_only = request->forward_only;
        read_request(data, request, vocab);
    }
    proto_free(message);
    return data;
}

void tinker_data_free(struct tinker_data *data) {
    if (!data)
        return;
    for (int64_t i = 0; i < data->block_count; i++)
        free(data->blocks[i]);
    free(data->blocks);
    free(data->texts);
    free(data->packs);
    free(data);
}
