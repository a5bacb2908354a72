/* Sampling against a naive sampler in fp64 that sorts, and against the distribution that it should have. */
#include "kernels/ops.h"

#include "support/test.h"

#include <math.h>

static const char *const levels[] = {"v2", "v3", "v4", "v4bf16", "v4amx"};

struct scene {
    struct device *device;
    struct stream *stream;
    const struct ops *ops;
};

/* Calls `check` for each level with a device of two threads; once on a device without levels. */
static void every_level(void (*check)(const struct scene *scene)) {
    struct scene scene;
    test_ok(device_open(test_device(), DEVICE_FIRST, 2, &scene.device));
    test_ok(stream_open(scene.device, &scene.stream));
    bool has_levels = ops_for_level(scene.device, levels[0]);
    for (int i = 0; i < (has_levels ? 4 : 1); i++)
        if ((scene.ops = has_levels ? ops_for_level(scene.device, levels[i]) : ops_for(scene.device)))
            check(&scene);
    stream_close(scene.stream);
    device_close(scene.device);
}

/* Copies to the device what the host has; NULL stays NULL. */
static void *upload(const struct scene *scene, const void *host, size_t bytes) {
    void *there = NULL;
    if (host) {
        test_ok(device_alloc(scene->device, bytes + 1, &there));
        test_ok(stream_copy_to_device(scene->stream, there, host, bytes));
    }
    return there;
}

/* Copies results to the host, and frees the device's. */
static void download(const struct scene *scene, void *host, void *there, size_t bytes) {
    if (host)
        test_ok(stream_copy_to_host(scene->stream, host, there, bytes));
    test_ok(stream_wait(scene->stream));
    device_free(scene->device, there);
}

/* Returns the changes that the rows of a call take. */
static size_t change_count(const struct sample *a) {
    int32_t count = 0;
    for (int64_t i = 0; i < a->rows; i++)
        if (a->row[i].change_count && a->row[i].first_change + a->row[i].change_count > count)
            count = a->row[i].first_change + a->row[i].change_count;
    return (size_t)count;
}

enum { GUARD = 64 };

/* Returns the masks that the rows of a call take. */
static size_t mask_count(const struct sample *a) {
    int32_t count = 0;
    for (int64_t i = 0; i < a->rows; i++)
        count = a->row[i].mask > count ? a->row[i].mask : count;
    return (size_t)count;
}

static bool is_allowed(const struct sample *a, int64_t i, int64_t id) {
    int64_t first = (a->row[i].mask - 1) * sample_mask_words(a->vocab);
    return !a->row[i].mask || a->masks[first + id / 32] >> (id % 32) & 1;
}

/* The operation on copies of what `a` names, with a guard after the workspace. */
static void sample(const struct scene *scene, struct sample *a) {
    size_t rows = (size_t)a->rows, elements = rows * (size_t)a->stride, changes = change_count(a);
    size_t mask_bytes = mask_count(a) * (size_t)sample_mask_words(a->vocab) * sizeof *a->masks;
    size_t bytes = scene->ops->sample_workspace(scene->device, a);
    unsigned char *guarded = malloc(bytes + GUARD), guard[GUARD];
    memset(guarded, 0xff, bytes + GUARD);
    for (size_t i = 0; i < rows; i++)
        a->token[i] = -7;
    struct sample there = *a;
    there.logits = upload(scene, a->logits, elements * dtype_bytes(a->type));
    there.row = upload(scene, a->row, rows * sizeof *a->row);
    there.changes = changes ? upload(scene, a->changes, changes * sizeof *a->changes) : NULL;
    there.masks = mask_bytes ? upload(scene, a->masks, mask_bytes) : NULL;
    there.token = upload(scene, a->token, rows * sizeof *a->token);
    there.logprob = upload(scene, a->logprob, rows * sizeof *a->logprob);
    void *workspace = upload(scene, guarded, bytes + GUARD);
    struct exec exec = {.stream = scene->stream, .workspace = workspace, .workspace_bytes = bytes};
    test_ok(scene->ops->sample(&exec, &there));
    test_ok(stream_copy_to_host(scene->stream, guard, (char *)workspace + bytes, GUARD));
    download(scene, a->token, there.token, rows * sizeof *a->token);
    download(scene, a->logprob, there.logprob, rows * sizeof *a->logprob);
    void *const inputs[] = {(void *)there.logits, (void *)there.row, (void *)there.changes, (void *)there.masks,
                            workspace};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        device_free(scene->device, inputs[i]);
    for (int i = 0; i < GUARD; i++)
        assert_int_equal(guard[i], 0xff);
    for (size_t i = 0; i < rows; i++)
        if (a->row[i].draws && a->token[i] != -1)
            assert_true(a->token[i] >= 0 && a->token[i] < a->vocab && is_allowed(a, (int64_t)i, a->token[i]));
        else
            assert_int_equal(a->token[i], -1);
    for (size_t i = 0; i < rows; i++)
        for (int64_t id = 0; a->row[i].draws && a->token[i] == -1 && id < a->vocab; id++)
            assert_false(is_allowed(a, (int64_t)i, id));
    free(guarded);
}

