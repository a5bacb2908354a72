/* Whatever allocation fails while a model is opened, at whichever rank: that rank says so, the others are released, and
 * nothing is left. Ranks are threads. */
#include "pretrained/pretrained.h"

#include "ckpt/gguf_write.h"

#include "support/failing.h"
#include "support/test.h"

enum { RANKS = 2, DEADLINE = 60 /* seconds */ };

static int open_whole(struct comm *world, void *context) {
    struct pretrained model;
    int status = comm_agree(world, pretrained_open(context, world, &model));
    pretrained_close(&model);
    return status;
}

static int open_together(void *context) {
    test_ends_within(DEADLINE);
    return comm_local_run(RANKS, open_whole, context);
}

static int open_config(void *context) {
    struct pretrained model;
    int status = pretrained_open_config(context, &model);
    pretrained_close(&model);
    return status;
}

static int read_facts(void *context) {
    struct facts facts = FACTS_INIT;
    int status = pretrained_facts(context, &facts);
    facts_free(&facts);
    return status;
}

static int open_tokenizer(void *context) {
    struct tokenizer *tokenizer = NULL;
    int status = pretrained_open_tokenizer(context, &tokenizer);
    tokenizer_close(tokenizer);
    return status;
}

static void directories_open_and_close(void **state) {
    static const char *const names[] = {"fp32", "sharded", "untied"};
    char path[300];
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, TEST_DATA "/ckpt/golden/%s", names[i]);
        assert_int_equal(failing_try_all(open_config, path, 100), 0);
        assert_int_equal(failing_try_all(open_together, path, 200), 0);
        assert_int_equal(failing_try_all(read_facts, path, 100), 0);
    }
}

/* ---- a GGUF file: a llama of one layer, in Q8_0 ---- */

enum { VOCABULARY = 8, WIDTH = 32, KEYS = 6 };

static int make_rows(void *context, size_t tensor, int64_t row, int64_t rows, float *values) {
    (void)context;
    for (int64_t i = 0; i < rows * WIDTH; i++)
        values[i] = (float)((int64_t)tensor + row + i % 7);
    return STATUS_OK;
}

static void put_tokenizer(struct gguf_output *output) {
    struct gguf_text tokens[VOCABULARY];
    int32_t kinds[VOCABULARY];
    for (int i = 0; i < VOCABULARY; i++) {
        tokens[i] = (struct gguf_text){&"abcdefgh"[i], 1};
        kinds[i] = i ? 1 : 3;
    }
    gguf_put_text(output, "tokenizer.ggml.model", "gpt2");
    gguf_put_text(output, "tokenizer.ggml.pre", "gpt-2");
    gguf_put_texts(output, "tokenizer.ggml.tokens", tokens, VOCABULARY);
    gguf_put_integers(output, "tokenizer.ggml.token_type", kinds, VOCABULARY);
    gguf_put_texts(output, "tokenizer.ggml.merges", tokens, 0);
    gguf_put_integer(output, "tokenizer.ggml.eos_token_id", 0);
}

static void write_file_of_gguf(const char *path) {
    static const char *const keys[KEYS] = {"block_count",    "embedding_length",     "feed_forward_length",
                                           "context_length", "attention.head_count", "rope.dimension_count"};
    static const uint32_t values[KEYS] = {1, WIDTH, WIDTH, 16, 2, WIDTH / 2};
    static const char *const matrices[] = {"attn_q",   "attn_k", "attn_v",  "attn_output",
                                           "ffn_gate", "ffn_up", "ffn_down"};
    static const char *const norms[] = {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"};
    struct gguf_output *output;
    char name[64];
    test_ok(gguf_output_new(&output));
    gguf_put_text(output, "general.architecture", "llama");
    for (int i = 0; i < KEYS; i++) {
        snprintf(name, sizeof name, "llama.%s", keys[i]);
        gguf_put_integer(output, name, values[i]);
    }
    gguf_put_number(output, "llama.attention.layer_norm_rms_epsilon", 1e-5F);
    put_tokenizer(output);
    gguf_output_tensor(output, "token_embd.weight", GGUF_WRITE_Q8_0, 2, (int64_t[]){VOCABULARY, WIDTH});
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
        snprintf(name, sizeof name, "blk.0.%s.weight", matrices[i]);
        gguf_output_tensor(output, name, GGUF_WRITE_Q8_0, 2, (int64_t[]){WIDTH, WIDTH});
    }
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
        gguf_output_tensor(output, norms[i], GGUF_WRITE_F32, 1, (int64_t[]){WIDTH});
    test_ok(gguf_output_write(output, path, make_rows, NULL));
    gguf_output_free(output);
}

static void files_open_and_close(void **state) {
    char *directory = test_directory(), path[300];
    struct pretrained model;
    (void)state;
    snprintf(path, sizeof path, "%s/m.gguf", directory);
    write_file_of_gguf(path);
    test_ok(pretrained_open_config(path, &model));
    assert_string_equal(model.weights, "Q8_0");
    assert_int_equal(model.dtype, DTYPE_BF16); /* of the computation; the tensors are fp32 */
    assert_int_equal(model.ends.count, 1);
    assert_int_equal(model.ends.eos[0], 0);
    assert_int_equal(model.config.vocab_size, VOCABULARY);
    pretrained_close(&model);
    assert_true(pretrained_has_tokenizer(path));
    assert_int_equal(failing_try_all(open_config, path, 100), 0);
    assert_int_equal(failing_try_all(open_together, path, 200), 0);
    assert_int_equal(failing_try_all(read_facts, path, 100), 0);
    assert_int_equal(failing_try_all(open_tokenizer, path, 200), 0);
    free(directory);
}

static void write_file(const char *directory, const char *name, const char *text) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    test_ok(file_write_atomic(path, text, strlen(text)));
}

static void what_ends_texts_is_read_from_two_files(void **state) {
    char *directory = test_directory();
    struct pretrained model;
    (void)state;
    write_file(directory, "config.json", "{\"model_type\":\"llama\",\"eos_token_id\":7}");
    write_file(directory, "generation_config.json", "{\"eos_token_id\":[9,7]}");
    test_ok(pretrained_open_config(directory, &model));
    assert_int_equal(model.ends.count, 2);
    assert_int_equal(model.ends.eos[0], 7);
    assert_int_equal(model.ends.eos[1], 9);
    pretrained_close(&model);
    assert_int_equal(failing_try_all(open_config, directory, 100), 0);
    write_file(directory, "generation_config.json", "[]");
    test_fails(pretrained_open_config(directory, &model), STATUS_INVALID, "generation_config.json: a JSON object was");
    pretrained_close(&model);
    free(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_ends_texts_is_read_from_two_files),
        cmocka_unit_test(directories_open_and_close),
        cmocka_unit_test(files_open_and_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
