/* A vocabulary cut over ranks gives what the whole gives: embedding to the bit, loss and gradients to rounding. */
#include "kernels/ops.h"

#include "support/test.h"

#include <math.h>

enum { N = 7, C = 24, V = 53, STRIDE = 64, RANKS = 4, T = 5 };

struct scene {
    struct device *device;
    struct exec exec;
    const struct ops *ops;
    void *memory; /* on the device, of the test's struct */
    size_t bytes;
};

/* Opens the device under test, with memory for `bytes` of a test, and a workspace of as many. */
static struct scene open_scene(size_t bytes) {
    struct scene scene = {.bytes = bytes};
    test_ok(device_open(test_device(), DEVICE_FIRST, 2, &scene.device));
    test_ok(stream_open(scene.device, &scene.exec.stream));
    test_ok(device_alloc(scene.device, bytes, &scene.memory));
    test_ok(device_alloc(scene.device, bytes, &scene.exec.workspace));
    scene.exec.workspace_bytes = bytes;
    scene.ops = ops_for(scene.device);
    return scene;
}

static void send(const struct scene *scene, const void *memory) {
    test_ok(stream_copy_to_device(scene->exec.stream, scene->memory, memory, scene->bytes));
    test_ok(stream_wait(scene->exec.stream));
}

static void fetch(const struct scene *scene, void *memory) {
    test_ok(stream_copy_to_host(scene->exec.stream, memory, scene->memory, scene->bytes));
    test_ok(stream_wait(scene->exec.stream));
}

static void close_scene(struct scene *scene) {
    device_free(scene->device, scene->memory);
    device_free(scene->device, scene->exec.workspace);
    stream_close(scene->exec.stream);
    device_close(scene->device);
}

static float number(uint32_t i, uint32_t kind) {
    return (float)(rng_unit(philox(3, i, kind, 0, 0).word[0]) * 8 - 4);
}

static int64_t start_of(int rank) {
    return (int64_t)V * rank / RANKS;
}

struct loss_memory {
    float whole[N * STRIDE], cut[RANKS][N * STRIDE], loss[N], joined_loss[N], weight[N];
    int32_t labels[N], greedy[N], joined_greedy[N];
    struct cross_entropy_part parts[RANKS][N], joined[N];
};

static void fill_loss(struct loss_memory *m) {
    for (uint32_t i = 0; i < N * STRIDE; i++)
        m->whole[i] = number(i, 0);
    for (int i = 0; i < N; i++) {
        m->labels[i] = i < N - 1 ? i * 8 : V - 1; /* in each rank's columns, first and last among them */
        m->weight[i] = i == 3 ? 0 : 0.1f + (float)i;
    }
}

static void cut_logits(struct loss_memory *m) {
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < N; i++)
            memcpy(m->cut[r] + i * STRIDE, m->whole + i * STRIDE + start_of(r),
                   (size_t)(start_of(r + 1) - start_of(r)) * sizeof(float));
}

/* The arguments of a rank's calls. */
static struct cross_entropy rank_call(struct loss_memory *there, int r, struct cross_entropy_part *part) {
    return (struct cross_entropy){.rows = N,
                                  .vocab = start_of(r + 1) - start_of(r),
                                  .stride = STRIDE,
                                  .type = DTYPE_F32,
                                  .logits = there->cut[r],
                                  .labels = there->labels,
                                  .loss = there->joined_loss,
                                  .dloss = there->weight,
                                  .first_label = start_of(r),
                                  .part = part};
}

static void compare_loss(const struct loss_memory *m) {
    for (int i = 0; i < N; i++)
        assert_true(fabsf(m->joined_loss[i] - m->loss[i]) <= 1e-6f * fabsf(m->loss[i]));
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < N * STRIDE; i++) {
            int64_t j = i % STRIDE, first = start_of(r);
            float expected = j < start_of(r + 1) - first ? m->whole[i + first] : 0;
            assert_true(fabsf(m->cut[r][i] - expected) <= 2e-6f * m->weight[i / STRIDE]);
        }
}

/* Rows whose largest logit stands in several places, or in one: alone, in the label's part, in a part before it or
 * after it. */
static void fill_ties(struct loss_memory *m) {
    static const int32_t others[N] = {-1, 9, 3, 30, -1, V - 1, 0};
    for (int i = 0; i < N; i++) {
        m->labels[i] = i == 4 ? 20 : 12;
        m->whole[i * STRIDE + 12] = 50;
        if (others[i] >= 0)
            m->whole[i * STRIDE + others[i]] = 50;
    }
}

static void check_ties(const struct loss_memory *m) {
    static const int32_t is_greedy[N] = {1, 0, 0, 1, 0, 1, 0};
    for (int i = 0; i < N; i++) {
        assert_int_equal(m->greedy[i], is_greedy[i]);
        assert_int_equal(m->joined_greedy[i], is_greedy[i]);
    }
}

