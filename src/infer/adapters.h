/* Adapters by name: which names are known, which adapters are in memory, and which images a completion uses. Only the
 * leader has this registry.
 *
 * Each replacement of an adapter gives its name a new generation, a number that is never used again. A completion keeps
 * the generation with which it started: the image of a replaced or unloaded adapter stays in memory until its last
 * completion has ended. When memory runs out, images in no use are evicted, the least recently used first. They are
 * read again from their directories at their next use, and their digest is checked. */
#pragma once

#include "infer/engine.h"
#include "infer/receipt.h"

struct adapters;

enum adapter_state { ADAPTER_KNOWN, ADAPTER_RESIDENT, ADAPTER_EVICTED };

/* The current state of a name. Its strings live until the next call. */
struct adapter_view {
    const char *name, *directory;
    enum adapter_state state; /* ADAPTER_KNOWN: never loaded */
    uint64_t generation;      /* 0: never loaded */
    const char *digest;       /* SHA-256 of its files; "" when never loaded */
    size_t bytes;             /* of its image on this rank; 0: not in memory */
    int64_t virtual_tokens;   /* including the positions of a prefix */
    int64_t users;            /* completions that use this generation */
    bool is_pinned;
    struct receipt_result receipt; /* of this generation */
};

/* Returns how often the receipts of loaded adapters had each result. */
const uint64_t *adapters_receipts(const struct adapters *adapters);

/* Makes an empty registry for an engine. STATUS_MEMORY. */
int adapters_open(struct engine *engine, struct adapters **adapters);
/* Frees the registry. All completions have ended; the engine frees the images. */
void adapters_close(struct adapters *adapters);

/* Checks the files of a known name's directory as adapter_files_read does before it reads all of them, and returns its
 * errors. STATUS_NOT_FOUND for an unknown name. */
int adapters_check(const struct adapters *adapters, const char *name);
/* Makes a name known; its files are read at its first use. STATUS_INVALID: the name is known already, or empty.
 * STATUS_MEMORY. */
int adapters_add(struct adapters *adapters, const char *name, const char *directory);
/* Loads a known adapter now. `is_pinned`: never evict it. Errors of adapter_files_read; STATUS_NOT_FOUND for an unknown
 * name; STATUS_MEMORY. */
int adapters_load(struct adapters *adapters, const char *name, bool is_pinned);
/* Loads the adapter in `directory` (NULL: in the name's directory) as a new generation of the name. The old image stays
 * in memory meanwhile. A failure changes nothing. `if_generation` other than 0: replace only this generation. Errors as
 * adapters_load; STATUS_INVALID for another generation. */
int adapters_replace(struct adapters *adapters, const char *name, const char *directory, uint64_t if_generation);

/* Finds the only adapter of a directory: in the directory itself, or in its newest checkpoint. The caller frees *found.
 * STATUS_NOT_FOUND when there is none, STATUS_INVALID when there are several. */
int adapter_files_find(const char *directory, char **found);
/* The contents of an adapter's files. Any thread may read and free them. */
struct adapter_files {
    struct peft_bytes bytes;
    char digest[PEFT_SHA256_BYTES];
};
/* Reads an adapter's files. Sizes, configuration, header, names and shapes are checked first. It computes all digests
 * that a load compares, so that the engine's thread need not. STATUS_INVALID, STATUS_IO, STATUS_MEMORY. */
int adapter_files_read(const struct peft_place *place, const struct peft_limits *limits, struct adapter_files *files);
/* Returns the engine's limits for adapters; any thread may pass them to adapter_files_read. */
struct peft_limits adapters_limits(const struct adapters *adapters);
/* Frees the contents. Zeroed files are allowed. */
void adapter_files_free(struct adapter_files *files);

/* Collects the results of checking a root's adapters, to report them in one line. Zero-initialise it. */
struct adapter_report {
    struct strbuf names;
    int checked, refused;
};
/* Adds a result. `reason` NULL: the adapter can be loaded. */
void adapter_report_add(struct adapter_report *report, const char *name, const char *reason);
/* Returns "2 of 9 adapters below --adapter-root will be refused: NAME (REASON); ...", valid until the next call; NULL
 * when all can be loaded. */
const char *adapter_report_line(struct adapter_report *report);
void adapter_report_free(struct adapter_report *report);

enum adapter_change {
    ADAPTER_BRING,  /* load the current generation from unchanged files, or the first generation */
    ADAPTER_REPLACE /* make a new generation */
};
/* Load an adapter between steps, one at a time. adapters_begin starts with files that were read; it owns them when it
 * returns 0. Call adapters_continue after each step, which works for an eighth of the step's time. When it sets
 * *is_done, its status is that of the whole load. STATUS_MEMORY: running completions use the memory, so a later attempt
 * may succeed. */
int adapters_begin(struct adapters *adapters, const char *name, struct adapter_files *files, enum adapter_change change,
                   uint64_t if_generation);
int adapters_continue(struct adapters *adapters, bool *is_done);
/* Pins or unpins an adapter; a pinned one is never evicted. STATUS_NOT_FOUND for an unknown name. */
int adapters_pin(struct adapters *adapters, const char *name, bool is_pinned);
/* Protects the images of these names from eviction until the next call of this function. */
void adapters_spare(struct adapters *adapters, const char *const *names, int count);
/* Evicts all images that are neither in use nor pinned, also those of spared names, so that free memory is in one
 * piece. Errors of engine_image_drop. */
int adapters_clear(struct adapters *adapters);
/* Returns the index of the first known name that is not in memory and that adapters_take would load; -1: none. */
int adapters_absent(const struct adapters *adapters, const char *const *names, int count);
/* Forgets a name. Its image stays until its last completion has ended. STATUS_NOT_FOUND. */
int adapters_unload(struct adapters *adapters, const char *name);

/* Takes a slot of the named adapters in this order, at most PEFT_SLOT_IMAGES, for one completion or request. Loads
 * those that are not in memory, and stores the current generation of each. Give the slot back with adapters_give.
 * STATUS_NOT_FOUND for an unknown name. STATUS_MEMORY when completions use the memory; a later attempt may succeed. */
int adapters_take(struct adapters *adapters, const char *const *names, int count, int *slot,
                  uint64_t generations[PEFT_SLOT_IMAGES]);
int adapters_give(struct adapters *adapters, int slot);

/* Gets the state of the adapter with this number, in the order of adding, or with this name. Returns false if there is
 * none. */
bool adapters_at(const struct adapters *adapters, int number, struct adapter_view *view);
bool adapters_find(const struct adapters *adapters, const char *name, struct adapter_view *view);
