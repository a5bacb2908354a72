/* The loop of `generate --requests`.
 *
 * The window is a list, in the input's order, of the lines that were read and not yet written. Lines are submitted to
 * the scheduler in that order until it has a few batches of texts; answers are written from the head. The window's size
 * is bounded: a request that takes long stops the reading of further lines, so memory is bounded too. */
#include "requests.h"

#include "adapter_check.h"

#include "data/json_line.h"
#include "pretrained/pretrained.h"

enum {
    QUEUED_BATCHES = 2, /* limit of texts in the scheduler */
    WINDOW_BATCHES = 8, /* limit of lines in the window */
    WAIT_MILLISECONDS = 500
};

struct requests {
    const struct requests_options *options;
    struct requests_model model;
    struct scheduler *scheduler;
    struct lines *input;
    struct requests_output output;
    bool has_ended;                  /* true at the end of the input */
    struct answer *first, **last;    /* the window */
    struct answer *next;             /* the first that was not submitted */
    struct answer *finished;         /* answers that the last step finished */
    int64_t lines, texts, requests;  /* in the window; in the scheduler */
    int64_t total, written, errors;  /* answers */
    int64_t drawn, prompted, cached; /* tokens: drawn; of prompts; those of them found in the cache */
    struct strbuf ready;
    struct progress progress;
};

/* ---- reading and submitting ---- */

static int add_line(struct requests *r, const struct strbuf *text) {
    struct answer *answer;
    TRY(answer_new(strbuf_text(text), text->length, lines_number(r->input), &r->model.openai, &answer));
    answer->finished = &r->finished;
    *r->last = answer;
    r->last = &answer->next;
    r->next = r->next ? r->next : answer;
    r->lines++;
    return answer_order(answer, &r->model);
}

/* Fills the window. Waits for a line only when there is nothing else to do. */
static int read_lines(struct requests *r) {
    int64_t room = WINDOW_BATCHES * engine_max_sequences(r->model.engine);
    int status = STATUS_OK;
    while (!status && !r->has_ended && r->lines < room && !stop_requested()) {
        if (!lines_are_ready(r->input, r->lines ? 0 : WAIT_MILLISECONDS)) {
            if (r->lines)
                break;
            continue;
        }
        const struct strbuf *text = lines_text(r->input);
        status = lines_next(r->input, &r->has_ended);
        THEN_IF(status, !r->has_ended && !json_line_is_blank(strbuf_text(text), text->length), add_line(r, text));
    }
    return status;
}

/* Submits one prepared request. One that the scheduler refuses gets an error as its answer. */
static int submit(struct requests *r, struct answer *answer) {
    struct scheduler_request request;
    enum scheduler_refusal refusal;
    uint64_t number;
    answer_request(answer, &r->model, &request);
    int status = scheduler_submit(r->scheduler, &request, &number, &refusal);
    if (!status) {
        answer->state = ANSWER_RUNS;
        r->texts += answer->line.request.ask.choices;
        r->requests++;
        return STATUS_OK;
    }
    if (status != STATUS_INVALID)
        return status;
    int failed = refusal == SCHEDULER_TOO_LARGE ? answer_fail(answer, ERROR_ARGUMENT, "max_tokens")
                                                : answer_fail(answer, ERROR_INTERNAL, NULL);
    return failed ? failed : answer_finish(answer, &r->model);
}

static int submit_lines(struct requests *r) {
    int64_t room = QUEUED_BATCHES * engine_max_sequences(r->model.engine);
    int status = STATUS_OK;
    while (!status && r->next) {
        struct answer *answer = r->next;
        bool must_wait = false;
        if (answer->state == ANSWER_WAITS) {
            if (r->requests && r->texts + answer->line.request.ask.choices > room)
                break;
            r->model.is_busy = r->requests > 0;
            status = answer_prepare(answer, &r->model, &must_wait);
            if (must_wait && !r->requests)
                status = STATUS_MEMORY;
            if (must_wait)
                break;
        }
        THEN_IF(status, answer->state == ANSWER_WAITS, submit(r, answer));
        r->next = answer->next;
    }
    return status;
}

/* ---- writing answers ---- */