static double normal(uint32_t i, uint32_t stream) {
    struct philox w = philox(5, i, stream, 0, (uint32_t)RNG_TEST << 24);
    return sqrt(-2 * log(rng_unit(w.word[0]))) * cos(6.283185307179586 * rng_unit(w.word[1]));
}

/* ---- the naive sampler ---- */

struct ranked {
    double score;
    int id;
};

static int by_rank(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    return x->score != y->score ? (x->score > y->score ? -1 : 1) : x->id - y->id;
}

static double changed(double logit, const struct sample_row *row, const struct sample_change *change) {
    double score = logit + (double)change->bias;
    if (change->is_seen)
        score = score < 0 ? score * (double)row->repetition_penalty : score / (double)row->repetition_penalty;
    if (change->count > 0)
        score -= (double)row->presence_penalty + change->count * (double)row->frequency_penalty;
    return score;
}

/* Fills probability[V], 0 for what is filtered out. Row `i` of the call has these logits. */
static void naive_probabilities(const struct sample *a, int64_t at, const double *logit, double *probability) {
    const struct sample_row *row = &a->row[at];
    const struct sample_change *changes = a->changes;
    int vocab = (int)a->vocab;
    struct ranked *rank = malloc((size_t)vocab * sizeof *rank);
    for (int i = 0; i < vocab; i++) {
        rank[i] = (struct ranked){logit[i] / (double)row->temperature, i};
        probability[i] = 0;
    }
    for (int i = 0; i < row->change_count; i++) {
        const struct sample_change *change = &changes[row->first_change + i];
        rank[change->id].score = changed(logit[change->id], row, change) / (double)row->temperature;
    }
    int allowed = 0;
    for (int i = 0; i < vocab; i++)
        if (is_allowed(a, at, i))
            rank[allowed++] = rank[i];
    qsort(rank, (size_t)allowed, sizeof *rank, by_rank);
    int kept = row->top_k > 0 && row->top_k < allowed ? row->top_k : allowed;
    double total = 0, before = 0, mass = 0;
    for (int i = 0; i < kept; i++)
        total += exp(rank[i].score - rank[0].score);
    for (int i = 0; i < kept; i++) {
        double weight = exp(rank[i].score - rank[0].score);
        if (i > 0 && ((row->top_p < 1 && before >= (double)row->top_p * total) || weight < (double)row->min_p))
            break;
        probability[rank[i].id] = weight;
        before += weight;
        mass += weight;
    }
    for (int i = 0; i < vocab; i++)
        probability[i] /= mass;
    free(rank);
}

/* Whether `token` is what the row's random number picks, give or take what fp32 weights may move a boundary by. */
static bool naive_agrees(const double *probability, int vocab, const struct sample_row *row, int token) {
    double unit = rng_unit(rng_sample_word(row->seed, row->choice, row->position)), below = 0;
    for (int i = 0; i < token; i++)
        below += probability[i];
    (void)vocab;
    return unit >= below - 2e-6 && unit <= below + probability[token] + 2e-6 && probability[token] > 0;
}

enum { VOCAB = 1003, STRIDE = 1040, ROWS = 5, CHANGES = VOCAB / 3 };

/* Masks of half of the ids, of few, of all but few, and of a range. */
static void fill_masks(uint32_t *masks) {
    int64_t words = sample_mask_words(VOCAB);
    memset(masks, 0, 4 * (size_t)words * sizeof *masks);
    for (int64_t id = 0; id < VOCAB; id++) {
        const bool allowed[] = {id % 2, id % 97 == 50, id % 97 != 3, id >= 600 && id < 850};
        for (int m = 0; m < 4; m++)
            masks[m * words + id / 32] |= (uint32_t)allowed[m] << id % 32;
    }
}

