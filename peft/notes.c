/* Notes that PEFT's files have no place for: an adapter's base, and the form in which its rows became text. */
#include "bytes-internal.h"

#include "pretrained/encodings.h"

#include <inttypes.h>

int peft_base_digest(const char *model, char digest[PEFT_DIGEST_BYTES]) {
    struct pretrained base;
    uint64_t number = 0;
    int status = pretrained_open(model, NULL, &base);
    THEN(status, ckpt_digest(base.tensors, &number));
    pretrained_close(&base);
    snprintf(digest, PEFT_DIGEST_BYTES, "%016" PRIx64, number);
    return status;
}

int peft_note_base(const char *model, int load_in, struct peft_notes *notes) {
    struct pretrained base;
    struct ckpt_quantization quantization = {0};
    uint64_t number = 0;
    int status = pretrained_open(model, NULL, &base);
    THEN(status, pretrained_quantization(&base, load_in, &quantization));
    THEN(status, ckpt_digest(base.tensors, &number));
    notes->quantization = peft_quantization_of(&quantization);
    pretrained_close(&base);
    snprintf(notes->base_digest, sizeof notes->base_digest, "%016" PRIx64, number);
    return status;
}

struct peft_quantization peft_quantization_of(const struct ckpt_quantization *quantization) {
    struct peft_quantization own = {.bits = quantization->bits, .group_size = quantization->group_size};
    snprintf(own.method, sizeof own.method, "%s", quantization->method ? quantization->method : "");
    return own;
}

bool peft_quantization_equals(const struct peft_quantization *a, const struct peft_quantization *b) {
    return !strcmp(a->method, b->method) && a->bits == b->bits && a->group_size == b->group_size;
}

void peft_quantization_text(const struct peft_quantization *quantization, char text[PEFT_QUANTIZATION_BYTES]) {
    char groups[32] = "";
    if (quantization->group_size > 0)
        snprintf(groups, sizeof groups, ", groups of %lld", (long long)quantization->group_size);
    if (*quantization->method)
        snprintf(text, PEFT_QUANTIZATION_BYTES, "%s, %d bits%s", quantization->method, quantization->bits, groups);
    else
        snprintf(text, PEFT_QUANTIZATION_BYTES, "plain");
}

int peft_write_notes(const struct peft_notes *notes, char **text) {
    const struct peft_quantization *of = &notes->quantization;
    json_begin();
    json_t *object = json_pack("{s:s, s:s}", "base_digest", notes->base_digest, "chat_template", notes->chat_template);
    if (*of->method)
        json_object_set_new(object, "quantization",
                            json_pack("{s:s, s:i, s:I}", "method", of->method, "bits", of->bits, "group_size",
                                      (json_int_t)of->group_size));
    return json_end(object, JSON_INDENT(2) | JSON_SORT_KEYS, text);
}

