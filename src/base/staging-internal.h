/* Boxes, shared by staged directories and staged files. */
#pragma once

#include "staging.h"

/* The content of a mark. */
struct box_mark {
    char kind[16], target[NAME_MAX + 1];
};
#define BOX_DIRECTORY "directory" /* the kind of a box that becomes its target */
#define BOX_FILES     "."         /* the target for files: the directory that holds the box */

/* Makes a box with its mark, locked. STATUS_IO, STATUS_MEMORY. */
int box_make(const char *parent, const struct box_mark *mark, char **box, int *descriptor);
/* Removes a box, its mark last, and closes the mark. A part that cannot be removed causes a warning. */
void box_remove(const char *box, int descriptor);
/* True when the entry is a box; reads its mark without its lock. */
bool box_read(const char *parent, const char *name, struct box_mark *mark);

enum box_owner { BOX_NOT_OURS, BOX_LIVES, BOX_IS_DEAD, BOX_HAS_NO_LOCK /* this file system has no locks */ };
/* Finds the owner of the entry. When its writer is dead, the caller gets the lock, and a descriptor to close. */
enum box_owner box_take(const char *parent, const char *name, struct box_mark *mark, int *descriptor);

/* Writes a path in the box into `out`; "" when it does not fit. */
const char *box_path(const char *box, const char *name, char out[PATH_MAX]);

/* Moves the files of `box`/ready into `directory`. STATUS_IO; each step may be repeated. */
int files_place(const char *directory, const char *box, const struct staging_files *files);
