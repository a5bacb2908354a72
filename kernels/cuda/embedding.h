/* Arguments of the kernels of the embedding's backward. */
#pragma once

#include "kernels/ops.h"

/* Rows that a block puts in order, one a thread, and rows that it compares them with at a time. */
enum { EMBEDDING_THREADS = 64, EMBEDDING_TILE = 4 * EMBEDDING_THREADS };

/* Rows sorted by their key; rows of one key, which are a run, keep their order. */
struct embedding_order {
    int64_t rows;
    const int32_t *keys; /* [N] */
    int32_t *order;      /* [N] out: the row at each place */
    int32_t *run;        /* [N] out: the rows of the run that begins at each place; 0: none begins */
};

/* table[key - first_entry] += the rows of dx of each run, in their order. */
struct embedding_scatter {
    struct embedding_order sorted;
    int64_t cols;
    const void *dx;               /* [N,C] */
    float *table;                 /* [.., C] */
    int64_t first_entry, entries; /* entries 0: every key that occurs is in the table */
};
