/* The stand-in for a GPU counts the work of kernels, which is compared with the least possible. It counts bytes of
 * global memory that a launch touches, sectors of 32 bytes, and passes through shared memory. */
#include "op_cases-internal.h"

#include "counts.h"

#include <stdlib.h>
#include <string.h>

/* Sums over all kernels. */
struct traffic {
    double bytes, sectors, least_sectors, passes, least_passes;
};

static struct traffic total(void) {
    struct traffic sum = {0};
    for (const struct counts *c = test_counts(); c; c = c->next) {
        sum.bytes += (double)c->moved_bytes;
        sum.sectors += (double)(c->load_sectors + c->store_sectors);
        sum.least_sectors += (double)c->least_sectors;
        sum.passes += (double)c->shared_passes;
        sum.least_passes += (double)c->least_shared_passes;
    }
    return sum;
}

/* A benchmark's case, in a shape that the stand-in computes quickly. */
struct row {
    const char *kind, *note;
    enum dtype type;
    int64_t shape[2]; /* in place of the first sizes; 0: the case's */
};
static const double most = 1.10, most_bytes = 1.02;

static const struct row rows[] = {
    {"layernorm_forward", "gpt2", DTYPE_BF16, {512}},
    {"rmsnorm_forward", "hidden 768", DTYPE_BF16, {512}},
    {"layernorm_backward", "gpt2", DTYPE_BF16, {16384, 64}},
    {"layernorm_backward", "gpt2", DTYPE_F32, {16384, 64}},
    {"gelu_forward", "tanh, gpt2", DTYPE_BF16, {1 << 18}},
    {"gelu_backward", "tanh, gpt2", DTYPE_BF16, {1 << 18}},
    {"swiglu_forward", "smollm2", DTYPE_BF16, {128}},
    {"swiglu_backward", "smollm2", DTYPE_BF16, {128}},
    {"residual_dropout_forward", "gpt2", DTYPE_BF16, {256}},
    {"residual_dropout_backward", "gpt2", DTYPE_BF16, {256}},
    {"cross_entropy_fused", "gpt2", DTYPE_BF16, {8}},
    {"adamw", "20 M", DTYPE_F32, {1 << 18}},
    {"adamw", "20 M", DTYPE_BF16, {1 << 18}},
    {"fp8_cast", "gpt2 fc2 input", DTYPE_BF16, {256}},
    {"fp8_cast", "gpt2 fc2 gradient", DTYPE_BF16, {256}},
    {"fp8_result", "gpt2 norm", DTYPE_BF16, {512}},
    {"fp8_result", "gpt2 norm, again", DTYPE_BF16, {512}},
    {"fp8_result", "gpt2 gelu", DTYPE_BF16, {128}},
    {"fp8_result", "gpt2 gelu, columns", DTYPE_BF16, {128}},
    {"fp8_result", "gpt2 gelu backward", DTYPE_BF16, {128}},
    {"fp8_result", "smollm2 swiglu", DTYPE_BF16, {128}},
    {"fp8_result", "smollm2 swiglu backward", DTYPE_BF16, {128}},
    {"paged_attention", "gpt2 decode, 16 sequences", DTYPE_BF16, {0}},
    {"paged_attention", "gpt2 decode", DTYPE_F32, {0}},
};

static struct op_case case_of(const struct row *row) {
    for (int f = 0; op_family_at(f); f++)
        for (int i = 0; i < op_family_at(f)->count; i++) {
            struct op_case c = op_family_at(f)->cases[i];
            if (!(c.use & OP_BENCH) || c.type != row->type || strcmp(c.kind->name, row->kind) ||
                strcmp(c.note, row->note))
                continue;
            for (int s = 0; s < 2; s++)
                c.shape[s] = row->shape[s] ? row->shape[s] : c.shape[s];
            return c;
        }
    fail_msg("no case %s (%s)", row->kind, row->note);
    return (struct op_case){0};
}

static double ratio(double value, double least) {
    return least > 0 ? value / least : 1;
}

static void check_row(const struct row *row, struct device *device, struct stream *stream) {
    struct op_case c = case_of(row);
    struct op_run run = {.is_benchmark = true};
    struct op_scene scene = {.device = device, .stream = stream, .ops = ops_for(device)};
    double flops, least;
    test_ok(op_run_open(&run, &c, device, stream));
    test_ok(op_scene_enter(&scene, &run));
    struct traffic before = total();
    test_ok(c.kind->call(&run, scene.ops, &scene.exec));
    test_ok(stream_wait(stream));
    struct traffic after = total();
    c.kind->cost(&run, &flops, &least);
    double bytes = ratio(after.bytes - before.bytes, least);
    double sectors = ratio(after.sectors - before.sectors, after.least_sectors - before.least_sectors);
    double passes = ratio(after.passes - before.passes, after.least_passes - before.least_passes);
    print_message("%s (%s) %s: bytes %.3f, sectors %.3f, passes %.3f\n", row->kind, row->note, dtype_name(row->type),
                  bytes, sectors, passes);
    bool is_sum = strstr(row->kind, "norm_backward"); /* each block writes sums of its rows, which are added after */
    assert_true(bytes >= 1 && bytes <= (is_sum ? most : most_bytes));
    assert_true(sectors <= most);
    assert_true(passes <= most);
    test_ok(op_scene_leave(&scene, &run));
    op_run_close(&run, device);
}

static void kernels_move_little_more_than_they_must(void **state) {
    struct device *device;
    struct stream *stream;
    (void)state;
    test_ok(device_open("cuda", DEVICE_FIRST, 1, &device));
    test_ok(stream_open(device, &stream));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_row(&rows[i], device, stream);
    stream_close(stream);
    device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(kernels_move_little_more_than_they_must)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
