/* Checks that the rectangles of all ranks cover each tensor exactly once. A count of elements by itself would miss a
 * hole that is as large as a part written twice. So each row and each column of a tensor has a random word as its
 * length, and a rectangle's measure is the product of its sides, modulo 2^64. Measures of adjacent rectangles add up to
 * that of the whole; other sets do so only by a chance of about 2^-64. Ranks then need to exchange two numbers a
 * tensor. */
#include "ckpt-internal.h"

#include <inttypes.h>

/* Returns the start of row or column `at` on an axis whose steps have random lengths. */
static uint64_t mark(uint32_t axis, int64_t at) {
    struct philox r = philox(0, (uint32_t)at, (uint32_t)(at >> 32), axis, 0);
    return (uint64_t)r.word[0] << 32 | r.word[1];
}

static void add(struct write_share *share, int64_t row, int64_t rows, int64_t column, int64_t columns) {
    uint64_t height = mark(0, row + rows) - mark(0, row), width = mark(1, column + columns) - mark(1, column);
    share->elements += rows * columns;
    share->measure = (int64_t)((uint64_t)share->measure + height * width);
}

static void add_piece(struct write_plan *plan, const struct write_piece *piece) {
    const struct param *param = &plan->request.table->rows[piece->param];
    const struct param_slice *slice = &param->slices[piece->slice];
    const struct ckpt_array *array = &plan->request.arrays[piece->array];
    struct ckpt_block rects[CKPT_MAX_RECTS];
    int count = array->is_copy ? 0 : slice_rects(array, param, slice, piece->param, rects);
    for (int i = 0; i < count; i++)
        add(&plan->shares[piece->tensor], slice->file_start + rects[i].row - slice->row, rects[i].rows, rects[i].column,
            rects[i].columns);
}

static int check_tensor(const struct file_tensor *tensor, const struct write_share *share) {
    struct write_share whole = {0};
    add(&whole, 0, tensor->rows, 0, tensor->columns);
    if (share->elements != whole.elements)
        return status_fail(STATUS_INVALID,
                           "cannot write tensor %s: it has %" PRId64 " elements, and its owners have %" PRId64,
                           tensor->name, whole.elements, share->elements);
    if (share->measure != whole.measure)
        return status_fail(STATUS_INVALID,
                           "cannot write tensor %s: some of its elements have two owners and some have none",
                           tensor->name);
    return STATUS_OK;
}

int write_plan_check_owners(struct write_plan *plan, struct comm *world) {
    int status = STATUS_OK;
    for (int i = 0; i < plan->piece_count; i++)
        add_piece(plan, &plan->pieces[i]);
    _Static_assert(sizeof *plan->shares == 2 * sizeof(int64_t), "shares are summed as pairs of numbers");
    struct comm_data data = {
        .send = plan->shares, .receive = plan->shares, .count = 2 * (int64_t)plan->tensor_count, .dtype = DTYPE_I64};
    if (world)
        status = comm_all_reduce(world, &data, COMM_SUM);
    for (int i = 0; i < plan->tensor_count && !status; i++)
        status = check_tensor(&plan->tensors[i], &plan->shares[i]);
    return status;
}
