/* Finds a character in the generated table of cases; ASCII is arithmetic. */
#include "case_table-internal.h"

#include <stdbool.h>
#include <string.h>

static const struct unicode_case_many *find_many(const struct unicode_case_table *table, uint32_t point) {
    size_t low = 0, high = table->many_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table->many[middle].point < point)
            low = middle + 1;
        else
            high = middle;
    }
    return low < table->many_count && table->many[low].point == point ? &table->many[low] : NULL;
}

static uint32_t find_one(const struct unicode_case_table *table, uint32_t point) {
    size_t low = 0, high = table->run_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table->runs[middle].last < point)
            low = middle + 1;
        else
            high = middle;
    }
    const struct unicode_case_run *run = low < table->run_count ? &table->runs[low] : NULL;
    bool is_in = run && point >= run->first && (point - run->first) % run->step == 0;
    return is_in ? (uint32_t)((int32_t)point + run->difference) : point;
}

void unicode_change_case(uint32_t point, enum unicode_case which, uint32_t to[3]) {
    const struct unicode_case_table *table = &unicode_cases[which];
    const struct unicode_case_many *many = point >= 0x80 ? find_many(table, point) : NULL;
    memset(to, 0, 3 * sizeof *to);
    if (many)
        memcpy(to, many->to, sizeof many->to);
    else if (point >= 0x80)
        to[0] = find_one(table, point);
    else if (which == UNICODE_TO_LOWER)
        to[0] = point >= 'A' && point <= 'Z' ? point + 32 : point;
    else
        to[0] = point >= 'a' && point <= 'z' ? point - 32 : point;
}
