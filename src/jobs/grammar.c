/* Answers lines in rounds: the first thread reads a round, all check its lines, and the first writes the answers. */
#include "grammar.h"

#include "data/lines.h"
#include "infer/ask_constraint.h"
#include "model/family.h"
#include "openai/error.h"
#include "openai/json_out.h"
#include "pretrained/pretrained.h"
#include "text/text.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <unistd.h>

enum { LINE_BYTES = 64 << 20, ROUND_LINES = 16, /* for each thread */ ROUND_BYTES = 1 << 24 };
#define GRAMMAR_BYTES ((size_t)32 << 20) /* of a grammar: an eighth of the default of --grammar-memory */
#define MASK_SECONDS  1.0

struct checker {
    const struct grammar_job *job;
    struct tokenizer *tokenizer;
    struct grammar_vocabulary *vocabulary;
    struct model_text_ends ends;
    struct line *lines; /* [capacity] of a round */
    int64_t capacity;
    int out;
};

/* A line and its answer. */
struct line {
    json_t *root;
    struct strbuf answer;
    int status;
    char reason[256]; /* of a failure, which ends the job */
};

/* The fields of a line, and its results. */
struct check {
    const struct checker *checker;
    struct ask_constraint constraint;
    const json_t *texts, *tokens;
    bool counts;
    struct grammar *grammar;
    double compile_seconds;
    struct grammar_report report;
    enum error_case error;
    char param[64], message[700];
    uint32_t *mask;
    double *seconds; /* [mask_count] of the masks */
    size_t mask_count, mask_capacity;
    struct token_buffer ids;
    struct strbuf texts_out;
};

static int refuse(struct check *c, enum error_case error, const char *field, const char *message) {
    c->error = error;
    snprintf(c->param, sizeof c->param, "%s", field);
    snprintf(c->message, sizeof c->message, "%s: %s", field, message);
    return STATUS_OK;
}

/* ---- fields ---- */

static bool are_texts(const json_t *list) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_string(json_array_get(list, i)))
            return false;
    return !list || json_is_array(list);
}

static bool are_tokens(const json_t *lists) {
    for (size_t i = 0; i < json_array_size(lists); i++) {
        const json_t *list = json_array_get(lists, i);
        for (size_t k = 0; k < json_array_size(list); k++) {
            json_int_t id = json_integer_value(json_array_get(list, k));
            if (!json_is_integer(json_array_get(list, k)) || id < 0 || id > INT32_MAX)
                return false;
        }
        if (!json_is_array(list))
            return false;
    }
    return !lists || json_is_array(lists);
}

static int read_fields(struct check *c, const json_t *root) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)root, name, value) {
        int status = STATUS_OK;
        if (json_is_null(value) || !strcmp(name, "id"))
            continue;
        if (!strcmp(name, "texts"))
            c->texts = value;
        else if (!strcmp(name, "tokens"))
            c->tokens = value;
        else if (!strcmp(name, "counts"))
            c->counts = json_is_true(value);
        else if (ask_constraint_has(name))
            status = ask_constraint_read(&c->constraint, name, value);
        else
            status = status_fail(STATUS_INVALID, "there is no such field");
        if (status == STATUS_INVALID)
            return refuse(c, ERROR_CONSTRAINT_INVALID, name, status_text());
        TRY(status);
    }
    const json_t *counts = json_object_get(root, "counts");
    if (counts && !json_is_boolean(counts) && !json_is_null(counts))
        return refuse(c, ERROR_CONSTRAINT_INVALID, "counts", "expected true or false");
    if (!are_texts(c->texts))
        return refuse(c, ERROR_CONSTRAINT_INVALID, "texts", "expected a list of texts");
    if (!are_tokens(c->tokens))
        return refuse(c, ERROR_CONSTRAINT_INVALID, "tokens", "expected a list of lists of token ids");
    if (!c->constraint.source.field)
        return refuse(c, ERROR_CONSTRAINT_INVALID, "structured_outputs", "the line has no constraint");
    return STATUS_OK;
}

/* ---- texts ---- */

