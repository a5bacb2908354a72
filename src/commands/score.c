/* cambium score: the log-probability of every token of given texts. */
#include "commands.h"
#include "model_arguments.h"

#include "config/run.h"
#include "data/json_line.h"
#include "data/lines.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEP_ROWS = 256 };

struct score_command {
    struct model_arguments base;
    const char *input;
};

#define AT(field) offsetof(struct score_command, field)
static const struct config_row rows[] = {
    MODEL_ROW(AT(base)),
    MODEL_ADAPTER_ROW(AT(base)),
    {.path = "input",
     .type = CONFIG_STRING,
     .offset = AT(input),
     .metavar = "FILE.jsonl",
     .is_path = true,
     .is_required = true,
     .help = "JSON lines with \"text\" or \"tokens\", as they are or packed by gzip; - is standard input"},
    MODEL_TOKENIZER_ROW(AT(base)),
    MODEL_PRECISION_ROW(AT(base)),
    MODEL_DEVICE_ROW(AT(base)),
    MODEL_THREADS_ROW(AT(base)),
    MODEL_RANKS_ROW(AT(base)),
    MODEL_LAYOUT_ROWS(AT(base)),
};

static const struct config_command command = {
    .name = "score",
    .synopsis = "cambium score --model DIR --input FILE.jsonl [OPTIONS]",
    .description =
        "Writes {\"tokens\":[...],\"logprobs\":[null,...]} for each line of the input: natural logarithms of the "
        "probability of each token after those before it. The first token of a line has one where an adapter of prompt "
        "tuning or p-tuning predicts it, else null. Several ranks, threads or processes of mpirun or srun, hold the "
        "model together; data-parallel ones share the lines.",
    .examples = "  echo '{\"text\":\"To be or not to be\"}' | cambium score --model out/gpt --input -\n"
                "  mpirun -n 2 cambium score --model out/gpt --input texts.jsonl "
                "--parallel.tensor_model_parallel_size=2\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
    .positional_offset = SIZE_MAX,
};

/* A text of a round, by its place in the ids of all. */
struct text {
    int64_t line, first, count;
};

/* A rank that leads. A round scores a text on each of them: the first rank reads and prints. */
struct scorer {
    const struct score_command *command;
    struct comm *world;
    struct comm *leaders; /* of the data-parallel models */
    bool is_first;
    struct engine *engine;
    struct lines *input;         /* of the first rank, as everything down to the encoder */
    struct tokenizer *tokenizer; /* opened at the first text */
    struct tokenizer_encoder *encoder;
    int64_t capacity;        /* texts of a round */
    struct text *texts;      /* [capacity] */
    struct token_buffer ids; /* of the round's texts, end to end */
    float *logprobs;         /* [capacity][logprob_stride] */
    size_t logprob_capacity;
    int64_t logprob_stride;
};

static int encode_text(struct scorer *s, const json_t *text) {
    int status = STATUS_OK;
    if (!s->tokenizer) {
        status = tokenizer_open(s->command->base.tokenizer ? s->command->base.tokenizer : engine_directory(s->engine),
                                &s->tokenizer);
        if (!status)
            status = tokenizer_encoder_new(s->tokenizer, &s->encoder);
    }
    return status ? status
                  : tokenizer_encode(s->encoder, json_string_value(text), json_string_length(text), TOKENIZER_PLAIN,
                                     &s->ids);
}

static int take_ids(struct scorer *s, const json_t *tokens) {
    int64_t vocab = engine_config(s->engine)->vocab_size;
    int status = STATUS_OK;
    for (size_t i = 0; i < json_array_size(tokens) && !status; i++) {
        const json_t *id = json_array_get(tokens, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= vocab)
            return status_fail(STATUS_INVALID, "token %zu is not an id from 0 to %lld", i, (long long)vocab - 1);
        status = token_buffer_add(&s->ids, (int32_t)json_integer_value(id));
    }
    return status;
}

