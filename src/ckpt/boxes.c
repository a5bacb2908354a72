/* Checks boxes when they are opened, and reads ranges of a tensor from all boxes that have a part of them. */
#include "boxes.h"

#include "exchange.h"
#include "torch_tensor.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum {
    MAX_CELLS = 1 << 22,       /* of the grid that all cuts of one tensor make */
    SCATTERED_BYTES = 1 << 16, /* that are read at once and then taken apart */
    SIZES_AT_ONCE = 1 << 13
};

struct box_file {
    char *name;
    int descriptor;
    int64_t bytes;
};

struct box_tensor {
    struct safetensor tensor; /* its name is owned */
    size_t first, count;      /* boxes */
    int64_t width;            /* bytes of an element */
    atomic_bool is_prepared;
};

/* Offsets and sizes of boxes, which stay where they are. */
struct sizes_block {
    struct sizes_block *before;
    size_t used;
    int64_t sizes[SIZES_AT_ONCE];
};

struct boxes {
    char *directory;
    struct box_file *files;
    struct box_tensor *tensors;
    struct box *items;
    struct sizes_block *sizes;
    size_t file_count, file_capacity, tensor_count, tensor_capacity, count, capacity;
    pthread_mutex_t lock; /* of preparing */
};

/* ---- listing ---- */

int boxes_new(const char *directory, struct boxes **out) {
    struct boxes *boxes = *out = calloc(1, sizeof *boxes);
    if (boxes)
        pthread_mutex_init(&boxes->lock, NULL);
    if (boxes && (boxes->directory = strdup(directory)))
        return STATUS_OK;
    boxes_free(boxes);
    *out = NULL;
    return status_no_memory();
}

void boxes_free(struct boxes *boxes) {
    if (!boxes)
        return;
    for (size_t i = 0; i < boxes->file_count; i++) {
        close(boxes->files[i].descriptor);
        free(boxes->files[i].name);
    }
    for (size_t i = 0; i < boxes->tensor_count; i++)
        free((char *)boxes->tensors[i].tensor.name);
    while (boxes->sizes) {
        struct sizes_block *before = boxes->sizes->before;
        free(boxes->sizes);
        boxes->sizes = before;
    }
    free(boxes->files);
    free(boxes->tensors);
    free(boxes->items);
    free(boxes->directory);
    pthread_mutex_destroy(&boxes->lock);
    free(boxes);
}

int boxes_add_file(struct boxes *boxes, const char *where, const char *name, size_t *number) {
    char path[PATH_MAX], word[SHOWN_BYTES];
    for (size_t i = boxes->file_count; i-- > 0;) /* the last one is the most likely */
        if (!strcmp(boxes->files[i].name, name)) {
            *number = i;
            return STATUS_OK;
        }
    if (!*name || strchr(name, '/') || !strcmp(name, "..") || !strcmp(name, "."))
        return status_fail(STATUS_INVALID, "%s: '%s' is not the name of a file in the same directory", where,
                           shown(name, word));
    TRY(array_reserve(&boxes->files, &boxes->file_capacity, boxes->file_count + 1, sizeof *boxes->files));
    struct box_file file = {.name = strdup(name)};
    int status = file.name ? file_join(path, sizeof path, boxes->directory, name) : status_no_memory();
    THEN(status, file_open_to_read(path, &file.descriptor, &file.bytes));
    if (status) {
        free(file.name);
        return status == STATUS_NOT_FOUND ? status_wrap(STATUS_INVALID, "%s names a missing file", where) : status;
    }
    *number = boxes->file_count;
    boxes->files[boxes->file_count++] = file;
    return STATUS_OK;
}

