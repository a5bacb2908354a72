/* The job of `generate --requests`: answers the requests of a file in its order, many of them at once.
 *
 * The loop is in requests.c: it reads lines into a window, submits them to the scheduler, and writes answers in order.
 * Its parts: requests_line.h reads a line, requests_answer.c answers it, and requests_output.c writes the answer. A
 * line may have the form of OpenAI's batches (requests_batch.h). An answer depends only on its line, so a resumed run
 * writes the same file as an uninterrupted one. Everything runs on one thread, that of the engine's leader. */
#pragma once

#include "adapter_names.h"
#include "model.h"
#include "requests_line.h"

#include "config/config.h"
#include "data/lines.h"
#include "infer/adapters.h"
#include "infer/grammars.h"

struct requests_options {
    const char *input;  /* - is standard input */
    const char *output; /* NULL: standard output */
    bool resumes;
    const char *tokenizer;     /* its directory */
    struct config_list models; /* names of the base model, which a line may give as its model */
    int64_t seed;              /* lines without a seed derive theirs from it */
    const char *chat_template; /* "auto": the template of the request's adapter, else the tokenizer's */
    int special_tokens;        /* enum special_tokens, of lines without parse_special */
    double prefill_stretch;
    double template_timeout;          /* seconds; limits one rendering */
    int tool_format;                  /* of tool_format_choices */
    int reasoning;                    /* 0: read it, 1: it is text */
    struct grammars_options grammars; /* of constraints */
};

/* ---- shared by all lines ---- */

struct requests_model {
    struct engine *engine;
    struct adapters *adapters;
    struct openai_model openai; /* without its template */
    struct tokenizer_encoder *encoder;
    enum special_tokens special_tokens;  /* of lines without parse_special */
    uint64_t seed;                       /* lines without a seed derive theirs from it */
    struct chat_template *chat_template; /* the option's; NULL: none */
    const char *tokenizer_directory;
    struct chat_template *tokenizers_template; /* read when has_tokenizers_template; NULL: none */
    bool has_tokenizers_template;
    bool is_busy;              /* completions run: no line needs to be waited for */
    struct grammars *grammars; /* of constraints; NULL: the model has no tokenizer */
    struct grammar_vocabulary *vocabulary;
};

/* ---- answers: requests_answer.c ---- */

struct answer_choice {
    struct writer writer;
    int64_t drawn;
    struct call_end end;               /* with the id that ended it */
    struct call_top tops[ASK_MAX_TOP]; /* of that id */
};

enum answer_state { ANSWER_WAITS, ANSWER_RUNS, ANSWER_IS_DONE, ANSWER_IS_WRITTEN };

/* A line of the input and its answer. */
struct answer {
    struct answer *next;          /* next in the order of the input */
    struct answer *next_finished; /* list of the answers that the current step of the scheduler finished */
    struct answer **finished;     /* head of that list, to which on_done adds it */
    int64_t number;               /* of the line */
    enum answer_state state;
    struct request_line line;
    struct ask_ends ends;
    struct ask_constraint constraint;                  /* of the answers, with calls and after reasoning */
    struct grammar_order grammar;                      /* for its constraint */
    bool is_ordering;                                  /* and the order is not done */
    char digests[ASK_MAX_ADAPTERS][PEFT_SHA256_BYTES]; /* of the files of its adapters */
    uint64_t generations[PEFT_SLOT_IMAGES];
    int slot;
    bool has_slot;
    int64_t cached;                /* of the prompt's tokens */
    bool predicts_first;           /* virtual tokens predict the prompt's first token */
    bool has_prompt;               /* a token of the prompt was reported */
    struct answer_choice *choices; /* [line.request.ask.choices] */
    struct call_update *update;    /* what the answer gets next; empty between two callbacks */
    int status;                    /* first failure in a callback */
    bool is_too_slow;              /* a mask of its constraint */
    bool is_broken;                /* a log-probability is not finite, or a completion failed */
    bool is_error;                 /* `out` reports an error */
    struct strbuf out;             /* the line for the output, in state ANSWER_IS_WRITTEN */
};

/* Makes an answer from a line of the input. A faulty line gives a finished answer that reports its error. The answer
 * keeps `model`. STATUS_MEMORY. */
int answer_new(const char *text, size_t length, int64_t number, const struct openai_model *model,
               struct answer **answer);
void answer_free(struct answer *answer);
/* Orders the grammar of its constraint, if it has one and its messages, if it has any, were rendered. STATUS_MEMORY. */
int answer_order(struct answer *answer, struct requests_model *model);
/* Renders and tokenizes the prompt, and takes a slot for the request's adapters. Sets *must_wait when the adapters have
 * no room now, or its grammar is not compiled: the caller tries again after other requests have ended. A fault of the
 * request becomes its answer and is no failure of this function. STATUS_MEMORY, STATUS_PEER, STATUS_IO. */
int answer_prepare(struct answer *answer, struct requests_model *model, bool *must_wait);
/* Fills the scheduler's request for a prepared answer. */
void answer_request(struct answer *answer, const struct requests_model *model, struct scheduler_request *request);
/* Makes the current error text (status_text) the answer. `which`: its case in OpenAI's form. `field`: the faulty field,
 * or NULL. STATUS_MEMORY. */
int answer_fail(struct answer *answer, enum error_case which, const char *field);
/* Call this when the scheduler has finished the request: releases its slot and formats its line. STATUS_MEMORY. */
int answer_finish(struct answer *answer, struct requests_model *model);

/* ---- output: requests_output.c ---- */

struct requests_output {
    const char *path; /* NULL: standard output */
    int descriptor;   /* -1: not open */
    int64_t kept;     /* complete lines that the file had when it was opened */
    int64_t kept_errors;
};
/* Checks, before a model is opened, that the output can be begun or resumed. STATUS_USAGE. */
int requests_output_check(const char *path, bool resumes);
/* Opens the output. When resuming, checks its answers against `input` and skips their lines there. STATUS_IO,
 * STATUS_INVALID, STATUS_MEMORY. */
int requests_output_open(struct requests_output *output, const char *path, bool resumes, struct lines *input);
/* Writes complete lines. STATUS_IO. */
int requests_output_write(struct requests_output *output, const struct strbuf *text);
/* Closes the output. STATUS_IO: a late error of writing. */
int requests_output_close(struct requests_output *output);

/* ---- the job: requests.c ---- */

/* Checks the options, before a model is opened. STATUS_USAGE. */
int requests_check(const struct requests_options *options);
struct requests_result {
    int64_t answers, errors; /* lines of the output; those of them that report errors */
    int signal;              /* the signal that interrupted the run; 0: none */
};
struct requests_job {
    const struct job_model *model;
    const struct adapter_names *names;
    struct engine_options engine; /* rows, sequences, memory */
    bool cache_is_given;          /* engine.cache_bytes is an option's */
    struct requests_options options;
    struct requests_result result; /* set on the first rank */
};
/* Runs the job as a rank of `world`; `job` is a struct requests_job. A failure aborts all ranks (comm_fail). Call it
 * between stop_watch_begin and stop_watch_end (stop.h). A refused line is an answer, not a failure. */
int requests_job_run(struct comm *world, void *job);
/* Returns the command's status: STATUS_INVALID with a message when lines were refused, STATUS_INTERRUPTED after a
 * signal. */
int requests_verdict(const struct requests_options *options, const struct requests_result *result);
