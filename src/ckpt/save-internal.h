/* Saving inside. A directory's files are cut into chunks, each written by one rank. Ranks first exchange the elements
 * of their chunks (cells.c, fill.c), so each has contiguous ranges of the files in its memory. A thread writes these to
 * the disk (background.c), or MPI-IO does. */
#pragma once

#include "ckpt-internal.h"

#include <pthread.h>

enum { SAVE_PLANS = CKPT_MAX_PARTS + 2, BLOCK_BYTES = 4096 /* the block size of direct I/O */ };

/* ---- files.c: the files, and who writes which chunk ---- */

struct save_file {
    char name[NAME_MAX + 1];
    struct safetensors_header *layout; /* knows the places */
    const char *header;                /* the bytes before the data */
    size_t header_bytes;
    int64_t bytes, chunks;
    int64_t first_step;      /* step first_step + k takes every owner's k-th chunk of this file */
    int owners, first_owner; /* consecutive ranks, around the end of the world */
};

struct save_files {
    struct save_file *items;
    int count, ranks;
    int64_t chunk_bytes, total_bytes, steps;
};

/* Makes the files of some plans, and sets the place of each of their tensors. STATUS_MEMORY, STATUS_UNSUPPORTED. */
int save_files_make(struct write_plan *plans, int plan_count, int ranks, struct save_files *files);
void save_files_free(struct save_files *files);
/* Sets the chunks of a file that a rank writes: [*first, *end). */
void save_file_chunks(const struct save_files *files, const struct save_file *file, int rank, int64_t *first,
                      int64_t *end);
/* Returns the writer of a chunk, and the step in which it writes. */
int save_file_owner(const struct save_files *files, const struct save_file *file, int64_t chunk, int64_t *step);
/* Returns the number of a rank's chunks in all files. */
int64_t save_files_chunks_of(const struct save_files *files, int rank);
/* Returns a number that differs when the files do. */
int64_t save_files_hash(const struct save_files *files);
/* Creates every file at its full size, without contents. STATUS_IO. */
int save_files_create(const struct save_files *files, const char *directory);

/* ---- cells.c: which elements go where ---- */

/* A rectangle of a tensor as it is in its file, entirely in one chunk. */
struct save_cell {
    int64_t step;
    int shift, peer; /* the other rank, and how many ranks it is away */
    int plan, piece;
    int64_t row, rows, column, columns;
    int64_t at; /* the byte of the chunk where it begins */
};

struct save_cells {
    struct save_cell *items; /* by step, shift, place */
    int64_t count;
    size_t capacity;
};

/* Lists what this rank gives away (to itself too: shift 0), and what it takes from others. */
int save_cells_make(const struct write_plan *plans, int plan_count, const struct save_files *files, struct comm *world,
                    struct save_cells *gives, struct save_cells *takes);

/* ---- fill.c: a step of the exchange ---- */

/* The first failure at this rank, kept while it continues for the other ranks. */
struct save_failure {
    int status;
    char text[1024];
};
/* Keeps this thread's text if `status` is the first failure. */
void save_failure_note(struct save_failure *failure, int status);

struct save_exchange {
    const struct write_plan *plans;
    const struct save_files *files;
    struct comm *world; /* NULL: a single rank */
    struct save_cells gives, takes;
    int64_t next_give, next_take;
    int threads;
    char *scratch;         /* [threads][SAVE_SCRATCH_BYTES] */
    char *giving, *taking; /* [chunk_bytes] each; NULL for a single rank */
    struct stream *stream; /* of the arrays that queue their copies; NULL: there are none, nor the following */
    char *turning;         /* [CKPT_DEVICE_BYTES] of the device: a block, then its transposition */
};
enum { SAVE_SCRATCH_BYTES = 256 << 10 };

/* Fills `chunk` (NULL when this rank has none in this step) from this rank's memory and the others', and gives them
 * theirs. Copies from a stream's device may still be on their way. After a failure the values do not matter; the call
 * only ends the others' wait. Returns the status of the communication. */
int save_exchange_step(struct save_exchange *exchange, int64_t step, char *chunk, struct save_failure *failure);

/* The same for a single rank: `count` steps at once, with adjacent chunks. */
void save_exchange_alone(struct save_exchange *exchange, int64_t step, int64_t count, char *chunks,
                         struct save_failure *failure);
/* Waits for the copies that are on their way to chunks. */
void save_exchange_wait(struct save_exchange *exchange, struct save_failure *failure);

/* ---- publish.c: the first rank's part ---- */

/* Refuses to replace other contents, because an --output may name the wrong directory. STATUS_INVALID. */
/* The files of ckpt_write_beside. */
extern const struct staging_files save_beside_files;
int save_check_replaceable(const char *directory);
/* Writes everything except the tensors and the trainer's state. */
int save_texts(const char *directory, const struct ckpt_save *save);
/* In state.c: writes trainer_state.json, once all other files exist. */
int save_state(const char *directory, const struct ckpt_save *save, const struct save_files *files,
               const char *state_text);
/* Removes our checkpoints (those not among `others`), except the `keep_last` newest and the one just saved; 0: removes
 * none. */
void save_prune(const struct ckpt_save *save, const int64_t *others, size_t other_count);

/* ---- background.c: from memory to the disk ---- */

struct save_writer {
    const struct save_files *files;
    int rank;
    char *buffers; /* [buffer_count][chunk_bytes]: chunk n of this rank is in buffer n % buffer_count */
    int64_t buffer_count, chunk_count;
    const char *directory;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t filled, written; /* chunks; under the lock, like the following */
    bool is_cancelled, is_done;
    double end; /* clock_seconds() when all chunks were on the disk */
    int status;
    char text[1024];
};

int save_writer_init(struct save_writer *writer);
void save_writer_destroy(struct save_writer *writer);
/* Starts a thread that writes this rank's chunks as they are filled, and syncs. */
int save_writer_start(struct save_writer *writer);
/* Starts a thread that calls `function` instead. */
int save_writer_run(struct save_writer *writer, int (*function)(void *context), void *context);
/* Returns the buffer for chunk `n` once it is free; NULL when the writer has failed. */
char *save_writer_buffer(struct save_writer *writer, int64_t n);
void save_writer_filled(struct save_writer *writer, int64_t n);
/* True when the thread has ended its work; sets its status. */
bool save_writer_is_done(struct save_writer *writer, int *status);
/* Waits until then, if there is a thread. */
void save_writer_wait(struct save_writer *writer);
/* Ends the thread (cancelled: without the rest). Returns its status, with its text as this thread's, also when the
 * thread could not be started. */
int save_writer_join(struct save_writer *writer, bool is_cancelled);
