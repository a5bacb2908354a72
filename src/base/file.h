/* Files: whole reads with a limit, writes that appear whole or not at all, directories. Paths are in every error. */
#ifndef CAMBIUM_BASE_FILE_H
#define CAMBIUM_BASE_FILE_H

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

bool file_exists(const char *path);
bool file_is_directory(const char *path);
/* Bytes of a regular file, or a negative status. */
int64_t file_size(const char *path);

/* mkdir -p, on the disk: a directory is there after a power failure when the one that holds it was synced. */
int file_make_directories(const char *path);
/* Removes a file or a whole directory tree (never follows links). Nothing there is no error. */
int file_remove_tree(const char *path);
/* Names in a directory without . and .., sorted by bytes; free with file_list_free. */
int file_list(const char *path, char ***names, size_t *count);
void file_list_free(char **names, size_t count);
/* The first entry that is no regular file, or whose name is not one of ours: "" where there is none, or no directory.
 * The caller frees it. */
int file_find_other(const char *directory, bool (*is_ours)(const char *name), char **other);
/* A path in a caller's buffer; STATUS_INVALID when it does not fit. */
int file_join(char *out, size_t bytes, const char *directory, const char *name);
/* The directory that holds `path`, in a caller's buffer. */
int file_parent(const char *path, char *out, size_t bytes);
/* A name that nobody chooses, ".cambium-" and 16 random digits: for files and directories on their way to another. */
enum { FILE_DRAWN_BYTES = 9 + 16 + 1 };
int file_draw_name(char name[FILE_DRAWN_BYTES]);
bool file_is_drawn_name(const char *name);
/* Copies a regular file. */
int file_copy(const char *from, const char *to);

/* All of `bytes`, or an error that names `path`. */
int file_write_all(int descriptor, const void *bytes, size_t length, const char *path);
int file_pwrite_all(int descriptor, const void *bytes, size_t length, off_t offset, const char *path);
int file_pread_all(int descriptor, void *bytes, size_t length, off_t offset, const char *path);
/* Flushes a file or a directory to the disk. */
int file_sync(const char *path);

/* A file that appears under `path` whole, by file_writer_commit, or not at all: it is written beside it, under a name
 * drawn by lot, and nothing that stands there is touched. */
struct file_writer {
    FILE *stream;
    char *path;
    char *temporary;
};
int file_writer_open(struct file_writer *writer, const char *path);
/* Flushes, syncs and renames; on failure nothing is left behind. Checks for errors of earlier stream writes. */
int file_writer_commit(struct file_writer *writer);
/* Leaves nothing behind; harmless after a commit. */
void file_writer_abort(struct file_writer *writer);
/* One call: the bytes appear whole under `path`. */
int file_write_atomic(const char *path, const void *bytes, size_t length);

#endif
