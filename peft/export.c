/* The files of a stack: those that training resumes from, and those that others read. */
#include "method-internal.h"
#include "receipt.h"

/* ---- names ---- */

/* Writes the prefix of an adapter's file names. */
static void name_place(const struct peft_config *config, int count, char out[32]) {
    snprintf(out, 32, "%s%s", count > 1 ? peft_method_names[config->type] : "", count > 1 ? "/" : "");
}

static void set_part(struct ckpt_part *part, const struct peft_adapter *adapter, int count, const char *name,
                     const struct param_table *table, const struct ckpt_array *weights) {
    char place[32];
    name_place(&adapter->config, count, place);
    *part = (struct ckpt_part){.table = table, .weights = weights};
    snprintf(part->name, sizeof part->name, "%s%s", place, name);
}

/* Returns the part of the stack's weights that this rank writes. */
static struct ckpt_array values_of(struct peft *peft, struct ckpt_flat *flat) {
    struct rank *rank = peft->rank;
    struct rank_grid first = rank->place;
    first.data = 0;
    *flat = ckpt_flat_weights(&peft->store, rank->exec.stream);
    flat->is_copy = rank->place.data > 0;
    flat->copy_of = rank_grid_rank(&rank->grid, &first);
    flat->leaves_copies = true;
    return ckpt_flat_array(flat, "", true);
}

int peft_parts(struct peft *peft, const struct ckpt_array *values, struct ckpt_part parts[CKPT_MAX_PARTS], int *count) {
    *count = 0;
    if (2 * peft->count > CKPT_MAX_PARTS)
        return status_fail(STATUS_UNSUPPORTED, "a stack of %d adapters: its files are for %d", peft->count,
                           CKPT_MAX_PARTS / 2);
    if (peft->tables)
        peft->table_values = values_of(peft->tables, &peft->table_flat);
    for (int i = 0, k = 0; i < peft->count; i++) {
        const struct peft_adapter *adapter = &peft->adapters[i];
        bool is_encoded = peft_is_encoded(adapter);
        const char *file = adapter->method->file ? adapter->method->file : CKPT_ADAPTER_PART;
        set_part(&parts[(*count)++], adapter, peft->count, is_encoded ? CKPT_ENCODER_PART : file, peft_table(adapter),
                 values);
        if (is_encoded)
            set_part(&parts[(*count)++], adapter, peft->count, file, peft_table(&peft->tables->adapters[k++]),
                     &peft->table_values);
    }
    return STATUS_OK;
}

/* ---- texts ---- */

static int add_text(struct peft_texts *texts, const char *place, const char *name, char *text) {
    struct ckpt_text *item = &texts->items[texts->count];
    texts->owned[texts->count++] = text;
    snprintf(item->name, sizeof item->name, "%s%s", place, name);
    item->text = text;
    return STATUS_OK;
}

int peft_texts_make(const struct peft_config *configs, int count, const struct model_config *base,
                    const char *base_directory, const struct peft_notes *notes, struct peft_texts *texts) {
    *texts = (struct peft_texts){0};
    int status =
        PEFT_TEXTS * count <= PEFT_MAX_TEXTS ? STATUS_OK : status_fail(STATUS_UNSUPPORTED, "a stack of %d", count);
    for (int i = 0; i < count && !status; i++) {
        char place[32], *text;
        name_place(&configs[i], count, place);
        status = peft_write_config(&configs[i], base, base_directory, &text);
        THEN(status, add_text(texts, place, "adapter_config.json", text));
        THEN(status, peft_write_notes(notes, &text));
        THEN(status, add_text(texts, place, "cambium_adapter.json", text));
        if (!status && notes->jinja) {
            text = strdup(notes->jinja);
            status = text ? add_text(texts, place, "chat_template.jinja", text) : status_no_memory();
        }
    }
    return status;
}

void peft_texts_free(struct peft_texts *texts) {
    for (int i = 0; i < texts->count; i++)
        free(texts->owned[i]);
    texts->count = 0;
}

