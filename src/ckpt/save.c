/* Creates model directories and checkpoints. One rank creates the directory next to its target, the ranks exchange what
 * each of them writes, and the directory takes its place when all have written and synced. A saver keeps everything
 * that follows only from the table and the layout, so that a save begins at once. */
#include "comm/comm_file.h"
#include "save-internal.h"

#include <sys/mman.h>

static const int64_t default_shard_bytes = 50000000000; /* transformers' */

enum { SLOTS = 3 /* one is filled while another is written, so neither waits for memory */ };

struct ckpt_saver {
    struct ckpt_save save; /* iteration and state are those of the save in progress */
    bool is_model, is_background;
    bool is_mpi; /* in the foreground, through MPI-IO */
    struct write_plan plans[SAVE_PLANS];
    int plan_count;
    struct save_files files;
    struct save_exchange exchange;
    struct save_writer writer;
    bool has_writer;
    char *memory; /* buffers, then what the exchange needs */
    size_t memory_bytes;
    void *pinned; /* holds `memory` if a stream copies to it */
    char *state_text;
    char target[PATH_MAX], directory[PATH_MAX];
    struct staging staging; /* of the first rank */
    int64_t *others;        /* checkpoints in the root that are not ours; of the first rank */
    size_t other_count;
    enum ckpt_progress phase;
    double start; /* of the last save */
};

/* ---- what follows from the table and the layout ---- */

static int plan_part(struct ckpt_saver *saver, const struct ckpt_part *part) {
    const struct write_request request = {
        .name = part->name, .table = part->table, .arrays = part->weights, .array_count = 1};
    return write_plan_make(&request, &saver->plans[saver->plan_count++]);
}

static int make_plans(struct ckpt_saver *saver) {
    const struct ckpt_model *model = &saver->save.model;
    int64_t limit = model->max_shard_bytes > 0 ? model->max_shard_bytes : default_shard_bytes;
    int status = STATUS_OK;
    for (int i = 0; i < model->part_count && !status; i++)
        status = plan_part(saver, &model->parts[i]);
    struct write_request request = {
        .name = "model", .table = model->table, .arrays = model->weights, .array_count = 1, .max_shard_bytes = limit};
    THEN_IF(status, !model->part_count, write_plan_make(&request, &saver->plans[saver->plan_count++]));
    if (status || saver->is_model)
        return status;
    request.name = "optimizer";
    request.arrays = saver->save.optimizer;
    request.array_count = saver->save.optimizer_count;
    status = write_plan_make(&request, &saver->plans[saver->plan_count++]);
    return status || !saver->save.state ? status : plan_part(saver, saver->save.state);
}

static int thread_count(const struct ckpt_saver *saver) {
    return saver->save.model.threads > 0 ? saver->save.model.threads : 1;
}

/* Returns the bytes of a rank: buffers, two messages, scratch, and what pinned memory may begin too early by. */
static size_t sizes(const struct ckpt_saver *saver, int rank, int64_t *buffers) {
    int64_t chunks = save_files_chunks_of(&saver->files, rank), most = saver->is_mpi ? 1 : SLOTS;
    *buffers = saver->is_background || chunks < most ? chunks : most;
    int64_t messages = saver->files.ranks > 1 ? 2 : 0;
    return (size_t)((*buffers + messages) * saver->files.chunk_bytes) +
           (size_t)thread_count(saver) * SAVE_SCRATCH_BYTES + BLOCK_BYTES;
}

/* Takes memory to which the arrays' device copies. Direct I/O wants it at a multiple of a block. */
static int take_pinned(struct ckpt_saver *saver) {
    struct device *device = stream_device(saver->exchange.stream);
    void *turning = NULL;
    int status = device_host_alloc(device, saver->memory_bytes, &saver->pinned);
    THEN(status, device_alloc(device, CKPT_DEVICE_BYTES, &turning));
    if (status)
        return status_wrap(status, "no memory to save with");
    size_t beyond = (uintptr_t)saver->pinned % BLOCK_BYTES;
    saver->exchange.turning = turning;
    saver->memory = (char *)saver->pinned + (beyond ? BLOCK_BYTES - beyond : 0);
    return STATUS_OK;
}

