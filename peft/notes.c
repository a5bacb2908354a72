/* Notes that PEFT's files have no place for: an adapter's base, and the form in which its rows became text. */
#include "bytes-internal.h"

#include "base/json.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

int peft_base_digest(const char *model, char digest[PEFT_DIGEST_BYTES]) {
    char directory[PATH_MAX];
    struct ckpt_tensors *tensors = NULL;
    uint64_t number = 0;
    int status = ckpt_resolve_model(model, directory, sizeof directory);
    if (!status)
        status = ckpt_open_model(directory, &tensors);
    if (!status)
        status = ckpt_digest(tensors, &number);
    ckpt_close(tensors);
    snprintf(digest, PEFT_DIGEST_BYTES, "%016" PRIx64, number);
    return status;
}

int peft_write_notes(const struct peft_notes *notes, char **text) {
    json_begin();
    json_t *object = json_pack("{s:s, s:s}", "base_digest", notes->base_digest, "chat_template", notes->chat_template);
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

static int parse_notes(const char *text, size_t length, const char *path, struct peft_notes *notes) {
    json_t *object = NULL;
    json_error_t error;
    *notes = (struct peft_notes){0};
    int status = json_read(text, length, JSON_REJECT_DUPLICATES, &object, &error);
    if (status != STATUS_MEMORY && !json_is_object(object))
        status = status_fail(STATUS_INVALID, "%s: expected a JSON object", path);
    if (!status)
        status = take(object, "base_digest", path, notes->base_digest, sizeof notes->base_digest);
    if (!status)
        status = take(object, "chat_template", path, notes->chat_template, sizeof notes->chat_template);
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
    if (!status)
        status = file_read(path, PEFT_NOTES_BYTES, &text);
    if (!status)
        status = parse_notes(strbuf_text(&text), text.length, path, notes);
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

/* Opens the template named in the notes, or the contents of chat_template.jinja if there are any. */
static int choose_template(const char *directory, const struct peft_notes *notes, const struct strbuf *jinja,
                           struct chat_template **template) {
    char where[PATH_MAX + 32];
    snprintf(where, sizeof where, "%s/" PEFT_TEMPLATE_FILE, directory);
    if (!*notes->chat_template)
        return jinja ? chat_template_open(strbuf_text(jinja), jinja->length, where, template) : STATUS_OK;
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
    struct strbuf jinja = STRBUF_INIT;
    char path[PATH_MAX];
    *template = NULL;
    int status = peft_read_notes(directory, &notes);
    if (!status)
        status = file_join(path, sizeof path, directory, PEFT_TEMPLATE_FILE);
    bool has_jinja = !status && file_exists(path);
    if (has_jinja)
        status = file_read(path, PEFT_TEMPLATE_BYTES, &jinja);
    if (!status)
        status = choose_template(directory, &notes, has_jinja ? &jinja : NULL, template);
    strbuf_free(&jinja);
    return status;
}

int peft_bytes_chat_template(const struct peft_bytes *bytes, struct chat_template **template) {
    struct peft_notes notes;
    struct strbuf jinja = STRBUF_INIT;
    const char *data;
    size_t length;
    *template = NULL;
    int status = peft_bytes_notes(bytes, &notes);
    bool has_jinja = !status && peft_bytes_find(bytes, PEFT_TEMPLATE_FILE, &data, &length);
    if (has_jinja) {
        strbuf_add(&jinja, data, length);
        status = strbuf_status(&jinja);
    }
    if (!status)
        status = choose_template(bytes->directory, &notes, has_jinja ? &jinja : NULL, template);
    strbuf_free(&jinja);
    return status;
}

int peft_files_check_base(const struct peft_files *files, const char *model) {
    char digest[PEFT_DIGEST_BYTES] = "";
    int status = STATUS_OK;
    for (int i = 0; i < peft_files_count(files) && !status; i++) {
        struct peft_notes notes;
        status = peft_files_notes(files, i, &notes);
        if (!status && *notes.base_digest && !*digest)
            status = peft_base_digest(model, digest);
        if (!status && *notes.base_digest && strcmp(notes.base_digest, digest) != 0)
            log_warning("%s was trained on another base than %s (digest %s, not %s)", peft_files_directory(files, i),
                        model, notes.base_digest, digest);
    }
    return status;
}