/* ---- the tables that encoders make ---- */

int peft_open_tables(struct peft *peft) {
    struct peft_config *configs = calloc((size_t)peft->count, sizeof *configs);
    TRY(status_allocated(configs));
    struct model_options model = peft->base_options;
    model.base.dtype = DTYPE_F32;
    struct peft_options options = {.adapters = configs, .model = &model};
    for (int i = 0; i < peft->count; i++)
        if (peft_is_encoded(&peft->adapters[i]))
            configs[options.count++] = peft->adapters[i].config;
    int status = options.count ? peft_open(&options, peft->rank, &peft->tables) : STATUS_OK;
    if (!status && peft->tables)
        peft->method_bytes += peft_device_bytes(peft->tables) + param_weight_bytes(&peft->tables->store);
    free(configs);
    return status;
}

int peft_make_tables(struct peft *peft) {
    if (!peft->tables)
        return STATUS_OK;
    int status = peft_begin(peft); /* with the encoders' last update */
    for (int i = 0, k = 0; i < peft->count && !status; i++)
        if (peft_is_encoded(&peft->adapters[i]))
            status = peft->adapters[i].method->fold(&peft->adapters[i], &peft->tables->adapters[k++]);
    return status ? status : stream_wait(peft->rank->exec.stream);
}

/* ---- writing ---- */

static int write_all(struct peft *peft, const struct peft_export *export, const char *directory) {
    struct ckpt_part parts[CKPT_MAX_PARTS];
    struct ckpt_flat flat;
    struct ckpt_array weights = values_of(peft, &flat);
    struct ckpt_model model = {.table = &peft->table,
                               .parts = parts,
                               .texts = export->texts,
                               .text_count = export->text_count,
                               .seal = export->seal,
                               .seal_context = export->seal_context,
                               .is_replaced = true,
                               .world = peft->rank->world};
    int status = peft_parts(peft, export->values ? export->values : &weights, parts, &model.part_count);
    THEN(status, peft_make_tables(peft));
    return status ? status : ckpt_write_model(directory, &model);
}

/* The files of an adapter in its directory. */
static const char *const names[] = {"adapter_config.json",        CKPT_ADAPTER_PART ".safetensors",
                                    CKPT_HUB_PART ".safetensors", CKPT_ENCODER_PART ".safetensors",
                                    "cambium_adapter.json",       PEFT_RECEIPT_FILE,
                                    "chat_template.jinja",        NULL};
const struct staging_files peft_staging_files = {.kind = "adapter", .key = "adapter_config.json", .names = names};

/* ---- where it may go ---- */

static bool is_of_adapter(const char *name) {
    for (int i = 0; names[i]; i++)
        if (!strcmp(name, names[i]))
            return true;
    return false;
}

static bool has_file(const char *directory, const char *name) {
    char path[PATH_MAX];
    return !file_join(path, sizeof path, directory, name) && file_exists(path);
}

static int refuse(const char *directory, const char *name, const char *reason) {
    return status_fail(STATUS_INVALID, "%s holds %s, %s: name another directory, or remove it", directory, name,
                       reason);
}

/* Files of an adapter in a directory must be from finetune and of the same method; NULL: of none. */
static int check_adapter(const char *directory, const struct peft_config *config) {
    const char *found = NULL;
    struct strbuf text = STRBUF_INIT;
    struct peft_config old = {0};
    for (int i = 0; names[i] && !found; i++)
        found = has_file(directory, names[i]) ? names[i] : NULL;
    if (!found)
        return STATUS_OK;
    if (!config)
        return refuse(directory, found, "another adapter's");
    if (!has_file(directory, names[0]) || !has_file(directory, "cambium_adapter.json"))
        return refuse(directory, found, "of an adapter that finetune did not write");
    int status = ckpt_read_adapter_config(directory, &text);
    THEN(status, peft_read_config(strbuf_text(&text), directory, &old));
    strbuf_free(&text);
    bool is_same = !status && old.type == config->type;
    peft_config_free(&old);
    return status || is_same ? status : refuse(directory, found, "of an adapter of another method");
}

