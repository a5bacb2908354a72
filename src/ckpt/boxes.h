/* Tensors that lie in several files as boxes: rectangles of up to 8 dimensions, cut along any axes, uneven or empty.
 * Readers of other systems' directories list files, tensors and boxes here; everybody else sees struct ckpt_tensors. */
#pragma once

#include "ckpt-internal.h"

enum { BOXES_NAME_BYTES = 1024 };

struct box {
    const int64_t *offsets, *sizes; /* [dimensions of the tensor] */
    size_t file;
    int64_t start, bytes; /* place in the file */
    bool is_archive;      /* torch.save wrote it; else these bytes are the elements, row by row */
    bool is_transposed;   /* set when it is read */
};

struct boxes;

/* Makes an empty list for a directory. STATUS_MEMORY. */
int boxes_new(const char *directory, struct boxes **boxes);
/* Closes the files; NULL is allowed. */
void boxes_free(struct boxes *boxes);
/* Adds a file of the directory, or finds it; sets its number. `where` names the file that names it, for messages.
 * STATUS_INVALID for a name with a directory. */
int boxes_add_file(struct boxes *boxes, const char *where, const char *name, size_t *file);
/* Adds a tensor; its boxes come before the next tensor. */
int boxes_add_tensor(struct boxes *boxes, const char *name, const char *type, int dims, const int64_t *shape);
/* Adds a box to the last tensor, with a copy of its sizes; an empty one is left out. */
int boxes_add(struct boxes *boxes, const struct box *box);
/* Checks that no tensor is there twice, and that the boxes of each one lie in it, apart from each other, and cover it.
 * *tensors owns the boxes from here on; after a failure they are freed. STATUS_INVALID, STATUS_MEMORY. */
int boxes_open(struct boxes *boxes, struct ckpt_tensors **tensors);
