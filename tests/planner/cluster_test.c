/* Cluster files: units, bounds, and mistakes with their lines. */
#include "support/test.h"

#include "planner/cluster.h"

#include "config/run.h"
#include "parallel/rank.h"

#include <math.h>

static const char device[] = "device:\n  name: test\n  kind: cpu\n  memory: 80 GB\n  per_node: 8\n"
                             "  memory_bandwidth: 2039 GB/s\n  peak_bf16: 312 TFLOP/s\n  peak_fp32: 19.5 TFLOP/s\n";
static const char links[] = "links:\n  node_bandwidth: 300 GB/s\n  node_latency: 8 us\n"
                            "  network_bandwidth: 25 GB/s\n  network_latency: 0 s\n";

static int open_parts(const char *a, const char *b, const char *c, struct cluster *cluster) {
    char text[2048];
    int length = snprintf(text, sizeof text, "%s%s%s", a, b, c);
    return cluster_open_text("c.yaml", text, (size_t)length, cluster);
}

static void numbers_have_units(void **state) {
    (void)state;
    struct cluster cluster;
    test_ok(open_parts(device, links, "achieved:\n  products: 0.6 (0.5 to 0.9)\n  layer_forward: 2 ms\n", &cluster));
    assert_true(cluster.memory.value == 80e9);
    assert_true(cluster.peak_fp32.value == 19.5e12);
    assert_true(cluster.node_latency.value == 8 * 1e-6);
    assert_int_equal(cluster.per_node, 8);
    assert_int_equal(cluster.processors, 8);
    assert_true(cluster.achieved[CLUSTER_PRODUCTS].low == 0.5 && cluster.achieved[CLUSTER_PRODUCTS].high == 0.9);
    assert_true(cluster.achieved[CLUSTER_LAYER_FORWARD].value == 2e-3);
    assert_true(cluster.achieved[CLUSTER_OTHER].value == cluster_neutral(CLUSTER_OTHER).value);
    cluster_close(&cluster);
}

static void shipped_clusters_open_and_are_written_back(void **state) {
    (void)state;
    const char *name;
    for (int i = 0; (name = cluster_shipped_name(i)); i++) {
        struct cluster cluster, again;
        struct strbuf text = STRBUF_INIT;
        test_ok(cluster_open(name, &cluster));
        cluster.achieved[CLUSTER_PRODUCTS].value = 0.5125;
        test_ok(cluster_write(&cluster, "a test", &text));
        test_ok(cluster_open_text("again", strbuf_text(&text), text.length, &again));
        assert_string_equal(again.source, "a test");
        assert_true(again.achieved[CLUSTER_PRODUCTS].value == 0.5125);
        assert_true(again.memory.value == cluster.memory.value && again.train == cluster.train);
        assert_non_null(strstr(strbuf_text(&text), "# datasheet")); /* comments stay */
        cluster_close(&cluster);
        cluster_close(&again);
        strbuf_free(&text);
    }
}

/* Each row of a shipped file says where its number comes from. */
static void shipped_rows_have_their_sources(void **state) {
    (void)state;
    const char *name;
    for (int i = 0; (name = cluster_shipped_name(i)); i++) {
        struct cluster cluster;
        int rows = 0;
        test_ok(cluster_open(name, &cluster));
        for (const char *line = strbuf_text(&cluster.text), *end; *line; line = end + (*end == '\n')) {
            end = line + strcspn(line, "\n");
            const char *mark = memchr(line, '#', (size_t)(end - line));
            if (*line == ' ' && line[2] != '#') {
                assert_true(mark && end - mark > 3);
                rows++;
            }
        }
        assert_true(rows > 30);
        bool is_of_2022 = cluster.train == CLUSTER_TRAINS_MEGATRON_2022;
        assert_true(is_of_2022 || strstr(cluster.source, "not calibrated"));
        cluster_close(&cluster);
    }
}

