/* Adapters by name, as commands are told of them: --adapter NAME=DIR, and --adapter-root, whose adapters are known by
 * the names of their directories. Files are read when a text first names an adapter. */
#ifndef CAMBIUM_JOBS_ADAPTER_NAMES_H
#define CAMBIUM_JOBS_ADAPTER_NAMES_H

#include "config/config.h"
#include "infer/adapters.h"

struct adapter_names {
    struct config_list given; /* NAME=DIR */
    const char *root;         /* NULL: none */
    int64_t memory;           /* bytes on each rank */
};

/* Takes the items NAME=DIR out of a list of directories, whose others keep their order; a name has no slash, so that
 * ./A=B is a directory. STATUS_USAGE for an empty name or directory, and for a name that is given twice. */
int adapter_names_take(struct config_list *directories, struct adapter_names *names);
static inline bool adapter_names_are_given(const struct adapter_names *names) {
    return names->given.count > 0 || names->root;
}
/* The value for engine_options.adapter_memory. */
static inline size_t adapter_names_memory(const struct adapter_names *names) {
    return adapter_names_are_given(names) ? (size_t)names->memory : 0;
}
/* At the leader: opens the adapters under their names; the caller closes them. Skips whatever in the root is no
 * adapter. Skips with a warning an adapter that leads out of the root, itself or by one of its files. */
int adapter_names_open(const struct adapter_names *names, struct engine *engine, struct adapters **adapters);

#endif
