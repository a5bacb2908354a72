/* Lanes together: shuffles, votes, divergence, memory of every kind, fragments, asynchronous copies. */
#include "cuda/support.h"
#include "support/test.h"

#define HEAD                                                                                                           \
    ".version 8.0\n.target sm_80\n.address_size 64\n"                                                                  \
    ".visible .entry run(.param .u64 in, .param .u64 out) {\n"                                                         \
    ".reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<32>; .reg .f32 %f<16>; .reg .b64 %d<16>;\n"
/* %r0 is the thread, %d0 and %d1 are the addresses of the thread's words in `in` and `out`, %r1 is the word of `in`. */
#define START                                                                                                          \
    "ld.param.u64 %d0, [in]; ld.param.u64 %d1, [out]; mov.u32 %r0, %tid.x;\n"                                          \
    "mul.wide.u32 %d2, %r0, 4; add.s64 %d0, %d0, %d2; add.s64 %d1, %d1, %d2; ld.global.u32 %r1, [%d0];\n"
#define END "st.global.u32 [%d1], %r2;\nret;\n}\n"

/* Runs a text on one block: `in` has a word a thread, `out` gets one. */
static void run_words(const char *text, uint32_t threads, const uint32_t *in, uint32_t *out) {
    struct machine machine;
    kernel_machine(&machine, 3);
    struct ptx_module *module = kernel_module(&machine, text);
    const struct {
        uint64_t in, out;
    } params = {kernel_memory(&machine, in, threads * 4), kernel_memory(&machine, NULL, threads * 4)};
    kernel_ok(&machine, kernel_run(&machine, module, "run", 1, threads, &params));
    assert_int_equal(memory_read(&machine, out, params.out, threads * 4), 0);
    ptx_close(module);
    machine_close(&machine);
}

static void shuffles_read_the_lane_of_their_kind(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int kind, by, clamp, width;
    } rows[] = {
        {HEAD START "shfl.sync.up.b32 %r2|%p1, %r1, 3, 0, -1;\n" END, 0, 3, 0, 32},
        {HEAD START "shfl.sync.down.b32 %r2|%p1, %r1, 5, 31, -1;\n" END, 1, 5, 31, 32},
        {HEAD START "shfl.sync.bfly.b32 %r2|%p1, %r1, 16, 31, -1;\n" END, 2, 16, 31, 32},
        {HEAD START "shfl.sync.idx.b32 %r2|%p1, %r1, 7, 31, -1;\n" END, 3, 7, 31, 32},
        {HEAD START "shfl.sync.idx.b32 %r2, %r1, 2, 0x181F, 0xFFFFFFFF;\n" END, 3, 2, 31, 8},
        {HEAD START "shfl.sync.down.b32 %r2, %r1, 6, 0x181F, -1;\n" END, 1, 6, 31, 8},
    };
    uint32_t in[32], out[32];
    for (uint32_t l = 0; l < 32; l++) {
        in[l] = 100 + l;
    }
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        run_words(rows[r].text, 32, in, out);
        for (int l = 0; l < 32; l++) {
            int width = rows[r].width, first = l / width * width, by = rows[r].by;
            const int from[] = {l - by, l + by, l ^ by, first + by % width};
            bool inside = from[rows[r].kind] >= first && from[rows[r].kind] < first + width;
            assert_int_equal(out[l], 100 + (inside ? from[rows[r].kind] : l));
        }
    }
}

