/* The ranks of the stand-in for NCCL share this: memory that every process of a world has mapped. The identifier of the
 * world says where it is.
 *
 * A rank that comes to a call posts it here, with the bytes that it sends. A collective runs at a rank when all ranks
 * of the communicator have posted it; a message runs when both sides have come. There is no other buffer: whoever comes
 * early waits. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BOARD_RANKS = 8, BOARD_GROUPS = 128, BOARD_SPLITS = 128, BOARD_POSTS = 64, BOARD_WAITS = 8, BOARD_TEXT = 160 };

enum board_kind {
    BOARD_ALL_REDUCE,
    BOARD_REDUCE_SCATTER,
    BOARD_ALL_GATHER,
    BOARD_BROADCAST,
    BOARD_SEND,
    BOARD_RECEIVE
};

struct board_call {
    enum board_kind kind;
    uint32_t type, op;
    int peer; /* the root of a broadcast; the other rank of a message */
    uint64_t count;
};

/* A call at which a rank has come. */
struct board_post {
    bool is_live;
    int group;       /* the communicator */
    uint64_t number; /* of the collective in the communicator, or of the message between the two */
    struct board_call call;
    uint64_t at, bytes; /* of what it sends, in the rank's part of the memory */
    int readers;        /* ranks that still need it */
};

/* Calls of a stream that cannot proceed. */
struct board_wait {
    uint32_t ranks; /* a bit for each rank of the world that has not come to them */
    char call[BOARD_TEXT];
};

struct board_rank {
    bool has_joined;
    char card[16];
    struct board_post posts[BOARD_POSTS];
    uint64_t head;      /* the end of the bytes of live posts */
    uint64_t looked_at; /* the board's progress when nothing could proceed here */
    bool stands;        /* nothing could a second time, with the same progress */
    int wait_count;
    struct board_wait waits[BOARD_WAITS]; /* of all its streams */
};

/* A communicator. Group 0 is the world. */
struct board_group {
    int size;
    int rank[BOARD_RANKS]; /* in the world */
};

/* The calls of one ncclCommSplit. */
struct board_split {
    int group;       /* that is split */
    uint64_t number; /* among its splits */
    int posted;      /* ranks */
    bool has_posted[BOARD_RANKS];
    int color[BOARD_RANKS], key[BOARD_RANKS];
    int made[BOARD_RANKS]; /* the new group, by rank of the old one; -1: none */
};

struct board {
    pthread_mutex_t lock; /* between processes */
    uint64_t progress;    /* counts all that might let a waiting rank proceed */
    int group_count, split_count;
    struct board_rank ranks[BOARD_RANKS];
    struct board_group groups[BOARD_GROUPS];
    struct board_split splits[BOARD_SPLITS];
};

/* Makes a board, and writes where it is into `id` [128]. 0, or -1. */
int board_make(char id[128]);
/* Maps the board of an identifier; NULL where there is none. The caller unmaps it. */
struct board *board_open(const char id[128]);
void board_close(struct board *board);
void board_lock(struct board *board);
void board_unlock(struct board *board);

/* ---- under the lock ---- */

/* Room for a post of a rank with `bytes` of data; NULL where it has no room now. The data are at board_data(). */
struct board_post *board_post(struct board *board, int rank, uint64_t bytes);
char *board_data(struct board *board, int rank, const struct board_post *post);
/* The post of a rank for a collective, or for a message to `peer`; NULL where the rank has not come to it. */
struct board_post *board_find(struct board *board, int group, int rank, uint64_t number, int peer);
/* The split of this number, made where it is not there yet. */
struct board_split *board_split(struct board *board, int group, uint64_t number);
/* Makes the groups of a split that all ranks have posted. */
void board_make_groups(struct board *board, struct board_split *split);
/* Notes that nothing can proceed at a rank, whose waits are set. Once ranks wait for each other in a circle, the
 * process ends with a report of their calls, whatever other ranks do. */
void board_stand(struct board *board, int rank);

/* "all-reduce of 8 float32 (sum)". */
void board_describe(const struct board_call *call, char text[BOARD_TEXT]);
uint64_t board_type_bytes(uint32_t type);
/* Ends the process with a report. */
void board_end(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
