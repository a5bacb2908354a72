/* The layout is not part of the answer: a small GPT with dropout, trained for 20 steps on many layouts of ranks, has
 * the losses, gradient norms and weights of one rank. Ranks are threads. */
#include "train/support.h"

#include <math.h>
#include <string.h>

enum { STEPS = 20 };

struct layout {
    int tensor, data, micro_batch_size;
    bool is_sharded, is_untied, is_sequence_parallel;
    int granularity, method; /* of recomputation */
};

/* What a run of a layout left. */
struct outcome {
    double loss[STEPS], norm[STEPS];
    char *directory; /* of its checkpoints */
};

struct task {
    struct train_run run;
    struct outcome *outcome;
};

/* A vocabulary that no number of ranks divides, and layers of which some fill a bucket of gradients by themselves. */
static const char *modules[] = {"layernorm", "mlp_act"};

static struct train_run make_layout_run(const char **prefix, const struct layout *layout, const struct outcome *out) {
    struct train_run run = make_run(prefix, PRECISION_FP32, layout->micro_batch_size);
    struct run_config *config = &run.config;
    config->model.num_layers = 3;
    config->model.hidden_size = 40;
    config->model.num_attention_heads = config->model.num_query_groups = 4;
    config->model.ffn_hidden_size = 160;
    config->model.vocab_size = VOCAB + 1;
    config->model.untie_embeddings_and_output_weights = layout->is_untied;
    config->train.global_batch_size = 8;
    config->train.train_iters = config->optim.lr_decay_iters = STEPS;
    config->optim.lr = 5e-3;
    config->data.eod_mask_loss = true;
    config->parallel.tensor_model_parallel_size = layout->tensor;
    config->parallel.use_distributed_optimizer = layout->is_sharded;
    config->parallel.sequence_parallel = layout->is_sequence_parallel;
    config->parallel.recompute_granularity = layout->granularity;
    config->parallel.recompute_method = layout->method;
    config->parallel.recompute_num_layers = 2;
    config->parallel.recompute_modules = (struct config_list){modules, 2};
    config->checkpoint.save = out->directory;
    test_ok(run_config_resolve(config));
    return run;
}

static int train_on(struct comm *world, struct trainer *trainer, struct task *task) {
    int status = STATUS_OK;
    struct train_record record;
    for (int64_t i = task->run.iteration; i < task->run.config.train.train_iters && !status; i++) {
        status = trainer_step(trainer, &record);
        if (!status && world->rank == 0) {
            task->outcome->loss[i] = record.lm_loss;
            task->outcome->norm[i] = record.grad_norm;
        }
    }
    return status ? status : trainer_save(trainer);
}

static int run_rank(struct comm *world, void *context) {
    struct task *task = context;
    struct trainer *trainer;
    log_quiet(true);
    int status = trainer_open(&task->run, world, &trainer);
    if (!status)
        status = train_on(world, trainer, task);
    if (status)
        comm_abort(world, status_text());
    trainer_close(trainer);
    return status;
}

static int ranks_of(const struct layout *layout) {
    return layout->tensor * layout->data;
}

static void train(const char **prefix, const struct layout *layout, struct outcome *outcome) {
    struct task task = {.outcome = outcome};
    task.run = make_layout_run(prefix, layout, outcome);
    test_ok(comm_local_run(ranks_of(layout), run_rank, &task));
}

/* ---- comparison ---- */

static char *read_checkpoint(const struct outcome *outcome, const char *name, size_t *bytes) {
    char path[PATH_MAX];
    struct strbuf text = STRBUF_INIT;
    snprintf(path, sizeof path, "%s/iter_%07d/%s", outcome->directory, STEPS, name);
    test_ok(file_read(path, 1 << 28, &text));
    *bytes = text.length;
    return text.data;
}

/* The numbers of two safetensors files, which say the same about them: all but one in 1,000 within 1e-5 of the largest,
 * none beyond 1e-3 of it. */
