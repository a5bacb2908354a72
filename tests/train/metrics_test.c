/* The metrics file: what is written reads back exactly, and a resumed run continues where it should. */
#include "train/metrics.h"
#include "train/train.h"

#include "support/test.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

static char *path_in(const char *directory, const char *name) {
    char *path;
    assert_true(asprintf(&path, "%s/%s", directory, name) > 0);
    return path;
}

static int resume(struct metrics_file *metrics, const char *path, int64_t iteration) {
    return metrics_open(metrics, path, &(struct metrics_start){.iteration = iteration, .kind = METRICS_RESUMES});
}

static char *contents(const char *path) {
    struct strbuf text = STRBUF_INIT;
    test_ok(file_read(path, 1 << 20, &text));
    char *copy = strdup(strbuf_text(&text));
    strbuf_free(&text);
    return copy;
}

static void put(const char *path, const char *text) {
    test_ok(file_write_atomic(path, text, strlen(text)));
}

static void expect(const char *path, const char *text) {
    char *found = contents(path);
    assert_string_equal(found, text);
    free(found);
}

static void numbers_read_back_exactly(void **state) {
    (void)state;
    char *directory = test_directory(), *path = path_in(directory, "m.jsonl");
    struct metrics_file metrics;
    test_ok(resume(&metrics, path, 0));
    for (uint32_t i = 0; i < 300; i++) {
        struct philox r = philox(7, i, 0, 0, (uint32_t)RNG_TEST << 24);
        double values[6];
        for (int k = 0; k < 6; k++) /* any magnitude, subnormals included */
            values[k] = ldexp(rng_unit(r.word[k % 4]) + k, (int)(r.word[(k + 1) % 4] % 2000) - 1070);
        struct train_record record = {.iteration = i + 1,
                                      .lm_loss = values[0],
                                      .lr = values[1],
                                      .grad_norm = values[2],
                                      .tokens_per_s = values[3],
                                      .model_tflops = values[4],
                                      .seconds = values[5]};
        test_ok(metrics_write_train(&metrics, &record));
        char *text = contents(path);
        char *line = text;
        for (char *end = strchr(line, '\n'); end && end[1]; end = strchr(line, '\n'))
            line = end + 1;
        json_t *object = json_loads(line, 0, NULL);
        static const char *const keys[] = {"lm_loss", "lr", "grad_norm", "tokens_per_s", "model_tflops", "seconds"};
        for (int k = 0; k < 6; k++)
            assert_true(json_number_value(json_object_get(object, keys[k])) == values[k]);
        assert_int_equal(json_integer_value(json_object_get(object, "iteration")), i + 1);
        json_decref(object);
        free(text);
    }
    metrics_close(&metrics);
    free(path);
    free(directory);
}

static const char first[] = "{\"iteration\":1,\"lm_loss\":4.5}\n", second[] = "{\"iteration\":2,\"lm_loss\":4.25}\n",
                  valid[] = "{\"iteration\":2,\"valid_loss\":4.375}\n",
                  third[] = "{\"iteration\":3,\"lm_loss\":4.125}\n";

static void a_resumed_run_cuts_what_lies_behind_its_checkpoint(void **state) {
    (void)state;
    char *directory = test_directory(), *path = path_in(directory, "m.jsonl");
    char all[512], kept[512];
    snprintf(all, sizeof all, "%s%s%s%s", first, second, valid, third);
    snprintf(kept, sizeof kept, "%s%s%s", first, second, valid);
    /* torn at every byte of the last record, and whole */
    for (size_t end = strlen(kept); end <= strlen(all); end++) {
        char torn[512];
        snprintf(torn, sizeof torn, "%.*s", (int)end, all);
        put(path, torn);
        struct metrics_file metrics;
        test_ok(resume(&metrics, path, 2));
        expect(path, kept);
        test_ok(metrics_write_validation(&metrics, &(struct validation_record){.iteration = 3, .valid_loss = 1.5}));
        metrics_close(&metrics);
        char *text = contents(path);
        assert_memory_equal(text, kept, strlen(kept));
        assert_string_equal(text + strlen(kept), "{\"iteration\":3,\"valid_loss\":1.5,\"seconds\":0}\n");
        free(text);
    }
    put(path, all);
    struct metrics_file metrics;
    test_ok(resume(&metrics, path, 0));
    metrics_close(&metrics);
    expect(path, "");
    free(path);
    free(directory);
}

