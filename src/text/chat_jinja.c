/* Which of our chat templates a text in Jinja is. Two texts are the same template when they are the same after spaces
 * between words, kinds of quotes, spellings of an attribute, trimming marks and joins of strings are made alike;
 * nothing is evaluated. */
#include "chat-internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { TEMPLATE_BYTES = 1 << 20 };

/* ---- ours ---- */

struct jinja {
    const char *body;    /* the turns */
    const char *request; /* behind it: the head of the answer that is wanted, or "" */
};
static const struct jinja jinjas[CHAT_TEMPLATE_COUNT] = {
    [CHAT_TEMPLATE_AUTO] = {"", ""},
    [CHAT_TEMPLATE_CHATML] =
        {"{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
         "'<|im_end|>' + '\\n' }}{% endfor %}",
         "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"},
    [CHAT_TEMPLATE_ALPACA] =
        {"{% if messages[0]['role'] != 'system' %}{{ '" ALPACA_PREAMBLE_JINJA "' }}{% endif %}"
         "{% for message in messages %}{% if message['role'] == 'system' %}{{ message['content'] + '\\n\\n' }}"
         "{% elif message['role'] == 'user' %}{{ '### Instruction:\\n' + message['content'] + '\\n\\n' }}"
         "{% else %}{{ '### Response:\\n' + message['content'] + eos_token }}"
         "{% if not loop.last %}{{ '\\n\\n' }}{% endif %}{% endif %}{% endfor %}",
         "{% if add_generation_prompt %}{{ '### Response:\\n' }}{% endif %}"},
    [CHAT_TEMPLATE_PLAIN] = {"{% for message in messages %}{% if message['role'] == 'assistant' %}"
                             "{{ message['content'] + eos_token }}{% else %}{{ message['content'] + '\\n' }}"
                             "{% endif %}{% endfor %}",
                             ""},
};

void chat_template_write(enum chat_template which, struct strbuf *text) {
    strbuf_add_text(text, jinjas[which].body);
    strbuf_add_text(text, jinjas[which].request);
}

/* ---- others ---- */

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool ends_with(const struct strbuf *text, const char *end) {
    size_t length = strlen(end);
    return text->length >= length && !memcmp(text->data + text->length - length, end, length);
}

static void drop_end(struct strbuf *text, size_t length) {
    text->length -= length;
    text->data[text->length] = 0;
}

/* A character of a string; quotes are single ones, line ends are written as \n. */
static void add_literal(struct strbuf *out, char c) {
    if (c == '\n')
        strbuf_add_text(out, "\\n");
    else if (c == '\'')
        strbuf_add_text(out, "\\'");
    else
        strbuf_add_char(out, c);
}

/* 'a' + 'b' is one string. Outside a string a quote at the end is one that closes. */
static void open_literal(struct strbuf *out) {
    if (ends_with(out, "'+"))
        drop_end(out, 2);
    else
        strbuf_add_char(out, '\'');
}

/* {{ a }}{{ b }} is {{ a + b }}. */
static void open_expression(struct strbuf *out) {
    if (ends_with(out, "}}")) {
        drop_end(out, 2);
        strbuf_add_char(out, '+');
    } else {
        strbuf_add_text(out, "{{");
    }
}

/* The inside of a tag up to its end; returns what is behind it, or NULL. */
static const char *copy_tag(const char *at, const char *end, char mark, struct strbuf *out) {
    char closing = mark == '{' ? '}' : '%', quote = 0;
    for (; at < end; at++) {
        if (quote) {
            if (*at == '\\' && at + 1 < end) {
                at++;
                if (*at != '"')
                    strbuf_add_char(out, '\\');
                strbuf_add_char(out, *at);
            } else if (*at == quote) {
                strbuf_add_char(out, '\'');
                quote = 0;
            } else {
                add_literal(out, *at);
            }
            continue;
        }
        const char *close = *at == '-' ? at + 1 : at;
        if (end - close >= 2 && close[0] == closing && close[1] == '}') {
            strbuf_add(out, close, 2);
            return close + 2;
        }
        if (*at == '\'' || *at == '"') {
            quote = *at;
            open_literal(out);
        } else if (!is_space(*at)) {
            strbuf_add_char(out, *at);
        }
    }
    return NULL;
}

static const char *find_tag(const char *at, const char *end) {
    for (; end - at >= 2; at++)
        if (at[0] == '{' && (at[1] == '{' || at[1] == '%' || at[1] == '#'))
            return at;
    return NULL;
}

/* Text between tags is an expression with one string, without what transformers' settings (trim_blocks, lstrip_blocks)
 * and the tags' own marks take away. */
static void copy_text(const char *at, const char *tag, const char *start, const char *end, struct strbuf *out) {
    const char *stop = tag ? tag : end;
    bool is_block = tag && tag[1] != '{';
    if (at > start && at[-2] != '}' && at < stop && *at == '\n')
        at++;
    if (at - start >= 3 && at[-1] == '}' && at[-3] == '-')
        while (at < stop && is_space(*at))
            at++;
    if (tag && end - tag > 2 && tag[2] == '-') {
        while (stop > at && is_space(stop[-1]))
            stop--;
    } else if (is_block) {
        const char *line = stop;
        while (line > at && (line[-1] == ' ' || line[-1] == '\t'))
            line--;
        if (line == start || line[-1] == '\n')
            stop = line;
    }
    if (at >= stop)
        return;
    open_expression(out);
    open_literal(out);
    for (; at < stop; at++) {
        if (*at == '\\')
            strbuf_add_char(out, '\\');
        add_literal(out, *at);
    }
    strbuf_add_text(out, "'}}");
}

