/* Evaluates in rounds. The first rank reads rows of the tasks, one task after the other, for all data-parallel replicas
 * of the model. Each replica computes its share, and the first rank adds up the results in the order of the rows. */
#include "eval-internal.h"

#include "base/stop.h"
#include "data/json_line.h"
#include "data/lines.h"
#include "infer/slots.h"

#include <stdlib.h>
#include <string.h>

enum {
    ROUND_ROWS = 64,        /* for each leader */
    ROUND_TOKENS = 1 << 14, /* a round ends after this number of tokens, or after one longer row */
    FOUND = 3               /* numbers of a request's results */
};

/* The leader of a replica of the model. The first of them also reads and writes. */
struct evaluator {
    struct eval_job *job;
    struct comm *world;
    struct comm *leaders; /* one rank of each replica */
    bool is_first;
    struct engine *engine;
    /* Members of the first rank: */
    struct tokenizer *tokenizer;
    struct likelihood_encoder *encoder;
    struct lines *input;         /* of the task that is being read */
    int64_t task, number;        /* that task, and its next row */
    struct eval_result *results; /* [task_count] */
    struct file_writer samples;
    struct progress progress;
    int64_t done, total;    /* rows */
    int64_t tokens, cached; /* of requests so far, and those of them that the prefix cache had */
    struct eval_row *rows;  /* [capacity] of the round */
    int64_t row_count, capacity;
    /* The round, on all leaders: */
    struct likelihood_list requests;
    int32_t *owners;           /* [requests.count] the leader that computes each */
    struct likelihood **share; /* [requests.count] those of this leader */
    double *found;             /* [requests.count, FOUND] logprob, flag, cached tokens */
    int64_t room;              /* of these arrays */
};

/* ---- options ---- */

/* Appends the names of all tasks, for a message. */
static void add_names(struct strbuf *out) {
    for (int i = 0; i < task_count; i++)
        strbuf_format(out, i ? ", %s" : "%s", task_list[i].name);
}

int eval_tasks_read(const struct config_list *list, struct eval_task *tasks) {
    int status = STATUS_OK;
    for (size_t i = 0; i < list->count && !status; i++) {
        const char *item = list->items[i], *equals = strchr(item, '=');
        struct strbuf names = STRBUF_INIT;
        tasks[i].task = equals ? task_find(item, (size_t)(equals - item)) : NULL;
        tasks[i].path = equals ? equals + 1 : "";
        add_names(&names);
        if (equals && !tasks[i].task)
            status =
                status_fail(STATUS_USAGE, "--task %s: no task is called that; there are %s", item, strbuf_text(&names));
        else if (!*tasks[i].path)
            status = status_fail(STATUS_USAGE, "--task %s: expected NAME=FILE, with one of the names %s", item,
                                 strbuf_text(&names));
        strbuf_free(&names);
    }
    return status;
}

/* ---- reading ---- */

/* Adds the requests of a row to the round. */
static int add_requests(struct evaluator *e, struct eval_row *row) {
    const struct task_row *texts = &row->texts;
    const char *bytes = strbuf_text(&texts->texts);
    bool is_rolling = e->job->tasks[row->task].task->kind == TASK_ROLLING;
    int status = STATUS_OK;
    row->first = e->requests.count;
    for (int64_t i = 0; i < texts->count && !status; i++) {
        struct task_span context = texts->requests[i].context, continuation = texts->requests[i].continuation;
        const struct likelihood_text before = {bytes + context.start, context.length},
                                     text = {bytes + continuation.start, continuation.length};
        status = is_rolling ? likelihood_add_rolling(e->encoder, text, &e->requests)
                            : likelihood_add(e->encoder, before, text, &e->requests);
    }
    row->request_count = e->requests.count - row->first;
    return status;
}

