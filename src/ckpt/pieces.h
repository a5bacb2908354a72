/* Reads that threads share. */
#pragma once

#include <stdint.h>

/* Calls read(context, first, count) for pieces of `at_once` items, the last one shorter, until all `count` items are
 * read. Threads share the pieces. Returns an error of `read`; its text is that of the first piece that fails. */
int ckpt_read_pieces(int64_t count, int64_t at_once, int (*read)(const void *context, int64_t first, int64_t count),
                     const void *context);
