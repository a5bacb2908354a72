/* base: error slots, arenas, number formats, the generator's published vectors, atomic files. */
#include "base/base.h"
#include "base/utf8.h"
#include "support/test.h"

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
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

/* The numbers of a type by its definition, by their bits without the sign. */
static double fp8_number(enum dtype type, int bits) {
    int fraction_bits = type == DTYPE_E4M3 ? 3 : 2, bias = type == DTYPE_E4M3 ? 7 : 15;
    int exponent = bits >> fraction_bits, fraction = bits & ((1 << fraction_bits) - 1), one = 1 << fraction_bits;
    if (type == DTYPE_E4M3 ? bits == 0x7f : bits > 0x7c)
        return NAN;
    if (type == DTYPE_E5M2 && bits == 0x7c)
        return INFINITY;
    return exponent ? ldexp(one + fraction, exponent - bias - fraction_bits)
                    : ldexp(fraction, 1 - bias - fraction_bits);
}

/* Both signs of a size become the number with these bits. */
static void assert_rounds_to(enum dtype type, float size, uint8_t bits) {
    for (int sign = 0; sign < 2; sign++) {
        float value = sign ? -size : size, expected = fp8_to_float(type, (uint8_t)(sign << 7 | bits));
        uint32_t found, wanted;
        float rounded = fp8_round(type, value);
        assert_int_equal(fp8_from_float(type, value), sign << 7 | bits);
        memcpy(&found, &rounded, sizeof found);
        memcpy(&wanted, &expected, sizeof wanted);
        assert_int_equal(found, wanted);
    }
}

static void fp8_rounds_to_nearest_even_and_saturates(void **state) {
    (void)state;
    static const struct {
        enum dtype type;
        uint8_t largest;
    } types[] = {{DTYPE_E4M3, 0x7e}, {DTYPE_E5M2, 0x7b}};
    for (int t = 0; t < 2; t++) {
        enum dtype type = types[t].type;
        for (int bits = 0; bits < 128; bits++) {
            double number = fp8_number(type, bits);
            for (int sign = 0; sign < 2; sign++) {
                float found = fp8_to_float(type, (uint8_t)(sign << 7 | bits));
                assert_true(isnan(number) ? isnan(found) : (double)found == (sign ? -number : number));
                assert_int_equal(!!signbit(found), isnan(number) ? !!signbit(found) : sign);
            }
            if (bits > types[t].largest)
                continue;
            assert_rounds_to(type, (float)number, (uint8_t)bits);
            if (bits == types[t].largest)
                continue;
            float tie = (float)((number + fp8_number(type, bits + 1)) / 2);
            assert_rounds_to(type, nextafterf(tie, 0), (uint8_t)bits);
            assert_rounds_to(type, tie, (uint8_t)(bits + bits % 2));
            assert_rounds_to(type, nextafterf(tie, INFINITY), (uint8_t)(bits + 1));
        }
        assert_true(fp8_largest(type) == fp8_to_float(type, types[t].largest));
        const float beyond[] = {nextafterf(fp8_largest(type), INFINITY), 2 * fp8_largest(type), 3.4e38f, INFINITY};
        for (int i = 0; i < 4; i++)
            assert_rounds_to(type, beyond[i], types[t].largest);
        assert_rounds_to(type, 1e-40f, 0);
        assert_true(isnan(fp8_round(type, NAN)) && isnan(fp8_to_float(type, fp8_from_float(type, NAN))));
    }
}

static void a_number_that_is_not_finite_is_found_where_it_is(void **state) {
    (void)state;
    enum { COUNT = 67 };
    uint16_t halves[COUNT];
    float words[COUNT];
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float value = bf16_to_float((uint16_t)bits);
        int64_t at = bits % COUNT, expected = isfinite(value) ? -1 : at;
        for (int i = 0; i < COUNT; i++) {
            words[i] = i < at ? 3.4e38f : NAN;
            halves[i] = i < at ? 0xff7f : 0x7f80;
        }
        words[at] = value;
        halves[at] = (uint16_t)bits;
        assert_int_equal(dtype_find_not_finite(DTYPE_F32, words, at + 1), expected);
        assert_int_equal(dtype_find_not_finite(DTYPE_BF16, halves, at + 1), expected);
        for (int i = 0; i < at; i++)
            halves[i] = 0xfbff;
        expected = isfinite(f16_to_float((uint16_t)bits)) ? -1 : at;
        assert_int_equal(dtype_find_not_finite(DTYPE_F16, halves, at + 1), expected);
    }
    assert_int_equal(dtype_find_not_finite(DTYPE_F32, words, 0), -1);
    assert_string_equal(dtype_not_finite_name(NAN), "nan");
    assert_string_equal(dtype_not_finite_name(-INFINITY), "-inf");
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