static void check_draws(const struct scene *scene, enum dtype type, double spread) {
    static const float temperatures[] = {1, 0.7f, 1.5f}, top_ps[] = {1, 0.9f, 0.3f, 0.999f},
                       min_ps[] = {0, 0.05f, 0.6f};
    static const int32_t top_ks[] = {0, 1, 7, 50, 900};
    float *logits = malloc(sizeof *logits * ROWS * STRIDE), logprob[ROWS];
    uint16_t *narrow = malloc(sizeof *narrow * ROWS * STRIDE);
    double *exact = malloc(sizeof *exact * ROWS * VOCAB), *probability = malloc(sizeof *probability * VOCAB);
    struct sample_change changes[2 * CHANGES];
    int32_t token[ROWS];
    uint32_t masks[4 * ((VOCAB + 31) / 32)];
    fill_masks(masks);
    memset(logits, 0xff, sizeof *logits * ROWS * STRIDE);
    memset(narrow, 0xff, sizeof *narrow * ROWS * STRIDE);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < VOCAB; j++) {
            float x = (float)(spread * normal((uint32_t)j, (uint32_t)i));
            narrow[i * STRIDE + j] = bf16_from_float(x);
            logits[i * STRIDE + j] = x;
            exact[i * VOCAB + j] = type == DTYPE_F32 ? (double)x : (double)bf16_to_float(bf16_from_float(x));
        }
    for (int j = 0; j < 2 * CHANGES; j++)
        changes[j] = (struct sample_change){.id = j % CHANGES * 3,
                                            .count = j % 5,
                                            .bias = j % 11 == 3 ? -INFINITY : (float)(j % 4),
                                            .is_seen = j % 2 == 0 || j % 5};
    int n = 0;
    for (int t = 0; t < 3; t++)
        for (int p = 0; p < 4; p++)
            for (int k = 0; k < 5; k++, n++) {
                struct sample_row row[ROWS];
                for (int i = 0; i < ROWS; i++)
                    row[i] = (struct sample_row){.temperature = temperatures[t],
                                                 .top_p = top_ps[p],
                                                 .min_p = min_ps[n % 3],
                                                 .top_k = top_ks[k],
                                                 .repetition_penalty = 1.3f,
                                                 .presence_penalty = 0.2f,
                                                 .frequency_penalty = 0.1f,
                                                 .first_change = i % 2 * CHANGES,
                                                 .change_count = n % 2 ? CHANGES : 0,
                                                 .draws = true,
                                                 .mask = n % 4 < 3 ? (i + n) % 5 : 0,
                                                 .seed = 1234567890123u + (uint64_t)n,
                                                 .choice = (uint32_t)i,
                                                 .position = (uint32_t)(n * 7)};
                struct sample a = {.rows = ROWS,
                                   .vocab = VOCAB,
                                   .stride = STRIDE,
                                   .type = type,
                                   .logits = type == DTYPE_F32 ? (void *)logits : (void *)narrow,
                                   .row = row,
                                   .changes = changes,
                                   .masks = masks,
                                   .token = token,
                                   .logprob = logprob};
                sample(scene, &a);
                for (int i = 0; i < ROWS; i++) {
                    naive_probabilities(&a, i, exact + i * VOCAB, probability);
                    if (!naive_agrees(probability, VOCAB, &row[i], token[i]))
                        fail_msg("%s: temperature %g top_k %d top_p %g drew %d with probability %g", scene->ops->name,
                                 (double)row[i].temperature, row[i].top_k, (double)row[i].top_p, token[i],
                                 probability[token[i]]);
                    double sum = 0;
                    for (int j = 0; j < VOCAB; j++)
                        sum += exp(exact[i * VOCAB + j]);
                    assert_true(fabs((double)logprob[i] - (exact[i * VOCAB + token[i]] - log(sum))) < 4e-6);
                }
            }
    free(logits);
    free(narrow);
    free(exact);
    free(probability);
}

static void check_all_draws(const struct scene *scene) {
    check_draws(scene, DTYPE_F32, 2.5);
    check_draws(scene, DTYPE_F32, 0.01);
    check_draws(scene, DTYPE_BF16, 2.5);
}

static void draws_equal_a_sorting_sampler(void **state) {
    (void)state;
    every_level(check_all_draws);
}

/* ---- promises ---- */

