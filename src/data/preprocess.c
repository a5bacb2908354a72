/* Texts to indexed datasets. One thread reads and writes; workers in between decode JSON and tokenize. A ring of
 * batches is filled in the order of the corpus, processed in any order, and written in the order of the corpus again.
 * Several ranks each process a piece of the corpus, and then join their output. */
#include "data-internal.h"
#include "json_line.h"

#include "text/text.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

enum { MAX_WORKERS = 256, KEPT_IDS = 1 << 20 };

/* The output of a batch for one key. */
struct output {
    struct token_buffer ids;       /* of all its sequences */
    struct token_buffer lengths;   /* ids of each sequence */
    struct token_buffer sequences; /* sequences of each document */
};

enum slot_state { SLOT_EMPTY, SLOT_FILLED, SLOT_DONE };

struct slot {
    enum slot_state state;
    struct corpus_batch batch;
    struct output *outputs; /* [keys] */
    int status;
    char *error;
};

struct pipeline {
    const struct preprocess_options *options;
    struct comm *world; /* NULL: only this rank */
    int rank, ranks;
    struct corpus_pieces pieces; /* of this rank */
    size_t key_count;
    int32_t eod; /* -1: none is appended */
    struct slot *slots;
    int64_t slot_count, filled, taken, written; /* batches so far; slot = number % slot_count */
    bool is_stopping;
    pthread_mutex_t mutex;
    pthread_cond_t work, done;      /* a slot was filled; a slot is done */
    struct staging staging;         /* on the first rank: all datasets appear together */
    struct indexed_writer *writers; /* [keys] */
    int64_t writer_count;
    int *descriptors;  /* [keys] of the parts, on every rank but the first */
    char *part_buffer; /* of PART_CHUNK_BYTES, when there are several ranks */
};

static bool has_json(const struct preprocess_options *options) {
    for (size_t i = 0; i < options->inputs.count; i++)
        if (corpus_format_of(options, i) == CORPUS_JSONL)
            return true;
    return false;
}

size_t preprocess_key_count(const struct preprocess_options *options) {
    return has_json(options) ? options->json_keys.count : 1;
}

const char *preprocess_key(const struct preprocess_options *options, size_t k) {
    return has_json(options) ? options->json_keys.items[k] : "text";
}

/* ---- a worker's part ---- */

static int encode_text(struct tokenizer_encoder *encoder, const char *text, size_t length, struct output *out) {
    size_t before = out->ids.count;
    int status = length > 0 ? tokenizer_encode(encoder, text, length, TOKENIZER_ADD_SPECIAL, &out->ids) : STATUS_OK;
    size_t count = out->ids.count - before;
    if (!status && count > INT32_MAX - 1)
        status = status_fail(STATUS_INVALID, "a document of %zu tokens is longer than the format allows", count);
    return !status && count > 0 ? token_buffer_add(&out->lengths, (int32_t)count) : status;
}

/* Ends a document whose sequences began at `first`. An end-of-document token is added to the last sequence. */
static int end_document(const struct pipeline *pipeline, struct output *out, size_t first) {
    size_t sequences = out->lengths.count - first;
    int status = STATUS_OK;
    if (sequences > 0 && pipeline->eod >= 0) {
        status = token_buffer_add(&out->ids, pipeline->eod);
        out->lengths.ids[out->lengths.count - 1]++;
    }
    return status ? status : token_buffer_add(&out->sequences, (int32_t)sequences);
}

static int encode_value(const struct pipeline *pipeline, struct tokenizer_encoder *encoder, const json_t *value,
                        const char *key, struct output *out) {
    size_t first = out->lengths.count;
    int status = STATUS_OK;
    if (!value)
        return status_fail(STATUS_INVALID, "the object has no key \"%s\"", key);
    if (json_is_string(value))
        status = encode_text(encoder, json_string_value(value), json_string_length(value), out);
    else if (!json_is_array(value))
        return status_fail(STATUS_INVALID, "the value of \"%s\" is neither a string nor a list of strings", key);
    for (size_t i = 0; !status && json_is_array(value) && i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        if (!json_is_string(item))
            return status_fail(STATUS_INVALID, "entry %zu of the list \"%s\" is not a string", i, key);
        status = encode_text(encoder, json_string_value(item), json_string_length(item), out);
    }
    return status ? status : end_document(pipeline, out, first);
}