/* Makes a row of the round from the current line. */
static int read_row(struct evaluator *e, struct eval_row *row) {
    const struct strbuf *line = lines_text(e->input);
    json_t *root;
    int status = json_line_read(strbuf_text(line), line->length, &root);
    if (status)
        return status;
    row->task = e->task;
    row->number = e->number++;
    if (!json_is_object(root))
        status = status_fail(STATUS_INVALID, "expected a JSON object");
    if (!status)
        status = e->job->tasks[e->task].task->build(root, &row->texts);
    json_decref(root);
    return status ? status : add_requests(e, row);
}

/* Moves to the next line that is a row. *is_end: the task has no more. */
static int next_line(struct evaluator *e, bool *is_end) {
    int status = STATUS_OK;
    *is_end = e->job->limit && e->number >= e->job->limit;
    while (!*is_end && !(status = lines_next(e->input, is_end)) && !*is_end) {
        const struct strbuf *line = lines_text(e->input);
        if (!json_line_is_blank(strbuf_text(line), line->length))
            break;
    }
    return status;
}

static int open_task(struct evaluator *e) {
    e->number = 0;
    e->results[e->task].began = clock_seconds();
    e->results[e->task].ended = e->results[e->task].began;
    return lines_open(e->job->tasks[e->task].path, JSON_LINE_BYTES, &e->input);
}

static void close_task(struct evaluator *e) {
    lines_close(e->input);
    e->input = NULL;
}

/* Reads the next row into the round, of the next task where one has ended; sets *is_end after the last one. */
static int read_next(struct evaluator *e, struct eval_row *row, bool *is_end) {
    int status = STATUS_OK;
    for (*is_end = e->task == e->job->task_count; !*is_end && !status; *is_end = e->task == e->job->task_count) {
        bool has_ended = false;
        if (!e->input)
            status = open_task(e);
        if (!status)
            status = next_line(e, &has_ended);
        if (!status && !has_ended) {
            status = read_row(e, row);
            return status ? lines_wrap(e->input, status) : STATUS_OK;
        }
        if (!status) {
            close_task(e);
            e->task++;
        }
    }
    return status;
}

/* Waits for the next line of a pipe, but not while the round has rows. Returns false when there is none now, or a
 * signal came. */
static bool can_read(const struct evaluator *e) {
    enum { MILLISECONDS = 200 };
    while (e->input && !lines_are_ready(e->input, MILLISECONDS))
        if (e->row_count || stop_requested())
            return false;
    return true;
}

/* Reads a round on the first rank. A signal ends the input. */
static int read_round(struct evaluator *e) {
    bool is_end = false;
    int status = STATUS_OK;
    e->row_count = e->requests.count = 0;
    e->requests.ids.count = 0;
    while (!status && !is_end && !stop_requested() && e->row_count < e->capacity &&
           (int64_t)e->requests.ids.count < (int64_t)ROUND_TOKENS * e->leaders->size && can_read(e)) {
        status = read_next(e, &e->rows[e->row_count], &is_end);
        e->row_count += !status && !is_end;
    }
    e->job->signal = e->task < e->job->task_count ? stop_requested() : 0;
    return status;
}

/* ---- rounds ---- */

static int make_room(struct evaluator *e, int64_t count) {
    if (count <= e->room)
        return STATUS_OK;
    free(e->owners);
    free(e->share);
    free(e->found);
    e->owners = calloc((size_t)count, sizeof *e->owners);
    e->share = calloc((size_t)count, sizeof *e->share);
    e->found = calloc((size_t)count, FOUND * sizeof *e->found);
    e->room = e->owners && e->share && e->found ? count : 0;
    return e->room ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
}

/* Gives each row to the leader with the fewest tokens so far. Windows of a long text are given one by one. */
static int deal(struct evaluator *e) {
    int64_t *tokens = calloc((size_t)e->leaders->size, sizeof *tokens);
    int owner = 0;
    for (int64_t i = 0; i < e->row_count && tokens; i++)
        for (int64_t k = 0; k < e->rows[i].request_count; k++) {
            bool is_own = e->job->tasks[e->rows[i].task].task->kind == TASK_ROLLING;
            for (int r = 0; (k == 0 || is_own) && r < e->leaders->size; r++)
                owner = tokens[r] < tokens[owner] ? r : owner;
            e->owners[e->rows[i].first + k] = owner;
            tokens[owner] += e->requests.items[e->rows[i].first + k].count;
        }
    int status = tokens ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    free(tokens);
    return status;
}

