/* Allocations that fail, one at a time, for "whatever allocation fails, it is said, and nothing leaks". A program that
 * uses this has versions of malloc and its family that fail the n-th call of our own code and of the libraries that we
 * answer for (failing/allocator.c says which). The same source is a library to be preloaded, which tests of the
 * commands use: CAMBIUM_FAIL_ALLOCATION=N, and CAMBIUM_FAIL_REPORT=FILE for how many allocations there were. */
#ifndef CAMBIUM_TESTS_FAILING_H
#define CAMBIUM_TESTS_FAILING_H

#include <stdbool.h>

/* From now on the n-th allocation of any thread fails (none where n is 0). */
void failing_start(long n);
/* No longer; the allocations since then. */
long failing_stop(void);
/* Around what a test itself does meanwhile, preparing or looking: its allocations do not count and do not fail. */
void failing_pause(bool is_paused);
/* Bytes that our own code has mapped and not unmapped: device memory, which AddressSanitizer does not watch. */
long failing_mapped(void);

/* Calls use(context) once as it is, and then with each of its allocations failing, of more than about `limit` a
 * fixed-seed part (all under CAMBIUM_TEST_LONG): each call ends with STATUS_MEMORY and a text that says so, and leaves
 * no file open and nothing mapped. What else leaks, AddressSanitizer tells at the end. Returns how many calls got
 * through nevertheless: what they use has no need of that memory, or several threads allocated in another order. */
long failing_try_all(int (*use)(void *context), void *context, long limit);

#endif
