/* Scores in rounds. The first rank reads texts for all data-parallel replicas of the model, each replica scores its
 * share, and the first rank prints the results in the order of the input. */
#include "score.h"

#include "adapter_check.h"
#include "text_line.h"

#include "data/json_line.h"
#include "data/lines.h"
#include "infer/score.h"
#include "infer/slots.h"

#include <math.h>

enum {
    ROUND_TEXTS = 64,      /* for each leader */
    ROUND_TOKENS = 1 << 14 /* a round ends after this number of tokens, or after one longer text */
};

/* A text of a round. */
struct text {
    int64_t line, first, count;
    int64_t names,
        name_count;    /* its adapters' names in scorer.names; a count of -1: the adapters of the command line */
    int64_t owner, at; /* the leader that scores it, and the index of its results there */
};

/* Marks a token that nothing predicts. No log-probability is positive. */
#define NOT_PREDICTED 1.0f

/* The leader of a replica of the model. The first of them also reads and prints. */
struct scorer {
    const struct score_job *job;
    struct comm *world;
    struct comm *leaders; /* one rank of each replica */
    bool is_first;
    struct job_memory memory;
    struct engine *engine;
    struct adapters *adapters;
    struct adapter_check *check; /* first rank only */
    struct lines *input;         /* first rank only, as is the reader */
    struct text_reader reader;
    int64_t capacity;         /* texts of a round */
    struct text *texts;       /* [capacity] */
    struct score_text *share; /* [capacity] the texts that this rank scores */
    struct token_buffer ids;  /* of the round's texts, one after the other */
    struct strbuf names;      /* of their adapters, each ended by a zero byte */
    float *logprobs;          /* [leaders][logprob_stride] */
    size_t logprob_capacity;
    int64_t logprob_stride;
};

/* ---- reading ---- */

static int take_names(struct scorer *s, const json_t *names, struct text *text) {
    text->names = (int64_t)s->names.length;
    text->name_count = names && !json_is_null(names) ? (int64_t)json_array_size(names) : -1;
    if (text->name_count >= 0 && (!json_is_array(names) || text->name_count > PEFT_SLOT_IMAGES))
        return status_fail(STATUS_INVALID, "\"adapters\": expected a list of names, at most %d", PEFT_SLOT_IMAGES);
    for (int64_t i = 0; i < text->name_count; i++) {
        const json_t *name = json_array_get(names, (size_t)i);
        if (!json_is_string(name) || strlen(json_string_value(name)) != json_string_length(name))
            return status_fail(STATUS_INVALID, "\"adapters\": adapter %lld is not a name", (long long)i);
        strbuf_add(&s->names, json_string_value(name), json_string_length(name) + 1);
    }
    return strbuf_status(&s->names);
}

/* Takes the slot of a text's adapters; give_slot releases it. */
static int take_slot(struct scorer *s, const struct text *text, int *slot) {
    const char *names[PEFT_SLOT_IMAGES], *at = strbuf_text(&s->names) + text->names;
    uint64_t generations[PEFT_SLOT_IMAGES];
    *slot = engine_opened_slot(s->engine);
    if (text->name_count < 0)
        return STATUS_OK;
    for (int64_t i = 0; i < text->name_count; i++, at += strlen(at) + 1)
        names[i] = at;
    int status = adapters_take(s->adapters, names, (int)text->name_count, slot, generations);
    return status == STATUS_USAGE ? STATUS_INVALID : status; /* the line is at fault, not the command line */
}

static int give_slot(struct scorer *s, const struct text *text, int slot) {
    return text->name_count < 0 ? STATUS_OK : adapters_give(s->adapters, slot);
}

/* Adds a line's ids and names of adapters to the round. */
static int read_line(struct scorer *s, const struct strbuf *line, struct text *text) {
    json_t *root;
    int slot = -1, status = text_reader_line(&s->reader, strbuf_text(line), line->length, &s->ids, &root);
    text->count = (int64_t)s->ids.count - text->first;
    THEN(status, take_names(s, json_object_get(root, "adapters"), text));
    json_decref(root);
    THEN(status, take_slot(s, text, &slot));
    TRY(status);
    status = engine_check_tokens(s->engine, slot, "", s->ids.ids + text->first, text->count);
    int given = give_slot(s, text, slot);
    return status ? status : given;
}

/* Reads the next text into the round; sets *is_end when there is none. */
static int read_text(struct scorer *s, struct text *text, bool *is_end) {
    TRY(lines_next_row(s->input, is_end));
    *text = (struct text){.line = lines_number(s->input), .first = (int64_t)s->ids.count};
    int status = *is_end ? STATUS_OK : read_line(s, lines_text(s->input), text);
    return status ? lines_wrap(s->input, status) : STATUS_OK;
}

