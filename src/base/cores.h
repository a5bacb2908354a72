/* Processors. */
#ifndef CAMBIUM_BASE_CORES_H
#define CAMBIUM_BASE_CORES_H

/* How many this thread may run on; at least 1. */
int usable_cores(void);

#endif
