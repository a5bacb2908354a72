/* Checks constraints without a model: lines with a constraint and texts, and what the constraint says about them. */
#pragma once

#include "base/base.h"

struct grammar_job {
    const char *tokenizer;      /* directory */
    const char *input, *output; /* files of JSON lines; "-": standard input; NULL: standard output */
    int64_t threads;            /* lines at once */
    double timeout;             /* of compiling, in seconds */
};
/* Answers the lines in their order. STATUS_INVALID at the first line that is no JSON object, after the answers to those
 * before it; a constraint that is refused is no failure. STATUS_NOT_FOUND, STATUS_IO, STATUS_MEMORY,
 * STATUS_INTERRUPTED; errors of the tokenizer. */
int grammar_job_run(const struct grammar_job *job);
