/* Counts the distinct words of a corpus with several threads.
 *
 * A reader under a lock hands out pieces of the files. Each thread splits its pieces into words and counts them in its
 * own table; at the end the tables are added up. A piece ends before an ASCII space that follows another character.
 * Every split into words has a border there, so the pieces have the words of the whole text. Memory holds the distinct
 * words of each thread, and one piece each. */
#include "text-internal.h"

#include "base/beginning.h"
#include "scan-internal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>
#include <zlib.h>

enum { PIECE_BYTES = 1 << 20, MAX_THREADS = 256 };

void word_counts_free(struct word_counts *counts) {
    free(counts->bytes);
    free(counts->words);
    free(counts->table);
    *counts = (struct word_counts){0};
}

static int enlarge_table(struct word_counts *counts) {
    unsigned bits = counts->table_bits ? counts->table_bits + 1 : 16;
    uint32_t *table = calloc((size_t)1 << bits, sizeof *table);
    if (!table)
        return status_fail(STATUS_MEMORY, "out of memory for %zu distinct words", counts->word_count);
    size_t mask = ((size_t)1 << bits) - 1;
    for (size_t i = 0; i < counts->word_count; i++) {
        size_t at = counts->words[i].hash & mask;
        while (table[at])
            at = (at + 1) & mask;
        table[at] = (uint32_t)(i + 1);
    }
    free(counts->table);
    counts->table = table;
    counts->table_bits = bits;
    return STATUS_OK;
}

static int add_new_word(struct word_counts *counts, size_t at, const unsigned char *word, uint32_t length,
                        uint32_t hash, int64_t count) {
    if (counts->word_count >= UINT32_MAX / 2)
        return status_fail(STATUS_UNSUPPORTED, "more than %u distinct words", UINT32_MAX / 2);
    TRY(array_reserve(&counts->bytes, &counts->byte_capacity, counts->byte_count + length, 1));
    TRY(array_reserve(&counts->words, &counts->word_capacity, counts->word_count + 1, sizeof *counts->words));
    memcpy(counts->bytes + counts->byte_count, word, length);
    counts->words[counts->word_count] =
        (struct word_count){.start = counts->byte_count, .length = length, .hash = hash, .count = count};
    counts->byte_count += length;
    counts->table[at] = (uint32_t)++counts->word_count;
    return counts->word_count * 2 > (size_t)1 << counts->table_bits ? enlarge_table(counts) : STATUS_OK;
}

static int count_word(struct word_counts *counts, const unsigned char *word, uint32_t length, uint32_t hash,
                      int64_t count) {
    size_t mask = ((size_t)1 << counts->table_bits) - 1, at = hash & mask;
    for (; counts->table[at]; at = (at + 1) & mask) {
        struct word_count *known = &counts->words[counts->table[at] - 1];
        if (known->hash == hash && known->length == length && !memcmp(counts->bytes + known->start, word, length)) {
            known->count += count;
            return STATUS_OK;
        }
    }
    return add_new_word(counts, at, word, length, hash, count);
}

static int count_text(struct word_counts *counts, const unsigned char *at, size_t length) {
    const unsigned char *end = at + length;
    int status = STATUS_OK;
    while (!status && at < end) {
        const unsigned char *next = scan_word(WORDS_BYTE_LEVEL, at, end);
        size_t bytes = (size_t)(next - at);
        if (bytes > INT32_MAX)
            return status_fail(STATUS_UNSUPPORTED, "a word of %zu bytes: at most %d can be learned from", bytes,
                               INT32_MAX);
        status = count_word(counts, at, (uint32_t)bytes, (uint32_t)(text_hash_bytes(at, bytes) >> 32), 1);
        at = next;
    }
    return status;
}