static const struct peft_config *config_named(const char *name, const struct peft_config *configs, int count) {
    for (int i = 0; count > 1 && i < count; i++)
        if (!strcmp(name, peft_method_names[configs[i].type]))
            return &configs[i];
    return NULL;
}

/* A directory that is replaced as a whole must not hold anything else. */
static int check_alone(const char *directory) {
    char *other;
    int status = file_find_other(directory, is_of_adapter, &other);
    THEN_IF(status, *other, refuse(directory, other, "which finetune did not write there"));
    free(other);
    return status;
}

/* `is_ready`: a checked generation is being moved there, and some of its files may have arrived. */
static int check_entry(const char *directory, const char *name, const struct peft_config *configs, int count,
                       bool is_shared, bool is_ready) {
    const struct peft_config *config = config_named(name, configs, count);
    char path[PATH_MAX];
    int status = file_join(path, sizeof path, directory, name);
    TRY(status);
    if (config && file_is_directory(path)) {
        status = check_alone(path);
        return status || is_ready ? status : check_adapter(path, config);
    }
    if (!is_shared)
        return is_of_adapter(name) ? STATUS_OK : refuse(directory, name, "which finetune did not write there");
    return !peft_is_no_adapter(name) && has_file(path, names[0]) ? refuse(directory, name, "another adapter")
                                                                 : STATUS_OK;
}

static int check_place(const char *directory, const struct peft_config *configs, int count, bool is_shared) {
    char **entries, ready[PATH_MAX];
    size_t entry_count;
    if (!file_is_directory(directory))
        return STATUS_OK;
    bool is_ready = false;
    int status = is_shared ? staging_is_ready(directory, &peft_staging_files, NULL, ready, &is_ready) : STATUS_OK;
    THEN(status,
         is_ready ? check_place(ready, configs, count, false) : check_adapter(directory, count == 1 ? configs : NULL));
    TRY(status);
    TRY(file_list(directory, &entries, &entry_count));
    for (size_t i = 0; i < entry_count && !status; i++)
        status = check_entry(directory, entries[i], configs, count, is_shared, is_ready);
    file_list_free(entries, entry_count);
    return status;
}

int peft_check_output(const char *directory, const struct peft_config *configs, int count) {
    char best[PATH_MAX];
    int status = file_join(best, sizeof best, directory, "best");
    THEN(status, check_place(directory, configs, count, true));
    return status ? status : check_place(best, configs, count, false);
}

static int check_again(struct peft *peft, const char *directory, bool is_shared) {
    struct peft_config *configs = calloc((size_t)peft->count, sizeof *configs);
    TRY(status_allocated(configs));
    for (int i = 0; i < peft->count; i++)
        configs[i] = peft->adapters[i].config;
    int status = check_place(directory, configs, peft->count, is_shared);
    free(configs);
    return status;
}

/* ---- the whole ---- */

int peft_export(struct peft *peft, const struct peft_export *export) {
    struct comm *world = peft->rank->world; /* NULL: a single rank */
    bool is_first = !world || world->rank == 0;
    struct staging staging = {.mark = -1};
    const char *directory = export->directory;
    int status = STATUS_OK;
    if (is_first && export->is_shared) /* finish the generation that a killed run left ready */
        status = staging_begin_files(&staging, directory, &peft_staging_files);
    if (is_first && !status)
        status = check_again(peft, directory, export->is_shared);
    status = world ? comm_agree(world, status) : status;
    THEN(status, write_all(peft, export, staging.directory ? staging.directory : directory));
    if (!status && export->is_shared) {
        status = is_first ? staging_commit(&staging) : STATUS_OK;
        status = world ? comm_agree(world, status) : status;
    }
    staging_abort(&staging);
    return status;
}
