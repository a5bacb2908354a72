/* Adapters as the loop knows them: names and what stands behind each, as the engine's thread last said; and the way to
 * change them. What is asked here goes through the loader (files, on a worker) to the engine's thread and comes back
 * when the change is done on all ranks. The loop's thread. */
#ifndef CAMBIUM_SERVE_REGISTRY_H
#define CAMBIUM_SERVE_REGISTRY_H

#include "error.h"
#include "server.h"

struct registry;

struct registry_adapter {
    const char *name;
    const char *methods; /* "lora", "lora,ia3"; "" before the first loading */
    const char *digest;  /* SHA-256, "" before the first loading */
    const char *state;   /* "loading", "resident", "evicted" or never loaded, "retiring" (unloaded; texts have it) */
    uint64_t generation; /* 0: never loaded */
    int64_t parameters, bytes, virtual_tokens;
    int64_t running, waiting;            /* texts */
    struct chat_template *chat_template; /* NULL: none; no reference */
    uint64_t template_generation;        /* whose template it is; 0: of the files as they were at the start */
    bool is_pinned;
    bool is_resident; /* requests can name it, and its image is in memory */
    bool is_retiring; /* unloaded, and texts still run with it: no request can name it */
};

/* In the order of names, from 0; false behind the last. The strings live until the loop's turn ends. */
bool registry_at(const struct server *server, int number, struct registry_adapter *adapter);
bool registry_find(const struct server *server, const char *name, struct registry_adapter *adapter);
/* The same for a request, which also finds a directory that came to --adapter-root since the start: its name is known
 * from here on. One whose name was unloaded is not found again. */
bool registry_seek(const struct server *server, const char *name, struct registry_adapter *adapter);
/* Whether it may be the name of an adapter: [A-Za-z0-9._-]{1,64}, no leading dot. */
bool registry_name_is_valid(const char *name);

enum registry_change_kind { REGISTRY_LOAD, REGISTRY_REPLACE, REGISTRY_UNLOAD };
struct registry_change {
    enum registry_change_kind kind;
    const char *name, *path; /* path: a name under --adapter-root; NULL or "": the adapter's own */
    bool is_pinned;
    bool in_place;          /* a load of a name that is there replaces it (vLLM's load_inplace) */
    uint64_t if_generation; /* 0: any */
    /* Once, in the loop's thread, never inside registry_start. `adapter`: what the name stands for now, with
     * ERROR_NONE and unless it was unloaded; else NULL. */
    void (*on_done)(void *context, const struct error *error, const struct registry_adapter *adapter);
    void *context;
};
/* Strings are copied. Changes are made in the order in which they come. */
void registry_start(struct server *server, const struct registry_change *change);

#endif
