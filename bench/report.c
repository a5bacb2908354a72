/* The common part of the benchmarks: ceilings, medians, JSON lines, peak memory. */
#include "bench.h"

#include "base/base.h"
#include "base/json.h"
#include "pretrained/pretrained.h"

#include <fcntl.h>
#include <math.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CEILING_MILLISECONDS = 700, PAUSE_NANOSECONDS = 20 * 1000 * 1000 };

/* Published shapes, with their published dropout. */
struct shape {
    const char *name;
    struct model_config config;
};

/* All sizes of GPT-2 share these. */
#define OF_GPT                                                                                                         \
    .max_position_embeddings = 1024, .vocab_size = 50257, .hidden_dropout = 0.1, .attention_dropout = 0.1,             \
    .embedding_dropout = 0.1, .init_method_std = 0.02, .layernorm_epsilon = 1e-5, .add_bias_linear = true

static const struct shape shapes[] = {
    {"gpt2-124m",
     {OF_GPT, .num_layers = 12, .hidden_size = 768, .num_attention_heads = 12, .num_query_groups = 12,
      .ffn_hidden_size = 3072}},
    {"gpt2-1.5b",
     {OF_GPT, .num_layers = 48, .hidden_size = 1600, .num_attention_heads = 25, .num_query_groups = 25,
      .ffn_hidden_size = 6400}},
    {"smollm2-135m",
     {.num_layers = 30,
      .hidden_size = 576,
      .num_attention_heads = 9,
      .num_query_groups = 3,
      .ffn_hidden_size = 1536,
      .max_position_embeddings = 8192,
      .vocab_size = 49152,
      .init_method_std = 0.02,
      .layernorm_epsilon = 1e-5,
      .rotary = {.base = 100000, .percent = 1},
      .normalization = NORMALIZATION_RMS,
      .position_embedding = POSITION_ROPE,
      .swiglu = true}},
    {"qwen2.5-0.5b",
     {.num_layers = 24,
      .hidden_size = 896,
      .num_attention_heads = 14,
      .num_query_groups = 2,
      .ffn_hidden_size = 4864,
      .max_position_embeddings = 32768,
      .vocab_size = 151936,
      .init_method_std = 0.02,
      .layernorm_epsilon = 1e-6,
      .rotary = {.base = 1e6, .percent = 1},
      .normalization = NORMALIZATION_RMS,
      .position_embedding = POSITION_ROPE,
      .swiglu = true,
      .add_qkv_bias = true}},
    {"llama-3.1-8b",
     {.num_layers = 32,
      .hidden_size = 4096,
      .num_attention_heads = 32,
      .num_query_groups = 8,
      .ffn_hidden_size = 14336,
      .max_position_embeddings = 131072,
      .vocab_size = 128256,
      .untie_embeddings_and_output_weights = true,
      .init_method_std = 0.02,
      .layernorm_epsilon = 1e-5,
      .rotary = {.base = 500000, .percent = 1},
      .normalization = NORMALIZATION_RMS,
      .position_embedding = POSITION_ROPE,
      .swiglu = true}},
};

static const struct shape *find_shape(const char *name) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (!strcmp(name, shapes[i].name))
            return &shapes[i];
    return NULL;
}

bool bench_is_shape(const char *model) {
    return find_shape(model) != NULL;
}

int bench_model_config(const char *model, int64_t layers, struct model_config *config) {
    const struct shape *shape = find_shape(model);
    if (shape) {
        *config = shape->config;
        if (layers)
            config->num_layers = layers;
        config->kv_channels = config->hidden_size / config->num_attention_heads;
        return model_family_choose(config);
    }
    struct pretrained opened;
    if (layers)
        return status_fail(STATUS_USAGE, "--layers: %s has its own layers; name a model with random weights", model);
    int status = pretrained_open_config(model, &opened);
    *config = opened.config;
    pretrained_close(&opened);
    return status;
}

