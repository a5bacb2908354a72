/* Messages of forward_backward: what becomes of data, what is refused and where, and the answer of a pass. */
#include "serve/tinker_answer.h"

#include "support/test.h"

#include <math.h>

enum { VOCAB = 500, MOST = 8 };

/* A message with one datum, whose parts a test changes before it is packed. */
struct made {
    int32_t tokens[MOST];
    int64_t targets[MOST], shape[2];
    float values[3][MOST];
    int64_t crow[MOST], column[MOST];
    TinkerPublic__EncodedText text;
    TinkerPublic__SparseCsr csr;
    TinkerPublic__Chunk chunk, *chunks[2];
    TinkerPublic__Tensor tensors[4];
    TinkerPublic__NamedTensor named[5], *inputs[5];
    TinkerPublic__Datum datum, *data[3];
    TinkerPublic__LossConfigValue value;
    TinkerPublic__NamedLossConfigValue key, *keys[1];
    TinkerPublic__ForwardBackwardRequest request;
};

#define BYTES(array, count)                                                                                            \
    (ProtobufCBinaryData) {                                                                                            \
        .len = (count) * sizeof *(array), .data = (uint8_t *)(array)                                                   \
    }

/* Three tokens for `loss`, with everything that it takes. */
static void make(struct made *made, char *loss) {
    static char *const names[] = {"logprobs", "advantages", "weights", "target_tokens"};
    bool is_entropy = !strcmp(loss, "cross_entropy");
    *made = (struct made){.tokens = {7, 8, 9},
                          .targets = {8, 9, 10},
                          .values = {{-1, -2, -3}, {1, 0, -1}, {1, 0.5f, 0}},
                          .text = TINKER_PUBLIC__ENCODED_TEXT__INIT,
                          .csr = TINKER_PUBLIC__SPARSE_CSR__INIT,
                          .chunk = TINKER_PUBLIC__CHUNK__INIT,
                          .datum = TINKER_PUBLIC__DATUM__INIT,
                          .value = TINKER_PUBLIC__LOSS_CONFIG_VALUE__INIT,
                          .key = TINKER_PUBLIC__NAMED_LOSS_CONFIG_VALUE__INIT,
                          .request = TINKER_PUBLIC__FORWARD_BACKWARD_REQUEST__INIT};
    made->text.tokens = BYTES(made->tokens, 3);
    made->chunk.chunk_case = TINKER_PUBLIC__CHUNK__CHUNK_ENCODED_TEXT;
    made->chunk.encoded_text = &made->text;
    made->chunks[0] = made->chunks[1] = &made->chunk;
    for (int i = 0; i < 4; i++) {
        tinker_public__tensor__init(&made->tensors[i]);
        made->tensors[i].layout_case = TINKER_PUBLIC__TENSOR__LAYOUT_DENSE;
        made->tensors[i].dtype = i < 3 ? TINKER_PUBLIC__DTYPE__DTYPE_FLOAT32 : TINKER_PUBLIC__DTYPE__DTYPE_INT64;
        made->tensors[i].dense = i < 3 ? BYTES(made->values[i], 3) : BYTES(made->targets, 3);
        tinker_public__named_tensor__init(&made->named[i]);
        made->named[i].key = names[i];
        made->named[i].value = &made->tensors[i];
        if (i == 3 || (i == 2) == is_entropy)
            made->inputs[made->datum.n_loss_fn_inputs++] = &made->named[i];
    }
    made->datum.n_model_input = 1;
    made->datum.model_input = made->chunks;
    made->datum.loss_fn_inputs = made->inputs;
    made->data[0] = made->data[1] = made->data[2] = &made->datum;
    made->keys[0] = &made->key;
    made->key.value = &made->value;
    made->value.value_case = TINKER_PUBLIC__LOSS_CONFIG_VALUE__VALUE_NUMBER;
    made->request.model_id = "s:train:0";
    made->request.seq_id = 4;
    made->request.loss_fn = loss;
    made->request.n_data = 1;
    made->request.data = made->data;
    made->request.loss_fn_config_v2 = made->keys;
}

static struct tinker_data *read_made(const struct made *made) {
    struct strbuf bytes = STRBUF_INIT;
    struct error error;
    tinker_pack(&made->request.base, &bytes);
    unsigned char *exact = malloc(bytes.length); /* a sanitizer sees a read past its end */
    memcpy(exact, bytes.data, bytes.length);
    struct tinker_data *data = tinker_data_read(exact, bytes.length, VOCAB, &error);
    free(exact);
    strbuf_free(&bytes);
    assert_non_null(data);
    return data;
}

static void refused(const struct made *made, const char *text) {
    struct tinker_data *data = read_made(made);
    if (data->error.which != ERROR_ARGUMENT || strcmp(data->error.text, text) != 0)
        fail_msg("%s, not %s", data->error.which ? data->error.text : "nothing", text);
    tinker_data_free(data);
}

