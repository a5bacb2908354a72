/* `generate --requests`: many requests of a file, answered in its order with many texts under way at once.
 *
 * requests.c has the loop: lines come into a window, go to the scheduler from there, and leave in order.
 * requests_line.h reads a line, requests_answer.c answers it, and requests_output.c writes answers. What a
 * line gets depends on no other line and on no other run, so that a resumed run writes what an uninterrupted one does.
 * One thread, the engine's leader. */
#ifndef CAMBIUM_JOBS_REQUESTS_H
#define CAMBIUM_JOBS_REQUESTS_H

#include "adapter_names.h"
#include "model.h"
#include "requests_line.h"

#include "config/config.h"
#include "data/lines.h"
#include "infer/adapters.h"

struct requests_options {
    const char *input;  /* - is standard input */
    const char *output; /* NULL: standard output */
    bool resumes;
    const char *tokenizer;     /* the directory of one */
    struct config_list models; /* names of the base, which a line may give as its model */
    int64_t seed;              /* that lines without one take theirs from */
    const char *chat_template; /* "auto": as each request's adapters or the tokenizer have it */
    double prefill_stretch;
    double template_timeout; /* seconds of one rendering */
};

/* ---- what all lines share ---- */

struct requests_model {
    struct engine *engine;
    struct adapters *adapters;
    const struct config_list *names;   /* of the base */
    const struct tokenizer *tokenizer; /* NULL: none */
    struct tokenizer_encoder *encoder;
    uint64_t seed; /* that lines without one take theirs from */
    struct model_text_ends ends;
    struct prompt_room room;             /* of renderings */
    struct chat_template *chat_template; /* of the option; NULL: none */
    double template_timeout;
    const char *tokenizer_directory;
    struct chat_template *tokenizers_own; /* with has_tokenizers_own; NULL: none */
    bool has_tokenizers_own;
};

/* ---- answers: requests_answer.c ---- */

struct answer_choice {
    struct writer writer;
    struct strbuf text, logprobs; /* logprobs: as JSON, without brackets */
    struct token_buffer tokens;   /* of the text */
    int64_t drawn;
    enum scheduler_end reason;
};

enum answer_state { ANSWER_WAITS, ANSWER_RUNS, ANSWER_IS_DONE, ANSWER_IS_WRITTEN };

/* A line on its way from the input to the output. */
struct answer {
    struct answer *next;          /* in the order of the input */
    struct answer *next_finished; /* while the scheduler's step lasts */
    struct answer **finished;     /* where on_done puts it */
    int64_t number;               /* of the line */
    enum answer_state state;
    struct request_line line;
    struct ask_ends ends;
    char digests[ASK_MAX_ADAPTERS][PEFT_SHA256_BYTES]; /* of its adapters' files */
    int slot;
    bool has_slot;
    int64_t cached;
    struct strbuf prompt_logprobs; /* as JSON, without brackets */
    struct answer_choice *choices; /* [line.asked.choices] */
    const struct tokenizer *tokenizer;
    int status;        /* of a callback */
    bool is_broken;    /* a log-probability is no number */
    bool is_error;     /* `out` is an error's line */
    struct strbuf out; /* the line of the output, when it is written */
};

/* A line of the input: what it asks for, or an answer that says what is wrong with it. */
int answer_new(const char *text, size_t length, int64_t number, int64_t vocab, struct answer **answer);
void answer_free(struct answer *answer);
/* Looks up and tokenizes what the request names, and takes its adapters. *must_wait: they have no room now; the caller
 * tries again when other texts have ended. Whatever is wrong with the request makes it an error's line, and is no
 * failure of this function. */
int answer_prepare(struct answer *answer, struct requests_model *model, bool *must_wait);
/* Writes the scheduler's request. */
void answer_request(struct answer *answer, const struct requests_model *model, struct scheduler_request *request);
/* The text of a status becomes the line. */
int answer_fail(struct answer *answer, const char *field);
/* The scheduler is done with it: its adapters go, and its line is written. */
int answer_finish(struct answer *answer, struct requests_model *model);

/* ---- where they go: requests_output.c ---- */

struct requests_output {
    const char *path; /* NULL: standard output */
    int descriptor;   /* -1: not open */
    int64_t kept;     /* lines that a file had */
    int64_t kept_errors;
};
/* Before a model is opened: whether the output can be begun, or gone on with. */
int requests_output_check(const char *path, bool resumes);
/* `input` is read as far as the output has answers. */
int requests_output_open(struct requests_output *output, const char *path, bool resumes, struct lines *input);
int requests_output_write(struct requests_output *output, const struct strbuf *text);
/* The last status of a file that was written. */
int requests_output_close(struct requests_output *output);

/* ---- all of it: requests.c ---- */

/* Whether the options can be; before the model is opened. */
int requests_check(const struct requests_options *options);
struct requests_result {
    int64_t answers, errors; /* lines of the output, and those of them that are errors */
    int signal;              /* that ended the run before its end; 0: none */
};
struct requests_job {
    const struct job_model *model;
    const struct adapter_names *names;
    struct engine_options engine; /* rows, sequences, memory */
    struct requests_options options;
    struct requests_result result; /* of the first rank */
};
/* As a rank of `world`, which aborts where it fails (comm_fail); `job` is a struct requests_job. Between
 * stop_watch_begin and stop_watch_end (stop.h). A line that is refused is an answer, and no failure. */
int requests_job_run(struct comm *world, void *job);
/* The command's status by its result: STATUS_INVALID, in one line, where lines were refused, STATUS_INTERRUPTED. */
int requests_verdict(const struct requests_options *options, const struct requests_result *result);

#endif