static int32_t sample_changed(const struct scene *scene, const float *logits, int64_t vocab, struct sample_row row,
                              const struct sample_change *change, float *logprob) {
    int32_t token;
    row.draws = true;
    row.change_count = change != NULL;
    struct sample a = {.rows = 1,
                       .vocab = vocab,
                       .stride = vocab,
                       .type = DTYPE_F32,
                       .logits = logits,
                       .row = &row,
                       .changes = change,
                       .token = &token,
                       .logprob = logprob};
    sample(scene, &a);
    return token;
}

static int32_t sample_one(const struct scene *scene, const float *logits, int64_t vocab, struct sample_row row,
                          float *logprob) {
    return sample_changed(scene, logits, vocab, row, NULL, logprob);
}

static void check_greedy(const struct scene *scene) {
    float logits[200], logprob;
    struct sample_change change = {.id = 49, .is_seen = true};
    for (int i = 0; i < 200; i++)
        logits[i] = (float)(i % 50);
    struct sample_row row = {.temperature = 0, .top_p = 1, .repetition_penalty = 1};
    /* 49 stands at 49, 99, 149, 199 */
    assert_int_equal(sample_one(scene, logits, 200, row, &logprob), 49);
    double sum = 0;
    for (int i = 0; i < 200; i++)
        sum += exp((double)logits[i] - 49);
    assert_true(fabs((double)logprob + log(sum)) < 1e-6);
    row.repetition_penalty = 2;
    assert_int_equal(sample_changed(scene, logits, 200, row, &change, NULL), 99);
    for (int i = 0; i < 200; i++)
        logits[i] -= 100;
    /* negative logits are multiplied */
    assert_int_equal(sample_changed(scene, logits, 200, row, &change, NULL), 99);
    logits[0] = 30;
    change.id = 0;
    row.repetition_penalty = 0.5f;
    assert_int_equal(sample_changed(scene, logits, 200, row, &change, NULL), 0);
}

static void greedy_takes_the_largest_lowest_id_first(void **state) {
    (void)state;
    every_level(check_greedy);
}

/* Counts the tokens of many draws from the same logits, which one call makes. */
static void count_draws(const struct scene *scene, const float *logits, int vocab, const struct sample_row *rows,
                        int draws, int *count) {
    float *copies = malloc(sizeof *copies * (size_t)(draws * vocab));
    int32_t *tokens = malloc(sizeof *tokens * (size_t)draws);
    for (int i = 0; i < draws; i++)
        memcpy(copies + i * vocab, logits, sizeof *logits * (size_t)vocab);
    struct sample a = {.rows = draws,
                       .vocab = vocab,
                       .stride = vocab,
                       .type = DTYPE_F32,
                       .logits = copies,
                       .row = rows,
                       .token = tokens};
    sample(scene, &a);
    memset(count, 0, sizeof *count * (size_t)vocab);
    for (int i = 0; i < draws; i++)
        count[tokens[i]]++;
    free(copies);
    free(tokens);
}

/* Among equal logits the lowest ids are kept, and exactly k. */
static void check_ties(const struct scene *scene) {
    enum { TOKENS = 300, DRAWS = 2000 };
    float logits[TOKENS];
    int count[TOKENS], below = 0;
    struct sample_row rows[DRAWS];
    for (int i = 0; i < TOKENS; i++)
        logits[i] = i == 280 ? 1 : 0.5f;
    for (int i = 0; i < DRAWS; i++)
        rows[i] = (struct sample_row){
            .temperature = 1, .top_p = 1, .top_k = 4, .repetition_penalty = 1, .seed = (uint64_t)i, .draws = true};
    count_draws(scene, logits, TOKENS, rows, 400, count);
    assert_true(count[0] && count[1] && count[2] && count[280]);
    assert_int_equal(count[0] + count[1] + count[2] + count[280], 400);
    /* all equal: half of the mass is the first 150 */
    logits[280] = 0.5f;
    for (int i = 0; i < DRAWS; i++)
        rows[i].top_k = 0, rows[i].top_p = 0.5f;
    count_draws(scene, logits, TOKENS, rows, DRAWS, count);
    for (int i = 0; i < 150; i++)
        below += count[i];
    assert_int_equal(below, DRAWS);
}

static void filters_keep_the_lowest_ids_of_equals(void **state) {
    (void)state;
    every_level(check_ties);
}

