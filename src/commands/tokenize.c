/* cambium tokenize and detokenize: filters between lines of text and lines of token ids.
 *
 * The output of each read is written at once, so the commands work on a pipe or a terminal as well as on a file. */
#include "commands.h"
#include "launch.h"
#include "model_arguments.h"

#include "base/base.h"
#include "config/config.h"
#include "openai/json_out.h"
#include "pretrained/pretrained.h"
#include "text/chat.h"
#include "text/text.h"

#include <errno.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 18, MESSAGES_BYTES = 1 << 28 };

struct filter;
struct options {
    int (*line)(struct filter *filter, const char *bytes, size_t length); /* converts one, as in struct filter */
    const char *tokenizer;
    bool allow_special, add_special, shows;
    int special_tokens; /* enum special_tokens */
    const char *messages, *chat_template;
    double template_timeout;
    bool renders;
};

/* Converts one line of input, without its newline, into a line of output, with one. */
struct filter {
    int (*line)(struct filter *filter, const char *bytes, size_t length);
    struct tokenizer *tokenizer;
    struct tokenizer_encoder *encoder;
    unsigned flags;
    bool shows;
    struct token_buffer ids;
    struct strbuf out;
    int64_t line_number;
};

#define AT(field) offsetof(struct options, field)
static const struct config_row rows[] = {
    ROW_PATH("tokenizer", AT(tokenizer), "PATH",
             "a tokenizer's or a model's directory (tokenizer.json, or vocab.json and merges.txt), or a GGUF file",
             .is_required = true),
    ROW_PATH("messages", AT(messages), "FILE",
             "messages in place of lines of text: plain text of one user, a JSON list of {\"role\", \"content\"}, or "
             "an object {\"messages\", \"tools\", \"documents\", \"chat_template_kwargs\"}. The head of an answer "
             "follows, unless the last one is the assistant's"),
    CHAT_TEMPLATE_ROW("chat-template", AT(chat_template), "messages", "as the tokenizer's own template"),
    ROW_BOOL("render", AT(renders), "false", "print the text of the messages, not its ids"),
    ROW_BOOL("add-special", AT(add_special), "false",
             "add the tokens that the tokenizer puts around every text, like <s>"),
    SPECIAL_TOKENS_ROW("special-tokens", AT(special_tokens), "lines of text"),
    ROW_BOOL("show", AT(shows), "false", "print each id with its token's text, like 1:\"<|im_start|>\" 4093:\"user\""),
    ROW_BOOL("allow-special", AT(allow_special), "false",
             "kept for old scripts: changes nothing, because --special-tokens is parse"),
    TEMPLATE_TIMEOUT_ROW("template-timeout", AT(template_timeout)),
};

static const struct config_command tokenize_command = {
    .name = "tokenize",
    .synopsis = "cambium tokenize --tokenizer DIR [--special-tokens parse|text] [--add-special] [--show] < TEXT > IDS\n"
                "       cambium tokenize --tokenizer DIR --messages FILE [--chat-template NAME|FILE] [--render|--show]",
    .description = "Reads lines of text from standard input and writes a line of token ids for each to standard "
                   "output, separated by spaces. The newline is not part of a line's text. With --messages it writes "
                   "one line of ids, those of a chat as the model sees it, or with --render the chat's text.",
    .examples = "  echo 'Hello, world' | cambium tokenize --tokenizer tokenizer\n"
                "  cambium tokenize --tokenizer model --messages chat.json --render\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
};

static const struct config_command detokenize_command = {
    .name = "detokenize",
    .synopsis = "cambium detokenize --tokenizer DIR < IDS > TEXT",
    .description = "Reads lines of token ids, separated by spaces, from standard input and writes the bytes that each "
                   "line stands for, and a newline, to standard output.",
    .examples = "  echo 'Hello, world' | cambium tokenize --tokenizer tokenizer | "
                "cambium detokenize --tokenizer tokenizer\n",
    .rows = rows,
    .row_count = 1,
};

/* Adds the ids with their tokens' texts as a line of the output. */
static int show_ids(struct filter *filter) {
    for (size_t i = 0; i < filter->ids.count; i++) {
        size_t length = 0;
        const unsigned char *bytes = tokenizer_token_bytes(filter->tokenizer, filter->ids.ids[i], &length);
        strbuf_format(&filter->out, i ? " %d:" : "%d:", filter->ids.ids[i]);
        json_out_string(&filter->out, bytes, length);
    }
    strbuf_add_char(&filter->out, '\n');
    return strbuf_status(&filter->out);
}

