/* Shares of a queue: how many of its places each client may have.
 *
 * A client's share is proportional to its weight. The other clients that count are those with places, and those that
 * were recently refused a place within their share.
 *
 * While there is room, a client may exceed its share. It loses that excess first, when another client below its share
 * finds no room. It then gives way (its waiting requests make room), and gets no more until the other has come in.
 * Nothing here knows requests. The loop's thread. */
#pragma once

#include <stdint.h>

struct queue;

/* Makes a queue with `places` places. STATUS_MEMORY. */
int queue_open(int64_t places, struct queue **queue);
void queue_close(struct queue *queue);
int64_t queue_used(const struct queue *queue);

enum queue_answer {
    QUEUE_HAS_ROOM,
    QUEUE_IS_FULL,       /* and the client has its share */
    QUEUE_OVER_SHARE,    /* the client exceeds its share, and another waits for its own */
    QUEUE_MUST_MAKE_ROOM /* it is full, but this client is below its share and others exceed theirs */
};
/* Asks whether a client may have `count` more places at the time `now` (seconds). `count` is at most the number of all
 * places. */
enum queue_answer queue_ask(struct queue *queue, uint64_t client, double weight, int64_t count, double now);
/* Returns the client's excess over its share, in places per unit of weight; 0 for none. */
double queue_excess(const struct queue *queue, uint64_t client);
/* After QUEUE_MUST_MAKE_ROOM, when nobody could give way: lets the client count for some seconds as waiting for its
 * share. STATUS_MEMORY. */
int queue_miss(struct queue *queue, uint64_t client, double weight, double now);
/* queue_add gives the client `count` more places, whatever queue_ask says (STATUS_MEMORY); queue_remove takes them
 * back. */
int queue_add(struct queue *queue, uint64_t client, double weight, int64_t count);
void queue_remove(struct queue *queue, uint64_t client, int64_t count);