static void votes_and_reductions_see_all_members(void **state) {
    (void)state;
    uint32_t in[32], out[32];
    for (uint32_t l = 0; l < 32; l++) {
        in[l] = l;
    }
    run_words(HEAD START "setp.gt.u32 %p1, %r1, 29; vote.sync.ballot.b32 %r2, %p1, -1;\n" END, 32, in, out);
    assert_int_equal(out[9], 0xC0000000);
    run_words(HEAD START "setp.gt.u32 %p1, %r1, 40; vote.sync.any.pred %p2, %p1, -1; selp.u32 %r2, 1, 0, %p2;\n" END,
              32, in, out);
    assert_int_equal(out[0], 0);
    run_words(HEAD START "setp.lt.u32 %p1, %r1, 40; vote.sync.all.pred %p2, %p1, -1; selp.u32 %r2, 1, 0, %p2;\n" END,
              32, in, out);
    assert_int_equal(out[31], 1);
    run_words(HEAD START "redux.sync.add.u32 %r2, %r1, -1;\n" END, 32, in, out);
    assert_int_equal(out[17], 496);
    run_words(HEAD START "sub.s32 %r1, %r1, 5; redux.sync.min.s32 %r2, %r1, -1;\n" END, 32, in, out);
    assert_int_equal(out[17], (uint32_t)-5);
    /* Half of the warp, in a branch of its own. */
    run_words(HEAD START
              "mov.u32 %r2, 0; setp.gt.u32 %p1, %r0, 15; @%p1 bra DONE; redux.sync.add.u32 %r2, %r1, 0xFFFF;\n"
              "activemask.b32 %r3; add.u32 %r2, %r2, %r3;\nDONE:\n" END,
              32, in, out);
    assert_int_equal(out[3], 120 + 0xFFFF);
    assert_int_equal(out[16], 0);
}

/* Each lane counts the steps of Collatz: a loop that lanes leave at different times, with two paths inside. */
static void parted_lanes_meet_again(void **state) {
    (void)state;
    uint32_t in[64], out[64];
    for (uint32_t l = 0; l < 64; l++) {
        in[l] = l + 1;
    }
    run_words(
        HEAD START
        "mov.u32 %r2, 0;\nLOOP: setp.eq.u32 %p1, %r1, 1; @%p1 bra DONE;\n"
        "and.b32 %r3, %r1, 1; setp.eq.u32 %p2, %r3, 0; @%p2 bra EVEN;\n"
        "mad.lo.u32 %r1, %r1, 3, 1; bra NEXT;\nEVEN: shr.u32 %r1, %r1, 1;\n"
        "NEXT: add.u32 %r2, %r2, 1; bra.uni LOOP;\n"
        "DONE: redux.sync.add.u32 %r4, %r2, -1; add.u32 %r2, %r2, 0; shl.b32 %r4, %r4, 16; or.b32 %r2, %r2, %r4;\n" END,
        64, in, out);
    for (int w = 0; w < 2; w++) {
        uint32_t counts[32], total = 0;
        for (uint32_t l = 0; l < 32; l++) {
            counts[l] = 0;
            for (uint32_t n = in [32 * w + (int) l]; n != 1; n = n % 2 ? 3 * n + 1 : n / 2) {
                counts[l]++;
            }
            total += counts[l];
        }
        for (int l = 0; l < 32; l++) {
            assert_int_equal(out[32 * w + l], total << 16 | counts[l]);
        }
    }
}

static void shared_memory_crosses_warps_at_a_barrier(void **state) {
    (void)state;
    uint32_t in[128], out[128];
    for (uint32_t l = 0; l < 128; l++) {
        in[l] = l * 3;
    }
    run_words(HEAD
              ".shared .align 4 .b8 words[512];\n" START
              "mov.u32 %r3, words; shl.b32 %r4, %r0, 2; add.u32 %r5, %r3, %r4; st.shared.u32 [%r5], %r1; bar.sync 0;\n"
              "sub.u32 %r6, 127, %r0; shl.b32 %r6, %r6, 2; add.u32 %r6, %r3, %r6; ld.shared.u32 %r2, [%r6];\n" END,
              128, in, out);
    for (int l = 0; l < 128; l++) {
        assert_int_equal(out[l], in[127 - l]);
    }
}

