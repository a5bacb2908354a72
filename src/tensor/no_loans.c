/* Replaces loans.c in builds that do not count loans. */
#include "loans-internal.h"

int loans_open(struct param_loans **loans, const struct param_table *table) {
    *loans = NULL;
    return STATUS_OK;
}

void loans_close(struct param_loans *loans) {
}

void loans_lend(struct param_loans *loans, int id, bool to_write) {
}

void loans_return(struct param_loans *loans, int id) {
}

void loans_travel(struct param_loans *loans, int id, bool travels) {
}

void loans_set_absent(struct param_loans *loans, int unit, bool is_absent) {
}

void loans_check(const struct param_loans *loans, const char *after) {
}
