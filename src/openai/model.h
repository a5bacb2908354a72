/* A model as requests and answers see it. */
#pragma once

#include "infer/engine.h"
#include "text/chat.h"
#include "text/prompt.h"
#include "text/tool_format.h"

struct openai_model {
    const char *name;         /* the name in answers */
    const char *const *names; /* [name_count] all names of the base */
    size_t name_count;
    char fingerprint[16]; /* "b" and 12 hex digits of the base's digest */
    int64_t created;      /* seconds of the epoch */
    int64_t max_model_len, vocab;
    int64_t most_texts; /* prompts times completions of one request */
    struct model_text_ends ends;
    const char *precision;                 /* "fp32", "bf16", "tf32" */
    const char *quantization;              /* "gptq, 4 bits, groups of 128"; "": the weights are plain */
    const struct tokenizer *tokenizer;     /* NULL: none */
    struct prompt_room room;               /* for texts and renderings */
    struct chat_template *chat_template;   /* the base's: the tokenizer's, or the option's; NULL: none */
    double template_seconds;               /* limits one rendering */
    const struct tool_format *tool_format; /* of calls; NULL: the one that a template selects */
    bool has_no_reasoning;                 /* reasoning is text like any other */
};

/* Fills in what the engine and the tokenizer (NULL: none) know: all but the names, most_texts, and the template with
 * its limit. The errors of peft_base_digest. */
int openai_model_describe(struct openai_model *model, const struct engine *engine, const struct tokenizer *tokenizer);
