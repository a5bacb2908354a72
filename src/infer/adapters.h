/* Adapters by name, at the leader: which are known, which stand in memory, and what a text gets that names them.
 *
 * A name has a generation, a number that is never used again. A text keeps the generation that it began with: replaced
 * or unloaded, the old image stays until its last text has ended. Where memory runs out, images that no text uses go,
 * the least recently used first, and come back from their directories at their next use, with the digest checked. */
#ifndef CAMBIUM_INFER_ADAPTERS_H
#define CAMBIUM_INFER_ADAPTERS_H

#include "infer/engine.h"

struct adapters;

enum adapter_state { ADAPTER_KNOWN, ADAPTER_RESIDENT, ADAPTER_EVICTED };

/* An adapter as its name now stands for it. Its strings live until the next call. */
struct adapter_view {
    const char *name, *directory;
    enum adapter_state state; /* known: never loaded so far */
    uint64_t generation;      /* 0: never loaded */
    const char *digest;       /* SHA-256, "" before the first loading */
    size_t bytes;             /* of its image on this rank; 0 where it has none */
    int64_t virtual_tokens;   /* with those of a prefix */
    int64_t texts;            /* that use this generation */
    bool is_pinned;
};

int adapters_open(struct engine *engine, struct adapters **adapters);
/* Call it after the last text. Images go with the engine. */
void adapters_close(struct adapters *adapters);

/* Checks that the name's directory can be loaded, as adapter_files_read does before it reads. Known names. */
int adapters_check(const struct adapters *adapters, const char *name);
/* Makes a name known; its files are read at its first use. STATUS_INVALID for a name that is known. */
int adapters_add(struct adapters *adapters, const char *name, const char *directory);
/* Reads a known name's files and makes its image now. `is_pinned`: it stays when memory runs out. */
int adapters_load(struct adapters *adapters, const char *name, bool is_pinned);
/* The name stands for what is in `directory` now (NULL: its own again), as a new generation. Where that cannot be
 * loaded, beside the old one, nothing has changed. `if_generation` other than 0: only if that is the present one. */
int adapters_replace(struct adapters *adapters, const char *name, const char *directory, uint64_t if_generation);

/* The directory of the one adapter that `directory` stands for: its own, or that of the newest checkpoint; the caller
 * frees *found. STATUS_NOT_FOUND where it holds none, STATUS_INVALID where it holds several. */
int adapter_files_find(const char *directory, char **found);
/* An adapter's files as they were read, by any thread. */
struct adapter_files {
    struct peft_bytes bytes;
    char digest[PEFT_SHA256_BYTES];
};
/* Sizes, configuration, header, names and shapes are checked before the files are read whole. */
int adapter_files_read(const struct peft_place *place, const struct peft_limits *limits, struct adapter_files *files);
/* The limits of adapters for this engine, which any thread may read files by. */
struct peft_limits adapters_limits(const struct adapters *adapters);
/* Zeroed files are allowed. */
void adapter_files_free(struct adapter_files *files);

/* The findings of a check of the adapters below a root, as one line. Zeroed, it is empty. */
struct adapter_report {
    struct strbuf names;
    int checked, refused;
};
/* `reason` NULL: the adapter can be loaded. */
void adapter_report_add(struct adapter_report *report, const char *name, const char *reason);
/* "2 of 9 adapters below --adapter-root will be refused: NAME (REASON); ...", which lives until the next call; NULL
 * where all can be loaded. */
const char *adapter_report_line(struct adapter_report *report);
void adapter_report_free(struct adapter_report *report);

enum adapter_change {
    ADAPTER_BRING,  /* the present generation into memory, from the same files; or the first one */
    ADAPTER_REPLACE /* a new generation */
};
/* A name's files to its image beside steps, one adapter at a time: begun, then gone on with after each step, for an
 * eighth of its time, until *is_done, when the status is that of the whole. The files are taken over with status 0,
 * else they stay the caller's: STATUS_MEMORY where texts are in the way of an image, and later there may be room. */
int adapters_begin(struct adapters *adapters, const char *name, struct adapter_files *files, enum adapter_change change,
                   uint64_t if_generation);
int adapters_continue(struct adapters *adapters, bool *is_done);
/* Whether it stays when memory runs out. STATUS_NOT_FOUND. */
int adapters_pin(struct adapters *adapters, const char *name, bool is_pinned);
/* Until the next call no image of these names makes room for another. */
void adapters_spare(struct adapters *adapters, const char *const *names, int count);
/* Every image that no text uses and that is not pinned goes, of spared names, too: pieces of memory become one. */
int adapters_clear(struct adapters *adapters);
/* The first of these names that is known and not in memory, which adapters_take would load; -1: none. */
int adapters_absent(const struct adapters *adapters, const char *const *names, int count);
/* The name is unknown from here on. */
int adapters_unload(struct adapters *adapters, const char *name);

/* *slot of the named adapters in this order, at most PEFT_SLOT_IMAGES, loaded where they are not; the present
 * generation of each. STATUS_NOT_FOUND for a name that is unknown, STATUS_MEMORY where those that texts use leave no
 * room: later, perhaps. adapters_give ends it, after the text. */
int adapters_take(struct adapters *adapters, const char *const *names, int count, int *slot,
                  uint64_t generations[PEFT_SLOT_IMAGES]);
int adapters_give(struct adapters *adapters, int slot);

/* The names in their order, from 0; false after the last. */
bool adapters_at(const struct adapters *adapters, int number, struct adapter_view *view);
bool adapters_find(const struct adapters *adapters, const char *name, struct adapter_view *view);

#endif