/* Draws follow the probabilities: chi-square of 40 tokens, at most its 1 - 1e-6 quantile (39 degrees: 92.6). */
static void check_distribution(const struct scene *scene) {
    enum { TOKENS = 40, DRAWS = 20000 };
    float logits[TOKENS];
    double exact[TOKENS], probability[TOKENS], chi = 0;
    int count[TOKENS];
    struct sample_row *rows = malloc(sizeof *rows * DRAWS);
    for (int i = 0; i < TOKENS; i++)
        exact[i] = logits[i] = (float)normal((uint32_t)i, 77);
    for (uint32_t i = 0; i < DRAWS; i++)
        rows[i] = (struct sample_row){.temperature = 0.8f,
                                      .top_p = 1,
                                      .repetition_penalty = 1,
                                      .seed = 99,
                                      .choice = i % 4,
                                      .position = i / 4,
                                      .draws = true};
    count_draws(scene, logits, TOKENS, rows, DRAWS, count);
    naive_probabilities(&(struct sample){.rows = 1, .vocab = TOKENS, .row = rows}, 0, exact, probability);
    free(rows);
    for (int i = 0; i < TOKENS; i++) {
        double expected = DRAWS * probability[i];
        chi += (count[i] - expected) * (count[i] - expected) / expected;
    }
    assert_true(chi < 92.6);
    assert_true(chi > 8);
}

static void draws_follow_the_probabilities(void **state) {
    (void)state;
    every_level(check_distribution);
}

static void check_bad_logits(const struct scene *scene) {
    float logits[130], logprob;
    static const float temperatures[] = {0, 1, 1e-30f, 1e30f};
    for (int t = 0; t < 4; t++)
        for (int filter = 0; filter < 4; filter++) {
            struct sample_row row = {.temperature = temperatures[t],
                                     .top_p = filter & 1 ? 0.5f : 1,
                                     .top_k = filter & 2 ? 100 : 0,
                                     .seed = 3};
            for (int i = 0; i < 130; i++)
                logits[i] = NAN;
            assert_int_equal(sample_one(scene, logits, 130, row, &logprob), 0);
            logits[77] = -3;
            assert_int_equal(sample_one(scene, logits, 130, row, &logprob), 77);
            for (int i = 0; i < 130; i++)
                logits[i] = i == 5 ? 0 : -INFINITY;
            assert_int_equal(sample_one(scene, logits, 130, row, &logprob), 5);
            logits[99] = INFINITY;
            if (temperatures[t] < 1e30f)
                assert_int_equal(sample_one(scene, logits, 130, row, &logprob), 99);
            logits[5] = -INFINITY;
            logits[99] = -INFINITY;
            assert_int_equal(sample_one(scene, logits, 130, row, &logprob), 0);
            assert_int_equal(sample_one(scene, logits, 1, row, &logprob), 0);
        }
}

static void bad_logits_do_no_harm(void **state) {
    (void)state;
    every_level(check_bad_logits);
}

static void check_probability_beside(const struct scene *scene) {
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f};
    float logits[130], logprob;
    for (int b = 0; b < 5; b++)
        for (int at = 0; at < 130; at += 43)
            for (int t = 0; t < 2; t++) {
                for (int i = 0; i < 130; i++)
                    logits[i] = (float)i / 100;
                logits[at] = bad[b];
                sample_one(scene, logits, 130, (struct sample_row){.temperature = (float)t, .top_p = 1}, &logprob);
                assert_int_equal(isfinite(logprob), isfinite(bad[b]));
            }
}

static void a_logit_that_is_not_finite_leaves_no_probabilities(void **state) {
    (void)state;
    every_level(check_probability_beside);
}

/* One row of logits under a mask of these words. */
static int32_t sample_masked(const struct scene *scene, const float *logits, int64_t vocab, struct sample_row row,
                             const struct sample_change *change, const uint32_t *mask) {
    int32_t token;
    float logprob;
    row.draws = true;
    row.change_count = change != NULL;
    row.mask = 1;
    struct sample a = {.rows = 1,
                       .vocab = vocab,
                       .stride = vocab,
                       .type = DTYPE_F32,
                       .logits = logits,
                       .row = &row,
                       .changes = change,
                       .masks = mask,
                       .token = &token,
                       .logprob = &logprob};
    sample(scene, &a);
    if (token < 0)
        assert_true(logprob == 0);
    return token;
}