static void replace_all(struct strbuf *text, const char *from, const char *to) {
    struct strbuf out = STRBUF_INIT;
    const char *at = strbuf_text(text), *found;
    for (; (found = strstr(at, from)); at = found + strlen(from)) {
        strbuf_add(&out, at, (size_t)(found - at));
        strbuf_add_text(&out, to);
    }
    strbuf_add_text(&out, at);
    strbuf_free(text);
    *text = out;
}

/* False: no template. */
static bool normalise(const char *text, size_t length, struct strbuf *out) {
    const char *start = text, *at = text, *end = text + length;
    while (at && at < end) {
        const char *tag = find_tag(at, end);
        copy_text(at, tag, start, end, out);
        if (!tag)
            break;
        at = tag + 2;
        if (tag[1] == '#') { /* a comment says nothing */
            while (end - at >= 2 && (at[0] != '#' || at[1] != '}'))
                at++;
            at = end - at >= 2 ? at + 2 : NULL;
            continue;
        }
        if (at < end && *at == '-')
            at++;
        if (tag[1] == '{')
            open_expression(out);
        else
            strbuf_add_text(out, "{%");
        at = copy_tag(at, end, tag[1], out);
    }
    replace_all(out, "['role']", ".role");
    replace_all(out, "['content']", ".content");
    return at && !out->failed;
}

/* What says that no answer is wanted unless asked, before a template. */
static const char *behind_preamble(const char *text) {
    static const char preamble[] = "{%ifnotadd_generation_promptisdefined%}{%setadd_generation_prompt=false%}{%endif%}";
    return strncmp(text, preamble, sizeof preamble - 1) ? text : text + sizeof preamble - 1;
}

enum chat_template chat_template_recognise(const char *text, size_t length) {
    struct strbuf given = STRBUF_INIT;
    int found = CHAT_TEMPLATE_AUTO;
    bool is_template = length <= TEMPLATE_BYTES && !memchr(text, 0, length) && normalise(text, length, &given);
    for (int t = CHAT_TEMPLATE_AUTO + 1; t < CHAT_TEMPLATE_COUNT && is_template && !found; t++) {
        struct strbuf ours = STRBUF_INIT, whole = STRBUF_INIT, body = STRBUF_INIT;
        chat_template_write((enum chat_template)t, &ours);
        normalise(strbuf_text(&ours), ours.length, &whole);
        const char *request = strstr(strbuf_text(&whole), "{%ifadd_generation_prompt%}");
        strbuf_add(&body, whole.data, request ? (size_t)(request - whole.data) : whole.length);
        const char *inner = behind_preamble(strbuf_text(&given));
        if (!strcmp(inner, strbuf_text(&whole)) || !strcmp(inner, strbuf_text(&body)))
            found = t;
        strbuf_free(&ours);
        strbuf_free(&whole);
        strbuf_free(&body);
    }
    strbuf_free(&given);
    return (enum chat_template)found;
}

/* ---- a tokenizer's directory ---- */

/* chat_template: a string, or a list of {"name", "template"} of which "default" counts. NULL: there is none. */
static const json_t *find_template(const json_t *root) {
    const json_t *value = json_object_get(root, "chat_template"), *item;
    size_t i;
    if (!json_is_array(value))
        return json_is_null(value) ? NULL : value;
    json_array_foreach(value, i, item) {
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name && !strcmp(name, "default"))
            return json_object_get(item, "template");
    }
    return NULL;
}

static int recognise_or_refuse(const char *path, const char *text, size_t length, enum chat_template *which) {
    *which = chat_template_recognise(text, length);
    if (*which != CHAT_TEMPLATE_AUTO)
        return STATUS_OK;
    return status_fail(STATUS_UNSUPPORTED,
                       "%s: the tokenizer's chat_template is none of chatml, alpaca, plain: name the one to use", path);
}

static int read_config(const char *path, const struct strbuf *text, enum chat_template *which) {
    json_error_t error;
    json_t *root;
    int status = json_read(strbuf_text(text), text->length, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &root, &error);
    if (status == STATUS_INVALID)
        status_fail(status, "%s: line %d column %d: bad JSON: %s", path, error.line, error.column, error.text);
    if (status)
        return status;
    const json_t *value = find_template(root);
    if (value && !json_is_string(value))
        status = status_fail(STATUS_INVALID, "%s: chat_template is not a string", path);
    else if (value)
        status = recognise_or_refuse(path, json_string_value(value), json_string_length(value), which);
    json_decref(root);
    return status;
}

int chat_template_of_tokenizer(const struct tokenizer_files *files, enum chat_template *which) {
    char path[PATH_MAX];
    enum tokenizer_file file = files->is_there[TOKENIZER_TEMPLATE] ? TOKENIZER_TEMPLATE : TOKENIZER_CONFIG;
    const struct strbuf *text = &files->texts[file];
    *which = CHAT_TEMPLATE_AUTO;
    int status = file_join(path, sizeof path, files->directory, tokenizer_file_names[file]);
    if (status || !files->is_there[file])
        return status;
    return file == TOKENIZER_TEMPLATE ? recognise_or_refuse(path, strbuf_text(text), text->length, which)
                                      : read_config(path, text, which);
}
