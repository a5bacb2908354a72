/* Metrics: counts to the last one, and a text that Prometheus reads as it was meant. */
#include "base/base.h"
#include "serve/metrics.h"
#include "support/test.h"

#include <malloc.h>

static const struct metrics_options options = {.model_name = "gpt2",
                                               .cache_dtype = "bf16",
                                               .max_model_len = 1024,
                                               .page_tokens = 16,
                                               .pages = 200,
                                               .max_adapters = 64,
                                               .has_prefix_cache = true,
                                               .ranks = 2};
static const char own[] = "{model_name=\"gpt2\",engine=\"0\"}";

struct scrape {
    struct metrics *metrics;
    struct strbuf text;
};

static int set_up(void **state) {
    struct scrape *scrape = calloc(1, sizeof *scrape);
    test_ok(metrics_new(&options, &scrape->metrics));
    *state = scrape;
    return 0;
}

static int tear_down(void **state) {
    struct scrape *scrape = *state;
    metrics_free(scrape->metrics);
    strbuf_free(&scrape->text);
    free(scrape);
    return 0;
}

static void take(struct scrape *scrape) {
    strbuf_clear(&scrape->text);
    static const struct metrics_loaded loaded[] = {{"style", false}, {"tone", true}};
    struct metrics_adapters adapters = {
        .running = "tone,style", .waiting = "", .loaded = loaded, .loaded_count = sizeof loaded / sizeof *loaded};
    metrics_add_text(scrape->metrics, &adapters, 1700000000.5, &scrape->text);
    test_ok(strbuf_status(&scrape->text));
}

/* Asserts that there is a line "NAME LABELS VALUE". */
static void expect(const struct scrape *scrape, const char *name, const char *labels, const char *value) {
    struct strbuf line = STRBUF_INIT;
    strbuf_format(&line, "\n%s%s %s\n", name, labels, value);
    if (!strstr(strbuf_text(&scrape->text), strbuf_text(&line)))
        fail_msg("no line '%s%s %s' in:\n%s", name, labels, value, strbuf_text(&scrape->text));
    strbuf_free(&line);
}

static void expect_own(const struct scrape *scrape, const char *name, const char *value) {
    expect(scrape, name, own, value);
}

static void step(struct metrics *metrics, int64_t tokens) {
    struct metrics_steps steps = {0};
    metrics_count_step(&steps, tokens);
    metrics_add_steps(metrics, &steps);
}

/* A text of `tokens` tokens, `gap` seconds each, as the driver tells of it. */
static void run_text(struct metrics *metrics, double arrived, int64_t prompt_tokens, int64_t cached, int64_t tokens,
                     double gap, enum metrics_end how) {
    struct metrics_prompt prompt = {
        .arrived = arrived, .tokens = prompt_tokens, .cached = cached, .has_looked_in_cache = true};
    struct metrics_completion text = {0};
    double time = arrived + 0.25;
    metrics_started(metrics, &prompt, time);
    step(metrics, prompt_tokens - cached + 1);
    for (int64_t i = 0; i < tokens; i++) {
        time += gap;
        if (i)
            step(metrics, 1);
        metrics_token(metrics, &prompt, &text, time);
    }
    metrics_ended(metrics, &prompt, &text, how, time);
}

