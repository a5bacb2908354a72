/* The families, a row each: what it is, in a file of its own. In the order of their numbers; a new one comes last. */
#ifndef CAMBIUM_MODEL_FAMILY_INTERNAL_H
#define CAMBIUM_MODEL_FAMILY_INTERNAL_H

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

/* Reads those of a config.json. `otherwise`: the end of a text where the file has no key for it; -1: none. */
void text_ends_read(struct json_keys *keys, const struct model_config *config, int32_t otherwise,
                    struct model_text_ends *ends);
/* bos_token_id and eos_token_id, new references. */
json_t *text_ends_bos(const struct model_text_ends *ends);
json_t *text_ends_eos(const struct model_text_ends *ends);

#endif
