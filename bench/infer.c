/* Prefill (compute bound) and decode (bandwidth bound, at larger batches compute bound), through the engine's step. */
#include "transformers.h"

#include "infer/engine.h"
#include "infer/sequences.h"

#include <math.h>

/* Tokens in the cache of each sequence before the measured steps; the summary itself describes the first. */
static const int64_t decode_contexts[] = {32, 512, 1000};
enum {
    CONTEXT_COUNT = sizeof decode_contexts / sizeof *decode_contexts,
    FILL_ROWS = 64,  /* rows of a step that fills the cache */
    PEER_ROUNDS = 2, /* before and after our steps with the first context */
};

/* The bounds of a step, from the list of its work. */
struct step_cost {
    double flops, bytes; /* model FLOPs; weights and cached keys and values */
};

/* The measurements of decoding from a context on. */
struct decoded {
    int64_t steps; /* as far as the model's positions reach */
    double seconds;
    double operation_seconds; /* without graphs, while phases are timed; 0: the device records nothing */
    struct step_cost cost;    /* of the step in the middle */
    double gemm;              /* the ceiling of products, measured just before and after */
    /* The median read of all pairs of a step and a read of its bytes, and the pairs' shares of the floor. Each read is
     * just before its step, because other programs' use of memory changes within seconds. */
    double read_seconds, ratio, best, worst;
};

struct inference {
    const struct bench_options *options;
    struct engine *engine;
    struct engine_row *rows;
    struct engine_result *results;
    double *seconds;
    struct pair {
        double step, read; /* seconds of a step, and of the read before it */
    } * pairs;
    void *read_memory;
    enum dtype ceiling_dtype; /* in which the products of ceilings are measured */
    double total;             /* seconds of all measured steps */
    json_t *phases;           /* of what was measured first */
    int64_t row_count;        /* of the first measurements */
    struct decoded decoded[CONTEXT_COUNT];
    struct bench_transformers peer;
};

static int open_inference(struct inference *t, int64_t rows, int64_t sequences) {
    const struct bench_options *o = t->options;
    struct model_config config;
    bool is_shape = bench_is_shape(o->model);
    struct engine_options options = {
        .model = o->model,
        .random = is_shape ? &config : NULL,
        .load_in = o->load_in,
        .precision = o->precision,
        .device = o->device,
        .threads = (int)o->threads,
        .max_rows = rows,
        .max_logit_rows = sequences,
        .max_sequences = sequences,
        .has_no_prefix_cache = true, /* everything measured is computed */
        .is_batch_invariant = o->is_batch_invariant,
        .gemm_algorithms = o->gemm_algorithms,
    };
    int status = is_shape ? bench_model_config(o->model, o->layers, &config) : STATUS_OK;
    THEN(status, engine_open(&options, &t->engine));
    t->row_count = rows;
    t->rows = calloc((size_t)rows, sizeof *t->rows);
    t->results = calloc((size_t)rows, sizeof *t->results);
    t->seconds = calloc((size_t)o->steps, sizeof *t->seconds);
    t->pairs = calloc((size_t)o->steps, sizeof *t->pairs);
    THEN(status, status_allocated(t->rows && t->results && t->seconds && t->pairs));
    return status;
}

/* Opens a peer for prompts of `tokens` tokens and `measured` measurements. */
static int open_peer(struct inference *t, int64_t tokens, int64_t measured) {
    const struct bench_options *o = t->options;
    const struct bench_transformers_task task = {
        .model = engine_config(t->engine),
        .micro_batch_size = o->micro_batch_size,
        .micro_batches = 1,
        .tokens = tokens,
        .threads = o->threads,
        .device = o->device,
        .precision = o->precision,
        .is_inference = true,
    };
    return o->has_peer ? bench_transformers_open(&task, o->peer_python, measured, &t->peer) : STATUS_OK;
}

/* A processor without bf16 products multiplies packed bf16 weights in fp32, so its ceiling is that of fp32. */
static int measure_ceiling(struct inference *t, struct bench_ceiling *ceiling) {
    const struct rank *rank = engine_rank(t->engine);
    t->ceiling_dtype = engine_dtype(t->engine);
    int status = bench_measure_ceiling(rank->device, t->ceiling_dtype, rank->is_tf32, ceiling);
    if (status != STATUS_UNSUPPORTED || t->ceiling_dtype != DTYPE_BF16)
        return status;
    t->ceiling_dtype = DTYPE_F32;
    return bench_measure_ceiling(rank->device, t->ceiling_dtype, false, ceiling);
}