static void long_files_are_cut_at_the_right_record(void **state) {
    (void)state;
    char *directory = test_directory(), *path = path_in(directory, "m.jsonl");
    struct metrics_file metrics;
    test_ok(resume(&metrics, path, 0));
    for (int64_t i = 1; i <= 2000; i++)
        test_ok(metrics_write_train(&metrics, &(struct train_record){.iteration = i, .lm_loss = 1.0 / (double)i}));
    int64_t whole = metrics.length;
    metrics_close(&metrics);
    test_ok(resume(&metrics, path, 1999));
    int64_t last = whole - metrics.length;
    assert_in_range(last, 50, 200);
    assert_int_equal(file_size(path), metrics.length);
    metrics_close(&metrics);
    test_ok(resume(&metrics, path, 1000));
    char *text = contents(path);
    assert_non_null(strstr(text, "{\"iteration\":1000,"));
    assert_null(strstr(text, "{\"iteration\":1001,"));
    free(text);
    metrics_close(&metrics);
    free(path);
    free(directory);
}

static void what_is_no_record_is_refused_and_stays(void **state) {
    (void)state;
    char *directory = test_directory(), *path = path_in(directory, "m.jsonl");
    char behind[512];
    snprintf(behind, sizeof behind, "%sa line of somebody's\n", first);
    const char *const texts[] = {"hello\n", "hello", "{}\n", "{\"iteration\":\"1\"}\n", "[1]\n", "\n", behind};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        put(path, texts[i]);
        struct metrics_file metrics;
        test_fails(resume(&metrics, path, 5), STATUS_INVALID, texts[i] == behind ? "m.jsonl:2:" : "m.jsonl:1:");
        expect(path, texts[i]);
    }
    free(path);
    free(directory);
}

static void records_of_another_run_are_refused_and_stay(void **state) {
    (void)state;
    char *directory = test_directory(), *path = path_in(directory, "m.jsonl");
    char all[512];
    snprintf(all, sizeof all, "%s%s%s%s", first, second, valid, third);
    const struct {
        const char *text;
        struct metrics_start start;
        const char *part;
    } cases[] = {
        {all, {0, METRICS_FRESH, false, 0}, "starts afresh"},
        {first, {0, METRICS_FRESH, false, 0}, "starts afresh"},
        {third, {0, METRICS_RESUMES, false, 0}, "they begin with iteration 3, and this one with 1"},
        {third, {1, METRICS_RESUMES, false, 0}, "they begin with iteration 3, and this one with 2"},
        {all, {5, METRICS_RESUMES, false, 0}, "iteration 3 is the last one, but this run resumes after 5"},
        {all, {2, METRICS_RESUMES, true, 4.5}, "the loss of iteration 2 is 4.25 there, and 4.5 in the checkpoint"},
    };
    struct metrics_file metrics;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put(path, cases[i].text);
        test_fails(metrics_open(&metrics, path, &cases[i].start), STATUS_INVALID, cases[i].part);
        test_fails(metrics_open(&metrics, path, &cases[i].start), STATUS_INVALID,
                   "m.jsonl holds the records of another");
        expect(path, cases[i].text);
    }
    const struct {
        const char *text;
        struct metrics_start start;
        const char *kept;
    } own[] = {
        {"", {0, METRICS_FRESH, false, 0}, ""},     {"{\"iterat", {0, METRICS_FRESH, false, 0}, ""},
        {third, {2, METRICS_RESUMES, true, 1}, ""}, {first, {1, METRICS_RESUMES, true, 4.5}, first},
        {all, {1, METRICS_ADDS, true, 1}, all},     {third, {0, METRICS_ADDS, false, 0}, third},
    };
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        put(path, own[i].text);
        test_ok(metrics_open(&metrics, path, &own[i].start));
        metrics_close(&metrics);
        expect(path, own[i].kept);
    }
    free(path);
    free(directory);
}

