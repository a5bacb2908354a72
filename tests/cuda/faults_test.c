/* Planted faults in small kernels, each found by the check that is meant for it. */
#include "cuda/support.h"
#include "support/test.h"

#define HEAD                                                                                                           \
    ".version 8.0\n.target sm_80\n.address_size 64\n"                                                                  \
    ".visible .entry run(.param .u64 memory) {\n"                                                                      \
    ".reg .pred %p<8>; .reg .b32 %r<16>; .reg .b64 %d<8>; .shared .align 16 .b8 words[1024];\n"                        \
    "ld.param.u64 %d0, [memory]; mov.u32 %r0, %tid.x; mul.wide.u32 %d1, %r0, 4; add.s64 %d1, %d0, %d1;\n"              \
    "mov.u32 %r1, words; shl.b32 %r2, %r0, 2; add.u32 %r2, %r1, %r2; mov.u32 %r9, 5; mov.u32 %r10, %ctaid.x;\n"
#define END          "\nret;\n}\n"
#define WRITE_SHARED "st.shared.u32 [%r2], %r0;\n"
/* The word of the thread 32 places on, in another warp. */
#define OTHER_WARP "xor.b32 %r3, %r2, 128;\n"

struct fault {
    const char *text, *message;
    uint32_t blocks, threads;
};

/* 64 threads and 256 bytes of memory, of which the last 16 bytes have no value. */
static const struct fault faults[] = {
    {HEAD "st.global.u32 [%d1], %r9;" END, NULL, 1, 64},
    {HEAD "st.global.u32 [%d1+4], %r9;" END,
     "outside every allocation: 4 bytes at 0 bytes after the end of allocation 1", 1, 64},
    {HEAD "st.global.u32 [%d1+-4], %r9;" END, "outside every allocation: 4 bytes at 4 bytes before allocation 1", 1,
     64},
    {HEAD "ld.global.u32 %r3, [%d0+2];" END, "misaligned", 1, 1},
    {HEAD "ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%d0+8];" END, "misaligned", 1, 1},
    {HEAD "ld.global.u32 %r3, [%d0+248];" END, "reads what nobody has written", 1, 1},
    {HEAD "ld.global.u32 %r3, [%d0+236];" END, NULL, 1, 1},
    {HEAD "add.u32 %r3, %r4, %r5;" END, "reads a register that has no value", 1, 1},
    {HEAD "setp.lt.u32 %p1, %r0, 8; @%p1 mov.u32 %r3, 1; st.global.u32 [%d1], %r3;" END, "thread 8,0,0", 1, 32},
    {HEAD "@%p1 st.global.u32 [%d1], %r9;" END, "a predicate has no value", 1, 32},
    {HEAD "ld.shared.u32 %r3, [%r2];" END, "of shared memory, which nobody has written", 1, 32},
    {HEAD "atom.shared.add.u32 %r3, [%r2], %r9;" END, "of shared memory, which nobody has written", 1, 32},
    {HEAD WRITE_SHARED "atom.shared.add.u32 %r3, [%r2], %r9;" END, NULL, 1, 32},
    {HEAD "st.shared.u32 [%r2+1000], %r9;" END, "bytes of shared memory", 1, 32},
    {HEAD "st.shared.u16 [%r2+1], %r9;" END, "misaligned", 1, 32},
    /* A missing barrier, in the three orders that matter, and the same with it. */
    {HEAD WRITE_SHARED OTHER_WARP "ld.shared.u32 %r4, [%r3];" END, "shared memory", 1, 64},
    {HEAD WRITE_SHARED OTHER_WARP "bar.sync 0; ld.shared.u32 %r4, [%r3];" END, NULL, 1, 64},
    {HEAD WRITE_SHARED OTHER_WARP "bar.sync 0; ld.shared.u32 %r4, [%r3]; st.shared.u32 [%r2], %r9;" END,
     "race in shared memory", 1, 64},
    {HEAD WRITE_SHARED OTHER_WARP "bar.sync 0; ld.shared.u32 %r4, [%r3]; bar.sync 0; st.shared.u32 [%r2], %r9;" END,
     NULL, 1, 64},
    {HEAD "st.shared.u32 [words], %r0;" END, "race in shared memory: a second write", 1, 2},
    /* Lanes of one warp need bar.warp.sync. */
    {HEAD WRITE_SHARED "xor.b32 %r3, %r2, 4; ld.shared.u32 %r4, [%r3];" END, "race in shared memory: a read", 1, 32},
    {HEAD WRITE_SHARED "xor.b32 %r3, %r2, 4; bar.warp.sync -1; ld.shared.u32 %r4, [%r3];" END, NULL, 1, 32},
    /* Blocks. */
    {HEAD "st.global.u32 [%d1], %r10;" END, "race between blocks, a write after another block's", 2, 32},
    {HEAD "setp.eq.u32 %p1, %r10, 0; @%p1 st.global.u32 [%d1], %r9; @!%p1 ld.global.u32 %r3, [%d1];" END,
     "race between blocks", 2, 32},
    {HEAD "red.global.add.u32 [%d1], %r9;" END, NULL, 4, 32},
    /* Barriers that some threads miss. */
    {HEAD "setp.lt.u32 %p1, %r0, 16; @%p1 bra SKIP; bar.sync 0;\nSKIP: mov.u32 %r3, 1; bar.sync 1;" END, "divergent", 1,
     32},
    {HEAD "setp.lt.u32 %p1, %r0, 32; @%p1 bra SKIP; bar.sync 0; bra DONE;\nSKIP: bar.sync 0;\nDONE:" END,
     "divergent barrier 0", 1, 64},
    {HEAD "setp.lt.u32 %p1, %r0, 32; @%p1 bra SKIP; bar.sync 1; bra DONE;\nSKIP: bar.sync 2;\nDONE:" END, "for ever", 1,
     64},
    {HEAD "setp.lt.u32 %p1, %r0, 16; @%p1 bra SKIP; shfl.sync.idx.b32 %r3, %r0, 0, 31, -1;\nSKIP: mov.u32 %r4, 1; "
          "bar.sync 0;" END,
     "divergent", 1, 32},
    {HEAD "shfl.sync.idx.b32 %r3, %r0, 20, 31, 0xFFFF;" END, "the lane is no member", 1, 32},
    /* Asynchronous copies: read too early, waited for too weakly, never waited for. */
    {HEAD "cp.async.ca.shared.global [%r2], [%d1], 4; cp.async.commit_group; ld.shared.u32 %r3, [%r2];" END,
     "a cp.async has not filled yet", 1, 32},
    {HEAD "cp.async.ca.shared.global [%r2], [%d1], 4; cp.async.commit_group; cp.async.wait_group 1; ld.shared.u32 %r3, "
          "[%r2];" END,
     "a cp.async has not filled yet", 1, 32},
    {HEAD "cp.async.ca.shared.global [%r2], [%d1], 4; cp.async.commit_group; cp.async.wait_group 0; ld.shared.u32 %r3, "
          "[%r2];" END,
     NULL, 1, 32},
    {HEAD "cp.async.ca.shared.global [%r2], [%d1], 4; cp.async.commit_group;" END, "ends before the cp.async", 1, 32},
    {HEAD
     "cp.async.ca.shared.global [%r2], [%d1], 4; cp.async.wait_all; xor.b32 %r3, %r2, 4; ld.shared.u32 %r4, [%r3];" END,
     "race in shared memory: a read", 1, 32},
    {HEAD "ld.param.u64 %d3, [memory+8];" END, "byte 8 of 8 bytes of parameters", 1, 1},
    {HEAD "trap;" END, "a trap", 1, 1},
};