static bool is_word(const char *text) {
    return text[strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_-")] == 0;
}

static int take(const json_t *object, const char *key, const char *path, char *out, size_t bytes) {
    const char *text = json_string_value(json_object_get(object, key));
    if (text && (strlen(text) >= bytes || !is_word(text)))
        return status_fail(STATUS_INVALID, "%s: \"%s\": expected a short word", path, key);
    snprintf(out, bytes, "%s", text ? text : "");
    return STATUS_OK;
}

static int take_quantization(const json_t *object, const char *path, struct peft_quantization *out) {
    const json_t *own = json_object_get(object, "quantization");
    if (!own)
        return STATUS_OK;
    out->bits = (int)json_integer_value(json_object_get(own, "bits"));
    out->group_size = json_integer_value(json_object_get(own, "group_size"));
    return take(own, "method", path, out->method, sizeof out->method);
}

static int parse_notes(const char *text, size_t length, const char *path, struct peft_notes *notes) {
    json_t *object = NULL;
    json_error_t error;
    *notes = (struct peft_notes){0};
    int status = json_read(text, length, JSON_REJECT_DUPLICATES, &object, &error);
    if (status != STATUS_MEMORY && !json_is_object(object))
        status = status_fail(STATUS_INVALID, "%s: expected a JSON object", path);
    THEN(status, take(object, "base_digest", path, notes->base_digest, sizeof notes->base_digest));
    THEN(status, take(object, "chat_template", path, notes->chat_template, sizeof notes->chat_template));
    THEN(status, take_quantization(object, path, &notes->quantization));
    json_decref(object);
    return status;
}

int peft_read_notes(const char *directory, struct peft_notes *notes) {
    char path[PATH_MAX];
    struct strbuf text = STRBUF_INIT;
    *notes = (struct peft_notes){0};
    int status = file_join(path, sizeof path, directory, PEFT_NOTES_FILE);
    if (!status && !file_exists(path))
        return STATUS_OK;
    THEN(status, file_read(path, PEFT_NOTES_BYTES, &text));
    THEN(status, parse_notes(strbuf_text(&text), text.length, path, notes));
    strbuf_free(&text);
    return status;
}

int peft_bytes_notes(const struct peft_bytes *bytes, struct peft_notes *notes) {
    const char *data;
    size_t length;
    char path[PATH_MAX];
    *notes = (struct peft_notes){0};
    int status = file_join(path, sizeof path, bytes->directory, PEFT_NOTES_FILE);
    if (status || !peft_bytes_find(bytes, PEFT_NOTES_FILE, &data, &length))
        return status;
    return parse_notes(data, length, path, notes);
}

/* ---- chat templates ---- */

static const char *const template_files[] = {PEFT_TEMPLATE_FILE, PEFT_TOKENIZER_FILE};
static const size_t template_bytes[] = {PEFT_TEMPLATE_BYTES, PEFT_TOKENIZER_BYTES};
enum { TEMPLATE_FILES = sizeof template_files / sizeof *template_files };

/* Opens the template of an adapter's file. */
static int open_template(const char *directory, int file, const char *text, size_t length,
                         struct chat_template **template) {
    char path[PATH_MAX];
    int status = file_join(path, sizeof path, directory, template_files[file]);
    return status ? status : (file ? chat_template_open_config : chat_template_open)(text, length, path, template);
}

static int open_named(const char *directory, const struct peft_notes *notes, struct chat_template **template) {
    int status = chat_template_open_named(notes->chat_template, template);
    return status == STATUS_NOT_FOUND
               ? status_fail(STATUS_UNSUPPORTED,
                             "%s/" PEFT_NOTES_FILE
                             ": the adapter's chat_template \"%s\" is none of chatml, alpaca, plain: "
                             "name the one to use",
                             directory, notes->chat_template)
               : status;
}

int peft_chat_template(const char *directory, struct chat_template **template) {
    struct peft_notes notes;
    *template = NULL;
    int status = peft_read_notes(directory, &notes);
    if (status || *notes.chat_template)
        return status ? status : open_named(directory, &notes, template);
    for (int i = 0; i < TEMPLATE_FILES && !status && !*template; i++) {
        struct strbuf text = STRBUF_INIT;
        char path[PATH_MAX];
        status = file_join(path, sizeof path, directory, template_files[i]);
        if (!status && file_exists(path)) {
            status = file_read(path, template_bytes[i], &text);
            THEN(status, open_template(directory, i, strbuf_text(&text), text.length, template));
        }
        strbuf_free(&text);
    }
    return status;
}

int peft_bytes_chat_template(const struct peft_bytes *bytes, struct chat_template **template) {
    struct peft_notes notes;
    const char *data;
    size_t length;
    *template = NULL;
    int status = peft_bytes_notes(bytes, &notes);
    if (status || *notes.chat_template)
        return status ? status : open_named(bytes->directory, &notes, template);
    for (int i = 0; i < TEMPLATE_FILES && !status && !*template; i++)
        if (peft_bytes_find(bytes, template_files[i], &data, &length))
            status = open_template(bytes->directory, i, data, length, template);
    return status;
}