/* ---- rounds ---- */

static int share_names(struct scorer *s) {
    int64_t length = (int64_t)s->names.length;
    int status = job_share(s->leaders, &length, 1, DTYPE_I64);
    if (!status && !s->is_first) {
        strbuf_clear(&s->names);
        status = strbuf_reserve(&s->names, (size_t)length);
    }
    TRY(status);
    s->names.length = (size_t)length;
    return job_share(s->leaders, s->names.data, length, DTYPE_U8);
}

/* Reads a round on the first rank and copies it to all leaders. *count is 0 at the end of the input. A line that cannot
 * be read ends the run after the lines before it. A round does not wait for further input once it has a line. */
static int share_round(struct scorer *s, int64_t *count, int *read_status) {
    bool is_end = false;
    *count = 0;
    s->ids.count = 0;
    strbuf_clear(&s->names);
    while (s->is_first && *count < s->capacity && (int64_t)s->ids.count < ROUND_TOKENS * s->leaders->size &&
           !*read_status && !is_end && (!*count || lines_are_ready(s->input, 0))) {
        struct text text;
        *read_status = read_text(s, &text, &is_end);
        if (!is_end && !*read_status)
            s->texts[(*count)++] = text;
    }
    if (s->is_first && *read_status && !*count)
        return *read_status;
    int status = job_share(s->leaders, count, 1, DTYPE_I64);
    THEN(status, job_share(s->leaders, s->texts, *count * (int64_t)sizeof *s->texts, DTYPE_U8));
    THEN_IF(status, *count, share_names(s));
    return status || !*count ? status : job_share_ids(s->leaders, &s->ids);
}

/* Gives each text to the leader with the fewest tokens so far; all leaders compute the same. */
static void deal(struct scorer *s, int64_t count, int64_t *tokens) {
    memset(tokens, 0, (size_t)s->leaders->size * sizeof *tokens);
    s->logprob_stride = 0;
    for (int64_t i = 0; i < count; i++) {
        struct text *text = &s->texts[i];
        text->owner = job_fewest(tokens, s->leaders->size);
        text->at = tokens[text->owner];
        tokens[text->owner] += text->count;
        if (tokens[text->owner] > s->logprob_stride)
            s->logprob_stride = tokens[text->owner];
    }
}

static int make_room(struct scorer *s) {
    size_t needed = (size_t)(s->leaders->size * s->logprob_stride);
    if (needed <= s->logprob_capacity)
        return STATUS_OK;
    free(s->logprobs);
    s->logprobs = calloc(needed, sizeof *s->logprobs);
    s->logprob_capacity = s->logprobs ? needed : 0;
    return status_allocated(s->logprobs);
}

/* Scores this rank's texts from *next on, as many as have room for their adapters at once; advances *next. */
static int score_some(struct scorer *s, int64_t count, int64_t *next) {
    int64_t rank = engine_rank(s->engine)->place.data, first = *next, mine = 0, taken = first;
    float *results = s->logprobs + rank * s->logprob_stride;
    int status = STATUS_OK;
    for (; taken < count; taken++) {
        const struct text *text = &s->texts[taken];
        struct score_text *scored = &s->share[mine];
        if (text->owner != rank)
            continue;
        status = take_slot(s, text, &scored->slot);
        if (status)
            break;
        scored->tokens = s->ids.ids + text->first;
        scored->count = text->count;
        scored->logprobs = results + text->at;
        if (text->count)
            scored->logprobs[0] = NOT_PREDICTED;
        mine++;
    }
    if (status && (status != STATUS_MEMORY || !mine))
        return status;
    *next = taken;
    status = mine ? score_texts(s->engine, s->share, mine) : STATUS_OK;
    for (int64_t i = first, k = 0; i < taken; i++)
        if (s->texts[i].owner == rank) {
            int given = give_slot(s, &s->texts[i], s->share[k++].slot);
            status = status ? status : given;
        }
    return status;
}

/* Each leader scores its share; the first rank gets all log-probabilities. */
static int score_round(struct scorer *s, int64_t count, int64_t *tokens) {
    deal(s, count, tokens);
    int status = make_room(s);
    for (int64_t next = 0; next < count && !status;)
        status = score_some(s, count, &next);
    if (status || s->leaders->size == 1 || !s->logprob_stride)
        return status;
    struct comm_data data = {.send = s->logprobs + engine_rank(s->engine)->place.data * s->logprob_stride,
                             .receive = s->logprobs,
                             .count = s->logprob_stride,
                             .dtype = DTYPE_F32};
    return comm_all_gather(s->leaders, &data);
}

