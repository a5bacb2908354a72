/* The registry inside: what its list of names (registry.c) and its files (registry_files.c) share. */
#ifndef CAMBIUM_SERVE_REGISTRY_INTERNAL_H
#define CAMBIUM_SERVE_REGISTRY_INTERNAL_H

#include "refusals.h"
#include "registry.h"
#include "server-internal.h"

#include <limits.h>

struct entry {
    char name[ADAPTER_NAME_BYTES];
    char directory[PATH_MAX]; /* that its files come from */
    struct driver_adapter at; /* as the engine last said */
    struct adapter_facts facts;
    uint64_t facts_generation;    /* whose facts they are; 0: of the files as they were when the name became known */
    int64_t running, waiting;     /* texts */
    int loading;                  /* changes */
    bool is_bringing;             /* a call waits for it, and it has been sent for */
    bool is_there;                /* in the engine's list */
    struct driver_name *learning; /* the engine is being told of it; NULL: it knows */
};

struct pending {
    struct worker_job job;
    struct pending *next; /* of those that nobody works on yet, or of those that are worked on */
    struct server *server;
    struct driver_change change;
    char directory[PATH_MAX];
    bool is_named;  /* the directory is as somebody named it */
    bool has_stamp; /* its files have this one: */
    uint64_t stamp;
    void (*on_done)(void *context, const struct error *error, const struct registry_adapter *adapter);
    void *context;
};

/* A directory below the root whose name was unloaded: it is not found again as long as it is this one. */
struct unloaded {
    char name[ADAPTER_NAME_BYTES];
    uint64_t identity; /* of its device, inode and birth, as an inode's number is used again */
};

struct registry_checks;

struct registry {
    struct server *server;
    struct adapters *adapters;
    struct peft_limits limits; /* of files */
    struct refusals *refusals;
    struct entry **entries; /* [count] by name */
    int count;
    struct pending *first, **last; /* that nobody works on yet */
    struct pending *working;
    int64_t under_way, waiting;
    struct unloaded *unloaded; /* [unloaded_count] the oldest first */
    int unloaded_count;
    struct registry_checks *checks; /* of the adapters below the root; NULL: done */
};

/* ---- registry.c ---- */

/* NULL: none has this name. */
struct entry *registry_entry(const struct registry *registry, const char *name);

/* ---- registry_files.c: the worker for adapters' files, and what it needs ---- */

/* Reads and checks the files of a change: worker_job.work of a pending. */
void registry_read(struct worker_job *job);
/* Remembers that its files are refused, where they are the reason. `status`: the engine's. */
void registry_remember(struct registry *registry, const struct pending *pending, int status);
/* The directory of the one adapter that `directory` stands for, which the caller frees, and its chat template. */
int registry_look(const char *directory, char **found, struct chat_template **chat_template);
/* True when the root has a directory of this name that no link leads to; its path and its identity. */
bool registry_is_below(const char *root, const char *name, char path[PATH_MAX], struct unloaded *identity);
void registry_free_checks(struct registry_checks *checks);

#endif
