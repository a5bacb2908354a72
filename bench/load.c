/* From a model's files to an engine that can serve, compared with reading the files into fresh memory. Both find them
 * in the page cache. */
#include "bench.h"

#include "ckpt/gguf.h"
#include "infer/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static struct engine_options options_of(const struct bench_options *o) {
    return (struct engine_options){
        .model = o->model,
        .load_in = o->load_in,
        .precision = o->precision,
        .device = o->device,
        .threads = (int)o->threads,
        .max_rows = 1,
        .max_logit_rows = 1,
        .max_sequences = 1,
    };
}

static int load_once(const void *bench_options) {
    const struct engine_options options = options_of(bench_options);
    struct engine *engine = NULL;
    int status = engine_open(&options, &engine);
    engine_close(engine);
    return status;
}

/* Reads a file to at + *bytes and adds its length to *bytes. With `at` NULL it only counts. */
static int read_file(const char *path, char *at, int64_t *bytes) {
    struct stat about;
    ssize_t count = 1;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &about)) {
        close(file);
        return status_fail_errno("cannot open %s", path);
    }
    for (off_t remaining = at ? about.st_size : 0; remaining > 0 && count > 0; remaining -= count)
        if ((count = read(file, at + *bytes + (about.st_size - remaining), (size_t)remaining)) < 0 && errno == EINTR)
            count = 0;
    int status = count < 0 ? status_fail_errno("cannot read %s", path) : STATUS_OK;
    *bytes += about.st_size;
    close(file);
    return status;
}

/* Reads all parts of a GGUF file. */
static int read_parts(const struct gguf *file, char *memory, int64_t *bytes) {
    const char *path;
    for (size_t i = 0; (path = gguf_part_path(file, i)); i++)
        TRY(read_file(path, memory, bytes));
    return STATUS_OK;
}

static int read_files(const char *directory, const struct gguf *file, char *memory, int64_t *bytes) {
    char path[PATH_MAX], **names;
    size_t count;
    *bytes = 0;
    if (file)
        return read_parts(file, memory, bytes);
    TRY(file_list(directory, &names, &count));
    int status = STATUS_OK;
    for (size_t i = 0; i < count && !status; i++) {
        const char *ending = strrchr(names[i], '.');
        if (ending && !strcmp(ending, ".safetensors") && !(status = file_join(path, sizeof path, directory, names[i])))
            status = read_file(path, memory, bytes);
    }
    file_list_free(names, count);
    return status;
}

/* Reads all tensors into memory of the device. */
static int read_once(struct device *device, const char *model, int64_t *bytes, double *seconds) {
    void *memory = NULL;
    struct gguf *file = NULL;
    TRY(file_is_directory(model) ? STATUS_OK : gguf_open(model, &file));
    int status = read_files(model, file, NULL, bytes);
    double start = clock_seconds();
    THEN(status, device_alloc(device, (size_t)*bytes, &memory));
    THEN(status, read_files(model, file, memory, bytes));
    *seconds = clock_seconds() - start;
    device_free(device, memory);
    gguf_close(file);
    return status;
}

/* Measures a read, then a load, and prints a line for both. */
static int take_turns(const struct bench_options *o, struct device *device, int64_t step, int64_t *bytes, double *read,
                      double *load) {
    int status = read_once(device, o->model, bytes, read);
    double start = clock_seconds();
    THEN(status, load_once(o));
    *load = clock_seconds() - start;
    bench_pause();
    return status ? status
                  : bench_print(json_pack("{s:I, s:f, s:f}", "step", (json_int_t)step + 1, "seconds", *load,
                                          "read_seconds", *read));
}

static int print_summary(const struct bench_options *o, int64_t bytes, size_t peak, double *reads, double *loads,
                         double *ratios) {
    const struct engine_options options = options_of(o);
    struct engine_plan plan;
    struct engine *engine = NULL;
    TRY(engine_open(&options, &engine));
    engine_read_plan(engine, &plan);
    engine_close(engine);
    int64_t last = o->steps - 1;
    for (int64_t i = 0; i <= last; i++)
        ratios[i] = loads[i] / reads[i];
    double read = bench_median(reads, o->steps), load = bench_median(loads, o->steps);
    double ratio = bench_median(ratios, o->steps); /* which sorts them */
    return bench_print(json_pack("{s:s, s:s, s:f, s:I, s:f, s:f, s:f, s:f, s:I, s:I, s:f}", "bench", "load",
                                 "precision", precision_names[o->precision], "seconds", load, "file_bytes",
                                 (json_int_t)bytes, "read_seconds", read, "seconds_over_read", ratio, "best_over_read",
                                 ratios[0], "worst_over_read", ratios[last], "packed_bytes", (json_int_t)plan.weights,
                                 "peak_rss_bytes", (json_int_t)peak, "peak_over_packed",
                                 (double)peak / (double)plan.weights));
}

int bench_load(const struct bench_options *options) {
    double *seconds = calloc((size_t)(3 * options->steps), sizeof *seconds);
    int64_t bytes = 0;
    size_t peak;
    struct device *device = NULL;
    int status = status_allocated(seconds);
    if (!status && bench_is_shape(options->model))
        status = status_fail(STATUS_USAGE, "bench load wants --model PATH: %s has no files", options->model);
    THEN(status, bench_peak_of(load_once, options, &peak));
    THEN(status, device_open(options->device, DEVICE_FIRST, 1, &device));
    for (int64_t i = 0; i < options->steps && !status; i++)
        status = take_turns(options, device, i, &bytes, &seconds[i], &seconds[options->steps + i]);
    THEN(status, print_summary(options, bytes, peak, seconds, seconds + options->steps, seconds + 2 * options->steps));
    device_close(device);
    free(seconds);
    return status;
}