static void counts_of_requests_one_after_another_are_exact(void **state) {
    struct scrape *scrape = *state;
    for (int i = 0; i < 7; i++) /* N 7, P 11, G 5 */
        run_text(scrape->metrics, 10 * i, 11, 0, 5, 0.5, METRICS_LENGTH);
    take(scrape);
    expect_own(scrape, "vllm:time_to_first_token_seconds_count", "7");
    expect_own(scrape, "vllm:time_to_first_token_seconds_sum", "5.25");
    expect_own(scrape, "vllm:inter_token_latency_seconds_count", "28");
    expect_own(scrape, "vllm:inter_token_latency_seconds_sum", "14");
    expect_own(scrape, "vllm:request_time_per_output_token_seconds_count", "7");
    expect_own(scrape, "vllm:request_time_per_output_token_seconds_sum", "3.5");
    expect_own(scrape, "vllm:e2e_request_latency_seconds_sum", "19.25");
    expect_own(scrape, "vllm:request_queue_time_seconds_sum", "1.75");
    expect_own(scrape, "vllm:request_prefill_time_seconds_sum", "3.5");
    expect_own(scrape, "vllm:request_decode_time_seconds_sum", "14");
    expect_own(scrape, "vllm:request_inference_time_seconds_sum", "17.5");
    expect_own(scrape, "vllm:prompt_tokens_total", "77");
    expect_own(scrape, "vllm:generation_tokens_total", "35");
    expect_own(scrape, "vllm:iteration_tokens_total_sum", "112"); /* N (P + G) */
    expect_own(scrape, "vllm:iteration_tokens_total_count", "35");
    expect_own(scrape, "vllm:request_prompt_tokens_sum", "77");
    expect_own(scrape, "vllm:request_generation_tokens_sum", "35");
    expect_own(scrape, "vllm:request_prefill_kv_computed_tokens_count", "7");
    expect(scrape, "vllm:request_success_total", "{model_name=\"gpt2\",engine=\"0\",finished_reason=\"length\"}", "7");
    expect(scrape, "vllm:request_success_total", "{model_name=\"gpt2\",engine=\"0\",finished_reason=\"repetition\"}",
           "0");
}

static void cached_tokens_are_told_apart(void **state) {
    struct scrape *scrape = *state;
    run_text(scrape->metrics, 0, 100, 64, 2, 0.01, METRICS_STOP);
    take(scrape);
    expect_own(scrape, "vllm:prompt_tokens_total", "100");
    expect_own(scrape, "vllm:prompt_tokens_cached_total", "64");
    expect_own(scrape, "vllm:prefix_cache_queries_total", "100");
    expect_own(scrape, "vllm:prefix_cache_hits_total", "64");
    expect_own(scrape, "vllm:request_prefill_kv_computed_tokens_sum", "36");
    expect(scrape, "vllm:prompt_tokens_by_source_total", "{model_name=\"gpt2\",engine=\"0\",source=\"local_compute\"}",
           "36");
    expect(scrape, "vllm:prompt_tokens_by_source_total",
           "{model_name=\"gpt2\",engine=\"0\",source=\"local_cache_hit\"}", "64");
    expect_own(scrape, "vllm:iteration_tokens_total_sum", "38");
}

static void a_broken_off_text_has_no_latency(void **state) {
    struct scrape *scrape = *state;
    struct metrics_prompt waiting = {.arrived = 1};
    run_text(scrape->metrics, 0, 3, 0, 4, 0.1, METRICS_ABORT);
    run_text(scrape->metrics, 0, 3, 0, 0, 0.1, METRICS_ERROR);
    metrics_ended(scrape->metrics, &waiting, &(struct metrics_completion){0}, METRICS_ABORT, 2);
    take(scrape);
    expect(scrape, "vllm:request_success_total", "{model_name=\"gpt2\",engine=\"0\",finished_reason=\"abort\"}", "2");
    expect(scrape, "vllm:request_success_total", "{model_name=\"gpt2\",engine=\"0\",finished_reason=\"error\"}", "1");
    expect_own(scrape, "vllm:e2e_request_latency_seconds_count", "0");
    expect_own(scrape, "vllm:request_prompt_tokens_count", "0");
    expect_own(scrape, "vllm:generation_tokens_total", "4");
}

static void a_text_of_one_token_or_none_has_no_gap(void **state) {
    struct scrape *scrape = *state;
    run_text(scrape->metrics, 0, 3, 0, 1, 0.125, METRICS_LENGTH);
    run_text(scrape->metrics, 0, 3, 0, 0, 0.125, METRICS_LENGTH);
    take(scrape);
    expect_own(scrape, "vllm:time_to_first_token_seconds_count", "1");
    expect_own(scrape, "vllm:inter_token_latency_seconds_count", "0");
    expect_own(scrape, "vllm:request_time_per_output_token_seconds_count", "0");
    expect_own(scrape, "vllm:e2e_request_latency_seconds_count", "2");
    expect_own(scrape, "vllm:request_inference_time_seconds_sum", "0.125");
}