int boxes_add_tensor(struct boxes *boxes, const char *name, const char *type, int dims, const int64_t *shape) {
    TRY(array_reserve(&boxes->tensors, &boxes->tensor_capacity, boxes->tensor_count + 1, sizeof *boxes->tensors));
    struct box_tensor *added = &boxes->tensors[boxes->tensor_count];
    *added = (struct box_tensor){.tensor = {.type = type, .dtype = safetensors_type_dtype(type), .dims = dims},
                                 .first = boxes->count,
                                 .width = safetensors_type_bytes(type)};
    struct safetensor *tensor = &added->tensor;
    tensor->elements = 1;
    for (int i = 0; i < dims; i++) {
        tensor->shape[i] = shape[i];
        if (__builtin_mul_overflow(tensor->elements, shape[i], &tensor->elements))
            return status_fail(STATUS_INVALID, "%s: tensor '%.200s' has more elements than fit 64 bits",
                               boxes->directory, name);
    }
    if (__builtin_mul_overflow(tensor->elements, added->width, &tensor->bytes))
        return status_fail(STATUS_INVALID, "%s: tensor '%.200s' has more bytes than fit 64 bits", boxes->directory,
                           name);
    if (!(tensor->name = strdup(name)))
        return status_no_memory();
    boxes->tensor_count++;
    return STATUS_OK;
}

/* Copies sizes to where they stay; NULL: out of memory. */
static const int64_t *copy_sizes(struct boxes *boxes, const int64_t *sizes, int dims) {
    if (!boxes->sizes || boxes->sizes->used + (size_t)dims > SIZES_AT_ONCE) {
        struct sizes_block *block = malloc(sizeof *block);
        if (!block) {
            status_no_memory();
            return NULL;
        }
        block->before = boxes->sizes;
        block->used = 0;
        boxes->sizes = block;
    }
    int64_t *copy = boxes->sizes->sizes + boxes->sizes->used;
    boxes->sizes->used += (size_t)dims;
    for (int i = 0; i < dims; i++)
        copy[i] = sizes[i];
    return copy;
}

int boxes_add(struct boxes *boxes, const struct box *box) {
    struct box_tensor *tensor = &boxes->tensors[boxes->tensor_count - 1];
    const struct box_file *file = &boxes->files[box->file];
    for (int i = 0; i < tensor->tensor.dims; i++)
        if (!box->sizes[i])
            return STATUS_OK;
    if (box->start < 0 || box->bytes < 0 || box->start > file->bytes || box->bytes > file->bytes - box->start)
        return status_fail(STATUS_INVALID, "%s/%s: expected a part of '%.200s' at bytes [%lld, +%lld), it has %lld",
                           boxes->directory, file->name, tensor->tensor.name, (long long)box->start,
                           (long long)box->bytes, (long long)file->bytes);
    TRY(array_reserve(&boxes->items, &boxes->capacity, boxes->count + 1, sizeof *boxes->items));
    struct box *added = &boxes->items[boxes->count];
    *added = *box;
    added->offsets = copy_sizes(boxes, box->offsets, tensor->tensor.dims);
    added->sizes = added->offsets ? copy_sizes(boxes, box->sizes, tensor->tensor.dims) : NULL;
    if (!added->sizes)
        return STATUS_MEMORY;
    boxes->count++;
    tensor->count++;
    return STATUS_OK;
}

/* ---- checking ---- */

/* The cuts along one axis, and the cell of the grid where each begins. */
struct axis {
    int64_t *cuts;
    size_t count;
};

