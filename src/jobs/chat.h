/* The job of `chat`: a conversation with a model, whose adapters may change between two questions.
 *
 * The job opens the model and gives the conversation to the caller, who asks. It runs on one rank. Every question is
 * answered with the conversation so far as its prompt; the engine still has the keys and values of earlier turns. */
#pragma once

#include "adapter_names.h"
#include "model.h"

#include "infer/generate.h"

struct conversation;

struct chat_job {
    const struct job_model *model;     /* its adapters answer from the start */
    const struct adapter_names *names; /* adapters that are only known */
    const char *system;                /* the system message; NULL: none */
    const char *chat_template;         /* "auto": that of the first adapter that has one, else the tokenizer's */
    double template_timeout;           /* seconds; limits one rendering */
    const struct ask *ask;             /* an answer */
    /* Asks. A status other than 0 ends the job. */
    int (*talk)(void *context, struct conversation *conversation);
    void *context;
};

/* Runs the job as the only rank of `world`; `job` is a struct chat_job. STATUS_UNSUPPORTED when neither adapters nor
 * tokenizer have a chat template and the option names none; errors of opening the model, of conversation_use, and of
 * talk. */
int chat_job_run(struct comm *world, void *job);

/* ---- for talk ---- */

struct conversation_output {
    /* Gets new bytes of the answer, or of the reasoning before it. A status other than 0 ends the answer. */
    int (*on_text)(void *context, const char *bytes, size_t length, bool is_reasoning);
    bool (*is_interrupted)(void *context); /* true ends the answer here; asked between steps */
    void *context;
};
/* Asks a question of the user and adds question and answer to the conversation, also an answer that was interrupted.
 * *reason says how the answer ended. After a failure the conversation is as before. STATUS_INVALID: the question is not
 * UTF-8, or the conversation does not fit into the context; errors of the template, the engine and on_text. */
int conversation_ask(struct conversation *conversation, const char *text, size_t length,
                     const struct conversation_output *output, enum finish_reason *reason);
/* Answers with these adapters [count] from now on; none: with the bare base. A name that is not known may be a
 * directory, which then becomes known by that name. A failure changes nothing. STATUS_NOT_FOUND for an unknown name;
 * STATUS_USAGE when they cannot be combined; errors of reading the adapters and their templates. */
int conversation_use(struct conversation *conversation, const char *const *names, int count);
/* Finds the adapter with this number, from 0. Returns false when there is none. */
bool conversation_adapter(const struct conversation *conversation, int number, const char **name, bool *is_used);
/* Begins a new conversation. The system message and the adapters stay. */
void conversation_reset(struct conversation *conversation);
/* Writes the messages as one JSON line {"messages": [...]}, a row to tune on. The file appears whole. STATUS_INVALID
 * when there is nothing to write, or the file exists and is not the one that this conversation wrote last; STATUS_IO,
 * STATUS_MEMORY. */
int conversation_save(struct conversation *conversation, const char *path);
