/* Faults planted in copies of the program's kernels: a statement of the PTX is removed or changed, and the check that
 * is meant for it must find it. Most faults stop the launch with a message; the others give other results. */
#include "cuda/attention.h"
#include "cuda/attention_tiles.h"
#include "cuda/encoded.h"
#include "cuda/fatbin.h"
#include "cuda/kernels.h"
#include "cuda/support.h"
#include "cuda/transpose.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 70, SIZE = 64, COUNT = ROWS * SIZE, TILES = 2 };
enum { Q, K, V, OUT, DOUT, DQ, DK, DV, LSE, DELTA, TURNED, TENSORS };
/* Codes of a panel: six tiles for each warp, which has places for five. They multiply four rows. */
enum { CODE_TILES = 6 * ENCODED_SPLITS, CODE_POSITIONS = 64, CODE_DEPTH = CODE_TILES * CODE_POSITIONS, CODE_ROWS = 4 };
enum { CODE_COUNT = CODE_ROWS * CODE_DEPTH, CODE_GROUP = 32, CODE_GROUPS = CODE_DEPTH / CODE_GROUP };

union tensor {
    uint16_t bf16[COUNT];
    float fp32[COUNT];
    uint16_t x[CODE_COUNT];
    uint8_t codes[CODE_TILES * ENCODED_TILE_BYTES];
};
/* One head of causal attention in bf16 and in TF32, a product with codes, and the results of kernels without faults. */
enum set { IN_BF16, IN_TF32, IN_CODES, SETS };
static union tensor tensors[SETS][TENSORS];

struct scene {
    const char *file, *kernel;
    int results[2]; /* tensors that it writes */
    uint32_t blocks, threads, shared;
    enum set set;
};
#define TILES_SCENE(file, kernel, one, two, bytes, set)                                                                \
    { file, "attention_" kernel "_64", {one, two}, TILES, TILE_WARPS * 32, bytes, set }
static const struct scene forward =
    TILES_SCENE("attention_tiles", "forward_tiles", OUT, LSE, ATTENTION_TILE_BYTES(SIZE, 2), IN_BF16);
static const struct scene queries =
    TILES_SCENE("attention_gradient_tiles", "backward_queries_tiles", DQ, DELTA, GRADIENT_TILE_BYTES(SIZE, 2), IN_BF16);
static const struct scene keys =
    TILES_SCENE("attention_gradient_tiles", "backward_keys_tiles", DK, DV, GRADIENT_TILE_BYTES(SIZE, 2), IN_BF16);
static const struct scene tf32_forward =
    TILES_SCENE("attention_tf32", "forward_tf32_tiles", OUT, LSE, ATTENTION_TILE_BYTES(SIZE, 4), IN_TF32);
static const struct scene tf32_queries = TILES_SCENE("attention_gradient_tf32", "backward_queries_tf32_tiles", DQ,
                                                     DELTA, GRADIENT_TILE_BYTES(SIZE, 4), IN_TF32);
static const struct scene tf32_keys =
    TILES_SCENE("attention_gradient_tf32", "backward_keys_tf32_tiles", DK, DV, GRADIENT_TILE_BYTES(SIZE, 4), IN_TF32);
static const struct scene turn = {"transpose", "transpose_bf16", {TURNED, TURNED}, 6, TRANSPOSE_TILE *TRANSPOSE_ROWS,
                                  0,           IN_BF16};
static const struct scene codes = {"encoded_rows", "encoded_rows_nibbles_1", {OUT, OUT}, 1, ENCODED_SPLITS * 32, 0,
                                   IN_CODES};
/* Each one takes the results of those before it. */
static const struct scene *const scenes[] = {&forward,      &queries,   &keys, &tf32_forward,
                                             &tf32_queries, &tf32_keys, &turn, &codes};
enum { SCENES = sizeof scenes / sizeof *scenes };

