/* Whether a launcher started this process as one of several ranks. Launchers say so in the environment, and nowhere
 * else before MPI is initialised. */
#include "comm-internal.h"

#include <stdlib.h>

static long number(const char *name) {
    const char *value = getenv(name);
    return value ? strtol(value, NULL, 10) : -1;
}

bool comm_mpi_is_launched(void) {
    /* SLURM_NTASKS also stands in a batch script's own environment; the count of the step is srun's alone. */
    long tasks = number("OMPI_COMM_WORLD_SIZE");
    if (tasks < 0)
        tasks = number("SLURM_STEP_NUM_TASKS");
    return tasks < 0 ? number("PMIX_RANK") >= 0 : tasks > 1;
}
