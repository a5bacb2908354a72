/* Keys of `model:` that struct model_config has in another form: what they say of the model, and what it says of them.
 */
#ifndef CAMBIUM_CONFIG_MODEL_WORDS_H
#define CAMBIUM_CONFIG_MODEL_WORDS_H

#include "run.h"

/* Puts what was typed into the model, and refuses what cannot be. */
int model_words_resolve(struct run_config *run);
/* The words of a resolved model, in the place of those that were typed. */
void model_words_describe(struct run_config *run);
/* Members of the rows of the two lists: see struct config_row. */
bool model_words_window_size(const void *field, size_t index, char text[CONFIG_ITEM_BYTES]);
bool model_words_window_skip(const void *field, size_t index, char text[CONFIG_ITEM_BYTES]);

#endif
