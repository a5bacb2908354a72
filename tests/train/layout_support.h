/* A small GPT with dropout, trained on a layout of ranks. Its losses, gradient norms and checkpoint are compared with
 * those of one rank. Ranks are threads. */
#pragma once

#include "train/support.h"
#include "train/verify.h"

#include "ckpt/safetensors.h"
#include "model/family.h"

#include <math.h>
#include <string.h>

enum { STEPS_MOST = 20, BATCH = 8, LAYERS = 8, RANKS_MOST = 8 };
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__ /* far slower */
enum { STEPS = 8 };
#else
enum { STEPS = STEPS_MOST };
#endif

static inline int steps(void) {
    return test_is_long() ? STEPS_MOST : STEPS;
}

struct layout {
    int tensor, data, pipeline, chunks, micro_batch_size;
    int first, last;                    /* layers of the first and the last stage; 0: an equal share */
    bool counts_embedding, counts_loss; /* as layers */
    int group;                          /* micro batches of a chunk in turn; 0: as many as stages */
    int partial;                        /* micro batches that recompute in part */
    int sharding, kept;                 /* enum sharding; layers that stay gathered */
    bool is_untied, is_bf16, is_sequence_parallel, waits, is_unclipped; /* waits: nothing travels beside computations */
    int granularity, method;                                            /* of recomputation */
    const char *family;                                                 /* NULL: GPT-2 */
};

/* The results of a layout's run: the first steps() of each. */
struct outcome {
    double loss[STEPS_MOST], norm[STEPS_MOST];
    char *directory; /* of its checkpoints */
};

struct task {
    struct train_run run;
    struct outcome *outcome;
    int64_t last; /* iteration, after which it saves */
};

/* A gradient is a sum of products, of 200 rows here, that went through LAYERS layers. In another order it differs by
 * 2^-24 x sqrt(200) x 8 = 7e-6 of the largest, and by as much again because the weights differ by that much. The
 * moments, its means, differ likewise. A weight moves by lr m / sqrt(v) in a step, whose error is small beside that,
 * unless the gradients of an element cancel down to their own rounding. The quotient is then any number up to 1, so a
 * few weights may be off by a step. */
static const double CLOSE = 1e-5, LR = 1e-3;

/* A vocabulary that no number of ranks divides, and layers of which some fill a bucket of gradients by themselves. */
static const char *modules[] = {"layernorm", "mlp_act"};

/* Eight heads in two groups: with four tensor ranks two of them hold the same keys and values. */
static inline void set_family(struct model_config *model, const char *family) {
    tiny_model_become(model, family, 2, 6);
    model->num_attention_heads = 8;
    model->hidden_dropout = model->embedding_dropout = 0;
}

static inline struct train_run make_layout_run(const char **prefix, const struct layout *layout,
                                               const struct outcome *out) {
    struct train_run run =
        make_run(prefix, layout->is_bf16 ? PRECISION_BF16 : PRECISION_FP32, layout->micro_batch_size);
    struct run_config *config = &run.config;
    config->model.num_layers = LAYERS;
    config->model.hidden_size = 40;
    config->model.num_attention_heads = config->model.num_query_groups = 4;
    config->model.kv_channels = 10;
    config->model.ffn_hidden_size = 160;
    config->model.vocab_size = VOCAB + 1;
    if (layout->family)
        set_family(&config->model, layout->family);
    config->model.untie_embeddings_and_output_weights = layout->is_untied;
    config->train.global_batch_size = BATCH;
    config->train.train_iters = config->optim.lr_decay_iters = steps();
    config->optim.lr = LR;
    config->optim.clip_grad = layout->is_unclipped ? 0 : config->optim.clip_grad;
    config->data.eod_mask_loss = true;
    config->parallel.tensor_model_parallel_size = layout->tensor;
    config->parallel.pipeline_model_parallel_size = layout->pipeline;
    config->parallel.virtual_pipeline_model_parallel_size = layout->chunks;
    config->parallel.microbatch_group_size_per_vp_stage = layout->group;
    config->parallel.decoder_first_pipeline_num_layers = layout->first;
    config->parallel.decoder_last_pipeline_num_layers = layout->last;
    config->parallel.account_for_embedding_in_pipeline_split = layout->counts_embedding;
    config->parallel.account_for_loss_in_pipeline_split = layout->counts_loss;
    config->parallel.num_microbatches_with_partial_activation_checkpoints = layout->partial;
    config->parallel.data_parallel_sharding_strategy = layout->sharding;
    config->parallel.fsdp_keep_gathered = layout->kept;
    config->parallel.overlap_grad_reduce = config->parallel.overlap_param_gather = !layout->waits;
    config->parallel.sequence_parallel = layout->is_sequence_parallel;
    config->parallel.recompute_granularity = layout->granularity;
    config->parallel.recompute_method = layout->method;
    config->parallel.recompute_num_layers = 2;
    config->parallel.recompute_modules = (struct config_list){modules, 2};
    config->checkpoint.save = out->directory;
    test_ok(run_config_resolve(config));
    return run;
}