/* ---- printing ---- */

/* Formats the results of a text. Nine significant digits reproduce every float. */
static int format_scores(const struct scorer *s, const struct text *text, struct strbuf *out) {
    const int32_t *ids = s->ids.ids + text->first;
    const float *logprobs = s->logprobs + text->owner * s->logprob_stride + text->at;
    strbuf_clear(out);
    strbuf_add_text(out, "{\"tokens\":[");
    for (int64_t j = 0; j < text->count; j++)
        strbuf_format(out, j ? ",%d" : "%d", ids[j]);
    strbuf_add_text(out, "],\"logprobs\":[");
    for (int64_t j = 0; j < text->count; j++) {
        if (j == 0 && logprobs[0] == NOT_PREDICTED)
            strbuf_add_text(out, "null");
        else if (isfinite(logprobs[j]))
            strbuf_format(out, j ? ",%.9g" : "%.9g", logprobs[j]);
        else
            return status_fail(STATUS_INVALID,
                               "%s:%lld: token %lld has the log-probability %g: the model's numbers are broken",
                               lines_name(s->input), (long long)text->line, (long long)j, logprobs[j]);
    }
    strbuf_add_text(out, "]}\n");
    return strbuf_status(out);
}

static int score_lines(struct scorer *s) {
    struct strbuf out = STRBUF_INIT;
    int status = STATUS_OK, read_status = STATUS_OK;
    int64_t *tokens = calloc((size_t)s->leaders->size, sizeof *tokens);
    TRY(status_allocated(tokens));
    for (int64_t count = 1; count && !status;) {
        status = read_status ? read_status : share_round(s, &count, &read_status);
        THEN_IF(status, count, score_round(s, count, tokens));
        for (int64_t i = 0; i < count && !status && s->is_first; i++) {
            status = format_scores(s, &s->texts[i], &out);
            if (!status && fwrite(out.data, 1, out.length, stdout) != out.length)
                status = status_fail_errno("cannot write to standard output");
        }
    }
    if (s->is_first && (fflush(stdout) || ferror(stdout)) && !status)
        status = status_fail_errno("cannot write to standard output");
    strbuf_free(&out);
    free(tokens);
    return status;
}

/* ---- the run ---- */

static int open_scorer(struct scorer *s) {
    const struct score_job *job = s->job;
    struct engine_options options = {.adapter_memory = adapter_names_memory(job->names)};
    int status = STATUS_OK;
    s->memory =
        (struct job_memory){.help = "a smaller --max-model-len, --adapter-memory or --precision, " JOB_MEMORY_RANKS,
                            .adapters_are_given = job->names->memory_is_given};
    if (s->is_first)
        status = lines_open(job->input, JSON_LINE_BYTES, &s->input);
    THEN(status, job_size_for_texts(job->model, &options));
    s->capacity = ROUND_TEXTS * job->model->grid.data;
    s->texts = calloc((size_t)s->capacity, sizeof *s->texts);
    s->share = calloc((size_t)s->capacity, sizeof *s->share);
    THEN_IF(status, !s->texts || !s->share, status_no_memory());
    status = comm_agree(s->world, status);
    THEN(status, job_model_open(job->model, s->world, options, &s->memory, &s->engine));
    s->leaders = status ? NULL : engine_rank(s->engine)->data;
    if (!status)
        s->reader = (struct text_reader){.tokenizer = job->model->tokenizer ? job->model->tokenizer
                                                                            : engine_directory(s->engine),
                                         .vocab = engine_config(s->engine)->vocab_size,
                                         .special_tokens = job->special_tokens};
    THEN_IF(status, engine_leads(s->engine), adapter_names_open(job->names, s->engine, &s->adapters));
    if (!status && s->is_first)
        s->check = adapter_check_begin(job->names, s->adapters);
    return status;
}

int score_job_run(struct comm *world, void *context) {
    struct scorer s = {.job = context, .world = world, .is_first = world->rank == 0, .ids = TOKEN_BUFFER_INIT};
    log_quiet(!s.is_first);
    int status = open_scorer(&s);
    THEN(status, engine_leads(s.engine) ? score_lines(&s) : engine_follow(s.engine));
    THEN(status, engine_end(s.engine));
    THEN(status, job_memory_tell(world, &s.memory));
    if (status)
        comm_fail(world, status);
    lines_close(s.input);
    free(s.texts);
    free(s.share);
    free(s.logprobs);
    strbuf_free(&s.names);
    token_buffer_free(&s.ids);
    text_reader_close(&s.reader);
    adapter_check_end(s.check);
    adapters_close(s.adapters);
    engine_close(s.engine);
    return status;
}