/* Adds the line's ids to those of the round. */
static int read_ids(struct scorer *s, const struct strbuf *line) {
    json_t *root;
    int status = json_line_read(strbuf_text(line), line->length, lines_number(s->input) == 1, &root);
    if (status)
        return status;
    const json_t *text = json_object_get(root, "text"), *tokens = json_object_get(root, "tokens");
    size_t first = s->ids.count;
    if (json_is_string(text) && !tokens)
        status = encode_text(s, text);
    else if (json_is_array(tokens) && !text)
        status = take_ids(s, tokens);
    else
        status = status_fail(STATUS_INVALID,
                             "an object with either \"text\" (a string) or \"tokens\" (an array) was expected");
    json_decref(root);
    return status ? status
                  : engine_check_tokens(s->engine, engine_opened_slot(s->engine), "", s->ids.ids + first,
                                        (int64_t)(s->ids.count - first));
}

/* The next text of the input into the round; *is_end when there is none. */
static int read_text(struct scorer *s, struct text *text, bool *is_end) {
    const struct strbuf *line = lines_text(s->input);
    int status;
    while (!(status = lines_next(s->input, is_end)) && !*is_end) {
        int64_t number = lines_number(s->input);
        if (json_line_is_blank(strbuf_text(line), line->length, number == 1))
            continue;
        *text = (struct text){.line = number, .first = (int64_t)s->ids.count};
        status = read_ids(s, line);
        text->count = (int64_t)s->ids.count - text->first;
        return status ? status_wrap(status, "%s:%lld", lines_name(s->input), (long long)number) : STATUS_OK;
    }
    return status;
}

/* The first rank's texts to all; *count 0: the input has ended. A line that cannot be read ends the run after those
 * before it. */
static int share_texts(struct scorer *s, int64_t *count, int *read_status) {
    bool is_end = false;
    *count = 0;
    s->ids.count = 0;
    while (s->is_first && *count < s->capacity && !*read_status && !is_end) {
        *read_status = read_text(s, &s->texts[*count], &is_end);
        *count += !is_end && !*read_status;
    }
    if (s->is_first && *read_status && !*count)
        return *read_status;
    struct comm_data counted = {.send = count, .receive = count, .count = 1, .dtype = DTYPE_I64};
    struct comm_data placed = {
        .send = s->texts, .receive = s->texts, .count = s->capacity * (int64_t)sizeof *s->texts, .dtype = DTYPE_U8};
    int status = comm_broadcast(s->leaders, &counted, 0);
    if (!status && *count)
        status = comm_broadcast(s->leaders, &placed, 0);
    return status || !*count ? status : model_share_ids(s->leaders, &s->ids);
}

/* Each data-parallel rank scores its text; the first rank gets all log-probabilities. */
static int score_texts(struct scorer *s, int64_t count) {
    struct rank *rank = engine_rank(s->engine);
    const struct text *own = rank->place.data < count ? &s->texts[rank->place.data] : NULL;
    s->logprob_stride = 0;
    for (int64_t i = 0; i < count; i++)
        s->logprob_stride = s->texts[i].count > s->logprob_stride ? s->texts[i].count : s->logprob_stride;
    size_t needed = (size_t)(s->capacity * s->logprob_stride);
    if (needed > s->logprob_capacity) {
        free(s->logprobs);
        s->logprobs = calloc(needed, sizeof *s->logprobs);
        s->logprob_capacity = s->logprobs ? needed : 0;
        if (!s->logprobs)
            return status_fail(STATUS_MEMORY, "out of memory");
    }
    float *scores = s->logprobs + rank->place.data * s->logprob_stride;
    int status = own ? score_tokens(s->engine, s->ids.ids + own->first, own->count, scores) : STATUS_OK;
    if (status || s->leaders->size == 1)
        return status;
    struct comm_data data = {.send = scores, .receive = s->logprobs, .count = s->logprob_stride, .dtype = DTYPE_F32};
    return s->logprob_stride ? comm_all_gather(s->leaders, &data) : STATUS_OK;
}

