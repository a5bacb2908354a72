/* The cost of a checkpoint: saved while the training waits, and in the background, compared with a plain write of as
 * many bytes to the same disk. The stall of a background save is the additional time of all steps until its end,
 * compared with steps without a save. */
#include "training.h"

#include <fcntl.h>
#include <unistd.h>

enum { WARM_UP = 2, UNDISTURBED = 4, PIECE = 8 << 20, BLOCK = 4096, MOST_STEPS = 1000 };

/* One series of saves: foreground or background. */
struct series {
    const struct bench_options *options;
    struct train_run run;
    bool is_background;
    char root[PATH_MAX];  /* of its checkpoints */
    char plain[PATH_MAX]; /* a file to write plainly */
    /* For the first rank: [steps] of each save, in seconds. */
    double *save, *copy, *write, *stall, *step, *plain_write;
    int64_t bytes;
    char device[96];
};

/* ---- the disk ---- */

static int64_t checkpoint_bytes(const char *root, int64_t iteration) {
    char directory[PATH_MAX], path[PATH_MAX], **names;
    size_t count;
    int64_t bytes = 0;
    snprintf(directory, sizeof directory, "%s/iter_%07lld", root, (long long)iteration);
    if (file_list(directory, &names, &count))
        return 0;
    for (size_t i = 0; i < count; i++)
        if (!file_join(path, sizeof path, directory, names[i]))
            bytes += file_size(path);
    file_list_free(names, count);
    return bytes;
}

/* Writes large aligned pieces (the last one of whole blocks) past the page cache into a preallocated file, and syncs
 * it. */
