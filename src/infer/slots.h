/* Slots of the engine: ordered sets of images, which sequences name. The leader calls. */
#ifndef CAMBIUM_INFER_SLOTS_H
#define CAMBIUM_INFER_SLOTS_H

#include "infer/engine.h"

/* *slot: of these images in this order, at most PEFT_SLOT_IMAGES; of none -1, the bare base. STATUS_USAGE where they
 * cannot be together. Whoever opened it closes it, after its last sequence. */
int engine_slot_open(struct engine *engine, const int *images, int count, int *slot);
void engine_slot_close(struct engine *engine, int slot);
/* The images of a slot; how many. */
int engine_slot_images(const struct engine *engine, int slot, int images[PEFT_SLOT_IMAGES]);
/* The slot of the adapters that the engine was opened with; -1: there were none. */
int engine_opened_slot(const struct engine *engine);
/* Tokens that stand before every text of the slot, prefix and virtual ones; their rows are run like a text's. */
int64_t engine_slot_stem(const struct engine *engine, int slot);
/* Whether they predict the first token of a text: their last virtual token has logits, a prefix has none. */
bool engine_slot_predicts_first(const struct engine *engine, int slot);

#endif