/* The system hands out new memory page by page when it is touched, which takes longer than the copy itself. A
 * background save therefore touches all its memory beforehand. */
static int take_memory(struct ckpt_saver *saver) {
    enum { PIECE = 4 << 20 };
    size_t bytes = saver->memory_bytes;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return status_fail(STATUS_MEMORY, "cannot allocate %.1f MB to save with", (double)bytes / 1e6);
    saver->memory = memory;
    if (saver->is_background && bytes > PIECE) {
        madvise(memory, bytes, MADV_HUGEPAGE);
#pragma omp parallel for num_threads(thread_count(saver)) schedule(static)
        for (size_t at = 0; at < bytes; at += PIECE)
            memset(memory + at, 0, bytes - at < PIECE ? bytes - at : PIECE);
    }
    return STATUS_OK;
}

static int allocate(struct ckpt_saver *saver, int rank) {
    struct save_exchange *x = &saver->exchange;
    int64_t chunk = saver->files.chunk_bytes;
    saver->memory_bytes = sizes(saver, rank, &saver->writer.buffer_count);
    TRY(x->stream ? take_pinned(saver) : take_memory(saver));
    char *memory = saver->writer.buffers = saver->memory;
    x->giving = memory + saver->writer.buffer_count * chunk;
    x->taking = x->giving + (saver->files.ranks > 1 ? chunk : 0);
    x->scratch = x->taking + (saver->files.ranks > 1 ? chunk : 0);
    x->threads = thread_count(saver);
    return STATUS_OK;
}

/* Returns the stream of the arrays that have one; NULL: none has. */
static struct stream *find_stream(const struct ckpt_saver *saver) {
    for (int i = 0; i < saver->plan_count; i++)
        for (int a = 0; a < saver->plans[i].request.array_count; a++)
            if (saver->plans[i].request.arrays[a].stream)
                return saver->plans[i].request.arrays[a].stream;
    return NULL;
}

/* Checks that all ranks plan the same files. */
static int check_same_files(const struct ckpt_saver *saver, struct comm *world) {
    int64_t mine = save_files_hash(&saver->files), first = mine;
    struct comm_data data = {.send = &first, .receive = &first, .count = 1, .dtype = DTYPE_I64};
    int status = world && world->size > 1 ? comm_broadcast(world, &data, 0) : STATUS_OK;
    THEN_IF(status, mine != first, status_fail(STATUS_INVALID, "its tensors are not those of rank 0"));
    return together_agree(world, status);
}

static int prepare(struct ckpt_saver *saver) {
    struct comm *world = saver->save.model.world;
    int status = make_plans(saver);
    THEN(status, save_files_make(saver->plans, saver->plan_count, world ? world->size : 1, &saver->files));
    if (!status && !saver->is_model && together_is_first(world))
        status = ckpt_list_above(saver->save.root, saver->save.ours_until, &saver->others, &saver->other_count);
    status = together_agree(world, status);
    THEN(status, check_same_files(saver, world));
    for (int i = 0; i < saver->plan_count && !status; i++)
        status = write_plan_check_owners(&saver->plans[i], world);
    TRY(status);
    struct save_exchange *x = &saver->exchange;
    *x = (struct save_exchange){
        .plans = saver->plans, .files = &saver->files, .world = world, .stream = find_stream(saver)};
    status = save_cells_make(saver->plans, saver->plan_count, &saver->files, world, &x->gives, &x->takes);
    saver->writer.files = &saver->files;
    saver->writer.rank = world ? world->rank : 0;
    saver->writer.directory = saver->directory;
    THEN(status, allocate(saver, saver->writer.rank));
    THEN(status, save_writer_init(&saver->writer));
    saver->has_writer = !status;
    return together_agree(world, status);
}

