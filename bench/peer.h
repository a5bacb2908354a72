/* Another program that is measured in turn with ours: a script of bench/peers, embedded in this program, run by the
 * user's Python. It prints a JSON object a line: one at first, then one for each line that it gets. */
#pragma once

#include <jansson.h>

extern const char bench_peer_tokenizer[], bench_peer_transformers[];

struct bench_peer;

/* Runs `python -c script arguments...` (NULL ends them). *hello is its first object, owned by the caller.
 * STATUS_NOT_FOUND when there is no such Python; STATUS_IO, STATUS_MEMORY. */
int bench_peer_open(const char *python, const char *script, const char *const *arguments, struct bench_peer **peer,
                    json_t **hello);
/* Sends the line `word` and returns the answer, which must have a number `key` above 0. Fails with the text of its
 * "error". The caller owns *answer, also after a failure. */
int bench_peer_ask(struct bench_peer *peer, const char *word, const char *key, json_t **answer);
/* Returns the number `key` of the answer. */
int bench_peer_number(struct bench_peer *peer, const char *word, const char *key, double *number);
void bench_peer_close(struct bench_peer *peer);