static int encode_json(const struct pipeline *pipeline, struct tokenizer_encoder *encoder, const char *text,
                       const struct corpus_document *document, struct slot *slot) {
    json_t *object;
    int status = json_line_read(text, document->length, &object);
    TRY(status);
    if (!json_is_object(object))
        status = status_fail(STATUS_INVALID, "expected a JSON object");
    for (size_t k = 0; k < pipeline->key_count && !status; k++) {
        const char *key = preprocess_key(pipeline->options, k);
        status = encode_value(pipeline, encoder, json_object_get(object, key), key, &slot->outputs[k]);
    }
    json_decref(object);
    return status;
}

/* Encodes a part of a document as part of one sequence. The sequence is not empty, because another part has text. */
static int encode_part(const struct pipeline *pipeline, struct tokenizer_encoder *encoder, const char *text,
                       const struct corpus_document *document, struct output *out) {
    size_t before = out->ids.count;
    unsigned flags = (document->is_continued ? TOKENIZER_CONTINUED : TOKENIZER_ADD_BEGIN) |
                     (document->is_unfinished ? TOKENIZER_PLAIN : TOKENIZER_ADD_END);
    int status = tokenizer_encode(encoder, text, document->length, flags, &out->ids);
    THEN_IF(status, !document->is_unfinished && pipeline->eod >= 0, token_buffer_add(&out->ids, pipeline->eod));
    THEN(status, token_buffer_add(&out->lengths, (int32_t)(out->ids.count - before)));
    return status ? status : token_buffer_add(&out->sequences, 1);
}

static int encode_plain(const struct pipeline *pipeline, struct tokenizer_encoder *encoder, const char *text,
                        const struct corpus_document *document, struct slot *slot) {
    struct output *out = &slot->outputs[0];
    size_t first = out->lengths.count;
    if (document->is_continued || document->is_unfinished)
        return encode_part(pipeline, encoder, text, document, out);
    int status = encode_text(encoder, text, document->length, out);
    return status ? status : end_document(pipeline, out, first);
}

static int encode_slot(const struct pipeline *pipeline, struct tokenizer_encoder *encoder, struct slot *slot) {
    for (size_t i = 0; i < slot->batch.count; i++) {
        const struct corpus_document *document = &slot->batch.documents[i];
        const char *text = strbuf_text(&slot->batch.text) + document->start;
        bool is_json = corpus_format_of(pipeline->options, document->file) == CORPUS_JSONL;
        int status = is_json ? encode_json(pipeline, encoder, text, document, slot)
                             : encode_plain(pipeline, encoder, text, document, slot);
        int64_t line = status ? corpus_line(&pipeline->pieces, document->file, document->line) : 0;
        if (status && is_json && line == 1 && pipeline->options->format == CORPUS_AUTO)
            status = status_fail(status,
                                 "%s (expected JSON lines: one object a line, no array and no CSV; plain text needs "
                                 "--format file, line or delimiter)",
                                 status_text());
        if (status)
            return status_wrap(status, "%s:%lld", pipeline->options->inputs.items[document->file], (long long)line);
    }
    return STATUS_OK;
}

static void *work(void *argument) {
    struct pipeline *pipeline = argument;
    struct tokenizer_encoder *encoder = NULL;
    int opened = tokenizer_encoder_new(pipeline->options->tokenizer, &encoder);
    pthread_mutex_lock(&pipeline->mutex);
    for (;;) {
        while (!pipeline->is_stopping && pipeline->taken == pipeline->filled)
            pthread_cond_wait(&pipeline->work, &pipeline->mutex);
        if (pipeline->is_stopping)
            break;
        struct slot *slot = &pipeline->slots[pipeline->taken++ % pipeline->slot_count];
        pthread_mutex_unlock(&pipeline->mutex);
        slot->status = opened ? opened : encode_slot(pipeline, encoder, slot);
        if (slot->status)
            slot->error = strdup(status_text()); /* status_text belongs to this thread */
        pthread_mutex_lock(&pipeline->mutex);
        slot->state = SLOT_DONE;
        pthread_cond_signal(&pipeline->done);
    }
    pthread_mutex_unlock(&pipeline->mutex);
    tokenizer_encoder_free(encoder);
    return NULL;
}

/* ---- the reading and writing thread ---- */

static void clear_ids(struct token_buffer *buffer) {
    if (buffer->capacity > KEPT_IDS)
        token_buffer_free(buffer);
    buffer->count = 0;
}

