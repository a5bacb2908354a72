/* Upper, title and lower case of characters outside ASCII, as Python has them: a generated table. */
#ifndef CAMBIUM_TEXT_UNICODE_CASES_INTERNAL_H
#define CAMBIUM_TEXT_UNICODE_CASES_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

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
enum { UNICODE_UPPER, UNICODE_TITLE, UNICODE_LOWER };
extern const struct unicode_case_table unicode_cases[3];

#endif