static const char speeds[] = "achieved:\n  small_dimension: 100\n  speeds:\n"
                             "    - \"bf16 gemm 1024x3072x768 800 GFLOP/s\"\n"
                             "    - \"bf16 gemm 1024x768x100 500 GFLOP/s\"\n"
                             "    - \"fp32 gemm 1024x3072x768 300 GFLOP/s\"\n"
                             "    - \"tf32 gemm 1024x3072x768 400 GFLOP/s\"\n"
                             "    - \"bf16 attention 90 GFLOP/s\"\n"
                             "    - \"bf16 norms 20 GB/s\"\n";

static void check_speeds(const struct cluster *cluster) {
    const int64_t known[] = {1024, 3072, 768}, near[] = {1024, 768, 50};
    assert_int_equal(cluster->speed_count, 6);
    assert_true(cluster_speed(cluster, PRECISION_BF16, PHASE_GEMM, known) == 800e9);
    assert_true(cluster_speed(cluster, PRECISION_FP32, PHASE_GEMM, known) == 300e9);
    assert_true(cluster_speed(cluster, PRECISION_TF32, PHASE_GEMM, known) == 400e9);
    double expected = 500e9 * (50.0 / 150) / (100.0 / 200); /* the nearest, with a smaller dimension */
    assert_true(fabs(cluster_speed(cluster, PRECISION_BF16, PHASE_GEMM, near) / expected - 1) < 1e-12);
    assert_true(cluster_speed(cluster, PRECISION_BF16, PHASE_ATTENTION, NULL) == 90e9);
    assert_true(cluster_speed(cluster, PRECISION_BF16, PHASE_NORM, NULL) == 20e9);
    assert_true(cluster_speed(cluster, PRECISION_BF16, PHASE_LOSS, NULL) == 0);
    assert_true(cluster_speed(cluster, PRECISION_FP32, PHASE_NORM, NULL) == 0);
}

static void measured_speeds_are_found_and_written_back(void **state) {
    (void)state;
    struct cluster cluster, again;
    struct strbuf text = STRBUF_INIT;
    test_ok(open_parts(device, links, speeds, &cluster));
    check_speeds(&cluster);
    test_ok(cluster_write(&cluster, "a test", &text));
    test_ok(cluster_open_text("again", strbuf_text(&text), text.length, &again));
    check_speeds(&again);
    cluster_close(&cluster);
    cluster_close(&again);
    strbuf_free(&text);
}

