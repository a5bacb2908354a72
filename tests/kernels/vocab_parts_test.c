/* A vocabulary cut over ranks gives what the whole gives: embedding to the bit, loss and gradients to rounding. */
#include "kernels/ops.h"

#include "support/test.h"

#include <math.h>

enum { N = 7, C = 24, V = 53, STRIDE = 64, RANKS = 4, T = 5 };

struct scene {
    struct device *device;
    struct exec exec;
    const struct ops *ops;
};

static struct scene open_scene(void) {
    struct scene scene = {0};
    test_ok(device_open("cpu", DEVICE_FIRST, 2, &scene.device));
    test_ok(stream_open(scene.device, &scene.exec.stream));
    scene.ops = ops_for(scene.device);
    return scene;
}

static void close_scene(struct scene *scene) {
    stream_close(scene->exec.stream);
    device_close(scene->device);
}

static float number(uint32_t i, uint32_t kind) {
    return (float)(rng_unit(philox(3, i, kind, 0, 0).word[0]) * 8 - 4);
}

static int64_t start_of(int rank) {
    return (int64_t)V * rank / RANKS;
}

static void parts_of_a_loss_join_to_the_whole(void **state) {
    (void)state;
    struct scene scene = open_scene();
    static float logits[N * STRIDE], whole[N * STRIDE], cut[RANKS][N * STRIDE];
    float loss[N], joined_loss[N], weight[N];
    int32_t labels[N];
    struct cross_entropy_part parts[RANKS][N], joined[N];
    for (uint32_t i = 0; i < N * STRIDE; i++)
        logits[i] = number(i, 0);
    for (int i = 0; i < N; i++) {
        labels[i] = i * 8; /* in each rank's columns, first and last among them */
        weight[i] = i == 3 ? 0 : 0.1f + (float)i;
    }
    labels[N - 1] = V - 1;
    memcpy(whole, logits, sizeof whole);
    struct cross_entropy a = {.rows = N,
                              .vocab = V,
                              .stride = STRIDE,
                              .type = DTYPE_F32,
                              .logits = whole,
                              .labels = labels,
                              .loss = loss,
                              .dloss = weight};
    test_ok(scene.ops->cross_entropy_fused(&scene.exec, &a));
    for (int r = 0; r < RANKS; r++) {
        int64_t first = start_of(r), vocab = start_of(r + 1) - first;
        for (int i = 0; i < N; i++)
            memcpy(cut[r] + i * STRIDE, logits + i * STRIDE + first, (size_t)vocab * sizeof(float));
        struct cross_entropy p = {.rows = N,
                                  .vocab = vocab,
                                  .stride = STRIDE,
                                  .type = DTYPE_F32,
                                  .logits = cut[r],
                                  .labels = labels,
                                  .first_label = first,
                                  .part = parts[r]};
        test_ok(scene.ops->cross_entropy_part(&scene.exec, &p));
    }
    for (int r = 0; r < RANKS; r++) {
        int64_t first = start_of(r), vocab = start_of(r + 1) - first;
        struct cross_entropy p = {.rows = N,
                                  .vocab = vocab,
                                  .stride = STRIDE,
                                  .type = DTYPE_F32,
                                  .logits = cut[r],
                                  .labels = labels,
                                  .loss = joined_loss,
                                  .dloss = weight,
                                  .first_label = first,
                                  .part = joined};
        test_ok(scene.ops->cross_entropy_join(&scene.exec, &p, RANKS, parts[0]));
        test_ok(scene.ops->cross_entropy_part_backward(&scene.exec, &p));
        for (int i = 0; i < N; i++) {
            assert_true(fabsf(joined_loss[i] - loss[i]) <= 1e-6f * fabsf(loss[i]));
            for (int64_t j = 0; j < STRIDE; j++) {
                float expected = j < vocab ? whole[i * STRIDE + first + j] : 0;
                assert_true(fabsf(cut[r][i * STRIDE + j] - expected) <= 2e-6f * weight[i]);
            }
        }
    }
    close_scene(&scene);
}

static void parts_of_an_embedding_add_up_to_the_bit(void **state) {
    (void)state;
    struct scene scene = open_scene();
    static float tokens[V * C], positions[T * C], x[N * C], part[N * C], sum[N * C], dx[N * C];
    static float dtokens[V * C], dpositions[T * C], dpart[V * C], dposition_part[T * C];
    int32_t ids[N], at[N];
    for (uint32_t i = 0; i < V * C; i++)
        tokens[i] = number(i, 1);
    for (uint32_t i = 0; i < T * C; i++)
        positions[i] = number(i, 2);
    for (uint32_t i = 0; i < N * C; i++)
        dx[i] = number(i, 3);
    for (int i = 0; i < N; i++) {
        ids[i] = i == 5 ? 0 : V - 1 - i * 8; /* one occurs twice in a rank */
        at[i] = i % T;
    }
    struct embedding a = {.rows = N,
                          .cols = C,
                          .type = DTYPE_F32,
                          .tokens = ids,
                          .positions = at,
                          .token_table = tokens,
                          .position_table = positions,
                          .x = x,
                          .dx = dx,
                          .dtoken_table = dtokens,
                          .dposition_table = dpositions};
    test_ok(scene.ops->embedding_forward(&scene.exec, &a));
    test_ok(scene.ops->embedding_backward(&scene.exec, &a));
    for (int r = 0; r < RANKS; r++) {
        a.first_token = start_of(r);
        a.token_count = start_of(r + 1) - a.first_token;
        a.token_table = tokens + a.first_token * C;
        a.x = part;
        memset(dpart, 0, sizeof dpart);
        memset(dposition_part, 0, sizeof dposition_part);
        a.dtoken_table = dpart;
        a.dposition_table = dposition_part;
        test_ok(scene.ops->embedding_forward(&scene.exec, &a));
        test_ok(scene.ops->embedding_backward(&scene.exec, &a));
        for (int i = 0; i < N * C; i++)
            sum[i] += part[i];
        assert_memory_equal(dpart, dtokens + a.first_token * C, (size_t)(a.token_count * C) * sizeof(float));
        assert_memory_equal(dposition_part, dpositions, sizeof dpositions);
    }
    assert_memory_equal(sum, x, sizeof x);
    close_scene(&scene);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_a_loss_join_to_the_whole),
        cmocka_unit_test(parts_of_an_embedding_add_up_to_the_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