struct fault {
    const struct scene *scene;
    const char *opcode;    /* the statement begins with it */
    int which;             /* of these statements; ALL of them */
    const char *from, *to; /* what changes in the statement; NULL: the statement goes */
    const char *message;   /* of the launch; NULL: it ends, with other results */
};
enum { ALL = -1 };
#define TILES_FAULT(opcode, which, from, to, message)                                                                  \
    {&forward, opcode, which, from, to, message}, {&queries, opcode, which, from, to, message}, {                      \
        &keys, opcode, which, from, to, message                                                                        \
    }
#define UNFILLED "a cp.async has not filled yet"

static const struct fault faults[] = {
    /* Barriers that are missing, or for some of the threads. */
    TILES_FAULT("bar.sync", ALL, NULL, NULL, "shared memory"),
    TILES_FAULT("bar.sync", ALL, ";", ", 64;", "shared memory"),
    TILES_FAULT("bar.warp.sync", ALL, NULL, NULL, "race in shared memory"),
    {&turn, "bar.sync", ALL, NULL, NULL, "shared memory"},
    /* Asynchronous copies that are read early, or never made. */
    TILES_FAULT("cp.async.wait_group", ALL, NULL, NULL, UNFILLED),
    TILES_FAULT("cp.async.wait_group", ALL, "0", "1", UNFILLED),
    TILES_FAULT("cp.async.commit_group", ALL, NULL, NULL, UNFILLED),
    {&forward, "cp.async.cg", 0, NULL, NULL, "nobody has written"},
    {&queries, "cp.async.cg", 0, NULL, NULL, "nobody has written"},
    {&keys, "cp.async.cg", 2, NULL, NULL, "nobody has written"}, /* the first after those of a prefix */
    /* Fragments of another matrix. */
    TILES_FAULT("ldmatrix", ALL, ".trans", "", NULL),
    {&forward, "ldmatrix", 0, ".x4", ".x4.trans", NULL},
    {&queries, "ldmatrix", 20, ".x4", ".x4.trans", NULL}, /* of the tiles whose keys some row does not see */
    {&keys, "ldmatrix", 0, ".x4", ".x4.trans", NULL},
    /* Sums over the wrong lanes. */
    {&forward, "shfl.sync.bfly", ALL, ".bfly", ".idx", NULL},
    {&queries, "shfl.sync.bfly", ALL, ".bfly", ".idx", NULL},
    /* Blocks that do the work of others. */
    TILES_FAULT("mov.u32", ALL, "%ctaid.x", "0", "race between blocks"),
    {&turn, "mov.u32", ALL, "%ctaid.x", "0", "race between blocks"},
    /* Places that are off by one, by an element and by less. */
    {&forward, "st.shared.u32", 0, "]", "+4]", "race in shared memory"},
    {&queries, "st.shared.u32", 2, "]", "+4]", "race in shared memory"}, /* the first after those of dropout's bits */
    {&keys, "st.shared.u32", 0, "]", "+4]", "race in shared memory"},
    {&forward, "st.global.v4", 0, "]", "+2]", "misaligned"},
    {&queries, "st.global.v4", 0, "]", "+2]", "misaligned"},
    {&keys, "st.global.v4", 0, "]", "+2]", "misaligned"},
    {&turn, "st.global", 0, "]", "+2]", "outside every allocation"},
    {&turn, "ld.shared", 0, "]", "+2]", "nobody has written"},
    /* Values that are missing. */
    {&forward, "mma.sync", 104, NULL, NULL, NULL}, /* of the tiles without dropout */
    {&queries, "mma.sync", 32, NULL, NULL, NULL},  /* of the tiles whose keys some row does not see */
    {&keys, "mma.sync", 8, NULL, NULL, NULL},      /* the first that adds to others */
    TILES_FAULT("ld.param", 0, NULL, NULL, "reads a register that has no value"),
    TILES_FAULT("mov.u32", ALL, "%tid.x", NULL, "reads a register that has no value"),
    {&turn, "mov.u32", ALL, "%tid.x", NULL, "reads a register that has no value"},
    {&turn, "st.shared", ALL, NULL, NULL, "nobody has written"},
    /* Faults in TF32, where threads round what they have copied before others read it: a missing barrier, an early
     * read, a chunk of another thread, and no rounding. Then wrong fragments: a transposed one, and chunks of another
     * row. */
    {&tf32_forward, "bar.sync", ALL, NULL, NULL, "shared memory"},
    {&tf32_queries, "cp.async.wait_group", ALL, NULL, NULL, UNFILLED},
    {&tf32_forward, "st.shared.v4", 0, "]", "+16]", "race in shared memory"},
    {&tf32_keys, "st.shared.v4", ALL, NULL, NULL, NULL},
    {&tf32_forward, "ldmatrix", 0, ".x4", ".x4.trans", NULL},
    {&tf32_queries, "xor.b32", ALL, ", 16", ", 0", NULL},
    /* Faults in products with codes. A barrier of a warp or of the block is missing. A copy is read early, or never
     * made. Terms go to the place of another thread, a step is left out, and x is that of another step. */
    {&codes, "bar.warp.sync", ALL, NULL, NULL, "race in shared memory"},
    {&codes, "bar.sync", ALL, NULL, NULL, "shared memory"},
    {&codes, "cp.async.wait_group", ALL, NULL, NULL, UNFILLED},
    {&codes, "cp.async.wait_group", ALL, "3", "4", UNFILLED},
    {&codes, "cp.async.commit_group", 1, NULL, NULL, UNFILLED},
    {&codes, "cp.async.cg", 1, NULL, NULL, "nobody has written"},
    {&codes, "st.shared.v2", 0, "+6400", "+6408", "bytes of shared memory"},
    {&codes, "mma.sync", 0, NULL, NULL, NULL},
    {&codes, "ld.global.v2", 1, "+32", "+64", NULL},
};