static void compare_files(const struct outcome *a, const struct outcome *b, const char *name) {
    size_t a_bytes, b_bytes;
    char *a_file = read_checkpoint(a, name, &a_bytes), *b_file = read_checkpoint(b, name, &b_bytes);
    uint64_t header;
    assert_int_equal(a_bytes, b_bytes);
    memcpy(&header, a_file, sizeof header);
    header += sizeof header;
    assert_memory_equal(a_file, b_file, header);
    const float *x = (const float *)(a_file + header), *y = (const float *)(b_file + header);
    size_t count = (a_bytes - header) / sizeof(float), off = 0;
    float largest = 0, worst = 0;
    for (size_t i = 0; i < count; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    for (size_t i = 0; i < count; i++) {
        float difference = fabsf(x[i] - y[i]) / largest;
        worst = fmaxf(worst, difference);
        off += !(difference <= 1e-5f);
    }
    if (!(worst <= 1e-3f) || off > count / 1000)
        fail_msg("%s: %zu of %zu numbers differ by more than 1e-5 of the largest, the worst by %g", name, off, count,
                 (double)worst);
    free(a_file);
    free(b_file);
}

static void compare(const struct outcome *whole, const struct outcome *cut, const struct layout *layout) {
    for (int i = 0; i < STEPS; i++) {
        double loss = fabs(cut->loss[i] - whole->loss[i]) / whole->loss[i];
        double norm = fabs(cut->norm[i] - whole->norm[i]) / whole->norm[i];
        if (!(loss <= 1e-6) || !(norm <= 1e-5))
            fail_msg("tensor %d data %d %s %s recompute %d %d micro batch %d %s, step %d: loss off by %g, norm by %g",
                     layout->tensor, layout->data, layout->is_sharded ? "sharded" : "whole",
                     layout->is_sequence_parallel ? "sequence" : "", layout->granularity, layout->method,
                     layout->micro_batch_size, layout->is_untied ? "untied" : "tied", i + 1, loss, norm);
    }
    compare_files(whole, cut, "model.safetensors");
    compare_files(whole, cut, "optimizer.safetensors");
}

/* ---- tests ---- */

enum { RECOMPUTATIONS = 4 };

static void choose_recomputation(struct layout *layout, int which) {
    static const int granularities[] = {GRANULARITY_NONE, GRANULARITY_SELECTIVE, GRANULARITY_FULL, GRANULARITY_FULL};
    layout->granularity = granularities[which];
    layout->method = which == 2 ? METHOD_UNIFORM : METHOD_BLOCK;
}

/* Layout `number` of all there are; false when there are no more. The axes that change the arithmetic most change
 * fastest, so that every eleventh is a fair part of them. */
static bool make_layout(int number, bool is_untied, struct layout *layout) {
    static const int sizes[] = {1, 2, 4};
    *layout = (struct layout){.is_untied = is_untied};
    layout->tensor = sizes[number % 3], number /= 3;
    layout->data = sizes[number % 3], number /= 3;
    layout->is_sequence_parallel = number % 2, number /= 2;
    layout->is_sharded = number % 2, number /= 2;
    choose_recomputation(layout, number % RECOMPUTATIONS), number /= RECOMPUTATIONS;
    layout->micro_batch_size = 1 + number % 2, number /= 2;
    return number == 0;
}

static void check_layouts(bool is_untied) {
    char *prefix = write_text();
    struct outcome whole = {.directory = test_directory()}, cut = {.directory = test_directory()};
    struct layout one = {.tensor = 1, .data = 1, .micro_batch_size = 1, .is_untied = is_untied}, layout;
    train((const char **)&prefix, &one, &whole);
    for (int i = is_untied; make_layout(i, is_untied, &layout); i += test_is_long() ? 1 : 11) {
        if ((layout.is_sequence_parallel && layout.tensor == 1) || (layout.is_sharded && layout.data == 1))
            continue; /* the same as without */
        train((const char **)&prefix, &layout, &cut);
        compare(&whole, &cut, &layout);
    }
    free(cut.directory);
    free(whole.directory);
    free(prefix);
}

static void every_layout_trains_as_one_rank(void **state) {
    (void)state;
    check_layouts(false);
}

static void so_with_a_head_of_its_own(void **state) {
    (void)state;
    check_layouts(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_trains_as_one_rank),
        cmocka_unit_test(so_with_a_head_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