static void close_inference(struct inference *t) {
    engine_close(t->engine);
    bench_transformers_close(&t->peer);
    json_decref(t->phases);
    free(t->rows);
    free(t->results);
    free(t->seconds);
    free(t->pairs);
}

static const struct sampling greedy = {.top_p = 1, .repetition_penalty = 1};

static struct engine_row row_of(const struct inference *t, int64_t token, int sequence, bool is_last) {
    uint32_t word = philox(2, (uint32_t)token, (uint32_t)sequence, 0, (uint32_t)RNG_TEST << 24).word[0];
    return (struct engine_row){.token = (int32_t)(word % (uint32_t)engine_config(t->engine)->vocab_size),
                               .sequence = sequence,
                               .wants_logits = is_last,
                               .label = -1,
                               .sampling = is_last ? &greedy : NULL};
}

/* Sums the work of a step of `rows` rows, which see `seen` tokens in the mean; the last of each sequence has logits. */
static int find_cost(const struct inference *t, int64_t rows, double seen, struct step_cost *cost) {
    const struct model_step_shape shape = {.rows = rows, .logit_rows = t->options->micro_batch_size, .seen = seen};
    struct work_list work = {0};
    int status = engine_step_work(t->engine, &shape, &work);
    *cost = (struct step_cost){.flops = work_model_flops(&work, WORK_FORWARD),
                               .bytes = work_sum(&work, WORK_FORWARD).lasting};
    work_free(&work);
    return status;
}

static json_t *summary(const struct inference *t, const char *bench, double step, double tokens) {
    struct device *device = engine_rank(t->engine)->device;
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:f, s:f, s:I, s:I, s:o}", "bench", bench, "device",
                  device_description(device), "precision", engine_precision(t->engine), "micro_batch_size",
                  (json_int_t)t->options->micro_batch_size, "seq_length", (json_int_t)t->options->seq_length, "seconds",
                  step, "tokens_per_s", tokens / step, "peak_rss_bytes", (json_int_t)memory_peak(), "planned_bytes",
                  (json_int_t)engine_planned_bytes(t->engine), "phases", json_incref(t->phases));
    bench_add_device_bytes(object, bench_device_bytes(device));
    if (t->ceiling_dtype != engine_dtype(t->engine))
        json_object_set_new(object, "ceiling_precision", json_string(precision_names[PRECISION_FP32]));
    return object;
}

static int begin_measuring(struct inference *t) {
    double unused[PHASE_COUNT];
    int status = rank_take_phases(engine_rank(t->engine), unused);
    t->total = 0;
    return status ? status : rank_time_phases(engine_rank(t->engine), true);
}

static int end_measuring(struct inference *t, int64_t steps) {
    double seconds[PHASE_COUNT];
    int status = rank_take_phases(engine_rank(t->engine), seconds);
    THEN(status, rank_time_phases(engine_rank(t->engine), false));
    if (!status && !t->phases)
        t->phases = bench_phases(seconds, t->total, steps);
    return status;
}

static int prefill_once(struct inference *t, double *seconds) {
    int64_t T = t->options->seq_length, B = t->options->micro_batch_size;
    int first = 0;
    for (int64_t b = 0; b < B; b++) {
        int sequence = engine_sequence_new(t->engine);
        if (sequence < 0)
            return sequence;
        first = b == 0 ? sequence : first;
        for (int64_t i = 0; i < T; i++)
            t->rows[b * T + i] = row_of(t, i, sequence, i == T - 1);
    }
    double start = clock_seconds();
    int status = engine_step(t->engine, t->rows, B * T, t->results);
    *seconds = clock_seconds() - start;
    for (int64_t b = 0; b < B; b++)
        engine_sequence_close(t->engine, first + (int)b);
    return status;
}

