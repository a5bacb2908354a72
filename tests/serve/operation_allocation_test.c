/* Keys and metrics when memory runs out: the failure is reported, nothing remains, and everything continues as
 * before. */
#include "base/base.h"
#include "serve/keys.h"
#include "serve/metrics.h"
#include "support/failing.h"
#include "support/test.h"

static int read_keys(void *context) {
    struct keys *keys = NULL;
    int status = keys_open(context, &keys);
    if (!status) {
        struct key_holder holder;
        status = keys_reload(keys);
        failing_pause(true);
        assert_int_equal(keys_count(keys), 2); /* whether or not they could be read again */
        assert_true(keys_find(keys, "Bearer sk-bob", &holder));
        failing_pause(false);
    }
    keys_close(keys);
    return status;
}

static void keys_are_all_read_or_stay_as_they_were(void **state) {
    (void)state;
    static const char text[] = "alice sk-alice\nbob sk-bob\n";
    char path[4096], *directory = test_directory();
    test_ok(file_join(path, sizeof path, directory, "keys"));
    test_ok(file_write_atomic(path, text, sizeof text - 1));
    assert_true(failing_try_all(read_keys, path, 100) <= 2); /* a list that cannot be made smaller is as good */
    free(directory);
}

static int count_and_tell(void *context) {
    struct metrics_options options = {.model_name = "gpt2", .cache_dtype = "bf16", .max_model_len = 64, .ranks = 1};
    struct metrics *metrics = NULL;
    struct strbuf text = STRBUF_INIT;
    (void)context;
    int status = metrics_new(&options, &metrics);
    if (!status) {
        metrics_adapter_request(metrics, "tone", "lora");
        metrics_add_text(metrics, &(struct metrics_adapters){.running = "tone", .waiting = ""}, 1, &text);
        status = strbuf_status(&text);
        if (!status && !strstr(text.data, "{adapter=\"tone\",method=\"lora\"} 1\n")) {
            assert_non_null(
                strstr(text.data, "{adapter=\".others\",method=\"\"} 1\n")); /* it is counted all the same */
            status = status_fail(STATUS_MEMORY, "out of memory for the name");
        }
    }
    strbuf_free(&text);
    metrics_free(metrics);
    return status;
}

static void a_text_of_metrics_is_whole_or_none(void **state) {
    (void)state;
    assert_int_equal(failing_try_all(count_and_tell, NULL, 400), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_all_read_or_stay_as_they_were),
        cmocka_unit_test(a_text_of_metrics_is_whole_or_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
