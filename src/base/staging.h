/* Output that appears whole. It is built in a box: a hidden directory `.cambium-HEX` next to its target, with a random
 * name. The first file in a box is its mark, which says what the box is for and is locked while its writer lives. An
 * entry without such a mark is never touched. An unlocked mark belongs to a writer that was killed; the next
 * writer in that directory removes its box.
 *
 * A directory appears by one rename, or by an exchange with the directory that it replaces. Where the file system
 * cannot exchange two names, two renames do it. Between them the old directory waits in the box, where readers and the
 * next writer find it.
 *
 * Files that come into a directory with other files are one generation. When their box is whole it is renamed to
 * `ready`, and the generation counts from then on. Readers that find it read there. Its writer puts the files in place,
 * or the next writer does if that one was killed. A reader that does not know boxes never mistakes files of two
 * generations for one. The key, a file without which the others mean nothing, is removed first and comes last. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* A kind of files that appear together. */
struct staging_files {
    const char *kind; /* a word for the mark */
    const char *key;  /* the ending of its key files' names */
    const char *const
        *names; /* NULL-terminated: files next to a key that are removed when a new generation lacks them */
};

struct staging {
    char *target;    /* the directory that appears, or that the files come into */
    char *box;       /* NULL: nothing is staged */
    char *directory; /* where the caller builds, in the box */
    int mark;        /* the descriptor that holds the lock */
    bool is_committed;
    const struct staging_files *files; /* NULL: the target appears as a whole */
};

/* Removes dead writers' boxes next to the target, then makes the enclosing directories and a box. If the target is a
 * link, the directory that it leads to is meant. STATUS_IO, STATUS_INVALID for a path that is too long,
 * STATUS_MEMORY. */
int staging_begin(struct staging *staging, const char *target);
/* The same for files that come into `directory`, which is created. A generation that a killed writer left ready is put
 * in place first. `files` must outlive the staging. */
int staging_begin_files(struct staging *staging, const char *directory, const struct staging_files *files);
/* Syncs directories and publishes; the caller has synced the files. After a failure the target is as it was.
 * STATUS_IO. */
int staging_commit(struct staging *staging);
/* Removes the box and keeps this thread's error text. Harmless after a commit, and on zeroed memory with a mark of
 * -1. */
void staging_abort(struct staging *staging);

/* Moves a directory away and removes it, so that a partly removed directory never has its name. STATUS_IO. */
int staging_remove(const char *target);
/* Removes the boxes of dead writers in a directory, and puts back the directories that they displaced. A box that
 * cannot be removed causes a warning. */
int staging_clean(const char *directory);
/* Puts in place a generation that a killed writer left ready. STATUS_IO. */
int staging_finish(const char *directory, const struct staging_files *files);

/* For readers: true when the entry `name` of `parent` is a box with a displaced directory. Then `path` is where the
 * directory is, and `target` is the name that it had. */
bool staging_displaced(const char *parent, const char *name, char path[PATH_MAX], char target[NAME_MAX + 1]);
/* For readers: sets *is_there when `directory` has a ready generation of this kind that contains the file `name` (any
 * file when NULL). A directory that cannot be listed has none. STATUS_MEMORY. */
int staging_is_ready(const char *directory, const struct staging_files *files, const char *name, char path[PATH_MAX],
                     bool *is_there);
