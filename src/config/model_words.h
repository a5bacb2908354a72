/* Keys of `model:` whose value struct model_config holds in another form, and the conversion both ways. */
#pragma once

#include "run.h"

/* Puts the typed values into the model. STATUS_USAGE when they are not possible. */
int model_words_resolve(struct run_config *run);
/* Replaces the typed values by those that describe the resolved model. */
void model_words_describe(struct run_config *run);
/* `item` of the rows of the two lists: see struct config_row. */
bool model_words_window_size(const void *field, size_t index, char text[CONFIG_ITEM_BYTES]);
bool model_words_window_skip(const void *field, size_t index, char text[CONFIG_ITEM_BYTES]);