static void every_space_is_reached_by_its_address(void **state) {
    (void)state;
    uint32_t in[32], out[32];
    for (uint32_t l = 0; l < 32; l++) {
        in[l] = 0x01020384 + l;
    }
    /* Generic addresses of shared and of local memory. */
    run_words(HEAD
              ".shared .align 16 .b8 words[1024]; .local .align 8 .b8 own[16];\n" START
              "mov.u64 %d3, words; cvta.shared.u64 %d4, %d3; mul.wide.u32 %d5, %r0, 4; add.s64 %d4, %d4, %d5;\n"
              "st.u32 [%d4], %r1; ld.u32 %r3, [%d4]; mov.u64 %d6, own; cvta.local.u64 %d7, %d6; st.u32 [%d7+8], %r3;\n"
              "ld.local.u32 %r2, [own+8];\n" END,
              32, in, out);
    assert_memory_equal(in, out, sizeof in);
    /* Bytes and halves, with and without sign. */
    run_words(HEAD START
              "ld.global.s8 %r3, [%d0]; ld.global.u8 %h1, [%d0+1]; cvt.u32.u16 %r4, %h1; ld.global.u16 %r5, [%d0+2];\n"
              "add.s32 %r2, %r3, %r4; add.s32 %r2, %r2, %r5;\n" END,
              32, in, out);
    for (int l = 0; l < 32; l++) {
        assert_int_equal((int32_t)out[l], (int8_t)(0x84 + l) + 3 + 0x0102);
    }
    /* A parameter that each lane chooses. */
    run_words(
        HEAD START
        "mov.b64 %d3, in; and.b32 %r3, %r0, 1; mul.wide.u32 %d4, %r3, 8; add.s64 %d3, %d3, %d4;\n"
        "ld.param.u64 %d5, [%d3]; ld.param.u64 %d6, [in]; setp.eq.s64 %p1, %d5, %d6; selp.u32 %r2, 1, 0, %p1;\n" END,
        32, in, out);
    for (int l = 0; l < 32; l++) {
        assert_int_equal(out[l], l % 2 == 0);
    }
    /* A table of constants, four elements at once. */
    run_words(
        ".version 8.0\n.target sm_80\n.address_size 64\n.const .align 16 .b32 table[4] = {10, 20, 30, 40};\n"
        ".global .align 4 .f32 scale = 0f40000000;\n"
        ".visible .entry run(.param .u64 in, .param .u64 out) {\n.reg .b32 %r<32>; .reg .f32 %f<4>; .reg .b64 "
        "%d<16>;\n" START "ld.const.v4.u32 {%r3, %r4, %r5, %r6}, [table]; mov.u64 %d4, table; cvta.const.u64 %d5, %d4; "
        "ld.u32 %r7, [%d5+4];\n"
        "sub.u32 %r2, %r6, %r7; ld.global.f32 %f1, [scale]; cvt.rzi.u32.f32 %r8, %f1; add.u32 %r2, %r2, %r8;\n" END,
        32, in, out);
    assert_int_equal(out[8], 22);
}

static void atomics_count_every_lane(void **state) {
    (void)state;
    struct machine machine;
    kernel_machine(&machine, 3);
    struct ptx_module *module = kernel_module(
        &machine,
        HEAD "ld.param.u64 %d1, [out]; mov.u32 %r1, 1; red.global.add.u32 [%d1], %r1; mov.u32 %r0, %tid.x;\n"
             "atom.global.max.u32 %r2, [%d1+4], %r0; mov.f32 %f1, 0f3F800000; atom.global.add.f32 %f2, [%d1+8], %f1;\n"
             "atom.global.cas.b32 %r3, [%d1+12], 7, %r0; atom.global.exch.b32 %r4, [%d1+16], 9; atom.global.inc.u32 "
             "%r5, [%d1+20], 2;\n"
             "ret;\n}\n");
    uint32_t words[6] = {0, 0, 0, 8, 0, 0};
    const struct { uint64_t in, out; } params = {0, kernel_memory(&machine, words, sizeof words)};
    kernel_ok(&machine, kernel_run(&machine, module, "run", 5, 64, &params));
    assert_int_equal(memory_read(&machine, words, params.out, sizeof words), 0);
    float sum;
    memcpy(&sum, &words[2], sizeof sum);
    assert_int_equal(words[0], 320);
    assert_int_equal(words[1], 63);
    assert_true(sum == 320);
    assert_int_equal(words[3], 8);
    assert_int_equal(words[4], 9);
    assert_int_equal(words[5], 320 % 3);
    ptx_close(module);
    machine_close(&machine);
}

