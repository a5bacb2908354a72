/* The two sides of `verify serving`: the forward that trains, and the engine. */
#pragma once

#include "verify_serving.h"

#include "base/json.h"

/* The first value that differs between two paths. */
struct verify_first {
    int64_t text, token, id;
    float training, serving;
};
/* The comparison of a path with the reference. */
struct verify_path {
    const char *name;
    int64_t tokens, differ;
    double max_abs;
    struct verify_first first; /* if any differ */
};

enum verify_file { VERIFY_TRAINING, VERIFY_SERVING, VERIFY_FILES };
struct verify_dump;

/* A job under way. The first rank has the results; all ranks have the texts. */
struct verify {
    struct verify_serving *job;
    struct comm *world;
    bool is_first;
    struct token_buffer ids;
    struct verify_text *texts; /* [count] in `ids` */
    int64_t count, capacity, tokens, longest;
    int64_t vocab, tensor;
    int64_t before; /* virtual tokens of the adapters, those of prefixes included */
    const char *precision;
    size_t numbers, planned; /* bytes of what the paths compute, on this rank; of this host, while the forward trains */
    float *reference;        /* [tokens, vocab] log-probabilities of the forward that trains, text by text */
    float *row;              /* [VERIFY_ROWS, vocab] of a step */
    struct device *host;     /* sums logits, wherever they come from */
    struct rank host_rank;
    struct verify_dump *dump; /* NULL: none */
};
enum { VERIFY_ROWS = 64 }; /* the rows of a step whose logits an engine keeps */

/* ---- verify_compare.c ---- */

/* Turns logits [rows, vocab] into log-probabilities, in place, by the sums of the loss: the bits that `score` prints.
 */
int verify_normalise(struct verify *verify, float *logits, int64_t rows);
/* Compares a row with the reference: the distribution after token `token` of text `text`. */
void verify_compare(const struct verify *verify, struct verify_path *path, int64_t text, int64_t token,
                    const float *row);
/* Returns the reference's row. */
float *verify_reference(const struct verify *verify, int64_t text, int64_t token);
/* Prints a path on the first rank, and counts it for the job's results. */
int verify_tell(struct verify *verify, const struct verify_path *path);

/* ---- verify_dump.c ---- */

/* Opens both files under construction. STATUS_IO, STATUS_MEMORY. */
int verify_dump_open(const struct verify *verify, const char *directory, struct verify_dump **dump);
/* Writes a row of a text to a file; NULL is allowed. STATUS_IO. */
int verify_dump_row(struct verify_dump *dump, enum verify_file file, int64_t text, int64_t token, const float *row);
/* Lets the files appear. STATUS_IO. */
int verify_dump_commit(struct verify_dump *dump);
/* Removes what is not committed; NULL is allowed. */
void verify_dump_close(struct verify_dump *dump);

/* ---- verify_training.c ---- */

/* Computes the reference by the forward that trains, each text on its own, and compares it with the same forward of
 * texts that share batches. All ranks call it together. */
int verify_training(struct verify *verify);

/* ---- verify_engine.c ---- */

/* Runs the engine's paths. All ranks call it together. */
int verify_engine(struct verify *verify);
