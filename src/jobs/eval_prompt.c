/* The contexts of `eval`: examples before a row, and chats as their rendering. */
#include "eval-internal.h"

#include "data/json_line.h"
#include "data/random_state.h"
#include "unicode/python.h"

/* The rows that examples are taken from. */
struct pool {
    json_t **rows; /* [count] */
    size_t count, capacity;
    bool is_own;                /* the task's own rows: none is an example for its equal */
    struct random_state random; /* of the task; lm_eval draws anew for each row */
    uint32_t *drawn, *room;     /* [shots + 1] and [count] */
};

struct eval_prompter {
    const struct eval_job *job;
    const struct eval_task *task;
    struct chat_request request;
    struct eval_completer *completer; /* whose template renders chats */
    struct pool pool;
    const json_t **examples; /* [shots] of the current row */
    struct task_row example;
    struct strbuf text, answer;
    struct chat_pieces pieces;
};

int eval_prompter_open(const struct eval_job *job, const struct tokenizer *tokenizer, int32_t eos,
                       struct eval_completer *completer, struct eval_prompter **prompter) {
    struct eval_prompter *made = calloc(1, sizeof *made);
    TRY(status_allocated(made));
    made->job = job;
    made->request = (struct chat_request){.tokenizer = tokenizer, .eos = eos, .asks = true};
    made->completer = completer;
    made->examples = calloc((size_t)job->shots + 1, sizeof *made->examples);
    made->pool.drawn = calloc((size_t)job->shots + 1, sizeof *made->pool.drawn);
    *prompter = made;
    return status_allocated(made->examples && made->pool.drawn);
}

static void empty(struct pool *pool) {
    for (size_t i = 0; i < pool->count; i++)
        json_decref(pool->rows[i]);
    free(pool->room);
    pool->room = NULL;
    pool->count = 0;
}

void eval_prompter_close(struct eval_prompter *p) {
    if (!p)
        return;
    empty(&p->pool);
    free(p->pool.rows);
    free(p->pool.drawn);
    free(p->examples);
    task_row_free(&p->example);
    strbuf_free(&p->text);
    strbuf_free(&p->answer);
    chat_pieces_free(&p->pieces);
    free(p);
}

/* ---- lines ---- */

int eval_read_line(struct lines *lines, const struct task *task, json_t **root, struct task_row *row) {
    const struct strbuf *line = lines_text(lines);
    int status = json_line_read(strbuf_text(line), line->length, root);
    THEN_IF(status, !json_is_object(*root), status_fail(STATUS_INVALID, "expected a JSON object"));
    THEN(status, task->build(*root, row));
    return !status && row->messages ? chat_check_messages(row->messages) : status;
}

/* ---- examples ---- */

static int add_row(struct eval_prompter *p, struct lines *lines) {
    struct pool *pool = &p->pool;
    json_t *root = NULL;
    TRY(array_reserve(&pool->rows, &pool->capacity, pool->count + 1, sizeof *pool->rows));
    int status = eval_read_line(lines, p->task->task, &root, &p->example);
    if (status) {
        json_decref(root);
        return lines_wrap(lines, status);
    }
    pool->rows[pool->count++] = root;
    return STATUS_OK;
}

int eval_prompter_begin(struct eval_prompter *p, const struct eval_task *task) {
    const struct eval_job *job = p->job;
    struct pool *pool = &p->pool;
    struct lines *lines = NULL;
    bool is_end = false;
    empty(pool);
    p->task = task;
    pool->is_own = !job->shots_path;
    const char *path = job->shots_path ? job->shots_path : task->path;
    if (!job->shots)
        return STATUS_OK;
    if (pool->is_own && file_size(path) < 0)
        return status_fail(STATUS_USAGE, "--num-fewshot: %s is read only once: name rows with --fewshot-data", path);
    bool is_whole = pool->is_own || job->shots_seed >= 0;
    int status = lines_open(path, JSON_LINE_BYTES, &lines);
    while (!status && (is_whole || (int64_t)pool->count < job->shots) && !(status = lines_next_row(lines, &is_end)) &&
           !is_end)
        status = add_row(p, lines);
    lines_close(lines);
    if (!status && (int64_t)pool->count < job->shots + pool->is_own)
        return status_fail(STATUS_INVALID, "--num-fewshot %lld: %s has %zu rows%s", (long long)job->shots, path,
                           pool->count, pool->is_own ? ", of which one is asked" : "");
    if (!status && job->shots_seed >= 0) {
        pool->room = calloc(pool->count, sizeof *pool->room);
        random_state_seed_python(&pool->random, (uint32_t)job->shots_seed);
        status = status_allocated(pool->room);
    }
    return status;
}

/* Takes rows in order, but those that equal the one that is asked. Returns how many there are. */
static int64_t take(struct eval_prompter *p, const json_t *asked, const uint32_t *order, size_t count) {
    int64_t taken = 0;
    for (size_t i = 0; i < count && taken < p->job->shots; i++) {
        const json_t *row = p->pool.rows[order ? order[i] : i];
        if (!p->pool.is_own || !json_equal(row, asked))
            p->examples[taken++] = row;
    }
    return taken;
}