static int open_saver(const struct ckpt_save *save, bool is_model, bool is_background, struct ckpt_saver **out) {
    struct ckpt_saver *saver = *out = calloc(1, sizeof *saver);
    int status = status_allocated(saver);
    status = together_agree(save->model.world, status);
    if (!status) {
        saver->save = *save;
        saver->is_model = is_model;
        saver->is_background = is_background;
        saver->is_mpi = !is_background && save->model.world && comm_has_files(save->model.world);
        saver->staging.mark = -1;
        saver->phase = CKPT_IDLE;
        status = prepare(saver);
    }
    if (status) {
        ckpt_saver_close(saver);
        *out = NULL;
    }
    return status;
}

int ckpt_saver_open(const struct ckpt_save *save, bool is_background, struct ckpt_saver **saver) {
    int status = open_saver(save, false, is_background, saver);
    return status ? status_wrap(status, "checkpoints cannot be saved") : STATUS_OK;
}

void ckpt_saver_prune(const struct ckpt_saver *saver) {
    struct ckpt_save last = saver->save;
    last.iteration = last.ours_until;
    if (last.ours_until >= 0 && together_is_first(last.model.world))
        save_prune(&last, saver->others, saver->other_count);
}

static int count_bytes(struct ckpt_saver *saver, int ranks, int rank, size_t *bytes) {
    int64_t buffers;
    int status = make_plans(saver);
    THEN(status, save_files_make(saver->plans, saver->plan_count, ranks, &saver->files));
    *bytes = status ? 0 : sizes(saver, rank, &buffers);
    save_files_free(&saver->files);
    for (int i = 0; i < saver->plan_count; i++)
        write_plan_free(&saver->plans[i]);
    return status;
}

int ckpt_saver_bytes(const struct ckpt_save *save, bool is_background, int ranks, int rank, size_t *bytes) {
    struct ckpt_saver saver = {.save = *save, .is_background = is_background};
    return count_bytes(&saver, ranks, rank, bytes);
}

int ckpt_model_bytes(const struct ckpt_model *model, int ranks, int rank, size_t *bytes) {
    struct ckpt_saver saver = {.save = {.model = *model}, .is_model = true};
    return count_bytes(&saver, ranks, rank, bytes);
}

/* Ends the writer, and removes what it wrote. */
static void give_up(struct ckpt_saver *saver) {
    char text[2048]; /* keeps the text of the failure that led here */
    snprintf(text, sizeof text, "%s", status_text());
    save_writer_join(&saver->writer, true);
    staging_abort(&saver->staging);
    status_fail(STATUS_IO, "%s", text);
    free(saver->state_text);
    saver->state_text = NULL;
    saver->phase = CKPT_IDLE;
}

void ckpt_saver_close(struct ckpt_saver *saver) {
    if (!saver)
        return;
    if (saver->has_writer) {
        give_up(saver);
        save_writer_destroy(&saver->writer);
    }
    struct stream *stream = saver->exchange.stream;
    if (saver->memory && !stream)
        munmap(saver->memory, saver->memory_bytes);
    if (stream) {
        device_host_free(stream_device(stream), saver->pinned);
        device_free(stream_device(stream), saver->exchange.turning);
    }
    free(saver->exchange.gives.items);
    free(saver->exchange.takes.items);
    save_files_free(&saver->files);
    for (int i = 0; i < saver->plan_count; i++)
        write_plan_free(&saver->plans[i]);
    free(saver->others);
    free(saver);
}

/* ---- a save ---- */

static int create(struct ckpt_saver *saver) {
    int status = STATUS_OK;
    if (saver->is_model && !saver->save.model.is_replaced)
        status = save_check_replaceable(saver->target);
    if (!saver->is_model && checkpoint_is_among(saver->save.iteration, saver->others, saver->other_count))
        status = status_fail(STATUS_INVALID, "it is already there and not this run's");
    THEN(status, staging_begin(&saver->staging, saver->target));
    THEN(status, save_files_create(&saver->files, saver->staging.directory));
    THEN(status, copy_path(saver->staging.directory, saver->directory, sizeof saver->directory));
    return status;
}

