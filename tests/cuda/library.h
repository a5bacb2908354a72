/* Stand-ins for NVIDIA's libraries queue work on the streams of the stand-in for the driver. */
#pragma once

#include "cuda/machine.h"

/* Queues a call on a stream (NULL: the null stream). It runs in the stream's order, under the driver's lock, with the
 * machine whose memory it may use; after a fault it does not run. The stream frees `context` in any case. Returns 0,
 * or -1 where there is no card or no memory. */
int cuda_stand_in_queue(void *stream, void (*call)(struct machine *machine, void *context), void *context);
