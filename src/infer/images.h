/* Images of the engine: adapters in the memory of all ranks. The leader calls. */
#ifndef CAMBIUM_INFER_IMAGES_H
#define CAMBIUM_INFER_IMAGES_H

#include "infer/engine.h"

/* Makes an adapter's files an image on all ranks; its number, or why a rank cannot: then none has it. */
int engine_image_load(struct engine *engine, const struct peft_bytes *bytes);
/* The same beside steps, one adapter at a time: begun (STATUS_MEMORY where this rank has no room; nothing has begun
 * then), gone on with between steps, for about so long, until it is ready, and ended: its number, or why not. The bytes
 * stay until then. The others go on after each of their steps, for an eighth of its time. */
int engine_image_begin(struct engine *engine, const struct peft_bytes *bytes);
int engine_image_continue(struct engine *engine, double seconds, bool *is_ready);
int engine_image_end(struct engine *engine);
/* An image that no open slot has goes, and its pages with it. */
int engine_image_drop(struct engine *engine, int image);
/* The bank of images; NULL: the engine was opened without memory for adapters. */
const struct peft_bank *engine_bank(const struct engine *engine);
/* Bytes that images take on this rank. */
size_t engine_adapter_bytes(const struct engine *engine);
/* Bytes on this rank, and the tokens that stand before each text. */
size_t engine_image_bytes(const struct engine *engine, int image);
int64_t engine_image_stem(const struct engine *engine, int image);

#endif
