/* cambium score: the log-probability of every token of given texts. */
#include "commands.h"
#include "model_arguments.h"

#include "config/run.h"
#include "infer/infer.h"

#include <jansson.h>
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
    {.path = "input",
     .type = CONFIG_STRING,
     .offset = AT(input),
     .metavar = "FILE.jsonl",
     .is_path = true,
     .is_required = true,
     .help = "JSON lines with \"text\" or \"tokens\"; - is standard input"},
    MODEL_TOKENIZER_ROW(AT(base)),
    MODEL_PRECISION_ROW(AT(base)),
    MODEL_THREADS_ROW(AT(base)),
};

static const struct config_command command = {
    .name = "score",
    .synopsis = "cambium score --model DIR --input FILE.jsonl [OPTIONS]",
    .description =
        "Writes {\"tokens\":[...],\"logprobs\":[null,...]} for each line of the input: natural logarithms of the "
        "probability of each token after those before it. The first token of a line has none.",
    .examples = "  echo '{\"text\":\"To be or not to be\"}' | cambium score --model out/gpt --input -\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
    .positional_offset = SIZE_MAX,
};

struct scorer {
    const struct score_command *command;
    struct engine *engine;
    struct tokenizer *tokenizer; /* opened at the first text */
    struct tokenizer_encoder *encoder;
    struct token_buffer ids;
    float *logprobs;
    size_t logprob_capacity;
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

static int read_ids(struct scorer *s, const char *line, size_t length) {
    json_error_t error;
    json_t *root = json_loadb(line, length, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return status_fail(STATUS_INVALID, "column %d: %s", error.column, error.text);
    s->ids.count = 0;
    const json_t *text = json_object_get(root, "text"), *tokens = json_object_get(root, "tokens");
    int status;
    if (json_is_string(text) && !tokens)
        status = encode_text(s, text);
    else if (json_is_array(tokens) && !text)
        status = take_ids(s, tokens);
    else
        status = status_fail(STATUS_INVALID,
                             "an object with either \"text\" (a string) or \"tokens\" (an array) was expected");
    json_decref(root);
    return status;
}

/* Nine significant digits give back every float. */
static int format_scores(const struct scorer *s, struct strbuf *out) {
    strbuf_clear(out);
    strbuf_add_text(out, "{\"tokens\":[");
    for (size_t i = 0; i < s->ids.count; i++)
        strbuf_format(out, i ? ",%d" : "%d", s->ids.ids[i]);
    strbuf_add_text(out, "],\"logprobs\":[");
    for (size_t i = 0; i < s->ids.count; i++) {
        if (i == 0)
            strbuf_add_text(out, "null");
        else if (isfinite(s->logprobs[i]))
            strbuf_format(out, ",%.9g", s->logprobs[i]);
        else
            return status_fail(STATUS_INVALID, "token %zu has the log-probability %g: the model's numbers are broken",
                               i, s->logprobs[i]);
    }
    strbuf_add_text(out, "]}\n");
    return strbuf_status(out);
}

static int score_line(struct scorer *s, const char *line, size_t length, struct strbuf *out) {
    int status = read_ids(s, line, length);
    if (!status && s->ids.count > s->logprob_capacity) {
        free(s->logprobs);
        s->logprob_capacity = s->ids.count;
        s->logprobs = malloc(s->ids.count * sizeof *s->logprobs);
        if (!s->logprobs) {
            s->logprob_capacity = 0;
            status = status_fail(STATUS_MEMORY, "out of memory");
        }
    }
    if (!status)
        status = score_tokens(s->engine, s->ids.ids, (int64_t)s->ids.count, s->logprobs);
    return status ? status : format_scores(s, out);
}

static int score_lines(struct scorer *s, FILE *input, const char *name) {
    char *line = NULL;
    size_t capacity = 0;
    struct strbuf out = STRBUF_INIT;
    int status = STATUS_OK;
    ssize_t length;
    for (int64_t number = 1; !status && (length = getline(&line, &capacity, input)) >= 0; number++) {
        length -= length > 0 && line[length - 1] == '\n'; /* or an error at the end would stand in the next line */
        if (strspn(line, " \t\r\n") >= (size_t)length)
            continue;
        status = score_line(s, line, (size_t)length, &out);
        if (status)
            status_wrap(status, "%s:%lld", name, (long long)number);
        else if (fwrite(out.data, 1, out.length, stdout) != out.length)
            status = status_fail_errno("cannot write to standard output");
    }
    if (!status && ferror(input))
        status = status_fail_errno("cannot read %s", name);
    if ((fflush(stdout) || ferror(stdout)) && !status)
        status = status_fail_errno("cannot write to standard output");
    strbuf_free(&out);
    free(line);
    return status;
}

static int run(const struct score_command *c) {
    bool is_stdin = !strcmp(c->input, "-");
    FILE *input = is_stdin ? stdin : fopen(c->input, "re");
    if (!input)
        return status_fail_errno("cannot open %s", c->input);
    struct scorer s = {.command = c, .ids = TOKEN_BUFFER_INIT};
    struct engine_options options = {
        .model = c->base.model,
        .precision = c->base.precision - 1,
        .threads = (int)c->base.threads,
        .max_rows = STEP_ROWS,
        .max_logit_rows = STEP_ROWS,
        .max_sequences = 1,
    };
    int status = engine_open(&options, &s.engine);
    if (!status)
        status = score_lines(&s, input, is_stdin ? "standard input" : c->input);
    if (!is_stdin)
        fclose(input);
    free(s.logprobs);
    token_buffer_free(&s.ids);
    tokenizer_encoder_free(s.encoder);
    tokenizer_close(s.tokenizer);
    engine_close(s.engine);
    return status;
}

int command_score(int argc, char **argv) {
    struct score_command values = {0};
    struct config *config = NULL;
    bool is_help = false;
    int status = config_parse(&command, argc, argv, &values, &config, &is_help);
    if (!status && !is_help)
        status = run(&values);
    config_free(config);
    return command_exit_status(status);
}
