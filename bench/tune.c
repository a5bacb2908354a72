/* Measures the algorithms that a GPU's library proposes for the products of a model, and keeps the fastest of each.
 *
 * A training step and steps of the engine run as they always do; the device measures each new product where it first
 * runs. So the file has exactly the products that such runs have. */
#include "training.h"

#include "infer/engine.h"
#include "infer/sequences.h"
#include "kernels/algorithms.h"
#include "parallel/algorithms.h"

enum { PROPOSALS = 16, DECODE_MOST = 64, PREFILL_ROWS = 512 };

/* Algorithms on their way from one device to another. */
struct carried {
    struct device_algorithm *items;
    int count;
};

static int carry(struct carried *c, const struct device *device) {
    struct device_algorithm algorithm;
    for (; device_algorithm_at(device, c->count, &algorithm); c->count++) {
        struct device_algorithm *items = realloc(c->items, (size_t)(c->count + 1) * sizeof *items);
        TRY(status_allocated(items));
        c->items = items;
        items[c->count] = algorithm;
    }
    return STATUS_OK;
}

static int tune_training(const struct bench_options *options, struct carried *carried) {
    struct bench_dataset dataset = {0};
    struct train_run run;
    struct trainer *trainer = NULL;
    struct train_record record;
    int status = bench_training_run(options, true, 1, &dataset, &run);
    THEN(status, bench_dataset_open(&dataset, options->seq_length * options->micro_batch_size * 2 + 1,
                                    run.config.model.vocab_size));
    THEN(status, trainer_open(&run, NULL, &trainer));
    THEN(status, device_tune(trainer_rank(trainer)->device, PROPOSALS));
    THEN(status, trainer_step(trainer, &record));
    THEN(status, carry(carried, trainer_rank(trainer)->device));
    trainer_close(trainer);
    bench_dataset_close(&dataset);
    return status;
}

static const struct sampling greedy = {.top_p = 1, .repetition_penalty = 1};

/* A step with one row of each of `sequences` texts. */
static int decode(struct engine *engine, int64_t sequences) {
    struct engine_row rows[DECODE_MOST];
    struct engine_result results[DECODE_MOST];
    for (int i = 0; i < sequences; i++)
        rows[i] = (struct engine_row){.token = i % (int32_t)engine_config(engine)->vocab_size,
                                      .sequence = i,
                                      .wants_logits = true,
                                      .label = -1,
                                      .sampling = &greedy};
    return engine_step(engine, rows, sequences, results);
}

/* A step with rows of one prompt. */
static int prefill(struct engine *engine, int64_t count) {
    struct engine_row rows[PREFILL_ROWS];
    struct engine_result results[PREFILL_ROWS];
    for (int i = 0; i < count; i++)
        rows[i] = (struct engine_row){.token = i % (int32_t)engine_config(engine)->vocab_size, .label = -1};
    rows[count - 1].wants_logits = true;
    rows[count - 1].sampling = &greedy;
    return engine_step(engine, rows, count, results);
}

static int tune_steps(struct engine *engine, const struct carried *carried) {
    struct device *device = engine_rank(engine)->device;
    int64_t prompt = engine_max_positions(engine) - DECODE_MOST / 8;
    prompt = prompt < PREFILL_ROWS ? prompt : PREFILL_ROWS;
    int status = device_take_algorithms(device, carried->items, carried->count);
    THEN(status, device_tune(device, PROPOSALS));
    for (int i = 0; i < DECODE_MOST && !status; i++)
        status = engine_sequence_new(engine) < 0 ? STATUS_MEMORY : STATUS_OK;
    for (int64_t sequences = 1; sequences <= DECODE_MOST && !status; sequences *= 2)
        status = decode(engine, sequences);
    return status || prompt < 1 ? status : prefill(engine, prompt);
}

static int summarise(const struct device *device, const char *precision, const char *path) {
    struct device_algorithm algorithm;
    double seconds = 0, first = 0;
    int count = 0;
    for (; device_algorithm_at(device, count, &algorithm); count++) {
        seconds += algorithm.seconds;
        first += algorithm.first_seconds;
    }
    return bench_print(json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:f, s:f}", "bench", "tune", "device",
                                 device_description(device), "library", device_library(device), "precision", precision,
                                 "file", path, "products", count, "seconds", seconds, "first_seconds", first));
}

static int tune_inference(const struct bench_options *o, const struct carried *carried) {
    struct engine *engine = NULL;
    struct model_config config;
    bool is_shape = bench_is_shape(o->model);
    const struct engine_options options = {.model = o->model,
                                           .random = is_shape ? &config : NULL,
                                           .precision = o->precision == PRECISION_FP8 ? PRECISION_BF16 : o->precision,
                                           .device = o->device,
                                           .threads = (int)o->threads,
                                           .max_rows = PREFILL_ROWS,
                                           .max_logit_rows = DECODE_MOST,
                                           .max_sequences = DECODE_MOST,
                                           .has_no_prefix_cache = true,
                                           .has_no_graphs = true};
    int status = is_shape ? bench_model_config(o->model, o->layers, &config) : STATUS_OK;
    THEN(status, engine_open(&options, &engine));
    THEN(status, tune_steps(engine, carried));
    THEN(status, algorithms_write(engine_rank(engine)->device, o->tune));
    THEN(status, summarise(engine_rank(engine)->device, precision_names[o->precision], o->tune));
    engine_close(engine);
    return status;
}

int bench_tune(const struct bench_options *options) {
    struct carried carried = {0};
    int status = tune_training(options, &carried);
    THEN(status, tune_inference(options, &carried));
    free(carried.items);
    return status;
}