static inline int train_on(struct comm *world, struct trainer *trainer, void *context) {
    struct task *task = context;
    int status = STATUS_OK;
    struct train_record record;
    for (int64_t i = task->run.iteration; i < task->last && !status; i++) {
        status = trainer_step(trainer, &record);
        if (!status && world->rank == 0) {
            task->outcome->loss[i] = record.lm_loss;
            task->outcome->norm[i] = record.grad_norm;
        }
    }
    return status ? status : trainer_save(trainer);
}

static inline int run_rank(struct comm *world, void *context) {
    const struct task *task = context;
    return use_trainer(&task->run, world, train_on, context);
}

static inline int ranks_of(const struct layout *layout) {
    return layout->tensor * layout->data * layout->pipeline;
}

static const char *describe(const struct layout *layout, char text[256]);

/* A new directory in the program's own; the caller frees the path. */
static inline char *new_directory(void) {
    static char *root;
    static int serial;
    char *path;
    root = root ? root : test_directory();
    assert_true(asprintf(&path, "%s/%d", root, serial++) > 0);
    return path;
}

/* Proves two steps of the layout, and that it resumes from one rank's run and one rank from its: everything that a step
 * computes, not only what a run leaves. */
static inline void prove(const char **prefix, const struct layout *layout) {
    struct outcome outcome = {.directory = new_directory()};
    struct verify_layout job = {.run = make_layout_run(prefix, layout, &outcome),
                                .ranks = ranks_of(layout),
                                .steps = 2,
                                .directory = outcome.directory};
    char text[256];
    test_ok(file_make_directories(outcome.directory));
    test_ok(verify_shrink(&job, true));
    test_ok(comm_local_run(job.ranks, verify_layout_run, &job));
    verify_layout_close(&job);
    if (!job.is_equal)
        fail_msg("%s: the proof has found a difference", describe(layout, text));
    free(outcome.directory);
}

static inline void load_from(struct task *task, const struct outcome *outcome, int64_t iteration) {
    snprintf(task->run.checkpoint, sizeof task->run.checkpoint, "%s/iter_%07d", outcome->directory, (int)iteration);
    task->run.iteration = task->run.optimizer_step = iteration;
    task->run.consumed_samples = iteration * BATCH;
}

/* Iterations first + 1 to last; from 0 on it starts afresh, else from what `outcome` holds. */
static inline void train(const char **prefix, const struct layout *layout, int64_t first, int64_t last,
                         struct outcome *outcome) {
    struct task task = {.outcome = outcome, .last = last};
    if (first == 0)
        outcome->directory = new_directory();
    task.run = make_layout_run(prefix, layout, outcome);
    if (first > 0)
        load_from(&task, outcome, first);
    test_ok(comm_local_run(ranks_of(layout), run_rank, &task));
}

/* ---- comparison ---- */

static inline char *read_checkpoint(const struct outcome *outcome, const char *name, size_t *bytes) {
    char path[PATH_MAX];
    struct strbuf text = STRBUF_INIT;
    snprintf(path, sizeof path, "%s/iter_%07d/%s", outcome->directory, steps(), name);
    test_ok(file_read(path, 1 << 28, &text));
    *bytes = text.length;
    return text.data;
}

/* All values of a tensor; the caller frees them. */
static inline float *read_values(const struct safetensors *file, const struct safetensor *tensor) {
    float *values = malloc(((size_t)tensor->elements + 1) * sizeof *values);
    assert_non_null(values);
    test_ok(safetensors_read(file, tensor, 0, tensor->elements, DTYPE_F32, values));
    return values;
}

/* The tensors of one kind: weights, or a moment. */
struct kind {
    const char *prefix;
    size_t count, off; /* off: by more than `bound` of the largest */
    double bound;
    double largest, worst;
};

enum { FEW = 10000 /* one of this many */ };

static inline void measure(struct kind *kind, const float *values, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        kind->largest = fmax(kind->largest, fabs((double)values[i]));
}

static inline void compare_values(struct kind *kind, const float *a, const float *b, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        double difference = fabs((double)a[i] - b[i]);
        kind->worst = difference <= kind->worst ? kind->worst : difference;
        kind->off += !(difference <= kind->bound * kind->largest);
    }
    kind->count += (size_t)count;
}

