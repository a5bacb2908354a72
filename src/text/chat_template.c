/* Templates: our three, those in files, and those of a tokenizer's files. */
#include "chat-internal.h"

#define ALPACA_START "Below is an instruction that describes a task"
/* Inside a string of Jinja. */
#define ALPACA_END "Write a response that appropriately completes the request.\\n\\n"

const char *const chat_template_names[] = {"chatml", "alpaca", "plain", NULL};
static const char *const own_texts[CHAT_NAME_COUNT] = {
    [CHAT_CHATML] = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
                    "'<|im_end|>' + '\\n' }}{% endfor %}"
                    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    [CHAT_ALPACA] =
        "{% if messages[0]['role'] != 'system' %}{{ '" ALPACA_START ". " ALPACA_END "' }}{% endif %}"
        "{% for message in messages %}{% if message['role'] == 'system' %}{{ message['content'] + '\\n\\n' }}"
        "{% elif message['role'] == 'user' %}{{ '### Instruction:\\n' + message['content'] + '\\n\\n' }}"
        "{% else %}{{ '### Response:\\n' + message['content'] + eos_token }}"
        "{% if not loop.last %}{{ '\\n\\n' }}{% endif %}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '### Response:\\n' }}{% endif %}",
    [CHAT_PLAIN] = "{% for message in messages %}{% if message['role'] == 'assistant' %}"
                   "{{ message['content'] + eos_token }}{% else %}{{ message['content'] + '\\n' }}"
                   "{% endif %}{% endfor %}",
};
const char chat_alpaca_input[] =
    "{{ '" ALPACA_START ", paired with an input that provides further context. " ALPACA_END "' }}"
    "{{ '### Instruction:\\n' + instruction + '\\n\\n### Input:\\n' + input + '\\n\\n### Response:\\n' }}"
    "{% generation %}{{ output + eos_token if output else eos_token }}{% endgeneration %}";

static int open_jinja(const struct strbuf *text, const char *where, struct jinja **jinja) {
    int status = jinja_open(strbuf_text(text), text->length, jinja);
    return status ? status_wrap(status, "%s", where) : STATUS_OK;
}

static enum chat_name name_of(const struct strbuf *text) {
    int name = 0;
    while (name < CHAT_NAME_COUNT && strcmp(strbuf_text(text), own_texts[name]) != 0)
        name++;
    return (enum chat_name)name;
}

/* `tools`: the text for requests with tools; NULL: the same text. */
static int open_both(const char *text, size_t length, const char *tools, size_t tools_length, const char *where,
                     struct chat_template **out) {
    *out = NULL;
    struct chat_template *template = calloc(1, sizeof *template);
    TRY(status_allocated(template));
    template->references = 1;
    pthread_mutex_init(&template->lock, NULL);
    strbuf_add(&template->text, text, length);
    if (tools)
        strbuf_add(&template->tools_text, tools, tools_length);
    int status = strbuf_status(&template->text);
    THEN(status, strbuf_status(&template->tools_text));
    THEN(status, open_jinja(&template->text, where, &template->jinja));
    THEN_IF(status, tools, open_jinja(&template->tools_text, where, &template->with_tools));
    template->name = name_of(&template->text);
    if (status)
        chat_template_close(template);
    else
        *out = template;
    return status;
}

int chat_template_open(const char *text, size_t length, const char *where, struct chat_template **template) {
    return open_both(text, length, NULL, 0, where, template);
}

int chat_template_open_named(const char *name, struct chat_template **template) {
    *template = NULL;
    for (int i = 0; chat_template_names[i]; i++)
        if (!strcmp(chat_template_names[i], name))
            return chat_template_open(own_texts[i], strlen(own_texts[i]), name, template);
    return status_fail(STATUS_NOT_FOUND, "there is no chat template \"%s\" here", name);
}

