/* An adapter and its base: whether it was trained on this one, and tensors of the base that its file repeats. */
#include "method-internal.h"

#include "pretrained/pretrained.h"

/* ---- copies of the base's tensors ---- */

const char *peft_copied_name(const struct param_files *files, const char *name) {
    static const char start[] = "base_model.model.", wrapped[] = ".base_layer";
    const char *const names[] = {files->embedding, files->head};
    if (strncmp(name, start, sizeof start - 1) != 0)
        return NULL;
    name += sizeof start - 1;
    if (!strncmp(name, files->prefix, strlen(files->prefix)))
        name += strlen(files->prefix);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *end = strrchr(names[i], '.'), *rest = name + (end - names[i]);
        if (strncmp(name, names[i], (size_t)(end - names[i])) != 0)
            continue;
        if (!strncmp(rest, wrapped, sizeof wrapped - 1))
            rest += sizeof wrapped - 1;
        if (!strcmp(rest, end))
            return names[i];
    }
    return NULL;
}

/* A base that is opened when it is needed. */
struct base {
    const char *path;
    bool is_open;
    struct pretrained model;
    struct param_table table;
};

static int open_base(struct base *base) {
    if (base->is_open)
        return STATUS_OK;
    base->is_open = true;
    int status = pretrained_open(base->path, NULL, &base->model);
    return status ? status : model_describe(&base->model.config, &base->table);
}

static void close_base(struct base *base) {
    if (base->is_open)
        pretrained_close(&base->model);
    param_table_free(&base->table);
}

/* Checks that the embeddings and heads that PEFT has saved beside an adapter are the base's. */
static int check_copies(const struct peft_files *files, int index, struct base *base) {
    const struct ckpt_tensors *tensors = peft_files_tensors(files, index);
    int status = STATUS_OK;
    for (size_t i = 0; i < ckpt_count(tensors) && !status; i++) {
        const char *name = ckpt_tensor_at(tensors, i)->name, *copied = NULL;
        bool is_equal = true;
        for (int family = 0; model_family_at(family) && !copied; family++)
            copied = peft_copied_name(&model_family_at(family)->files, name);
        if (copied)
            status = open_base(base);
        copied = copied && !status ? peft_copied_name(&model_family(&base->model.config)->files, name) : NULL;
        if (copied)
            status = ckpt_equals(tensors, i, base->model.tensors, &base->table, copied, &is_equal);
        if (!status && !is_equal)
            status = status_fail(STATUS_UNSUPPORTED,
                                 "%s: '%s' differs from %s of %s: the adapter replaces it, which is not supported; "
                                 "PEFT's merge_and_unload makes a model of both",
                                 peft_files_directory(files, index), name, copied, base->path);
    }
    return status;
}

/* Warns about a base that is not the one of an adapter's notes. */
static void warn(const char *directory, const struct peft_notes *notes, const char *model,
                 const struct peft_notes *here) {
    char theirs[PEFT_QUANTIZATION_BYTES], ours[PEFT_QUANTIZATION_BYTES];
    peft_quantization_text(&notes->quantization, theirs);
    peft_quantization_text(&here->quantization, ours);
    if (!peft_quantization_equals(&notes->quantization, &here->quantization))
        log_warning("%s was trained on a base in other bits than %s (%s, not %s)", directory, model, theirs, ours);
    else if (strcmp(notes->base_digest, here->base_digest) != 0)
        log_warning("%s was trained on another base than %s (digest %s, not %s)", directory, model, notes->base_digest,
                    here->base_digest);
}

int peft_files_check_base(const struct peft_files *files, const char *model, int load_in) {
    struct base base = {.path = model};
    struct peft_notes here = {0};
    int status = STATUS_OK;
    for (int i = 0; i < peft_files_count(files) && !status; i++) {
        struct peft_notes notes;
        status = peft_files_notes(files, i, &notes);
        THEN_IF(status, *notes.base_digest && !*here.base_digest, peft_note_base(model, load_in, &here));
        if (!status && *notes.base_digest)
            warn(peft_files_directory(files, i), &notes, model, &here);
        THEN(status, check_copies(files, i, &base));
    }
    close_base(&base);
    return status;
}

/* ---- adapters of other bases ---- */

static bool has_same_shape(const struct model_config *a, const struct model_config *b) {
    return a->family == b->family && a->num_layers == b->num_layers && a->hidden_size == b->hidden_size &&
           a->num_attention_heads == b->num_attention_heads && a->num_query_groups == b->num_query_groups &&
           a->kv_channels == b->kv_channels && a->ffn_hidden_size == b->ffn_hidden_size;
}

/* Returns the adapter that the error text is about: the one whose directory it begins with, else the first. */
static int find_failed(const struct peft_files *files, const char *text) {
    for (int i = 0; i < peft_files_count(files); i++) {
        const char *directory = peft_files_directory(files, i);
        size_t length = strlen(directory);
        if (!strncmp(text, directory, length) && text[length] == ':')
            return i;
    }
    return 0;
}

/* Copies the first of the problems that an error text lists, without the directory that it begins with. */
static void copy_first(const char *text, const char *directory, char *out, size_t bytes) {
    size_t length = strlen(directory);
    if (!strncmp(text, directory, length) && !strncmp(text + length, ": ", 2))
        text += length + 2;
    const char *name = strstr(text, ".weight, "), *shape = strstr(text, "), ");
    const char *end = name && (!shape || name < shape) ? name + strlen(".weight") : shape ? shape + 1 : NULL;
    snprintf(out, bytes, "%.*s%s", end ? (int)(end - text) : (int)strlen(text), text, end ? ", and more" : "");
}

int peft_explain_base(int status, const struct peft_files *files, const char *model) {
    char reason[1024], first[512];
    struct pretrained own, present;
    if ((status != STATUS_INVALID && status != STATUS_USAGE) || !model)
        return status;
    snprintf(reason, sizeof reason, "%s", status_text());
    int index = find_failed(files, reason);
    const char *directory = peft_files_directory(files, index), *base_name = peft_files_configs(files)[index].base_name;
    if (!base_name || !strcmp(base_name, model))
        return status;
    copy_first(reason, directory, first, sizeof first);
    bool is_there = !pretrained_open_config(base_name, &own), is_known = !pretrained_open_config(model, &present);
    if (!is_known || (is_there && has_same_shape(&own.config, &present.config)))
        status_fail(status, "%s", reason);
    else if (is_there)
        status_fail(status, "%s is an adapter of another base: of %s (model_type %s), not of %s (model_type %s): %s",
                    directory, base_name, model_family(&own.config)->name, model, model_family(&present.config)->name,
                    first);
    else
        status_fail(status, "%s is an adapter of %s, which is not here, and does not fit %s (model_type %s): %s",
                    directory, base_name, model, model_family(&present.config)->name, first);
    pretrained_close(&own);
    pretrained_close(&present);
    return status;
}