/* Finishes the answers of the last step. */
static int finish_answers(struct requests *r) {
    int status = STATUS_OK;
    while (r->finished && !status) {
        struct answer *answer = r->finished;
        r->finished = answer->next_finished;
        r->texts -= answer->line.request.ask.choices;
        r->requests--;
        r->prompted += (int64_t)answer->line.request.prompts[0].ids.count;
        r->cached += answer->cached;
        for (int64_t i = 0; i < answer->line.request.ask.choices; i++)
            r->drawn += answer->choices[i].drawn;
        status = answer_finish(answer, &r->model);
    }
    return status;
}

/* Writes the finished answers at the head of the window. */
static int write_answers(struct requests *r) {
    int64_t errors = 0, count = 0;
    strbuf_clear(&r->ready);
    while (r->first && r->first->state == ANSWER_IS_WRITTEN) {
        struct answer *answer = r->first;
        if (r->next == answer)
            break;
        strbuf_add(&r->ready, strbuf_text(&answer->out), answer->out.length);
        errors += answer->is_error;
        count++;
        r->first = answer->next;
        if (!r->first)
            r->last = &r->first;
        r->lines--;
        answer_free(answer);
    }
    int status = strbuf_status(&r->ready);
    THEN_IF(status, count, requests_output_write(&r->output, &r->ready));
    TRY(status);
    r->errors += errors;
    r->written += count;
    double seconds = clock_seconds() - r->progress.start;
    progress_update(&r->progress, r->written, "%lld requests, %.4g tokens/s", (long long)r->written,
                    seconds > 0 ? (double)r->drawn / seconds : 0.0);
    return STATUS_OK;
}

static int answer_all(struct requests *r) {
    int status = STATUS_OK;
    while (!status && !(r->has_ended && !r->first)) {
        status = read_lines(r);
        if (!status && stop_requested())
            break;
        THEN(status, submit_lines(r));
        THEN_IF(status, r->requests, scheduler_step(r->scheduler));
        if (status > 0)
            status = STATUS_OK;
        THEN(status, finish_answers(r));
        THEN(status, write_answers(r));
    }
    return status;
}

/* ---- the loop ---- */

int requests_check(const struct requests_options *options) {
    return requests_output_check(options->output, options->resumes);
}

/* Counts the lines that have no answer yet, if the input can be read twice. */
static void count_lines(struct requests *r) {
    struct lines *lines = NULL;
    bool is_end = false;
    if (!lines_are_of_file(r->input) || !strcmp(r->options->input, "-"))
        return;
    int status = lines_open(r->options->input, JSON_LINE_BYTES, &lines);
    while (!status && !(status = lines_next_row(lines, &is_end)) && !is_end)
        r->total++;
    lines_close(lines);
    r->total -= r->output.kept; /* a line that cannot be read is reported when its turn comes */
}

static int open_all(struct requests *r) {
    const struct requests_options *o = r->options;
    struct requests_model *model = &r->model;
    int status = lines_open(o->input, JSON_LINE_BYTES, &r->input);
    THEN_IF(status, model->openai.tokenizer, tokenizer_encoder_new(model->openai.tokenizer, &model->encoder));
    THEN(status, requests_output_open(&r->output, o->output, o->resumes, r->input));
    THEN_IF(status, model->openai.tokenizer,
            tokenizer_vocabulary(model->openai.tokenizer, model->openai.ends.eos, (size_t)model->openai.ends.count,
                                 &model->vocabulary));
    THEN_IF(status, model->openai.tokenizer, grammars_open(&o->grammars, &model->grammars));
    struct scheduler_options scheduler = {.prefill_stretch = o->prefill_stretch};
    grammars_schedule(model->grammars, model->vocabulary, &scheduler);
    THEN(status, engine_open_scheduler(model->engine, &scheduler, &r->scheduler));
    if (!status)
        count_lines(r);
    return status;
}

static void close_all(struct requests *r) {
    if (r->scheduler)
        scheduler_close(r->scheduler); /* calls on_done of every request */
    grammars_stop(r->model.grammars);
    while (r->first) {
        struct answer *answer = r->first;
        r->first = answer->next;
        answer_free(answer);
    }
    strbuf_free(&r->ready);
    grammars_close(r->model.grammars);
    grammar_vocabulary_close(r->model.vocabulary);
    tokenizer_encoder_free(r->model.encoder);
    chat_template_close(r->model.chat_template);
    chat_template_close(r->model.tokenizers_template);
    lines_close(r->input);
}

