/* Draws against golden/draws.json, which tools/golden/draw_vectors.py makes by the definition: every option, and
 * options together. A vector is one call: a row for each draw, and one that draws nothing. */
#include "kernels/ops.h"
#include "support/test.h"

#include <jansson.h>
#include <math.h>

static const char *const levels[] = {"v2", "v3", "v4", "v4bf16", "v4amx"};
enum { DRAWS = 6, MOST_VOCAB = 1003, MOST_CHANGES = MOST_VOCAB / 3 };

struct scene {
    struct device *device;
    struct stream *stream;
    const struct ops *ops;
};

static float number(json_t *vector, const char *key) {
    return (float)json_number_value(json_object_get(vector, key));
}

static int32_t whole(json_t *vector, const char *key) {
    return (int32_t)json_integer_value(json_object_get(vector, key));
}

static float logit_at(json_t *vector, size_t index, uint32_t id) {
    uint32_t word = philox(11, id, (uint32_t)index, 0, 0).word[0];
    return 2 - (float)(word % (uint32_t)whole(vector, "steps")) / 32;
}

/* The vector's rows: one for each of its draws, whose changes stand backwards in every other one. */
static void fill_rows(json_t *vector, struct sample_row *rows) {
    for (int i = 0; i < DRAWS; i++)
        rows[i] = (struct sample_row){.temperature = number(vector, "temperature"),
                                      .top_p = number(vector, "top_p"),
                                      .min_p = number(vector, "min_p"),
                                      .top_k = whole(vector, "top_k"),
                                      .repetition_penalty = number(vector, "repetition_penalty"),
                                      .presence_penalty = number(vector, "presence_penalty"),
                                      .frequency_penalty = number(vector, "frequency_penalty"),
                                      .seed = strtoull(json_string_value(json_object_get(vector, "seed")), NULL, 10),
                                      .choice = (uint32_t)whole(vector, "choice"),
                                      .position = (uint32_t)i,
                                      .first_change = 3 + i % 2 * MOST_CHANGES,
                                      .change_count = (int32_t)json_array_size(json_object_get(vector, "changes")),
                                      .top_count = whole(vector, "top_count"),
                                      .draws = true};
    rows[DRAWS] = rows[0];
    rows[DRAWS].draws = false;
}

static void fill_changes(json_t *vector, struct sample_change *changes) {
    json_t *list = json_object_get(vector, "changes");
    size_t count = json_array_size(list);
    for (size_t i = 0; i < count; i++) {
        json_t *change = json_array_get(list, i), *bias = json_array_get(change, 2);
        changes[3 + i] = (struct sample_change){
            .id = (int32_t)json_integer_value(json_array_get(change, 0)),
            .count = (int32_t)json_integer_value(json_array_get(change, 1)),
            .bias = json_is_null(bias) ? -INFINITY : (float)json_number_value(bias),
            .is_seen = json_is_true(json_array_get(change, 3)),
        };
        changes[3 + MOST_CHANGES + count - 1 - i] = changes[3 + i];
    }
}

enum { ROWS = DRAWS + 1 };
struct results {
    int32_t token[ROWS], top_token[ROWS * SAMPLE_MAX_TOP];
    float logprob[ROWS], top_logprob[ROWS * SAMPLE_MAX_TOP];
};
/* The arguments and results of a call, in device memory. */
struct memory {
    float logits[ROWS * MOST_VOCAB];
    struct sample_row rows[ROWS];
    struct sample_change changes[3 + 2 * MOST_CHANGES];
    struct results results;
};

static void call(const struct scene *scene, struct memory *memory, int64_t vocab, struct results *results) {
    void *block, *workspace;
    test_ok(device_alloc(scene->device, sizeof *memory, &block));
    struct memory *there = block;
    struct sample a = {.rows = ROWS,
                       .vocab = vocab,
                       .stride = vocab,
                       .type = DTYPE_F32,
                       .logits = there->logits,
                       .row = there->rows,
                       .changes = there->changes,
                       .token = there->results.token,
                       .logprob = there->results.logprob,
                       .top_token = there->results.top_token,
                       .top_logprob = there->results.top_logprob};
    size_t bytes = scene->ops->sample_workspace(scene->device, &a);
    test_ok(device_alloc(scene->device, bytes, &workspace));
    struct exec exec = {.stream = scene->stream, .workspace = workspace, .workspace_bytes = bytes};
    test_ok(stream_copy_to_device(scene->stream, block, memory, sizeof *memory));
    test_ok(scene->ops->sample(&exec, &a));
    test_ok(stream_copy_to_host(scene->stream, results, &there->results, sizeof *results));
    test_ok(stream_wait(scene->stream));
    device_free(scene->device, block);
    device_free(scene->device, workspace);
}

static bool is_near(float got, json_t *want) {
    return fabs((double)got - json_number_value(want)) < 4e-6;
}

static void compare(json_t *vector, size_t index, const struct results *got) {
    json_t *tokens = json_object_get(vector, "tokens"), *logprobs = json_object_get(vector, "logprobs"),
           *top = json_object_get(vector, "top");
    for (size_t i = 0; i < DRAWS; i++) {
        if (got->token[i] != json_integer_value(json_array_get(tokens, i)))
            fail_msg("vector %zu, draw %zu: %d", index, i, got->token[i]);
        assert_true(is_near(got->logprob[i], json_array_get(logprobs, i)));
    }
    assert_int_equal(got->token[DRAWS], -1);
    assert_true(got->logprob[DRAWS] == 0);
    for (int i = 0; i < ROWS; i++)
        for (size_t j = 0; j < SAMPLE_MAX_TOP; j++) {
            json_t *want = json_array_get(top, j);
            int32_t id = got->top_token[i * SAMPLE_MAX_TOP + (int)j];
            float logprob = got->top_logprob[i * SAMPLE_MAX_TOP + (int)j];
            assert_int_equal(id, want ? json_integer_value(json_array_get(want, 0)) : -1);
            assert_true(want ? is_near(logprob, json_array_get(want, 1)) : logprob == 0);
        }
}

static void check_vector(const struct scene *scene, json_t *vector, size_t index) {
    static struct memory memory;
    struct results results;
    int32_t vocab = whole(vector, "vocab");
    memset(&memory, 0xff, sizeof memory);
    for (int32_t id = 0; id < ROWS * vocab; id++)
        memory.logits[id] = logit_at(vector, index, (uint32_t)(id % vocab));
    fill_rows(vector, memory.rows);
    fill_changes(vector, memory.changes);
    call(scene, &memory, vocab, &results);
    compare(vector, index, &results);
}

static void draws_are_the_recorded_ones(void **state) {
    (void)state;
    struct scene scene;
    json_t *vectors = json_load_file(TEST_DATA "/kernels/golden/draws.json", 0, NULL);
    assert_true(json_array_size(vectors) > 100);
    test_ok(device_open(test_device(), DEVICE_FIRST, 2, &scene.device));
    test_ok(stream_open(scene.device, &scene.stream));
    for (int level = 0; level < 5; level++) {
        scene.ops = level < 4 ? ops_for_level(scene.device, levels[level]) : ops_for(scene.device);
        for (size_t i = 0; scene.ops && i < json_array_size(vectors); i++)
            check_vector(&scene, json_array_get(vectors, i), i);
    }
    stream_close(scene.stream);
    device_close(scene.device);
    json_decref(vectors);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(draws_are_the_recorded_ones)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