/* Makes the mask of the next token. A late one refuses the line. */
static int make_mask(struct check *c, struct grammar_state *state, bool is_measured, struct grammar_allowed *allowed) {
    double begin = clock_seconds();
    TRY(array_reserve(&c->seconds, &c->mask_capacity, c->mask_count + 1, sizeof *c->seconds));
    int status = grammar_mask(state, MASK_SECONDS, c->mask, allowed);
    if (is_measured && !status)
        c->seconds[c->mask_count++] = clock_seconds() - begin;
    if (status == STATUS_UNSUPPORTED) {
        refuse(c, ERROR_CONSTRAINT_TOO_LARGE, c->constraint.source.field, status_text());
        *allowed = (struct grammar_allowed){0, -1};
        return STATUS_OK;
    }
    return status;
}

static void add_count(struct strbuf *out, size_t number, size_t count) {
    strbuf_format(out, number ? ",%zu" : "%zu", count);
}

static bool is_end(const struct checker *checker, int32_t id) {
    for (int i = 0; i < checker->ends.count; i++)
        if (checker->ends.eos[i] == id)
            return true;
    return false;
}

/* Follows the tokens of a text, and describes it. */
static int follow(struct check *c, struct grammar_state *state) {
    int32_t size = tokenizer_vocab_size(c->checker->tokenizer);
    struct grammar_allowed allowed;
    struct strbuf counts = STRBUF_INIT;
    size_t at = 0, forced = 0, i = 0, bytes;
    int status = STATUS_OK;
    for (; i < c->ids.count && !status && !c->error; i++) {
        int32_t id = c->ids.ids[i];
        THEN(status, make_mask(c, state, true, &allowed));
        if (status || c->error)
            break;
        forced += allowed.count == 1;
        add_count(&counts, i, allowed.count);
        status = id < size ? grammar_accept(state, id, NULL) : status_fail(STATUS_INVALID, "no token has this id");
        if (status)
            break;
        tokenizer_token_bytes(c->checker->tokenizer, id, &bytes);
        at += is_end(c->checker, id) ? 0 : bytes;
    }
    bool is_accepted = i == c->ids.count;
    if (status == STATUS_INVALID)
        status = STATUS_OK;
    if (!status && !c->error && is_accepted && c->counts) {
        status = make_mask(c, state, false, &allowed);
        add_count(&counts, i, allowed.count);
    }
    strbuf_format(&c->texts_out, "%s{\"accepted\":%s,\"complete\":%s,\"at\":%zu,\"tokens\":%zu,\"forced\":%zu",
                  c->texts_out.length ? "," : "", is_accepted ? "true" : "false",
                  is_accepted && (state->is_over || grammar_is_complete(state)) ? "true" : "false", at, c->ids.count,
                  forced);
    if (c->counts)
        strbuf_format(&c->texts_out, ",\"allowed\":[%s]", strbuf_text(&counts));
    strbuf_add_char(&c->texts_out, '}');
    THEN(status, strbuf_status(&counts));
    strbuf_free(&counts);
    return status;
}

static int check_text(struct check *c) {
    struct grammar_state state = {0};
    int status = grammar_begin(c->grammar, &state);
    THEN(status, follow(c, &state));
    grammar_end(&state);
    return status;
}

static int check_texts(struct check *c) {
    const struct tokenizer *tokenizer = c->checker->tokenizer;
    struct tokenizer_encoder *encoder;
    /* A tag may name special tokens. No space comes before the text, which is the completion itself. */
    unsigned flags =
        TOKENIZER_CONTINUED | (c->constraint.source.kind == GRAMMAR_TAG ? TOKENIZER_ALLOW_SPECIAL : TOKENIZER_PLAIN);
    int status = tokenizer_encoder_new(tokenizer, &encoder);
    for (size_t i = 0; i < json_array_size(c->texts) && !status && !c->error; i++) {
        const json_t *text = json_array_get(c->texts, i);
        c->ids.count = 0;
        status = tokenizer_encode(encoder, json_string_value(text), json_string_length(text), flags, &c->ids);
        THEN(status, check_text(c));
    }
    for (size_t i = 0; i < json_array_size(c->tokens) && !status && !c->error; i++) {
        const json_t *list = json_array_get(c->tokens, i);
        c->ids.count = 0;
        for (size_t k = 0; k < json_array_size(list) && !status; k++)
            status = token_buffer_add(&c->ids, (int32_t)json_integer_value(json_array_get(list, k)));
        THEN(status, check_text(c));
    }
    tokenizer_encoder_free(encoder);
    return status;
}

