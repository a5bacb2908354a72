/* The wish to stop: SIGTERM and SIGINT, as long as somebody watches.
 *
 * The first signal is a wish, which work looks at between its steps. The next one, of either kind, has its usual
 * effect; the same one within a second is no next one. */
#ifndef CAMBIUM_BASE_STOP_H
#define CAMBIUM_BASE_STOP_H

/* From here until stop_watch_end a signal is a wish. Pairs of calls may be nested. */
void stop_watch_begin(void);
void stop_watch_end(void);
/* Returns the signal that came meanwhile; 0: none. Any thread. */
int stop_requested(void);
/* Returns "SIGINT" or "SIGTERM". */
const char *stop_name(int signal_number);

#endif