/* ---- texts ---- */

/* The text of a scene's kernel alone, with what comes before the first kernel of its file. The caller frees it. */
static char *text_of(const struct scene *scene) {
    const char *text = NULL;
    size_t length, head;
    char name[80];
    for (const struct cuda_image *image = cuda_images; image->file; image++)
        if (strcmp(image->file, scene->file) == 0)
            assert_int_equal(fatbin_ptx(image->start, 90, &text, &length), 0);
    assert_non_null(text);
    snprintf(name, sizeof name, ".entry %s(", scene->kernel);
    char *whole = strndup(text, length), *kernel = strstr(whole, name);
    assert_non_null(kernel);
    char *end = strstr(kernel, "\n}");
    assert_non_null(end);
    head = (size_t)(strstr(whole, ".visible .entry") - whole);
    memmove(whole + head, kernel, (size_t)(end + 2 - kernel));
    whole[head + (size_t)(end + 2 - kernel)] = 0;
    return whole;
}

/* Changes one statement, of which `end` is the semicolon. Returns the text after it. */
static char *change(char **text, char *at, char *end, const struct fault *fault) {
    char *from = fault->from ? strstr(at, fault->from) : NULL;
    if (!fault->to) {
        memset(at, ' ', (size_t)(end + 1 - at));
        return end;
    }
    size_t before = (size_t)(from - *text), gone = strlen(fault->from), more = strlen(fault->to);
    char *made = malloc(strlen(*text) + more + 1);
    sprintf(made, "%.*s%s%s", (int)before, *text, fault->to, from + gone);
    free(*text);
    *text = made;
    return strchr(made + before + more - (fault->from[0] == ';'), ';');
}

/* Plants a fault. Returns how many statements it changed. */
static int plant(char **text, const struct fault *fault) {
    int seen = 0, planted = 0;
    for (char *at = *text; (at = strstr(at, fault->opcode));) {
        char *end = strchr(at, ';'), *from = fault->from ? strstr(at, fault->from) : at;
        bool is_there = from && from <= end && (fault->which == ALL || seen++ == fault->which);
        planted += is_there;
        at = is_there ? change(text, at, end, fault) : end;
    }
    return planted;
}

