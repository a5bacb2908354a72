/* A step of the exchange: each rank fills at most one of its chunks, from its memory and from the others' messages. The
 * sender converts values to the file's orientation: the host in blocks that stay in a core's cache, or a stream, for
 * which nobody waits before the values are needed. */
#include "save-internal.h"

#include "base/smaller.h"

enum {
    BLOCK_ELEMENTS = SAVE_SCRATCH_BYTES / sizeof(float),
    LINES = 64, /* of the file, in a transposed block: the length of the runs in memory */
};

/* The destination of a cell's elements: its rows are `stride` elements apart. */
struct target {
    char *at;
    int64_t stride;
};

static const struct file_tensor *tensor_of(const struct save_exchange *x, const struct save_cell *cell) {
    const struct write_plan *plan = &x->plans[cell->plan];
    return &plan->tensors[plan->pieces[cell->piece].tensor];
}

static int64_t width_of(const struct save_exchange *x, const struct save_cell *cell) {
    return (int64_t)dtype_bytes(tensor_of(x, cell)->dtype);
}

static const struct ckpt_array *source_of(const struct save_exchange *x, const struct save_cell *cell) {
    const struct write_plan *plan = &x->plans[cell->plan];
    return &plan->request.arrays[plan->pieces[cell->piece].array];
}

/* Queues the copy of a block to its place in a chunk, which has its transposition if `is_transposed`. */
static int queue_block(const struct save_exchange *x, const struct ckpt_array *array, const struct ckpt_block *block,
                       bool is_transposed, struct target to) {
    size_t width = dtype_bytes(array->dtype), stride = (size_t)to.stride * width;
    if (!is_transposed)
        return array->queue(array->context, block, &(const struct ckpt_target){to.at, stride, COPY_TO_HOST});
    const struct transpose turn = {.rows = block->rows,
                                   .cols = block->columns,
                                   .type = array->dtype,
                                   .x = x->turning,
                                   .y = x->turning + CKPT_DEVICE_BYTES / 2};
    size_t line = (size_t)block->rows * width;
    const struct ckpt_target packed = {x->turning, (size_t)block->columns * width, COPY_ON_DEVICE};
    int status = array->queue(array->context, block, &packed);
    if (!status)
        status = ops_for(stream_device(x->stream))->transpose(&(const struct exec){.stream = x->stream}, &turn);
    return status ? status
                  : stream_copy_rows(x->stream, &(const struct copy_call){.kind = COPY_TO_HOST,
                                                                          .to = to.at,
                                                                          .from = turn.y,
                                                                          .rows = (size_t)block->columns,
                                                                          .bytes = line,
                                                                          .to_stride = stride,
                                                                          .from_stride = line});
}

/* Copies a part of a cell. */
static int copy_block(const struct save_exchange *x, const struct save_cell *part, struct target to, char *scratch) {
    const struct write_plan *plan = &x->plans[part->plan];
    const struct write_piece *piece = &plan->pieces[part->piece];
    const struct param_slice *slice = &plan->request.table->rows[piece->param].slices[piece->slice];
    const struct ckpt_array *array = source_of(x, part);
    size_t width = dtype_bytes(array->dtype), line = (size_t)part->columns * width;
    int64_t place = slice->row - slice->file_start;
    struct ckpt_block block = {.param = piece->param};
    if (slice->is_transposed) {
        block.row = part->column + place;
        block.rows = part->columns;
        block.column = part->row;
        block.columns = part->rows;
    } else {
        block.row = part->row + place;
        block.rows = part->rows;
        block.column = part->column;
        block.columns = part->columns;
    }
    bool is_turned = slice->is_transposed && !array->is_as_in_files;
    if (array->queue)
        return queue_block(x, array, &block, is_turned, to);
    bool is_direct = !is_turned && (part->rows == 1 || part->columns == to.stride);
    int status = array->get(array->context, &block, is_direct ? to.at : scratch);
    if (status || is_direct)
        return status;
    if (is_turned) {
        transpose(scratch, block.rows, block.columns, width, to.at, to.stride);
        return STATUS_OK;
    }
    for (int64_t r = 0; r < part->rows; r++)
        memcpy(to.at + (size_t)(r * to.stride) * width, scratch + (size_t)r * line, line);
    return STATUS_OK;
}

/* A thread's share of the blocks: those whose number is `index` modulo `count`. */
struct share {
    const struct save_exchange *exchange;
    int index, count;
    char *scratch;
};