static inline void compare_kind(const struct safetensors *a, const struct safetensors *b, const char *prefix) {
    bool is_moment = !strncmp(prefix, "exp_", 4);
    struct kind kind = {.prefix = prefix, .bound = is_moment ? 2 * CLOSE : CLOSE};
    for (int is_compared = 0; is_compared < 2; is_compared++)
        for (size_t t = 0; t < safetensors_count(a); t++) {
            const struct safetensor *tensor = safetensors_at(a, t), *other = safetensors_at(b, t);
            assert_string_equal(tensor->name, other->name);
            assert_int_equal(tensor->elements, other->elements);
            if (strncmp(tensor->name, kind.prefix, strlen(kind.prefix)))
                continue;
            float *x = read_values(a, tensor), *y = read_values(b, other);
            if (is_compared)
                compare_values(&kind, x, y, tensor->elements);
            else
                measure(&kind, x, tensor->elements);
            free(x);
            free(y);
        }
    size_t allowed = is_moment ? 0 : kind.count / FEW;
    if (!kind.count || kind.off > allowed || !(kind.worst <= (is_moment ? kind.bound * kind.largest : LR)))
        fail_msg("'%s': %zu of %zu numbers are off by more than %g of the largest, %g; the worst by %g", kind.prefix,
                 kind.off, kind.count, kind.bound, kind.largest, kind.worst);
}

/* Two files of tensors, each kind of them by its own largest. */
static inline void compare_files(const struct outcome *a, const struct outcome *b, const char *name,
                                 const char *const *prefixes) {
    const struct outcome *outcomes[] = {a, b};
    struct safetensors *files[2];
    for (int i = 0; i < 2; i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/iter_%07d/%s", outcomes[i]->directory, steps(), name);
        test_ok(safetensors_open(path, &files[i]));
    }
    assert_int_equal(safetensors_count(files[0]), safetensors_count(files[1]));
    for (; *prefixes; prefixes++)
        compare_kind(files[0], files[1], *prefixes);
    for (int i = 0; i < 2; i++)
        safetensors_close(files[i]);
}

static const char *describe(const struct layout *layout, char text[256]) {
    snprintf(
        text, 256,
        "%s: tensor %d data %d pipeline %d of %d chunks in groups of %d (first %d, last %d%s%s)%s %s, recompute %d %d "
        "partial %d, micro "
        "batch %d, %s",
        layout->family ? layout->family : "gpt2", layout->tensor, layout->data, layout->pipeline, layout->chunks,
        layout->group, layout->first, layout->last, layout->counts_embedding ? ", embedding" : "",
        layout->counts_loss ? ", loss" : "", layout->is_sequence_parallel ? " sequence" : "",
        run_shardings[layout->sharding], layout->granularity, layout->method, layout->partial, layout->micro_batch_size,
        layout->is_untied ? "untied" : "tied");
    return text;
}

/* fp32: the losses of rows are off by the error of plain sums in another order, and some; the length of a gradient is
 * off like its elements. In bf16 an average of rows whose logits are rounded at the 9th bit stays within one such
 * rounding. A gradient is rounded twice in each of LAYERS layers, which by chance adds up to 4 roundings, and 8 are two
 * such deviations. */
static inline void compare_steps(const struct outcome *whole, const struct outcome *cut, const struct layout *layout) {
    const double loss_bound = layout->is_bf16 ? 0x1p-9 : 1e-6, norm_bound = layout->is_bf16 ? 8 * 0x1p-9 : 2 * CLOSE;
    char text[256];
    double worst_loss = 0, worst_norm = 0;
    for (int i = 0; i < steps(); i++) {
        double loss = fabs(cut->loss[i] - whole->loss[i]) / whole->loss[i];
        double norm = fabs(cut->norm[i] - whole->norm[i]) / whole->norm[i];
        if (!(loss <= loss_bound) || !(norm <= norm_bound))
            fail_msg("%s, step %d: loss off by %g, norm by %g", describe(layout, text), i + 1, loss, norm);
        worst_loss = fmax(worst_loss, loss);
        worst_norm = fmax(worst_norm, norm);
    }
    print_message("%s: loss within %.1e, norm within %.1e\n", describe(layout, text), worst_loss, worst_norm);
}

static inline void compare(const struct outcome *whole, const struct outcome *cut, const struct layout *layout) {
    static const char *const weights[] = {"", NULL}, *const states[] = {"exp_avg.", "exp_avg_sq.", NULL},
                             *const masters[] = {"exp_avg.", "exp_avg_sq.", "master.", NULL};
    compare_steps(whole, cut, layout);
    if (!layout->is_bf16)
        compare_files(whole, cut, "model.safetensors", weights);
    compare_files(whole, cut, "optimizer.safetensors", layout->is_bf16 ? masters : states);
}

static const struct layout one_rank = {.tensor = 1, .data = 1, .pipeline = 1, .chunks = 1, .micro_batch_size = 1};

/* The second half of a run, which writes to a directory of its own. */
static inline void continue_elsewhere(const char **prefix, const struct layout *layout, const struct outcome *half,
                                      struct outcome *outcome) {
    outcome->directory = new_directory();
    struct task task = {.run = make_layout_run(prefix, layout, outcome), .outcome = outcome, .last = steps()};
    load_from(&task, half, steps() / 2);
    test_ok(comm_local_run(ranks_of(layout), run_rank, &task));
}