/* The first rank's last step; it runs during the training. */
static int publish(void *context) {
    struct ckpt_saver *saver = context;
    const struct ckpt_save *save = &saver->save;
    int status = save_texts(saver->staging.directory, save);
    for (int i = 0; i < saver->plan_count && !status; i++)
        status = write_plan_index(&saver->plans[i], saver->staging.directory);
    if (!status && !saver->is_model && saver->state_text)
        status = save_state(saver->staging.directory, save, &saver->files, saver->state_text);
    THEN_IF(status, save->model.seal, save->model.seal(save->model.seal_context, saver->staging.directory));
    THEN(status, staging_commit(&saver->staging));
    if (!status && !saver->is_model)
        save_prune(save, saver->others, saver->other_count);
    return status;
}

/* Returns this rank's chunk in step first_step + k of a file; -1: none. */
static int64_t chunk_of(const struct ckpt_saver *saver, const struct save_file *file, int64_t k) {
    int64_t first, end;
    save_file_chunks(&saver->files, file, saver->writer.rank, &first, &end);
    return first + k < end ? first + k : -1;
}

static void put_header(const struct save_file *file, int64_t at, int64_t bytes, char *buffer) {
    int64_t length = (int64_t)file->header_bytes - at;
    if (length > 0)
        memcpy(buffer, file->header + at, (size_t)(length < bytes ? length : bytes));
}

/* The destination of a chunk in memory. */
struct sink {
    struct comm_file *file; /* of all ranks; NULL: the writer's thread takes it */
    int64_t next;           /* chunk of this rank */
};

/* True if a stream copies everything before the writer gets any of it, so that the host waits once. */
static bool is_one_copy(const struct ckpt_saver *saver) {
    return saver->is_background && saver->exchange.stream;
}

/* Returns the status of the communication, and records failures here. */
static int fill_file(struct ckpt_saver *saver, const struct save_file *file, struct sink *sink,
                     struct save_failure *failure) {
    int64_t chunk_bytes = saver->files.chunk_bytes;
    for (int64_t k = 0, steps = (file->chunks + file->owners - 1) / file->owners; k < steps; k++) {
        int64_t chunk = chunk_of(saver, file, k), at = chunk * chunk_bytes;
        int64_t bytes = file->bytes - at < chunk_bytes ? file->bytes - at : chunk_bytes;
        char *buffer = NULL;
        if (chunk >= 0 && !failure->status) {
            buffer = sink->file ? saver->writer.buffers : save_writer_buffer(&saver->writer, sink->next);
            if (buffer)
                put_header(file, at, bytes, buffer);
            else /* the writer has failed */
                save_failure_note(failure, save_writer_join(&saver->writer, true));
        }
        int result = save_exchange_step(&saver->exchange, file->first_step + k, buffer, failure);
        if (result)
            return result;
        if (!is_one_copy(saver))
            save_exchange_wait(&saver->exchange, failure);
        bool is_full = buffer && !failure->status;
        if (sink->file)
            save_failure_note(failure, comm_file_write(sink->file, is_full ? at : 0, buffer, is_full ? bytes : 0));
        else if (is_full && !is_one_copy(saver))
            save_writer_filled(&saver->writer, sink->next);
        sink->next += chunk >= 0;
    }
    return STATUS_OK;
}