/* Returns the maximum number of elements that are copied at once. */
static int64_t most_elements(const struct ckpt_array *array, bool is_transposed) {
    if (!array->queue)
        return BLOCK_ELEMENTS;
    return is_transposed ? CKPT_DEVICE_BYTES / 2 / (int64_t)dtype_bytes(array->dtype) : INT64_MAX;
}

/* Copies its blocks of a cell; numbers continue from *number. */
static int copy_cell(const struct share *share, const struct save_cell *cell, struct target to, int64_t *number) {
    const struct save_exchange *x = share->exchange;
    const struct write_plan *plan = &x->plans[cell->plan];
    const struct write_piece *piece = &plan->pieces[cell->piece];
    const struct param_slice *slice = &plan->request.table->rows[piece->param].slices[piece->slice];
    const struct ckpt_array *array = source_of(x, cell);
    bool is_turned = slice->is_transposed && !array->is_as_in_files;
    int64_t width = width_of(x, cell), most = most_elements(array, is_turned), rows, columns;
    if (is_turned) {
        rows = smaller(cell->rows, LINES);
        columns = smaller(cell->columns, most / rows);
    } else {
        columns = smaller(cell->columns, most);
        rows = smaller(cell->rows, most / columns);
    }
    for (int64_t row = 0; row < cell->rows; row += rows)
        for (int64_t column = 0; column < cell->columns; column += columns) {
            if ((*number)++ % share->count != share->index)
                continue;
            struct save_cell part = *cell;
            part.row += row;
            part.rows = smaller(rows, cell->rows - row);
            part.column += column;
            part.columns = smaller(columns, cell->columns - column);
            struct target at = {to.at + (row * to.stride + column) * width, to.stride};
            TRY(copy_block(x, &part, at, share->scratch));
        }
    return STATUS_OK;
}

/* Cells [first, end) of those that are given, into a chunk or, with `is_dense`, one after the other. */
struct copying {
    const struct save_exchange *exchange;
    int64_t first, end;
    char *to;
    bool is_dense;
};

static int copy_share(const struct copying *copying, int thread, int index, int count) {
    const struct save_exchange *x = copying->exchange;
    struct share share = {x, index, count, x->scratch + (size_t)thread * SAVE_SCRATCH_BYTES};
    int64_t number = 0, at = 0;
    for (int64_t i = copying->first; i < copying->end; i++) {
        const struct save_cell *cell = &x->gives.items[i];
        const struct file_tensor *tensor = tensor_of(x, cell);
        struct target to = {copying->to + cell->at, tensor->dims == 2 ? tensor->shape[1] : 1};
        if (copying->is_dense)
            to = (struct target){copying->to + at, cell->columns};
        TRY(copy_cell(&share, cell, to, &number));
        at += cell->rows * cell->columns * width_of(x, cell);
    }
    return STATUS_OK;
}

/* Returns how many threads the arrays of some cells allow. */
static int threads_for(const struct save_exchange *x, int64_t first, int64_t end) {
    int threads = x->threads;
    for (int64_t i = first; i < end; i++) {
        const struct ckpt_array *array = source_of(x, &x->gives.items[i]);
        int most = array->threads > 0 ? array->threads : 1;
        threads = most < threads ? most : threads;
    }
    return threads;
}

/* Uses as many threads as the arrays allow; the first one's failure becomes this thread's text. */
static int copy_all(const struct copying *copying) {
    const struct save_exchange *x = copying->exchange;
    int threads = threads_for(x, copying->first, copying->end), result = STATUS_OK;
    char text[1024] = "";
    if (threads == 1)
        return copy_share(copying, 0, 0, 1);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++) {
        int status = copy_share(copying, t, t, threads);
        if (status) {
#pragma omp critical(save_failure)
            {
                snprintf(text, sizeof text, "%s", status_text());
                result = status;
            }
        }
    }
    return result ? status_fail(result, "%s", text) : STATUS_OK;
}

/* Returns the first of the given cells from step `step` on. */
static int64_t first_of_step(const struct save_exchange *x, int64_t step) {
    int64_t low = 0, high = x->gives.count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (x->gives.items[middle].step < step)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void save_exchange_alone(struct save_exchange *x, int64_t step, int64_t count, char *chunks,
                         struct save_failure *failure) {
    int64_t first = first_of_step(x, step), end = first_of_step(x, step + count);
    int threads = threads_for(x, first, end);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++)
        for (int64_t i = t; i < count; i += threads) {
            struct copying copying = {x, first_of_step(x, step + i), first_of_step(x, step + i + 1),
                                      chunks + i * x->files->chunk_bytes, false};
            int status = copy_share(&copying, t, 0, 1);
            if (status) {
#pragma omp critical(save_failure)
                save_failure_note(failure, status);
            }
        }
}

