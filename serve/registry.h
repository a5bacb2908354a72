/* Adapters as the loop knows them: names, their state as last reported by the engine's thread, and changes. A change
 * goes through the loader (files, on a worker) to the engine's thread, and returns when it is done on all ranks. The
 * loop's thread. */
#pragma once

#include "openai/error.h"
#include "server.h"

struct registry;

struct registry_adapter {
    const char *name, *directory; /* directory: of its files; "" when they are not known yet */
    const char *methods;          /* "lora", "lora,ia3"; "" before the first loading */
    const char *digest;           /* SHA-256, "" before the first loading */
    const char *state;   /* "loading", "resident", "evicted" (or never loaded), "refused" (its files cannot be loaded),
                            "retiring" (unloaded, but completions still use it) */
    uint64_t generation; /* 0: never loaded */
    int64_t parameters, bytes, virtual_tokens;
    int64_t running, waiting;            /* texts */
    struct chat_template *chat_template; /* NULL: none; not a reference */
    uint64_t template_generation;        /* generation of the template; 0: the files as they were at the start */
    const char *receipt; /* "exact", "agrees", "none"; "refused" where is_refused; "" before the first loading */
    double receipt_gap;  /* largest difference of a log-probability from those of the receipt */
    bool is_pinned;
    bool is_resident; /* requests can name it, and its image is in memory */
    bool is_refused;  /* never loaded, because its files are refused */
    bool is_retiring; /* unloaded, but completions still use it; requests cannot name it */
};

/* Return an adapter by number, in the order of names, or by name; false when there is none. The strings are valid until
 * the loop's turn ends. */
bool registry_at(const struct server *server, int number, struct registry_adapter *adapter);
bool registry_find(const struct server *server, const char *name, struct registry_adapter *adapter);
/* The same for a request. It also finds a directory that was added to --adapter-root since the start, whose name is
 * then known. A name that was unloaded is not found again until it is loaded or its directory is replaced. */
bool registry_seek(const struct server *server, const char *name, struct registry_adapter *adapter);
/* Lets requests name the adapter in a directory; its first request loads it. Nothing happens when the name is known.
 * Errors of adapter_files_find, STATUS_MEMORY. */
int registry_know(struct server *server, const char *name, const char *directory);
/* True for a possible name of an adapter: [A-Za-z0-9._:-]{1,255} without a leading dot. */
bool registry_name_is_valid(const char *name);

enum registry_change_kind { REGISTRY_LOAD, REGISTRY_REPLACE, REGISTRY_UNLOAD };
struct registry_change {
    enum registry_change_kind kind;
    const char *name, *path;     /* path: a name under --adapter-root; NULL or "": the adapter's own */
    struct adapter_files *files; /* of REGISTRY_LOAD: the contents, taken from the caller; NULL: they are read */
    bool is_pinned;
    bool in_place;          /* loading an existing name replaces it (vLLM's load_inplace) */
    uint64_t if_generation; /* 0: any */
    /* Called once in the loop's thread, never inside registry_start. `adapter` is the present meaning of the name after
     * a success other than an unloading; else NULL. */
    void (*on_done)(void *context, const struct error *error, const struct registry_adapter *adapter);
    void *context;
};
/* Starts a change. Strings are copied. Changes are made in order of arrival. */
void registry_start(struct server *server, const struct registry_change *change);