static void a_file_replaces_no_link_and_no_pipe(void **state) {
    (void)state;
    char *directory = test_directory(), link[256], real[256], pipe[256], got[8];
    snprintf(link, sizeof link, "%s/link", directory);
    snprintf(real, sizeof real, "%s/real", directory);
    snprintf(pipe, sizeof pipe, "%s/pipe", directory);
    test_ok(file_write_atomic(real, "older", 5));
    assert_int_equal(symlink("real", link), 0);
    test_ok(file_write_atomic(link, "newer", 5));
    assert_int_equal(readlink(link, got, sizeof got), 4);
    int file = open(real, O_RDONLY | O_CLOEXEC);
    assert_int_equal(read(file, got, sizeof got), 5);
    assert_memory_equal(got, "newer", 5);
    close(file);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    file = open(pipe, O_RDWR | O_CLOEXEC);
    test_ok(file_write_atomic(pipe, "piped", 5));
    assert_int_equal(read(file, got, sizeof got), 5);
    assert_memory_equal(got, "piped", 5);
    close(file);
    test_fails(file_write_atomic(directory, "none", 4), STATUS_IO, "it is a directory");
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

/* Whatever a file has in it. */
static void an_error_is_one_line(void **state) {
    (void)state;
    status_fail(STATUS_INVALID, "bad pattern '%s'", "a\r\nb\x1b[2Jc\x7f\xc3\xa9");
    assert_string_equal(status_text(), "bad pattern 'a??b?[2Jc?\xc3\xa9'");
}

/* Files hold bytes that are no characters, and controls of two bytes that terminals obey as well as those of one. */
static void an_error_is_utf8_without_controls(void **state) {
    (void)state;
    status_fail(STATUS_INVALID, "a%sb",
                "\xff\xfe|\xed\xa0\x80|\xe2\x82|\xf0\x9f\x98\x80|\xc2\x9b"
                "2J|\xc2\xa0|\xe2\x82");
    assert_string_equal(status_text(), "a??|???|?|\xf0\x9f\x98\x80|?2J|\xc2\xa0|?b");
}

/* The text that is kept ends in the middle of a character. */
static void a_long_error_is_cut_between_characters(void **state) {
    (void)state;
    char text[6001];
    for (size_t i = 0; i < sizeof text - 1; i += 3)
        memcpy(text + i, "\xe2\x82\xac", 3);
    text[sizeof text - 1] = 0;
    for (size_t before = 0; before < 3; before++) {
        status_fail(STATUS_INVALID, "%.*s%s", (int)before, "ab", text);
        size_t length = strlen(status_text());
        assert_in_range(length, 1000, sizeof text - 1);
        assert_int_equal(utf8_valid_length((const unsigned char *)status_text(), length), length);
    }
}

/* Makes a directory that looks like a system with `kibibytes` of memory. */
static char *make_system(const char *kibibytes, const char *groups) {
    char *root = test_directory(), path[300], text[64];
    snprintf(path, sizeof path, "%s/proc/self", root);
    test_ok(file_make_directories(path));
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    snprintf(text, sizeof text, "MemFree: 1 kB\nMemTotal:       %s kB\nMemAvailable:  550 kB\n", kibibytes);
    test_ok(file_write_atomic(path, text, strlen(text)));
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    test_ok(file_write_atomic(path, groups, strlen(groups)));
    return root;
}

static void set_limit(const char *root, const char *directory, const char *name, const char *text) {
    char path[300];
    snprintf(path, sizeof path, "%s/sys/fs/cgroup%s", root, directory);
    test_ok(file_make_directories(path));
    snprintf(path, sizeof path, "%s/sys/fs/cgroup%s/%s", root, directory, name);
    test_ok(file_write_atomic(path, text, strlen(text)));
}

static void expect_limit(const char *root, size_t bytes, bool is_cgroup) {
    struct memory_limit limit = memory_limit_find(root);
    assert_int_equal(limit.bytes, bytes);
    assert_int_equal(limit.is_cgroup, is_cgroup);
    /* The part of the group's limit that is free on the host; nothing is known of /nowhere. */
    assert_int_equal(limit.available, bytes == SIZE_MAX || bytes < 550 * 1024 ? bytes : 550 * 1024);
}

static void the_least_limit_of_the_host_and_of_its_groups_holds(void **state) {
    (void)state;
    char *second = make_system("1000", "0::/job/step\n");
    expect_limit(second, 1024000, false);
    set_limit(second, "/job/step", "memory.max", "max\n");
    expect_limit(second, 1024000, false);
    set_limit(second, "/job", "memory.max", "600000\n"); /* of a group around it */
    expect_limit(second, 600000, true);
    set_limit(second, "/job/step", "memory.max", "2000000\n");
    expect_limit(second, 600000, true);
    set_limit(second, "/job/step", "memory.max", "500000\n");
    expect_limit(second, 500000, true);
    char *first = make_system("1000", "3:cpu:/c\n4:memoryx:/c\n2:hugetlb,memory:/far/away\n0::/\n");
    set_limit(first, "/memory", "memory.limit_in_bytes", "9223372036854771712\n");
    set_limit(first, "/memory/c", "memory.limit_in_bytes", "10\n"); /* another controller's group */
    expect_limit(first, 1024000, false);
    set_limit(first, "/memory", "memory.limit_in_bytes", "700000\n"); /* a container sees its own group at the top */
    expect_limit(first, 700000, true);
    set_limit(first, "/memory/far/away", "memory.limit_in_bytes", "300000\n");
    expect_limit(first, 300000, true);
    char *outside = make_system("1000", "0::/../../other\n");
    set_limit(outside, "", "memory.max", "400000\n");
    set_limit(outside, "/../../other", "memory.max", "10\n"); /* which is no group's file */
    expect_limit(outside, 400000, true);
    expect_limit("/nowhere", SIZE_MAX, false);
    assert_true(memory_limit_find("").bytes > 1 << 20);
    /* Memory that processes of the groups hold is not available, but pages of files are. */
    set_limit(second, "/job", "memory.current", "350000\n");
    set_limit(second, "/job", "memory.stat", "anon 1\nfile 9\nactive_file 20000\ninactive_file 30000\n");
    assert_int_equal(memory_limit_find(second).bytes, 500000);
    assert_int_equal(memory_limit_find(second).available, 300000);
    set_limit(first, "/memory/far/away", "memory.usage_in_bytes", "300001\n");
    assert_int_equal(memory_limit_find(first).available, 0);
    free(second);
    free(first);
    free(outside);
}

static void a_plan_beyond_the_limit_is_refused(void **state) {
    (void)state;
    struct memory_limit limit = {.bytes = (size_t)1 << 30};
    test_ok(memory_check((size_t)1 << 30, &limit, "less"));
    test_fails(memory_check(((size_t)1 << 30) + 1, &limit, "less"), STATUS_MEMORY,
               "not enough memory: 1.0 GiB are planned on this host, which has 1.0 GiB; what would help: less");
    limit.is_cgroup = true;
    test_fails(memory_check((size_t)3 << 30, &limit, "x"), STATUS_MEMORY,
               "3.0 GiB are planned on this host, which allows "
               "its control group 1.0 GiB; what would help: x");
    assert_true(memory_of_program(0) >= memory_peak()); /* a plan that is small does not hide a peak before it */
    assert_in_range(memory_of_program((size_t)1 << 40), 1 << 20, memory_peak() + (8 << 20));
}

static void the_peak_is_what_was_touched(void **state) {
    (void)state;
    enum { BYTES = 64 << 20 };
    size_t before = memory_peak();
    assert_in_range(before, 1 << 16, (size_t)1 << 40);
    char *block = malloc(BYTES);
    assert_non_null(block);
    for (size_t i = 0; i < BYTES; i += 512)
        ((volatile char *)block)[i] = 1;
    free(block);
    assert_true(memory_peak() >= before + BYTES / 2);
}

/* A file too long to be read whole is known by its size, its ends and samples between them. */
static void a_digest_tells_files_apart(void **state) {
    (void)state;
    char *directory = test_directory(), path[256];
    uint64_t first, second;
    int64_t bytes;
    snprintf(path, sizeof path, "%s/a", directory);
    test_ok(file_write_atomic(path, "whole", 5));
    test_ok(digest_file(path, &bytes, &first));
    assert_int_equal(bytes, 5);
    test_ok(file_write_atomic(path, "whoLe", 5));
    test_ok(digest_file(path, &bytes, &second));
    assert_true(first != second);
    test_fails(digest_file(directory, &bytes, &first), STATUS_INVALID, "no");
    static const int64_t long_size = ((int64_t)70 << 20) + 11, places[] = {0, 65535, ((int64_t)70 << 20) + 10};
    assert_int_equal(truncate(path, long_size), 0);
    test_ok(digest_file(path, &bytes, &first));
    assert_int_equal(bytes, long_size);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        FILE *file = fopen(path, "r+b");
        assert_non_null(file);
        assert_int_equal(fseek(file, places[i], SEEK_SET), 0);
        fputc('x', file);
        assert_int_equal(fclose(file), 0);
        test_ok(digest_file(path, &bytes, &second));
        assert_true(first != second);
        first = second;
    }
    assert_int_equal(truncate(path, long_size - 1), 0);
    test_ok(digest_file(path, &bytes, &second));
    assert_true(first != second);
    free(directory);
}

