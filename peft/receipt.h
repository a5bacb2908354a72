/* The receipt of an adapter, cambium_receipt.json: digests of adapter and base, and golden log-probabilities. A loader
 * computes these again: it then runs the same adapter on the same base. docs/formats.md describes the file. */
#pragma once

#include "base/json.h"
#include "peft/peft.h"

#define PEFT_RECEIPT_FILE "cambium_receipt.json"
enum { RECEIPT_BYTES = 1 << 22 /* at most */, RECEIPT_TEXTS = 4, RECEIPT_TOKENS = 16 };

/* Modes of loading an adapter: `check` refuses one whose receipt does not hold, `require` also one without a receipt.
 * `off` checks nothing. */
enum receipt_mode { RECEIPTS_CHECK, RECEIPTS_REQUIRE, RECEIPTS_OFF };

/* The run that computed the log-probabilities. */
struct receipt_run {
    char precision[8], device[16];
    char level[64]; /* the CPU's or the GPU's: "avx512_bf16", "sm_90" */
    int64_t tensor_parallel;
    bool batch_invariant;
};

struct receipt_text {
    int32_t tokens[RECEIPT_TOKENS];
    /* The log-probability of token i after those before it; NaN: nothing predicts token 0. */
    float logprobs[RECEIPT_TOKENS], base_logprobs[RECEIPT_TOKENS];
    /* SHA-256 of the rows of log-probabilities over the whole vocabulary after each token, with the adapter, as
     * little-endian fp32; "": not computed. */
    char rows_sha256[PEFT_SHA256_BYTES];
};

struct receipt {
    char version[32], commit[64]; /* of the program */
    struct receipt_run run;
    struct receipt_text golden[RECEIPT_TEXTS];
    json_t *root; /* the whole object, for digests; NULL: this receipt was not read from a file */
};

/* Draws the golden tokens for a vocabulary. They depend on nothing else. */
void receipt_draw(int64_t vocab, struct receipt_text golden[RECEIPT_TEXTS]);

/* Reads the receipt of a block that was checked. *is_there is false when it has none. Everything but the digests is
 * checked: STATUS_INVALID, also for a later version of the format. receipt_free frees it. */
int receipt_read(const struct peft_bytes *bytes, bool *is_there, struct receipt *receipt);
void receipt_free(struct receipt *receipt);

/* Compares the adapter's tensors and configuration with those of its receipt, if it has one, for a later
 * receipt_check_adapter: digests take long, and any thread may compute them. A difference, or a damaged receipt, is no
 * failure. STATUS_MEMORY, STATUS_IO. */
int receipt_compare(struct peft_bytes *bytes);
/* Checks that the adapter's tensors and configuration are those of a receipt that was read. STATUS_INVALID names the
 * first tensor, or the first key, that differs. */
int receipt_check_adapter(const struct receipt *receipt, const struct peft_bytes *bytes);
/* The same for the tensors of the base in directory `model`; also counts those that differ. Reads the whole base. */
int receipt_check_base(const struct receipt *receipt, const char *directory, const char *model);

/* Checks an adapter of open directories by its digests in its receipt, if it has one. No model runs. The caller gets
 * the receipt without its root. Errors of the functions above. */
int receipt_check_file(const struct peft_files *files, int index, bool *is_there, struct receipt *receipt);
/* The failure of an adapter without a receipt in mode `require`: STATUS_INVALID. */
int receipt_fail_none(const char *directory);

/* Describes the base in directory `model` for receipts: reads all of it. The caller gives the reference back.
 * STATUS_IO, STATUS_MEMORY. */
int receipt_describe_base(const char *model, json_t **base);
/* Makes the text of a receipt, with digests of the block. The caller frees it. STATUS_IO, STATUS_MEMORY. */
int receipt_write(const struct receipt *receipt, const struct peft_bytes *bytes, json_t *base, char **text);

/* Computes a SHA-256 in hexadecimal digits. STATUS_MEMORY. */
int peft_sha256(const void *bytes, size_t length, char digest[PEFT_SHA256_BYTES]);
