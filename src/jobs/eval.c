/* Evaluates in rounds. The first rank reads rows of the tasks, one task after the other, for all data-parallel replicas
 * of the model. Each replica computes its share, and the first rank adds up the results in the order of the rows. */
#include "eval-internal.h"

#include "data/json_line.h"
#include "infer/generate.h"
#include "infer/slots.h"
#include "pretrained/pretrained.h"

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
    struct eval_prompter *prompter;
    struct strbuf completion;
    struct lines *input;         /* of the task that is being read */
    int64_t task, number;        /* that task, and its next row */
    struct eval_result *results; /* [task_count] */
    struct file_writer samples;
    struct progress progress;
    int64_t done, total;    /* rows */
    int64_t tokens, cached; /* of requests so far, and those of them that the prefix cache had */
    struct eval_row *rows;  /* [capacity] of the round */
    int64_t row_count, capacity;
    /* On all leaders, and the round: */
    struct eval_completer completer;
    struct likelihood_list requests;
    int32_t *owners;                              /* [requests.count] the leader that computes each */
    struct likelihood **share;                    /* [requests.count] those of this leader, without prompts */
    struct eval_prompt *prompts, *shared_prompts; /* [prompt_count] all, and [requests.count] those of this leader */
    int64_t *drawn;                               /* [prompt_count, 1 + ask.max_tokens] */
    int64_t prompt_count, next_prompt;
    double *found; /* [requests.count, FOUND] logprob, flag, cached tokens */
    int64_t room;  /* of these arrays */
};

/* ---- options ---- */