static void a_bucket_has_what_is_at_its_bound_and_below(void **state) {
    struct scrape *scrape = *state;
    struct metrics_steps steps = {0};
    metrics_count_step(&steps, 1);
    metrics_count_step(&steps, 8);
    metrics_count_step(&steps, 9);
    metrics_count_step(&steps, 16385);
    metrics_add_steps(scrape->metrics, &steps);
    take(scrape);
    static const char *const expected[][2] = {
        {"1.0", "1"}, {"8.0", "2"}, {"16.0", "3"}, {"16384.0", "3"}, {"+Inf", "4"}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        char labels[64];
        snprintf(labels, sizeof labels, "{model_name=\"gpt2\",engine=\"0\",le=\"%s\"}", expected[i][0]);
        expect(scrape, "vllm:iteration_tokens_total_bucket", labels, expected[i][1]);
    }
}

static void the_text_of_a_histogram_is_exact(void **state) {
    struct scrape *scrape = *state;
    run_text(scrape->metrics, 0, 12, 0, 1, 0.5, METRICS_LENGTH);
    take(scrape);
    assert_non_null(strstr(strbuf_text(&scrape->text),
                           "# HELP vllm:request_prompt_tokens Tokens of a request's prompt.\n"
                           "# TYPE vllm:request_prompt_tokens histogram\n"
                           "vllm:request_prompt_tokens_bucket{model_name=\"gpt2\",engine=\"0\",le=\"1.0\"} 0\n"
                           "vllm:request_prompt_tokens_bucket{model_name=\"gpt2\",engine=\"0\",le=\"2.0\"} 0\n"
                           "vllm:request_prompt_tokens_bucket{model_name=\"gpt2\",engine=\"0\",le=\"5.0\"} 0\n"
                           "vllm:request_prompt_tokens_bucket{model_name=\"gpt2\",engine=\"0\",le=\"10.0\"} 0\n"
                           "vllm:request_prompt_tokens_bucket{model_name=\"gpt2\",engine=\"0\",le=\"20.0\"} 1\n"
                           "vllm:request_prompt_tokens_bucket{model_name=\"gpt2\",engine=\"0\",le=\"50.0\"} 1\n"
                           "vllm:request_prompt_tokens_bucket{model_name=\"gpt2\",engine=\"0\",le=\"100.0\"} 1\n"
                           "vllm:request_prompt_tokens_bucket{model_name=\"gpt2\",engine=\"0\",le=\"200.0\"} 1\n"
                           "vllm:request_prompt_tokens_bucket{model_name=\"gpt2\",engine=\"0\",le=\"500.0\"} 1\n"
                           "vllm:request_prompt_tokens_bucket{model_name=\"gpt2\",engine=\"0\",le=\"1000.0\"} 1\n"
                           "vllm:request_prompt_tokens_bucket{model_name=\"gpt2\",engine=\"0\",le=\"+Inf\"} 1\n"
                           "vllm:request_prompt_tokens_sum{model_name=\"gpt2\",engine=\"0\"} 12\n"
                           "vllm:request_prompt_tokens_count{model_name=\"gpt2\",engine=\"0\"} 1\n"));
}

