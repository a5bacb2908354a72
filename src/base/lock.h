/* Locks against other processes, and against other opens of the same file in this process. An open descriptor holds the
 * lock. The system releases it at the last close, however the process ends. Locks bind only programs that take them. */
#pragma once

/* Locks the open file `descriptor`. STATUS_IO when another process has the lock; the text names `path` and, if the
 * system says, that process. A file system without locks causes a warning. */
int lock_take(int descriptor, const char *path);
/* Opens a directory and locks it; closing *descriptor releases it. *descriptor is -1 after a failure. STATUS_IO, as
 * lock_take. */
int lock_open_directory(const char *path, int *descriptor);
