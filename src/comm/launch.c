/* Finds out whether a launcher started this process as one of several ranks. Before MPI is initialised, only the
 * environment says so. */
#include "comm-internal.h"

static long number(const char *name) {
    const char *value = getenv(name);
    return value ? strtol(value, NULL, 10) : -1;
}

bool comm_mpi_is_launched(void) {
    /* SLURM_NTASKS is also set for a batch script; only srun sets the count of the step. */
    long tasks = number("OMPI_COMM_WORLD_SIZE");
    if (tasks < 0)
        tasks = number("SLURM_STEP_NUM_TASKS");
    return tasks < 0 ? number("PMIX_RANK") >= 0 : tasks > 1;
}
