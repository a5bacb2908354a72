/* The families, one row each; each is defined in its file. A row's place is the family's number (model_config.family),
 * so a new row goes last. */
#pragma once

#include "base/json_keys.h"
#include "family.h"

#define MODEL_FAMILIES(ROW)                                                                                            \
    ROW(model_family_gpt2)                                                                                             \
    ROW(model_family_llama)                                                                                            \
    ROW(model_family_mistral) ROW(model_family_qwen2) ROW(model_family_qwen3) ROW(model_family_phi3)

#define MODEL_DECLARE(family) extern const struct model_family family;
MODEL_FAMILIES(MODEL_DECLARE)
#undef MODEL_DECLARE

/* ---- text_ends.c ---- */

/* Reads the ids from a config.json. `otherwise` is the end of a text if the file has no key for it; -1: none. Errors go
 * to keys->status. */
void text_ends_read(struct json_keys *keys, const struct model_config *config, int32_t otherwise,
                    struct model_text_ends *ends);
/* Return the values of bos_token_id and eos_token_id, as new references. */
json_t *text_ends_bos(const struct model_text_ends *ends);
json_t *text_ends_eos(const struct model_text_ends *ends);
