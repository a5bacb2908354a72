/* Stand-ins for NVIDIA's libraries queue work on the streams of the stand-in for the driver. */
#pragma once

#include "cuda/machine.h"

/* Queues a call on a stream (NULL: the null stream). It runs in the stream's order, under the driver's lock, with the
 * machine whose memory it may use; after a fault it does not run. The stream frees `context` in any case. Returns 0,
 * or -1 where there is no GPU or no memory. */
int cuda_stand_in_queue(void *stream, void (*call)(struct machine *machine, void *context), void *context);

/* Writes a line to the GPU's trace, if there is one, when the host asks for something. */
void cuda_stand_in_trace(void *stream, const char *what, unsigned long number);

/* The counts of the kernels that the thread's GPU has run so far, as a list that grows; NULL where there are none. */
const struct counts *cuda_stand_in_counts(void);

/* Work that needs other ranks, which may run on other GPUs and in other processes. */
struct meeting {
    /* Does what it can; returns true when the work has run. It is called again and again, under the driver's lock, as
     * the first work of its stream. */
    bool (*attend)(struct machine *machine, void *context);
    /* The host waits for a GPU on which nothing but such work is left, and all of it waits for others. It is called
     * for one such work after the other. */
    void (*stand)(void *context, bool is_first, bool is_last);
    /* For work that was captured: makes the context of a run of the graph (NULL: no memory), and frees that of the
     * graph. */
    void *(*again)(const void *context);
    void (*drop)(void *context);
};

/* True where work that is queued on the stream becomes a part of a graph. */
bool cuda_stand_in_captures(void *stream);
/* Queues such work. As cuda_stand_in_queue. From then on the GPU also runs its streams while no one waits for it. */
int cuda_stand_in_meet(void *stream, const struct meeting *meeting, void *context);
