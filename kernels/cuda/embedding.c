/* Launches of the embedding's backward. It sorts the rows by their tokens, and again by their positions. Then a block
 * sums the rows of each one that occurs, so that the sums have the CPU's order. */
#include "cuda/embedding.h"
#include "cuda/kernels.h"

/* Two sorted orders, each of rows and runs. */
size_t cuda_embedding_backward_workspace(struct device *device, const struct embedding *a) {
    return 4 * (size_t)a->rows * sizeof(int32_t);
}

static int sort(const struct exec *exec, const struct embedding_order *order) {
    int64_t blocks = (order->rows + EMBEDDING_THREADS - 1) / EMBEDDING_THREADS;
    return cuda_launch_blocks(exec, CUDA_embedding_backward_order, DTYPE_F32, blocks, EMBEDDING_THREADS, order);
}

static int scatter(const struct exec *exec, const struct embedding *a, const struct embedding_scatter *call) {
    return cuda_launch_rows(exec, CUDA_embedding_backward, a->type, a->rows, a->cols, call);
}

int cuda_embedding_backward(const struct exec *exec, const struct embedding *a) {
    int32_t *memory = exec->workspace;
    struct embedding_scatter call = {
        .sorted = {.rows = a->rows, .keys = a->tokens, .order = memory, .run = memory + a->rows},
        .cols = a->cols,
        .dx = a->dx,
        .table = a->dtoken_table,
        .first_entry = a->first_token,
        .entries = a->token_count || !a->virtual_tokens ? a->token_count : a->first_virtual};
    float *virtual_table = a->virtual_tokens ? a->dvirtual_table : NULL;
    int status = call.table || virtual_table ? sort(exec, &call.sorted) : STATUS_OK;
    THEN_IF(status, call.table, scatter(exec, a, &call));
    call.table = virtual_table, call.first_entry = a->first_virtual, call.entries = a->virtual_tokens;
    THEN_IF(status, call.table, scatter(exec, a, &call));
    call.sorted = (struct embedding_order){a->rows, a->positions, memory + 2 * a->rows, memory + 3 * a->rows};
    call.table = a->dposition_table, call.first_entry = call.entries = 0;
    THEN_IF(status, call.table, sort(exec, &call.sorted));
    return !status && call.table ? scatter(exec, a, &call) : status;
}
