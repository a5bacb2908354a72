/* Counts loans by parameter. A mistake ends the program with the parameter's name. */
#include "loans-internal.h"

struct param_loans {
    const struct param_table *table;
    struct loan {
        int open;
        bool to_write, travels, is_absent;
    } of[]; /* [table count] */
};

static _Noreturn void stop(const struct param_loans *loans, int id, const char *what, const char *after) {
    log_error("weight '%s' %s%s", loans->table->rows[id].name, what, after);
    abort();
}

int loans_open(struct param_loans **loans, const struct param_table *table) {
    *loans = calloc(1, sizeof **loans + (size_t)table->count * sizeof *(*loans)->of);
    TRY(status_allocated(*loans));
    (*loans)->table = table;
    return STATUS_OK;
}

void loans_close(struct param_loans *loans) {
    if (loans)
        loans_check(loans, "its store was closed");
    free(loans);
}

void loans_lend(struct param_loans *loans, int id, bool to_write) {
    struct loan *loan = &loans->of[id];
    if (loan->travels)
        stop(loans, id, "is borrowed before it has arrived from other ranks", "");
    if (loan->is_absent)
        stop(loans, id, "is borrowed while this rank has only a share of it", "");
    if (loan->open && to_write)
        stop(loans, id, "is borrowed to be written while it is on loan", "");
    if (loan->open && loan->to_write)
        stop(loans, id, "is borrowed while it is being written", "");
    loan->open++;
    loan->to_write = to_write;
}

void loans_return(struct param_loans *loans, int id) {
    struct loan *loan = &loans->of[id];
    if (!loan->open)
        stop(loans, id, "is given back and was not borrowed", "");
    loan->open--;
}

void loans_travel(struct param_loans *loans, int id, bool travels) {
    struct loan *loan = &loans->of[id];
    if (loan->open)
        stop(loans, id, "is on loan while it travels", "");
    loan->travels = travels;
}

void loans_set_absent(struct param_loans *loans, int unit, bool is_absent) {
    for (int id = 0; id < loans->table->count; id++) {
        if (loans->table->rows[id].layer != unit)
            continue;
        if (loans->of[id].open)
            stop(loans, id, "is on loan while its unit is resharded", "");
        loans->of[id].is_absent = is_absent;
    }
}

void loans_check(const struct param_loans *loans, const char *after) {
    for (int id = 0; id < loans->table->count; id++)
        if (loans->of[id].open)
            stop(loans, id, "is still on loan after ", after);
}