static void what_is_not_finite_is_null_and_read(void **state) {
    (void)state;
    char *directory = test_directory(), *path = path_in(directory, "m.jsonl");
    const double values[] = {NAN, -NAN, INFINITY, -INFINITY};
    struct metrics_file metrics;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        put(path, "");
        test_ok(resume(&metrics, path, 0));
        test_ok(
            metrics_write_validation(&metrics, &(struct validation_record){.iteration = 1, .valid_loss = values[i]}));
        metrics_close(&metrics);
        expect(path, "{\"iteration\":1,\"valid_loss\":null,\"seconds\":0}\n");
        test_ok(metrics_open(&metrics, path, &(struct metrics_start){1, METRICS_RESUMES, true, 4.5}));
        metrics_close(&metrics);
    }
    free(path);
    free(directory);
}

static void a_file_has_one_writer(void **state) {
    (void)state;
    char *directory = test_directory(), *path = path_in(directory, "m.jsonl");
    struct metrics_file metrics, other;
    test_ok(resume(&metrics, path, 0));
    test_fails(resume(&other, path, 0), STATUS_IO, "m.jsonl is in use by another run");
    metrics_close(&metrics);
    test_ok(resume(&other, path, 0));
    metrics_close(&other);
    free(path);
    free(directory);
}

static void a_pipe_is_written_while_it_is_read(void **state) {
    (void)state;
    char *directory = test_directory(), *path = path_in(directory, "pipe"), text[1024];
    const struct train_record record = {.iteration = 1};
    struct metrics_file metrics;
    assert_int_equal(mkfifo(path, 0666), 0);
    test_ends_within(60);
    test_fails(resume(&metrics, path, 0), STATUS_IO, "nobody reads the pipe log.metrics_file");
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    test_ok(resume(&metrics, path, 7));
    test_ok(metrics_write_train(&metrics, &record));
    assert_true(read(reader, text, sizeof text) > 0);
    stop_watch_begin();
    raise(SIGTERM);
    for (int i = 0; i < 2000; i++) /* more than fits: what is to stop does not wait for a reader */
        test_ok(metrics_write_train(&metrics, &record));
    close(reader);
    test_fails(metrics_write_train(&metrics, &record), STATUS_IO, "Broken pipe");
    metrics_close(&metrics);
    stop_watch_end();
    test_ends_within(0);
    free(path);
    free(directory);
}

static void files_that_cannot_be_written_are_named(void **state) {
    (void)state;
    struct metrics_file metrics;
    test_fails(resume(&metrics, "/nowhere/m.jsonl", 0), STATUS_IO, "/nowhere/m.jsonl");
    test_ok(resume(&metrics, "/dev/full", 0));
    test_fails(metrics_write_train(&metrics, &(struct train_record){.iteration = 1}), STATUS_IO, "/dev/full");
    metrics_close(&metrics);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_read_back_exactly),
        cmocka_unit_test(a_resumed_run_cuts_what_lies_behind_its_checkpoint),
        cmocka_unit_test(long_files_are_cut_at_the_right_record),
        cmocka_unit_test(what_is_no_record_is_refused_and_stays),
        cmocka_unit_test(records_of_another_run_are_refused_and_stay),
        cmocka_unit_test(what_is_not_finite_is_null_and_read),
        cmocka_unit_test(a_file_has_one_writer),
        cmocka_unit_test(a_pipe_is_written_while_it_is_read),
        cmocka_unit_test(files_that_cannot_be_written_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
