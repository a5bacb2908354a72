/* Another program that is measured in turn with ours: a script of bench/peers, which this program carries, in a Python
 * of the user's. It prints a JSON object a line: one at first, then one for each line that it is given. */
#ifndef CAMBIUM_BENCH_PEER_H
#define CAMBIUM_BENCH_PEER_H

#include <jansson.h>

extern const char bench_peer_tokenizer[], bench_peer_transformers[];

struct bench_peer;

/* Runs `python -c script arguments...` (NULL ends them); *hello is its first object, the caller's. STATUS_NOT_FOUND
 * where there is no such Python. */
int bench_peer_open(const char *python, const char *script, const char *const *arguments, struct bench_peer **peer,
                    json_t **hello);
/* Its answer to the line `word`; fails with the text that it gives as "error". */
int bench_peer_ask(struct bench_peer *peer, const char *word, json_t **answer);
/* The number `key` of the answer. */
int bench_peer_number(struct bench_peer *peer, const char *word, const char *key, double *number);
void bench_peer_close(struct bench_peer *peer);

#endif
