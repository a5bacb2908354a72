/* The list of all operations that a template can name, for tests of their charges. */
#include "jinja-internal.h"

static const char *const groups[] = {"filter",      "filter",      "test",        "function", "method str",
                                     "method dict", "method list", "method loop", "operator", "access"};
enum { GROUPS = sizeof groups / sizeof *groups };

/* Returns row `i` of a group; a NULL name ends it. */
static struct jinja_costs row_of(size_t group, size_t i) {
    static const struct jinja_method *const methods[] = {jinja_string_methods, jinja_dict_methods, jinja_list_methods,
                                                         jinja_loop_methods};
    static const struct jinja_costs end = {NULL, JINJA_COST_NOTHING};
    switch (group) {
    case 0:
        return (struct jinja_costs){jinja_value_filters[i].name, jinja_value_filters[i].cost};
    case 1:
        return (struct jinja_costs){jinja_list_filters[i].name, jinja_list_filters[i].cost};
    case 2:
        return (struct jinja_costs){jinja_tests[i].name, jinja_tests[i].cost};
    case 3:
        return (struct jinja_costs){jinja_functions[i].name, jinja_functions[i].cost};
    case GROUPS - 2:
        return i < OPERATOR_COUNT ? jinja_operators[i] : end;
    case GROUPS - 1:
        return i < JINJA_ACCESS_COUNT ? jinja_accesses[i] : end;
    default:
        return (struct jinja_costs){methods[group - 4][i].name, methods[group - 4][i].cost};
    }
}

bool jinja_operation(size_t i, struct jinja_operation *operation) {
    for (size_t group = 0; group < GROUPS; group++)
        for (size_t row = 0; row_of(group, row).name; row++, i--)
            if (!i) {
                struct jinja_costs found = row_of(group, row);
                *operation = (struct jinja_operation){groups[group], found.name, found.cost};
                return true;
            }
    return false;
}