static uint16_t bf16_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static void ldmatrix_gives_each_lane_its_pair(void **state) {
    (void)state;
    uint32_t in[32], out[32];
    for (uint32_t l = 0; l < 32; l++) { /* row l / 4, columns 2 (l % 4) and the next, as 16 row + column */
        in[l] = (16 * (l / 4) + 2 * (l % 4)) | (16 * (l / 4) + 2 * (l % 4) + 1) << 16;
    }
    static const char start[] = HEAD
        ".shared .align 16 .b8 rows[128];\n" START
        "mov.u32 %r3, rows; shl.b32 %r4, %r0, 2; add.u32 %r4, %r3, %r4; st.shared.u32 [%r4], %r1; bar.warp.sync -1;\n"
        "and.b32 %r5, %r0, 7; shl.b32 %r5, %r5, 4; add.u32 %r5, %r3, %r5;\n";
    char text[2048];
    for (int is_transposed = 0; is_transposed < 2; is_transposed++) {
        snprintf(text, sizeof text, "%s ldmatrix.sync.aligned.m8n8.x1%s.shared.b16 {%%r2}, [%%r5];\n%s", start,
                 is_transposed ? ".trans" : "", END);
        run_words(text, 32, in, out);
        for (uint32_t l = 0; l < 32; l++) {
            uint32_t row = l / 4, column = 2 * (l % 4);
            uint32_t low = is_transposed ? 16 * column + row : 16 * row + column;
            uint32_t high = is_transposed ? 16 * (column + 1) + row : 16 * row + column + 1;
            assert_int_equal(out[l], low | high << 16);
        }
    }
}

/* The tables of the manual, "Matrix Fragments for mma.m16n8k16" and its neighbours, written element by element: the row
 * and the column of element i of lane l. */
static void place_of(char matrix, int k, bool is_half, int l, int i, int *row, int *column) {
    int group = l >> 2, member = l % 4;
    if (matrix == 'c') {
        *row = i < 2 ? group : group + 8;
        *column = member * 2 + (i & 1);
    } else if (matrix == 'a' && is_half) {
        *row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
        *column = i < 4 ? member * 2 + (i & 1) : member * 2 + (i & 1) + 8;
    } else if (matrix == 'a') {
        *row = i == 0 || i == 2 ? group : group + 8;
        *column = i < 2 ? member : member + 4;
    } else if (is_half) {
        *row = i < 2 ? member * 2 + (i & 1) : member * 2 + (i & 1) + 8;
        *column = group;
    } else {
        *row = i == 0 ? member : member + 4;
        *column = group;
    }
    (void)k;
}

/* The registers of a, b and c of each lane, 4 words each. */
static void fill_fragments(uint32_t (*in)[12], int k, int a_registers, int b_registers, bool is_half, float (*a)[16],
                           float (*b)[8], float (*c)[8]) {
    for (int l = 0; l < 32; l++) {
        int per = is_half ? 2 : 1, row, column;
        for (int i = 0; i < a_registers * per; i++) {
            place_of('a', k, per == 2, l, i, &row, &column);
            memcpy((char *)&in[l][0] + 4 / per * i,
                   per == 2 ? (void *)&(uint16_t){bf16_of(a[row][column])} : &a[row][column], (size_t)(4 / per));
        }
        for (int i = 0; i < b_registers * per; i++) {
            place_of('b', k, per == 2, l, i, &row, &column);
            memcpy((char *)&in[l][4] + 4 / per * i,
                   per == 2 ? (void *)&(uint16_t){bf16_of(b[row][column])} : &b[row][column], (size_t)(4 / per));
        }
        for (int i = 0; i < 4; i++) {
            place_of('c', k, false, l, i, &row, &column);
            memcpy(&in[l][8 + i], &c[row][column], 4);
        }
    }
}