static void a_lock_is_held_once_and_names_its_holder(void **state) {
    (void)state;
    char *directory = test_directory(), holder[64];
    int first, second;
    snprintf(holder, sizeof holder, "(process %ld)", (long)getpid());
    test_ok(lock_open_directory(directory, &first));
    test_fails(lock_open_directory(directory, &second), STATUS_IO, directory);
    assert_int_equal(second, -1);
    if (file_exists("/proc/locks"))
        assert_non_null(strstr(status_text(), holder));
    close(first);
    test_ok(lock_open_directory(directory, &second));
    close(second);
    test_fails(lock_open_directory("/nowhere", &second), STATUS_IO, "/nowhere");
    free(directory);
}

/* The rows of Unicode's table of valid bytes, just inside and just outside. */
static void utf8_is_what_unicode_says(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t length, bad;
        uint32_t point;
    } cases[] = {
        {"\x7f", 1, 0, 0},
        {"\xc2\x80", 2, 0, 0x80},
        {"\xc1\xbf", 0, 1, 0},
        {"\x80", 0, 1, 0},
        {"\xe0\xa0\x80", 3, 0, 0x800},
        {"\xe0\x9f\xbf", 0, 1, 0},
        {"\xed\x9f\xbf", 3, 0, 0xd7ff},
        {"\xed\xa0\x80", 0, 1, 0},
        {"\xef\xbf\xbd", 3, 0, 0xfffd},
        {"\xe2\x82", 0, 2, 0},
        {"\xe2\x82!", 0, 2, 0},
        {"\xf0\x90\x80\x80", 4, 0, 0x10000},
        {"\xf0\x8f\xbf\xbf", 0, 1, 0},
        {"\xf4\x8f\xbf\xbf", 4, 0, 0x10ffff},
        {"\xf4\x90\x80\x80", 0, 1, 0},
        {"\xf0\x9f\x98", 0, 3, 0},
        {"\xf8\x90\x80\x80", 0, 1, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const unsigned char *at = (const unsigned char *)cases[i].bytes, *end = at + strlen(cases[i].bytes);
        unsigned char again[4];
        uint32_t point = 0;
        assert_int_equal(utf8_length(at, end), cases[i].length);
        assert_int_equal(utf8_valid_length(at, (size_t)(end - at)), cases[i].length);
        if (cases[i].bad)
            assert_int_equal(utf8_bad_length(at, end), cases[i].bad);
        if (!cases[i].point)
            continue;
        assert_int_equal(utf8_decode(at, end, &point), cases[i].length);
        assert_int_equal(point, cases[i].point);
        assert_int_equal(utf8_encode(point, again), cases[i].length);
        assert_memory_equal(again, at, cases[i].length);
    }
    static const struct {
        const char *text;
        size_t unfinished;
    } ends[] = {{"", 0},    {"a", 0}, {"\xc3", 1}, {"a\xe2\x82", 2}, {"\xe2\x82\xac", 0}, {"\xf0\x9f\x98", 3},
                {"\x82", 0}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        assert_int_equal(utf8_unfinished_length((const unsigned char *)ends[i].text, strlen(ends[i].text)),
                         ends[i].unfinished);
}

static void bytes_that_are_no_character_are_repaired(void **state) {
    static const struct {
        const char *bytes, *expected;
    } cases[] = {{"", ""},
                 {"gr\xc3\xbcn", "gr\xc3\xbcn"},
                 {"\xe2\x82", "\xef\xbf\xbd"},
                 {"a\xe2\x82!\xff", "a\xef\xbf\xbd!\xef\xbf\xbd"},
                 {"\xf0\x9f\x98\x80\x80\x80", "\xf0\x9f\x98\x80\xef\xbf\xbd\xef\xbf\xbd"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct strbuf out = STRBUF_INIT;
        utf8_add_repaired(&out, cases[i].bytes, strlen(cases[i].bytes));
        assert_string_equal(strbuf_text(&out), cases[i].expected);
        strbuf_free(&out);
    }
}

/* Two bytes that become one '?' make the line shorter than it was. */
static void a_line_ends_where_its_text_ends(void **state) {
    (void)state;
    char line[256] = "";
    int ends[2], before = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    log_error("%s", "a\xe2\x82|\xe2\x82|\xe2\x82");
    ssize_t count = read(ends[0], line, sizeof line - 1);
    dup2(before, STDERR_FILENO);
    close(before);
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(count, strlen("cambium: error: a?|?|?\n"));
    assert_string_equal(line, "cambium: error: a?|?|?\n");
}

/* Its form is the process's: this test is the last one. */
static void lines_of_json_are_whole_whatever_they_say(void **state) {
    (void)state;
    char line[8192], much[5000];
    int ends[2], before = dup(STDERR_FILENO);
    memset(much, '"', sizeof much - 1);
    much[sizeof much - 1] = 0;
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    log_as_json();
    log_warning("%s", "a \"b\" \\ \xff \xc3\xa9\n\x1b[2J \xe2");
    ssize_t count = read(ends[0], line, sizeof line - 1);
    log_error("%s", much);
    ssize_t more = read(ends[0], much, sizeof much - 1);
    dup2(before, STDERR_FILENO);
    close(before);
    assert_true(count > 0 && more > 0);
    line[count] = much[more] = 0;
    char *rest = strstr(line, "Z\",");
    assert_non_null(rest);
    assert_memory_equal(line, "{\"time\":\"2", 10);
    assert_string_equal(
        rest, "Z\",\"level\":\"warning\",\"event\":\"process\",\"message\":\"a \\\"b\\\" \\\\ ? \xc3\xa9??[2J "
              "?\"}\n");
    assert_true(more <= 4096 && more > 4000);
    assert_string_equal(much + more - 7, "\\\"\\\"\"}\n");
    close(ends[0]);
    close(ends[1]);
}

static void expect_cores(const char *root, double quota, int usable) {
    struct cores cores = cores_find(root);
    assert_true(fabs(cores.quota - quota) < 1e-9);
    assert_int_equal(cores.usable, usable < cores.bound ? usable : cores.bound);
}

static void threads_are_no_more_than_the_quota_of_the_control_groups(void **state) {
    (void)state;
    char *second = make_system("1000", "0::/job/step\n");
    expect_cores(second, 0, INT32_MAX);
    set_limit(second, "/job/step", "cpu.max", "max 100000\n");
    expect_cores(second, 0, INT32_MAX);
    set_limit(second, "/job", "cpu.max", "120000 100000\n"); /* of a group around it, rounded up */
    expect_cores(second, 1.2, 2);
    set_limit(second, "/job/step", "cpu.max", "20000 100000\n");
    expect_cores(second, 0.2, 1);
    set_limit(second, "/job/step", "cpu.max", "nonsense\n");
    expect_cores(second, 1.2, 2);
    char *first = make_system("1000", "3:memory:/c\n2:cpu,cpuacct:/far\n0::/\n");
    set_limit(first, "/cpu/far", "cpu.cfs_quota_us", "-1\n");
    set_limit(first, "/cpu/far", "cpu.cfs_period_us", "50000\n");
    expect_cores(first, 0, INT32_MAX);
    set_limit(first, "/cpu/far", "cpu.cfs_quota_us", "25000\n");
    expect_cores(first, 0.5, 1);
    expect_cores("/nowhere", 0, INT32_MAX);
    free(second);
    free(first);
}

static void the_number_of_threads_is_explained(void **state) {
    (void)state;
    char text[80];
    const struct cores all = {.usable = 8, .bound = 8, .online = 8}, bound = {.usable = 4, .bound = 4, .online = 8};
    const struct cores quota = {.usable = 2, .bound = 8, .online = 8, .quota = 1.5};
    cores_explain(&all, 8, 0, 1, text, sizeof text);
    assert_string_equal(text, "all cores");
    cores_explain(&all, 3, 3, 1, text, sizeof text);
    assert_string_equal(text, "as asked, of 8 cores");
    cores_explain(&all, 1, 0, 4, text, sizeof text);
    assert_string_equal(text, "4 ranks share 8 cores");
    cores_explain(&bound, 4, 0, 1, text, sizeof text);
    assert_string_equal(text, "affinity leaves 4 of 8 cores");
    cores_explain(&quota, 2, 0, 1, text, sizeof text);
    assert_string_equal(text, "the control group allows 1.5 of 8 cores");
}

static void the_computing_of_others_is_counted_on_watched_cores_alone(void **state) {
    (void)state;
    const struct cores_meter meter = {.watched = {1u << 1 | 1u << 11}, .count = 2};
    static const char stat[] = "cpu  9 9 9 9\ncpu0 1000 1000 1000 1\ncpu1 100 20 30 1000 7 7 7 7 0 0\n"
                               "cpu11 200 5 50 1000 7 7 7 7 0 0\nintr 1 2 3\n";
    assert_true(fabs(cores_meter_parse(&meter, stat, 100, false) - 3.8) < 1e-9);
    assert_true(fabs(cores_meter_parse(&meter, stat, 100, true) - 4.05) < 1e-9);
    assert_true(cores_meter_parse(&meter, "cpu1 1 1 1 1\n", 100, false) < 0); /* core 11 is missing */
    struct cores_meter own = {0};
    cores_meter_add(&own);
    assert_int_equal(own.count, cores_find("").bound);
    int file = open("/proc/stat", O_RDONLY | O_CLOEXEC);
    assert_true(cores_meter_read(&own, file) < 0); /* the first look */
    usleep(20000);
    double others = cores_meter_read(&own, file);
    assert_true(others >= 0 && others <= own.count + 1.0);
    close(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_equals_the_published_vectors),
        cmocka_unit_test(half_and_bfloat_round_to_nearest_even),
        cmocka_unit_test(fp8_rounds_to_nearest_even_and_saturates),
        cmocka_unit_test(a_number_that_is_not_finite_is_found_where_it_is),
        cmocka_unit_test(arena_plan_is_the_allocation),
        cmocka_unit_test(an_aborted_file_leaves_nothing),
        cmocka_unit_test(a_file_replaces_no_link_and_no_pipe),
        cmocka_unit_test(wrapping_keeps_the_first_cause),
        cmocka_unit_test(an_error_is_one_line),
        cmocka_unit_test(an_error_is_utf8_without_controls),
        cmocka_unit_test(a_long_error_is_cut_between_characters),
        cmocka_unit_test(the_least_limit_of_the_host_and_of_its_groups_holds),
        cmocka_unit_test(threads_are_no_more_than_the_quota_of_the_control_groups),
        cmocka_unit_test(the_number_of_threads_is_explained),
        cmocka_unit_test(the_computing_of_others_is_counted_on_watched_cores_alone),
        cmocka_unit_test(a_plan_beyond_the_limit_is_refused),
        cmocka_unit_test(the_peak_is_what_was_touched),
        cmocka_unit_test(a_digest_tells_files_apart),
        cmocka_unit_test(a_lock_is_held_once_and_names_its_holder),
        cmocka_unit_test(utf8_is_what_unicode_says),
        cmocka_unit_test(bytes_that_are_no_character_are_repaired),
        cmocka_unit_test(a_line_ends_where_its_text_ends),
        cmocka_unit_test(lines_of_json_are_whole_whatever_they_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
