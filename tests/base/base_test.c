/* base: error slots, arenas, number formats, the generator's published vectors, atomic files. */
#include "base/base.h"
#include "support/test.h"

#include <math.h>
#include <unistd.h>

/* Known answers of Philox4x32-10 from the Random123 distribution (kat_vectors). */
static void philox_equals_the_published_vectors(void **state) {
    (void)state;
    struct philox r = philox(0, 0, 0, 0, 0);
    assert_int_equal(r.word[0], 0x6627e8d5);
    assert_int_equal(r.word[1], 0xe169c58d);
    assert_int_equal(r.word[2], 0xbc57ac4c);
    assert_int_equal(r.word[3], 0x9b00dbd8);
    r = philox(UINT64_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX);
    assert_int_equal(r.word[0], 0x408f276d);
    assert_int_equal(r.word[1], 0x41c83b0e);
    assert_int_equal(r.word[2], 0xa20bc7c6);
    assert_int_equal(r.word[3], 0x6d5451fd);
    r = philox(0x299f31d0a4093822, 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344);
    assert_int_equal(r.word[0], 0xd16cfe09);
    assert_int_equal(r.word[1], 0x94fdcceb);
    assert_int_equal(r.word[2], 0x5001e420);
    assert_int_equal(r.word[3], 0x24126ea1);
}

static void half_and_bfloat_round_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float h = f16_to_float((uint16_t)bits), b = bf16_to_float((uint16_t)bits);
        if (isnan(h))
            assert_true(isnan(f16_to_float(f16_from_float(h))));
        else
            assert_int_equal(f16_from_float(h), bits);
        if (isnan(b))
            assert_true(isnan(bf16_to_float(bf16_from_float(b))));
        else
            assert_int_equal(bf16_from_float(b), bits);
    }
    assert_int_equal(bf16_from_float(1.00390625f), 0x3f80); /* a tie goes to the even neighbour */
    assert_int_equal(bf16_from_float(1.01171875f), 0x3f82);
    assert_int_equal(f16_from_float(65519.0f), 0x7bff);
    assert_int_equal(f16_from_float(65520.0f), 0x7c00);
    assert_int_equal(f16_from_float(0x1p-25f), 0); /* half of the smallest subnormal, a tie */
    assert_int_equal(f16_from_float(0x1.8p-25f), 1);
}

static void arena_plan_is_the_allocation(void **state) {
    (void)state;
    struct arena plan = ARENA_PLAN;
    assert_null(arena_take(&plan, 100));
    assert_null(arena_take(&plan, 1));
    assert_int_equal(plan.used, 192);
    _Alignas(64) char block[192];
    struct arena arena = arena_over(block, plan.used);
    size_t mark = arena_mark(&arena);
    assert_ptr_equal(arena_take(&arena, 100), block);
    assert_ptr_equal(arena_take(&arena, 1), block + 128);
    arena_release(&arena, mark);
    assert_ptr_equal(arena_take(&arena, 192), block);
    assert_int_equal(arena.peak, 192);
}

static void an_aborted_file_leaves_nothing(void **state) {
    (void)state;
    char *directory = test_directory(), path[256];
    snprintf(path, sizeof path, "%s/a", directory);
    struct file_writer writer;
    test_ok(file_writer_open(&writer, path));
    fputs("half", writer.stream);
    file_writer_abort(&writer);
    char **names;
    size_t count;
    test_ok(file_list(directory, &names, &count));
    assert_int_equal(count, 0);
    file_list_free(names, count);
    test_ok(file_write_atomic(path, "whole", 5));
    struct strbuf text = STRBUF_INIT;
    test_ok(file_read(path, 5, &text));
    assert_string_equal(strbuf_text(&text), "whole");
    test_fails(file_read(path, 4, &text), STATUS_INVALID, "more than the 4 allowed");
    strbuf_free(&text);
    test_fails(file_write_atomic("/dev/full/x", "a", 1), STATUS_IO, "/dev/full/x");
    free(directory);
}

static void wrapping_keeps_the_first_cause(void **state) {
    (void)state;
    int status = status_fail(STATUS_INVALID, "bad number '%s'", "x");
    status = status_wrap(status, "line %d", 3);
    assert_int_equal(status, STATUS_INVALID);
    assert_string_equal(status_text(), "line 3: bad number 'x'");
    status_fail(STATUS_IO, "again: %s", status_text());
    assert_string_equal(status_text(), "again: line 3: bad number 'x'");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_equals_the_published_vectors), cmocka_unit_test(half_and_bfloat_round_to_nearest_even),
        cmocka_unit_test(arena_plan_is_the_allocation),        cmocka_unit_test(an_aborted_file_leaves_nothing),
        cmocka_unit_test(wrapping_keeps_the_first_cause),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
