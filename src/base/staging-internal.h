/* Boxes, as directories and files that are staged share them. */
#ifndef CAMBIUM_BASE_STAGING_INTERNAL_H
#define CAMBIUM_BASE_STAGING_INTERNAL_H

#include "staging.h"

/* The content of a mark. */
struct box_mark {
    char kind[16], target[NAME_MAX + 1];
};
#define BOX_DIRECTORY "directory" /* the kind of a box that becomes its target */
#define BOX_FILES     "."         /* the target of files: the directory that the box is in */

/* A box with its mark, locked. */
int box_make(const char *parent, const struct box_mark *mark, char **box, int *descriptor);
/* Removes a box, its mark last, and closes the mark. What cannot be removed is a warning. */
void box_remove(const char *box, int descriptor);
/* Whether the entry is a box; reads its mark without its lock. */
bool box_read(const char *parent, const char *name, struct box_mark *mark);

enum box_owner { BOX_NOT_OURS, BOX_LIVES, BOX_IS_DEAD, BOX_HAS_NO_LOCK /* on this file system */ };
/* Whose the entry is; of a dead writer's the lock is the caller's, with the descriptor to close. */
enum box_owner box_take(const char *parent, const char *name, struct box_mark *mark, int *descriptor);

/* A path in the box, in a caller's buffer; "" where it does not fit. */
const char *box_path(const char *box, const char *name, char out[PATH_MAX]);

/* Puts the files of `box`/ready in place, and removes them from the box. */
int files_place(const char *directory, const char *box, const struct staging_files *files);

#endif
