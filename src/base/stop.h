/* Requests to stop: SIGTERM and SIGINT, while they are watched.
 *
 * The first signal is a request, which work checks between its steps. The next one, of either kind, has its usual
 * effect. The same signal within a second does not count as the next one.
 *
 * No thread that computes may handle a signal: oneDNN's products for AVX2 use the stack pointer as a pointer to data,
 * so the handler's frame would overwrite their memory. */
#pragma once

/* Starts a thread that handles signals. This thread and later ones hold them back, but for those that a thread causes
 * itself; what fork makes does not. Call it once, before there are other threads. STATUS_MEMORY. */
int stop_handle_apart(void);
/* Between these two calls, a signal is a request. Pairs of calls may be nested. */
void stop_watch_begin(void);
void stop_watch_end(void);
/* Returns the signal that came while they were watched, or 0. Any thread. */
int stop_requested(void);
/* Fails with STATUS_INTERRUPTED once such a signal came; `when` completes "stopped by SIGTERM ...". */
int stop_check(const char *when);
/* Returns such a signal and forgets it, so that the next one is a first request again. */
int stop_take(void);
/* Lets such a signal have its usual effect: the process ends. */
void stop_obey(void);
/* Returns the name of such a signal: "SIGINT" or "SIGTERM". */
const char *stop_name(int signal_number);