static int print_step(const struct inference *t, int64_t step) {
    json_t *line = json_pack("{s:I, s:f}", "step", (json_int_t)step + 1, "seconds", t->seconds[step]);
    if (t->peer.peer)
        json_object_set_new(line, "peer_seconds", json_real(t->peer.seconds[step]));
    return bench_print(line);
}

static int finish_prefill(struct inference *t, double ceiling) {
    struct step_cost cost;
    int64_t tokens = t->options->seq_length;
    TRY(find_cost(t, tokens * t->options->micro_batch_size, (double)tokens / 2, &cost));
    double step = bench_median(t->seconds, t->options->steps), flops = cost.flops / step;
    json_t *object = summary(t, "prefill", step, (double)(t->options->seq_length * t->options->micro_batch_size));
    json_object_set_new(object, "model_tflops", json_real(flops / 1e12));
    json_object_set_new(object, "ceiling", json_real(ceiling / 1e12));
    json_object_set_new(object, "ratio", json_real(flops / ceiling));
    return bench_transformers_print(&t->peer, step, object);
}

int bench_prefill(const struct bench_options *options) {
    struct inference t = {.options = options};
    struct bench_ceiling before, after;
    int status = open_inference(&t, options->seq_length * options->micro_batch_size, options->micro_batch_size);
    double unused;
    THEN(status, open_peer(&t, options->seq_length, options->steps));
    THEN(status, measure_ceiling(&t, &before));
    for (int i = 0; i < 2 && !status; i++) {
        status = prefill_once(&t, &unused);
        bench_pause();
        THEN(status, bench_transformers_warm_up(&t.peer, "prefill"));
    }
    THEN(status, begin_measuring(&t));
    for (int64_t i = 0; i < options->steps && !status; i++) {
        status = prefill_once(&t, &t.seconds[i]);
        t.total += t.seconds[i];
        THEN(status, bench_transformers_measure(&t.peer, "prefill"));
        THEN(status, print_step(&t, i));
    }
    THEN(status, end_measuring(&t, options->steps));
    THEN(status, measure_ceiling(&t, &after));
    THEN(status, finish_prefill(&t, bench_mean(before, after).gemm));
    close_inference(&t);
    return status;
}

/* Time of such a step at the ceilings: a read of its bytes, or its operations at the GEMM ceiling. */
static double decode_floor(const struct decoded *decoded, double read_seconds) {
    return fmax(read_seconds, decoded->cost.flops / decoded->gemm);
}

static json_t *decoded_figures(const struct inference *t, int c) {
    const struct decoded *decoded = &t->decoded[c];
    double B = (double)t->options->micro_batch_size;
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "seconds", decoded->seconds, "tokens_per_s",
                     B / decoded->seconds, "ceiling", decoded->cost.bytes / decoded->read_seconds, "floor_seconds",
                     decode_floor(decoded, decoded->read_seconds), "ratio", decoded->ratio, "best_ratio", decoded->best,
                     "worst_ratio", decoded->worst);
}

static int finish_decode(struct inference *t, size_t peak) {
    double step = t->decoded[0].seconds;
    json_t *object = summary(t, "decode", step, (double)t->options->micro_batch_size), *contexts = json_array();
    json_object_set_new(object, "bytes_per_s", json_real(t->decoded[0].cost.bytes / step));
    json_object_set_new(object, "gemm_ceiling_tflops", json_real(t->decoded[0].gemm / 1e12));
    for (int c = 0; c < CONTEXT_COUNT && t->decoded[c].steps; c++) {
        const struct decoded *decoded = &t->decoded[c];
        json_t *line = decoded_figures(t, c);
        if (c == 0)
            json_object_update(object, line);
        json_object_set_new(line, "context", json_integer((json_int_t)decode_contexts[c]));
        json_object_set_new(line, "steps", json_integer((json_int_t)decoded->steps));
        if (decoded->operation_seconds > 0)
            json_object_set_new(line, "seconds_without_graphs", json_real(decoded->operation_seconds));
        json_array_append_new(contexts, line);
    }
    json_object_set_new(object, "contexts", contexts);
    json_object_set_new(object, "peak_rss_bytes", json_integer((json_int_t)peak)); /* without what measures ceilings */
    json_object_set_new(object, "peak_over_plan", json_real((double)peak / (double)engine_planned_bytes(t->engine)));
    return bench_transformers_print(&t->peer, step, object);
}

