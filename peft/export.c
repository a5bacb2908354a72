/* The files of a stack: what training goes on from, and what others read. */
#include "method-internal.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

/* Before the names of an adapter's files. */
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

/* What this rank writes of a stack's own weights. */
static struct ckpt_array values_of(struct peft *peft, struct ckpt_flat *flat) {
    struct rank *rank = peft->rank;
    struct rank_grid first = rank->place;
    first.data = 0;
    *flat = (struct ckpt_flat){.store = &peft->store,
                               .stream = rank->exec.stream,
                               .memory = peft->store.weights,
                               .dtype = peft->store.dtype,
                               .is_copy = rank->place.data > 0,
                               .copy_of = rank_grid_rank(&rank->grid, &first),
                               .leaves_copies = true};
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
        const char *name = adapter->config.type == PEFT_ADAPTER ? CKPT_HUB_PART
                           : is_encoded                         ? CKPT_ENCODER_PART
                                                                : CKPT_ADAPTER_PART;
        set_part(&parts[(*count)++], adapter, peft->count, name, peft_table(adapter), values);
        if (is_encoded)
            set_part(&parts[(*count)++], adapter, peft->count, CKPT_ADAPTER_PART,
                     peft_table(&peft->tables->adapters[k++]), &peft->table_values);
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

int peft_texts_make(const struct peft_config *configs, int count, const char *base_directory,
                    const struct peft_notes *notes, struct peft_texts *texts) {
    *texts = (struct peft_texts){0};
    int status =
        PEFT_TEXTS * count <= PEFT_MAX_TEXTS ? STATUS_OK : status_fail(STATUS_UNSUPPORTED, "a stack of %d", count);
    for (int i = 0; i < count && !status; i++) {
        char place[32], *text;
        name_place(&configs[i], count, place);
        status = peft_write_config(&configs[i], base_directory, &text);
        if (!status)
            status = add_text(texts, place, "adapter_config.json", text);
        if (!status)
            status = peft_write_notes(notes, &text);
        if (!status)
            status = add_text(texts, place, "cambium_adapter.json", text);
        if (!status && notes->jinja) {
            text = strdup(notes->jinja);
            status = text ? add_text(texts, place, "chat_template.jinja", text)
                          : status_fail(STATUS_MEMORY, "out of memory");
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
    if (!configs)
        return status_fail(STATUS_MEMORY, "out of memory");
    struct model_options model = peft->kept;
    model.dtype = DTYPE_F32;
    struct peft_options options = {.adapters = configs, .model = &model};
    for (int i = 0; i < peft->count; i++)
        if (peft_is_encoded(&peft->adapters[i]))
            configs[options.count++] = peft->adapters[i].config;
    int status = options.count ? peft_open(&options, peft->rank, &peft->tables) : STATUS_OK;
    if (!status && peft->tables)
        peft->own_bytes += peft_device_bytes(peft->tables) + param_weight_bytes(&peft->tables->store);
    free(configs);
    return status;
}

int peft_make_tables(struct peft *peft) {
    if (!peft->tables)
        return STATUS_OK;
    int status = peft_begin(peft); /* encoders as the last update left them */
    for (int i = 0, k = 0; i < peft->count && !status; i++)
        if (peft_is_encoded(&peft->adapters[i]))
            status = peft->adapters[i].method->fold(&peft->adapters[i], &peft->tables->adapters[k++]);
    return status ? status : stream_wait(peft->rank->exec.stream);
}

/* ---- writing ---- */

static int write_all(struct peft *peft, const struct peft_export *export, const char *directory) {
    struct ckpt_part parts[CKPT_MAX_PARTS];
    struct ckpt_flat flat;
    struct ckpt_array own = values_of(peft, &flat);
    struct ckpt_model model = {.table = &peft->table,
                               .parts = parts,
                               .texts = export->texts,
                               .text_count = export->text_count,
                               .is_replaced = true,
                               .world = peft->rank->world};
    int status = peft_parts(peft, export->values ? export->values : &own, parts, &model.part_count);
    if (!status)
        status = peft_make_tables(peft);
    return status ? status : ckpt_write_model(directory, &model);
}

static bool is_among(const char *name, char **names, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!strcmp(name, names[i]))
            return true;
    return false;
}

/* Files of another adapter that stood there; of directories only those that hold one. */
static int remove_others(const char *directory, char **names, size_t count) {
    static const char *const files[] = {CKPT_ADAPTER_PART ".safetensors", CKPT_HUB_PART ".safetensors",
                                        CKPT_ENCODER_PART ".safetensors", "adapter_config.json",
                                        "cambium_adapter.json",           "chat_template.jinja"};
    char path[PATH_MAX], inside[PATH_MAX];
    int status = STATUS_OK;
    for (size_t i = 0; i < sizeof files / sizeof *files && !status; i++) {
        status = file_join(path, sizeof path, directory, files[i]);
        if (!status && !is_among(files[i], names, count))
            status = file_remove_tree(path);
    }
    for (size_t i = 0; i < PEFT_TYPE_COUNT && !status; i++) {
        status = file_join(path, sizeof path, directory, peft_method_names[i]);
        if (!status)
            status = file_join(inside, sizeof inside, path, "adapter_config.json");
        if (!status && file_exists(inside))
            status = file_remove_tree(path);
    }
    return status;
}

/* Each by a rename; the first rank's work. */
static int move_all(const char *from, const char *to) {
    char **names, source[PATH_MAX], target[PATH_MAX];
    size_t count;
    int status = file_list(from, &names, &count);
    if (status)
        return status;
    status = remove_others(to, names, count);
    for (size_t i = 0; i < count && !status; i++) {
        status = file_join(source, sizeof source, from, names[i]);
        if (!status)
            status = file_join(target, sizeof target, to, names[i]);
        if (!status && rename(source, target))
            status = status_fail_errno("cannot rename %s to %s", source, target);
    }
    file_list_free(names, count);
    return status ? status : file_remove_tree(from);
}

int peft_export(struct peft *peft, const struct peft_export *export) {
    char staging[PATH_MAX];
    if (!export->is_shared)
        return write_all(peft, export, export->directory);
    int status = file_join(staging, sizeof staging, export->directory, ".adapter");
    if (!status)
        status = write_all(peft, export, staging);
    if (!status && peft->rank->world->rank == 0)
        status = move_all(staging, export->directory);
    return comm_agree(peft->rank->world, status);
}
