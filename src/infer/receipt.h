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