/* Nine significant digits give back every float. */
static int format_scores(const struct scorer *s, int64_t i, struct strbuf *out) {
    const struct text *text = &s->texts[i];
    const int32_t *ids = s->ids.ids + text->first;
    const float *logprobs = s->logprobs + i * s->logprob_stride;
    strbuf_clear(out);
    strbuf_add_text(out, "{\"tokens\":[");
    for (int64_t j = 0; j < text->count; j++)
        strbuf_format(out, j ? ",%d" : "%d", ids[j]);
    strbuf_add_text(out, "],\"logprobs\":[");
    for (int64_t j = 0; j < text->count; j++) {
        if (j == 0 && !engine_slot_predicts_first(s->engine, engine_opened_slot(s->engine)))
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
    for (int64_t count = 1; count && !status;) {
        status = read_status ? read_status : share_texts(s, &count, &read_status);
        if (!status && count)
            status = score_texts(s, count);
        for (int64_t i = 0; i < count && s->is_first && !status; i++) {
            status = format_scores(s, i, &out);
            if (!status && fwrite(out.data, 1, out.length, stdout) != out.length)
                status = status_fail_errno("cannot write to standard output");
        }
    }
    if (s->is_first && (fflush(stdout) || ferror(stdout)) && !status)
        status = status_fail_errno("cannot write to standard output");
    strbuf_free(&out);
    return status;
}

struct score_ranks {
    const struct score_command *command;
    struct rank_grid grid;
};

static int open_scorer(struct scorer *s, const struct score_ranks *ranks) {
    struct engine_options options = {.max_rows = STEP_ROWS, .max_logit_rows = STEP_ROWS, .max_sequences = 1};
    int status = STATUS_OK;
    if (s->is_first)
        status = lines_open(s->command->input, SIZE_MAX, &s->input);
    s->capacity = ranks->grid.data;
    s->texts = calloc((size_t)s->capacity, sizeof *s->texts);
    if (!status && !s->texts)
        status = status_fail(STATUS_MEMORY, "out of memory");
    status = comm_agree(s->world, status);
    if (!status)
        status = model_engine_open(&s->command->base, s->world, &ranks->grid, options, &s->engine);
    s->leaders = status ? NULL : engine_rank(s->engine)->data;
    return status;
}

static int run_rank(struct comm *world, void *context) {
    const struct score_ranks *ranks = context;
    struct scorer s = {
        .command = ranks->command, .world = world, .is_first = world->rank == 0, .ids = TOKEN_BUFFER_INIT};
    log_quiet(!s.is_first);
    int status = open_scorer(&s, ranks);
    if (!status)
        status = engine_leads(s.engine) ? score_lines(&s) : engine_follow(s.engine);
    if (!status)
        status = engine_end(s.engine);
    if (status)
        launch_abort(world, status);
    lines_close(s.input);
    free(s.texts);
    free(s.logprobs);
    token_buffer_free(&s.ids);
    tokenizer_encoder_free(s.encoder);
    tokenizer_close(s.tokenizer);
    engine_close(s.engine);
    return status;
}

int command_score(int argc, char **argv) {
    struct score_command values = {0};
    struct score_ranks ranks = {.command = &values};
    struct config *config = NULL;
    struct launch launch;
    struct facts facts = FACTS_INIT;
    bool is_help = false;
    int status = launch_begin(&launch);
    if (!status)
        status = config_parse(&command, argc, argv, &values, &config, &is_help);
    if (!status && !is_help)
        status = model_grid(&values.base, &launch, true, &ranks.grid);
    if (!status)
        status = model_facts(&values.base, &launch, &command, &values, is_help, &facts);
    status = launch_agree(&launch, status);
    if (!status)
        status = launch_same(&launch, &facts);
    facts_free(&facts);
    if (!status && !is_help)
        status = launch_run(&launch, rank_grid_size(&ranks.grid), run_rank, &ranks);
    config_free(config);
    return launch_end(&launch, status);
}