/* Copies the round's requests from the first rank to all leaders. *is_last: there was nothing more to read. */
static int share_round(struct evaluator *e, bool *is_last) {
    int64_t words[2] = {e->requests.count, e->row_count == 0};
    int status = job_share(e->leaders, words, 2, DTYPE_I64);
    if (!status)
        status = make_room(e, words[0]);
    if (!status)
        status = likelihood_list_reserve(&e->requests, words[0]);
    if (!status && e->is_first)
        status = deal(e);
    if (status)
        return status;
    e->requests.count = words[0];
    *is_last = words[1];
    status = job_share(e->leaders, e->requests.items, words[0] * (int64_t)sizeof *e->requests.items, DTYPE_U8);
    if (!status)
        status = job_share(e->leaders, e->owners, words[0], DTYPE_I32);
    return status || !words[0] ? status : job_share_ids(e->leaders, &e->requests.ids);
}

/* Adds up the results of all leaders: each request has them on one, and zeros on the others. */
static int collect(struct evaluator *e) {
    int64_t count = e->requests.count;
    int own = engine_rank(e->engine)->place.data, status = STATUS_OK;
    if (e->leaders->size == 1 || !count)
        return STATUS_OK;
    for (int64_t i = 0; i < count; i++) {
        bool is_own = e->owners[i] == own;
        e->found[FOUND * i] = is_own ? e->requests.items[i].logprob : 0;
        e->found[FOUND * i + 1] = is_own && e->requests.items[i].is_greedy;
        e->found[FOUND * i + 2] = is_own ? (double)e->requests.items[i].cached : 0;
    }
    struct comm_data data = {.send = e->found, .receive = e->found, .count = FOUND * count, .dtype = DTYPE_F64};
    status = comm_all_reduce(e->leaders, &data, COMM_SUM);
    for (int64_t i = 0; i < count && !status; i++) {
        e->requests.items[i].logprob = e->found[FOUND * i];
        e->requests.items[i].is_greedy = e->found[FOUND * i + 1] != 0;
        e->requests.items[i].cached = (int64_t)e->found[FOUND * i + 2];
    }
    return status;
}

static int compute(struct evaluator *e) {
    int64_t mine = 0;
    for (int64_t i = 0; i < e->requests.count; i++)
        if (e->owners[i] == engine_rank(e->engine)->place.data)
            e->share[mine++] = &e->requests.items[i];
    int status = mine
                     ? likelihood_compute(e->engine, engine_opened_slot(e->engine), e->requests.ids.ids, e->share, mine)
                     : STATUS_OK;
    return status ? status : collect(e);
}

/* Adds a row's results to its task. */
static int note_row(struct evaluator *e, const struct eval_row *row) {
    const struct task *task = e->job->tasks[row->task].task;
    struct eval_result *result = &e->results[row->task];
    struct task_result *found = calloc((size_t)row->request_count + 1, sizeof *found);
    if (!found)
        return status_fail(STATUS_MEMORY, "out of memory");
    for (int64_t i = 0; i < row->request_count; i++) {
        const struct likelihood *request = &e->requests.items[row->first + i];
        struct task_result *of = &found[task->kind == TASK_ROLLING ? 0 : i];
        of->logprob += request->logprob;
        of->is_greedy = request->is_greedy;
        e->tokens += request->count;
        e->cached += request->cached;
    }
    task_sums_add(&result->sums, task, &row->texts, found);
    result->requests += row->request_count;
    result->ended = clock_seconds();
    free(found);
    if (e->samples.stream)
        eval_write_samples(e->job, row, &e->requests, e->samples.stream);
    progress_update(&e->progress, ++e->done, "%s", task->name);
    return STATUS_OK;
}

