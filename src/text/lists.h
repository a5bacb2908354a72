/* A tokenizer from lists of its tokens and merges, as other systems' formats have them, made into the files of a
 * tokenizer's directory. Any thread. */
#pragma once

#include "text/text.h"

/* A text that need not be terminated: UTF-8 without zero bytes. */
struct tokenizer_name {
    const char *bytes;
    size_t length;
};

enum tokenizer_list_kind {
    LIST_NORMAL,  /* a part of words, made by merges */
    LIST_SPECIAL, /* found in a text only when requested */
    LIST_ADDED,   /* found in every text before it is split into words */
    LIST_BYTE,    /* <0x00> to <0xFF>: a byte of a character that is not a token */
    LIST_UNUSED,  /* no text becomes it; left out at the end */
};

/* Words are split by the pattern of GPT-2 or of another tokenizer, or begin as characters. */
enum tokenizer_list_words {
    LIST_BYTE_LEVEL,
    LIST_LLAMA3,
    LIST_QWEN2,
    LIST_TEKKEN,
    LIST_SMOLLM,
    LIST_O200K,
    LIST_CHARACTERS
};

struct tokenizer_lists {
    const struct tokenizer_name *tokens;   /* [count], by id: in GPT-2's byte alphabet, or with U+2581 for a space */
    const enum tokenizer_list_kind *kinds; /* [count] */
    size_t count;
    const struct tokenizer_name *merges; /* [merge_count] "LEFT RIGHT", the first one merged first */
    size_t merge_count;
    const double *scores; /* [count], in place of merges where words begin as characters: the highest merges first */
    enum tokenizer_list_words words;
    bool has_nfc, ignores_merges, has_space_prefix, adds_bos, adds_eos;
    int64_t eos, bos, unk, pad; /* ids; -1: none */
    const char *chat_template;  /* NULL: none */
};

/* Makes tokenizer.json and tokenizer_config.json. Errors call them files of `where`. STATUS_INVALID for ids and scores
 * that do not fit the tokens; opening the files finds what else is wrong. STATUS_MEMORY. The caller frees the files
 * with tokenizer_files_free; on failure there is nothing to free. */
int tokenizer_files_make(const struct tokenizer_lists *lists, const char *where, struct tokenizer_files *files);

/* The lists of a tokenizer, and the memory that they lie in. */
struct tokenizer_listing {
    struct tokenizer_lists lists; /* scores are those of the merges; there is no chat template */
    struct tokenizer_name *tokens, *merges;
    enum tokenizer_list_kind *kinds;
    double *scores;
    struct strbuf text;
};
/* Lists an opened tokenizer. STATUS_UNSUPPORTED for words that no list can name; STATUS_MEMORY. Call
 * tokenizer_listing_free in any case. */
int tokenizer_list(const struct tokenizer *tokenizer, struct tokenizer_listing *listing);
void tokenizer_listing_free(struct tokenizer_listing *listing);
