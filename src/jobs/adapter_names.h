/* Adapters by name, as options of commands give them: --adapter NAME=DIR, and --adapter-root, where the name of a
 * directory is the adapter's name. An adapter's files are read when a request first uses it. */
#pragma once

#include "config/config.h"
#include "infer/adapters.h"

struct adapter_names {
    struct config_list given; /* NAME=DIR */
    const char *root;         /* NULL: none */
    int64_t memory;           /* bytes on each rank */
    bool memory_is_given;     /* by an option: it does not shrink */
};

/* Moves the items NAME=DIR out of `directories` into names->given; the other items keep their order. A name has no
 * slash, so ./A=B is a directory. STATUS_USAGE for an empty name or directory, a name that is too long, or a name that
 * is given twice. */
int adapter_names_take(struct config_list *directories, struct adapter_names *names);
/* Returns true when the options name any adapter or a root. */
static inline bool adapter_names_are_given(const struct adapter_names *names) {
    return names->given.count > 0 || names->root;
}
/* Returns the value for engine_options.adapter_memory. */
static inline size_t adapter_names_memory(const struct adapter_names *names) {
    return adapter_names_are_given(names) ? (size_t)names->memory : 0;
}
/* Opens the adapters under their names; the engine's leader calls this, and closes them. Entries of the root that are
 * no adapters are skipped. A link that leads out of the root, in place of an adapter or of one of its files, makes it
 * skip the adapter with a warning. STATUS_MEMORY, STATUS_IO, STATUS_USAGE. */
int adapter_names_open(const struct adapter_names *names, struct engine *engine, struct adapters **adapters);