/* ---- launches ---- */

static enum dtype type_of(const struct scene *scene) {
    return scene->set == IN_TF32 ? DTYPE_F32 : DTYPE_BF16;
}

/* Returns the bytes of a scene's tensor. */
static size_t bytes_of(const struct scene *scene) {
    return scene->set == IN_CODES ? sizeof(union tensor) : COUNT * dtype_bytes(type_of(scene));
}

static const struct encoded_pieces code_pieces = {.scale = 2, .shift = 1, .groups = 2, .all = 6};

static struct encoded_rows_call product_of(const uint64_t *at) {
    struct encoded_rows_call call = {
        .product = {.rows = CODE_ROWS, .cols = ENCODED_PANEL, .depth = CODE_DEPTH, .x_stride = CODE_DEPTH},
        .w = {.encoding = {.codes = CODES_INTEGERS,
                           .bits = 4,
                           .shift = ENCODED_ZEROS,
                           .scale_type = DTYPE_BF16,
                           .group = CODE_GROUP},
              .rows = ENCODED_PANEL,
              .columns = CODE_DEPTH,
              .positions = CODE_DEPTH,
              .bits = 4,
              .tile = CODE_POSITIONS,
              .group = CODE_GROUP,
              .tiles = CODE_TILES,
              .groups = CODE_GROUPS,
              .base = 8},
        .pieces = code_pieces,
        .has_shifts = true,
    };
    call.product.x = (const void *)(uintptr_t)at[Q];
    call.product.c = (void *)(uintptr_t)at[OUT];
    call.product.c_stride = ENCODED_PANEL;
    call.w.codes = (const void *)(uintptr_t)at[K];
    call.w.scales = (const void *)(uintptr_t)at[V];
    call.w.shifts = (const void *)(uintptr_t)at[DOUT];
    return call;
}

static void argue(const struct scene *scene, const uint64_t *at, void *arguments) {
    struct attention a = {.rows = ROWS, .segments = 1, .heads = 1, .kv_heads = 1, .head_size = SIZE, .scale = 0.125f};
    a.type = type_of(scene);
    a.is_tf32 = scene->set == IN_TF32;
    a.q_stride = a.k_stride = a.v_stride = a.out_stride = SIZE;
    const void **const memory[] = {&a.q,
                                   &a.k,
                                   &a.v,
                                   (const void **)&a.out,
                                   &a.dout,
                                   (const void **)&a.dq,
                                   (const void **)&a.dk,
                                   (const void **)&a.dv,
                                   (const void **)&a.lse};
    for (int i = 0; i <= LSE; i++)
        *memory[i] = (const void *)(uintptr_t)at[i];
    a.segment_start = (const int64_t *)(uintptr_t)at[TENSORS];
    struct attention_part part = {.a = a, .heads = 1, .delta = (float *)(uintptr_t)at[DELTA]};
    struct transpose t = {.rows = ROWS, .cols = SIZE, .type = DTYPE_BF16, .x = a.q, .y = (void *)(uintptr_t)at[TURNED]};
    struct encoded_rows_call product = product_of(at);
    if (scene == &codes)
        memcpy(arguments, &product, sizeof product);
    else if (scene == &turn)
        memcpy(arguments, &t, sizeof t);
    else
        memcpy(arguments, &part, sizeof part);
}

static uint32_t shared_of(const struct scene *scene) {
    return scene == &codes ? (uint32_t)encoded_rows_shared(&code_pieces, 1) : scene->shared;
}