static void each_fault_is_found_by_its_check(void **state) {
    (void)state;
    uint32_t words[64] = {0};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        for (uint64_t seed = 0; seed < 5; seed++) {
            struct machine machine;
            kernel_machine(&machine, seed);
            struct ptx_module *module = kernel_module(&machine, faults[i].text);
            uint64_t address = kernel_memory(&machine, NULL, 256);
            assert_int_equal(memory_write(&machine, address, words, 240), 0);
            int status = kernel_run(&machine, module, "run", faults[i].blocks, faults[i].threads, &address);
            if (!faults[i].message != !status) {
                fail_msg("fault %zu, seed %d: %s", i, (int)seed, status ? machine.message : "found by nobody");
            }
            if (status && !strstr(machine.message, faults[i].message)) {
                fail_msg("fault %zu: %s", i, machine.message);
            }
            ptx_close(module);
            machine_close(&machine);
        }
    }
}

static void a_fault_names_kernel_thread_and_line(void **state) {
    (void)state;
    struct machine machine;
    kernel_machine(&machine, 1);
    struct ptx_module *module = kernel_module(&machine, HEAD "\nst.global.u32 [%d1+4], %r9;" END);
    uint64_t address = kernel_memory(&machine, NULL, 256);
    assert_int_equal(kernel_run(&machine, module, "run", 1, 64, &address), -1);
    assert_string_equal(machine.message,
                        "kernel run, block 0,0,0, thread 63,0,0, PTX line 9 (st.global.u32): outside every "
                        "allocation: 4 bytes at 0 bytes after the end of allocation 1 (256 bytes)");
    ptx_close(module);
    machine_close(&machine);
}

static void released_memory_is_named(void **state) {
    (void)state;
    struct machine machine;
    kernel_machine(&machine, 1);
    struct ptx_module *module = kernel_module(&machine, HEAD "st.global.u32 [%d1], %r9;" END);
    uint64_t address = kernel_memory(&machine, NULL, 256);
    assert_int_equal(memory_free(&machine, address), 0);
    assert_int_equal(memory_free(&machine, address), -1);
    assert_int_equal(kernel_run(&machine, module, "run", 1, 64, &address), -1);
    assert_non_null(strstr(machine.message, "of allocation 1 (256 bytes, released)"));
    ptx_close(module);
    machine_close(&machine);
}

static void new_memory_has_no_values(void **state) {
    (void)state;
    struct machine machine;
    kernel_machine(&machine, 1);
    unsigned char bytes[300000], expected[sizeof bytes];
    memset(bytes, 1, sizeof bytes);
    memset(expected, 0xFF, sizeof expected);
    uint64_t first = kernel_memory(&machine, bytes, sizeof bytes);
    assert_int_equal(memory_free(&machine, first), 0);
    uint64_t second = kernel_memory(&machine, NULL, sizeof bytes);
    assert_int_equal(memory_read(&machine, bytes, second, sizeof bytes), 0);
    assert_memory_equal(bytes, expected, sizeof bytes);
    assert_int_equal(memory_alloc(&machine, 1ull << 40), 0);
    machine_close(&machine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_fault_is_found_by_its_check),
        cmocka_unit_test(a_fault_names_kernel_thread_and_line),
        cmocka_unit_test(released_memory_is_named),
        cmocka_unit_test(new_memory_has_no_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
