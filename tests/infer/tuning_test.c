/* Tuning runs on an engine: files equal those of a trainer with the same rows and keys. This holds for every kind of
 * adapter, loss and slice, and while the engine writes texts, whose bits do not change. */
#include "infer/sequences.h"
#include "infer/tuner.h"
#include "infer/tuning.h"
#include "pretrained/pretrained.h"
#include "stacks.h"

enum { STEPS = 3, BATCH = 4, MICRO = 2, LENGTH = 24, DECODED = 12, MEMORY = 64 << 20 };

/* ---- rows ---- */

struct rows {
    struct train_source source;
    bool has_pairs;
    int64_t virtual_tokens, first_position;
};

/* Text `t` of a sample: 5 to 12 tokens, of which the second half is an answer. */
static int64_t add_text(const struct rows *rows, struct gpt_batch *batch, int64_t sample, int t, bool is_reference) {
    int64_t before = is_reference ? 0 : rows->virtual_tokens, position = is_reference ? 0 : rows->first_position;
    int64_t count = before + 4 + (sample * 5 + t * 3) % 8;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = batch->rows + i, token = i - before;
        batch->tokens[row] = token < 0 ? (int32_t)(V + i) : token_at((int)sample * 2 + t, token);
        batch->labels[row] = token < -1 ? 0 : token_at((int)sample * 2 + t, token + 1);
        batch->loss_mask[row] = token < (count - before) / 2 ? 0 : t ? -1 : 1;
        batch->positions[row] = (int32_t)(position + i);
        batch->sample[row] = (uint32_t)sample;
        batch->token[row] = (uint32_t)(t * LENGTH + i);
    }
    batch->rows += count;
    batch->segment_start[++batch->segments] = batch->rows;
    return count;
}

static int read_rows(const struct train_source *source, struct gpt_batch *batch, const struct train_samples *samples) {
    const struct rows *rows = (const void *)source;
    batch->rows = batch->segments = batch->padding = 0;
    batch->segment_start[0] = 0;
    for (int64_t i = 0; i < batch->samples; i++)
        for (int t = 0; t <= rows->has_pairs; t++)
            add_text(rows, batch, samples->first + i, t, samples->is_reference);
    return STATUS_OK;
}

/* ---- a case ---- */

struct tuned {
    const char *name;
    struct peft_config config;
    const char *loss;
};

struct scene {
    const struct tuned *tuned;
    int precision, tensor;
    double seconds; /* of a slice; 0: the least */
    bool writes, cancels;
    bool resumes; /* a second run starts from a snapshot in the middle */
    /* Results of the leader. */
    struct peft_bytes bytes;
    int64_t slices;
    float logprobs[DECODED];
};

static const struct loss *find_loss(const char *name) {
    const struct loss *loss = loss_table;
    while (name && strcmp(loss->name, name) != 0)
        loss++;
    return loss;
}

static struct run_config config_of(const struct scene *scene) {
    struct run_config config = {
        .device = test_device(),
        .data = {.seq_length = LENGTH, .seed = 1},
        .train = {.train_iters = STEPS,
                  .micro_batch_size = MICRO,
                  .global_batch_size = BATCH,
                  .seed = 7,
                  .precision = scene->precision},
        .optim =
            {.lr = 1e-2, .weight_decay = 0.1, .clip_grad = 1, .adam_beta1 = 0.9, .adam_beta2 = 0.99, .adam_eps = 1e-8},
        .parallel = {.tensor_model_parallel_size = scene->tensor,
                     .pipeline_model_parallel_size = 1,
                     .virtual_pipeline_model_parallel_size = 1,
                     .context_parallel_size = 1,
                     .expert_model_parallel_size = 1,
                     .threads_per_rank = 1},
        .log = {.log_interval = 1},
    };
    read_base(&config.model);
    test_ok(run_config_resolve(&config));
    config.optim.lr_decay_style = LR_CONSTANT;
    return config;
}

static struct rows rows_of(const struct scene *scene) {
    return (struct rows){.source.read = read_rows,
                         .has_pairs = find_loss(scene->tuned->loss)->form == TUNING_PAIRS,
                         .virtual_tokens = peft_config_virtual_tokens(&scene->tuned->config),
                         .first_position = peft_config_prefix_tokens(&scene->tuned->config)};
}

