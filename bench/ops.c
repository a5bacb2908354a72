/* Single operations: the benchmark side of the op cases, each compared with the ceiling that bounds it, and their check
 * on the machine that is measured. */
#include "bench.h"

#include "op_cases.h"

#include <math.h>

/* Seconds of calls for all operations together, which they share, and for one of them. */
static const double all_seconds = 30, most_seconds = 0.3;

/* Totals of all operations: the work, its time, and its time at the ceilings. */
struct totals {
    int operations;
    double flops, bytes, seconds, floor_seconds, gemm_seconds; /* gemm_seconds: of the flops at their ceilings */
};

static int print_summary(const char *bench, struct device *device, const struct totals *totals,
                         const struct bench_ceiling ceilings[]) {
    json_t *object = json_pack("{s:s, s:s, s:I, s:f}", "bench", bench, "device", device_description(device),
                               "operations", (json_int_t)totals->operations, "seconds", totals->seconds);
    /* When nothing is computed, only moved, the unit is bytes. */
    bool is_moved = totals->flops == 0;
    json_object_set_new(object, is_moved ? "bytes_per_s" : "model_tflops",
                        json_real(is_moved ? totals->bytes / totals->seconds : totals->flops / totals->seconds / 1e12));
    json_object_set_new(
        object, "ceiling",
        json_real(is_moved ? ceilings[PRECISION_FP32].read : totals->flops / totals->gemm_seconds / 1e12));
    json_object_set_new(object, "ratio", json_real(totals->floor_seconds / totals->seconds));
    json_object_set_new(object, "fp32_ceiling_tflops", json_real(ceilings[PRECISION_FP32].gemm / 1e12));
    json_object_set_new(object, "bf16_ceiling_tflops", json_real(ceilings[PRECISION_BF16].gemm / 1e12));
    if (ceilings[PRECISION_TF32].gemm > 0)
        json_object_set_new(object, "tf32_ceiling_tflops", json_real(ceilings[PRECISION_TF32].gemm / 1e12));
    json_object_set_new(object, "read_bytes_per_s", json_real(ceilings[PRECISION_FP32].read));
    json_object_set_new(object, "peak_rss_bytes", json_integer((json_int_t)memory_peak()));
    bench_add_device_bytes(object, bench_device_bytes(device));
    return bench_print(object);
}

static int measure_case(struct device *device, const struct op_case *op_case, struct bench_ceiling ceiling,
                        double seconds, struct totals *totals) {
    struct op_timing timing;
    char text[256];
    op_case_text(op_case, text, sizeof text);
    int status = op_measure(device, op_case, seconds, &timing);
    if (status || timing.is_missing)
        return status;
    double floor = fmax(timing.flops / ceiling.gemm, timing.bytes / ceiling.read);
    totals->operations++;
    totals->flops += timing.flops;
    totals->bytes += timing.bytes;
    totals->seconds += timing.seconds;
    totals->floor_seconds += floor;
    totals->gemm_seconds += timing.flops / ceiling.gemm;
    return bench_print(json_pack("{s:s, s:f, s:f, s:f, s:f}", "op", text, "seconds", timing.seconds, "model_tflops",
                                 timing.flops / timing.seconds / 1e12, "bytes_per_s", timing.bytes / timing.seconds,
                                 "ratio", floor / timing.seconds));
}

static enum precision precision_of(const struct op_case *op_case) {
    return op_case->use & OP_TF32 ? PRECISION_TF32 : op_case->type == DTYPE_BF16 ? PRECISION_BF16 : PRECISION_FP32;
}

/* True for the cases that the options name: the filter occurs in the line that names the case. */
static bool is_named(const struct bench_options *options, const struct op_case *op_case) {
    char text[256];
    op_case_text(op_case, text, sizeof text);
    bool is_type = !options->has_precision || precision_of(op_case) == (enum precision)options->precision;
    return is_type && (!options->filter || strstr(text, options->filter));
}

/* True for the cases to measure. */
static bool is_chosen(const struct bench_options *options, const struct op_family *family,
                      const struct op_case *op_case, bool only_gemm) {
    return (op_case->use & OP_BENCH) && (!only_gemm || !strcmp(family->name, "gemm")) && is_named(options, op_case);
}