static void data_become_segments_of_a_batch(void **state) {
    struct gpt_batch batch;
    struct made made;
    (void)state;
    make(&made, "ppo");
    made.request.n_data = 3;
    made.key.key = "clip_high_threshold";
    made.value.number = 1.5;
    made.request.n_loss_fn_config_v2 = 1;
    struct tinker_data *data = read_made(&made);
    assert_int_equal(data->error.which, ERROR_NONE);
    assert_string_equal(data->model_id, "s:train:0");
    assert_int_equal(data->seq_id, 4);
    assert_string_equal(data->loss->name, "ppo");
    assert_true(data->options.clip_low == 0.8 && data->options.clip_high == 1.5);
    tinker_data_pack(data, 7); /* two texts of three rows, then one */
    assert_int_equal(data->pack_count, 2);
    assert_int_equal(gpt_batch_init(&batch, 1, 7), STATUS_OK);
    const struct train_samples first = {.first = 0}, second = {.first = 1};
    assert_int_equal(data->source.read(&data->source, &batch, &first), STATUS_OK);
    assert_int_equal(batch.segments, 2);
    assert_int_equal(batch.rows, 6);
    assert_int_equal(batch.tokens[4], 8);
    assert_int_equal(batch.labels[5], 10);
    assert_int_equal(batch.positions[3], 0);
    float values[] = {-0.5f, -0.25f, -0.125f};
    struct loss_segment segment = {.count = 3, .values = values};
    data->source.fill(&data->source, &batch, 1, &segment);
    assert_true(segment.sampled[2] == -3 && segment.advantages[2] == -1 && !segment.weights);
    assert_true(data->texts[1].logprobs[1] == -0.25f);
    assert_int_equal(data->source.read(&data->source, &batch, &second), STATUS_OK);
    assert_int_equal(batch.segments, 1);
    assert_int_equal(batch.sample[0], 2);
    gpt_batch_free(&batch);
    tinker_data_pack(data, 2);
    assert_string_equal(data->error.text, "data[0].model_input: 3 tokens, and this run takes 2");
    tinker_data_free(data);
}

/* Two columns of targets: the second one as CSR leaves out some cells, which are 0. */
static void columns_of_targets_are_texts(void **state) {
    TinkerPublic__ForwardBackwardOutput *answer;
    struct made made;
    struct strbuf out = STRBUF_INIT;
    (void)state;
    make(&made, "cross_entropy");
    for (int i = 2; i < 4; i++) {
        made.tensors[i].n_shape = 2;
        made.tensors[i].shape = made.shape;
    }
    made.shape[0] = 3;
    made.shape[1] = 2;
    made.tensors[3].layout_case = TINKER_PUBLIC__TENSOR__LAYOUT_SPARSE_CSR;
    made.tensors[3].sparse_csr = &made.csr;
    const int64_t crow[] = {0, 1, 1, 3}, column[] = {1, 0, 1};
    memcpy(made.crow, crow, sizeof crow);
    memcpy(made.column, column, sizeof column);
    made.csr.values = BYTES(made.targets, 3);
    made.csr.crow_indices = BYTES(made.crow, 4);
    made.csr.col_indices = BYTES(made.column, 3);
    made.tensors[2].dense = BYTES(made.values[1], 6);
    struct tinker_data *data = read_made(&made);
    if (data->error.which)
        fail_msg("%s", data->error.text);
    assert_int_equal(data->count, 2);
    const int32_t expected[2][3] = {{0, 0, 9}, {8, 0, 10}};
    for (int c = 0; c < 2; c++)
        for (int i = 0; i < 3; i++) {
            assert_int_equal(data->texts[c].targets[i], expected[c][i]);
            data->texts[c].logprobs[i] = (float)(-10 * c - i);
        }
    assert_true(data->texts[1].values[2][0] == 0 && data->texts[0].values[2][1] == -1);
    tinker_data_answer(data, 2.5, &out);
    answer = tinker_public__forward_backward_output__unpack(NULL, out.length, (uint8_t *)out.data);
    assert_non_null(answer);
    assert_string_equal(answer->metrics[0]->key, "loss:sum");
    assert_true(answer->metrics[0]->value == 2.5);
    const TinkerPublic__BatchedTensor *tensor = answer->loss_fn_outputs[0]->fields[0]->value;
    assert_int_equal(tensor->n_trailing_shape, 1);
    assert_int_equal(tensor->data.len, 6 * sizeof(float));
    assert_true(((float *)tensor->data.data)[3] == -11);
    assert_int_equal(((int64_t *)tensor->offsets.data)[1], 24);
    tinker_public__forward_backward_output__free_unpacked(answer, NULL);
    strbuf_free(&out);
    made.column[2] = 2;
    refused(&made, "data[0].target_tokens.col_indices[2]: 2 is outside 2 columns");
    made.crow[1] = 4;
    refused(&made, "data[0].target_tokens.crow_indices[1]: 4 is out of order");
    made.csr.col_indices.len = 12;
    made.crow[1] = 1;
    refused(&made, "data[0].target_tokens.col_indices: length 1, expected 3");
    made.shape[1] = INT64_MAX;
    refused(&made, "data[0].target_tokens: 9223372036854775807 columns, expected 1 to 128");
    tinker_data_free(data);
}