static void make_texts(const struct scene *scene, struct peft_texts *texts) {
    struct peft_notes notes = {.base_digest = "0123456789abcdef"};
    struct model_config base;
    read_base(&base);
    test_ok(peft_texts_make(&scene->tuned->config, 1, &base, base_directory(), &notes, texts));
}

/* ---- the trainer ---- */

static char *directory;

static int train_rank(struct comm *world, void *context) {
    struct scene *scene = context;
    struct rows rows = rows_of(scene);
    const struct tuner_adapters adapters = {.configs = &scene->tuned->config, .count = 1, .model = base_directory()};
    struct tuner tuner = tuner_of_adapters(&adapters);
    struct peft_texts texts;
    struct trainer *trainer;
    struct train_record record;
    make_texts(scene, &texts);
    tuner.texts = texts.items;
    tuner.text_count = texts.count;
    struct train_run run = {.tuner = &tuner,
                            .source = &rows.source,
                            .loss = find_loss(scene->tuned->loss),
                            .loss_options = {.beta = 0.3},
                            .config = config_of(scene)};
    snprintf(run.model_directory, sizeof run.model_directory, "%s", base_directory());
    log_quiet(true);
    test_ok(trainer_open(&run, world->size > 1 ? world : NULL, &trainer));
    for (int i = 0; i < STEPS; i++)
        test_ok(trainer_step(trainer, &record));
    test_ok(trainer_export(trainer, directory, false));
    trainer_close(trainer);
    peft_texts_free(&texts);
    return STATUS_OK;
}

static void train(struct scene *scene) {
    directory = test_directory();
    test_ok(comm_local_run(scene->tensor, train_rank, scene));
    test_ok(peft_bytes_read(directory, SIZE_MAX, &scene->bytes));
    free(directory);
}

/* ---- the engine ---- */

/* Writes a row of a text. */
static void write_row(struct scene *scene, struct engine *engine, int sequence, int *written) {
    struct engine_row row = {.sequence = sequence, .token = token_at(3, *written), .wants_logits = true};
    struct engine_result result;
    if (*written == DECODED)
        return;
    row.label = token_at(3, *written + 1);
    test_ok(engine_step(engine, &row, 1, &result));
    scene->logprobs[(*written)++] = result.label_logprob;
}

static void work_off(struct scene *scene, struct engine *engine, struct tuning_run *run, int sequence, int *written) {
    for (bool is_done = false; !is_done; scene->slices++) {
        if (sequence >= 0)
            write_row(scene, engine, sequence, written);
        test_ok(tuning_continue(run, &(const struct slice_limit){scene->seconds, {1, 1, 1, 1}}, &is_done));
    }
}

static void open_run(const struct scene *scene, struct engine *engine, const struct run_config *config,
                     struct peft_texts *texts, const struct tuning_snapshot *from, struct tuning_run **run) {
    struct tuning_run_options options = {.config = config,
                                         .adapters = &scene->tuned->config,
                                         .adapter_count = 1,
                                         .texts = texts->items,
                                         .text_count = texts->count,
                                         .loss = find_loss(scene->tuned->loss),
                                         .loss_options = {.beta = 0.3},
                                         .start = &from->files[0].bytes,
                                         .start_count = from->count,
                                         .state = from->state,
                                         .state_bytes = from->state_bytes};
    test_ok(tuning_open(engine, &options, run));
    assert_true(options.bytes > 0 && options.bytes == tuning_bytes(engine));
}

/* Continues in a new run. */
static void resume(const struct scene *scene, struct engine *engine, const struct run_config *config,
                   struct peft_texts *texts, struct tuning_run **run) {
    struct tuning_snapshot snapshot = {.wants_state = true};
    test_ok(tuning_take_snapshot(*run, &snapshot));
    test_ok(tuning_close(*run));
    open_run(scene, engine, config, texts, &snapshot, run);
    adapter_files_free(&snapshot.files[0]);
    free(snapshot.state);
}

static void cancel(struct tuning_run *run, const struct rows *rows) {
    struct tuning_pass pass = {.source = &rows->source, .batches = 1};
    bool is_done = false;
    tuning_begin_pass(run, &pass);
    for (int i = 0; i < 5; i++)
        test_ok(tuning_continue(run, &(const struct slice_limit){0}, &is_done));
    assert_false(is_done);
    test_ok(tuning_cancel(run));
}

