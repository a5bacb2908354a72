/* Names that readers and writers of GGUF files share: of modules, tokenizers and patterns. The format has numbers in
 * place of Llama 3's scaling. */
#pragma once

#include "model/family.h"
#include "text/lists.h"

/* The parts of a parameter's name: "layers.3.", the module, a dot, and "weight" or "bias". */
struct param_words {
    int64_t layer; /* -1: none */
    const char *module;
    size_t length; /* of the module */
    const char *kind;
};

/* Splits a name of a parameter; the parts point into it. */
static inline struct param_words param_split(const char *name) {
    const char *dot = strrchr(name, '.');
    struct param_words words = {.layer = -1, .module = name, .kind = dot + 1};
    char *end;
    if (!strncmp(name, "layers.", 7)) {
        words.layer = strtoll(name + 7, &end, 10);
        words.module = end + 1;
    }
    words.length = (size_t)(dot - words.module);
    return words;
}

/* True when the module of a name is this one. */
static inline bool param_is_of(const struct param_words *words, const char *module) {
    return strlen(module) == words->length && !strncmp(module, words->module, words->length);
}

/* ---- gguf_weights.c ---- */

enum { GGUF_MAX_SOURCES = 3 };

/* The names of a module. A linear of several parts may be one tensor, or one for each part. */
struct gguf_module {
    const char *whole, *parts[GGUF_MAX_SOURCES];
    int64_t layer;    /* -1: none */
    const char *kind; /* "weight" or "bias" */
};
/* Finds the module of a parameter. */
void gguf_find_module(const struct param *param, struct gguf_module *module);
/* Writes the name of a tensor of a module: the whole or a part. Returns `out`. */
const char *gguf_tensor_name(const struct gguf_module *module, const char *part, char out[PARAM_NAME_BYTES]);

/* ---- gguf_rope.c ---- */

/* Returns what Llama 3's scaling divides a frequency by. */
double gguf_llama3_divisor(const struct model_config *config, double frequency);

/* ---- gguf_tokenizer.c ---- */

/* Return the name of a kind of tokenizers, of a pattern, and the number of a token's kind. */
const char *gguf_tokenizer_name(bool is_by_characters);
const char *gguf_pattern_name(enum tokenizer_list_words words);
int32_t gguf_token_kind(enum tokenizer_list_kind kind, bool is_unknown);
