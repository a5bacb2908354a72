/* How device memory travels between the ranks of a run. */
#pragma once

#include "comm/comm.h"

/* In the order of the option's words (CONFIG_COLLECTIVES_ROW). */
enum collectives {
    COLLECTIVES_AUTO, /* as NCCL for their own GPUs; on the GPU if threads share one; otherwise as HOST */
    COLLECTIVES_NCCL, /* by NVIDIA's library, from GPU to GPU */
    COLLECTIVES_HOST  /* through memory of the host */
};

/* Chooses for the world, and for groups made of it later. All ranks call it together, each with its device. The caller
 * calls rank_disconnect before it closes the device. All ranks return the first failure of any. It is
 * STATUS_UNSUPPORTED if two ranks of a host have one GPU, if the device is no GPU, or if the library is missing. The
 * line then says how to run without NCCL. STATUS_MEMORY, and the errors of comm_nccl_open. `most_blocks` is as there.
 */
int rank_connect(struct comm *world, struct device *device, enum collectives collectives, int most_blocks);
/* Ends that; the groups are closed. All ranks call it together, unless the run has failed. */
void rank_disconnect(struct comm *world);