static int decode_once(struct inference *t, int first, int64_t at, double *seconds) {
    for (int64_t b = 0; b < t->options->micro_batch_size; b++)
        t->rows[b] = row_of(t, at, first + (int)b, true);
    double start = clock_seconds();
    int status = engine_step(t->engine, t->rows, t->options->micro_batch_size, t->results);
    *seconds = clock_seconds() - start;
    return status;
}

/* Runs the tokens before the measured ones. */
static int fill_sequence(struct inference *t, int sequence, int64_t context) {
    int status = STATUS_OK;
    for (int64_t at = 0; at < context && !status;) {
        int64_t rows = context - at < t->row_count ? context - at : t->row_count;
        for (int64_t i = 0; i < rows; i++)
            t->rows[i] = row_of(t, at + i, sequence, false);
        status = engine_step(t->engine, t->rows, rows, t->results);
        at += rows;
    }
    return status;
}

/* Opens the sequences of a step and runs the tokens before the measured ones. *first is the number of the first
 * sequence. */
static int open_sequences(struct inference *t, int64_t context, int *first) {
    int status = STATUS_OK;
    for (int64_t b = 0; b < t->options->micro_batch_size && !status; b++) {
        int sequence = engine_sequence_new(t->engine);
        if (sequence < 0)
            return sequence;
        *first = b ? *first : sequence;
        status = fill_sequence(t, sequence, context);
    }
    return status;
}

/* Takes as many steps as the model has positions for, perhaps each after a read of as many bytes. Then closes the
 * sequences. *seconds is the median. */
static int take_steps(struct inference *t, int c, int first, bool has_reads, double *seconds) {
    struct decoded *decoded = &t->decoded[c];
    struct device *device = engine_rank(t->engine)->device;
    int64_t context = decode_contexts[c], remaining = model_positions(engine_config(t->engine)) - context;
    int64_t steps = t->options->steps < remaining ? t->options->steps : remaining;
    double tokens = (double)context + (double)steps / 2; /* in the middle of the measured steps */
    int status = find_cost(t, t->options->micro_batch_size, tokens, &decoded->cost);
    for (int64_t i = 0; i < steps && !status; i++) {
        for (int round = i == 0 ? 0 : 1; round < 2 && has_reads && !status; round++) /* the first read warms up */
            status = device_time_read(device, (size_t)decoded->cost.bytes, &t->read_memory, &t->pairs[i].read);
        THEN(status, decode_once(t, first, context + i, &t->seconds[i]));
        t->total += t->seconds[i];
        if (has_reads)
            t->pairs[i].step = t->seconds[i];
    }
    for (int64_t b = 0; b < t->options->micro_batch_size; b++)
        engine_sequence_close(t->engine, first + (int)b);
    decoded->steps = steps;
    *seconds = bench_median(t->seconds, steps);
    device_free(device, t->read_memory); /* the next context reads more */
    t->read_memory = NULL;
    return status;
}

/* Prints the pairs, and finds what is reported of them. */
static int compare_with_reads(struct inference *t, int c) {
    struct decoded *decoded = &t->decoded[c];
    int64_t count = decoded->steps;
    int status = STATUS_OK;
    for (int64_t i = 0; i < count && !status; i++) {
        t->seconds[i] = t->pairs[i].read;
        status =
            bench_print(json_pack("{s:I, s:I, s:f, s:f}", "context", (json_int_t)decode_contexts[c], "step",
                                  (json_int_t)i + 1, "seconds", t->pairs[i].step, "read_seconds", t->pairs[i].read));
    }
    decoded->read_seconds = bench_median(t->seconds, count);
    for (int64_t i = 0; i < count; i++)
        t->seconds[i] = decode_floor(decoded, t->pairs[i].read) / t->pairs[i].step;
    decoded->ratio = bench_median(t->seconds, count); /* which sorts them */
    decoded->worst = t->seconds[0];
    decoded->best = t->seconds[count - 1];
    return status;
}