/* Draws as lm_eval does: one more than needed, and again from all others where too many equal the one that is asked. */
static int64_t draw(struct eval_prompter *p, const json_t *asked) {
    struct pool *pool = &p->pool;
    uint32_t wanted = (uint32_t)(p->job->shots + pool->is_own), others = 0;
    random_state_sample(&pool->random, (uint32_t)pool->count, wanted, pool->room, pool->drawn);
    if (take(p, asked, pool->drawn, wanted) == p->job->shots)
        return p->job->shots;
    uint32_t *left = calloc(pool->count, sizeof *left);
    for (uint32_t i = 0; left && i < pool->count; i++)
        if (!json_equal(pool->rows[i], asked))
            left[others++] = i;
    int64_t taken = 0;
    if (left && others >= p->job->shots) {
        random_state_sample(&pool->random, others, (uint32_t)p->job->shots, pool->room, pool->drawn);
        for (; taken < p->job->shots; taken++)
            p->examples[taken] = pool->rows[left[pool->drawn[taken]]];
    }
    free(left);
    return left ? taken : -1;
}

int eval_prompter_choose(struct eval_prompter *p, const json_t *asked) {
    int64_t taken = !p->job->shots ? 0 : p->job->shots_seed >= 0 ? draw(p, asked) : take(p, asked, NULL, p->pool.count);
    if (taken < 0)
        return status_no_memory();
    return taken == p->job->shots
               ? STATUS_OK
               : status_fail(STATUS_INVALID, "--num-fewshot %lld: only %lld rows differ from this one",
                             (long long)p->job->shots, (long long)taken);
}

/* ---- contexts ---- */

/* Makes the texts of example `i`, which must be a chat where the row is one. */
static int make_example(struct eval_prompter *p, int64_t i, const struct task_row *row) {
    strbuf_clear(&p->answer);
    int status = p->task->task->build(p->examples[i], &p->example);
    if (!status && !p->example.messages != !row->messages)
        status = status_fail(STATUS_INVALID, "example %lld has %s \"messages\", and this row has %s", (long long)i + 1,
                             row->messages ? "no" : "the field", row->messages ? "them" : "not");
    return status ? status : task_row_example(p->task->task, &p->example, &p->answer);
}

/* Appends the messages of a list; system messages of examples are those of the row. */
static int add_messages(json_t *all, const json_t *messages, bool is_example) {
    json_t *message;
    size_t i;
    int failed = 0;
    json_array_foreach((json_t *)messages, i, message) {
        const char *role = json_string_value(json_object_get(message, "role"));
        bool is_system = !strcmp(role, "system") || !strcmp(role, "developer");
        if (is_system && !is_example && i == 0)
            failed |= json_array_insert(all, 0, message);
        else if (!is_system || !is_example)
            failed |= json_array_append(all, message);
    }
    return failed ? status_no_memory() : STATUS_OK;
}

/* Renders the examples as turns before the row's own messages. */
static int render(struct eval_prompter *p, const struct task_row *row) {
    json_t *all = json_array();
    int status = all ? eval_completer_need_turns(p->completer) : status_no_memory();
    THEN(status, prompt_check_template(p->completer->template));
    for (int64_t i = 0; i < p->job->shots && !status; i++) {
        status = make_example(p, i, row);
        const char *answer = strbuf_text(&p->answer);
        size_t length = p->answer.length;
        python_strip(&answer, &length);
        THEN(status, add_messages(all, p->example.messages, true));
        if (!status &&
            json_array_append_new(all, json_pack("{s:s, s:s%}", "role", "assistant", "content", answer, length)))
            status = status_no_memory();
    }
    THEN(status, add_messages(all, row->messages, false));
    p->request.messages = all;
    chat_pieces_clear(&p->pieces);
    THEN(status, chat_render(p->completer->template, &p->request, &p->pieces));
    json_decref(all);
    return status;
}

int eval_prompter_context(struct eval_prompter *p, const struct task_row *row, struct task_span context,
                          struct likelihood_text *text) {
    int status = STATUS_OK;
    if (row->messages && p->job->special_tokens == SPECIAL_TOKENS_TEXT)
        return status_fail(STATUS_INVALID, "field \"messages\": a chat has the special tokens of its template, which "
                                           "--special-tokens text leaves out");
    if (row->messages) {
        status = render(p, row);
        *text = (struct likelihood_text){strbuf_text(&p->pieces.text), p->pieces.text.length};
        return status;
    }
    strbuf_clear(&p->text);
    for (int64_t i = 0; i < p->job->shots && !status; i++) {
        status = make_example(p, i, row);
        strbuf_add(&p->text, strbuf_text(&p->answer), p->answer.length);
        strbuf_add_text(&p->text, "\n\n");
    }
    strbuf_add(&p->text, strbuf_text(&row->texts) + context.start, context.length);
    *text = (struct likelihood_text){strbuf_text(&p->text), p->text.length};
    return status ? status : strbuf_status(&p->text);
}
