/* The usual array: one flat block on a device, read and written in pieces through its stream. */
#include "ckpt-internal.h"

/* Calls copy() for each run of the block that is contiguous in the flat array. */
static int copy_runs(struct ckpt_flat *flat, const struct ckpt_block *block, char *values,
                     int (*copy)(struct stream *, char *memory, char *values, size_t bytes)) {
    int64_t width = (int64_t)dtype_bytes(flat->dtype), all_columns = flat->table->rows[block->param].shape[1];
    int64_t runs = block->rows, run = block->columns;
    if (run == all_columns) {
        run *= runs;
        runs = 1;
    }
    int64_t at = flat->offset[block->param] + block->row * all_columns + block->column;
    int status = STATUS_OK;
    for (int64_t i = 0; i < runs && !status; i++)
        status = copy(flat->stream, (char *)flat->memory + (at + i * all_columns) * width, values + i * run * width,
                      (size_t)(run * width));
    int waited = stream_wait(flat->stream);
    return status ? status : waited;
}

static int copy_out(struct stream *stream, char *memory, char *values, size_t bytes) {
    return stream_copy_to_host(stream, values, memory, bytes);
}

static int copy_in(struct stream *stream, char *memory, char *values, size_t bytes) {
    return stream_copy_to_device(stream, memory, values, bytes);
}

static int flat_get(void *context, const struct ckpt_block *block, void *values) {
    return copy_runs(context, block, values, copy_out);
}

static int flat_put(void *context, const struct ckpt_block *block, const void *values) {
    return copy_runs(context, block, (char *)values, copy_in);
}

struct ckpt_array ckpt_flat_array(struct ckpt_flat *flat, const char *prefix, bool only_trainable) {
    return (struct ckpt_array){.prefix = prefix,
                               .dtype = flat->dtype,
                               .only_trainable = only_trainable,
                               .get = flat_get,
                               .put = flat_put,
                               .context = flat};
}