int bench_print(json_t *object) {
    char *line;
    int status = json_end(object, JSON_COMPACT | JSON_REAL_PRECISION(6), &line);
    THEN_IF(status, (printf("%s\n", line) < 0 || fflush(stdout)), status_fail_errno("cannot write to standard output"));
    free(line);
    return status;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, int64_t count) {
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

double bench_quantile(double *values, int64_t count, double share) {
    bench_median(values, count);
    int64_t at = (int64_t)ceil(share * (double)count) - 1;
    return values[at < 0 ? 0 : at];
}

int bench_series_add(struct bench_series *series, double value) {
    if (series->count == series->room) {
        int64_t room = series->room ? 2 * series->room : 64;
        double *values = realloc(series->values, (size_t)room * sizeof *values);
        TRY(status_allocated(values));
        series->values = values;
        series->room = room;
    }
    series->values[series->count++] = value;
    return STATUS_OK;
}

void bench_series_free(struct bench_series *series) {
    free(series->values);
    *series = (struct bench_series){0};
}

void bench_pause(void) {
    nanosleep(&(struct timespec){.tv_nsec = PAUSE_NANOSECONDS}, NULL);
}

/* The failure of a child, which its parent reports as its own. */
struct failure {
    int status;
    char text[1024];
};

/* Runs in the child; the parent reads the other end of the pipe. */
static int work_and_report(int (*work)(const void *context), const void *context, int end) {
    struct failure failure = {.status = work(context)};
    if (!failure.status)
        return 0;
    snprintf(failure.text, sizeof failure.text, "%s", status_text());
    ssize_t written = write(end, &failure, sizeof failure);
    return written == sizeof failure ? 1 : 2;
}

int bench_peak_of(int (*work)(const void *context), const void *context, size_t *bytes) {
    int ends[2], ending, status = STATUS_OK;
    struct failure failure = {0};
    struct rusage usage;
    fflush(NULL);
    if (pipe2(ends, O_CLOEXEC))
        return status_fail_errno("cannot open a pipe");
    pid_t child = fork();
    if (child == 0)
        _exit(work_and_report(work, context, ends[1]));
    if (child < 0)
        status = status_fail_errno("cannot start a process");
    close(ends[1]);
    bool has_failure = !status && read(ends[0], &failure, sizeof failure) == sizeof failure;
    close(ends[0]);
    THEN_IF(status, wait4(child, &ending, 0, &usage) != child, status_fail_errno("cannot wait for a process"));
    TRY(status);
    *bytes = (size_t)usage.ru_maxrss * 1024;
    if (has_failure)
        return status_fail(failure.status, "%s", failure.text);
    return WIFEXITED(ending) && WEXITSTATUS(ending) == 0
               ? STATUS_OK
               : status_fail(STATUS_INVALID, "the process that measures the memory failed");
}

size_t bench_device_bytes(struct device *device) {
    size_t bytes, whole = device_memory(device);
    return whole && !device_free_memory(device, &bytes) ? whole - bytes : 0;
}

void bench_add_device_bytes(json_t *object, size_t bytes) {
    if (bytes)
        json_object_set_new(object, "device_bytes", json_integer((json_int_t)bytes));
}

int bench_measure_ceiling(struct device *device, enum dtype dtype, bool is_tf32, struct bench_ceiling *ceiling) {
    int status = device_measure_gemm(device, dtype, is_tf32, CEILING_MILLISECONDS * 1e-3, &ceiling->gemm);
    return status ? status : device_measure_read(device, CEILING_MILLISECONDS * 1e-3, &ceiling->read);
}

struct bench_ceiling bench_mean(struct bench_ceiling before, struct bench_ceiling after) {
    return (struct bench_ceiling){(before.gemm + after.gemm) / 2, (before.read + after.read) / 2};
}

json_t *bench_phases(const double seconds[PHASE_COUNT], double total, int64_t steps) {
    json_t *phases = json_object();
    double booked = 0;
    for (int i = 0; i < PHASE_REST; i++) {
        booked += seconds[i];
        json_object_set_new(phases, phase_names[i], json_real(seconds[i] / (double)steps));
    }
    json_object_set_new(phases, phase_names[PHASE_REST], json_real((total - booked) / (double)steps));
    return phases;
}
