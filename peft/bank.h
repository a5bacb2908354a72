/* Adapters of every kind for inference, in one batch. A bank gives the model its hooks once; images come and go while
 * the model is open.
 *
 * An image is this rank's part of one adapter, at its true size, in the bank's memory. A row of a batch goes through up
 * to PEFT_SLOT_IMAGES images in order: its slot. Before each step of the model the bank gets the step's slots, as
 * segments of rows. A place where no row of a step has an adapter costs no more than without a bank. Nothing is
 * allocated in a step. The result of a row does not depend on the other rows.
 *
 * Order of calls: peft_bank_open, a runner with peft_bank_hooks, peft_bank_set_base, the base's values,
 * peft_bank_allocate, then images and steps in any order. One thread. The bank outlives the model that has its hooks.
 * Ranks that hold one model together make the same calls. */
#pragma once

#include "peft/peft.h"

struct peft_bank;

enum { PEFT_SLOT_IMAGES = 4 };

/* Opens a bank for the base `model`, whose hooks are ignored. STATUS_MEMORY, STATUS_UNSUPPORTED. */
int peft_bank_open(const struct model_options *model, struct rank *rank, struct peft_bank **bank);
/* NULL is allowed. */
void peft_bank_close(struct peft_bank *bank);
/* Returns the hooks to open a runner with. */
const struct hook_table *peft_bank_hooks(const struct peft_bank *bank);
/* Returns the bytes on the device other than the memory of images. They include a step's data for the hooks, which
 * travel in the model's upload (struct hook_upload). */
size_t peft_bank_fixed_bytes(const struct peft_bank *bank);
/* Returns the bytes of host memory for the lists of a step. */
size_t peft_bank_list_bytes(const struct peft_bank *bank);
/* Sets the weights of the base, which may be packed. Images can be planned from here on. */
void peft_bank_set_base(struct peft_bank *bank, const struct param_store *weights);
/* Names the base's directory in errors about adapters of other bases; the text outlives the bank. */
void peft_bank_set_directory(struct peft_bank *bank, const char *directory);
/* Takes `memory` bytes for all images together. STATUS_MEMORY. */
int peft_bank_allocate(struct peft_bank *bank, size_t memory);
/* Computes the bytes that an image of such an adapter takes on this rank. Checks that the adapter fits the base, with
 * the errors of peft_open. */
int peft_bank_image_bytes(const struct peft_bank *bank, const struct peft_config *config, size_t *bytes);
/* Checks from the configuration and the header of open files that an adapter can become an image: its names, types and
 * shapes, with the errors of peft_load. Once the bank has its memory, it also checks that the image fits that memory
 * (STATUS_MEMORY). Values are not read. Any thread, but not during peft_bank_allocate. */
int peft_bank_check(const struct peft_bank *bank, const struct peft_files *files, int index);
/* Returns the size in bytes of the largest tensor file whose adapter can fit the memory of every rank; SIZE_MAX before
 * peft_bank_allocate. The other one returns the bytes of images that are in use. */
size_t peft_bank_most_file_bytes(const struct peft_bank *bank);
size_t peft_bank_used(const struct peft_bank *bank);

/* ---- images ---- */

/* Begins to make adapter `index` of the files an image, only on this rank; one at a time. The files outlive the
 * image's making. STATUS_MEMORY when there is no room. A failure changes nothing. */
int peft_bank_begin(struct peft_bank *bank, const struct peft_files *files, int index);
/* Continues for about `seconds`, only on this rank, between steps. Sets *is_ready when this rank has finished its
 * part. STATUS_INVALID for bad values. */
int peft_bank_continue(struct peft_bank *bank, double seconds, bool *is_ready);
/* Called by all ranks of a tensor group together, after they have agreed that all are ready. Returns the image's
 * number, which is the lowest free one, or a negative status (STATUS_MEMORY, or the device's errors). */
int peft_bank_commit(struct peft_bank *bank);
/* Gives up the image that is being made. */
void peft_bank_abandon(struct peft_bank *bank);
/* Removes an image that no slot of a later step names. */
void peft_bank_drop(struct peft_bank *bank, int image);
/* Checks that a sequence may have these images, in this order. STATUS_USAGE, with the same text as when training
 * refuses such a stack. */
int peft_bank_check_slot(const struct peft_bank *bank, const int *images, int count);
/* Returns the bytes of an image in the bank's memory. */
size_t peft_bank_bytes_of(const struct peft_bank *bank, int image);
/* Return how many positions an image puts before a sequence: as keys and values (peft_prefix), and as rows of the
 * embedding. */
int64_t peft_bank_prefix_tokens(const struct peft_bank *bank, int image);
int64_t peft_bank_virtual_tokens(const struct peft_bank *bank, int image);
/* Returns the id of its first virtual token, after the vocabulary; the others follow. */
int32_t peft_bank_first_id(const struct peft_bank *bank, int image);

/* ---- steps ---- */

/* Rows of a step with one slot: images[0 .. count - 1]. */
struct peft_segment {
    int64_t first_row, rows;
    int count;
    int images[PEFT_SLOT_IMAGES];
};
/* The rows of a step that go through the head, ascending. */
struct peft_wanted {
    int64_t count;
    const int32_t *rows; /* [count] */
};
/* Sets the slots of the next step, in the order of its rows; rows outside all segments use the bare base. There are at
 * most as many segments as the model has rows. STATUS_INVALID. */
int peft_bank_step(struct peft_bank *bank, const struct peft_segment *segments, int64_t count,
                   struct peft_wanted wanted);