static int write_slot(struct pipeline *pipeline, struct slot *slot) {
    if (slot->status)
        return status_fail(slot->status, "%s", slot->error ? slot->error : "out of memory");
    for (size_t k = 0; k < pipeline->key_count; k++) {
        struct output *out = &slot->outputs[k];
        struct indexed_writer *writer = &pipeline->writers[k];
        const int32_t *ids = out->ids.ids;
        size_t sequence = 0;
        for (size_t d = 0; d < out->sequences.count; d++) {
            const struct corpus_document *document = &slot->batch.documents[d];
            int status = STATUS_OK;
            for (int32_t s = 0; s < out->sequences.ids[d] && !status; s++, sequence++) {
                status = indexed_writer_add_tokens(writer, ids, out->lengths.ids[sequence]);
                THEN_IF(status, !document->is_unfinished, indexed_writer_end_sequence(writer));
                ids += out->lengths.ids[sequence];
            }
            THEN_IF(status, !document->is_unfinished, indexed_writer_end_document(writer));
            if (status == STATUS_INVALID)
                status_wrap(status, "%s:%lld", pipeline->options->inputs.items[document->file],
                            (long long)corpus_line(&pipeline->pieces, document->file, document->line));
            TRY(status);
        }
        clear_ids(&out->ids);
        clear_ids(&out->lengths);
        clear_ids(&out->sequences);
    }
    return STATUS_OK;
}

/* Writes the oldest batch if it is ready, or waits for it with `must_wait`. *is_written says whether it was written. */
static int write_oldest(struct pipeline *pipeline, bool must_wait, bool *is_written) {
    struct slot *slot = &pipeline->slots[pipeline->written % pipeline->slot_count];
    pthread_mutex_lock(&pipeline->mutex);
    while (must_wait && slot->state != SLOT_DONE && !stop_requested()) {
        struct timespec until; /* wakes up regularly to check for a signal */
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 100000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&pipeline->done, &pipeline->mutex, &until);
    }
    *is_written = slot->state == SLOT_DONE;
    pthread_mutex_unlock(&pipeline->mutex);
    if (!*is_written)
        return STATUS_OK;
    int status = write_slot(pipeline, slot);
    slot->state = SLOT_EMPTY; /* only this thread uses it until it is filled again */
    pipeline->written++;
    return status;
}

static int fill_next(struct pipeline *pipeline, struct corpus_reader *reader, bool *is_end) {
    struct slot *slot = &pipeline->slots[pipeline->filled % pipeline->slot_count];
    int status = corpus_reader_fill(reader, &slot->batch);
    *is_end = status || slot->batch.count == 0;
    if (*is_end)
        return status;
    pthread_mutex_lock(&pipeline->mutex);
    slot->state = SLOT_FILLED;
    pipeline->filled++;
    pthread_cond_signal(&pipeline->work);
    pthread_mutex_unlock(&pipeline->mutex);
    return STATUS_OK;
}

/* Reads, dispatches and writes. A bad document is reported after all documents before it, so the reported error is the
 * first of the corpus, whatever the number of workers. */
static int pump(struct pipeline *pipeline, struct corpus_reader *reader) {
    struct progress progress;
    struct strbuf reader_error = STRBUF_INIT;
    bool is_end = false;
    int status = STATUS_OK, reader_status = STATUS_OK;
    progress_begin(&progress, "preprocess", pipeline->pieces.total);
    while (!status && !(is_end && pipeline->written == pipeline->filled)) {
        bool is_written = false, is_full = pipeline->filled - pipeline->written == pipeline->slot_count;
        if (stop_requested()) {
            status = status_fail(STATUS_INTERRUPTED, "interrupted, and nothing was written");
            break;
        }
        if (!is_end && !is_full) {
            reader_status = fill_next(pipeline, reader, &is_end);
            if (reader_status)
                strbuf_add_text(&reader_error, status_text());
        }
        if (pipeline->written < pipeline->filled)
            status = write_oldest(pipeline, is_end || is_full, &is_written);
        double seconds = clock_seconds() - progress.start;
        int64_t done = corpus_reader_done(reader);
        if (pipeline->rank == 0)
            progress_update(&progress, done, "%lld documents, %.1f MB/s", (long long)pipeline->writers[0].documents,
                            seconds > 0 ? (double)done / 1e6 / seconds : 0.0);
    }
    progress_end(&progress);
    THEN_IF(status, reader_status, status_fail(reader_status, "%s", strbuf_text(&reader_error)));
    strbuf_free(&reader_error);
    return status;
}