/* The same for a single rank with room for the whole file: it fills many chunks at once. */
static void fill_file_alone(struct ckpt_saver *saver, const struct save_file *file, struct sink *sink,
                            struct save_failure *failure) {
    enum { AT_ONCE = 32 };
    int64_t chunk_bytes = saver->files.chunk_bytes;
    for (int64_t k = 0; k < file->chunks && !failure->status; k += AT_ONCE) {
        int64_t count = file->chunks - k < AT_ONCE ? file->chunks - k : AT_ONCE;
        char *buffers = saver->writer.buffers + sink->next * chunk_bytes;
        for (int64_t i = 0; i < count; i++)
            put_header(file, (k + i) * chunk_bytes, chunk_bytes, buffers + i * chunk_bytes);
        save_exchange_alone(&saver->exchange, file->first_step + k, count, buffers, failure);
        sink->next += count;
        if (!failure->status && !is_one_copy(saver))
            save_writer_filled(&saver->writer, sink->next - 1);
    }
}

/* Writes every file through the exchange. The agreement that follows handles a failure of only one rank. */
static int fill(struct ckpt_saver *saver) {
    struct sink sink = {0};
    struct save_failure failure = {0};
    int result = STATUS_OK;
    saver->exchange.next_give = saver->exchange.next_take = 0;
    for (int f = 0; f < saver->files.count && !result; f++) {
        const struct save_file *file = &saver->files.items[f];
        if (saver->is_mpi) {
            char path[PATH_MAX];
            result = file_join(path, sizeof path, saver->directory, file->name);
            if (!result)
                result = comm_file_open(saver->save.model.world, path, &sink.file);
        }
        if (!result && saver->is_background && saver->files.ranks == 1)
            fill_file_alone(saver, file, &sink, &failure);
        else if (!result)
            result = fill_file(saver, file, &sink, &failure);
        if (sink.file && !result)
            save_failure_note(&failure, comm_file_close(sink.file));
        sink.file = NULL;
    }
    save_exchange_wait(&saver->exchange, &failure);
    if (is_one_copy(saver) && !failure.status)
        save_writer_filled(&saver->writer, sink.next - 1);
    return failure.status ? status_fail(failure.status, "%s", failure.text) : result;
}

static int failed(struct ckpt_saver *saver, int status) {
    give_up(saver);
    return status_wrap(status, saver->is_model ? "model %s was not written" : "checkpoint %s was not saved",
                       saver->target);
}

static int set_target(struct ckpt_saver *saver, int64_t iteration, const char *state_text) {
    const char *root = saver->save.root;
    saver->save.iteration = iteration;
    if (saver->is_model)
        return copy_path(root, saver->target, sizeof saver->target);
    if (iteration < 0 || snprintf(saver->target, sizeof saver->target, "%s/iter_%07lld", root, (long long)iteration) >=
                             (int)sizeof saver->target)
        return status_fail(STATUS_INVALID, "cannot save iteration %lld under %.200s", (long long)iteration, root);
    saver->state_text = state_text ? strdup(state_text) : NULL; /* the first rank's */
    return status_allocated(!state_text || saver->state_text);
}

void ckpt_saver_set_seal(struct ckpt_saver *saver, void *context) {
    saver->save.model.seal_context = context;
}

int ckpt_saver_begin(struct ckpt_saver *saver, int64_t iteration, const char *state_text) {
    struct comm *world = saver->save.model.world;
    TRY(saver->phase == CKPT_IDLE ? STATUS_OK : ckpt_saver_wait(saver));
    saver->start = clock_seconds();
    int status = set_target(saver, iteration, state_text);
    THEN_IF(status, together_is_first(world), create(saver));
    status = together_agree(world, status);
    THEN(status, together_path(world, saver->directory));
    if (status)
        return failed(saver, status);
    if (!saver->is_mpi)
        status = save_writer_start(&saver->writer);
    status = together_agree(world, status);
    if (!status) {
        status = together_agree(world, fill(saver));
    }
    if (status)
        return failed(saver, status);
    if (saver->is_mpi)
        saver->writer.end = clock_seconds();
    saver->phase = CKPT_WRITING;
    return STATUS_OK;
}