static void mistakes_are_named_with_their_lines(void **state) {
    (void)state;
    const struct {
        const char *more, *message;
    } cases[] = {
        {"achieved:\n  product: 0.6\n",
         "c.yaml:15:3: unknown key 'achieved.product' (did you mean achieved.products?)"},
        {"achieved:\n  layer_forward: 2\n",
         "c.yaml:15:18: achieved.layer_forward: '2' is not a number with the unit s"},
        {"achieved:\n  layer_forward: 2 GB\n", "c.yaml:15:18: "},
        {"achieved:\n  layer_forward: 2 ks\n", "'2 ks' is not a number with the unit s, such as 8 us"},
        {"achieved:\n  step: -2 ms\n", "c.yaml:15:9: achieved.step: '-2 ms' is negative"},
        {"achieved:\n  other: 0.9 (0.1 to 0.5)\n", "is not within its bounds"},
        {"achieved:\n  other: 0.9 of it\n", "'0.9 of it' is not a number"},
        {"achieved:\n  products: 0\n", "c.yaml:15:13: achieved.products: 0 is out of range: expected 1e-06 to 100"},
        {"achieved:\n  tensor_hidden: 1.5\n",
         "c.yaml:15:18: achieved.tensor_hidden: 1.5 is out of range: expected 0 to 1"},
        {"achieved:\n  step: 1 s (0 s to 1e300 s)\n",
         "c.yaml:15:9: achieved.step: 1 s (0 s to 1e300 s) is out of range: expected 0 to 1000 s"},
        {"achieved:\n  speeds: [\"bf16 gemm 1024x3072 8 GFLOP/s\"]\n",
         "c.yaml:15: achieved.speeds: 'bf16 gemm 1024x3072 8 GFLOP/s' is no speed, such as "},
        {"achieved:\n  speeds: [\"bf16 communication 8 GB/s\"]\n", "is no speed"},
        {"achieved:\n  speeds: [\"fp8 norms 8 GB/s\"]\n", "is no speed"},
        {"achieved:\n  speeds: [\"fp32 norms 8 GFLOP/s\"]\n",
         "c.yaml:15: achieved.speeds: '8 GFLOP/s' is not a number with the unit B/s"},
        {"achieved:\n  speeds: [\"fp32 norms 0 GB/s\"]\n", "c.yaml:15: achieved.speeds: '0 GB/s': expected 1 to"},
        {"stack:\n  train: megatron\n", "did you mean megatron-2022?"},
        {"stak:\n  train: cambium\n", "c.yaml:14:1: unknown section 'stak' (did you mean stack?)"},
    };
    struct cluster cluster;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        test_fails(open_parts(device, links, cases[i].more, &cluster), STATUS_USAGE, cases[i].message);
    test_fails(open_parts(device, "", "", &cluster), STATUS_USAGE, "c.yaml: links.node_bandwidth is missing");
    test_fails(open_parts(device, "  processors: 9\n", links, &cluster), STATUS_USAGE,
               "c.yaml:9: device.processors is 9: expected at most device.per_node, 8");
    test_fails(cluster_open("h10", &cluster), STATUS_NOT_FOUND, "did you mean h100?");
}

/* No number makes a prediction infinite: what divides is not 0, and every number has an upper bound. */
static void every_number_has_bounds(void **state) {
    (void)state;
    static const struct {
        const char *key, *unit;
        bool may_be_zero;
    } numbers[] = {
        {"device:\n  memory", " GB", false},
        {"device:\n  host_memory", " GB", false},
        {"device:\n  memory_bandwidth", " GB/s", false},
        {"device:\n  peak_bf16", " TFLOP/s", false},
        {"device:\n  peak_fp8", " TFLOP/s", false},
        {"links:\n  node_bandwidth", " GB/s", false},
        {"links:\n  node_latency", " us", true},
        {"links:\n  network_bandwidth", " GB/s", false},
        {"links:\n  network_latency", " s", true},
        {"achieved:\n  network", "", false},
        {"achieved:\n  small_dimension", "", true},
        {"achieved:\n  layer_forward", " s", true},
        {"achieved:\n  step", " s", true},
        {"achieved:\n  error", "", true},
        {"achieved:\n  serve_memory", "", false},
        {"achieved:\n  serve_step", " s", true},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        for (int is_large = 0; is_large < 2; is_large++) {
            struct cluster cluster;
            char text[128], message[128];
            const char *key = strrchr(numbers[i].key, ' ') + 1, *value = is_large ? "1e290" : "0";
            snprintf(text, sizeof text, "%s: %s%s\n", numbers[i].key, value, numbers[i].unit);
            snprintf(message, sizeof message, "%s: %s%s is out of range: expected ", key, value, numbers[i].unit);
            int status = cluster_open_text("c.yaml", text, strlen(text), &cluster);
            if (!is_large && numbers[i].may_be_zero)
                assert_null(strstr(status_text(), message)); /* only other keys are missing */
            else
                test_fails(status, STATUS_USAGE, message);
            assert_true(is_large == 0 || strstr(status_text(), "c.yaml:2:"));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_have_units),
        cmocka_unit_test(shipped_clusters_open_and_are_written_back),
        cmocka_unit_test(shipped_rows_have_their_sources),
        cmocka_unit_test(measured_speeds_are_found_and_written_back),
        cmocka_unit_test(mistakes_are_named_with_their_lines),
        cmocka_unit_test(every_number_has_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