static void check_masks(const struct scene *scene) {
    enum { IDS = 130 };
    const struct sample_change lift = {.id = 129, .bias = 100}, sink = {.id = 70, .bias = -INFINITY};
    uint32_t mask[5] = {0, 0, 1u << 6 | 1u << 9, 0, 0}; /* 70 and 73 */
    float logits[IDS];
    for (int t = 0; t < 2; t++)
        for (int filter = 0; filter < 8; filter++) {
            struct sample_row row = {.temperature = (float)t,
                                     .top_p = filter & 1 ? 0.1f : 1,
                                     .top_k = filter & 2 ? 1 : 0,
                                     .min_p = filter & 4 ? 0.9f : 0,
                                     .repetition_penalty = 1};
            for (int i = 0; i < IDS; i++)
                logits[i] = i == 129 ? 50 : i == 73 ? -10 : -20;
            if (filter || !t) {
                assert_int_equal(sample_masked(scene, logits, IDS, row, NULL, mask), 73);
                /* No bias lifts the ban. */
                assert_int_equal(sample_masked(scene, logits, IDS, row, &lift, mask), 73);
                logits[70] = -10; /* of equal ones, the lowest */
                if (!t)
                    assert_int_equal(sample_masked(scene, logits, IDS, row, NULL, mask), 70);
            }
            assert_int_equal(sample_masked(scene, logits, IDS, row, &sink, mask), 73);
            logits[70] = logits[73] = -INFINITY;
            assert_int_equal(sample_masked(scene, logits, IDS, row, NULL, mask), 70);
            logits[70] = logits[73] = NAN;
            assert_int_equal(sample_masked(scene, logits, IDS, row, &lift, mask), 70);
            logits[73] = -1;
            assert_int_equal(sample_masked(scene, logits, IDS, row, &lift, mask), 73);
            assert_int_equal(sample_masked(scene, logits, IDS, row, &lift, (uint32_t[5]){0}), -1);
            assert_int_equal(sample_masked(scene, logits, IDS, row, &sink, (uint32_t[5]){0}), -1);
        }
}

static void a_mask_bans_before_all_else(void **state) {
    (void)state;
    every_level(check_masks);
}

/* Rows one by one, or all at once by any number of threads: the same tokens and bits. */
static void check_rows_alone(const struct scene *scene) {
    enum { MANY = 9, WORDS = 5000 };
    float *logits = malloc(sizeof *logits * MANY * WORDS), together[MANY], alone;
    struct sample_row row[MANY];
    int32_t tokens[MANY], token;
    for (int i = 0; i < MANY * WORDS; i++)
        logits[i] = (float)(3 * normal((uint32_t)i, 8));
    for (int i = 0; i < MANY; i++)
        row[i] = (struct sample_row){.temperature = 0.9f,
                                     .top_p = i % 3 ? 0.8f : 1,
                                     .top_k = i % 2 ? 60 : 0,
                                     .min_p = i % 4 == 1 ? 0.01f : 0,
                                     .draws = true,
                                     .seed = 4,
                                     .choice = (uint32_t)i};
    for (int threads = 1; threads <= 4; threads++) {
        struct scene other = {.ops = scene->ops};
        test_ok(device_open(test_device(), DEVICE_FIRST, threads, &other.device));
        test_ok(stream_open(other.device, &other.stream));
        struct sample a = {.rows = MANY,
                           .vocab = WORDS,
                           .stride = WORDS,
                           .type = DTYPE_F32,
                           .logits = logits,
                           .row = row,
                           .token = tokens,
                           .logprob = together};
        sample(&other, &a);
        for (int i = 0; i < MANY; i++) {
            token = sample_one(&other, logits + i * WORDS, WORDS, row[i], &alone);
            assert_int_equal(token, tokens[i]);
            assert_memory_equal(&alone, &together[i], sizeof alone);
        }
        a.rows = 0;
        sample(&other, &a);
        stream_close(other.stream);
        device_close(other.device);
    }
    free(logits);
}

static void rows_do_not_see_each_other(void **state) {
    (void)state;
    every_level(check_rows_alone);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_equal_a_sorting_sampler),
        cmocka_unit_test(greedy_takes_the_largest_lowest_id_first),
        cmocka_unit_test(filters_keep_the_lowest_ids_of_equals),
        cmocka_unit_test(draws_follow_the_probabilities),
        cmocka_unit_test(bad_logits_do_no_harm),
        cmocka_unit_test(a_logit_that_is_not_finite_leaves_no_probabilities),
        cmocka_unit_test(a_mask_bans_before_all_else),
        cmocka_unit_test(rows_do_not_see_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