/* A device that records takes the steps twice: as the engine does, by graphs, and then without them. */
static int decode_steps(struct inference *t, int c, int first, bool has_reads) {
    struct decoded *decoded = &t->decoded[c];
    bool is_recorded = engine_graphs(t->engine).count > 0;
    int status = is_recorded ? take_steps(t, c, first, has_reads, &decoded->seconds) : STATUS_OK;
    THEN(status, is_recorded ? open_sequences(t, decode_contexts[c], &first) : STATUS_OK);
    THEN(status, begin_measuring(t)); /* while phases are timed, steps run operation by operation */
    THEN(status, take_steps(t, c, first, has_reads && !is_recorded,
                            is_recorded ? &decoded->operation_seconds : &decoded->seconds));
    return status ? status : end_measuring(t, decoded->steps);
}

static int open_decoding(struct inference *t) {
    int64_t sequences = t->options->micro_batch_size;
    return open_inference(t, sequences > FILL_ROWS ? sequences : FILL_ROWS, sequences);
}

/* Measures decoding after the first context. Runs in a separate process. */
static int decode_alone(const void *options) {
    struct inference t = {.options = options};
    int first = 0, status = open_decoding(&t);
    THEN(status, open_sequences(&t, decode_contexts[0], &first));
    THEN(status, decode_steps(&t, 0, first, false));
    close_inference(&t);
    return status;
}

static int decode_behind_contexts(struct inference *t) {
    int64_t positions = model_positions(engine_config(t->engine));
    struct bench_ceiling before = {0}, after = {0};
    char word[32];
    snprintf(word, sizeof word, "decode %lld", (long long)decode_contexts[0]);
    int status = bench_transformers_warm_up(&t->peer, word);
    THEN(status, bench_transformers_measure(&t->peer, word));
    for (int c = 0; c < CONTEXT_COUNT && !status && decode_contexts[c] < positions; c++) {
        int first = 0;
        status = open_sequences(t, decode_contexts[c], &first);
        THEN(status, measure_ceiling(t, &before));
        THEN(status, decode_steps(t, c, first, true));
        THEN(status, measure_ceiling(t, &after));
        t->decoded[c].gemm = bench_mean(before, after).gemm;
        THEN(status, compare_with_reads(t, c));
        if (c == 0 && !status)
            status = bench_transformers_measure(&t->peer, word);
    }
    return status;
}

int bench_decode(const struct bench_options *options) {
    struct inference t = {.options = options};
    struct model_config config;
    size_t peak;
    int status = bench_model_config(options->model, options->layers, &config);
    if (!status && decode_contexts[0] + options->steps > model_positions(&config))
        status =
            status_fail(STATUS_USAGE, "--steps %lld and %lld tokens of context are more than the model's positions",
                        (long long)options->steps, (long long)decode_contexts[0]);
    THEN(status, bench_peak_of(decode_alone, options, &peak));
    THEN(status, open_decoding(&t));
    THEN(status, open_peer(&t, decode_contexts[0], PEER_ROUNDS));
    THEN(status, decode_behind_contexts(&t));
    THEN(status, finish_decode(&t, peak));
    close_inference(&t);
    return status;
}

int bench_measure_requests(const struct bench_options *options, int64_t output_len, double *seconds) {
    enum { WARM_UP = 2 };
    struct inference t = {.options = options};
    int64_t input_len = options->seq_length, rows = input_len * options->micro_batch_size, steps = options->steps;
    double unused, *further = calloc((size_t)output_len, sizeof *further);
    int first = 0, status = open_inference(&t, rows > FILL_ROWS ? rows : FILL_ROWS, options->micro_batch_size);
    THEN(status, status_allocated(further));
    for (int64_t i = 0; i < WARM_UP + steps && !status; i++)
        status = prefill_once(&t, i < WARM_UP ? &unused : &t.seconds[i - WARM_UP]);
    *seconds = status ? 0 : bench_median(t.seconds, steps);
    THEN(status, output_len > 1 ? open_sequences(&t, input_len, &first) : STATUS_OK);
    for (int64_t i = 1; i < output_len && !status; i++)
        status = decode_once(&t, first, input_len + i - 1, &further[i - 1]);
    if (!status && output_len > 1)
        *seconds += (double)(output_len - 1) * bench_median(further, output_len - 1);
    free(further);
    close_inference(&t);
    return status;
}
