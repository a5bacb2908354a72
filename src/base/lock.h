/* Locks against other processes (and other opens of the same file in this one), held by an open descriptor: the system
 * releases them with its last close, however the process ends. They bind only who asks for them. */
#ifndef CAMBIUM_BASE_LOCK_H
#define CAMBIUM_BASE_LOCK_H

/* Locks what `descriptor` has open. STATUS_IO when somebody else has it: the text names `path` and, where the system
 * tells, the other process. A file system without locks is a warning. */
int lock_take(int descriptor, const char *path);
/* Opens a directory and locks it; closing *descriptor gives it back. It is -1 after a failure. */
int lock_open_directory(const char *path, int *descriptor);

#endif
