/* The list of all operations that a template can name. Include "jinja-internal.h" before it. */
#pragma once

struct operation {
    const char *group, *name;
};

/* Operation `i` of all: "filter upper", "method str.split", "test in", "function range", "operator +", "access a.name".
 * False after the last. */
static inline bool find_operation(size_t i, struct operation *operation) {
    static const char *const accesses[] = {"a.name", "a[key]", "a[from:to:step]"};
    for (size_t group = 0; group < JINJA_GROUPS; group++)
        for (const struct jinja_operation *row = jinja_groups[group].rows; row->name; row++, i--)
            if (!i) {
                *operation = (struct operation){jinja_groups[group].name, row->name};
                return true;
            }
    if (i < OPERATOR_COUNT) {
        *operation = (struct operation){"operator", jinja_operators[i].text};
        return true;
    }
    i -= OPERATOR_COUNT;
    if (i < sizeof accesses / sizeof *accesses)
        *operation = (struct operation){"access", accesses[i]};
    return i < sizeof accesses / sizeof *accesses;
}