void save_exchange_wait(struct save_exchange *x, struct save_failure *failure) {
    if (x->stream)
        save_failure_note(failure, stream_wait(x->stream));
}

void save_failure_note(struct save_failure *failure, int status) {
    if (!status || failure->status)
        return;
    failure->status = status;
    snprintf(failure->text, sizeof failure->text, "%s", status_text());
}

/* ---- messages ---- */

/* Returns the end of the cells of this step and shift, from `next` on. */
static int64_t end_of(const struct save_cells *cells, int64_t next, int64_t step, int shift) {
    while (next < cells->count && cells->items[next].step == step && cells->items[next].shift == shift)
        next++;
    return next;
}

static int64_t bytes_of(const struct save_exchange *x, const struct save_cells *cells, int64_t first, int64_t end) {
    int64_t bytes = 0;
    for (; first < end; first++)
        bytes += cells->items[first].rows * cells->items[first].columns * width_of(x, &cells->items[first]);
    return bytes;
}

/* Copies a message's cells to their places in the chunk. */
static void place(const struct save_exchange *x, int64_t first, int64_t end, char *chunk) {
    const char *from = x->taking;
    for (; first < end; first++) {
        const struct save_cell *cell = &x->takes.items[first];
        const struct file_tensor *tensor = tensor_of(x, cell);
        int64_t width = width_of(x, cell), stride = (tensor->dims == 2 ? tensor->shape[1] : 1) * width;
        int64_t line = cell->columns * width, rows = cell->rows;
        if (line == stride) {
            line *= rows;
            rows = 1;
        }
        for (int64_t r = 0; r < rows; r++, from += line)
            memcpy(chunk + cell->at + r * stride, from, (size_t)line);
    }
}

/* Sends one message to the rank `shift` ahead, and receives one from the rank `shift` before; either may be empty. */
static int exchange_shift(struct save_exchange *x, int64_t step, int shift, char *chunk, struct save_failure *failure) {
    int64_t give_end = end_of(&x->gives, x->next_give, step, shift);
    int64_t take_end = end_of(&x->takes, x->next_take, step, shift);
    struct comm_request sending = {0}, receiving = {0};
    bool has_received = false, has_sent = false;
    int result = STATUS_OK;
    if (take_end > x->next_take) {
        struct comm_data data = {
            .receive = x->taking, .count = bytes_of(x, &x->takes, x->next_take, take_end), .dtype = DTYPE_U8};
        result = comm_receive_start(x->world, &data, x->takes.items[x->next_take].peer, &receiving);
        has_received = !result;
    }
    if (!result && give_end > x->next_give) {
        struct copying copying = {x, x->next_give, give_end, x->giving, true};
        struct comm_data data = {
            .send = x->giving, .count = bytes_of(x, &x->gives, x->next_give, give_end), .dtype = DTYPE_U8};
        if (!failure->status)
            save_failure_note(failure, copy_all(&copying));
        save_exchange_wait(x, failure);
        result = comm_send_start(x->world, &data, x->gives.items[x->next_give].peer, &sending);
        has_sent = !result;
    }
    int sent = has_sent ? comm_wait(&sending) : STATUS_OK; /* also after a failure: the buffers are free only then */
    int received = has_received ? comm_wait(&receiving) : STATUS_OK;
    if (!result)
        result = sent ? sent : received;
    if (!result && !failure->status)
        place(x, x->next_take, take_end, chunk);
    x->next_give = give_end;
    x->next_take = take_end;
    return result;
}

/* Returns the minimum shift with work in this step; -1: none. */
static int next_shift(const struct save_exchange *x, int64_t step) {
    const struct save_cell *give = x->next_give < x->gives.count ? &x->gives.items[x->next_give] : NULL;
    const struct save_cell *take = x->next_take < x->takes.count ? &x->takes.items[x->next_take] : NULL;
    int shift = give && give->step == step ? give->shift : -1;
    return take && take->step == step && (shift < 0 || take->shift < shift) ? take->shift : shift;
}

int save_exchange_step(struct save_exchange *x, int64_t step, char *chunk, struct save_failure *failure) {
    int64_t self_end = end_of(&x->gives, x->next_give, step, 0);
    struct copying to_self = {x, x->next_give, self_end, chunk, false};
    if (!failure->status)
        save_failure_note(failure, copy_all(&to_self));
    x->next_give = self_end;
    for (int shift; (shift = next_shift(x, step)) >= 0;) {
        int result = exchange_shift(x, step, shift, chunk, failure);
        if (result)
            return result;
    }
    return STATUS_OK;
}
