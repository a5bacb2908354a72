/* TensorBoard event files: the checksums, the framing, and what an event says. */
#include "train/events.h"

#include "support/test.h"

static void checksums_are_those_of_the_standard(void **state) {
    (void)state;
    assert_int_equal(events_crc32c("123456789", 9), 0xe3069283u);
    unsigned char bytes[32] = {0}; /* RFC 3720, B.4 */
    assert_int_equal(events_crc32c(bytes, sizeof bytes), 0x8a9136aau);
    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(events_crc32c(bytes, sizeof bytes), 0x62a8ab43u);
    for (int i = 0; i < 32; i++)
        bytes[i] = (unsigned char)i;
    assert_int_equal(events_crc32c(bytes, sizeof bytes), 0x46dd794eu);
}

/* The records of a file, one after the other; fails the test on any that is not whole. */
static size_t next_record(const unsigned char *file, size_t size, size_t at, const unsigned char **data,
                          size_t *length) {
    uint64_t n;
    uint32_t of_length, of_data;
    assert_true(size - at >= 16);
    memcpy(&n, file + at, 8);
    memcpy(&of_length, file + at + 8, 4);
    assert_int_equal(of_length, events_masked_crc32c(file + at, 8));
    assert_true(n <= size - at - 16);
    memcpy(&of_data, file + at + 12 + n, 4);
    assert_int_equal(of_data, events_masked_crc32c(file + at + 12, n));
    *data = file + at + 12;
    *length = n;
    return at + 16 + n;
}

static bool holds(const unsigned char *data, size_t length, const void *part, size_t part_length) {
    return memmem(data, length, part, part_length) != NULL;
}

static void a_file_holds_what_was_written(void **state) {
    (void)state;
    char *directory = test_directory();
    struct event_file events;
    char below[512];
    snprintf(below, sizeof below, "%s/made/for/it", directory);
    test_ok(events_open(&events, below, 101));
    test_ok(events_write(&events, 101, (struct event_scalar[]){{"lm loss", 4.5}, {"learning-rate", 1e-3}}, 2));
    struct strbuf text = STRBUF_INIT; /* before the file is closed: each record is there at once */
    test_ok(file_read(events.path, 1 << 20, &text));
    const unsigned char *file = (const unsigned char *)text.data, *data;
    size_t length, at = next_record(file, text.length, 0, &data, &length);
    assert_true(holds(data, length, "brain.Event:2", 13));
    at = next_record(file, text.length, at, &data, &length);
    assert_true(holds(data, length, "\x10\x65", 2));         /* step: field 2 */
    assert_true(holds(data, length, "\x3a\x02\x08\x01", 4)); /* session_log: field 7 { status: START } */
    at = next_record(file, text.length, at, &data, &length);
    float loss = 4.5f;
    char value[] = "\x0a\x07lm loss\x15....";
    memcpy(value + 10, &loss, sizeof loss);
    assert_true(holds(data, length, value, 14));
    assert_true(holds(data, length, "learning-rate", 13));
    assert_int_equal(at, text.length);
    strbuf_free(&text);
    events_close(&events);
    free(directory);
}

static void each_opening_makes_a_file_of_its_own(void **state) {
    (void)state;
    char *directory = test_directory();
    for (int i = 0; i < 3; i++) {
        struct event_file events;
        test_ok(events_open(&events, directory, 1));
        events_close(&events);
    }
    char **names;
    size_t count;
    test_ok(file_list(directory, &names, &count));
    assert_int_equal(count, 3);
    for (size_t i = 0; i < count; i++)
        assert_memory_equal(names[i], "events.out.tfevents.", 20);
    file_list_free(names, count);
    struct event_file events;
    test_fails(events_open(&events, "/proc/none", 1), STATUS_IO, "log.tensorboard_dir: ");
    free(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checksums_are_those_of_the_standard),
        cmocka_unit_test(a_file_holds_what_was_written),
        cmocka_unit_test(each_opening_makes_a_file_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
