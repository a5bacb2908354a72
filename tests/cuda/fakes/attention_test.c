/* Attention on the interpreter: the op cases, and three promises. A row never changes for a row that it does not see,
 * not even for a NaN. Each small op case runs once as it is, and then with one row of queries, keys and values that is
 * NaN. Results have the same bits in whatever order blocks run. A row over the pages of the cache does not depend on
 * the other rows of its call. */
#include "op_cases.h"

#include "counts.h"
#include "support/device.h"

#include <math.h>

enum { ROWS = 0, HEADS = 1, WINDOW = 8 }; /* places in the shapes of attention_cases.c */
enum { FEW_ROWS = 110 };                  /* of a small case */

static void attention_is_the_references(void **state) {
    (void)state;
    test_ok(op_check_reference(&attention_family, "cuda", false));
    test_ok(op_check_reference(&paged_family, "cuda", false));
    test_ok(op_check_threads(&paged_family, "cuda", test_is_long()));
}

struct scene {
    struct device *device;
    struct stream *stream;
    struct op_run run;
    bool lacks_room; /* the workspace has room for the bits of dropout of one of two key/value heads */
};

static int open_scene(void **state) {
    static struct scene scene;
    scene = (struct scene){0};
    *state = &scene;
    test_ok(device_open("cuda", DEVICE_FIRST, 1, &scene.device));
    test_ok(stream_open(scene.device, &scene.stream));
    return 0;
}

static int close_scene(void **state) {
    struct scene *scene = *state;
    stream_close(scene->stream);
    device_close(scene->device);
    return 0;
}

/* Returns the number of a tensor; -1 if the case lacks it. */
static int find(const struct op_run *run, const char *name) {
    for (int i = 0; i < OP_TENSORS; i++)
        if (run->tensor[i].role && strcmp(run->tensor[i].name, name) == 0)
            return i;
    return -1;
}

static bool sees(const struct op_run *run, int64_t row, int64_t key) {
    int64_t s = 0, window = run->shape[WINDOW];
    while (run->host[s + 1] <= row)
        s++;
    return key >= run->host[s] && key <= row && (!window || row - key < window);
}

static void put_nan(struct scene *scene, const char *name, int64_t row) {
    int index = find(&scene->run, name);
    if (index < 0)
        return;
    const struct op_tensor *t = &scene->run.tensor[index];
    size_t element = dtype_bytes(t->type), bytes = (size_t)t->cols * element;
    char *values = malloc(bytes);
    memset(values, 0xff, bytes); /* NaN in both types */
    test_ok(stream_copy_to_device(scene->stream, (char *)t->data + (size_t)(row * t->stride) * element, values, bytes));
    test_ok(stream_wait(scene->stream));
    free(values);
}

/* Returns the bytes of a workspace that lack the bits of one of two key/value heads. Backward has eight bytes more for
 * each row and head. */
static size_t room_for_one(const struct scene *scene, size_t all) {
    const struct op_run *run = &scene->run;
    size_t first = find(run, "dqkv") < 0 ? 0 : (size_t)(run->shape[ROWS] * run->shape[HEADS]) * 8;
    return first + (all - first) / 2;
}

/* Calls the operation with a row that is NaN, or with none if it is below 0, and reads a result. */
static double *result_of(struct scene *scene, int64_t bad, int index) {
    const struct op_kind *kind = scene->run.op_case->kind;
    const struct ops *ops = ops_for(scene->device);
    struct exec exec = {.stream = scene->stream, .workspace_bytes = kind->workspace(&scene->run, ops, scene->device)};
    double *values;
    if (scene->lacks_room)
        exec.workspace_bytes = room_for_one(scene, exec.workspace_bytes);
    test_ok(op_run_reset(&scene->run, scene->stream));
    if (bad >= 0) {
        put_nan(scene, "qkv", bad);
        put_nan(scene, "dout", bad);
    }
    test_ok(device_alloc(scene->device, exec.workspace_bytes, &exec.workspace));
    test_ok(kind->call(&scene->run, ops, &exec));
    test_ok(op_run_read(&scene->run, index, scene->stream, &values));
    device_free(scene->device, exec.workspace);
    return values;
}

/* True if a NaN in row `bad` may change these columns of a row's result. */
static bool depends(const struct op_run *run, int64_t row, int64_t bad, bool is_query) {
    return is_query ? sees(run, row, bad) : sees(run, bad, row) || row == bad;
}

