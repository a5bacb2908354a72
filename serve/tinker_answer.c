/* Answers of Tinker's API that are protobuf. */
#include "tinker_answer.h"

#include "base/base.h"

#include <math.h>

void tinker_pack(const ProtobufCMessage *message, struct strbuf *out) {
    size_t length = protobuf_c_message_get_packed_size(message);
    if (strbuf_reserve(out, length)) {
        out->failed = true;
        return;
    }
    out->length += protobuf_c_message_pack(message, (uint8_t *)out->data + out->length);
    out->data[out->length] = 0;
}

/* ---- a pass ---- */

/* Appends the log-probabilities of a datum [rows, columns], whose texts begin at `text`. */
static void add_datum(const struct tinker_text *text, struct strbuf *out) {
    for (int64_t row = 0; row < text->rows; row++)
        for (int64_t column = 0; column < text->columns; column++)
            strbuf_add(out, &text[column].logprobs[row], sizeof(float));
}

static ProtobufCBinaryData bytes_of(struct strbuf *buffer) {
    return (ProtobufCBinaryData){.len = buffer->length, .data = (uint8_t *)buffer->data};
}

/* Adds a record of the data from text `first` on that have equally many columns. Returns the text after them. */
static int64_t add_record(const struct tinker_data *data, int64_t first, struct strbuf *out) {
    TinkerPublic__BatchedTensor tensor = TINKER_PUBLIC__BATCHED_TENSOR__INIT;
    TinkerPublic__NamedBatchedTensor field = TINKER_PUBLIC__NAMED_BATCHED_TENSOR__INIT, *fields[] = {&field};
    TinkerPublic__ArrayRecord record = TINKER_PUBLIC__ARRAY_RECORD__INIT, *records[] = {&record};
    TinkerPublic__ForwardBackwardOutput message = TINKER_PUBLIC__FORWARD_BACKWARD_OUTPUT__INIT;
    const struct tinker_text *like = &data->texts[first];
    struct strbuf values = STRBUF_INIT, offsets = STRBUF_INIT;
    int64_t columns = like->columns, t = first, offset = 0;
    strbuf_add(&offsets, &offset, sizeof offset);
    for (; t < data->count && data->texts[t].columns == columns && data->texts[t].is_matrix == like->is_matrix;
         t += columns) {
        add_datum(&data->texts[t], &values);
        offset = (int64_t)values.length;
        strbuf_add(&offsets, &offset, sizeof offset);
        record.num_datums++;
    }
    tensor.data = bytes_of(&values);
    tensor.offsets = bytes_of(&offsets);
    tensor.dtype = TINKER_PUBLIC__DTYPE__DTYPE_FLOAT32;
    tensor.n_trailing_shape = like->is_matrix;
    tensor.trailing_shape = &columns;
    field.key = "logprobs";
    field.value = &tensor;
    record.type_tag = "ArrayRecord";
    record.n_fields = 1;
    record.fields = fields;
    message.n_loss_fn_outputs = 1;
    message.loss_fn_outputs = records;
    out->failed |= values.failed || offsets.failed;
    tinker_pack(&message.base, out); /* messages end to end are one message, whose lists are joined */
    strbuf_free(&values);
    strbuf_free(&offsets);
    return t;
}

void tinker_data_answer(const struct tinker_data *data, double loss, struct strbuf *out) {
    TinkerPublic__NamedNumber sum = TINKER_PUBLIC__NAMED_NUMBER__INIT, *metrics[] = {&sum};
    TinkerPublic__ForwardBackwardOutput message = TINKER_PUBLIC__FORWARD_BACKWARD_OUTPUT__INIT;
    sum.key = "loss:sum";
    sum.value = loss;
    message.loss_fn_output_type = "ArrayRecord";
    message.n_metrics = 1;
    message.metrics = metrics;
    tinker_pack(&message.base, out);
    for (int64_t t = 0; t < data->count;)
        t = add_record(data, t, out);
}
