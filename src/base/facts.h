/* Facts that the ranks of a run must have alike, as a list with names: values of a configuration, contents of files.
 * Each rank makes the same list in the same order; comm_same compares them. */
#ifndef CAMBIUM_BASE_FACTS_H
#define CAMBIUM_BASE_FACTS_H

#include <stddef.h>
#include <stdint.h>

/* The ends of messages: what all ranks need. */
#define FACT_CONFIGURATION "all ranks need the same configuration"
#define FACT_FILES         "all ranks need the same files"

struct fact {
    char *name, *shown;  /* as messages say it: "optim.lr", "0.001" */
    uint64_t digest;     /* of the name and of what is compared */
    const char *because; /* the end of the message; the caller's */
};

struct facts {
    struct fact *items;
    size_t count, capacity;
};
#define FACTS_INIT ((struct facts){0})
void facts_free(struct facts *facts);

/* Adds copies. `compared` NULL: what is shown is what is compared. */
int facts_add(struct facts *facts, const char *because, const char *name, const char *shown, const char *compared);
/* A file's size and contents, whatever its path is. */
int facts_add_file(struct facts *facts, const char *name, const char *path);
/* A digest of the contents of something called `shown`, such as a directory. */
int facts_add_digest(struct facts *facts, const char *name, const char *shown, uint64_t digest);

#endif