/* The files as one stream of pieces, guarded by `lock`. */
struct corpus_reader {
    pthread_mutex_t lock;
    const char *const *paths;
    size_t path_count, path;
    int descriptor; /* of a plain file; -1: none is open */
    gzFile gzip;    /* of a gzip file */
    struct strbuf carry;
    size_t carry_scanned; /* bytes of `carry` known to have no place for a cut */
    int status;           /* the first failure of any thread, with its text */
    char error[1024];
    struct progress progress;
    int64_t bytes_done;
};

static void reader_close_file(struct corpus_reader *reader) {
    if (reader->gzip)
        gzclose(reader->gzip);
    else if (reader->descriptor >= 0)
        close(reader->descriptor);
    reader->gzip = NULL;
    reader->descriptor = -1;
}

static int reader_open_file(struct corpus_reader *reader) {
    const char *path = reader->paths[reader->path];
    size_t length = strlen(path);
    reader->descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (reader->descriptor < 0)
        return status_fail_errno("cannot open %s", path);
    if (length < 3 || strcmp(path + length - 3, ".gz"))
        return STATUS_OK;
    reader->gzip = gzdopen(reader->descriptor, "rb");
    if (!reader->gzip)
        return status_fail(STATUS_MEMORY, "out of memory for reading %s", path);
    gzbuffer(reader->gzip, 1 << 17);
    return STATUS_OK;
}

/* Reads up to PIECE_BYTES of the open file after `carry`; *count is 0 at its end. */
static int reader_read(struct corpus_reader *reader, size_t *count) {
    const char *path = reader->paths[reader->path];
    struct strbuf *carry = &reader->carry;
    TRY(strbuf_reserve(carry, PIECE_BYTES));
    ssize_t n;
    if (reader->gzip) {
        n = gzread(reader->gzip, carry->data + carry->length, PIECE_BYTES);
        int error = Z_OK;
        const char *text = gzerror(reader->gzip, &error);
        if (n < 0 && error == Z_MEM_ERROR)
            return status_fail(STATUS_MEMORY, "out of memory for reading %s", path);
        if (n < 0 || error == Z_BUF_ERROR) /* Z_BUF_ERROR: the file is cut off */
            return status_fail(STATUS_INVALID, "%s: damaged gzip file: %s", path, text);
    } else {
        do
            n = read(reader->descriptor, carry->data + carry->length, PIECE_BYTES);
        while (n < 0 && errno == EINTR);
        if (n < 0)
            return status_fail_errno("cannot read %s", path);
    }
    carry->length += (size_t)n;
    carry->data[carry->length] = 0;
    *count = (size_t)n;
    return STATUS_OK;
}

/* Checks how a file begins, and drops a byte-order mark. */
static int reader_check(struct corpus_reader *reader) {
    struct strbuf *carry = &reader->carry;
    size_t mark = beginning_mark(carry->data, carry->length);
    carry->length -= mark;
    memmove(carry->data, carry->data + mark, carry->length);
    return beginning_check(reader->paths[reader->path], carry->data, carry->length, false);
}

/* Returns the last place after the first `scanned` bytes where a cut does not change the words; 0 when there is
 * none. */
static size_t find_cut(const unsigned char *bytes, size_t length, size_t scanned) {
    for (size_t cut = length; cut-- > 1 && cut >= scanned;)
        if (scan_byte_kinds[bytes[cut]] == UNICODE_SPACE &&
            scan_is_border(WORDS_BYTE_LEVEL, bytes, bytes + cut, bytes + length))
            return cut;
    return 0;
}

static int reader_fill(struct corpus_reader *reader, struct strbuf *piece) {
    while (reader->path < reader->path_count) {
        size_t count = 0;
        bool is_first = reader->descriptor < 0;
        int status = is_first ? reader_open_file(reader) : STATUS_OK;
        THEN(status, reader_read(reader, &count));
        THEN_IF(status, is_first, reader_check(reader));
        TRY(status);
        size_t cut = reader->carry.length;
        if (count > 0) {
            cut = find_cut((const unsigned char *)reader->carry.data, cut, reader->carry_scanned);
        } else {
            reader_close_file(reader);
            reader->path++;
        }
        reader->carry_scanned = reader->carry.length - cut;
        if (cut > 0) {
            strbuf_add(piece, reader->carry.data, cut);
            memmove(reader->carry.data, reader->carry.data + cut, reader->carry.length - cut);
            reader->carry.length -= cut;
            reader->bytes_done += (int64_t)cut;
            progress_update(&reader->progress, reader->bytes_done, "%.1f MB", (double)reader->bytes_done / 1e6);
            return strbuf_status(piece);
        }
    }
    return STATUS_OK;
}

