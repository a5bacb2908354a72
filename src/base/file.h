/* Files: bounded reads, writes that appear whole or not at all, directories. Every error names its path. Unless a
 * comment says otherwise, functions that return a status fail with STATUS_IO, or with STATUS_MEMORY. */
#pragma once

#include "strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/* Opens a regular file: its descriptor, for close(), and its size. STATUS_NOT_FOUND when it does not exist. */
int file_open_to_read(const char *path, int *descriptor, int64_t *bytes);
/* Appends the contents of a regular file to `out`; STATUS_INVALID when larger than `limit` bytes, STATUS_IO when it
 * cannot be read, STATUS_NOT_FOUND when it does not exist. */
int file_read(const char *path, size_t limit, struct strbuf *out);

/* True when `path` leads to a file of any kind, or to a directory. */
bool file_exists(const char *path);
bool file_is_directory(const char *path);
/* Returns the size of a regular file in bytes, or a negative status. */
int64_t file_size(const char *path);

/* Does mkdir -p and syncs: each new directory survives a power failure, because its parent was synced. */
int file_make_directories(const char *path);
/* Removes a file or a directory tree, and never follows links. A path that does not exist is no error. */
int file_remove_tree(const char *path);
/* Lists the names in a directory without "." and "..", sorted by bytes. Free them with file_list_free. */
int file_list(const char *path, char ***names, size_t *count);
void file_list_free(char **names, size_t count);
/* Finds the first entry that is not a regular file, or whose name `is_ours` rejects: "" when there is none, or no
 * directory. The caller frees *other. */
int file_find_other(const char *directory, bool (*is_ours)(const char *name), char **other);
/* Writes `directory`/`name` into out [bytes]; STATUS_INVALID when it does not fit. */
int file_join(char *out, size_t bytes, const char *directory, const char *name);
/* Writes the directory that holds `path` into out [bytes]; STATUS_INVALID when it does not fit. */
int file_parent(const char *path, char *out, size_t bytes);
/* Names for files and directories under construction: ".cambium-" and 16 random hexadecimal digits. */
enum { FILE_DRAWN_BYTES = 9 + 16 + 1 };
int file_draw_name(char name[FILE_DRAWN_BYTES]);
bool file_is_drawn_name(const char *name);
/* Copies a regular file. */
int file_copy(const char *from, const char *to);

/* Reads or writes all `length` bytes, or fails with an error that names `path`. */
int file_write_all(int descriptor, const void *bytes, size_t length, const char *path);
int file_pwrite_all(int descriptor, const void *bytes, size_t length, off_t offset, const char *path);
int file_pread_all(int descriptor, void *bytes, size_t length, off_t offset, const char *path);
/* Flushes a file or a directory to the disk. */
int file_sync(const char *path);

/* A file that appears whole under `path`, by file_writer_commit, or not at all. It is written next to its target under
 * a random name, and replaces a regular file that is there. A link stays, and its file is replaced. A device or a pipe,
 * as /dev/null or /dev/stdout, is written in place. */
struct file_writer {
    FILE *stream;
    char *path;
    char *temporary; /* NULL when `path` is written in place */
};
/* Opens `writer->stream`. STATUS_IO (also for a directory), STATUS_MEMORY. */
int file_writer_open(struct file_writer *writer, const char *path);
/* Flushes, syncs and renames. It also reports errors of earlier writes to the stream. On failure nothing is left on the
 * disk. */
int file_writer_commit(struct file_writer *writer);
/* Removes the unfinished file; harmless after a commit. */
void file_writer_abort(struct file_writer *writer);
/* Writes the bytes to a file that appears whole under `path`, in one call. */
int file_write_atomic(const char *path, const void *bytes, size_t length);
