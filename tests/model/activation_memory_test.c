/* The bytes that a layer keeps for its backward in bf16, counted during the run. They are the bytes of the activations'
 * block that a forward writes, on the CPU, whose device memory is found among the process's mappings. They are compared
 * with the plan, and with the formulas of Korthikanti et al. (arXiv 2205.05198) without masks and attention weights,
 * which are never kept. */
#include "comm/comm.h"
#include "model/support.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { S = 256, B = 2, H = 512, HEADS = 8, VOCAB = 1000, LINE = 64, CANARY = 0xa5 };

/* ---- the block, found among what the device maps ---- */

enum { MAPPINGS = 4096, HUGE_PAGE = 2 << 20, SLACK = HUGE_PAGE + 4096 };
static _Thread_local struct {
    unsigned char *start;
    size_t bytes;
} mappings[MAPPINGS];
static _Thread_local int mapping_count;

void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
    void *memory = (void *)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
    mappings[mapping_count % MAPPINGS].start = memory;
    mappings[mapping_count++ % MAPPINGS].bytes = bytes;
    return memory;
}

/* Finds the block in the newest mapping of `bytes` bytes. */
static unsigned char *find_block(size_t bytes) {
    for (int i = mapping_count - 1; i >= 0 && i > mapping_count - MAPPINGS; i--) {
        uintptr_t start = (uintptr_t)mappings[i % MAPPINGS].start;
        size_t mapped = mappings[i % MAPPINGS].bytes;
        if (mapped >= bytes && mapped <= bytes + SLACK)
            return (unsigned char *)((start + HUGE_PAGE) / HUGE_PAGE * HUGE_PAGE);
    }
    fail_msg("no mapping of %zu bytes", bytes);
    return NULL;
}

/* Fills the block, or counts what is no longer as it was filled. */
static size_t canaries(unsigned char *block, size_t bytes, bool is_filled) {
    size_t written = 0;
    for (size_t line = 0; line + LINE <= bytes; line += LINE) {
        unsigned char untouched[LINE];
        memset(untouched, CANARY, LINE);
        if (is_filled)
            written += memcmp(block + line, untouched, LINE) ? LINE : 0;
        else
            memset(block + line, CANARY, LINE);
    }
    return written;
}

/* ---- a forward ---- */

struct task {
    int64_t layers;
    int tensors;
    bool is_sequence_parallel;
    struct model_recompute recompute;
    double written, planned; /* by the last rank */
};

static struct model_options options_of(const struct task *task) {
    struct model_config config = tiny_model(&(const struct tiny_model){
        .layers = task->layers, .hidden = H, .heads = HEADS, .ffn = 4 * H, .positions = S, .vocab = VOCAB});
    config.hidden_dropout = config.attention_dropout = 0.1;
    return (struct model_options){.base.config = config,
                                  .base.dtype = DTYPE_BF16,
                                  .base.trains = true,
                                  .train.recompute = task->recompute,
                                  .max_rows = S * B};
}

static int forward(struct training_runner *model) {
    static const int64_t segment_start[B + 1] = {0, S, 2 * S};
    int32_t tokens[S * B], positions[S * B];
    uint32_t sample[S * B], token[S * B];
    float weight[S * B];
    for (int i = 0; i < S * B; i++) {
        tokens[i] = i % VOCAB;
        positions[i] = i % S;
        sample[i] = (uint32_t)(i / S);
        token[i] = (uint32_t)(i % S);
        weight[i] = 1;
    }
    struct model_batch batch = {.rows = S * B,
                                .tokens = tokens,
                                .positions = positions,
                                .sample = sample,
                                .token = token,
                                .segments = B,
                                .segment_start = segment_start,
                                .labels = tokens,
                                .loss_weight = weight};
    return model_forward(model, &batch, &(const struct model_pass){.has_dropout = true}, NULL, NULL);
}

