/* Metrics of tasks, from the log-probabilities of their requests. */
#include "tasks.h"

#include "unicode/python.h"

#include <math.h>

/* Returns the first of the largest scores, as numpy's argmax does; NaN counts as larger than any number. */
static int64_t find_best(const struct task_row *row, const struct task_result *results, bool is_per_character) {
    int64_t best = 0;
    double best_score = 0;
    for (int64_t i = 0; i < row->count; i++) {
        double score = results[i].logprob / (is_per_character ? (double)row->requests[i].characters : 1);
        if (i == 0 || score > best_score || (isnan(score) && !isnan(best_score))) {
            best = i;
            best_score = score;
        }
    }
    return best;
}

void task_sums_add(struct task_sums *sums, const struct task *task, const struct task_row *row,
                   const struct task_result *results) {
    sums->rows++;
    for (int64_t i = 0; i < row->count; i++)
        sums->logprob += results[i].logprob;
    sums->words += (double)row->words;
    sums->bytes += (double)row->bytes;
    if (task->kind == TASK_CHOICE) {
        sums->right[TASK_ACC] += find_best(row, results, false) == row->gold;
        sums->right[TASK_ACC_NORM] += find_best(row, results, true) == row->gold;
    } else if (task->kind != TASK_ROLLING) {
        sums->right[task->kind == TASK_ENDING ? TASK_ACC : TASK_EXACT_MATCH] += results[0].is_greedy;
    }
}

bool task_is_answer(const char *text, size_t length, const char *answer, size_t answer_length) {
    python_strip(&text, &length);
    python_strip(&answer, &answer_length);
    return length == answer_length && !memcmp(text, answer, length);
}

bool task_metric_counts(enum task_metric metric) {
    return metric == TASK_ACC || metric == TASK_ACC_NORM || metric == TASK_EXACT_MATCH;
}

double task_sums_value(const struct task_sums *sums, enum task_metric metric) {
    double rows = (double)sums->rows;
    switch (metric) {
    case TASK_ACC:
    case TASK_ACC_NORM:
    case TASK_EXACT_MATCH:
        return (double)sums->right[metric] / rows;
    case TASK_PERPLEXITY:
        return exp(-sums->logprob / rows);
    case TASK_WORD_PERPLEXITY:
        return exp(-sums->logprob / sums->words);
    case TASK_BYTE_PERPLEXITY:
        return exp(-sums->logprob / sums->bytes);
    default:
        return -sums->logprob / sums->bytes / log(2);
    }
}

double task_sums_error(const struct task_sums *sums, enum task_metric metric) {
    double mean = task_sums_value(sums, metric);
    return sums->rows < 2 ? NAN : sqrt(mean * (1 - mean) / (double)(sums->rows - 1));
}
