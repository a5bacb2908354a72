/* Slots of the engine: ordered sets of images that sequences use. Only the leader calls these functions. */
#pragma once

#include "infer/engine.h"

/* Opens a slot of these images in this order, at most PEFT_SLOT_IMAGES. *slot is -1, the bare base, for none.
 * STATUS_USAGE when the images cannot be combined; STATUS_MEMORY. The caller closes it after its last sequence. */
int engine_slot_open(struct engine *engine, const int *images, int count, int *slot);
void engine_slot_close(struct engine *engine, int slot);
/* Copies the images of a slot and returns their number. */
int engine_slot_images(const struct engine *engine, int slot, int images[PEFT_SLOT_IMAGES]);
/* Returns the slot of the adapters with which the engine was opened; -1: there were none. */
int engine_opened_slot(const struct engine *engine);
/* Returns the number of a slot's virtual tokens before every prompt. Those of prefix tuning count too; each takes a row
 * and a position. */
int64_t engine_slot_virtual_tokens(const struct engine *engine, int slot);
/* True when the last virtual token predicts the first token of a text. Virtual tokens of prefix tuning have no
 * logits. */
bool engine_slot_predicts_first(const struct engine *engine, int slot);
