/* Parts of `eval`: lines and contexts, completions, the results so far, and how they are written. */
#pragma once

#include "eval.h"

#include "data/lines.h"
#include "infer/ask.h"
#include "infer/likelihood.h"

/* The results of a task so far. */
struct eval_result {
    struct task_sums sums;
    int64_t requests;
    double began, ended; /* seconds of the clock: its first row was read, its last one was evaluated; 0: not yet */
};

/* A row of a round. */
struct eval_row {
    int64_t task, number; /* in the job's tasks, and in the task's rows from 0 */
    struct task_row texts;
    int64_t first, request_count; /* its requests in the round; a rolling text has one for each window */
};

/* ---- lines and contexts: eval_prompt.c ---- */

/* Reads the current line as a row of a task. *root is a new reference, also after a failure. STATUS_INVALID. */
int eval_read_line(struct lines *lines, const struct task *task, json_t **root, struct task_row *row);

struct eval_prompter;
struct eval_completer;
/* Opens what makes contexts; the arguments stay alive. Close it also after a failure. */
int eval_prompter_open(const struct eval_job *job, const struct tokenizer *tokenizer, int32_t eos,
                       struct eval_completer *completer, struct eval_prompter **prompter);
void eval_prompter_close(struct eval_prompter *prompter);
/* Begins a task: reads the rows that examples are taken from. STATUS_INVALID where there are too few of them. */
int eval_prompter_begin(struct eval_prompter *prompter, const struct eval_task *task);
/* Chooses the examples of the next row of the task. */
int eval_prompter_choose(struct eval_prompter *prompter, const json_t *asked);
/* Makes a context of that row, with the examples before it; `text` is valid until the next call. */
int eval_prompter_context(struct eval_prompter *prompter, const struct task_row *row, struct task_span context,
                          struct likelihood_text *text);

/* ---- completions: eval_answer.c ---- */

struct eval_completer {
    const struct eval_job *job;
    struct engine *engine;
    const struct tokenizer *tokenizer;
    bool has_turns;                 /* the template and the ends of a turn were read */
    struct chat_template *template; /* NULL: none */
    struct ask ask;                 /* a completion; --until has its stop strings */
    struct ask_ends ends[2];        /* of a text; of a turn */
};
/* Finds the ends of a text. STATUS_MEMORY. Close it in any case. */
int eval_completer_open(struct eval_completer *completer);
void eval_completer_close(struct eval_completer *completer);
/* Opens the chat template and finds the ends of a turn, when the first chat needs them. The errors of job_template_of.
 */
int eval_completer_need_turns(struct eval_completer *completer);
/* A prompt and its completion. */
struct eval_prompt {
    const struct likelihood *request;
    int64_t *drawn; /* [1 + ask.max_tokens] how many tokens there are, and these */
};
/* Completes prompts[count] greedily, all together. */
int eval_complete(struct eval_completer *completer, const int32_t *ids, const struct eval_prompt *prompts,
                  int64_t count);
/* Sets `out` to the text of a completion, without special tokens and before its end. */
int eval_completion(const struct eval_completer *completer, const struct eval_prompt *prompt, struct strbuf *out);

/* ---- results: eval_output.c ---- */

/* Prints the table of the tasks that have rows to standard output. STATUS_IO. */
int eval_print(const struct eval_job *job, const struct eval_result *results);
/* Writes the metrics to the job's output, which appears whole. STATUS_IO, STATUS_MEMORY. */
int eval_write(const struct eval_job *job, const struct engine *engine, int ranks, const struct eval_result *results);
/* Writes a line for a completion of a row. */
void eval_write_completion(const struct eval_job *job, const struct eval_row *row,
                           const struct likelihood_list *requests, const struct eval_prompt *prompt,
                           const struct strbuf *text, bool is_answer, FILE *out);
/* Writes a line for each request of a row. */
void eval_write_samples(const struct eval_job *job, const struct eval_row *row, const struct likelihood_list *requests,
                        FILE *out);