static int run_workers(struct pipeline *pipeline, struct corpus_reader *reader, int64_t workers) {
    pthread_t threads[MAX_WORKERS];
    int64_t started = 0;
    int status = STATUS_OK;
    for (; started < workers; started++)
        if (pthread_create(&threads[started], NULL, work, pipeline))
            break;
    if (started == 0)
        status = status_fail(STATUS_MEMORY, "cannot start a worker thread");
    THEN(status, pump(pipeline, reader));
    pthread_mutex_lock(&pipeline->mutex);
    pipeline->is_stopping = true;
    pthread_cond_broadcast(&pipeline->work);
    pthread_mutex_unlock(&pipeline->mutex);
    for (int64_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    return status;
}

int preprocess_check(const struct preprocess_options *options) {
    size_t count = preprocess_key_count(options);
    bool has_text = false;
    for (size_t i = 0; i < options->inputs.count; i++)
        has_text |= corpus_format_of(options, i) != CORPUS_JSONL;
    if (options->inputs.count == 0 || count == 0)
        return status_fail(STATUS_USAGE, "%s is given", count == 0 ? "no JSON key" : "no input file");
    if (has_text && count > 1)
        return status_fail(STATUS_USAGE, "plain text has one key, but %zu are given for the JSON lines next to it",
                           count);
    for (size_t k = 0; k < count; k++) {
        const char *key = preprocess_key(options, k);
        if (!*key || strchr(key, '/'))
            return status_fail(STATUS_USAGE, "JSON key '%s' cannot be part of a file name", key);
        for (size_t other = 0; other < k; other++)
            if (!strcmp(key, preprocess_key(options, other)))
                return status_fail(STATUS_USAGE, "JSON key '%s' is given twice", key);
    }
    if (options->append_eod && tokenizer_eos_id(options->tokenizer) < 0)
        return status_fail(STATUS_INVALID, "the tokenizer has no end-of-text token to append");
    return STATUS_OK;
}

static int64_t count_workers(const struct preprocess_options *options) {
    int64_t workers = options->workers < 1 ? usable_cores() : options->workers;
    return workers < MAX_WORKERS ? workers : MAX_WORKERS;
}

static int open_pipeline(struct pipeline *pipeline, int64_t workers) {
    const struct preprocess_options *options = pipeline->options;
    int64_t vocab_size = tokenizer_vocab_size(options->tokenizer);
    pipeline->slot_count = 2 * workers + 2;
    pipeline->slots = calloc((size_t)pipeline->slot_count, sizeof *pipeline->slots);
    pipeline->writers = calloc(pipeline->key_count, sizeof *pipeline->writers);
    pipeline->descriptors = calloc(pipeline->key_count, sizeof *pipeline->descriptors);
    pipeline->part_buffer = malloc(pipeline->ranks > 1 ? PART_CHUNK_BYTES : 1);
    TRY(status_allocated(pipeline->slots && pipeline->writers && pipeline->descriptors && pipeline->part_buffer));
    for (int64_t i = 0; i < pipeline->slot_count; i++)
        if (!(pipeline->slots[i].outputs = calloc(pipeline->key_count, sizeof *pipeline->slots[i].outputs)))
            return status_no_memory();
    int status = STATUS_OK;
    for (size_t k = 0; k < pipeline->key_count && !status; k++) {
        struct strbuf prefix = STRBUF_INIT;
        strbuf_format(&prefix, "%s_%s_document", options->output_prefix, preprocess_key(pipeline->options, k));
        status = strbuf_status(&prefix);
        THEN_IF(status, pipeline->rank == 0 && k == 0, indexed_staging_begin(&pipeline->staging, strbuf_text(&prefix)));
        if (!status && pipeline->rank > 0)
            status = part_writer_open(&pipeline->writers[k], &pipeline->descriptors[k], strbuf_text(&prefix),
                                      indexed_token_type(vocab_size), vocab_size);
        else if (!status)
            status = indexed_writer_open_in(&pipeline->writers[k], &pipeline->staging, strbuf_text(&prefix),
                                            indexed_token_type(vocab_size), vocab_size);
        strbuf_free(&prefix);
        pipeline->writer_count += !status;
    }
    return status;
}

static void close_pipeline(struct pipeline *pipeline) {
    for (int64_t k = 0; k < pipeline->writer_count; k++) {
        indexed_writer_abort(&pipeline->writers[k]);
        if (pipeline->rank > 0)
            close(pipeline->descriptors[k]);
    }
    staging_abort(&pipeline->staging);
    for (int64_t i = 0; pipeline->slots && i < pipeline->slot_count; i++) {
        struct slot *slot = &pipeline->slots[i];
        for (size_t k = 0; slot->outputs && k < pipeline->key_count; k++) {
            token_buffer_free(&slot->outputs[k].ids);
            token_buffer_free(&slot->outputs[k].lengths);
            token_buffer_free(&slot->outputs[k].sequences);
        }
        free(slot->outputs);
        free(slot->error);
        corpus_batch_free(&slot->batch);
    }
    free(pipeline->slots);
    free(pipeline->writers);
    free(pipeline->descriptors);
    free(pipeline->part_buffer);
    corpus_pieces_free(&pipeline->pieces);
}

static int agree(const struct pipeline *pipeline, int status) {
    return pipeline->world ? comm_agree(pipeline->world, status) : status;
}

/* Sends every rank's part to the first rank. */
static int join_parts(struct pipeline *pipeline) {
    int status = STATUS_OK, result = STATUS_OK;
    for (int from = 1; from < pipeline->ranks && !status; from++)
        for (size_t k = 0; k < pipeline->key_count && !status; k++) {
            if (pipeline->rank == 0)
                status = part_receive(pipeline->world, from, &pipeline->writers[k], pipeline->part_buffer, &result);
            else if (pipeline->rank == from)
                status = part_send(pipeline->world, &pipeline->writers[k], pipeline->descriptors[k],
                                   pipeline->part_buffer, &result);
        }
    return status ? status : result;
}

/* Publishes the datasets of all keys, or none of them. */
static int commit(struct pipeline *pipeline, struct preprocess_count *counts) {
    for (size_t k = 0; k < pipeline->key_count; k++) {
        const struct indexed_writer *writer = &pipeline->writers[k];
        counts[k] = (struct preprocess_count){writer->documents, writer->sequences, writer->tokens};
        if (writer->tokens == 0)
            return status_fail(STATUS_INVALID, "no text in %s%s (%lld documents, key '%s')",
                               pipeline->options->inputs.items[0], pipeline->options->inputs.count > 1 ? ", ..." : "",
                               (long long)writer->documents, preprocess_key(pipeline->options, k));
    }
    int status = STATUS_OK;
    for (size_t k = 0; k < pipeline->key_count && !status; k++)
        status = indexed_writer_finish(&pipeline->writers[k]);
    return status ? status : staging_commit(&pipeline->staging);
}

static int write_datasets(struct pipeline *pipeline, struct preprocess_count *counts) {
    struct corpus_reader *reader = NULL;
    int64_t workers = count_workers(pipeline->options);
    int status = corpus_split(pipeline->options, pipeline->rank, pipeline->ranks, &pipeline->pieces);
    THEN(status, corpus_reader_new(&pipeline->pieces, &reader));
    THEN(status, open_pipeline(pipeline, workers));
    THEN(status, run_workers(pipeline, reader, workers));
    corpus_reader_free(reader);
    status = agree(pipeline, status); /* all ranks learn the first failure in the corpus */
    THEN(status, agree(pipeline, join_parts(pipeline)));
    THEN(status, agree(pipeline, pipeline->rank == 0 ? commit(pipeline, counts) : STATUS_OK));
    return status;
}

int preprocess_run(const struct preprocess_options *options, struct comm *world, struct preprocess_count *counts) {
    struct pipeline pipeline = {.options = options,
                                .staging.mark = -1,
                                .world = world && world->size > 1 ? world : NULL,
                                .rank = world ? world->rank : 0,
                                .ranks = world ? world->size : 1,
                                .key_count = preprocess_key_count(options),
                                .eod = -1};
    TRY(agree(&pipeline, preprocess_check(options)));
    if (options->append_eod)
        pipeline.eod = tokenizer_eos_id(options->tokenizer);
    pthread_mutex_init(&pipeline.mutex, NULL);
    pthread_cond_init(&pipeline.work, NULL);
    pthread_cond_init(&pipeline.done, NULL);
    int status = write_datasets(&pipeline, counts);
    close_pipeline(&pipeline);
    pthread_cond_destroy(&pipeline.done);
    pthread_cond_destroy(&pipeline.work);
    pthread_mutex_destroy(&pipeline.mutex);
    return status;
}
