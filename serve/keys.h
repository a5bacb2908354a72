/* Keys of a listener: who may ask, under which name and with which share.
 *
 * A key file has a line `name key [weight] [priority>=N]` for each key. Words stand between blanks, # begins a comment,
 * and a name may have several keys, so that one can be exchanged for another while both work. N is the lowest number
 * that requests with the key may ask for as their priority. Of a key its SHA-256 alone is kept.
 * The loop's thread. */
#ifndef CAMBIUM_SERVE_KEYS_H
#define CAMBIUM_SERVE_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KEYS_MAX = 4096, KEYS_NAME_BYTES = 64, KEYS_KEY_BYTES = 1024 };

struct keys;

/* Reads the file. STATUS_INVALID names file and line, but never a key; STATUS_NOT_FOUND, STATUS_IO, STATUS_MEMORY. */
int keys_open(const char *path, struct keys **keys);
/* Reads the same file again; after a failure nothing has changed. */
int keys_reload(struct keys *keys);
void keys_close(struct keys *keys);
size_t keys_count(const struct keys *keys);

/* The client that a key belongs to, and what requests with it may ask for. */
struct key_holder {
    uint64_t client;  /* a number of the name, not 0: the same in every file and after every reload */
    const char *name; /* lives until keys_close */
    double weight;
    int32_t least_priority; /* INT32_MIN: any */
};
/* Whether the value of an authorization field, "Bearer KEY", has one of the keys; NULL and an empty key are none. It
 * takes the same time whichever key it is, and how much of it is right. */
bool keys_find(const struct keys *keys, const char *authorization, struct key_holder *holder);

#endif