/* Compares a result's rows, and finds the bad one changed. Queries are the first columns of dqkv. */
static void compare_rows(const struct op_run *run, int index, int64_t bad, const double *clean, const double *dirty) {
    const struct op_tensor *t = &run->tensor[index];
    int64_t queries = strcmp(t->name, "dqkv") == 0 ? run->tensor[find(run, "out")].cols : t->cols;
    for (int64_t i = 0; i < t->rows; i++)
        for (int64_t j = 0; j < t->cols; j++) {
            int64_t at = i * t->cols + j;
            if (!depends(run, i, bad, j < queries) && memcmp(&clean[at], &dirty[at], sizeof *clean))
                fail_msg("%s: row %lld, which is NaN, changes %s[%lld,%lld] from %g to %g", run->op_case->note,
                         (long long)bad, t->name, (long long)i, (long long)j, clean[at], dirty[at]);
            if (i == bad)
                assert_true(isnan(dirty[at]));
        }
}

static void check_case(struct scene *scene, const struct op_case *op_case) {
    test_ok(op_run_open(&scene->run, op_case, scene->device, scene->stream));
    int index = find(&scene->run, "dqkv");
    index = index < 0 ? find(&scene->run, "out") : index;
    int64_t rows = op_case->shape[ROWS], bad[] = {0, rows / 2, rows - 1};
    double *clean = result_of(scene, -1, index);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        double *dirty = result_of(scene, bad[i], index);
        compare_rows(&scene->run, index, bad[i], clean, dirty);
        free(dirty);
    }
    free(clean);
    op_run_close(&scene->run, scene->device);
}

static void a_row_that_is_nan_changes_no_row_that_does_not_see_it(void **state) {
    struct scene *scene = *state;
    for (int i = 0; i < attention_family.count; i++) {
        const struct op_case *op_case = &attention_family.cases[i];
        if (op_case->use & OP_TEST && op_case->shape[ROWS] <= FEW_ROWS)
            check_case(scene, op_case);
    }
}

/* Calls the operation once more in another order of blocks and warps. Fails if a result's bits differ from `first`. */
static void check_order(struct scene *scene, double **first) {
    free(result_of(scene, -1, find(&scene->run, "qkv")));
    for (int i = 0; i < OP_TENSORS; i++) {
        const struct op_tensor *t = &scene->run.tensor[i];
        double *values;
        if (!t->role || t->role == OP_IN)
            continue;
        test_ok(op_run_read(&scene->run, i, scene->stream, &values));
        if (first[i])
            assert_memory_equal(first[i], values, (size_t)(t->rows * t->cols) * sizeof *values);
        free(first[i]);
        first[i] = values;
    }
}

static void check_20_orders(struct scene *scene, const struct op_case *op_case) {
    double *first[OP_TENSORS] = {0};
    test_ok(op_run_open(&scene->run, op_case, scene->device, scene->stream));
    for (int order = 0; order < 20; order++)
        check_order(scene, first);
    for (int i = 0; i < OP_TENSORS; i++)
        free(first[i]);
    op_run_close(&scene->run, scene->device);
}

/* The cases that run by tiles. */
static bool has_tiles(const struct op_case *op_case) {
    return op_case->type == DTYPE_BF16 || op_case->use & OP_TF32;
}

static void tiles_give_the_same_bits_in_20_orders(void **state) {
    static const char *const notes[] = {"size 24, dropout, prefix, grouped heads", "size 64, segments",
                                        "size 256, window", "tf32, size 20, dropout, prefix, grouped heads"};
    struct scene *scene = *state;
    int count = 0;
    for (int c = 0; c < attention_family.count; c++)
        for (int i = 0; i < 4; i++) {
            const struct op_case *op_case = &attention_family.cases[c];
            if (!has_tiles(op_case) || strcmp(op_case->note, notes[i]))
                continue;
            check_20_orders(scene, op_case);
            count++;
        }
    assert_int_equal(count, 4 * 2); /* forward and backward */
}

/* Calls the operation with room for the bits of one key/value head, and expects the bits of a call with room for all.
 */
static void check_parts(struct scene *scene, const struct op_case *op_case) {
    test_ok(op_run_open(&scene->run, op_case, scene->device, scene->stream));
    int index = find(&scene->run, "dqkv");
    index = index < 0 ? find(&scene->run, "out") : index;
    uint64_t before = test_counts_of("attention_kept").launches;
    double *whole = result_of(scene, -1, index);
    uint64_t between = test_counts_of("attention_kept").launches;
    scene->lacks_room = true;
    double *parts = result_of(scene, -1, index);
    scene->lacks_room = false;
    assert_int_equal(between, before + 1);
    assert_int_equal(test_counts_of("attention_kept").launches, between + 2);
    assert_memory_equal(whole, parts,
                        (size_t)(scene->run.tensor[index].rows * scene->run.tensor[index].cols) * sizeof *whole);
    free(whole);
    free(parts);
    op_run_close(&scene->run, scene->device);
}

