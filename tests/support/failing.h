/* Allocations that fail, one at a time, to test that "whichever allocation fails, it is reported, and nothing leaks". A
 * program that uses this has versions of malloc and its family. They fail the n-th call of our own code and of the
 * libraries that we answer for (see failing/allocator.c). The same source is a library to be preloaded, which tests of
 * the commands use: CAMBIUM_FAIL_ALLOCATION=N, and CAMBIUM_FAIL_REPORT=FILE for the number of allocations. */
#pragma once

#include <stdbool.h>

/* From now on the n-th allocation of any thread fails (none where n is 0). */
void failing_start(long n);
/* No longer; the allocations since then. */
long failing_stop(void);
/* Around what a test itself does meanwhile, preparing or looking: its allocations do not count and do not fail. */
void failing_pause(bool is_paused);
/* Bytes that our own code has mapped and not unmapped: device memory, which AddressSanitizer does not watch. */
long failing_mapped(void);

/* Calls use(context) once without failures, and then with each of its allocations failing. Of more than about `limit`
 * allocations it tries a sample with a fixed seed (all under CAMBIUM_TEST_LONG). Each call must end with STATUS_MEMORY
 * and a text that says so, and leave no file open and nothing mapped. AddressSanitizer reports other leaks at the end.
 * Returns how many calls succeeded although an allocation failed, because they do not need that memory. Where threads
 * allocate less than in the first call, the last ones do not come, and do not count. */
long failing_try_all(int (*use)(void *context), void *context, long limit);
