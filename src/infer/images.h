/* Images of the engine: adapters in the memory of all ranks. Only the leader calls these functions. */
#pragma once

#include "infer/engine.h"

/* Makes an image of an adapter's files on all ranks and returns its number. When a rank fails, no rank has the image
 * and the call returns that rank's status. */
int engine_image_load(struct engine *engine, const struct peft_bytes *bytes);
/* The same between steps, one adapter at a time. engine_image_begin returns STATUS_MEMORY, and begins nothing, when
 * this rank has no room. Call engine_image_continue between steps; it works for about `seconds`. When it sets
 * *is_ready, engine_image_end returns the number or a failure. `bytes` must live until then. The other ranks work on
 * the image after each step, for an eighth of the step's time. */
int engine_image_begin(struct engine *engine, const struct peft_bytes *bytes);
int engine_image_continue(struct engine *engine, double seconds, bool *is_ready);
int engine_image_end(struct engine *engine);
/* Frees an image that no open slot has, and its cached pages. STATUS_PEER. */
int engine_image_drop(struct engine *engine, int image);
/* Returns the bank of images; NULL: the engine has no memory for adapters. */
const struct peft_bank *engine_bank(const struct engine *engine);
/* Returns the bytes that all images take on this rank. */
size_t engine_adapter_bytes(const struct engine *engine);
/* Return the bytes of an image on this rank, and the number of its virtual tokens. */
size_t engine_image_bytes(const struct engine *engine, int image);
int64_t engine_image_virtual_tokens(const struct engine *engine, int image);