static void dropout_gives_the_same_bits_with_room_for_some_heads(void **state) {
    struct scene *scene = *state;
    int count = 0;
    for (int i = 0; i < attention_family.count; i++) {
        const struct op_case *op_case = &attention_family.cases[i];
        if (has_tiles(op_case) && strstr(op_case->note, ", dropout, prefix, grouped heads")) {
            check_parts(scene, op_case);
            count++;
        }
    }
    assert_int_equal(count, 2 * 2); /* forward and backward */
}

/* Launches of a kernel by one call of a case. */
static uint64_t launches_of(struct scene *scene, const struct op_case *op_case, const char *kernel) {
    uint64_t before = test_counts_of(kernel).launches;
    test_ok(op_run_open(&scene->run, op_case, scene->device, scene->stream));
    free(result_of(scene, -1, find(&scene->run, "out")));
    op_run_close(&scene->run, scene->device);
    return test_counts_of(kernel).launches - before;
}

static void attention_in_tf32_runs_by_tiles_where_there_are_tiles(void **state) {
    static const char *const rows[][3] = {
        {"tf32, size 64, whole tiles", "attention_forward_tf32_tiles_64", "attention_backward_keys_tf32_tiles_64"},
        {"tf32, size 128, window", "attention_forward_tf32_tiles_128", "attention_backward_queries_tf32_tiles_128"},
        {"tf32, rows at 4 bytes", "attention_forward_fp32", "attention_backward_keys_fp32"},
        {"tf32, size 132", "attention_forward_fp32", "attention_backward_queries_fp32"},
        {"tf32, size 10", "attention_forward_fp32", "attention_backward_keys_fp32"},
        {"size 64, whole tiles", "attention_forward_fp32", "attention_backward_keys_fp32"},
    };
    enum { KINDS = sizeof rows / sizeof *rows };
    struct scene *scene = *state;
    int count = 0;
    for (int c = 0; c < attention_family.count; c++)
        for (int i = 0; i < KINDS; i++) {
            const struct op_case *op_case = &attention_family.cases[c];
            if (op_case->type != DTYPE_F32 || strcmp(op_case->note, rows[i][0]))
                continue;
            bool is_backward = strcmp(op_case->kind->name, "attention_backward") == 0;
            assert_int_equal(launches_of(scene, op_case, rows[i][1 + is_backward]), 1);
            count++;
        }
    assert_int_equal(count, KINDS * 2);
}

/* ---- the KV cache ---- */

enum {
    PAGES = 88,
    FIRST_POSITION = 1080,
    SOME_ROWS = 70,
    MOST_ROWS = 140,
    PART = 384 /* tokens */,
    PAGED_HEADS = 3,
    SIZE = 10,
    ROW = PAGED_HEADS * SIZE
};

static void *upload(struct scene *scene, const void *values, size_t bytes) {
    void *memory;
    test_ok(device_alloc(scene->device, bytes, &memory));
    test_ok(stream_copy_to_device(scene->stream, memory, values, bytes));
    test_ok(stream_wait(scene->stream));
    return memory;
}

/* Calls the operation for rows first .. end - 1, and reads their outputs into `out`. */
static void attend_rows(struct scene *scene, const struct paged_attention *whole, int first, int end, char *out) {
    const struct ops *ops = ops_for(scene->device);
    struct paged_attention a = *whole;
    size_t element = dtype_bytes(a.type);
    a.rows = end - first;
    a.q = (const char *)a.q + (size_t)(first * a.q_stride) * element;
    a.position += first;
    a.sequence += first;
    struct exec exec = {.stream = scene->stream, .workspace_bytes = ops->paged_attention_workspace(scene->device, &a)};
    assert_int_equal(exec.workspace_bytes > 0, a.rows == 1); /* one row has its parts merged, many have not */
    test_ok(device_alloc(scene->device, exec.workspace_bytes, &exec.workspace));
    test_ok(ops->paged_attention(&exec, &a));
    test_ok(stream_copy_to_host(scene->stream, out, a.out, (size_t)(a.rows * a.out_stride) * element));
    test_ok(stream_wait(scene->stream));
    device_free(scene->device, exec.workspace);
}

/* Writes a value of one token to all its features. */
static void set_value(struct scene *scene, const struct paged_attention *a, int page, int token, float value) {
    int unit = a->type == DTYPE_BF16 ? 2 : 1;
    uint16_t half = bf16_from_float(value);
    for (int d = 0; d < SIZE; d++) {
        int64_t at = page * a->page_stride + KV_PAGE_TOKENS * SIZE + (token / unit * SIZE + d) * unit + token % unit;
        size_t element = dtype_bytes(a->type);
        test_ok(stream_copy_to_device(scene->stream, (char *)(uintptr_t)a->pages + (size_t)at * element,
                                      unit == 2 ? (void *)&half : (void *)&value, element));
        test_ok(stream_wait(scene->stream));
    }
}

