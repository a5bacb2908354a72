/* Each arithmetic instruction on values whose results follow from the PTX manual. */
#include "cuda/support.h"
#include "support/test.h"

#include <math.h>

/* An instruction with %a, %b, %c as sources and %d as destination. Types are of d, a, b, c: h has 16 bits, w 32, q 64,
 * and p is a predicate. */
struct vector {
    const char *instruction, *types;
    uint64_t a, b, c, d;
};

static uint64_t f(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static uint64_t g(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static const char *bits_of(char type) {
    return type == 'h' ? "b16" : type == 'q' ? "b64" : "b32";
}

/* A kernel that reads three numbers of 64 bits a lane and writes one; lane 5 does not run the instruction. */
static void write_text(char *text, size_t size, const struct vector *vector) {
    int length = snprintf(text, size,
                          ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry run(.param .u64 in, "
                          ".param .u64 out) {\n.reg .pred %%off; .reg .b32 %%t; .reg .b64 %%i, %%o, %%n, %%x;\n");
    for (size_t i = 0; vector->types[i]; i++) {
        char type = vector->types[i];
        length += snprintf(text + length, size - (size_t)length, ".reg .%s %%%c;\n",
                           type == 'p' ? "pred" : bits_of(type), "dabc"[i]);
    }
    length += snprintf(text + length, size - (size_t)length,
                       "ld.param.u64 %%i, [in]; ld.param.u64 %%o, [out]; mov.u32 %%t, %%tid.x;\n"
                       "mul.wide.u32 %%n, %%t, 8; add.s64 %%o, %%o, %%n; setp.eq.s32 %%off, %%t, 5;\n");
    for (size_t i = 1; vector->types[i]; i++) {
        char type = vector->types[i], name = "dabc"[i];
        if (type == 'p') {
            length += snprintf(text + length, size - (size_t)length,
                               "ld.global.b64 %%x, [%%i+%zu]; setp.ne.s64 %%%c, %%x, 0;\n", 8 * (i - 1), name);
        } else {
            length += snprintf(text + length, size - (size_t)length, "ld.global.%s %%%c, [%%i+%zu];\n", bits_of(type),
                               name, 8 * (i - 1));
        }
    }
    const char *store = vector->types[0] == 'p'   ? "selp.b64 %x, 1, 0, %d; @!%off st.global.b64 [%o], %x;"
                        : vector->types[0] == 'q' ? "@!%off st.global.b64 [%o], %d;"
                        : vector->types[0] == 'w' ? "@!%off cvt.u64.u32 %x, %d; @!%off st.global.b64 [%o], %x;"
                                                  : "@!%off cvt.u64.u16 %x, %d; @!%off st.global.b64 [%o], %x;";
    snprintf(text + length, size - (size_t)length, "%s %s\n@%%off bra END;\n%s\nEND: ret;\n}\n",
             vector->instruction[0] == '{' ? "" : "@!%off", vector->instruction, store);
}

/* Runs a vector; `results` are those of 32 lanes. */
static void run_vector(const struct vector *vector, uint64_t *results) {
    char text[2048];
    struct machine machine;
    write_text(text, sizeof text, vector);
    kernel_machine(&machine, 1);
    struct ptx_module *module = kernel_module(&machine, text);
    const uint64_t in[] = {vector->a, vector->b, vector->c};
    memset(results, 0, LANES * sizeof *results);
    const struct {
        uint64_t in, out;
    } params = {kernel_memory(&machine, in, sizeof in), kernel_memory(&machine, results, LANES * sizeof *results)};
    kernel_ok(&machine, kernel_run(&machine, module, "run", 1, LANES, &params));
    assert_int_equal(memory_read(&machine, results, params.out, LANES * sizeof *results), 0);
    ptx_close(module);
    machine_close(&machine);
}

static void check_vectors(const struct vector *vectors, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint64_t results[LANES];
        run_vector(&vectors[i], results);
        for (int l = 0; l < LANES; l++) {
            uint64_t expected = l == 5 ? 0 : vectors[i].d;
            if (results[l] != expected) {
                fail_msg("%s, lane %d: 0x%llx, and not 0x%llx", vectors[i].instruction, l,
                         (unsigned long long)results[l], (unsigned long long)expected);
            }
        }
    }
}
#define CHECK(vectors) check_vectors(vectors, sizeof(vectors) / sizeof *(vectors))

static void integers_wrap_and_widen(void **state) {
    (void)state;
    const struct vector vectors[] = {
        {"add.s32 %d, %a, %b;", "www", 0xFFFFFFFF, 2, 0, 1},
        {"add.u16 %d, %a, %b;", "hhh", 0xFFFF, 3, 0, 2},
        {"add.s64 %d, %a, %b;", "qqq", ~0ull, 5, 0, 4},
        {"sub.s32 %d, %a, %b;", "www", 1, 3, 0, 0xFFFFFFFE},
        {"mul.lo.s32 %d, %a, %b;", "www", 0x10001, 0x10001, 0, 0x20001},
        {"mul.lo.s64 %d, %a, -3;", "qq", 5, 0, 0, (uint64_t)-15},
        {"mul.lo.s16 %d, %a, %b;", "hhh", 300, 300, 0, 90000 & 0xFFFF},
        {"mul.hi.u32 %d, %a, %b;", "www", 0xFFFFFFFF, 0xFFFFFFFF, 0, 0xFFFFFFFE},
        {"mul.hi.s32 %d, %a, %b;", "www", 0xFFFFFFFF, 0xFFFFFFFF, 0, 0},
        {"mul.hi.u64 %d, %a, %b;", "qqq", 1ull << 63, 6, 0, 3},
        {"mul.hi.s64 %d, %a, %b;", "qqq", ~0ull, 6, 0, ~0ull},
        {"mul.wide.u32 %d, %a, %b;", "qww", 0xFFFFFFFF, 2, 0, 0x1FFFFFFFE},
        {"mul.wide.s32 %d, %a, %b;", "qww", 0xFFFFFFFF, 2, 0, (uint64_t)-2},
        {"mul.wide.u16 %d, %a, %b;", "whh", 0xFFFF, 0xFFFF, 0, 0xFFFE0001},
        {"mul.wide.s16 %d, %a, %b;", "whh", 0xFFFF, 7, 0, 0xFFFFFFF9},
        {"mad.lo.s32 %d, %a, %b, %c;", "wwww", 7, 6, 5, 47},
        {"mad.lo.s64 %d, %a, %b, %c;", "qqqq", 1ull << 40, 3, 1, (3ull << 40) + 1},
        {"mad.wide.u32 %d, %a, %b, %c;", "qwwq", 0x80000000, 4, 1, 0x200000001},
        {"mad.wide.s32 %d, %a, %b, %c;", "qwwq", 0x80000000, 4, 1, (uint64_t)-0x1FFFFFFFF},
        {"mad.hi.u32 %d, %a, %b, %c;", "wwww", 0x80000000, 8, 2, 6},
        {"div.s32 %d, %a, %b;", "www", (uint32_t)-7, 2, 0, (uint32_t)-3},
        {"div.u32 %d, %a, %b;", "www", 0xFFFFFFF9, 2, 0, 0x7FFFFFFC},
        {"rem.s32 %d, %a, %b;", "www", (uint32_t)-7, 2, 0, (uint32_t)-1},
        {"rem.u64 %d, %a, %b;", "qqq", 1ull << 63, 10, 0, 8},
        {"div.s64 %d, %a, %b;", "qqq", (uint64_t)-100, 7, 0, (uint64_t)-14},
        {"min.s32 %d, %a, %b;", "www", 0xFFFFFFFF, 1, 0, 0xFFFFFFFF},
        {"min.u32 %d, %a, %b;", "www", 0xFFFFFFFF, 1, 0, 1},
        {"max.s64 %d, %a, %b;", "qqq", ~0ull, 1, 0, 1},
        {"max.u16 %d, %a, %b;", "hhh", 0x8000, 1, 0, 0x8000},
        {"max.s16 %d, %a, %b;", "hhh", 0x8000, 1, 0, 1},
        {"abs.s32 %d, %a;", "ww", 0xFFFFFFFB, 0, 0, 5},
        {"neg.s32 %d, %a;", "ww", 5, 0, 0, 0xFFFFFFFB},
        {"neg.s64 %d, %a;", "qq", 5, 0, 0, (uint64_t)-5},
        {"sad.u32 %d, %a, %b, %c;", "wwww", 3, 9, 100, 106},
        {"sad.s32 %d, %a, %b, %c;", "wwww", (uint32_t)-3, 9, 100, 112},
    };
    CHECK(vectors);
}

static void bits_move_as_the_manual_says(void **state) {
    (void)state;
    const struct vector vectors[] = {
        {"and.b32 %d, %a, %b;", "www", 0xFF00FF00, 0x0FF00FF0, 0, 0x0F000F00},
        {"or.b16 %d, %a, %b;", "hhh", 0xF000, 0x000F, 0, 0xF00F},
        {"xor.b64 %d, %a, %b;", "qqq", ~0ull, 1, 0, ~1ull},
        {"not.b32 %d, %a;", "ww", 0, 0, 0, 0xFFFFFFFF},
        {"shl.b32 %d, %a, %b;", "www", 1, 31, 0, 0x80000000},
        {"shl.b32 %d, %a, %b;", "www", 1, 32, 0, 0},
        {"shl.b64 %d, %a, %b;", "qqw", 1, 40, 0, 1ull << 40},
        {"shl.b16 %d, %a, 4;", "hh", 0xFFFF, 0, 0, 0xFFF0},
        {"shr.u32 %d, %a, %b;", "www", 0x80000000, 31, 0, 1},
        {"shr.s32 %d, %a, %b;", "www", 0x80000000, 99, 0, 0xFFFFFFFF},
        {"shr.u64 %d, %a, %b;", "qqw", 1ull << 63, 64, 0, 0},
        {"shr.s64 %d, %a, %b;", "qqw", 1ull << 63, 3, 0, 0xF000000000000000},
        {"shr.s16 %d, %a, 1;", "hh", 0x8000, 0, 0, 0xC000},
        {"popc.b32 %d, %a;", "ww", 0xF0F0F001, 0, 0, 13},
        {"popc.b64 %d, %a;", "wq", ~0ull, 0, 0, 64},
        {"clz.b32 %d, %a;", "ww", 1, 0, 0, 31},
        {"clz.b32 %d, %a;", "ww", 0, 0, 0, 32},
        {"clz.b64 %d, %a;", "wq", 1, 0, 0, 63},
        {"brev.b32 %d, %a;", "ww", 0x80000001, 0, 0, 0x80000001},
        {"brev.b32 %d, %a;", "ww", 0x3, 0, 0, 0xC0000000},
        {"brev.b64 %d, %a;", "qq", 0x3, 0, 0, 0xC000000000000000},
        {"bfind.u32 %d, %a;", "ww", 0x00010000, 0, 0, 16},
        {"bfind.shiftamt.u32 %d, %a;", "ww", 0x00010000, 0, 0, 15},
        {"bfind.u32 %d, %a;", "ww", 0, 0, 0, 0xFFFFFFFF},
        {"bfe.u32 %d, %a, %b, %c;", "wwww", 0xABCD1234, 8, 8, 0x12},
        {"bfe.s32 %d, %a, %b, %c;", "wwww", 0x0000F000, 12, 4, 0xFFFFFFFF},
        {"bfe.u32 %d, %a, %b, %c;", "wwww", 0xABCD1234, 28, 8, 0xA},
        {"bfe.s32 %d, %a, %b, %c;", "wwww", 0xABCD1234, 28, 8, 0xFFFFFFFA},
        {"bfe.u64 %d, %a, %b, %c;", "qqww", 0xABCD123400000000, 32, 16, 0x1234},
        {"bfi.b32 %d, %a, %b, %c, 8;", "wwww", 0xABCD, 0x11111111, 12, 0x111CD111},
        {"bfi.b32 %d, %a, %b, %c, 8;", "wwww", 0xABCD, 0x11111111, 28, 0xD1111111},
        {"bfi.b32 %d, %a, %b, %c, 0;", "wwww", 0xABCD, 0x11111111, 4, 0x11111111},
        {"bfi.b64 %d, %a, %b, %c, 16;", "qqqw", 0xABCD, 0, 40, 0x00ABCD0000000000},
        {"prmt.b32 %d, %a, %b, %c;", "wwww", 0x33221100, 0x77665544, 0x7531, 0x77553311},
        {"prmt.b32 %d, %a, %b, %c;", "wwww", 0x332211F0, 0, 0x0008, 0xF0F0F0FF},
        {"shf.l.wrap.b32 %d, %a, %b, %c;", "wwww", 0x80000000, 1, 33, 3},
        {"shf.r.wrap.b32 %d, %a, %b, %c;", "wwww", 0x80000000, 1, 4, 0x18000000},
        {"shf.r.clamp.b32 %d, %a, %b, %c;", "wwww", 5, 7, 40, 7},
        {"shf.l.clamp.b32 %d, %a, %b, %c;", "wwww", 5, 7, 40, 5},
        {"lop3.b32 %d, %a, %b, %c, 0x96;", "wwww", 0xF0F0F0F0, 0xCCCCCCCC, 0xAAAAAAAA, 0x96969696},
        {"lop3.b32 %d, %a, %b, %c, 0xE8;", "wwww", 0xF0F0F0F0, 0xCCCCCCCC, 0xAAAAAAAA, 0xE8E8E8E8},
        {"mov.b32 %d, {%a, %b};", "whh", 0x1234, 0xABCD, 0, 0xABCD1234},
        {"mov.b64 %d, {%a, %b};", "qww", 1, 2, 0, 0x200000001},
        {"{.reg .b16 %e; @!%off mov.b32 {%e, %d}, %a;}", "hw", 0xABCD1234, 0, 0, 0xABCD},
        {"{.reg .b32 %e; @!%off mov.b64 {%d, %e}, %a;}", "wq", 0x200000001, 0, 0, 1},
        {"mov.f32 %d, 0f40490FDB;", "w", 0, 0, 0, 0x40490FDB},
        {"mov.f64 %d, 0d3FF0000000000000;", "q", 0, 0, 0, 0x3FF0000000000000},
    };
    CHECK(vectors);
}

static void floats_round_as_their_opcodes_say(void **state) {
    (void)state;
    const float third = 1.0f / 3, tiny = 0x1p-140f;
    const struct vector vectors[] = {
        {"add.f32 %d, %a, %b;", "www", f(1), f(0x1p-24f), 0, f(1)},
        {"add.rp.f32 %d, %a, %b;", "www", f(1), f(0x1p-30f), 0, f(1 + 0x1p-23f)},
        {"add.rm.f32 %d, %a, %b;", "www", f(1), f(-0x1p-30f), 0, f(1 - 0x1p-24f)},
        {"add.rz.f32 %d, %a, %b;", "www", f(-1), f(0x1p-30f), 0, f(-1 + 0x1p-24f)},
        {"sub.f32 %d, %a, %b;", "www", f(3), f(5), 0, f(-2)},
        {"mul.f32 %d, %a, %b;", "www", f(3), f(third), 0, f(3 * third)},
        {"mul.rz.f32 %d, %a, %b;", "www", f(third), f(3), 0, f(1)},
        {"mul.rz.f32 %d, %a, %b;", "www", f(1 + 0x1p-23f), f(1 + 0x1p-23f), 0, f(1 + 0x1p-22f)},
        {"mul.rp.f32 %d, %a, %b;", "www", f(1 + 0x1p-23f), f(1 + 0x1p-23f), 0, f(1 + 0x1p-22f + 0x1p-23f)},
        {"fma.rn.f32 %d, %a, %b, %c;", "wwww", f(1 + 0x1p-12f), f(1 + 0x1p-12f), f(-1), f(0x1p-11f + 0x1p-24f)},
        {"fma.rm.f32 %d, %a, %b, %c;", "wwww", f(1), f(-0x1p-30f), f(1), f(1 - 0x1p-24f)},
        {"fma.rp.f32 %d, %a, %b, %c;", "wwww", f(1), f(0x1p-30f), f(1), f(1 + 0x1p-23f)},
        {"fma.rn.f64 %d, %a, %b, %c;", "qqqq", g(1 + 0x1p-30), g(1 + 0x1p-30), g(-1), g(0x1p-29 + 0x1p-60)},
        {"div.rn.f32 %d, %a, %b;", "www", f(1), f(3), 0, f(third)},
        {"div.rn.f64 %d, %a, %b;", "qqq", g(1), g(3), 0, g(1.0 / 3)},
        {"sqrt.rn.f32 %d, %a;", "ww", f(2), 0, 0, f(1.41421356f)},
        {"sqrt.rn.f64 %d, %a;", "qq", g(2), 0, 0, g(1.4142135623730951)},
        {"rcp.rn.f32 %d, %a;", "ww", f(3), 0, 0, f(third)},
        {"min.f32 %d, %a, %b;", "www", f(NAN), f(2), 0, f(2)},
        {"max.f32 %d, %a, %b;", "www", f(2), f(NAN), 0, f(2)},
        {"min.f32 %d, %a, %b;", "www", f(0.0f), f(-0.0f), 0, f(-0.0f)},
        {"max.f32 %d, %a, %b;", "www", f(-0.0f), f(0.0f), 0, f(0.0f)},
        {"max.NaN.f32 %d, %a, %b;", "www", f(2), f(NAN), 0, 0x7FFFFFFF},
        {"max.f64 %d, %a, %b;", "qqq", g(2), g(-3), 0, g(2)},
        {"neg.f32 %d, %a;", "ww", f(0), 0, 0, 0x80000000},
        {"abs.f64 %d, %a;", "qq", g(-2), 0, 0, g(2)},
        {"copysign.f32 %d, %a, %b;", "www", f(-1), f(3), 0, f(-3)},
        {"add.ftz.f32 %d, %a, %b;", "www", f(tiny), f(tiny), 0, 0},
        {"add.f32 %d, %a, %b;", "www", f(tiny), f(tiny), 0, f(2 * tiny)},
        {"mul.ftz.f32 %d, %a, %b;", "www", f(-0x1p-100f), f(0x1p-40f), 0, 0x80000000},
        {"add.sat.f32 %d, %a, %b;", "www", f(2), f(3), 0, f(1)},
        {"fma.rn.sat.f32 %d, %a, %b, %c;", "wwww", f(-2), f(3), f(1), f(0)},
        {"add.sat.f32 %d, %a, %b;", "www", f(NAN), f(3), 0, f(0)},
    };
    CHECK(vectors);
}

static void bf16_rounds_once(void **state) {
    (void)state;
    /* 1 is 0x3F80 and 1 + 2^-7 is 0x3F81. */
    const struct vector vectors[] = {
        {"fma.rn.bf16 %d, %a, %b, %c;", "hhhh", 0x3F80, 0x3F81, 0x3F80, 0x4000},
        {"fma.rn.bf16x2 %d, %a, %b, %c;", "wwww", 0x40003F80, 0x40403F80, 0xBF80BF80, 0x40A00000},
        {"add.bf16 %d, %a, %b;", "hhh", 0x3F80, 0x3B80, 0, 0x3F80},
        {"add.bf16 %d, %a, %b;", "hhh", 0x3F81, 0x3B80, 0, 0x3F82},
        {"mul.bf16x2 %d, %a, %b;", "www", 0x40004000, 0x40404040, 0, 0x40C040C0},
        {"neg.bf16x2 %d, %a;", "ww", 0x3F80BF80, 0, 0, 0xBF803F80},
        {"abs.bf16 %d, %a;", "hh", 0xBF80, 0, 0, 0x3F80},
        {"max.bf16x2 %d, %a, %b;", "www", 0x3F80BF80, 0x40004000, 0, 0x40004000},
        {"min.bf16 %d, %a, %b;", "hhh", 0x7FC0, 0x4000, 0, 0x4000},
        {"cvt.rn.bf16.f32 %d, %a;", "hw", f(1 + 0x1p-8f), 0, 0, 0x3F80},
        {"cvt.rn.bf16.f32 %d, %a;", "hw", f(1 + 0x1p-7f + 0x1p-8f), 0, 0, 0x3F82},
        {"cvt.rz.bf16.f32 %d, %a;", "hw", f(1 + 0x1p-7f + 0x1p-8f), 0, 0, 0x3F81},
        {"cvt.rn.bf16.f32 %d, %a;", "hw", f(3.4028e38f), 0, 0, 0x7F80},
        {"cvt.rn.bf16.f32 %d, %a;", "hw", f(NAN), 0, 0, 0x7FFF},
        {"cvt.rn.bf16x2.f32 %d, %a, %b;", "www", f(1), f(-2), 0, 0x3F80C000},
        {"cvt.f32.bf16 %d, %a;", "wh", 0xC000, 0, 0, 0xC0000000},
    };
    CHECK(vectors);
}

static void conversions_round_and_saturate(void **state) {
    (void)state;
    const struct vector vectors[] = {
        {"cvt.s64.s32 %d, %a;", "qw", 0xFFFFFFFE, 0, 0, (uint64_t)-2},
        {"cvt.u64.u32 %d, %a;", "qw", 0xFFFFFFFE, 0, 0, 0xFFFFFFFE},
        {"cvt.u32.u64 %d, %a;", "wq", 0x1234567890, 0, 0, 0x34567890},
        {"cvt.s32.s16 %d, %a;", "wh", 0x8000, 0, 0, 0xFFFF8000},
        {"cvt.u16.u32 %d, %a;", "hw", 0x12345678, 0, 0, 0x5678},
        {"cvt.s32.s8 %d, %a;", "ww", 0x180, 0, 0, 0xFFFFFF80},
        {"cvt.u32.u8 %d, %a;", "ww", 0x180, 0, 0, 0x80},
        {"cvt.sat.u8.s32 %d, %a;", "ww", 0x180, 0, 0, 0xFF},
        {"cvt.sat.s8.s32 %d, %a;", "ww", (uint32_t)-500, 0, 0, 0xFFFFFF80},
        {"cvt.rzi.s32.f32 %d, %a;", "ww", f(-2.7f), 0, 0, (uint32_t)-2},
        {"cvt.rni.s32.f32 %d, %a;", "ww", f(2.5f), 0, 0, 2},
        {"cvt.rmi.s32.f32 %d, %a;", "ww", f(-2.1f), 0, 0, (uint32_t)-3},
        {"cvt.rpi.s32.f32 %d, %a;", "ww", f(2.1f), 0, 0, 3},
        {"cvt.rzi.u32.f32 %d, %a;", "ww", f(-1), 0, 0, 0},
        {"cvt.rzi.s32.f32 %d, %a;", "ww", f(3e9f), 0, 0, 0x7FFFFFFF},
        {"cvt.rzi.s64.f64 %d, %a;", "qq", g(-1e300), 0, 0, 1ull << 63},
        {"cvt.rzi.u32.f32 %d, %a;", "ww", f(NAN), 0, 0, 0},
        {"cvt.rn.f32.s32 %d, %a;", "ww", 0x1000001, 0, 0, f(16777216)},
        {"cvt.rz.f32.u32 %d, %a;", "ww", 0xFFFFFFFF, 0, 0, f(4294967040.0f)},
        {"cvt.rn.f32.u64 %d, %a;", "wq", (1ull << 40) + (1ull << 16) + 1, 0, 0, f(0x1p40f + 0x1p17f)},
        {"cvt.rn.f64.s64 %d, %a;", "qq", (uint64_t)-3, 0, 0, g(-3)},
        {"cvt.f64.f32 %d, %a;", "qw", f(1.5f), 0, 0, g(1.5)},
        {"cvt.rn.f32.f64 %d, %a;", "wq", g(1 + 0x1p-30), 0, 0, f(1)},
        {"cvt.rp.f32.f64 %d, %a;", "wq", g(1 + 0x1p-30), 0, 0, f(1 + 0x1p-23f)},
        {"cvt.rzi.f32.f32 %d, %a;", "ww", f(-2.7f), 0, 0, f(-2)},
        {"cvt.rni.f32.f32 %d, %a;", "ww", f(3.5f), 0, 0, f(4)},
        {"cvt.sat.f32.f32 %d, %a;", "ww", f(-3), 0, 0, f(0)},
        {"cvt.rn.f16.f32 %d, %a;", "hw", f(1.5f), 0, 0, 0x3E00},
        {"cvt.f32.f16 %d, %a;", "wh", 0x3E00, 0, 0, f(1.5f)},
        {"cvt.rna.tf32.f32 %d, %a;", "ww", f(1 + 0x1p-11f), 0, 0, f(1 + 0x1p-10f)},
        {"cvt.ftz.f32.f32 %d, %a;", "ww", 1, 0, 0, 0},
    };
    CHECK(vectors);
}

static void comparisons_know_nan_and_sign(void **state) {
    (void)state;
    const struct vector vectors[] = {
        {"setp.lt.s32 %d, %a, %b;", "pww", 0xFFFFFFFF, 0, 0, 1},
        {"setp.lt.u32 %d, %a, %b;", "pww", 0xFFFFFFFF, 0, 0, 0},
        {"setp.hi.u32 %d, %a, %b;", "pww", 0xFFFFFFFF, 0, 0, 1},
        {"setp.ge.s64 %d, %a, %b;", "pqq", ~0ull, 0, 0, 0},
        {"setp.eq.b16 %d, %a, %b;", "phh", 7, 7, 0, 1},
        {"setp.ne.s16 %d, %a, %b;", "phh", 7, 7, 0, 0},
        {"setp.eq.f32 %d, %a, %b;", "pww", f(NAN), f(NAN), 0, 0},
        {"setp.ne.f32 %d, %a, %b;", "pww", f(NAN), f(1), 0, 0},
        {"setp.neu.f32 %d, %a, %b;", "pww", f(NAN), f(1), 0, 1},
        {"setp.equ.f32 %d, %a, %b;", "pww", f(NAN), f(1), 0, 1},
        {"setp.geu.f32 %d, %a, %b;", "pww", f(NAN), f(1), 0, 1},
        {"setp.le.f64 %d, %a, %b;", "pqq", g(1), g(1), 0, 1},
        {"setp.num.f32 %d, %a, %b;", "pww", f(1), f(2), 0, 1},
        {"setp.nan.f32 %d, %a, %b;", "pww", f(1), f(NAN), 0, 1},
        {"setp.lt.ftz.f32 %d, %a, %b;", "pww", 0, 1, 0, 0},
        {"setp.lt.and.s32 %d, %a, %b, %c;", "pwwp", 1, 2, 0, 0},
        {"setp.lt.or.s32 %d, %a, %b, %c;", "pwwp", 3, 2, 1, 1},
        {"setp.lt.xor.s32 %d, %a, %b, !%c;", "pwwp", 1, 2, 0, 0},
        {"{.reg .pred %e; @!%off setp.lt.s32 %e|%d, %a, %b;}", "pww", 1, 2, 0, 0},
        {"selp.b32 %d, %a, %b, %c;", "wwwp", 4, 9, 1, 4},
        {"selp.f64 %d, %a, %b, !%c;", "qqqp", 4, 9, 1, 9},
        {"and.pred %d, %a, !%b;", "ppp", 1, 0, 0, 1},
        {"or.pred %d, %a, %b;", "ppp", 0, 0, 0, 0},
        {"xor.pred %d, %a, %b;", "ppp", 1, 1, 0, 0},
        {"not.pred %d, %a;", "pp", 0, 0, 0, 1},
        {"mov.pred %d, -1;", "p", 0, 0, 0, 1},
    };
    CHECK(vectors);
}

/* The largest error in the manual: relative, or absolute where the result is below 1. */
static void approximations_err_within_the_manuals_bounds(void **state) {
    (void)state;
    static const struct {
        const char *instruction;
        double (*exact)(double);
        double error;
        bool is_absolute;
    } rows[] = {
        {"ex2.approx.f32 %d, %a;", exp2, 0x1p-22, false},  {"lg2.approx.f32 %d, %a;", log2, 0x1p-22, true},
        {"sin.approx.f32 %d, %a;", sin, 0x1p-20, true},    {"cos.approx.f32 %d, %a;", cos, 0x1p-20, true},
        {"sqrt.approx.f32 %d, %a;", sqrt, 0x1p-22, false}, {"tanh.approx.f32 %d, %a;", tanh, 0x1p-10, false},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        int moved = 0;
        for (int n = 1; n < 40; n++) {
            float value = 0.07f * (float)n, result;
            uint64_t results[LANES];
            run_vector(&(const struct vector){rows[r].instruction, "ww", f(value), 0, 0, 0}, results);
            memcpy(&result, results, sizeof result);
            double exact = rows[r].exact(value), error = fabs((double)result - exact);
            double bound = rows[r].is_absolute && fabs(exact) < 1 ? rows[r].error : rows[r].error * fabs(exact);
            assert_true(error <= bound);
            moved += result != (float)exact;
        }
        assert_true(moved > 5); /* nobody may rely on more than the manual promises */
    }
    const struct vector vectors[] = {
        {"ex2.approx.ftz.f32 %d, %a;", "ww", f(-INFINITY), 0, 0, 0},
        {"ex2.approx.f32 %d, %a;", "ww", f(-0.0f), 0, 0, f(1)},
        {"rcp.approx.ftz.f32 %d, %a;", "ww", f(INFINITY), 0, 0, 0},
        {"rsqrt.approx.f32 %d, %a;", "ww", f(0), 0, 0, f(INFINITY)},
        {"lg2.approx.f32 %d, %a;", "ww", f(0), 0, 0, f(-INFINITY)},
        {"div.full.f32 %d, %a, %b;", "www", f(0), f(3), 0, 0},
        {"rcp.approx.ftz.f64 %d, %a;", "qq", g(-INFINITY), 0, 0, 1ull << 63},
        {"rcp.approx.ftz.f64 %d, %a;", "qq", g(0x1p-1030), 0, 0, g(INFINITY)},
        {"rcp.approx.ftz.f64 %d, %a;", "qq", g(-0x1p1023), 0, 0, 1ull << 63},
    };
    CHECK(vectors);
}

/* The reciprocal of the upper half of a double is an upper half, which begins a division. */
static void a_gross_reciprocal_has_half_of_a_double(void **state) {
    (void)state;
    for (int n = 1; n < 40; n++) {
        double value = 0.07 * n, result;
        uint64_t results[LANES];
        run_vector(&(const struct vector){"rcp.approx.ftz.f64 %d, %a;", "qq", g(value), 0, 0, 0}, results);
        memcpy(&result, results, sizeof result);
        assert_int_equal((uint32_t)results[0], 0);
        assert_true(fabs(result * value - 1) < 0x1p-19);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_wrap_and_widen),
        cmocka_unit_test(bits_move_as_the_manual_says),
        cmocka_unit_test(floats_round_as_their_opcodes_say),
        cmocka_unit_test(bf16_rounds_once),
        cmocka_unit_test(conversions_round_and_saturate),
        cmocka_unit_test(comparisons_know_nan_and_sign),
        cmocka_unit_test(approximations_err_within_the_manuals_bounds),
        cmocka_unit_test(a_gross_reciprocal_has_half_of_a_double),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