static void lead(struct scene *scene, struct engine *engine) {
    struct run_config config = config_of(scene);
    struct rows rows = rows_of(scene);
    struct peft_texts texts;
    struct tuning_run *run;
    struct tuning_snapshot snapshot = {0};
    int sequence = scene->writes ? engine_sequence_new(engine) : -1, written = 0;
    make_texts(scene, &texts);
    open_run(scene, engine, &config, &texts, &snapshot, &run);
    for (int i = 0; i < STEPS; i++) {
        struct tuning_pass pass = {.source = &rows.source, .first = i * BATCH, .batches = 1};
        struct tuning_update update = {
            .iteration = i, .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1, .clip = 1};
        if (scene->cancels)
            cancel(run, &rows);
        if (scene->resumes && i == 1)
            resume(scene, engine, &config, &texts, &run);
        tuning_begin_pass(run, &pass);
        work_off(scene, engine, run, sequence, &written);
        tuning_begin_update(run, &update);
        work_off(scene, engine, run, sequence, &written);
        assert_true(pass.result.loss > 0 && pass.result.labels > 0 && update.result.grad_norm > 0);
    }
    test_ok(tuning_take_snapshot(run, &snapshot));
    assert_int_equal(snapshot.count, 1);
    scene->bytes = snapshot.files[0].bytes;
    test_ok(tuning_close(run));
    assert_int_equal(tuning_bytes(engine), 0);
    while (sequence >= 0 && written < DECODED)
        write_row(scene, engine, sequence, &written);
    if (sequence >= 0)
        engine_sequence_close(engine, sequence);
    peft_texts_free(&texts);
}

static int serve_rank(struct comm *world, void *context) {
    struct scene *scene = context;
    struct engine *engine;
    struct engine_options options = {.device = test_device(),
                                     .is_batch_invariant = true,
                                     .model = base_directory(),
                                     .world = world->size > 1 ? world : NULL,
                                     .grid = {scene->tensor, 1, 1, 1, 1},
                                     .precision = scene->precision,
                                     .threads = 1,
                                     .max_rows = 64,
                                     .max_logit_rows = 64,
                                     .max_sequences = 4,
                                     .tuning_memory = MEMORY};
    test_ok(engine_open(&options, &engine));
    if (engine_leads(engine))
        lead(scene, engine);
    else
        test_ok(engine_follow(engine));
    test_ok(engine_end(engine));
    engine_close(engine);
    return STATUS_OK;
}

static void tune(struct scene *scene) {
    test_ok(comm_local_run(scene->tensor, serve_rank, scene));
}

/* ---- promises ---- */

static void assert_same(const struct scene *scene, const struct scene *other) {
    struct peft_member a, b;
    for (int i = 0; peft_bytes_file(&scene->bytes, i, &a); i++) {
        assert_true(peft_bytes_file(&other->bytes, i, &b));
        if (strcmp(a.name, b.name) || a.length != b.length || memcmp(a.data, b.data, a.length))
            fail_msg("%s, %s, slices of %g: %s differs", scene->tuned->name, precision_names[scene->precision],
                     other->seconds, a.name);
    }
    assert_int_equal(scene->bytes.length, other->bytes.length);
}

#define EVERYTHING                                                                                                     \
    { (const char *[]){"all-linear"}, 1 }
static const struct tuned all[] = {
    {.name = "lora",
     .config = {.type = PEFT_LORA, .r = 3, .lora_alpha = 6, .lora_dropout = 0.1, .target_modules = EVERYTHING}},
    {.name = "dora", .config = {.type = PEFT_LORA, .r = 3, .lora_alpha = 6, .use_dora = true}, .loss = "dpo"},
    {.name = "ia3", .config = {.type = PEFT_IA3}},
    {.name = "adapter", .config = {.type = PEFT_ADAPTER, .bottleneck = 5, .adapter_scaling = 1}},
    {.name = "prompt", .config = {.type = PEFT_PROMPT, .num_virtual_tokens = 3}},
    {.name = "ptuning",
     .config = {.type = PEFT_PTUNING, .num_virtual_tokens = 3, .encoder_hidden_size = 16, .encoder_dropout = 0.1}},
    {.name = "prefix", .config = {.type = PEFT_PREFIX, .num_virtual_tokens = 3}},
    {.name = "dpo",
     .config = {.type = PEFT_LORA, .r = 3, .lora_alpha = 6, .lora_dropout = 0.1, .target_modules = EVERYTHING},
     .loss = "dpo"},
    {.name = "dpo of prompts", .config = {.type = PEFT_PROMPT, .num_virtual_tokens = 3}, .loss = "dpo"},
    {.name = "orpo", .config = {.type = PEFT_IA3}, .loss = "orpo"},
};
enum { CASES = sizeof all / sizeof *all };

