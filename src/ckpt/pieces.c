/* Reads that threads share. */
#include "ckpt/pieces.h"

#include "base/base.h"
#include "base/smaller.h"

int ckpt_read_pieces(int64_t count, int64_t at_once, int (*read)(const void *context, int64_t first, int64_t count),
                     const void *context) {
    int64_t failed = count;
    int status = STATUS_OK;
#pragma omp parallel for num_threads(usable_cores()) schedule(static) reduction(min                                    \
                                                                                : failed, status) if (count > at_once)
    for (int64_t at = 0; at < count; at += at_once) {
        int one = read(context, at, smaller(at_once, count - at));
        failed = one && at < failed ? at : failed;
        status = one < status ? one : status;
    }
    /* An error's text belongs to its thread, so this thread repeats the reads from the one that failed on. */
    status = status == STATUS_MEMORY ? status_no_memory() : STATUS_OK;
    for (int64_t at = failed; at < count && !status; at += at_once)
        status = read(context, at, smaller(at_once, count - at));
    return status;
}