int eval_tasks_read(const struct config_list *list, struct eval_task *tasks) {
    int status = STATUS_OK;
    for (size_t i = 0; i < list->count && !status; i++) {
        const char *item = list->items[i], *equals = strchr(item, '=');
        struct strbuf names = STRBUF_INIT;
        tasks[i].task = equals ? task_find(item, (size_t)(equals - item)) : NULL;
        tasks[i].path = equals ? equals + 1 : "";
        for (int k = 0; k < task_count; k++)
            strbuf_format(&names, k ? ", %s" : "%s", task_list[k].name);
        if (equals && !tasks[i].task)
            status = status_fail(STATUS_USAGE, "--task %s: unknown task; known: %s", item, strbuf_text(&names));
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
    enum task_kind kind = e->job->tasks[row->task].task->kind;
    int status = STATUS_OK;
    row->first = e->requests.count;
    for (int64_t i = 0; i < texts->count && !status; i++) {
        struct task_span continuation = texts->requests[i].continuation;
        struct likelihood_text before, text = {bytes + continuation.start, continuation.length};
        if (kind == TASK_ROLLING)
            status = likelihood_add_rolling(e->encoder, text, &e->requests);
        else if (!(status = eval_prompter_context(e->prompter, texts, texts->requests[i].context, &before)))
            status = kind == TASK_GENERATE
                         ? likelihood_add_prompt(e->encoder, before, e->completer.ask.max_tokens, &e->requests)
                         : likelihood_add(e->encoder, before, text, &e->requests);
        if (!status && kind == TASK_GENERATE)
            e->requests.items[e->requests.count - 1].is_turn = texts->messages;
    }
    row->request_count = e->requests.count - row->first;
    return status;
}

/* Makes a row of the round from the current line. */
static int read_row(struct evaluator *e, struct eval_row *row) {
    json_t *root = NULL;
    row->task = e->task;
    row->number = e->number++;
    int status = eval_read_line(e->input, e->job->tasks[e->task].task, &root, &row->texts);
    THEN(status, eval_prompter_choose(e->prompter, root));
    json_decref(root);
    return status ? status : add_requests(e, row);
}

/* Moves to the next line that is a row. *is_end: the task has no more. */
static int next_line(struct evaluator *e, bool *is_end) {
    *is_end = e->job->limit && e->number >= e->job->limit;
    return *is_end ? STATUS_OK : lines_next_row(e->input, is_end);
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
        if (!e->input && !(status = open_task(e)))
            status = eval_prompter_begin(e->prompter, &e->job->tasks[e->task]);
        THEN(status, next_line(e, &has_ended));
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
    free(e->prompts);
    free(e->shared_prompts);
    e->prompts = calloc((size_t)count, sizeof *e->prompts);
    e->shared_prompts = calloc((size_t)count, sizeof *e->shared_prompts);
    e->owners = calloc((size_t)count, sizeof *e->owners);
    e->share = calloc((size_t)count, sizeof *e->share);
    e->found = calloc((size_t)count, FOUND * sizeof *e->found);
    e->room = e->owners && e->share && e->found && e->prompts && e->shared_prompts ? count : 0;
    return status_allocated(e->room);
}

/* Gives each row to the leader with the fewest tokens so far. Windows of a long text are given one by one. */
static int deal(struct evaluator *e) {
    int64_t *tokens = calloc((size_t)e->leaders->size, sizeof *tokens);
    int owner = 0;
    for (int64_t i = 0; i < e->row_count && tokens; i++)
        for (int64_t k = 0; k < e->rows[i].request_count; k++) {
            if (k == 0 || e->job->tasks[e->rows[i].task].task->kind == TASK_ROLLING)
                owner = job_fewest(tokens, e->leaders->size);
            e->owners[e->rows[i].first + k] = owner;
            tokens[owner] += e->requests.items[e->rows[i].first + k].count;
        }
    int status = status_allocated(tokens);
    free(tokens);
    return status;
}

/* Copies the round's requests from the first rank to all leaders. *is_last: there was nothing more to read. */
static int share_round(struct evaluator *e, bool *is_last) {
    int64_t words[2] = {e->requests.count, e->row_count == 0};
    int status = job_share(e->leaders, words, 2, DTYPE_I64);
    THEN(status, make_room(e, words[0]));
    THEN(status, likelihood_list_reserve(&e->requests, words[0]));
    THEN_IF(status, e->is_first, deal(e));
    TRY(status);
    e->requests.count = words[0];
    *is_last = words[1];
    status = job_share(e->leaders, e->requests.items, words[0] * (int64_t)sizeof *e->requests.items, DTYPE_U8);
    THEN(status, job_share(e->leaders, e->owners, words[0], DTYPE_I32));
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
    struct comm_data drawn = {.send = e->drawn,
                              .receive = e->drawn,
                              .count = e->prompt_count * (1 + e->completer.ask.max_tokens),
                              .dtype = DTYPE_I64};
    if (drawn.count)
        status = comm_all_reduce(e->leaders, &drawn, COMM_SUM);
    struct comm_data data = {.send = e->found, .receive = e->found, .count = FOUND * count, .dtype = DTYPE_F64};
    THEN(status, comm_all_reduce(e->leaders, &data, COMM_SUM));
    for (int64_t i = 0; i < count && !status; i++) {
        e->requests.items[i].logprob = e->found[FOUND * i];
        e->requests.items[i].is_greedy = e->found[FOUND * i + 1] != 0;
        e->requests.items[i].cached = (int64_t)e->found[FOUND * i + 2];
    }
    return status;
}

/* Lists the prompts of the round, and makes room for their completions. */
static int list_prompts(struct evaluator *e) {
    int64_t each = 1 + e->completer.ask.max_tokens;
    e->prompt_count = e->next_prompt = 0;
    for (int64_t i = 0; i < e->requests.count; i++)
        if (e->requests.items[i].first == e->requests.items[i].count)
            e->prompts[e->prompt_count++].request = &e->requests.items[i];
    free(e->drawn);
    e->drawn = calloc((size_t)(e->prompt_count * each) + 1, sizeof *e->drawn);
    for (int64_t i = 0; i < e->prompt_count && e->drawn; i++)
        e->prompts[i].drawn = e->drawn + i * each;
    return status_allocated(e->drawn);
}

static int compute(struct evaluator *e) {
    int64_t mine = 0, my_prompts = 0, prompt = 0;
    int status = list_prompts(e);
    for (int64_t i = 0; i < e->requests.count && !status; i++) {
        bool is_own = e->owners[i] == engine_rank(e->engine)->place.data;
        bool is_prompt = prompt < e->prompt_count && e->prompts[prompt].request == &e->requests.items[i];
        if (is_own && is_prompt)
            e->shared_prompts[my_prompts++] = e->prompts[prompt];
        else if (is_own)
            e->share[mine++] = &e->requests.items[i];
        prompt += is_prompt;
    }
    if (!status && mine)
        status = likelihood_compute(e->engine, engine_opened_slot(e->engine), e->requests.ids.ids, e->share, mine);
    THEN_IF(status, my_prompts, eval_complete(&e->completer, e->requests.ids.ids, e->shared_prompts, my_prompts));
    return status ? status : collect(e);
}

/* Compares the completion of a row with its answer. */
static int note_completion(struct evaluator *e, const struct eval_row *row, struct task_result *found) {
    const struct eval_prompt *prompt = &e->prompts[e->next_prompt++];
    struct task_span answer = row->texts.requests[0].continuation;
    int status = eval_completion(&e->completer, prompt, &e->completion);
    found->is_greedy = task_is_answer(strbuf_text(&e->completion), e->completion.length,
                                      strbuf_text(&row->texts.texts) + answer.start, answer.length);
    if (!status && e->samples.stream)
        eval_write_completion(e->job, row, &e->requests, prompt, &e->completion, found->is_greedy, e->samples.stream);
    return status;
}

/* Adds a row's results to its task. */
static int note_row(struct evaluator *e, const struct eval_row *row) {
    const struct task *task = e->job->tasks[row->task].task;
    struct eval_result *result = &e->results[row->task];
    struct task_result *found = calloc((size_t)row->request_count + 1, sizeof *found);
    TRY(status_allocated(found));
    for (int64_t i = 0; i < row->request_count; i++) {
        const struct likelihood *request = &e->requests.items[row->first + i];
        struct task_result *of = &found[task->kind == TASK_ROLLING ? 0 : i];
        of->logprob += request->logprob;
        of->is_greedy = request->is_greedy;
        e->tokens += request->count;
        e->cached += request->cached;
    }
    int status = task->kind == TASK_GENERATE ? note_completion(e, row, found) : STATUS_OK;
    task_sums_add(&result->sums, task, &row->texts, found);
    result->requests += row->request_count;
    result->ended = clock_seconds();
    free(found);
    if (e->samples.stream && task->kind != TASK_GENERATE)
        eval_write_samples(e->job, row, &e->requests, e->samples.stream);
    progress_update(&e->progress, ++e->done, "%s", task->name);
    return status;
}

static int evaluate(struct evaluator *e) {
    bool is_last = false;
    int status = STATUS_OK;
    while (!status && !is_last) {
        status = e->is_first ? read_round(e) : STATUS_OK;
        THEN(status, share_round(e, &is_last));
        THEN(status, compute(e));
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

/* Returns how many tokens the model sees. */
static int64_t seen(const struct evaluator *e) {
    return engine_max_positions(e->engine) - engine_slot_virtual_tokens(e->engine, engine_opened_slot(e->engine));
}

/* Opens what every leader needs: tokenizer, template, and the ends of completions. */
static int open_leader(struct evaluator *e) {
    enum { MAX_GEN_TOKS = 256 }; /* of lm_eval */
    static const char *const until = "\n\n";
    const struct eval_job *job = e->job;
    const char *directory = job->model->tokenizer ? job->model->tokenizer : engine_directory(e->engine);
    int64_t most = seen(e) / 2 < MAX_GEN_TOKS ? seen(e) / 2 : MAX_GEN_TOKS;
    struct eval_completer *c = &e->completer;
    *c = (struct eval_completer){.job = job, .engine = e->engine};
    ask_begin(&c->ask);
    c->ask.sampling.temperature = 0;
    c->ask.max_tokens = job->max_gen_toks ? job->max_gen_toks : most;
    if (c->ask.max_tokens >= seen(e))
        return status_fail(STATUS_USAGE, "--max-gen-toks %lld: the model sees %lld tokens",
                           (long long)c->ask.max_tokens, (long long)seen(e));
    int status = job->until.count ? ask_take_stops(&c->ask, job->until.items, job->until.count)
                                  : ask_take_stops(&c->ask, &until, 1);
    THEN(status, pretrained_open_tokenizer(directory, &e->tokenizer));
    c->tokenizer = e->tokenizer;
    return status ? status : eval_completer_open(c);
}

/* Opens what only the first rank needs. */
static int open_first(struct evaluator *e) {
    const struct eval_job *job = e->job;
    struct model_text_ends ends = engine_text_ends(e->engine, e->tokenizer);
    e->capacity = (int64_t)ROUND_ROWS * e->leaders->size;
    e->rows = calloc((size_t)e->capacity, sizeof *e->rows);
    e->results = calloc((size_t)job->task_count, sizeof *e->results);
    TRY(status_allocated(e->rows && e->results));
    int status = count_rows(e);
    THEN(status, likelihood_encoder_open(e->tokenizer, seen(e), special_tokens_flag(job->special_tokens), &e->encoder));
    THEN(status, eval_prompter_open(job, e->tokenizer, model_first_eos(&ends), &e->completer, &e->prompter));
    THEN_IF(status, job->samples, file_writer_open(&e->samples, job->samples));
    return status;
}

/* Writes what is finished. */
static int finish(struct evaluator *e) {
    int status = eval_print(e->job, e->results);
    THEN_IF(status, e->job->output, eval_write(e->job, e->engine, e->world->size, e->results));
    THEN_IF(status, e->samples.stream, file_writer_commit(&e->samples));
    return status;
}

/* The part of a leader. */
static int lead(struct evaluator *e) {
    e->leaders = engine_rank(e->engine)->data;
    int status = open_leader(e);
    THEN_IF(status, e->is_first, open_first(e));
    TRY(status);
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
    free(e->prompts);
    free(e->shared_prompts);
    free(e->drawn);
    strbuf_free(&e->completion);
    eval_prompter_close(e->prompter);
    eval_completer_close(&e->completer);
    likelihood_list_free(&e->requests);
    likelihood_encoder_close(e->encoder);
    tokenizer_close(e->tokenizer);
    lines_close(e->input);
    file_writer_abort(&e->samples);
    engine_close(e->engine);
}

int eval_job_run(struct comm *world, void *context) {
    struct evaluator e = {.job = context, .world = world, .is_first = world->rank == 0};
    struct engine_options options = {.max_positions_option = "--max-length"};
    struct job_memory memory = {.help = "a smaller --max-length or --precision, " JOB_MEMORY_RANKS};
    log_quiet(!e.is_first);
    int status = comm_agree(world, job_size_for_texts(e.job->model, &options));
    THEN(status, job_model_open(e.job->model, world, options, &memory, &e.engine));
    THEN(status, engine_leads(e.engine) ? lead(&e) : engine_follow(e.engine));
    THEN(status, engine_end(e.engine));
    THEN(status, job_memory_tell(world, &memory));
    if (status)
        comm_fail(world, status);
    close_all(&e);
    return status;
}
