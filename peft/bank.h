/* Adapters of every kind for inference, in one batch. A bank gives the model its hooks once; images come and go while
 * the model is open.
 *
 * An image is one adapter, this rank's part of it, at its true size, in the bank's memory. A row of a batch goes
 * through up to PEFT_SLOT_IMAGES of them, in order: its slot. Before each step of the model the bank is told the step's
 * slots, as segments of rows; where no row of a step has an adapter at a place, that place costs what it costs without
 * a bank. Nothing is allocated in a step. What a row becomes does not depend on the other rows.
 *
 * Order of calls: peft_bank_open, model_open with peft_bank_hooks, peft_bank_set_base, the base's values,
 * peft_bank_allocate, then images and steps in any order. One thread; the bank outlives the model that has its hooks.
 * Ranks that hold one model together make the same calls. */
#ifndef CAMBIUM_PEFT_BANK_H
#define CAMBIUM_PEFT_BANK_H

#include "peft/peft.h"

struct peft_bank;

enum { PEFT_SLOT_IMAGES = 4 };

/* `model`: of the base; its hooks are not looked at. */
int peft_bank_open(const struct model_options *model, struct rank *rank, struct peft_bank **bank);
void peft_bank_close(struct peft_bank *bank);
const struct hook_table *peft_bank_hooks(const struct peft_bank *bank);
/* Bytes on the device beside the memory of images. */
size_t peft_bank_fixed_bytes(const struct peft_bank *bank);
/* The weights of the base, which may be packed: from here on images can be planned. */
void peft_bank_set_base(struct peft_bank *bank, const struct param_store *weights);
/* Gives images so many bytes, together. */
int peft_bank_allocate(struct peft_bank *bank, size_t memory);
/* What an image of such an adapter takes on this rank. Checks that the adapter fits the base, as peft_open does. */
int peft_bank_image_bytes(const struct peft_bank *bank, const struct peft_config *config, size_t *bytes);
/* Checks that an adapter whose files are open can become an image, by its configuration and header: its names, types
 * and shapes and, once the bank has its memory, the room that all images have together (STATUS_MEMORY). Values are not
 * read. Any thread, but not during peft_bank_allocate. */
int peft_bank_check(const struct peft_bank *bank, const struct peft_files *files, int index);
/* The most bytes that the file of tensors of an adapter can have that fits the memory of all ranks; SIZE_MAX before
 * peft_bank_allocate. */
size_t peft_bank_most_file_bytes(const struct peft_bank *bank);
size_t peft_bank_memory(const struct peft_bank *bank);
size_t peft_bank_used(const struct peft_bank *bank);

/* ---- images ---- */

/* Begins to make adapter `index` of the files, which outlive this, an image; one at a time. Each rank by itself.
 * STATUS_MEMORY when there is no room for it. A failure leaves nothing behind. */
int peft_bank_begin(struct peft_bank *bank, const struct peft_files *files, int index);
/* Goes on for about so long; *is_ready: all is done that a rank does by itself. Each rank by itself, between steps. */
int peft_bank_continue(struct peft_bank *bank, double seconds, bool *is_ready);
/* All ranks of a tensor group together, after they have agreed that all are ready: its number, the lowest that is
 * free. */
int peft_bank_commit(struct peft_bank *bank);
/* It was not to be. */
void peft_bank_abandon(struct peft_bank *bank);
/* No slot of a step to come has it. */
void peft_bank_drop(struct peft_bank *bank, int image);
/* Whether a sequence may have these images, in this order: STATUS_USAGE with the reason, in the words with which a
 * stack is refused that trains. */
int peft_bank_check_slot(const struct peft_bank *bank, const int *images, int count);
size_t peft_bank_bytes_of(const struct peft_bank *bank, int image);
/* What an image puts before a text: keys and values (peft_prefix), and rows of the embedding. */
int64_t peft_bank_prefix_tokens(const struct peft_bank *bank, int image);
int64_t peft_bank_virtual_tokens(const struct peft_bank *bank, int image);
/* The id of its first virtual token, behind the vocabulary; the others follow. */
int32_t peft_bank_first_id(const struct peft_bank *bank, int image);

/* ---- steps ---- */

/* Rows of a step with one slot: images[0 .. count - 1]. */
struct peft_segment {
    int64_t first_row, rows;
    int count;
    int images[PEFT_SLOT_IMAGES];
};
/* The slots of the next step, in the order of its rows; rows in none of the segments are the base's. At most as many
 * segments as the model has rows. */
int peft_bank_step(struct peft_bank *bank, const struct peft_segment *segments, int64_t count);

#endif