static int answer_requests(const struct requests_options *options, struct engine *engine, struct adapters *adapters,
                           const struct tokenizer *tokenizer, struct requests_result *result) {
    struct requests r = {
        .options = options,
        .model = {.engine = engine,
                  .adapters = adapters,
                  .openai = {.name = options->models.items[0],
                             .names = options->models.items,
                             .name_count = options->models.count,
                             .most_texts = ASK_MAX_CHOICES,
                             .template_seconds = options->template_timeout,
                             .tool_format = tool_format_named(tool_format_choices[options->tool_format]),
                             .has_no_reasoning = options->reasoning == 1},
                  .special_tokens = (enum special_tokens)options->special_tokens,
                  .seed = (uint64_t)options->seed,
                  .tokenizer_directory = options->tokenizer},
        .output = {.descriptor = -1},
    };
    r.last = &r.first;
    int status = openai_model_describe(&r.model.openai, engine, tokenizer);
    THEN(status, chat_template_open_option(options->chat_template, &r.model.chat_template));
    THEN(status, open_all(&r));
    if (!status) {
        progress_begin(&r.progress, "generating", r.total);
        status = answer_all(&r);
        progress_end(&r.progress);
        if (!status && r.prompted)
            log_info("%lld tokens of prompts, %lld of them from the prefix cache", (long long)r.prompted,
                     (long long)r.cached);
    }
    int closed = requests_output_close(&r.output);
    *result = (struct requests_result){.answers = r.written + r.output.kept,
                                       .errors = r.errors + r.output.kept_errors,
                                       .signal = r.has_ended && !r.first ? 0 : stop_requested()};
    close_all(&r);
    return status ? status : closed;
}

/* ---- a rank ---- */

/* Runs the loop on the engine's leader. `tokenizer`: NULL when the model has none. */
static int lead(struct requests_job *job, struct engine *engine, const struct tokenizer *tokenizer) {
    struct requests_options options = job->options;
    struct adapters *adapters = NULL;
    const char *own_name;
    options.tokenizer = job->model->tokenizer ? job->model->tokenizer : engine_directory(engine);
    int status = job_model_names(job->model, &own_name, &options.models);
    THEN(status, adapter_names_open(job->names, engine, &adapters));
    struct adapter_check *check = status ? NULL : adapter_check_begin(job->names, adapters);
    THEN(status, answer_requests(&options, engine, adapters, tokenizer, &job->result));
    adapter_check_end(check);
    adapters_close(adapters);
    free((char *)own_name);
    return status;
}

int requests_job_run(struct comm *world, void *context) {
    struct requests_job *job = context;
    struct job_memory memory = {.help = "a smaller " JOB_MEMORY_SIZES ", " JOB_MEMORY_RANKS,
                                .cache_is_given = job->cache_is_given,
                                .beside = world->rank == 0 ? (size_t)job->options.grammars.memory : 0,
                                .adapters_are_given = job->names->memory_is_given};
    struct engine *engine = NULL;
    struct tokenizer *tokenizer = NULL;
    log_quiet(world->rank != 0);
    int status = job_model_open(job->model, world, job->engine, &memory, &engine);
    if (!status) {
        const char *directory = job->model->tokenizer ? job->model->tokenizer : engine_directory(engine);
        if (job->model->tokenizer || pretrained_has_tokenizer(directory))
            status = pretrained_open_tokenizer(directory, &tokenizer);
        status = comm_agree(world, status);
    }
    THEN(status, world->rank == 0 ? lead(job, engine, tokenizer) : engine_follow(engine));
    THEN(status, engine_end(engine));
    THEN(status, job_memory_tell(world, &memory));
    if (status)
        comm_fail(world, status);
    tokenizer_close(tokenizer);
    engine_close(engine);
    return status;
}

int requests_verdict(const struct requests_options *options, const struct requests_result *result) {
    if (result->signal)
        return status_fail(STATUS_INTERRUPTED, "interrupted by %s after %lld answers%s", stop_name(result->signal),
                           (long long)result->answers, options->output ? ": --resume answers the rest" : "");
    if (result->errors)
        return status_fail(STATUS_INVALID, "%lld of %lld requests were refused: their lines of the output say why",
                           (long long)result->errors, (long long)result->answers);
    return STATUS_OK;
}
