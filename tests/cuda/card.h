/* A GPU of the stand-in for the driver, for the files that have the driver's calls. A call enters the GPU of its
 * thread's context, and leaves it with its result. */
#pragma once

#include "cuda/driver_stream.h"

#include <cuda.h>

#define API __attribute__((visibility("default")))

enum { CAPABILITY = 90, PLAIN_SHARED = 49152, MOST_SHARED = 232448 };

enum call_kind { CALL_ALLOC, CALL_LAUNCH, CALL_COPY, CALL_WAIT, CALL_EVENT, CALL_BUS, CALL_KINDS };

/* A GPU is its own context. Everything is under its lock. */
struct card {
    pthread_mutex_t lock;
    bool is_open;
    int slot; /* of the machine: the same GPU has the same in every process */
    struct machine machine;
    struct streams streams;
    struct stream *null_stream;
    struct image *images; /* texts that were loaded */
    unsigned long allocations;
    unsigned long uploads, downloads;    /* copies between host and device */
    unsigned long graph_launches;        /* whose work counts in none of the others */
    unsigned long outside;               /* launches that are not captured */
    unsigned long waits;                 /* of the host, for a stream or an event with work to run */
    unsigned long edges;                 /* "edge" of a trace */
    unsigned long contexts;              /* that are retained */
    CUresult error;                      /* of the first fault */
    unsigned long commanded[CALL_KINDS]; /* calls since CAMBIUM_CUDA_FAIL was set */
};

/* Takes the lock of the thread's GPU. Returns the error that every call has after a fault, and before cuInit(). */
CUresult card_enter(struct card **card);
/* The same for calls that a thread may not make while it captures. */
CUresult card_enter_outside(struct card **card);
/* Gives the lock back. A fault that is new becomes the error of all calls. */
CUresult card_leave(struct card *card, CUresult result);
/* The GPU's stream of this name; NULL where it has none. */
struct stream *card_stream(const struct card *card, CUstream name);
/* Frees the texts. Their variables' memory ends with the machine. */
void modules_forget(struct card *card);
/* True where this call shall fail. The GPU is entered. */
bool card_fails(struct card *card, enum call_kind kind);

/* Captures of this thread, which may neither allocate nor wait meanwhile: the capture is thread-local. */
extern _Thread_local int card_captures;