/* Runs a kernel on the tensors; its results go to `results`. Returns 0, or -1 with a message of PTX_MESSAGE bytes. */
static int run(const struct scene *scene, const char *text, union tensor results[2], char *message) {
    struct machine machine;
    struct ptx_module *module;
    uint64_t at[TENSORS + 1];
    const int64_t starts[2] = {0, ROWS};
    char arguments[sizeof(struct encoded_rows_call) + sizeof(struct attention_part)];
    kernel_machine(&machine, 1);
    module = kernel_module(&machine, text);
    for (int i = 0; i < TENSORS; i++)
        at[i] = kernel_memory(&machine, &tensors[scene->set][i], bytes_of(scene));
    at[TENSORS] = kernel_memory(&machine, starts, sizeof starts);
    argue(scene, at, arguments);
    int status = launch_run(&machine, &(const struct launch){.kernel = ptx_kernel_find(module, scene->kernel),
                                                             .grid = {scene->blocks, 1, 1},
                                                             .block = {scene->threads, 1, 1},
                                                             .dynamic_shared = shared_of(scene),
                                                             .params = arguments});
    for (int i = 0; i < 2 && !status; i++)
        assert_int_equal(memory_read(&machine, &results[i], at[scene->results[i]], bytes_of(scene)), 0);
    memcpy(message, machine.message, PTX_MESSAGE);
    ptx_close(module);
    machine_close(&machine);
    return status;
}

/* Runs a kernel without faults. */
static void run_right(const struct scene *scene, union tensor results[2]) {
    char *text = text_of(scene), message[PTX_MESSAGE];
    if (run(scene, text, results, message))
        fail_msg("%s: %s", scene->kernel, message);
    free(text);
}

/* Returns true if a scene's results are those in its tensors. */
static bool is_right(const struct scene *scene, union tensor results[2]) {
    for (int i = 0; i < 2; i++)
        if (memcmp(&results[i], &tensors[scene->set][scene->results[i]], bytes_of(scene)))
            return false;
    return true;
}

/* Fills the tensors with numbers, and then with the results of the kernels without faults. */
static int fill_tensors(void **state) {
    static union tensor results[2];
    (void)state;
    for (int i = 0; i < TENSORS * COUNT; i++) {
        float value = (float)(i * 37 % 101 - 50) / 50;
        tensors[IN_BF16][i / COUNT].bf16[i % COUNT] = bf16_from_float(value);
        tensors[IN_TF32][i / COUNT].fp32[i % COUNT] = value;
    }
    for (int i = 0; i < CODE_COUNT; i++) {
        tensors[IN_CODES][Q].x[i] = tensors[IN_CODES][V].x[i] = bf16_from_float((float)(i * 37 % 101 - 50) / 50);
        tensors[IN_CODES][K].codes[i] = (uint8_t)(i * 91 % 251);
        tensors[IN_CODES][K].codes[CODE_COUNT + i] = (uint8_t)(i * 57 % 253);
        tensors[IN_CODES][DOUT].codes[i] = (uint8_t)(i * 7 % 16);
    }
    for (int i = 0; i < SCENES; i++) {
        run_right(scenes[i], results);
        for (int r = 0; r < 2; r++)
            memcpy(&tensors[scenes[i]->set][scenes[i]->results[r]], &results[r], bytes_of(scenes[i]));
    }
    return 0;
}

static void kernels_without_faults_repeat_their_results(void **state) {
    static union tensor results[2];
    (void)state;
    for (int i = 0; i < SCENES; i++) {
        run_right(scenes[i], results);
        assert_true(is_right(scenes[i], results));
    }
}

static void each_fault_is_found(void **state) {
    static union tensor results[2];
    char message[PTX_MESSAGE];
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        const struct fault *fault = &faults[i];
        char *text = text_of(fault->scene);
        if (plant(&text, fault) == 0)
            fail_msg("fault %zu: %s has no such %s", i, fault->scene->kernel, fault->opcode);
        int status = run(fault->scene, text, results, message);
        if (!fault->message != !status)
            fail_msg("fault %zu: %s", i, status ? message : "the launch ends");
        if (status ? !strstr(message, fault->message) : is_right(fault->scene, results))
            fail_msg("fault %zu: %s", i, status ? message : "the results are the same");
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_without_faults_repeat_their_results),
        cmocka_unit_test(each_fault_is_found),
    };
    return cmocka_run_group_tests(tests, fill_tensors, NULL);
}