static void the_engines_state_is_the_last_that_was_reported(void **state) {
    struct scrape *scrape = *state;
    metrics_tell_engine(
        scrape->metrics,
        &(struct metrics_engine){
            .running = 3, .waiting = 5, .deferred = 2, .pages_held = 50, .preemptions = 4, .adapter_bytes = 12345});
    metrics_tell_rank(scrape->metrics, 1, false);
    metrics_tell_rank(scrape->metrics, 2, false); /* there is none */
    take(scrape);
    expect_own(scrape, "vllm:num_requests_running", "3");
    expect_own(scrape, "vllm:num_requests_waiting", "5");
    expect(scrape, "vllm:num_requests_waiting_by_reason", "{model_name=\"gpt2\",engine=\"0\",reason=\"capacity\"}",
           "3");
    expect(scrape, "vllm:num_requests_waiting_by_reason", "{model_name=\"gpt2\",engine=\"0\",reason=\"deferred\"}",
           "2");
    expect_own(scrape, "vllm:kv_cache_usage_perc", "0.25");
    expect_own(scrape, "vllm:num_preemptions_total", "4");
    expect(scrape, "cambium:adapter_memory_bytes", "", "12345");
    expect(scrape, "cambium:rank_up", "{rank=\"0\"}", "1");
    expect(scrape, "cambium:rank_up", "{rank=\"1\"}", "0");
    expect(scrape, "vllm:lora_requests_info",
           "{max_lora=\"64\",waiting_lora_adapters=\"\",running_lora_adapters=\"tone,style\"}", "1700000000.5");
    expect(scrape, "vllm:lora_adapter_loaded",
           "{adapter_name=\"style\",level=\"gpu\",pinned=\"false\",model_name=\"gpt2\",engine=\"0\"}", "1");
    expect(scrape, "vllm:lora_adapter_loaded",
           "{adapter_name=\"tone\",level=\"gpu\",pinned=\"true\",model_name=\"gpt2\",engine=\"0\"}", "1");
    expect(scrape, "vllm:cache_config_info",
           "{model_name=\"gpt2\",engine=\"0\",block_size=\"16\",cache_dtype=\"bf16\",enable_prefix_caching=\"True\","
           "num_gpu_blocks=\"200\"}",
           "1");
}

static void requests_and_adapters_are_counted_by_their_reasons(void **state) {
    struct scrape *scrape = *state;
    struct metrics *metrics = scrape->metrics;
    metrics_adapter_request(metrics, "tone", "lora");
    metrics_adapter_request(metrics, "style", "ia3");
    metrics_adapter_request(metrics, "tone", "lora");
    metrics_adapter_request(metrics, "tone", "lora,ia3");
    metrics_adapter_load(metrics, ERROR_NONE);
    metrics_adapter_load(metrics, ERROR_GENERATION_CHANGED);
    metrics_rejected(metrics, ERROR_ARGUMENT);
    metrics_rejected(metrics, ERROR_OVERLOADED);
    metrics_queue_full(metrics, true);
    metrics_cancelled(metrics, ERROR_CANCELLED);
    take(scrape);
    expect(scrape, "cambium:adapter_requests_total", "{adapter=\"tone\",method=\"lora\"}", "2");
    expect(scrape, "cambium:adapter_requests_total", "{adapter=\"tone\",method=\"lora,ia3\"}", "1");
    expect(scrape, "cambium:adapter_requests_total", "{adapter=\"style\",method=\"ia3\"}", "1");
    expect(scrape, "cambium:adapter_loads_total", "{result=\"success\"}", "1");
    expect(scrape, "cambium:adapter_loads_total", "{result=\"generation_changed\"}", "1");
    expect(scrape, "cambium:adapter_loads_total", "{result=\"adapter_invalid\"}", "0");
    expect(scrape, "cambium:requests_rejected_total", "{reason=\"invalid_request\"}", "1");
    expect(scrape, "cambium:requests_rejected_total", "{reason=\"overloaded\"}", "1");
    expect(scrape, "cambium:requests_rejected_total", "{reason=\"invalid_api_key\"}", "0");
    expect(scrape, "vllm:admission_rejections_total", "{model_name=\"gpt2\",reason=\"max_num_queued_tokens\"}", "1");
    expect(scrape, "vllm:admission_rejections_total", "{model_name=\"gpt2\",reason=\"max_num_queued_reqs\"}", "0");
    expect(scrape, "cambium:requests_cancelled_total", "{reason=\"cancelled\"}", "1");
    expect(scrape, "cambium:requests_cancelled_total", "{reason=\"slow_reader\"}", "0");
}