/* Keeps the first failure for the thread that started the others. */
static void reader_fail(struct corpus_reader *reader, int status) {
    pthread_mutex_lock(&reader->lock);
    if (!reader->status) {
        reader->status = status;
        snprintf(reader->error, sizeof reader->error, "%s", status_text());
    }
    pthread_mutex_unlock(&reader->lock);
}

/* Fills the emptied `piece`; it stays empty at the end, or after a failure. */
static int reader_next(struct corpus_reader *reader, struct strbuf *piece) {
    strbuf_clear(piece);
    pthread_mutex_lock(&reader->lock);
    int status = reader->status ? STATUS_OK : reader_fill(reader, piece);
    pthread_mutex_unlock(&reader->lock);
    return status;
}

struct count_worker {
    struct corpus_reader *reader;
    struct word_counts counts;
    pthread_t thread;
    bool is_started;
};

static void *count_pieces(void *argument) {
    struct count_worker *worker = argument;
    struct strbuf piece = STRBUF_INIT;
    int status = enlarge_table(&worker->counts);
    while (!status) {
        status = reader_next(worker->reader, &piece);
        if (status || piece.length == 0)
            break;
        status = count_text(&worker->counts, (const unsigned char *)piece.data, piece.length);
    }
    if (status)
        reader_fail(worker->reader, status);
    strbuf_free(&piece);
    return NULL;
}

static int add_counts(struct word_counts *into, const struct word_counts *from) {
    int status = STATUS_OK;
    for (size_t i = 0; !status && i < from->word_count; i++) {
        const struct word_count *word = &from->words[i];
        status = count_word(into, from->bytes + word->start, word->length, word->hash, word->count);
    }
    return status;
}

/* Runs the workers, the first one on this thread. If a thread cannot be started, the others do its work. */
static void run_workers(struct count_worker *workers, int threads, struct corpus_reader *reader) {
    for (int i = 0; i < threads; i++)
        workers[i].reader = reader;
    for (int i = 1; i < threads; i++)
        workers[i].is_started = pthread_create(&workers[i].thread, NULL, count_pieces, &workers[i]) == 0;
    count_pieces(&workers[0]);
    for (int i = 1; i < threads; i++)
        if (workers[i].is_started)
            pthread_join(workers[i].thread, NULL);
}

int word_counts_of_files(const char *const *paths, size_t path_count, int threads, struct word_counts *counts) {
    threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
    struct count_worker *workers = calloc((size_t)threads, sizeof *workers);
    if (!workers)
        return status_fail(STATUS_MEMORY, "out of memory for %d threads", threads);
    struct corpus_reader reader = {.paths = paths, .path_count = path_count, .descriptor = -1};
    pthread_mutex_init(&reader.lock, NULL);
    progress_begin(&reader.progress, "counting words", 0);
    run_workers(workers, threads, &reader);
    progress_end(&reader.progress);
    reader_close_file(&reader);
    strbuf_free(&reader.carry);
    pthread_mutex_destroy(&reader.lock);
    int status = reader.status ? status_fail(reader.status, "%s", reader.error) : STATUS_OK;
    for (int i = 1; i < threads; i++) {
        THEN(status, add_counts(&workers[0].counts, &workers[i].counts));
        word_counts_free(&workers[i].counts);
    }
    if (status)
        word_counts_free(&workers[0].counts);
    *counts = workers[0].counts;
    free(workers);
    return status;
}