/* Among many rows, some, and alone. */
static void check_forms(struct scene *scene, const struct paged_attention *a, char *many, char *other) {
    size_t row_bytes = ROW * dtype_bytes(a->type);
    attend_rows(scene, a, 0, MOST_ROWS, many);
    attend_rows(scene, a, 0, SOME_ROWS, other);
    assert_memory_equal(other, many, SOME_ROWS * row_bytes);
    for (int i = 0; i < MOST_ROWS; i += 6) {
        attend_rows(scene, a, i, i + 1, other);
        assert_memory_equal(other, many + (size_t)i * row_bytes, row_bytes);
    }
}

/* Some rows see three parts of 384 tokens, and others four. Many rows have a team of warps for a block, some have
 * several, and one row has several blocks. At the end the fourth part is NaN, which the former rows never see, although
 * a warp may have rows of both kinds. */
static void check_rows_alone(struct scene *scene, enum dtype type) {
    enum { PAGE = 2 * KV_PAGE_TOKENS * SIZE, LAST_PART = 3 * PART };
    int32_t table[PAGES], position[MOST_ROWS], sequence[MOST_ROWS] = {0};
    char many[MOST_ROWS * ROW * sizeof(float)] = {0}, other[sizeof many];
    size_t element = dtype_bytes(type), row_bytes = ROW * element;
    for (int i = 0; i < PAGES; i++)
        table[i] = (i * 7 + 3) % PAGES;
    for (int i = 0; i < MOST_ROWS; i++)
        position[i] = FIRST_POSITION + i;
    struct paged_attention a = {.heads = PAGED_HEADS,
                                .kv_heads = 1,
                                .head_size = SIZE,
                                .type = type,
                                .q = test_upload_random(scene->device, scene->stream, type, MOST_ROWS * ROW, 1, -2, 2),
                                .q_stride = ROW,
                                .scale = 0.3f,
                                .pages = test_upload_random(scene->device, scene->stream, type, PAGES * PAGE, 2, -2, 2),
                                .page_stride = PAGE,
                                .page_table = upload(scene, table, sizeof table),
                                .max_pages = PAGES,
                                .sequence = upload(scene, sequence, sizeof sequence),
                                .position = upload(scene, position, sizeof position),
                                .out = upload(scene, many, sizeof many),
                                .out_stride = ROW};
    /* Two large values of parts 0 and 2 cancel each other, so that the order of additions shows. */
    struct paged_attention equal = a;
    equal.scale = 1e-30f;
    check_forms(scene, &a, many, other);
    set_value(scene, &a, table[0], 0, 0x1p22f);
    set_value(scene, &a, table[2 * PART / KV_PAGE_TOKENS], 0, -0x1p22f);
    check_forms(scene, &equal, many, other);
    attend_rows(scene, &a, 0, MOST_ROWS, many);
    memset(other, 0xff, PAGE * element);
    for (int i = LAST_PART / KV_PAGE_TOKENS; i < PAGES; i++)
        test_ok(stream_copy_to_device(scene->stream, (char *)(uintptr_t)a.pages + (size_t)(table[i] * PAGE) * element,
                                      other, PAGE * element));
    test_ok(stream_wait(scene->stream));
    attend_rows(scene, &a, 0, MOST_ROWS, other);
    for (int i = 0; i < MOST_ROWS; i++)
        assert_int_equal(!memcmp(many + (size_t)i * row_bytes, other + (size_t)i * row_bytes, row_bytes),
                         position[i] < LAST_PART);
    const void *memory[] = {a.q, a.pages, a.page_table, a.sequence, a.position, a.out};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        device_free(scene->device, (void *)(uintptr_t)memory[i]);
}

static void a_row_of_the_cache_has_the_same_bits_alone_and_among_many(void **state) {
    struct scene *scene = *state;
    check_rows_alone(scene, DTYPE_F32);
    check_rows_alone(scene, DTYPE_BF16);
}

#define ON_A_CARD(test) cmocka_unit_test_setup_teardown(test, open_scene, close_scene)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_the_references),
        ON_A_CARD(a_row_that_is_nan_changes_no_row_that_does_not_see_it),
        ON_A_CARD(tiles_give_the_same_bits_in_20_orders),
        ON_A_CARD(dropout_gives_the_same_bits_with_room_for_some_heads),
        ON_A_CARD(attention_in_tf32_runs_by_tiles_where_there_are_tiles),
        ON_A_CARD(a_row_of_the_cache_has_the_same_bits_alone_and_among_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