static void more_adapters_than_can_be_told_apart_are_others(void **state) {
    struct scrape *scrape = *state;
    for (int i = 0; i < 4096 + 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "a%d", i);
        metrics_adapter_request(scrape->metrics, name, "lora");
    }
    take(scrape);
    expect(scrape, "cambium:adapter_requests_total", "{adapter=\"a4095\",method=\"lora\"}", "1");
    expect(scrape, "cambium:adapter_requests_total", "{adapter=\".others\",method=\"\"}", "3");
}

static int count_lines(const struct scrape *scrape, const char *beginning) {
    int count = 0;
    for (const char *at = strbuf_text(&scrape->text); (at = strstr(at, beginning)); at++)
        count++;
    return count;
}

/* Names that come and go leave: those that went last stay a while, and one that came back stays for good. */
static void counters_of_names_that_are_gone_leave_after_a_bound(void **state) {
    struct scrape *scrape = *state;
    struct metrics *metrics = scrape->metrics;
    size_t held = 0;
    metrics_adapter_request(metrics, "stays", "lora");
    metrics_adapter_request(metrics, "back", "lora");
    metrics_adapter_gone(metrics, "back");
    metrics_adapter_request(metrics, "back", "lora");
    for (int i = 0; i < 1500; i++) {
        char name[32];
        snprintf(name, sizeof name, "guest%d", i);
        metrics_adapter_request(metrics, name, "lora");
        metrics_adapter_request(metrics, name, "ia3");
        metrics_adapter_gone(metrics, name);
        metrics_adapter_gone(metrics, "nobody");
        held = i == METRICS_MAX_GONE ? mallinfo2().uordblks : held;
    }
    assert_true(mallinfo2().uordblks <= held + 4096);
    take(scrape);
    assert_int_equal(count_lines(scrape, "\ncambium:adapter_requests_total{"), METRICS_MAX_GONE + 2);
    expect(scrape, "cambium:adapter_requests_total", "{adapter=\"stays\",method=\"lora\"}", "1");
    expect(scrape, "cambium:adapter_requests_total", "{adapter=\"back\",method=\"lora\"}", "2");
    expect(scrape, "cambium:adapter_requests_total", "{adapter=\"guest1499\",method=\"ia3\"}", "1");
}

static void a_models_name_may_be_anything(void **state) {
    struct scrape *scrape = *state;
    struct metrics_options odd = options;
    odd.model_name = "a\"b\\c\nd\xff";
    metrics_free(scrape->metrics);
    test_ok(metrics_new(&odd, &scrape->metrics));
    take(scrape);
    expect(scrape, "vllm:num_requests_running", "{model_name=\"a\\\"b\\\\c\\nd\xef\xbf\xbd\",engine=\"0\"}", "0");
}

static void nothing_is_counted_where_there_are_no_metrics(void **state) {
    (void)state;
    run_text(NULL, 0, 3, 0, 4, 0.1, METRICS_STOP);
    metrics_tell_engine(NULL, &(struct metrics_engine){0});
    metrics_tell_rank(NULL, 0, false);
    metrics_adapter_request(NULL, "a", "lora");
    metrics_adapter_load(NULL, ERROR_NONE);
    metrics_rejected(NULL, ERROR_KEY);
    metrics_queue_full(NULL, false);
    metrics_cancelled(NULL, ERROR_CANCELLED);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(counts_of_requests_one_after_another_are_exact),
        TEST(cached_tokens_are_told_apart),
        TEST(a_broken_off_text_has_no_latency),
        TEST(a_text_of_one_token_or_none_has_no_gap),
        TEST(a_bucket_has_what_is_at_its_bound_and_below),
        TEST(the_text_of_a_histogram_is_exact),
        TEST(the_engines_state_is_the_last_that_was_reported),
        TEST(requests_and_adapters_are_counted_by_their_reasons),
        TEST(more_adapters_than_can_be_told_apart_are_others),
        TEST(counters_of_names_that_are_gone_leave_after_a_bound),
        TEST(a_models_name_may_be_anything),
        TEST(nothing_is_counted_where_there_are_no_metrics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