/* Adds the ids as a line of the output. */
static int add_ids(struct filter *filter) {
    int status = filter->shows ? STATUS_OK : strbuf_reserve(&filter->out, filter->ids.count * 11 + 1);
    if (status || filter->shows)
        return status ? status : show_ids(filter);
    for (size_t i = 0; i < filter->ids.count; i++) {
        char digits[12], *end = digits + sizeof digits, *at = end;
        uint32_t id = (uint32_t)filter->ids.ids[i];
        do
            *--at = (char)('0' + id % 10);
        while (id /= 10);
        if (i > 0)
            *--at = ' ';
        strbuf_add(&filter->out, at, (size_t)(end - at));
    }
    strbuf_add_char(&filter->out, '\n');
    return strbuf_status(&filter->out);
}

static int tokenize_line(struct filter *filter, const char *bytes, size_t length) {
    filter->ids.count = 0;
    int status = tokenizer_encode(filter->encoder, bytes, length, filter->flags, &filter->ids);
    return status ? status : add_ids(filter);
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

static int detokenize_line(struct filter *filter, const char *bytes, size_t length) {
    const char *at = bytes, *end = bytes + length;
    int status = STATUS_OK;
    filter->ids.count = 0;
    while (!status && at < end) {
        if (is_blank(*at)) {
            at++;
            continue;
        }
        const char *word = at;
        int64_t id = 0;
        while (at < end && *at >= '0' && *at <= '9' && id <= INT32_MAX)
            id = id * 10 + (*at++ - '0');
        if (at < end && !is_blank(*at)) {
            while (at < end && !is_blank(*at))
                at++;
            return status_fail(STATUS_INVALID, "'%.*s' is not a token id (0 to %d)",
                               at - word < 40 ? (int)(at - word) : 40, word,
                               tokenizer_vocab_size(filter->tokenizer) - 1);
        }
        status = id <= INT32_MAX ? token_buffer_add(&filter->ids, (int32_t)id)
                                 : status_fail(STATUS_INVALID, "token id %lld is not in the vocabulary (0 to %d)",
                                               (long long)id, tokenizer_vocab_size(filter->tokenizer) - 1);
    }
    THEN(status, tokenizer_decode(filter->tokenizer, filter->ids.ids, filter->ids.count, &filter->out));
    TRY(status);
    strbuf_add_char(&filter->out, '\n');
    return strbuf_status(&filter->out);
}

static int write_output(struct filter *filter) {
    int status = file_write_all(STDOUT_FILENO, strbuf_text(&filter->out), filter->out.length, "standard output");
    strbuf_clear(&filter->out);
    return status;
}

static int one_line(struct filter *filter, const char *bytes, size_t length) {
    filter->line_number++;
    int status = filter->line(filter, bytes, length);
    return status ? status_wrap(status, "standard input, line %lld", (long long)filter->line_number) : STATUS_OK;
}

/* Runs the filter over the whole lines of `pending` and keeps the rest; `scanned` bytes are known to hold no newline.
 */
static int whole_lines(struct filter *filter, struct strbuf *pending, size_t scanned) {
    const char *at = strbuf_text(pending), *end = at + pending->length, *newline;
    int status = STATUS_OK;
    while (!status && (newline = memchr(at + scanned, '\n', (size_t)(end - at) - scanned))) {
        status = one_line(filter, at, (size_t)(newline - at));
        at = newline + 1;
        scanned = 0;
        THEN_IF(status, filter->out.length >= READ_BYTES, write_output(filter));
    }
    pending->length = (size_t)(end - at);
    memmove(pending->data, at, pending->length);
    return status;
}

static int filter_input(struct filter *filter) {
    struct strbuf pending = STRBUF_INIT;
    int status = STATUS_OK;
    for (bool is_end = false; !status && !is_end;) {
        size_t scanned = pending.length;
        status = strbuf_reserve(&pending, READ_BYTES);
        ssize_t n = status ? 0 : read(STDIN_FILENO, pending.data + scanned, READ_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            status = status_fail_errno("cannot read standard input");
        if (status)
            break;
        is_end = n == 0;
        pending.length += (size_t)n;
        if (!is_end)
            status = whole_lines(filter, &pending, scanned);
        else if (pending.length > 0)
            status = one_line(filter, pending.data, pending.length);
        /* Lines before a bad one are written, too. */
        int written = filter->out.length > 0 ? write_output(filter) : STATUS_OK;
        status = status ? status : written;
    }
    strbuf_free(&pending);
    return status;
}

/* ---- messages ---- */

static int add_chat(struct filter *filter, const struct options *options, struct chat_request *request) {
    struct chat_template *template = NULL;
    struct chat_pieces pieces = {0};
    int status = job_chat_template(options->chat_template, NULL, 0, options->tokenizer, &template);
    if (!status && !template)
        status = status_fail(STATUS_UNSUPPORTED,
                             "%s has no chat template: name " CHAT_TEMPLATE_CHOICES " by --chat-template",
                             options->tokenizer);
    size_t count = json_array_size(request->messages);
    request->tokenizer = filter->tokenizer;
    request->eos = tokenizer_eos_id(filter->tokenizer);
    request->asks = !chat_is_assistants(json_array_get(request->messages, count - 1));
    THEN(status, chat_render(template, request, &pieces));
    if (!status && options->renders)
        strbuf_add(&filter->out, strbuf_text(&pieces.text), pieces.text.length);
    else if (!status)
        status = chat_pieces_encode(&pieces, filter->encoder, request->eos, &filter->ids, NULL);
    THEN_IF(status, !options->renders, add_ids(filter));
    chat_pieces_free(&pieces);
    chat_template_close(template);
    return status ? status : strbuf_status(&filter->out);
}

static int write_chat(struct filter *filter, const struct options *options) {
    struct strbuf text = STRBUF_INIT;
    struct chat_request request = {.seconds = options->template_timeout};
    json_t *root = NULL;
    int status = file_read(options->messages, MESSAGES_BYTES, &text);
    if (status && !file_exists(options->messages))
        return status_fail(STATUS_NOT_FOUND,
                           "there is no file '%.100s': --messages takes a file, which may be plain text",
                           options->messages);
    THEN(status, chat_read_request(strbuf_text(&text), text.length, options->messages, &root, &request));
    THEN(status, add_chat(filter, options, &request));
    THEN(status, write_output(filter));
    json_decref(root);
    strbuf_free(&text);
    return status;
}

static int check(const struct options *options, const struct config *config) {
    static const char *const of_messages[] = {"render", "chat-template", "template-timeout"};
    for (size_t i = 0; !options->messages && i < sizeof of_messages / sizeof *of_messages; i++)
        if (config_is_given(config, of_messages[i]))
            return status_fail(STATUS_USAGE, "--%s needs --messages", of_messages[i]);
    static const char *const of_lines[] = {"allow-special", "add-special", "special-tokens"};
    for (size_t i = 0; options->messages && i < sizeof of_lines / sizeof *of_lines; i++)
        if (config_is_given(config, of_lines[i]))
            return status_fail(STATUS_USAGE, "--%s is for lines of text: the template says what a chat has",
                               of_lines[i]);
    return options->shows && options->renders ? status_fail(STATUS_USAGE, "--show prints ids, and --render a text")
                                              : STATUS_OK;
}

static int run(const void *values, const struct config *given) {
    const struct options *options = values;
    struct filter filter = {.line = options->line,
                            .flags = special_tokens_flag(options->special_tokens) |
                                     (options->add_special ? TOKENIZER_ADD_SPECIAL : TOKENIZER_PLAIN),
                            .shows = options->shows};
    TRY(check(options, given));
    int status = pretrained_open_tokenizer(options->tokenizer, &filter.tokenizer);
    THEN(status, tokenizer_encoder_new(filter.tokenizer, &filter.encoder));
    THEN(status, options->messages ? write_chat(&filter, options) : filter_input(&filter));
    tokenizer_encoder_free(filter.encoder);
    tokenizer_close(filter.tokenizer);
    token_buffer_free(&filter.ids);
    strbuf_free(&filter.out);
    return status;
}

int command_tokenize(int argc, char **argv) {
    return command_run(&tokenize_command, argc, argv, &(struct options){.line = tokenize_line}, run);
}

int command_detokenize(int argc, char **argv) {
    return command_run(&detokenize_command, argc, argv, &(struct options){.line = detokenize_line}, run);
}
