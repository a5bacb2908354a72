/* Shares of a queue: which clients may have how many of its places.
 *
 * A client's share is in proportion to its weight, among the clients that have places or were refused one of late that
 * their share has. While there is room, a client may have more than its share. It loses that first: where another below
 * its own share finds no room, it gives way (its waiting requests make room), and it gets no more until the other has
 * come in. Nothing here knows requests; the loop's thread. */
#ifndef CAMBIUM_SERVE_QUEUE_H
#define CAMBIUM_SERVE_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

struct queue;

/* STATUS_MEMORY. */
int queue_open(int64_t places, struct queue **queue);
void queue_close(struct queue *queue);
int64_t queue_used(const struct queue *queue);

enum queue_answer {
    QUEUE_HAS_ROOM,
    QUEUE_IS_FULL,       /* and the client has its share */
    QUEUE_OVER_SHARE,    /* the client has more than its share, and another waits for its own */
    QUEUE_MUST_MAKE_ROOM /* it is full, but the client has less than its share: others have more than theirs */
};
/* Says if a client may have `count` places more, at most all there are, at this moment (seconds). */
enum queue_answer queue_ask(struct queue *queue, uint64_t client, double weight, int64_t count, double now);
/* By how much a client is above its share, in places for each unit of weight; 0 where it is not. */
double queue_excess(const struct queue *queue, uint64_t client);
/* After QUEUE_MUST_MAKE_ROOM, where nobody could give way: for some seconds the client counts as one that waits for its
 * share. STATUS_MEMORY. */
int queue_miss(struct queue *queue, uint64_t client, double weight, double now);
/* Gives the client `count` places more, whatever queue_ask says. STATUS_MEMORY. */
int queue_add(struct queue *queue, uint64_t client, double weight, int64_t count);
void queue_remove(struct queue *queue, uint64_t client, int64_t count);

#endif
