/* The files of a directory in chunks. Each file's chunks are distributed among the ranks in contiguous ranges. A file
 * with few chunks goes to few ranks, and the next file begins with the next ones. Chunks begin at multiples of the
 * block size of direct I/O, so no two ranks write to the same block. */
#include "save-internal.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

enum { LARGEST_CHUNK = 8 << 20, CHUNKS_A_RANK = 4 };

/* Makes the file of a shard, with `count` of the plan's tensors, by number. */
static int make_file(struct write_plan *plan, const int *tensors, int count, int number, struct save_file *file) {
    int shard = count ? plan->tensors[tensors[0]].shard : 0;
    int status = write_plan_shard_name(plan, shard, file->name, sizeof file->name);
    THEN(status, safetensors_header_new(&file->layout));
    for (int i = 0; i < count && !status; i++) {
        const struct file_tensor *tensor = &plan->tensors[tensors[i]];
        int added = safetensors_header_add(file->layout, tensor->name, safetensors_type_name(tensor->dtype),
                                           tensor->dims, tensor->shape);
        status = added < 0 ? added : STATUS_OK;
    }
    THEN(status, safetensors_header_place(file->layout, file->name));
    TRY(status);
    file->header = safetensors_header_bytes(file->layout, &file->header_bytes, &file->bytes);
    for (int i = 0; i < count; i++) {
        plan->tensors[tensors[i]].file = number;
        plan->tensors[tensors[i]].start = safetensors_header_start(file->layout, i);
    }
    return STATUS_OK;
}

/* Makes the files of a plan, one per shard. `order` has room for every tensor, `end` for every shard. */
static int make_files(struct write_plan *plan, int *order, int *end, struct save_files *files) {
    int status = STATUS_OK;
    for (int i = 0; i < plan->tensor_count; i++)
        end[plan->tensors[i].shard]++;
    for (int shard = 1; shard < plan->shard_count; shard++)
        end[shard] += end[shard - 1];
    for (int i = plan->tensor_count - 1; i >= 0; i--) /* turns each end into a start */
        order[--end[plan->tensors[i].shard]] = i;
    for (int shard = 0; shard < plan->shard_count && !status; shard++) {
        int first = end[shard], next = shard + 1 < plan->shard_count ? end[shard + 1] : plan->tensor_count;
        struct save_file *file = &files->items[files->count++];
        status = make_file(plan, order + first, next - first, files->count - 1, file);
        files->total_bytes += file->bytes;
    }
    return status;
}

/* Small files get small chunks, so that every rank has some. */
static void share_out(struct save_files *files) {
    int64_t part = files->total_bytes / ((int64_t)CHUNKS_A_RANK * files->ranks) / BLOCK_BYTES * BLOCK_BYTES;
    int next = 0;
    files->chunk_bytes = part < BLOCK_BYTES ? BLOCK_BYTES : part > LARGEST_CHUNK ? LARGEST_CHUNK : part;
    for (int f = 0; f < files->count; f++) {
        struct save_file *file = &files->items[f];
        file->chunks = (file->bytes + files->chunk_bytes - 1) / files->chunk_bytes;
        file->owners = file->chunks < files->ranks ? (int)file->chunks : files->ranks;
        file->first_owner = next;
        file->first_step = files->steps;
        files->steps += (file->chunks + file->owners - 1) / file->owners;
        next = (next + file->owners) % files->ranks;
    }
}

int save_files_make(struct write_plan *plans, int plan_count, int ranks, struct save_files *files) {
    int total = 0;
    *files = (struct save_files){.ranks = ranks};
    for (int p = 0; p < plan_count; p++)
        total += plans[p].shard_count;
    files->items = calloc((size_t)total + 1, sizeof *files->items);
    TRY(status_allocated(files->items));
    int status = STATUS_OK;
    for (int p = 0; p < plan_count && !status; p++) {
        int *order = malloc(((size_t)plans[p].tensor_count + 1) * sizeof *order);
        int *end = calloc((size_t)plans[p].shard_count + 1, sizeof *end);
        status = order && end ? make_files(&plans[p], order, end, files) : status_no_memory();
        free(order);
        free(end);
    }
    if (!status)
        share_out(files);
    return status;
}

void save_files_free(struct save_files *files) {
    for (int f = 0; f < files->count; f++)
        safetensors_header_free(files->items[f].layout);
    free(files->items);
    *files = (struct save_files){0};
}

/* Returns the first chunk of owner `index`. */
static int64_t first_chunk(const struct save_file *file, int64_t index) {
    return file->chunks * index / file->owners;
}

void save_file_chunks(const struct save_files *files, const struct save_file *file, int rank, int64_t *first,
                      int64_t *end) {
    int index = (rank - file->first_owner + files->ranks) % files->ranks;
    *first = index < file->owners ? first_chunk(file, index) : 0;
    *end = index < file->owners ? first_chunk(file, index + 1) : 0;
}

int save_file_owner(const struct save_files *files, const struct save_file *file, int64_t chunk, int64_t *step) {
    int64_t index = chunk * file->owners / file->chunks;
    while (first_chunk(file, index) > chunk)
        index--;
    while (first_chunk(file, index + 1) <= chunk)
        index++;
    *step = file->first_step + chunk - first_chunk(file, index);
    return (int)((file->first_owner + index) % files->ranks);
}

int64_t save_files_chunks_of(const struct save_files *files, int rank) {
    int64_t count = 0;
    for (int f = 0; f < files->count; f++) {
        int64_t first, end;
        save_file_chunks(files, &files->items[f], rank, &first, &end);
        count += end - first;
    }
    return count;
}

int64_t save_files_hash(const struct save_files *files) {
    uint64_t hash = DIGEST_START;
    for (int f = 0; f < files->count; f++)
        hash = digest_bytes(hash, files->items[f].header, files->items[f].header_bytes);
    return (int64_t)hash;
}

/* Reserves blocks for the whole file now, so that a full disk fails here and not later. Not every file system can. */
static int reserve(int descriptor, int64_t bytes, const char *path) {
    if (bytes == 0 || fallocate(descriptor, 0, 0, bytes) == 0)
        return STATUS_OK;
    if ((errno == EOPNOTSUPP || errno == ENOSYS) && ftruncate(descriptor, bytes) == 0)
        return STATUS_OK;
    return status_fail_errno("cannot write %lld bytes to %s", (long long)bytes, path);
}

int save_files_create(const struct save_files *files, const char *directory) {
    int status = STATUS_OK;
    for (int f = 0; f < files->count && !status; f++) {
        char path[PATH_MAX];
        status = file_join(path, sizeof path, directory, files->items[f].name);
        if (!status && strchr(files->items[f].name, '/')) {
            char *slash = strrchr(path, '/');
            *slash = 0;
            status = file_make_directories(path);
            *slash = '/';
        }
        if (status)
            break;
        int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        status = descriptor < 0 ? status_fail_errno("cannot create %s", path)
                                : reserve(descriptor, files->items[f].bytes, path);
        if (descriptor >= 0 && close(descriptor) && !status)
            status = status_fail_errno("cannot write %s", path);
    }
    return status;
}