int chat_template_open_option(const char *option, struct chat_template **template) {
    struct strbuf text = STRBUF_INIT;
    *template = NULL;
    if (!option || !strcmp(option, "auto"))
        return STATUS_OK;
    int status = chat_template_open_named(option, template);
    if (status != STATUS_NOT_FOUND)
        return status;
    if (!file_exists(option))
        return status_fail(STATUS_USAGE, "the chat template '%s' is none of auto, chatml, alpaca, plain, and no file",
                           option);
    status = file_read(option, JINJA_TEMPLATE_BYTES, &text);
    THEN(status, chat_template_open(strbuf_text(&text), text.length, option, template));
    strbuf_free(&text);
    return status;
}

struct chat_template *chat_template_keep(struct chat_template *template) {
    if (template)
        __atomic_add_fetch(&template->references, 1, __ATOMIC_RELAXED);
    return template;
}

void chat_template_close(struct chat_template *template) {
    if (!template || __atomic_sub_fetch(&template->references, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    jinja_close(template->jinja);
    jinja_close(template->with_tools);
    strbuf_free(&template->text);
    strbuf_free(&template->tools_text);
    pthread_mutex_destroy(&template->lock);
    free(template);
}

const char *chat_template_name(const struct chat_template *template) {
    return template->name == CHAT_OTHER ? "" : chat_template_names[template->name];
}

const struct strbuf *chat_template_text(const struct chat_template *template) {
    return &template->text;
}

static bool is_same_text(const struct strbuf *a, const struct strbuf *b) {
    return a->length == b->length && !memcmp(strbuf_text(a), strbuf_text(b), a->length);
}

bool chat_template_is_same(const struct chat_template *a, const struct chat_template *b) {
    return a == b || (a && b && is_same_text(&a->text, &b->text) && is_same_text(&a->tools_text, &b->tools_text));
}

/* ---- a tokenizer's directory ---- */

/* Finds the template with this name in a list of {"name", "template"}, or in an object of names and templates. */
static const json_t *find_in(const json_t *list, const char *name) {
    const json_t *item;
    size_t i;
    if (json_is_object(list))
        return json_object_get(list, name);
    json_array_foreach(list, i, item) {
        const char *found = json_string_value(json_object_get(item, "name"));
        if (found && !strcmp(found, name))
            return json_object_get(item, "template");
    }
    return NULL;
}

static int open_value(const json_t *value, const char *where, struct chat_template **template) {
    bool has_names = json_is_array(value) || json_is_object(value);
    const json_t *tools = has_names ? find_in(value, "tool_use") : NULL;
    if (has_names)
        value = find_in(value, "default");
    if (!value || json_is_null(value))
        return STATUS_OK;
    if (!json_is_string(value) || (tools && !json_is_string(tools)))
        return status_fail(STATUS_INVALID, "%s: chat_template is not a string", where);
    return open_both(json_string_value(value), json_string_length(value), json_string_value(tools),
                     json_string_length(tools), where, template);
}

int chat_template_open_config(const char *text, size_t length, const char *path, struct chat_template **template) {
    json_error_t error;
    json_t *root;
    char where[PATH_MAX + 16];
    *template = NULL;
    int status = json_read(text, length, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &root, &error);
    if (status == STATUS_INVALID)
        status_fail(status, "%s: line %d column %d: bad JSON: %s", path, error.line, error.column, error.text);
    TRY(status);
    snprintf(where, sizeof where, "%s: chat_template", path);
    status = open_value(json_object_get(root, "chat_template"), where, template);
    json_decref(root);
    return status;
}

int chat_template_of_tokenizer(const struct tokenizer_files *files, struct chat_template **template) {
    char path[PATH_MAX];
    enum tokenizer_file file = files->is_there[TOKENIZER_TEMPLATE] ? TOKENIZER_TEMPLATE : TOKENIZER_CONFIG;
    const struct strbuf *text = &files->texts[file];
    *template = NULL;
    int status = file_join(path, sizeof path, files->directory, tokenizer_file_names[file]);
    if (status || !files->is_there[file])
        return status;
    return (file == TOKENIZER_TEMPLATE ? chat_template_open : chat_template_open_config)(strbuf_text(text),
                                                                                         text->length, path, template);
}