static void products_follow_the_tables_of_fragments(void **state) {
    (void)state;
    static const struct {
        const char *shape, *a, *b;
        int k, a_registers, b_registers;
        bool is_half;
    } rows[] = {
        {"m16n8k16.row.col.f32.bf16.bf16.f32", "{%r1, %r2, %r3, %r4}", "{%r5, %r6}", 16, 4, 2, true},
        {"m16n8k8.row.col.f32.bf16.bf16.f32", "{%r1, %r2}", "{%r5}", 8, 2, 1, true},
        {"m16n8k8.row.col.f32.tf32.tf32.f32", "{%r1, %r2, %r3, %r4}", "{%r5, %r6}", 8, 4, 2, false},
        {"m16n8k4.row.col.f32.tf32.tf32.f32", "{%r1, %r2}", "{%r5}", 4, 2, 1, false},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct machine machine;
        float a[16][16] = {{0}}, b[16][8] = {{0}}, c[16][8], d[32][4];
        uint32_t in[32][12] = {{0}};
        kernel_machine(&machine, 1);
        for (int n = 0; n < 256; n++) {
            a[n / 16][n % 16] = (float)(n * 7 % 23 - 11) / 4;
            b[n / 8 % 16][n % 8] = (float)(n * 5 % 19 - 9) / 8;
            c[n / 8 % 16][n % 8] = (float)(n % 8 - n / 8);
        }
        fill_fragments(in, rows[r].k, rows[r].a_registers, rows[r].b_registers, rows[r].is_half, a, b, c);
        char text[2048];
        snprintf(text, sizeof text,
                 "%s ld.param.u64 %%d0, [in]; ld.param.u64 %%d1, [out]; mov.u32 %%r0, %%tid.x;\n"
                 "mul.wide.u32 %%d2, %%r0, 48; add.s64 %%d0, %%d0, %%d2; mul.wide.u32 %%d2, %%r0, 16; add.s64 %%d1, "
                 "%%d1, %%d2;\n"
                 "ld.global.v4.u32 {%%r1, %%r2, %%r3, %%r4}, [%%d0]; ld.global.v2.u32 {%%r5, %%r6}, [%%d0+16];\n"
                 "ld.global.v4.f32 {%%f1, %%f2, %%f3, %%f4}, [%%d0+32];\n"
                 "mma.sync.aligned.%s {%%f5, %%f6, %%f7, %%f8}, %s, %s, {%%f1, %%f2, %%f3, %%f4};\n"
                 "st.global.v4.f32 [%%d1], {%%f5, %%f6, %%f7, %%f8};\nret;\n}\n",
                 HEAD, rows[r].shape, rows[r].a, rows[r].b);
        struct ptx_module *module = kernel_module(&machine, text);
        const struct {
            uint64_t in, out;
        } params = {kernel_memory(&machine, in, sizeof in), kernel_memory(&machine, NULL, sizeof d)};
        kernel_ok(&machine, kernel_run(&machine, module, "run", 1, 32, &params));
        assert_int_equal(memory_read(&machine, d, params.out, sizeof d), 0);
        for (int l = 0; l < 32; l++) {
            for (int i = 0; i < 4; i++) {
                int row, column;
                place_of('c', 0, false, l, i, &row, &column);
                double sum = c[row][column];
                for (int k = 0; k < rows[r].k; k++) {
                    sum += (double)a[row][k] * b[k][column];
                }
                assert_true(d[l][i] == (float)sum); /* the numbers are small fractions: every sum is exact */
            }
        }
        ptx_close(module);
        machine_close(&machine);
    }
}

