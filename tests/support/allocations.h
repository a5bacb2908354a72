/* A count of allocations in every thread, for "nothing is allocated here". A program that includes this gets counting
 * versions of malloc and its family. Not counted: what oneDNN and libgomp take and give back in each call, which nobody
 * can forbid them; that they give all of it back is checked as well. */
#pragma once

#include <stdbool.h>

/* False in builds with AddressSanitizer or ThreadSanitizer, which want malloc for themselves. */
bool allocations_can_be_counted(void);
void allocations_start(void);
/* Ends the count: the allocations since allocations_start(), plus one if more memory is held than then. */
int allocations_stop(void);
