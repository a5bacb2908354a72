/* Characters outside ASCII that have another case: a generated table, which case.c reads. */
#ifndef CAMBIUM_UNICODE_CASE_TABLE_INTERNAL_H
#define CAMBIUM_UNICODE_CASE_TABLE_INTERNAL_H

#include "case.h"

#include <stddef.h>

struct unicode_case_run {
    uint32_t first, last, step;
    int32_t difference;
};
struct unicode_case_many {
    uint32_t point, to[3];
};
struct unicode_case_table {
    const struct unicode_case_run *runs; /* [run_count], in order */
    size_t run_count;
    const struct unicode_case_many *many; /* [many_count], in order */
    size_t many_count;
};
extern const struct unicode_case_table unicode_cases[UNICODE_CASES];

#endif
