/* Output that appears whole. It is built in a box: a hidden directory `.cambium-HEX` beside its target, with a name
 * drawn by lot. The first thing in a box is its mark, a file that says what the box is for and is locked while its
 * writer lives. What carries no such mark is never touched. What carries one that nobody holds was left by a writer
 * that was killed, and the next writer in that directory takes it away.
 *
 * A directory appears by one rename, or by an exchange with the one that it replaces. Where the file system cannot
 * exchange two names, the old directory waits in the box for the moment between two renames; readers and the next
 * writer find it there.
 *
 * Files that come into a directory which holds others are one generation, too: their box is renamed to `ready` when it
 * is whole, and from then on counts. Readers that find it read there; whoever wrote it, or the next writer where that
 * one was killed, puts the files in place. A reader that does not know boxes never sees files of two generations as
 * one: the key, a file without which the others are nothing, goes first and comes last. */
#ifndef CAMBIUM_BASE_STAGING_H
#define CAMBIUM_BASE_STAGING_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* A kind of files that come together. */
struct staging_files {
    const char *kind;         /* a word for the mark */
    const char *key;          /* how the names of its key files end */
    const char *const *names; /* ending with NULL: those beside a key that go when a new generation lacks them */
};

struct staging {
    char *target;    /* the directory that appears, or the one that files come into */
    char *box;       /* NULL: nothing is staged */
    char *directory; /* in the box: where the caller builds */
    int mark;        /* the descriptor that holds the lock */
    bool is_committed;
    const struct staging_files *files; /* NULL: the target appears as a whole */
};

/* Cleans beside the target, makes the directories above it, and a box. A target that is a link means what it leads to.
 */
int staging_begin(struct staging *staging, const char *target);
/* The same for files that come into `directory`, which is made; a generation that a killed writer left ready is put in
 * place first. `files` outlives the staging. */
int staging_begin_files(struct staging *staging, const char *directory, const struct staging_files *files);
/* Syncs directories (files are the caller's to sync) and publishes. A failure leaves what stood there. */
int staging_commit(struct staging *staging);
/* Removes the box; harmless after a commit, and on zeroed memory with a mark of -1. This thread's error text stays. */
void staging_abort(struct staging *staging);

/* Moves a directory out of the way and removes it, so that a half removed one never has a whole one's name. */
int staging_remove(const char *target);
/* Removes the boxes of dead writers in a directory, and puts back directories that they displaced. A box that cannot be
 * removed is a warning. */
int staging_clean(const char *directory);
/* Puts a generation in place that a killed writer left ready. */
int staging_finish(const char *directory, const struct staging_files *files);

/* For readers: whether the entry `name` of `parent` is a box that holds a displaced directory: where it is, and the
 * name that it had. */
bool staging_displaced(const char *parent, const char *name, char path[PATH_MAX], char target[NAME_MAX + 1]);
/* For readers: whether a generation of this kind that has the file `name` (NULL: any) waits in `directory`, ready. None
 * does where the directory cannot be listed; STATUS_MEMORY where memory lacked for that. */
int staging_is_ready(const char *directory, const struct staging_files *files, const char *name, char path[PATH_MAX],
                     bool *is_there);

#endif