static void an_asynchronous_copy_lands_at_its_wait(void **state) {
    (void)state;
    uint32_t in[128], out[128];
    for (uint32_t l = 0; l < 128; l++) {
        in[l] = l * l;
    }
    /* Lane l copies word l; the second group stays in flight until the last wait. The third copy takes no byte: zero.
     */
    run_words(HEAD ".shared .align 16 .b8 words[4096];\n" START
                   "mov.u32 %r3, words; shl.b32 %r4, %r0, 2; add.u32 %r4, %r3, %r4; mov.u32 %r9, 0;\n"
                   "cp.async.ca.shared.global [%r4], [%d0], 4; cp.async.commit_group;\n"
                   "add.u32 %r5, %r4, 512; cp.async.ca.shared.global [%r5], [%d0], 4; cp.async.commit_group;\n"
                   "cp.async.wait_group 1; ld.shared.u32 %r2, [%r4]; add.u32 %r6, %r4, 1024;\n"
                   "cp.async.ca.shared.global [%r6], [%d0], 4, %r9; cp.async.wait_all; ld.shared.u32 %r7, [%r5];\n"
                   "ld.shared.u32 %r8, [%r6]; add.u32 %r2, %r2, %r7; add.u32 %r2, %r2, %r8;\n" END,
              128, in, out);
    for (uint32_t l = 0; l < 128; l++) {
        assert_int_equal(out[l], 2 * in[l]);
    }
}

/* The message of a kernel that cannot be decoded. */
static const char *failure_of(const char *text) {
    static char message[PTX_MESSAGE];
    struct ptx_module *module = NULL;
    assert_int_equal(ptx_open("a.ptx", text, strlen(text), NULL, NULL, &module, message), 0);
    assert_int_equal(ptx_decode(module, module->kernels, message), -1);
    char again[PTX_MESSAGE];
    assert_int_equal(ptx_decode(module, module->kernels, again), -1);
    ptx_close(module);
    return message;
}

static void an_unknown_instruction_fails_by_name_and_line(void **state) {
    (void)state;
    const char *message = failure_of(HEAD "mov.u32 %r1, 1;\nwgmma.fence.sync.aligned;\nret;\n}\n");
    assert_non_null(strstr(message, "a.ptx:7: instruction wgmma.fence.sync.aligned is not known"));
    message = failure_of(HEAD "add.f16 %h1, %h2, %h3;\nret;\n}\n");
    assert_non_null(strstr(message, "instruction add.f16 is not known"));
}

/* Bodies are gone over without a look at their words. */
static void a_body_ends_at_its_last_brace(void **state) {
    static const char text[] = HEAD "{ // a brace } in a comment\n{ mov.u32 %r1, 1; /* } */ }\n}\nret;\n}\n"
                                    ".visible .entry second()\n{\nexit;\n}\n";
    struct machine machine;
    (void)state;
    kernel_machine(&machine, 1);
    struct ptx_module *module = kernel_module(&machine, text);
    assert_non_null(ptx_kernel_find(module, "second"));
    assert_true(module->kernels->next && !module->kernels->next->next);
    ptx_close(module);
    machine_close(&machine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shuffles_read_the_lane_of_their_kind),
        cmocka_unit_test(votes_and_reductions_see_all_members),
        cmocka_unit_test(parted_lanes_meet_again),
        cmocka_unit_test(shared_memory_crosses_warps_at_a_barrier),
        cmocka_unit_test(every_space_is_reached_by_its_address),
        cmocka_unit_test(atomics_count_every_lane),
        cmocka_unit_test(ldmatrix_gives_each_lane_its_pair),
        cmocka_unit_test(products_follow_the_tables_of_fragments),
        cmocka_unit_test(an_asynchronous_copy_lands_at_its_wait),
        cmocka_unit_test(an_unknown_instruction_fails_by_name_and_line),
        cmocka_unit_test(a_body_ends_at_its_last_brace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