static int evaluate(struct evaluator *e) {
    bool is_last = false;
    int status = STATUS_OK;
    while (!status && !is_last) {
        status = e->is_first ? read_round(e) : STATUS_OK;
        if (!status)
            status = share_round(e, &is_last);
        if (!status)
            status = compute(e);
        for (int64_t i = 0; i < e->row_count && !status; i++)
            status = note_row(e, &e->rows[i]);
    }
    return status;
}

/* ---- the run ---- */

/* Counts the rows of all tasks, unless one comes from a pipe, which can be read only once. */
static int count_rows(struct evaluator *e) {
    int status = STATUS_OK;
    for (int64_t i = 0; i < e->job->task_count; i++)
        if (file_size(e->job->tasks[i].path) < 0)
            return STATUS_OK;
    for (e->task = 0; e->task < e->job->task_count && !status; e->task++) {
        bool is_end = false;
        status = open_task(e);
        while (!status && !(status = next_line(e, &is_end)) && !is_end)
            e->number++;
        e->total += e->number;
        close_task(e);
    }
    e->task = 0;
    return status;
}

/* Opens what the first rank alone needs. */
static int open_first(struct evaluator *e) {
    const struct eval_job *job = e->job;
    const char *directory = job->model->tokenizer ? job->model->tokenizer : engine_directory(e->engine);
    int64_t virtual_tokens = engine_slot_virtual_tokens(e->engine, engine_opened_slot(e->engine));
    e->capacity = (int64_t)ROUND_ROWS * e->leaders->size;
    e->rows = calloc((size_t)e->capacity, sizeof *e->rows);
    e->results = calloc((size_t)job->task_count, sizeof *e->results);
    if (!e->rows || !e->results)
        return status_fail(STATUS_MEMORY, "out of memory");
    int status = count_rows(e);
    if (!status)
        status = tokenizer_open(directory, &e->tokenizer);
    if (!status)
        status = likelihood_encoder_open(e->tokenizer, engine_max_positions(e->engine) - virtual_tokens,
                                         special_tokens_flag(job->special_tokens), &e->encoder);
    if (!status && job->samples)
        status = file_writer_open(&e->samples, job->samples);
    return status;
}

/* Writes what is finished. */
static int finish(struct evaluator *e) {
    int status = eval_print(e->job, e->results);
    if (!status && e->job->output)
        status = eval_write(e->job, e->engine, e->world->size, e->results);
    if (!status && e->samples.stream)
        status = file_writer_commit(&e->samples);
    return status;
}

/* The part of a leader. */
static int lead(struct evaluator *e) {
    e->leaders = engine_rank(e->engine)->data;
    int status = e->is_first ? open_first(e) : STATUS_OK;
    if (status)
        return status;
    progress_begin(&e->progress, "evaluating", e->total);
    status = evaluate(e);
    progress_end(&e->progress);
    if (!status && e->tokens)
        log_info("%lld tokens of prompts, %lld of them from the prefix cache", (long long)e->tokens,
                 (long long)e->cached);
    return status || !e->is_first ? status : finish(e);
}

static void close_all(struct evaluator *e) {
    for (int64_t i = 0; i < e->capacity && e->rows; i++)
        task_row_free(&e->rows[i].texts);
    free(e->rows);
    free(e->results);
    free(e->owners);
    free(e->share);
    free(e->found);
    likelihood_list_free(&e->requests);
    likelihood_encoder_close(e->encoder);
    tokenizer_close(e->tokenizer);
    lines_close(e->input);
    file_writer_abort(&e->samples);
    engine_close(e->engine);
}

int eval_job_run(struct comm *world, void *context) {
    struct evaluator e = {.job = context, .world = world, .is_first = world->rank == 0};
    struct engine_options options = {0};
    log_quiet(!e.is_first);
    int status = comm_agree(world, job_size_for_texts(e.job->model, &options));
    if (!status)
        status = job_model_open(e.job->model, world, options, &e.engine);
    if (!status)
        status = engine_leads(e.engine) ? lead(&e) : engine_follow(e.engine);
    if (!status)
        status = engine_end(e.engine);
    if (status)
        comm_fail(world, status);
    close_all(&e);
    return status;
}