static int run_rank(struct comm *world, void *context) {
    struct task *task = context;
    struct rank_grid grid = {task->tensors, 1, 1, 1, 1};
    struct model_options options = options_of(task);
    struct model_plan plan;
    struct device *device;
    struct rank rank;
    struct base *base = NULL;
    struct training_runner *model = NULL;
    test_ok(device_open("cpu", DEVICE_FIRST, 1, &device));
    test_ok(rank_open(&rank, &grid, world, device, 1));
    rank.is_sequence_parallel = task->is_sequence_parallel && task->tensors > 1;
    test_ok(test_open_training(&options, &rank, &plan, &base, &model));
    unsigned char *block = find_block(plan.activations); /* before others are mapped */
    test_ok(base_initialise(base, 1));
    canaries(block, plan.activations, false);
    int status = forward(model);
    if (!status && world->rank == world->size - 1) {
        task->written = (double)canaries(block, plan.activations, true);
        task->planned = (double)plan.activations;
    }
    test_close_training(&base, &model);
    rank_close(&rank);
    device_close(device);
    return status;
}

/* Returns what one more layer keeps, in units of s b h. Layers 4 and 2 make whole groups of recomputation. */
static double a_layer(int tensors, bool is_sequence_parallel, struct model_recompute recompute) {
    struct task few = {2, tensors, is_sequence_parallel, recompute, 0, 0}, many = few;
    many.layers = 4;
    test_ok(comm_local_run(tensors, run_rank, &few));
    test_ok(comm_local_run(tensors, run_rank, &many));
    double unit = 2 * (double)S * B * H;
    double planned = (many.planned - few.planned) / unit, written = (many.written - few.written) / unit;
    if (!(written <= planned && written >= planned * 0.99))
        fail_msg("%d tensor ranks: a layer writes %.3f s b h, and %.3f are planned", tensors, written, planned);
    return written;
}

static void a_layer_keeps_no_more_than_the_formulas(void **state) {
    (void)state;
    test_skip_without_bf16();
    const struct model_recompute none = {0};
    const struct model_recompute modules = {.how = RECOMPUTE_SELECTIVE, .layernorm = true, .mlp_act = true};
    const struct model_recompute full = {.how = RECOMPUTE_UNIFORM, .num_layers = 1};
    for (int t = 1; t <= 4; t *= 2) {
        double plain = a_layer(t, false, none);
        assert_true(plain <= 10 + 24.0 / t);
        assert_true(plain > 8 + 24.0 / t); /* what the list of kept tensors comes to, and statistics */
        assert_true(a_layer(t, true, none) <= 34.0 / t);
        assert_true(a_layer(t, true, modules) <= 21.0 / t);
        assert_true(a_layer(t, true, full) <= 2.0 / t + 0.01);
        assert_true(a_layer(t, false, full) <= 2.01);
    }
}

/* ---- stages ---- */

static double planned(struct model_options options) {
    struct device *device;
    struct rank rank;
    struct model_plan plan;
    test_ok(device_open("cpu", DEVICE_FIRST, 1, &device));
    rank_sketch(&rank, &(const struct rank_grid){1, 1, 1, 1, 1}, 0, device);
    test_ok(test_plan_training(&options, &rank, &plan));
    rank_close(&rank);
    device_close(device);
    return (double)plan.activations / ((double)S * B * H);
}

/* Among the micro batches that a stage holds, `partial_stashes` recompute as configured, and the others recompute all
 * layers. */
static void each_held_micro_batch_keeps_its_own(void **state) {
    (void)state;
    struct task task = {.layers = 8, .recompute = {.how = RECOMPUTE_BLOCK, .num_layers = 2}};
    struct model_options options = options_of(&task);
    options.base.chunk_count = 1;
    options.base.chunks[0] = (struct model_chunk){4, 4};
    options.train.stashes = 1;
    options.train.partial_stashes = 2;
    double one = planned(options);
    options.train.stashes = 2;
    double two = planned(options);
    options.train.stashes = 5;
    double five = planned(options);
    double in_part = two - one, in_full = (five - two) / 3;
    /* Two layers of 34, two inputs and the last output; four inputs and the last output: each of 2, and the batch. */
    assert_true(in_part > 2 * 32 + 3 * 2 && in_part <= 2 * 34 + 3 * 2 + 0.1);
    assert_true(in_full >= 5 * 2 && in_full <= 5 * 2 + 0.1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_keeps_no_more_than_the_formulas),
        cmocka_unit_test(each_held_micro_batch_keeps_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
