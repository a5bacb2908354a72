/* The index maps of one range of sequences: the order of the sequences (document_index), the start of each sample
 * (sample_index), and the order of the samples (shuffle_index). The rules, and the generator that all three shuffles
 * share, are Megatron-LM's (gpt_dataset.py, helpers.cpp). Either program can therefore continue the other's run with
 * the same samples. */
#include "data-internal.h"

/* The number of epochs that K samples take, and whether the last one is shuffled separately. It is when few of its
 * samples are used, so that they do not spread over the whole run. */
struct epochs {
    int64_t count;
    bool is_last_separate;
    int64_t samples_before_last; /* of all epochs before a separate last one */
};

static int plan_epochs(const struct gpt_dataset_request *request, int64_t tokens, struct epochs *epochs) {
    int64_t wanted, S = request->seq_length;
    *epochs = (struct epochs){.count = 1};
    if (__builtin_mul_overflow(request->samples, S, &wanted) || wanted > INT64_MAX / 4)
        return status_fail(STATUS_USAGE, "%lld samples of %lld tokens are more than can be counted",
                           (long long)request->samples, (long long)S);
    wanted += 1; /* the last label */
    if (request->samples > 0 && wanted > tokens)
        epochs->count = (wanted - 1) / tokens + 1;
    if (epochs->count > 1) {
        epochs->samples_before_last = ((epochs->count - 1) * tokens - 1) / S;
        int64_t from_last = request->samples - epochs->samples_before_last;
        int64_t per_epoch = (tokens - 1) / S;
        epochs->is_last_separate = from_last < (int64_t)(0.80 * (double)per_epoch);
    }
    return STATUS_OK;
}

static void fill_document_index(struct gpt_dataset *dataset, const struct gpt_dataset_request *request,
                                const struct epochs *epochs, struct random_state *random) {
    int64_t n = request->last - request->first, shuffled = dataset->document_count;
    for (int64_t begin = 0; begin < dataset->document_count; begin += n)
        for (int64_t i = 0; i < n; i++)
            dataset->document_index[begin + i] = (int32_t)(request->first + i);
    if (epochs->is_last_separate)
        shuffled -= n;
    random_state_shuffle(random, (uint32_t *)dataset->document_index, shuffled);
    random_state_shuffle(random, (uint32_t *)dataset->document_index + shuffled, dataset->document_count - shuffled);
}

/* Walks the documents end to end. A sample takes S+1 tokens; the next one begins at its last token. */
static void fill_sample_index(struct gpt_dataset *dataset) {
    enum { AHEAD = 32 }; /* prefetch distance: documents come in random order */
    const struct indexed_dataset *tokens = dataset->tokens;
    int64_t document = 0, offset = 0;
    dataset->sample_index[0] = (struct gpt_position){0, 0};
    for (int64_t j = 1; j <= dataset->length; j++) {
        int64_t need = dataset->seq_length + 1;
        for (;;) {
            int64_t left = indexed_dataset_length(tokens, dataset->document_index[document]) - offset;
            if (need <= left)
                break;
            need -= left;
            if (document + AHEAD < dataset->document_count)
                __builtin_prefetch(&tokens->starts[dataset->document_index[document + AHEAD]]);
            document++; /* the count of samples comes from the tokens, so they cannot run out */
            offset = 0;
        }
        offset += need - 1;
        dataset->sample_index[j] = (struct gpt_position){(uint32_t)document, (int32_t)offset};
    }
}

static void fill_shuffle_index(struct gpt_dataset *dataset, const struct epochs *epochs, struct random_state *random) {
    int64_t first = epochs->is_last_separate ? epochs->samples_before_last : dataset->length;
    for (int64_t i = 0; i < dataset->length; i++)
        dataset->shuffle_index[i] = (uint32_t)i;
    random_state_shuffle(random, dataset->shuffle_index, first);
    random_state_shuffle(random, dataset->shuffle_index + first, dataset->length - first);
}

static int check_request(const struct gpt_dataset_request *request) {
    if (request->seq_length < 1 || request->seq_length > INT32_MAX - 1)
        return status_fail(STATUS_USAGE, "a sequence length of %lld is not in 1 .. %d", (long long)request->seq_length,
                           INT32_MAX - 1);
    if (request->seed < 0 || request->seed > UINT32_MAX)
        return status_fail(STATUS_USAGE, "a data seed of %lld is not in 0 .. 4294967295", (long long)request->seed);
    if (request->samples < 0)
        return status_fail(STATUS_USAGE, "%lld samples cannot be drawn", (long long)request->samples);
    return STATUS_OK;
}

/* Checks a request and counts its documents and samples. */
static int measure(struct gpt_dataset *dataset, const struct gpt_dataset_request *request, struct epochs *epochs) {
    const struct indexed_dataset *file = request->tokens;
    *dataset = (struct gpt_dataset){.tokens = file, .seq_length = request->seq_length};
    *epochs = (struct epochs){.count = 1};
    int64_t sequences = request->last - request->first;
    int64_t tokens = file->starts[request->last] - file->starts[request->first];
    int status = check_request(request);
    if (!status && tokens > 0) {
        status = plan_epochs(request, tokens, epochs);
        dataset->length = (epochs->count * tokens - 1) / request->seq_length;
    }
    TRY(status);
    /* Positions and samples have 32 bits; upstream changes to 64 beyond that. */
    if (__builtin_mul_overflow(epochs->count, sequences, &dataset->document_count) ||
        dataset->document_count > UINT32_MAX || dataset->length > (int64_t)UINT32_MAX - 2)
        return status_fail(STATUS_UNSUPPORTED,
                           "%s: %lld samples need %lld epochs of %lld sequences, more than 2^32 entries", file->prefix,
                           (long long)request->samples, (long long)epochs->count, (long long)sequences);
    return STATUS_OK;
}

int gpt_dataset_measure(struct gpt_dataset *dataset, const struct gpt_dataset_request *request, size_t *bytes) {
    struct epochs epochs;
    int status = measure(dataset, request, &epochs);
    *bytes = status ? 0 : index_maps_bytes(dataset);
    return status;
}

int gpt_dataset_open(struct gpt_dataset *dataset, const struct gpt_dataset_request *request) {
    struct epochs epochs;
    int status = measure(dataset, request, &epochs);
    TRY(status);
    bool has_tokens = dataset->tokens->starts[request->last] > dataset->tokens->starts[request->first];
    bool is_cached = has_tokens && !(request->cache && !*request->cache);
    if (is_cached && index_cache_read(request, dataset))
        return STATUS_OK;
    if ((status = index_maps_allocate(dataset)))
        return status;
    struct random_state random;
    random_state_seed(&random, (uint32_t)request->seed);
    if (request->last > request->first)
        fill_document_index(dataset, request, &epochs, &random);
    fill_sample_index(dataset);
    fill_shuffle_index(dataset, &epochs, &random);
    if (is_cached)
        index_cache_write(request, dataset);
    return STATUS_OK;
}

void gpt_dataset_close(struct gpt_dataset *dataset) {
    index_maps_free(dataset);
    *dataset = (struct gpt_dataset){0};
}