static int measure_families(const struct bench_options *options, bool only_gemm) {
    int count = 0;
    for (int f = 0; op_family_at(f); f++)
        for (int i = 0; i < op_family_at(f)->count; i++)
            count += is_chosen(options, op_family_at(f), &op_family_at(f)->cases[i], only_gemm);
    if (!count)
        return status_fail(STATUS_USAGE, "no operation has '%s' in its name", options->filter ? options->filter : "");
    struct device *device;
    int status = device_open(options->device, DEVICE_FIRST, (int)options->threads, &device);
    struct bench_ceiling ceilings[PRECISION_TF32 + 1] = {{0}}, again;
    bool has[] = {true, false, false};
    THEN(status, bench_measure_ceiling(device, DTYPE_F32, false, &ceilings[PRECISION_FP32]));
    has[PRECISION_BF16] = !status && !bench_measure_ceiling(device, DTYPE_BF16, false, &ceilings[PRECISION_BF16]);
    has[PRECISION_TF32] = !status && !bench_measure_ceiling(device, DTYPE_F32, true, &ceilings[PRECISION_TF32]);
    struct totals totals = {0};
    double seconds = fmin(most_seconds, all_seconds / count);
    for (int f = 0; !status && op_family_at(f); f++) {
        const struct op_family *family = op_family_at(f);
        for (int i = 0; i < family->count && !status; i++) {
            const struct op_case *op_case = &family->cases[i];
            if (is_chosen(options, family, op_case, only_gemm) && has[precision_of(op_case)])
                status = measure_case(device, op_case, ceilings[precision_of(op_case)], seconds, &totals);
        }
    }
    THEN(status, bench_measure_ceiling(device, DTYPE_F32, false, &again));
    if (!status) {
        ceilings[PRECISION_FP32] = bench_mean(ceilings[PRECISION_FP32], again);
        status = print_summary(only_gemm ? "gemm" : "ops", device, &totals, ceilings);
    }
    device_close(device);
    return status;
}

int bench_gemm(const struct bench_options *options) {
    if (!options->tune)
        return measure_families(options, true);
    if (device_uses_host_memory(options->device))
        return status_fail(STATUS_USAGE,
                           "--tune: only a GPU's products have a choice of algorithms: add --device cuda");
    if (comm_mpi_is_launched()) /* each would measure beside the others, and write the file */
        return status_fail(STATUS_USAGE, "bench gemm --tune is one process: run it without a launcher of ranks");
    return bench_tune(options);
}

/* ---- checks in place of measurements ---- */

struct checks {
    const struct bench_options *options;
    int passed, failed;
};

static bool is_checked(const struct op_case *op_case, const void *context) {
    const struct checks *checks = context;
    return is_named(checks->options, op_case);
}

static int print_check(const struct op_case *op_case, int status, void *context) {
    struct checks *checks = context;
    char text[256];
    op_case_text(op_case, text, sizeof text);
    checks->passed += !status;
    checks->failed += status != 0;
    return bench_print(status ? json_pack("{s:s, s:s, s:s}", "op", text, "outcome", "failed", "error", status_text())
                              : json_pack("{s:s, s:s}", "op", text, "outcome", "passed"));
}

/* The library's GELU may differ from ours by a rounding. */
static int check_gelu(struct checks *checks) {
    static const char name[] = "gelu of a product bf16, beside gelu_forward";
    static const double most_roundings = 1.5;
    const struct bench_options *options = checks->options;
    struct device *device;
    json_t *found = NULL;
    if ((options->filter && !strstr(name, options->filter)) ||
        (options->has_precision && options->precision != PRECISION_BF16))
        return STATUS_OK;
    int status = device_open(options->device, DEVICE_FIRST, (int)options->threads, &device);
    THEN(status, bench_compare_gelu(device, &found));
    device_close(device);
    if (status || !found)
        return status;
    bool is_right = json_real_value(json_object_get(found, "product_error_roundings")) <= most_roundings;
    checks->passed += is_right;
    checks->failed += !is_right;
    json_t *row = json_pack("{s:s, s:s}", "op", name, "outcome", is_right ? "passed" : "failed");
    json_object_update(row, found);
    json_decref(found);
    return bench_print(row);
}

static int check_operations(const struct bench_options *options) {
    struct checks checks = {.options = options};
    int status = op_check_each(options->device, is_checked, print_check, &checks);
    THEN(status, check_gelu(&checks));
    if (!status && !checks.passed && !checks.failed)
        return status_fail(STATUS_USAGE, "no operation has '%s' in its name", options->filter);
    if (!status)
        status =
            bench_print(json_pack("{s:s, s:i, s:i}", "bench", "ops", "passed", checks.passed, "failed", checks.failed));
    return status || !checks.failed
               ? status
               : status_fail(STATUS_INVALID, "%d of %d cases failed", checks.failed, checks.passed + checks.failed);
}

int bench_ops(const struct bench_options *options) {
    return options->only_checks ? check_operations(options) : measure_families(options, false);
}