/* ---- answers ---- */

static int compare_numbers(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

static double share_of(const struct check *c, double share) {
    size_t place = (size_t)ceil(share * (double)c->mask_count);
    return c->mask_count ? c->seconds[place ? place - 1 : 0] * 1e6 : 0;
}

static void add_masks(struct check *c, struct strbuf *out) {
    double sum = 0;
    for (size_t i = 0; i < c->mask_count; i++)
        sum += c->seconds[i] * 1e6;
    if (c->mask_count)
        qsort(c->seconds, c->mask_count, sizeof *c->seconds, compare_numbers);
    strbuf_format(out, "{\"count\":%zu,\"mean\":%.2f,\"p50\":%.2f,\"p90\":%.2f,\"p99\":%.2f,\"max\":%.2f}",
                  c->mask_count, c->mask_count ? sum / (double)c->mask_count : 0, share_of(c, 0.5), share_of(c, 0.9),
                  share_of(c, 0.99), share_of(c, 1));
}

static void add_error(const struct check *c, struct strbuf *out) {
    if (!c->error) {
        strbuf_add_text(out, "null");
        return;
    }
    strbuf_format(out, "{\"code\":\"%s\",\"param\":", error_row(c->error)->code);
    json_out_text(out, c->param);
    strbuf_add_text(out, ",\"message\":");
    json_out_text(out, c->message);
    strbuf_add_char(out, '}');
}

static int write_answer(struct check *c, const json_t *id, struct strbuf *out) {
    char *shown;
    json_begin();
    TRY(json_end(id ? json_incref((json_t *)id) : json_null(), JSON_ENCODE_ANY | JSON_COMPACT, &shown));
    strbuf_format(out, "{\"id\":%s,\"status\":\"%s\",\"error\":", shown, c->error ? "refused" : "ok");
    free(shown);
    add_error(c, out);
    strbuf_add_text(out, ",\"ignored\":[");
    for (size_t i = 0; i < json_array_size(c->report.ignored); i++) {
        strbuf_add_text(out, i ? "," : "");
        json_out_text(out, json_string_value(json_array_get(c->report.ignored, i)));
    }
    strbuf_format(out, "],\"compile_us\":%.1f,\"bytes\":%zu,\"texts\":[%s],\"mask_us\":", c->compile_seconds * 1e6,
                  c->grammar ? grammar_bytes(c->grammar) : 0, strbuf_text(&c->texts_out));
    add_masks(c, out);
    strbuf_add_text(out, "}\n");
    out->failed |= c->texts_out.failed;
    return strbuf_status(out);
}

/* ---- lines ---- */

static int compile(struct check *c) {
    const struct grammar_limits limits = {.seconds = c->checker->job->timeout, .bytes = GRAMMAR_BYTES};
    double begin = clock_seconds();
    int status = grammar_compile(&c->constraint.source, c->checker->vocabulary, &limits, &c->report, &c->grammar);
    c->compile_seconds = clock_seconds() - begin;
    if (!status || status == STATUS_MEMORY)
        return status;
    return refuse(c, error_of_refusal(c->report.refusal), c->constraint.source.field,
                  c->report.message.length ? strbuf_text(&c->report.message) : status_text());
}

static int check_line(const struct checker *checker, const json_t *root, struct strbuf *out) {
    struct check c = {.checker = checker};
    c.mask = calloc(grammar_vocabulary_words(checker->vocabulary), sizeof *c.mask);
    int status = status_allocated(c.mask);
    THEN(status, read_fields(&c, root));
    THEN_IF(status, !c.error, compile(&c));
    THEN_IF(status, !c.error, check_texts(&c));
    THEN(status, write_answer(&c, json_object_get(root, "id"), out));
    grammar_release(c.grammar);
    grammar_report_free(&c.report);
    ask_constraint_free(&c.constraint);
    token_buffer_free(&c.ids);
    strbuf_free(&c.texts_out);
    free(c.seconds);
    free(c.mask);
    return status;
}

/* Reads the next lines; *count of them. A line that is no object ends the input. */
static int read_round(struct checker *checker, struct lines *input, int64_t *count) {
    size_t bytes = 0;
    bool is_end = false;
    int status = STATUS_OK;
    for (*count = 0; *count < checker->capacity && bytes < ROUND_BYTES && !status;) {
        json_error_t error;
        struct line *line = &checker->lines[*count];
        *line = (struct line){0};
        status = lines_next_row(input, &is_end);
        if (status || is_end)
            break;
        const struct strbuf *text = lines_text(input);
        bytes += text->length;
        status =
            json_read(strbuf_text(text), text->length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &line->root, &error);
        if (status == STATUS_INVALID)
            status = lines_wrap(input, status_fail(status, "column %d: bad JSON: %s", error.column, error.text));
        else if (!status && !json_is_object(line->root))
            status = lines_wrap(input, status_fail(STATUS_INVALID, "expected an object"));
        *count += line->root != NULL && !status;
        if (status)
            json_decref(line->root);
    }
    return status;
}

static int write_round(const struct checker *checker, int64_t count) {
    const char *name = checker->job->output ? checker->job->output : "standard output";
    int status = STATUS_OK;
    for (int64_t i = 0; i < count; i++) {
        struct line *line = &checker->lines[i];
        if (!status && line->status)
            status = status_fail(line->status, "%s", line->reason);
        THEN(status, file_write_all(checker->out, strbuf_text(&line->answer), line->answer.length, name));
        strbuf_free(&line->answer);
        json_decref(line->root);
    }
    return status;
}

static int run_rounds(struct checker *checker, struct lines *input) {
    int status = STATUS_OK;
    int64_t count = 1;
    while (!status && count) {
        int read = read_round(checker, input, &count);
        char reason[1024];
        snprintf(reason, sizeof reason, "%s", status_text());
#pragma omp parallel for num_threads((int)checker->job->threads) schedule(dynamic, 1)
        for (int64_t i = 0; i < count; i++) {
            struct line *line = &checker->lines[i];
            line->status = check_line(checker, line->root, &line->answer);
            if (line->status)
                snprintf(line->reason, sizeof line->reason, "%s", status_text());
        }
        status = write_round(checker, count);
        THEN_IF(status, read, status_fail(read, "%s", reason));
    }
    return status;
}

/* ---- the job ---- */

/* The ids that end a completion: the tokenizer's, and those of generation_config.json. */
static int find_ends(struct checker *checker, const struct tokenizer_files *files) {
    const struct model_config config = {.vocab_size = tokenizer_vocab_size(checker->tokenizer)};
    int32_t eos = tokenizer_eos_id(checker->tokenizer);
    int status = STATUS_OK;
    if (files->is_there[TOKENIZER_GENERATION])
        status = model_read_generation_config(strbuf_text(&files->texts[TOKENIZER_GENERATION]),
                                              tokenizer_file_names[TOKENIZER_GENERATION], &config, &checker->ends);
    if (!status && eos >= 0)
        model_add_eos(&checker->ends, eos, true);
    return status;
}

static int open_tokenizer(struct checker *checker) {
    struct tokenizer_files files;
    TRY(pretrained_read_tokenizer(checker->job->tokenizer, &files));
    int status = tokenizer_open_files(&files, &checker->tokenizer);
    THEN(status, find_ends(checker, &files));
    THEN(status, tokenizer_vocabulary(checker->tokenizer, checker->ends.eos, (size_t)checker->ends.count,
                                      &checker->vocabulary));
    tokenizer_files_free(&files);
    return status;
}

static int open_output(struct checker *checker) {
    const char *path = checker->job->output;
    checker->out = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : STDOUT_FILENO;
    return checker->out < 0 ? status_fail_errno("cannot write '%s'", path) : STATUS_OK;
}

int grammar_job_run(const struct grammar_job *job) {
    struct checker checker = {.job = job, .out = -1, .capacity = ROUND_LINES * job->threads};
    struct lines *input = NULL;
    checker.lines = calloc((size_t)checker.capacity, sizeof *checker.lines);
    int status = status_allocated(checker.lines);
    THEN(status, open_tokenizer(&checker));
    THEN(status, lines_open_plain(job->input, LINE_BYTES, &input));
    THEN(status, open_output(&checker));
    THEN(status, run_rounds(&checker, input));
    if (job->output && checker.out >= 0 && close(checker.out) && !status)
        status = status_fail_errno("cannot write '%s'", job->output);
    lines_close(input);
    grammar_vocabulary_close(checker.vocabulary);
    tokenizer_close(checker.tokenizer);
    free(checker.lines);
    return status;
}
