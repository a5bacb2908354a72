/* Facts that must be the same on all ranks of a run, as a named list: values of a configuration, contents of files.
 * Each rank makes the same list in the same order; comm_same compares the lists. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Ends of messages: why all ranks must agree. */
#define FACT_CONFIGURATION "all ranks need the same configuration"
#define FACT_FILES         "all ranks need the same files"

struct fact {
    char *name, *shown;  /* as messages write them: "optim.lr", "0.001" */
    uint64_t digest;     /* over the name and the compared value */
    const char *because; /* the end of the message; owned by the caller */
};

struct facts {
    struct fact *items;
    size_t count, capacity;
};
#define FACTS_INIT ((struct facts){0})
/* Frees the list's memory. A zeroed list is allowed. */
void facts_free(struct facts *facts);

/* Adds copies of the name and the value. `compared` is compared in place of `shown` unless it is NULL. Returns
 * STATUS_OK or STATUS_MEMORY. */
int facts_add(struct facts *facts, const char *because, const char *name, const char *shown, const char *compared);
/* Adds a file's size and contents, whatever its path is. Returns the errors of digest_file too. */
int facts_add_file(struct facts *facts, const char *name, const char *path);
/* Adds a digest of the contents of something shown as `shown`, such as a directory. Returns STATUS_OK or
 * STATUS_MEMORY. */
int facts_add_digest(struct facts *facts, const char *name, const char *shown, uint64_t digest);
