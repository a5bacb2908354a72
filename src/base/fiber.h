/* A fiber: a call that pauses itself, and that its caller resumes later, on the same thread.
 *
 * It has its own stack. Between two resumes nothing of it runs. The sanitizers know of each switch. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct fiber;

/* Makes a fiber with a stack of `stack` bytes, of which only those that are used take memory. STATUS_MEMORY. */
int fiber_open(size_t stack, struct fiber **fiber);
/* Frees a fiber that has no call, or whose call has returned. NULL is allowed. */
void fiber_close(struct fiber *fiber);
/* Gives the fiber a call, which the next fiber_resume starts. The one before has returned. */
void fiber_begin(struct fiber *fiber, int (*call)(void *context), void *context);
/* Runs the call until it pauses or returns. True when it has returned; *status is then its result. */
bool fiber_resume(struct fiber *fiber, int *status);
/* Pauses the call. Only the fiber's own call may do so. */
void fiber_pause(struct fiber *fiber);