static int write_plainly(const struct series *series, double *seconds) {
    char *piece = aligned_alloc(BLOCK, PIECE);
    int64_t bytes = (series->bytes + BLOCK - 1) / BLOCK * BLOCK;
    int descriptor = open(series->plain, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_DIRECT, 0600);
    if (descriptor < 0)
        descriptor = open(series->plain, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int status = descriptor < 0 ? status_fail_errno("cannot create %s", series->plain)
                 : piece        ? STATUS_OK
                                : status_no_memory();
    if (!status) {
        memset(piece, 0x5a, PIECE);
        double start = clock_seconds();
        if (fallocate(descriptor, 0, 0, bytes) && ftruncate(descriptor, bytes))
            status = status_fail_errno("cannot write %s", series->plain);
        for (int64_t at = 0; at < bytes && !status; at += PIECE)
            status = file_pwrite_all(descriptor, piece, (size_t)(bytes - at < PIECE ? bytes - at : PIECE), at,
                                     series->plain);
        THEN(status, fsync(descriptor) ? status_fail_errno("cannot sync %s", series->plain) : STATUS_OK);
        *seconds = clock_seconds() - start;
    }
    if (descriptor >= 0)
        close(descriptor);
    unlink(series->plain);
    free(piece);
    return status;
}

/* ---- one rank ---- */

static int timed_step(struct comm *world, struct trainer *trainer, double *seconds) {
    struct train_record record;
    double start = clock_seconds();
    int status = trainer_step(trainer, &record);
    THEN(status, comm_barrier(world));
    *seconds = clock_seconds() - start;
    return status;
}

static int largest(struct comm *world, double *value) {
    struct comm_data data = {.send = value, .receive = value, .count = 1, .dtype = DTYPE_F64};
    return comm_all_reduce(world, &data, COMM_MAX);
}

static int save_waiting(struct comm *world, struct trainer *trainer, struct series *series, int64_t i) {
    int status = comm_barrier(world);
    double start = clock_seconds();
    THEN(status, trainer_save(trainer));
    if (!status && world->rank == 0)
        series->save[i] = clock_seconds() - start;
    return status;
}

/* Takes steps without a save, then one save and the steps until it is complete. */
static int save_beside(struct comm *world, struct trainer *trainer, struct series *series, int64_t i) {
    double undisturbed[UNDISTURBED], seconds, copy, write, extra = 0;
    bool is_saved = false;
    int status = STATUS_OK;
    for (int s = 0; s < UNDISTURBED && !status; s++)
        status = timed_step(world, trainer, &undisturbed[s]);
    TRY(status);
    double step = bench_median(undisturbed, UNDISTURBED);
    status = trainer_save_begin(trainer);
    for (int s = 0; s < MOST_STEPS && !is_saved && !status; s++) {
        double start = clock_seconds();
        status = timed_step(world, trainer, &seconds);
        THEN(status, trainer_save_poll(trainer, &is_saved));
        extra += clock_seconds() - start - step;
    }
    THEN(status, trainer_save_wait(trainer));
    TRY(status);
    trainer_save_times(trainer, &copy, &write);
    status = largest(world, &copy);
    THEN(status, largest(world, &write));
    if (!status && world->rank == 0) {
        series->step[i] = step;
        series->copy[i] = copy;
        series->write[i] = write;
        series->stall[i] = copy + (extra > 0 ? extra : 0); /* faster steps do not undo the copy */
    }
    return status;
}

static int run_series(struct comm *world, struct trainer *trainer, struct series *series) {
    double seconds;
    int status = STATUS_OK;
    for (int i = 0; i < WARM_UP && !status; i++)
        status = timed_step(world, trainer, &seconds);
    for (int64_t i = -1; i < series->options->steps && !status; i++) { /* the first save warms up */
        int64_t place = i < 0 ? 0 : i;
        status = series->is_background ? save_beside(world, trainer, series, place)
                                       : save_waiting(world, trainer, series, place);
        if (!status && world->rank == 0) {
            if (!series->bytes)
                series->bytes = checkpoint_bytes(series->run.config.checkpoint.save, trainer_iteration(trainer));
            status = write_plainly(series, &series->plain_write[place]);
        }
        THEN(status, comm_barrier(world));
    }
    if (world->rank == 0)
        snprintf(series->device, sizeof series->device, "%s", device_description(trainer_rank(trainer)->device));
    return status;
}

static int run_rank(struct comm *world, void *context) {
    struct series *series = context;
    struct trainer *trainer;
    log_quiet(true);
    int status = trainer_open(&series->run, world, &trainer);
    THEN(status, run_series(world, trainer, series));
    if (status)
        comm_abort(world, status_text());
    trainer_close(trainer);
    return status;
}

/* ---- both series ---- */

static int measure(struct series *series, const struct bench_options *options, struct bench_dataset *dataset,
                   const char *save, bool is_background) {
    size_t count = (size_t)options->steps;
    double *values = calloc(6 * count, sizeof *values);
    TRY(status_allocated(values));
    series->options = options;
    series->is_background = is_background;
    series->save = values;
    series->copy = values + count;
    series->write = values + 2 * count;
    series->stall = values + 3 * count;
    series->step = values + 4 * count;
    series->plain_write = values + 5 * count;
    int status = bench_training_run(options, false, 1000000, dataset, &series->run);
    snprintf(series->root, sizeof series->root, "%s/%s", save, is_background ? "beside" : "waiting");
    series->run.config.checkpoint.save = series->root;
    series->run.config.checkpoint.keep_last = 1;
    series->run.config.checkpoint.async_save = is_background;
    snprintf(series->plain, sizeof series->plain, "%s.plain", save);
    if (!status)
        status =
            options->world ? run_rank(options->world, series) : comm_local_run((int)options->ranks, run_rank, series);
    return status;
}

static int print_saves(const struct series *series) {
    int status = STATUS_OK;
    for (int64_t i = 0; i < series->options->steps && !status; i++)
        status = bench_print(series->is_background
                                 ? json_pack("{s:I, s:f, s:f, s:f, s:f, s:f}", "save", (json_int_t)i + 1,
                                             "plain_write_seconds", series->plain_write[i], "step_seconds",
                                             series->step[i], "copy_seconds", series->copy[i], "write_seconds",
                                             series->write[i], "stall_seconds", series->stall[i])
                                 : json_pack("{s:I, s:f, s:f}", "save", (json_int_t)i + 1, "plain_write_seconds",
                                             series->plain_write[i], "seconds", series->save[i]));
    return status;
}

static json_t *summary(const struct bench_options *o, struct series *foreground, struct series *background) {
    int64_t count = o->steps;
    double bytes = (double)foreground->bytes, plain = bench_median(foreground->plain_write, count);
    double *ratios = foreground->stall; /* unused there */
    for (int64_t i = 0; i < count; i++)
        ratios[i] = background->stall[i] / background->write[i];
    double saved = bench_median(foreground->save, count), stall = bench_median(background->stall, count);
    double ratio = bench_median(ratios, count);
    return json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:f, s:o, s:o}", "bench", "checkpoint", "device", foreground->device, "precision",
        precision_names[o->precision], "ranks", (json_int_t)o->ranks, "bytes", (json_int_t)foreground->bytes, "ceiling",
        bytes / plain / 1e9, "foreground",
        json_pack("{s:f, s:f, s:f}", "seconds", saved, "gb_per_s", bytes / saved / 1e9, "ratio", plain / saved),
        "background",
        json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "step_seconds", bench_median(background->step, count),
                  "copy_seconds", bench_median(background->copy, count), "write_seconds",
                  bench_median(background->write, count), "stall_seconds", stall, "stall_over_write", ratio,
                  "stall_over_foreground", stall / saved));
}

int bench_checkpoint(const struct bench_options *options) {
    struct series foreground = {0}, background = {0};
    struct bench_dataset dataset = {0};
    struct model_config model;
    bool is_first = !options->world || options->world->rank == 0;
    char save[PATH_MAX];
    int status = bench_model_config(options->model, options->layers, &model);
    THEN(status, bench_dataset_open(&dataset, 1 << 20, model.vocab_size));
    snprintf(save, sizeof save, "%s/save", dataset.directory);
    struct comm_data path = {.send = save, .receive = save, .count = sizeof save, .dtype = DTYPE_U8};
    if (!status && options->world) /* the first rank's is sent to all */
        status = comm_broadcast(options->world, &path, 0);
    THEN(status, measure(&foreground, options, &dataset, save, false));
    THEN(status, is_first ? print_saves(&foreground) : STATUS_OK);
    background.bytes = foreground.bytes;
    THEN(status, measure(&background, options, &dataset, save, true));
    THEN(status, is_first ? print_saves(&background) : STATUS_OK);
    THEN(status, is_first ? bench_print(summary(options, &foreground, &background)) : STATUS_OK);
    if (is_first && dataset.directory[0] && file_remove_tree(save))
        log_warning("%s", status_text());
    bench_dataset_close(&dataset);
    free(foreground.save);
    free(background.save);
    return status;
}
