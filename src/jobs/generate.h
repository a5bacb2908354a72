/* The job of `generate` with one prompt: completions of a text, of messages or of token ids. */
#pragma once

#include "model.h"

#include "infer/generate.h"

struct generate_prompt {
    struct strbuf text; /* of messages: as the template renders them; empty when ids were given */
    struct token_buffer ids;
    bool has_tokenizer; /* false: completions are only ids */
};

struct generate_job {
    const struct job_model *model;
    /* One of the three is given. */
    const char *text;       /* - is standard input */
    const char *messages;   /* a JSON file; - is standard input */
    struct config_list ids; /* words of digits, also several in one word */

    int special_tokens;        /* enum special_tokens, of the text */
    const char *chat_template; /* "auto": the template of the first adapter that has one, else the tokenizer's */
    double template_timeout;   /* seconds; limits one rendering */
    const struct ask *ask;     /* the completions */

    /* Output, called on the first rank. Each returns a status, and a failure ends the job. */
    int (*on_prompt)(void *context, const struct generate_prompt *prompt); /* before the first token is drawn */
    /* As in struct generate_options; NULL: completions are only given whole. */
    int (*on_text)(void *context, int64_t sample, const char *bytes, size_t length);
    int (*on_end)(void *context, const struct generate_prompt *prompt,
                  const struct generated *completions); /* [ask->choices] */
    void *context;
};

/* Runs the job as a rank of `world`; `job` is a struct generate_job. A failure aborts all ranks (comm_fail). The first
 * rank returns STATUS_USAGE for ids that are none, STATUS_INVALID for messages or a prompt that the model cannot
 * continue, and failures of the output. */
int generate_job_run(struct comm *world, void *job);