static struct scene scene_of(int number, int precision, int tensor) {
    return (struct scene){.tuned = &all[number], .precision = precision, .tensor = tensor};
}

static void a_run_has_the_bytes_of_a_trainer(void **state) {
    (void)state;
    for (int c = 0; c < CASES; c++)
        for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
            struct scene trained = scene_of(c, precision, 1), whole = trained, cut = trained;
            whole.seconds = INFINITY;
            train(&trained);
            tune(&whole);
            tune(&cut);
            assert_same(&trained, &whole);
            assert_same(&trained, &cut);
            assert_int_equal(whole.slices, 2 * STEPS);
            assert_true(cut.slices > 20 * STEPS);
            peft_bytes_free(&trained.bytes);
            peft_bytes_free(&whole.bytes);
            peft_bytes_free(&cut.bytes);
        }
}

static void texts_and_runs_leave_each_others_bits(void **state) {
    (void)state;
    struct scene alone = scene_of(0, PRECISION_BF16, 1), beside;
    alone.writes = true;
    beside = alone;
    alone.seconds = INFINITY;
    beside.cancels = true;
    tune(&alone);
    tune(&beside);
    assert_same(&alone, &beside);
    assert_memory_equal(alone.logprobs, beside.logprobs, sizeof alone.logprobs);
    peft_bytes_free(&alone.bytes);
    peft_bytes_free(&beside.bytes);
}

static void a_run_resumes_from_a_snapshot(void **state) {
    (void)state;
    for (int c = 0; c < CASES; c += 5)
        for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
            struct scene whole = scene_of(c, precision, 1), resumed = whole;
            whole.seconds = resumed.seconds = INFINITY;
            resumed.resumes = true;
            tune(&whole);
            tune(&resumed);
            assert_same(&whole, &resumed);
            peft_bytes_free(&whole.bytes);
            peft_bytes_free(&resumed.bytes);
        }
}

static int refuse_stages(struct comm *world, void *context) {
    const struct scene *scene = context;
    struct engine *engine;
    struct tuning_run *run;
    struct run_config config = config_of(scene);
    const struct engine_options options = {.device = test_device(),
                                           .model = base_directory(),
                                           .world = world,
                                           .grid = {.tensor = 1, .context = 1, .expert = 1, .data = 1, .pipeline = 2},
                                           .first_layers = 1,
                                           .threads = 1,
                                           .max_rows = 8,
                                           .max_logit_rows = 8,
                                           .max_sequences = 1,
                                           .tuning_memory = MEMORY};
    struct tuning_run_options asked = {.config = &config, .adapters = &scene->tuned->config, .adapter_count = 1};
    test_ok(engine_open(&options, &engine));
    if (engine_leads(engine))
        test_fails(tuning_open(engine, &asked, &run), STATUS_UNSUPPORTED, "2 pipeline stages");
    else
        test_ok(engine_follow(engine));
    test_ok(engine_end(engine));
    engine_close(engine);
    return STATUS_OK;
}

static void an_engine_of_stages_refuses_runs(void **state) {
    (void)state;
    struct scene scene = scene_of(0, PRECISION_FP32, 1);
    test_ok(comm_local_run(2, refuse_stages, &scene));
}

static void tensor_ranks_run_the_same_slices(void **state) {
    (void)state;
    for (int c = 0; c < CASES; c += 7) {
        struct scene trained = scene_of(c, PRECISION_FP32, 2), tuned = trained;
        tuned.writes = tuned.cancels = true;
        train(&trained);
        tune(&tuned);
        assert_same(&trained, &tuned);
        peft_bytes_free(&trained.bytes);
        peft_bytes_free(&tuned.bytes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_has_the_bytes_of_a_trainer), cmocka_unit_test(texts_and_runs_leave_each_others_bits),
        cmocka_unit_test(a_run_resumes_from_a_snapshot),    cmocka_unit_test(tensor_ranks_run_the_same_slices),
        cmocka_unit_test(an_engine_of_stages_refuses_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
