/* The job of `quantize`: writes a model in few bits, as a directory that the formats' own libraries open. */
#pragma once

#include "config/config.h"

struct quantize_job {
    const char *model, *output; /* a directory or a file; a directory */
    int format;                 /* a number for codec_format_at */
    int64_t group;              /* positions that share a scale; -1: rows; 0: not given */
    bool has_zeros;
    struct config_list ignore; /* modules that stay plain */
    int method;                /* enum quantize_method */
    const char *data;          /* a file of texts; NULL: none */
    int64_t samples, seq_length, seed;
    int precision;   /* of the samples' way through the model: 0: the model's; else enum precision + 1 */
    int64_t threads; /* 0: all cores */
};

/* How codes are chosen. QUANTIZE_AUTO: GPTQ's way for its format, else the nearest. */
enum quantize_method { QUANTIZE_AUTO, QUANTIZE_NEAREST, QUANTIZE_AWQ, QUANTIZE_GPTQ };
/* Runs the job. STATUS_USAGE for options that the format or the model does not take; errors of opening, reading and
 * writing a model. */
int quantize_job_run(const struct quantize_job *job);
