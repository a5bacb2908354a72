/* `verify serving`: its texts, and the run from one side to the other. */
#include "verify-internal.h"

#include "text_line.h"

#include "data/json_line.h"
#include "data/lines.h"
#include "pretrained/pretrained.h"

#include <math.h>

/* ---- texts ---- */

enum { SHORTEST = 4, TEXT_SEED = 0x76657269 };
static const int64_t random_lengths[] = {17, 31, 48, 64, 65, 80, 96, 110};
enum { RANDOM_TEXTS = sizeof random_lengths / sizeof *random_lengths };

static int add_text(struct verify *v, int64_t count) {
    size_t capacity = (size_t)v->capacity;
    TRY(array_reserve(&v->texts, &capacity, (size_t)v->count + 1, sizeof *v->texts));
    v->capacity = (int64_t)capacity;
    v->texts[v->count++].count = count;
    return STATUS_OK;
}

/* Makes texts that every model can see, whatever its vocabulary. An adapter's virtual tokens take positions, too. */
static int make_texts(struct verify *v, int64_t positions) {
    int status = STATUS_OK;
    for (uint32_t t = 0; t < RANDOM_TEXTS && !status; t++) {
        int64_t most = positions / 2 > SHORTEST ? positions / 2 : SHORTEST;
        int64_t count = random_lengths[t] < most ? random_lengths[t] : most;
        for (uint32_t i = 0; i < count && !status; i++) {
            uint32_t drawn = philox(TEXT_SEED, t, i, 0, 0).word[0];
            status = token_buffer_add(&v->ids, (int32_t)(drawn % (uint32_t)v->vocab));
        }
        THEN(status, add_text(v, count));
    }
    return status;
}

static int read_lines(struct verify *v, struct text_reader *reader, struct lines *lines) {
    for (bool is_end = false;;) {
        json_t *root = NULL;
        size_t before = v->ids.count;
        TRY(lines_next_row(lines, &is_end));
        if (is_end)
            return STATUS_OK;
        const struct strbuf *line = lines_text(lines);
        int status = text_reader_line(reader, strbuf_text(line), line->length, &v->ids, &root);
        json_decref(root);
        THEN_IF(status, v->ids.count == before, status_fail(STATUS_INVALID, "a text without tokens"));
        THEN(status, add_text(v, (int64_t)(v->ids.count - before)));
        if (status)
            return lines_wrap(lines, status);
    }
}

static int read_texts(struct verify *v, const struct pretrained *model) {
    const struct verify_serving *job = v->job;
    struct text_reader reader = {.tokenizer = job->model->tokenizer ? job->model->tokenizer : model->directory,
                                 .vocab = v->vocab,
                                 .special_tokens = job->special_tokens};
    struct lines *lines = NULL;
    int status = lines_open(job->input, JSON_LINE_BYTES, &lines);
    THEN(status, read_lines(v, &reader, lines));
    THEN_IF(status, !v->count, status_fail(STATUS_INVALID, "%s has no texts", job->input));
    lines_close(lines);
    text_reader_close(&reader);
    return status;
}

static int copy_texts(struct verify *v) {
    int status = STATUS_OK;
    for (int64_t t = 0; t < v->job->text_count && !status; t++) {
        const struct verify_text *text = &v->job->texts[t];
        for (int64_t i = 0; i < text->count && !status; i++)
            status = token_buffer_add(&v->ids, text->tokens[i]);
        THEN(status, add_text(v, text->count));
    }
    return status;
}

/* Finds the texts on the first rank and copies them to all. */
static int find_texts(struct verify *v) {
    struct pretrained model;
    int status = pretrained_open_config(v->job->model->model, &model);
    v->vocab = model.config.vocab_size;
    if (!status && v->is_first)
        status = v->job->texts   ? copy_texts(v)
                 : v->job->input ? read_texts(v, &model)
                                 : make_texts(v, model_positions(&model.config));
    pretrained_close(&model);
    status = comm_agree(v->world, status);
    int64_t count = v->count;
    THEN(status, job_share(v->world, &count, 1, DTYPE_I64));
    for (int64_t i = v->count; i < count && !status; i++)
        status = add_text(v, 0);
    THEN(status, job_share(v->world, v->texts, count * (int64_t)sizeof *v->texts, DTYPE_U8));
    THEN(status, job_share_ids(v->world, &v->ids));
    for (int64_t i = 0; i < v->count && !status; i++) {
        v->texts[i].tokens = v->ids.ids + v->tokens;
        v->tokens += v->texts[i].count;
        v->longest = v->texts[i].count > v->longest ? v->texts[i].count : v->longest;
    }
    return status;
}

/* ---- the run ---- */

static int tell_summary(const struct verify *v, double seconds) {
    const char *device = v->job->model->device;
    if (!v->is_first || v->job->is_quiet)
        return STATUS_OK;
    json_begin();
    return json_print(json_pack("{s:s, s:b, s:i, s:s, s:s, s:I, s:f}", "verify", "serving", "equal", v->job->is_equal,
                                "paths", 6, "precision", v->precision, "device", device ? device : device_name_at(0),
                                "tensor", (json_int_t)v->tensor, "seconds", floor(seconds * 100) / 100));
}

static int open_host(struct verify *v) {
    TRY(device_open(NULL, DEVICE_FIRST, 1, &v->host));
    return rank_open_single(&v->host_rank, v->host, 0);
}

/* Takes the first rank's memory for what the paths compute. */
static int open_memory(struct verify *v) {
    size_t bytes = (size_t)v->vocab * sizeof(float);
    const struct memory_limit limit = memory_limit_find("");
    if (!v->is_first)
        return STATUS_OK;
    v->numbers = (size_t)(v->tokens + v->longest + VERIFY_ROWS) * bytes;
    TRY(memory_check(v->numbers, &limit,
                     "fewer or shorter texts (--input): each token takes the numbers of the whole vocabulary"));
    v->reference = malloc((size_t)v->tokens * bytes);
    v->row = malloc(VERIFY_ROWS * bytes);
    TRY(status_allocated(v->reference && v->row));
    TRY(open_host(v));
    return v->job->dump ? verify_dump_open(v, v->job->dump, &v->dump) : STATUS_OK;
}

int verify_serving_run(struct comm *world, void *context) {
    struct verify_serving *job = context;
    struct verify v = {
        .job = job, .world = world, .is_first = world->rank == 0, .ids = TOKEN_BUFFER_INIT, .tensor = world->size};
    double start = clock_seconds();
    log_quiet(!v.is_first);
    if (v.is_first) {
        job->is_equal = true;
        job->gap = 0;
    }
    int status = find_texts(&v);
    THEN(status, comm_agree(world, status ? status : open_memory(&v)));
    THEN(status, verify_training(&v));
    THEN(status, verify_engine(&v));
    THEN_IF(status, v.dump, verify_dump_commit(v.dump));
    THEN(status, tell_summary(&v, clock_seconds() - start));
    if (status)
        comm_fail(world, status);
    verify_dump_close(v.dump);
    if (v.host_rank.device)
        rank_close(&v.host_rank);
    device_close(v.host);
    token_buffer_free(&v.ids);
    free(v.texts);
    free(v.reference);
    free(v.row);
    return status;
}