static int compare_numbers(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static size_t find_cut(const struct axis *axis, int64_t place) {
    const int64_t *found = bsearch(&place, axis->cuts, axis->count, sizeof place, compare_numbers);
    return (size_t)(found - axis->cuts);
}

static int make_axis(const struct boxes *boxes, const struct box_tensor *tensor, int dim, struct axis *axis) {
    axis->cuts = malloc((2 * tensor->count + 2) * sizeof *axis->cuts);
    TRY(status_allocated(axis->cuts));
    size_t count = 0, kept = 1;
    axis->cuts[count++] = 0;
    axis->cuts[count++] = tensor->tensor.shape[dim];
    for (size_t i = 0; i < tensor->count; i++) {
        const struct box *box = &boxes->items[tensor->first + i];
        axis->cuts[count++] = box->offsets[dim];
        axis->cuts[count++] = box->offsets[dim] + box->sizes[dim];
    }
    qsort(axis->cuts, count, sizeof *axis->cuts, compare_numbers);
    for (size_t i = 1; i < count; i++)
        if (axis->cuts[i] != axis->cuts[kept - 1])
            axis->cuts[kept++] = axis->cuts[i];
    axis->count = kept;
    return STATUS_OK;
}

/* Marks the cells of a box; returns false when another box has one of them. */
static bool mark_cells(const struct box *box, const struct axis *axes, int dims, bool *cells, size_t *marked) {
    size_t first[SAFETENSORS_MAX_DIMS], end[SAFETENSORS_MAX_DIMS], at[SAFETENSORS_MAX_DIMS];
    for (int i = 0; i < dims; i++) {
        at[i] = first[i] = find_cut(&axes[i], box->offsets[i]);
        end[i] = find_cut(&axes[i], box->offsets[i] + box->sizes[i]);
    }
    for (;;) {
        size_t cell = 0;
        for (int i = 0; i < dims; i++)
            cell = cell * (axes[i].count - 1) + at[i];
        if (cells[cell])
            return false;
        cells[cell] = true;
        ++*marked;
        int i = dims - 1;
        while (i >= 0 && ++at[i] == end[i]) {
            at[i] = first[i];
            i--;
        }
        if (i < 0)
            return true;
    }
}

/* Checks that boxes do not overlap and leave no gap, in the grid that their cuts make. */
static int check_cover(const struct boxes *boxes, const struct box_tensor *tensor) {
    const struct safetensor *t = &tensor->tensor;
    struct axis axes[SAFETENSORS_MAX_DIMS] = {0};
    size_t cell_count = 1, marked = 0;
    int status = STATUS_OK;
    bool *cells = NULL, are_apart = true;
    for (int i = 0; i < t->dims && !status; i++) {
        status = make_axis(boxes, tensor, i, &axes[i]);
        if (!status && __builtin_mul_overflow(cell_count, axes[i].count - 1, &cell_count))
            cell_count = SIZE_MAX / 2;
    }
    if (!status && cell_count > MAX_CELLS)
        status = status_fail(STATUS_UNSUPPORTED, "%s: tensor '%.200s' is cut into a grid of more than %d cells",
                             boxes->directory, t->name, MAX_CELLS);
    THEN_IF(status, !(cells = calloc(cell_count, sizeof *cells)), status_no_memory());
    for (size_t i = 0; i < tensor->count && !status && are_apart; i++)
        are_apart = mark_cells(&boxes->items[tensor->first + i], axes, t->dims, cells, &marked);
    if (!status && (!are_apart || marked != cell_count))
        status = status_fail(STATUS_INVALID, "%s: the parts of tensor '%.200s' %s", boxes->directory, t->name,
                             are_apart ? "do not cover it" : "overlap");
    for (int i = 0; i < t->dims; i++)
        free(axes[i].cuts);
    free(cells);
    return status;
}

static int check_tensor(const struct boxes *boxes, const struct box_tensor *tensor) {
    const struct safetensor *t = &tensor->tensor;
    for (size_t i = 0; i < tensor->count; i++) {
        const struct box *box = &boxes->items[tensor->first + i];
        for (int dim = 0; dim < t->dims; dim++)
            if (box->offsets[dim] > t->shape[dim] || box->sizes[dim] > t->shape[dim] - box->offsets[dim])
                return status_fail(STATUS_INVALID, "%s: a part of tensor '%.200s' lies outside of it", boxes->directory,
                                   t->name);
    }
    if (!t->elements)
        return STATUS_OK;
    return check_cover(boxes, tensor);
}

/* ---- reading ---- */

/* Reads a box's description, and compares it with what the directory says. */
static int prepare_box(const struct boxes *boxes, const struct box_tensor *tensor, struct box *box) {
    char path[PATH_MAX];
    const struct box_file *file = &boxes->files[box->file];
    const struct safetensor *t = &tensor->tensor;
    struct torch_tensor found;
    if (!box->is_archive)
        return STATUS_OK;
    TRY(file_join(path, sizeof path, boxes->directory, file->name));
    TRY(torch_tensor_read(path, file->descriptor, box->start, box->bytes, &found));
    if (strcmp(found.type, t->type) || found.dims != t->dims ||
        memcmp(found.shape, box->sizes, (size_t)t->dims * sizeof *box->sizes))
        return status_fail(STATUS_INVALID, "%s: byte %lld: expected the type and shape that .metadata has for '%.200s'",
                           path, (long long)box->start, t->name);
    TRY(torch_tensor_check(path, file->descriptor, &found));
    box->start = found.start;
    box->is_transposed = found.is_transposed;
    box->is_archive = false;
    return STATUS_OK;
}

static int prepare(void *context, size_t index) {
    struct boxes *boxes = context;
    struct box_tensor *tensor = &boxes->tensors[index];
    int status = STATUS_OK;
    if (atomic_load(&tensor->is_prepared))
        return STATUS_OK;
    pthread_mutex_lock(&boxes->lock);
    for (size_t i = 0; i < tensor->count && !status; i++)
        status = prepare_box(boxes, tensor, &boxes->items[tensor->first + i]);
    if (!status)
        atomic_store(&tensor->is_prepared, true);
    pthread_mutex_unlock(&boxes->lock);
    return status;
}

/* Elements [first, end) of a tensor, and where they go. */
struct range {
    const struct boxes *boxes;
    const struct box_tensor *tensor;
    const struct box *box;
    int64_t first, end;
    char *out;
};

static int read_file(const struct range *r, int64_t element, int64_t count, void *out) {
    char path[PATH_MAX];
    const struct box_file *file = &r->boxes->files[r->box->file];
    snprintf(path, sizeof path, "%s/%s", r->boxes->directory, file->name);
    return file_pread_all(file->descriptor, out, (size_t)(count * r->tensor->width),
                          r->box->start + element * r->tensor->width, path);
}

/* Puts elements that follow each other in the tensor, from its element `at` on, where they go. */
static void put(const struct range *r, int64_t at, int64_t count, const char *values) {
    int64_t from = at > r->first ? at : r->first, to = at + count < r->end ? at + count : r->end;
    int64_t width = r->tensor->width;
    if (from < to)
        memcpy(r->out + (from - r->first) * width, values + (from - at) * width, (size_t)((to - from) * width));
}

/* The runs of a box: `length` elements that lie together in the tensor and in the box. */
struct runs {
    int axis; /* that a run begins at */
    int64_t length, count;
    int64_t strides[SAFETENSORS_MAX_DIMS];
};

static struct runs runs_of(const struct range *r) {
    const struct safetensor *t = &r->tensor->tensor;
    struct runs runs = {.length = 1, .count = 1};
    int64_t stride = 1;
    for (int i = t->dims - 1; i >= 0; i--) {
        runs.strides[i] = stride;
        stride *= t->shape[i];
    }
    int axis = t->dims - 1;
    while (axis > 0 && r->box->sizes[axis] == t->shape[axis])
        axis--;
    runs.axis = axis > 0 ? axis : 0;
    for (int i = 0; i < t->dims; i++)
        *(i < runs.axis ? &runs.count : &runs.length) *= r->box->sizes[i];
    return runs;
}

/* Returns the tensor's element where a run begins. */
static int64_t run_start(const struct range *r, const struct runs *runs, int64_t run) {
    int64_t start = r->tensor->tensor.dims ? r->box->offsets[runs->axis] * runs->strides[runs->axis] : 0;
    for (int i = runs->axis - 1; i >= 0; i--) {
        start += (r->box->offsets[i] + run % r->box->sizes[i]) * runs->strides[i];
        run /= r->box->sizes[i];
    }
    return start;
}

/* Returns the first run from `low` on that ends after an element of the tensor. */
static int64_t find_run(const struct range *r, const struct runs *runs, int64_t element) {
    int64_t low = 0, high = runs->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (run_start(r, runs, middle) + runs->length > element)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Reads short runs, which follow each other in the file, many at once. */
static int read_short_runs(const struct range *r, const struct runs *runs) {
    char values[SCATTERED_BYTES];
    int64_t at_once = SCATTERED_BYTES / (runs->length * r->tensor->width);
    int64_t end = find_run(r, runs, r->end - 1);
    end += end < runs->count && run_start(r, runs, end) < r->end;
    int status = STATUS_OK;
    for (int64_t run = find_run(r, runs, r->first); run < end && !status; run += at_once) {
        int64_t n = end - run < at_once ? end - run : at_once;
        status = read_file(r, run * runs->length, n * runs->length, values);
        for (int64_t i = 0; i < n && !status; i++)
            put(r, run_start(r, runs, run + i), runs->length, values + i * runs->length * r->tensor->width);
    }
    return status;
}

static int read_rows(const struct range *r) {
    struct runs runs = runs_of(r);
    if (runs.length * r->tensor->width <= SCATTERED_BYTES / 4)
        return read_short_runs(r, &runs);
    int status = STATUS_OK;
    for (int64_t run = find_run(r, &runs, r->first); run < runs.count && !status; run++) {
        int64_t start = run_start(r, &runs, run), end = start + runs.length;
        int64_t from = start > r->first ? start : r->first, to = end < r->end ? end : r->end;
        if (from >= to)
            break;
        status =
            read_file(r, run * runs.length + from - start, to - from, r->out + (from - r->first) * r->tensor->width);
    }
    return status;
}

/* Reads from a box that lies column by column: the rows that the range touches, from every column. */
static int read_columns(const struct range *r) {
    char values[SCATTERED_BYTES];
    const struct box *box = r->box;
    int64_t width = r->tensor->width, stride = r->tensor->tensor.shape[1], most = SCATTERED_BYTES / width;
    int64_t first = r->first / stride - box->offsets[0], end = (r->end - 1) / stride + 1 - box->offsets[0];
    first = first > 0 ? first : 0;
    end = end < box->sizes[0] ? end : box->sizes[0];
    int status = STATUS_OK;
    for (int64_t column = 0; column < box->sizes[1]; column++)
        for (int64_t row = first; row < end && !status; row += most) {
            int64_t n = end - row < most ? end - row : most;
            status = read_file(r, column * box->sizes[0] + row, n, values);
            for (int64_t i = 0; i < n && !status; i++)
                put(r, (box->offsets[0] + row + i) * stride + box->offsets[1] + column, 1, values + i * width);
        }
    return status;
}

static int read_bytes(void *context, size_t index, int64_t first, size_t length, void *out) {
    const struct boxes *boxes = context;
    const struct box_tensor *tensor = &boxes->tensors[index];
    struct range range = {.boxes = boxes,
                          .tensor = tensor,
                          .first = first / tensor->width,
                          .end = (first + (int64_t)length) / tensor->width,
                          .out = out};
    int status = STATUS_OK;
    for (size_t i = 0; i < tensor->count && length && !status; i++) {
        range.box = &boxes->items[tensor->first + i];
        status = range.box->is_transposed ? read_columns(&range) : read_rows(&range);
    }
    return status;
}

static void close_boxes(void *boxes) {
    boxes_free(boxes);
}

/* ---- opening ---- */

static int make_tensors(struct boxes *boxes, struct ckpt_tensors **tensors) {
    struct tensor_source source = {.prepare = prepare, .read = read_bytes, .close = close_boxes, .context = boxes};
    struct safetensor *list = calloc(boxes->tensor_count + 1, sizeof *list);
    TRY(status_allocated(list));
    for (size_t i = 0; i < boxes->tensor_count; i++)
        list[i] = boxes->tensors[i].tensor;
    int status = ckpt_open_source(boxes->directory, list, boxes->tensor_count, &source, tensors);
    free(list);
    return status;
}

int boxes_open(struct boxes *boxes, struct ckpt_tensors **tensors) {
    int status = STATUS_OK;
    *tensors = NULL;
    for (size_t i = 0; i < boxes->tensor_count && !status; i++)
        status = check_tensor(boxes, &boxes->tensors[i]);
    THEN(status, make_tensors(boxes, tensors));
    if (status)
        boxes_free(boxes);
    return status;
}
