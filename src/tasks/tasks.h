/* Benchmarks of language models: the tasks of `eval`.
 *
 * A task turns a row of its data set, a JSON object with the set's own field names, into the texts whose
 * log-probabilities are wanted, or that are completed. Afterwards it turns the results into metrics. Texts and metrics
 * equal those of EleutherAI's lm_eval 0.4.13. This room knows no model and no tokenizer. Any number
 * of threads may use it. */
#pragma once

#include "base/base.h"

#include <jansson.h>

enum task_metric {
    TASK_ACC,
    TASK_ACC_NORM,
    TASK_PERPLEXITY,
    TASK_WORD_PERPLEXITY,
    TASK_BYTE_PERPLEXITY,
    TASK_BITS_PER_BYTE,
    TASK_EXACT_MATCH,
    TASK_METRICS
};
/* The metrics' names, which are those of lm_eval. */
extern const char *const task_metric_names[TASK_METRICS];

enum task_kind {
    TASK_CHOICE,   /* the likeliest of several continuations should be the right one */
    TASK_ENDING,   /* one continuation */
    TASK_ROLLING,  /* a whole text, without a context */
    TASK_GENERATE, /* a completion that should be the answer */
};

/* ---- a row's texts ---- */

/* Bytes of task_row.texts. */
struct task_span {
    size_t start, length;
};
struct task_request {
    struct task_span context, continuation; /* TASK_ROLLING: no context; TASK_GENERATE: the answer */
    int64_t characters;                     /* TASK_CHOICE: of the choice, without the delimiter before it */
};
/* Starts zeroed. */
struct task_row {
    struct strbuf texts;
    struct task_request *requests; /* [count] */
    int64_t count;
    size_t capacity;
    int64_t gold;         /* TASK_CHOICE: the right choice, 0 .. count - 1 */
    int64_t words, bytes; /* TASK_ROLLING: of the text as the row has it */
    json_t *messages;     /* a reference: the chat whose rendering is the context; NULL: the contexts are in `texts` */
};
/* Frees a row's memory and leaves it zeroed. */
void task_row_free(struct task_row *row);

struct task {
    const char *name;
    enum task_kind kind;
    unsigned metrics; /* the set of 1 << enum task_metric */
    /* Makes the texts of a JSON object; `row` is zeroed, or was used before. STATUS_INVALID, with the field's name;
     * STATUS_MEMORY. */
    int (*build)(const json_t *object, struct task_row *row);
};
/* The tasks, most used first. */
extern const struct task task_list[];
extern const int task_count;
/* Appends a row as an example for others: its context, unless that is a chat, and the right continuation.
 * STATUS_MEMORY. */
int task_row_example(const struct task *task, const struct task_row *row, struct strbuf *out);
/* Returns the task with this name, of `length` bytes; NULL when there is none. */
const struct task *task_find(const char *name, size_t length);

/* ---- metrics ---- */

/* Sums over the rows of a task so far. Starts zeroed. */
struct task_sums {
    int64_t rows;
    int64_t right[TASK_METRICS]; /* rows that count for TASK_ACC, TASK_ACC_NORM and TASK_EXACT_MATCH */
    double logprob;              /* of all requests */
    double words, bytes;
};
struct task_result {
    double logprob; /* of a request's continuation */
    bool is_greedy; /* each of its tokens is the likeliest; TASK_GENERATE: the completion is the answer */
};
/* Adds a row with the results of its requests, results[row->count]. For TASK_ROLLING, a request may have had several
 * windows, whose sum this is. */
void task_sums_add(struct task_sums *sums, const struct task *task, const struct task_row *row,
                   const struct task_result *results);
/* Returns a metric. It is not finite where it has no value, as without rows. */
double task_sums_value(const struct task_sums *sums, enum task_metric metric);
/* True for TASK_EXACT_MATCH's result: the texts are equal without white space around them. */
bool task_is_answer(const char *text, size_t length, const char *answer, size_t answer_length);
/* True for the metrics that count rows. */
bool task_metric_counts(enum task_metric metric);
/* Returns the standard error of such a metric; NAN for fewer than two rows. */
double task_sums_error(const struct task_sums *sums, enum task_metric metric);

/* ---- literals ---- */

/* Reads a literal of Python's syntax, as ast.literal_eval does, into JSON: lists, tuples, dicts with texts as keys,
 * texts, numbers, True, False and None. A number that no double holds, bytes, sets and complex numbers are refused, and
 * so is nesting of more than 64. STATUS_INVALID with the place in bytes, STATUS_MEMORY. */
int python_literal_read(const char *text, size_t length, json_t **value);
