/* Keys of a listener: who may send requests, under which name, and with which share.
 *
 * A key file has a line `name key [weight] [priority>=N] [tune] [tuning_jobs=N] [tuning_bytes=SIZE]` for each key.
 * White space separates words, and # begins a comment. The last three let its client tune, within limits. A name may
 * have several keys, so that a key can be replaced while both work. N is the lowest number that requests with the key
 * may request as their priority. Only the SHA-256 of a key is kept. The loop's thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KEYS_MAX = 4096, KEYS_NAME_BYTES = 64, KEYS_KEY_BYTES = 1024 };

struct keys;

/* Reads the file. STATUS_INVALID names file and line, but never a key. STATUS_NOT_FOUND, STATUS_IO, STATUS_MEMORY. */
int keys_open(const char *path, struct keys **keys);
/* keys_reload reads the same file again, with the same errors; a failure changes nothing. */
int keys_reload(struct keys *keys);
void keys_close(struct keys *keys);
size_t keys_count(const struct keys *keys);

/* The client that a key belongs to, and the limits of its requests. */
struct key_holder {
    uint64_t client;  /* a number for the name, not 0; the same in every file and after every reload */
    const char *name; /* valid until keys_close */
    double weight;
    int32_t least_priority; /* INT32_MIN: any */
    bool may_tune;
    int64_t tuning_jobs, tuning_bytes; /* that have not ended; of files and jobs. -1: unlimited */
};
/* Finds the key in an authorization field "Bearer KEY"; NULL and an empty key never match. The time does not depend on
 * which key it is, nor on how much of it is right. */
bool keys_find(const struct keys *keys, const char *authorization, struct key_holder *holder);