enum ckpt_progress ckpt_saver_progress(const struct ckpt_saver *saver) {
    int status = STATUS_OK;
    if (saver->phase == CKPT_IDLE || saver->phase == CKPT_PUBLISHED)
        return saver->phase;
    bool is_done = saver->is_mpi && saver->phase == CKPT_WRITING;
    if (!is_done)
        is_done = save_writer_is_done((struct save_writer *)&saver->writer, &status);
    if (is_done && status)
        return CKPT_FAILED;
    if (!is_done)
        return saver->phase;
    return saver->phase == CKPT_WRITING ? CKPT_WRITTEN : CKPT_PUBLISHED;
}

int ckpt_saver_advance(struct ckpt_saver *saver, enum ckpt_progress least, bool *is_saved) {
    struct comm *world = saver->save.model.world;
    int status = STATUS_OK;
    *is_saved = false;
    if (least == CKPT_FAILED) {
        if (ckpt_saver_progress(saver) == CKPT_FAILED)
            status = save_writer_join(&saver->writer, true);
        return failed(saver, together_agree(world, status));
    }
    if (least == CKPT_WRITTEN && saver->phase == CKPT_WRITING) {
        save_writer_join(&saver->writer, false);
        saver->phase = together_is_first(world) ? CKPT_WRITTEN : CKPT_PUBLISHED;
        if (together_is_first(world) && (status = save_writer_run(&saver->writer, publish, saver))) {
            saver->writer.is_done = true; /* seen as a failure by all at the next agreement */
            saver->writer.status = status;
            snprintf(saver->writer.text, sizeof saver->writer.text, "%s", status_text());
        }
    } else if (least == CKPT_PUBLISHED) {
        save_writer_join(&saver->writer, false);
        give_up(saver); /* nothing is left to remove */
        *is_saved = true;
    }
    return STATUS_OK;
}

int ckpt_saver_wait(struct ckpt_saver *saver) {
    struct comm *world = saver->save.model.world;
    bool is_saved = false;
    int status = STATUS_OK;
    while (!status && !is_saved && saver->phase != CKPT_IDLE) {
        save_writer_wait(&saver->writer);
        int64_t least = -(int64_t)ckpt_saver_progress(saver);
        struct comm_data data = {.send = &least, .receive = &least, .count = 1, .dtype = DTYPE_I64};
        if (world)
            status = comm_all_reduce(world, &data, COMM_MAX);
        THEN(status, ckpt_saver_advance(saver, (enum ckpt_progress) - least, &is_saved));
    }
    return status;
}

double ckpt_saver_seconds(const struct ckpt_saver *saver) {
    return saver->writer.end - saver->start;
}

/* ---- one save ---- */

static int save_once(const struct ckpt_save *save, bool is_model) {
    struct ckpt_saver *saver;
    int status = open_saver(save, is_model, false, &saver);
    if (status)
        return is_model ? status_wrap(status, "model %s was not written", save->root)
                        : status_wrap(status, "checkpoint %s/iter_%07lld was not saved", save->root,
                                      (long long)save->iteration);
    status = ckpt_saver_begin(saver, save->iteration, save->state_text);
    THEN(status, ckpt_saver_wait(saver));
    ckpt_saver_close(saver);
    return status;
}

int ckpt_write_model(const char *directory, const struct ckpt_model *model) {
    return save_once(&(struct ckpt_save){.root = directory, .model = *model}, true);
}

int ckpt_write_beside(const char *directory, const struct ckpt_model *model) {
    bool is_first = together_is_first(model->world);
    struct staging staging = {.mark = -1};
    int status = is_first ? staging_begin_files(&staging, directory, &save_beside_files) : STATUS_OK;
    if (is_first && !status)
        status = ckpt_check_beside(directory);
    status = together_agree(model->world, status);
    THEN(status, ckpt_write_model(staging.directory ? staging.directory : directory, model));
    THEN(status, together_agree(model->world, is_first ? staging_commit(&staging) : STATUS_OK));
    staging_abort(&staging);
    return status;
}

int ckpt_save(const struct ckpt_save *save) {
    return save_once(save, false);
}