static void the_lowest_of_equal_ids_is_greedy(void **state) {
    static struct loss_memory memory;
    struct scene scene = open_scene(sizeof memory);
    struct loss_memory *there = scene.memory;
    (void)state;
    fill_loss(&memory);
    fill_ties(&memory);
    cut_logits(&memory);
    send(&scene, &memory);
    struct cross_entropy a = rank_call(there, 0, NULL);
    a.vocab = V;
    a.logits = there->whole;
    a.loss = there->loss;
    a.is_greedy = there->greedy;
    test_ok(scene.ops->cross_entropy_forward(&scene.exec, &a));
    for (int r = 0; r < RANKS; r++) {
        struct cross_entropy p = rank_call(there, r, there->parts[r]);
        p.is_greedy = there->joined_greedy;
        test_ok(scene.ops->cross_entropy_part(&scene.exec, &p));
    }
    struct cross_entropy p = rank_call(there, 0, there->joined);
    p.is_greedy = there->joined_greedy;
    test_ok(scene.ops->cross_entropy_join(&scene.exec, &(const struct cross_entropy_join){p, RANKS, there->parts[0]}));
    fetch(&scene, &memory);
    check_ties(&memory);
    close_scene(&scene);
}

static void parts_of_a_loss_join_to_the_whole(void **state) {
    static struct loss_memory memory;
    struct scene scene = open_scene(sizeof memory);
    struct loss_memory *there = scene.memory;
    (void)state;
    fill_loss(&memory);
    cut_logits(&memory);
    send(&scene, &memory);
    struct cross_entropy a = {.rows = N,
                              .vocab = V,
                              .stride = STRIDE,
                              .type = DTYPE_F32,
                              .logits = there->whole,
                              .labels = there->labels,
                              .loss = there->loss,
                              .dloss = there->weight};
    test_ok(scene.ops->cross_entropy_fused(&scene.exec, &a));
    for (int r = 0; r < RANKS; r++) {
        struct cross_entropy p = rank_call(there, r, there->parts[r]);
        test_ok(scene.ops->cross_entropy_part(&scene.exec, &p));
    }
    for (int r = 0; r < RANKS; r++) {
        struct cross_entropy p = rank_call(there, r, there->joined);
        test_ok(
            scene.ops->cross_entropy_join(&scene.exec, &(const struct cross_entropy_join){p, RANKS, there->parts[0]}));
        test_ok(scene.ops->cross_entropy_part_backward(&scene.exec, &p));
    }
    fetch(&scene, &memory);
    compare_loss(&memory);
    close_scene(&scene);
}

struct embedding_memory {
    float tokens[V * C], positions[T * C], dx[N * C], x[N * C], part[RANKS][N * C];
    float dtokens[V * C], dpositions[T * C], dpart[RANKS][V * C], dposition_part[RANKS][T * C];
    int32_t ids[N], at[N];
};

static void fill_embedding(struct embedding_memory *m) {
    for (uint32_t i = 0; i < V * C; i++)
        m->tokens[i] = number(i, 1);
    for (uint32_t i = 0; i < T * C; i++)
        m->positions[i] = number(i, 2);
    for (uint32_t i = 0; i < N * C; i++)
        m->dx[i] = number(i, 3);
    for (int i = 0; i < N; i++) {
        m->ids[i] = i == 5 ? 0 : V - 1 - i * 8; /* one occurs twice in a rank */
        m->at[i] = i % T;
    }
}

static void compare_embedding(const struct embedding_memory *m) {
    for (int r = 0; r < RANKS; r++) {
        assert_memory_equal(m->dpart[r], m->dtokens + start_of(r) * C,
                            (size_t)((start_of(r + 1) - start_of(r)) * C) * sizeof(float));
        assert_memory_equal(m->dposition_part[r], m->dpositions, sizeof m->dpositions);
    }
    for (int i = 0; i < N * C; i++) {
        float sum = 0;
        for (int r = 0; r < RANKS; r++)
            sum += m->part[r][i];
        assert_memory_equal(&sum, &m->x[i], sizeof sum);
    }
}

static void parts_of_an_embedding_add_up_to_the_bit(void **state) {
    static struct embedding_memory memory;
    struct scene scene = open_scene(sizeof memory);
    struct embedding_memory *there = scene.memory;
    (void)state;
    fill_embedding(&memory);
    send(&scene, &memory);
    struct embedding a = {.rows = N,
                          .cols = C,
                          .type = DTYPE_F32,
                          .tokens = there->ids,
                          .positions = there->at,
                          .token_table = matrix_plain(DTYPE_F32, there->tokens, start_of(RANKS), C),
                          .position_table = there->positions,
                          .x = there->x,
                          .dx = there->dx,
                          .dtoken_table = there->dtokens,
                          .dposition_table = there->dpositions};
    test_ok(scene.ops->embedding_forward(&scene.exec, &a));
    assert_true(scene.ops->embedding_backward_workspace(scene.device, &a) <= scene.bytes);
    test_ok(scene.ops->embedding_backward(&scene.exec, &a));
    for (int r = 0; r < RANKS; r++) {
        a.first_token = start_of(r);
        a.token_count = start_of(r + 1) - a.first_token;
        a.token_table.data = there->tokens + a.first_token * C;
        a.x = there->part[r];
        a.dtoken_table = there->dpart[r];
        a.dposition_table = there->dposition_part[r];
        test_ok(scene.ops->embedding_forward(&scene.exec, &a));
        test_ok(scene.ops->embedding_backward(&scene.exec, &a));
    }
    fetch(&scene, &memory);
    compare_embedding(&memory);
    close_scene(&scene);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_a_loss_join_to_the_whole),
        cmocka_unit_test(the_lowest_of_equal_ids_is_greedy),
        cmocka_unit_test(parts_of_an_embedding_add_up_to_the_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