static void faults_are_refused_with_their_place(void **state) {
    struct made made;
    (void)state;
    make(&made, "cross_entropy");
    made.targets[1] = VOCAB;
    refused(&made, "data[0].target_tokens[1]: 500 is outside the vocabulary of 500");
    made.targets[1] = INT64_MIN;
    refused(&made, "data[0].target_tokens[1]: -9223372036854775808 is outside the vocabulary of 500");
    make(&made, "cross_entropy");
    made.tensors[2].dense.len = 8;
    refused(&made, "data[0].weights: length 2, expected 3");
    made.tensors[2].dense.len = 7;
    refused(&made, "data[0].weights: 7 bytes are no numbers of 4 bytes");
    made.tensors[2].dtype = 9;
    refused(&made, "data[0].weights: dtype 9, expected float32");
    make(&made, "cross_entropy");
    made.values[2][2] = INFINITY;
    refused(&made, "data[0].weights[2]: inf is not finite");
    make(&made, "cross_entropy");
    made.tensors[3].dtype = TINKER_PUBLIC__DTYPE__DTYPE_FLOAT32;
    refused(&made, "data[0].target_tokens: dtype 1, expected int64 or int32");
    made.datum.n_loss_fn_inputs = 1;
    refused(&made, "data[0].target_tokens: cross_entropy needs it");
    made.named[2].key = "mask";
    refused(&made, "data[0].loss_fn_inputs: cross_entropy takes no \"mask\"");
    make(&made, "cross_entropy");
    made.tokens[2] = -1;
    refused(&made, "data[0].model_input[2]: -1 is outside the vocabulary of 500");
    made.text.tokens.len = 3;
    refused(&made, "data[0].model_input[0]: 3 bytes are no int32 tokens");
    made.datum.n_model_input = 0;
    refused(&made, "data[0].model_input: expected at least one token");
    make(&made, "cross_entropy");
    made.chunk.chunk_case = TINKER_PUBLIC__CHUNK__CHUNK_IMAGE;
    TinkerPublic__Chunk__Other other = TINKER_PUBLIC__CHUNK__OTHER__INIT;
    made.chunk.image = &other;
    refused(&made, "data[0].model_input[0]: expected encoded_text, not image");
    make(&made, "gspo");
    refused(&made, "loss_fn: \"gspo\" is none of cross_entropy, importance_sampling, ppo, cispo, dro");
    make(&made, "dro");
    refused(&made, "loss_fn_config.beta: dro needs it");
    made.request.n_loss_fn_config_v2 = 1;
    made.key.key = "gamma";
    refused(&made, "loss_fn_config.gamma: dro has no such key");
    made.key.key = "beta";
    made.value.value_case = TINKER_PUBLIC__LOSS_CONFIG_VALUE__VALUE_TEXT;
    made.value.text = "much";
    refused(&made, "loss_fn_config.beta: expected a number from 0 to 1e6");
    make(&made, "ppo");
    made.inputs[0] = &made.named[2];
    refused(&made, "data[0].loss_fn_inputs: ppo takes no \"weights\"");
}

/* Every beginning of a message, and every message with one byte changed, is read or refused. */
static void no_bytes_do_harm(void **state) {
    struct strbuf bytes = STRBUF_INIT;
    struct error error;
    struct made made;
    (void)state;
    make(&made, "importance_sampling");
    made.request.n_data = 2;
    tinker_pack(&made.request.base, &bytes);
    for (size_t i = 0; i < bytes.length; i++)
        for (unsigned flip = 0; flip < 256; flip += 51) {
            unsigned char *copy = malloc(bytes.length);
            memcpy(copy, bytes.data, bytes.length);
            copy[i] ^= (unsigned char)flip;
            struct tinker_data *data = tinker_data_read(copy, flip ? bytes.length : i, VOCAB, &error);
            if (data && !data->error.which)
                tinker_data_pack(data, 7);
            tinker_data_free(data);
            free(copy);
        }
    strbuf_free(&bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_become_segments_of_a_batch),
        cmocka_unit_test(columns_of_targets_are_texts),
        cmocka_unit_test(faults_are_refused_with_their_place),
        cmocka_unit_test(no_bytes_do_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
