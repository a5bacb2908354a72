/* The job of `quantize`: writes a model in few bits, as a directory that the formats' own libraries open. */
#pragma once

#include "comm/comm.h"
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
    int64_t threads; /* of each rank; 0: all cores */
    int64_t ranks;   /* 0: not given */
};

/* How codes are chosen. QUANTIZE_AUTO: GPTQ's way for its format, else the nearest. */
enum quantize_method { QUANTIZE_AUTO, QUANTIZE_NEAREST, QUANTIZE_AWQ, QUANTIZE_GPTQ };
/* Runs the job, a struct quantize_job, on a rank of the world, all of which call it; the first writes. The files have
 * the same bytes for any number of ranks. STATUS_USAGE for options that the format or the model does not take; errors
 * of opening, reading and writing a model, and of collectives. */
int quantize_job_run(struct comm *world, void *context);
