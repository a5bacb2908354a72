/* Replays the receipts of adapters: their golden texts run through the engine, and the log-probabilities must be those
 * of the receipt. Only the leader calls these functions. */
#pragma once

#include "infer/engine.h"
#include "peft/receipt.h"

/* How an adapter was loaded. */
enum receipt_word { RECEIPT_NONE, RECEIPT_EXACT, RECEIPT_AGREES, RECEIPT_REFUSED, RECEIPT_WORDS };
struct receipt_result {
    enum receipt_word word;
    double gap; /* largest difference of a log-probability; 0 without a receipt */
};
extern const char *const receipt_words[RECEIPT_WORDS]; /* "none", ... */

/* Replays the receipt of the adapter with these files and this image, between any steps of the engine. Without one it
 * warns by name of an adapter that changes nothing, or has another base. STATUS_INVALID: the adapter is refused, and
 * the text names the cause. STATUS_MEMORY when completions use the pages that
 * long virtual tokens need; errors of the engine. */
int engine_replay(struct engine *engine, const struct peft_bytes *bytes, int image, struct receipt_result *result);
/* Replays those of the engine's opened slot. All ranks call it together, once, after engine_open. */
int engine_replay_opened(struct engine *engine);
/* Computes a receipt for such an adapter; the caller frees *text. `base`: of receipt_describe_base. Errors of
 * receipt_write and the engine. */
int engine_make_receipt(struct engine *engine, const struct peft_bytes *bytes, int image, json_t *base, char **text);

/* ---- without an engine; any rank ---- */

/* Returns the label of the row that predicts a token of a text; the row after the last one has some label, too. */
static inline int32_t receipt_label(const struct receipt_text *text, int token) {
    return token < RECEIPT_TOKENS ? text->tokens[token] : 0;
}
/* Describes this run and program in a receipt. */
void receipt_describe_run(const struct rank *rank, const char *precision, struct receipt *receipt);
/* Sets a text's numbers, with an adapter or of the base, from `rows` [count, vocab] of logits, which it overwrites, and
 * the log-probabilities [count] of their labels. `count` is RECEIPT_TOKENS, or 1 more where the first row predicts
 * token 0. STATUS_MEMORY. */
int receipt_take_rows(struct receipt_text *text, bool is_base, int count, int64_t vocab, const float *label_logprobs,
                      float *rows);
