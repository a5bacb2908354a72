/* The registry's inside, shared by its list of names (registry.c) and its files (registry_files.c). */
#pragma once

#include "refusals.h"
#include "registry.h"
#include "server-internal.h"

struct entry {
    char name[ADAPTER_NAME_BYTES];
    char directory[PATH_MAX]; /* of its files */
    struct driver_adapter at; /* as last reported by the engine */
    struct adapter_facts facts;
    uint64_t
        facts_generation; /* generation that `facts` describe; 0: the files as they were when the name became known */
    int64_t running, waiting;     /* texts */
    int loading;                  /* changes in progress */
    bool is_bringing;             /* a call waits for it, and its bringing was requested */
    bool is_there;                /* in the engine's list */
    bool was_refused;             /* never loaded, because its files were refused: */
    uint64_t refused_stamp;       /* the stamp of these files */
    struct driver_name *learning; /* the name is on its way to the engine; NULL: it has arrived */
};

struct pending {
    struct worker_job job;
    struct pending *next; /* in the list of waiting changes, or of those in progress */
    struct server *server;
    struct driver_change change;
    char directory[PATH_MAX];
    bool is_named;  /* the directory is as a request named it */
    bool has_stamp; /* `stamp` is that of its files */
    uint64_t stamp;
    void (*on_done)(void *context, const struct error *error, const struct registry_adapter *adapter);
    void *context;
};

/* A directory below the root whose name was unloaded. Requests do not find it again while it stays the same
 * directory. */
struct unloaded {
    char name[ADAPTER_NAME_BYTES];
    uint64_t identity; /* registry_identity */
};

struct registry_checks;

struct registry {
    struct server *server;
    struct adapters *adapters;
    struct peft_limits limits; /* of files */
    struct refusals *refusals;
    struct entry **entries; /* [count] by name */
    int count;
    struct pending *first, **last; /* waiting changes */
    struct pending *working;
    int64_t under_way, waiting;
    struct unloaded *unloaded; /* [unloaded_count], oldest first */
    int unloaded_count;
    struct registry_checks *checks; /* of the adapters below the root; NULL: finished */
};

/* ---- registry_names.c ---- */

/* The place of a name in the sorted list, or where it belongs. */
int registry_place(const struct registry *registry, const char *name, bool *is_there);
/* Returns the entry with this name, or NULL. */
struct entry *registry_entry(const struct registry *registry, const char *name);

/* ---- registry_files.c: the worker for adapters' files, and what it needs ---- */

/* Reads and checks the files of a change: worker_job.work of a pending. */
void registry_read(struct worker_job *job);
/* Remembers the refusal of its files, if they are the reason. `status` is the engine's. */
void registry_remember(struct registry *registry, const struct pending *pending, int status);
/* Finds the directory of the single adapter that `directory` means, and its chat template. The caller frees *found. The
 * errors of adapter_files_find. */
int registry_look(const char *directory, char **found, struct chat_template **chat_template);
/* Returns a number for a directory: of its device, its inode, and its birth where the file system knows it, because
 * inode numbers are reused. What changes in the directory does not change it. */
struct statx;
uint64_t registry_identity(const struct statx *info);
/* True when the root has a directory of this name that is not reached by a link. Sets its path and its identity. */
bool registry_is_below(const char *root, const char *name, char path[PATH_MAX], struct unloaded *identity);
/* True when an adapter's files were refused, and are still the same. */
bool registry_is_refused(const struct server *server, const struct entry *entry);
void registry_free_checks(struct registry_checks *checks);
