/* Images: adapters from their files into the bank's memory. The values are first read into a stack with only that
 * adapter, as training reads them. From there they are put into the image, in the order in which its operations read
 * them. */
#include "bank-internal.h"

/* ---- what methods say ---- */

/* True when this pass copies the next array. Each array is copied once; a pass copies as many as its time allows. */
static bool is_due(struct image_maker *maker) {
    bool is_next = maker->phase == MAKER_COPIES && maker->puts++ == maker->copied && clock_seconds() < maker->end;
    maker->copied += is_next;
    return is_next;
}

static int copy(struct image_maker *maker, void *to, const struct matrix_view *from, bool is_turned) {
    struct rank *rank = maker->bank->rank;
    if (!is_due(maker))
        return STATUS_OK;
    const struct transpose turned = {from->rows, from->columns, from->type, from->data, to};
    return is_turned ? rank_run(rank, PHASE_REST, transpose, &turned)
                     : stream_copy(rank->exec.stream, to, from->data,
                                   (size_t)(from->rows * from->columns) * dtype_bytes(from->type));
}

int image_put(struct image_maker *maker, struct matrix_view from, bool is_turned, const void **place) {
    void *to = arena_take(&maker->arena, (size_t)(from.rows * from.columns) * dtype_bytes(from.type));
    *place = to;
    return copy(maker, to, &from, is_turned);
}

int image_put_late(struct image_maker *maker, const void *from, int64_t count, enum dtype type, const void **place) {
    size_t bytes = (size_t)count * dtype_bytes(type);
    *place = from;
    if (maker->is_stack)
        return STATUS_OK;
    void *to = arena_take(&maker->arena, bytes);
    *place = to;
    return maker->phase == MAKER_FINISHES ? stream_copy(maker->bank->rank->exec.stream, to, from, bytes) : STATUS_OK;
}

int image_put_param(struct image_maker *maker, int id, bool is_turned, const void **place) {
    const struct param_store *store = &maker->adapter->peft->store;
    struct matrix_view view = {0};
    if (!maker_plans(maker))
        view = param_borrow(store, id);
    const struct param_place *at = &store->map.places[id];
    int status = STATUS_OK;
    *place = view.data;
    if (!maker->is_stack || is_turned)
        status = image_put(maker, matrix_plain(at->type, view.data, at->shape[0], at->shape[1]), is_turned, place);
    if (!maker_plans(maker))
        param_return(store, id);
    return status;
}

int image_put_virtual(struct image_maker *maker, int table_id, int64_t tokens) {
    const struct peft_bank *bank = maker->bank;
    const struct param_store *store = &maker->adapter->peft->store;
    size_t row = (size_t)bank->model.base.config.hidden_size * dtype_bytes(bank->model.base.dtype);
    size_t bytes = (size_t)(tokens + 1) * row; /* the virtual tokens start at a row of the bank's memory */
    maker->image->virtual_tokens = tokens;
    if (!store->map.places[table_id].shape[0]) /* the embedding is on another stage */
        return STATUS_OK;
    char *to = arena_take(&maker->arena, bytes);
    if (maker_plans(maker))
        return STATUS_OK;
    int64_t first = (int64_t)(((size_t)(to - bank->memory) + row - 1) / row);
    struct matrix_view view = param_borrow(store, table_id);
    maker->image->first_virtual = first;
    const struct matrix_view table =
        matrix_plain(bank->model.base.dtype, view.data, tokens, bank->model.base.config.hidden_size);
    int status = copy(maker, bank->memory + (size_t)first * row, &table, false);
    param_return(store, table_id);
    return status;
}

/* ---- making one ---- */

void image_free(struct peft_image *image) {
    if (image) {
        free(image->entries);
        free(image->sites);
        free(image->prefix);
    }
    free(image);
}

struct peft_image *image_new(const struct peft_bank *bank, const struct peft_config *config) {
    struct peft_image *image = calloc(1, sizeof *image);
    if (!image)
        return NULL;
    image->method = peft_method(config->type);
    image->config = (struct peft_config){.type = config->type,
                                         .use_dora = config->use_dora,
                                         .bottleneck = config->bottleneck,
                                         .adapter_style = config->adapter_style,
                                         .adapter_activation = config->adapter_activation,
                                         .adapter_pre_norm = config->adapter_pre_norm,
                                         .adapter_scaling = config->adapter_scaling,
                                         .num_virtual_tokens = config->num_virtual_tokens};
    image->entries = calloc((size_t)bank_entry_count(bank), sizeof *image->entries);
    image->sites = calloc((size_t)bank->layers + 1, sizeof *image->sites);
    image->prefix = calloc(2 * (size_t)bank->layers, sizeof *image->prefix);
    if (!image->entries || !image->sites || !image->prefix) {
        image_free(image);
        return NULL;
    }
    return image;
}

static bool has_entry(const struct peft_image *image, int64_t number) {
    return image->entries[number].n > 0;
}

/* Returns the sites of a layer at which an entry has an effect. */
static uint16_t sites_of(const struct peft_bank *bank, const struct peft_image *image, int64_t layer) {
    unsigned sites = 0;
    for (int p = 0; p < bank->family->projection_count; p++) {
        enum attach_place place = bank->projections[p].place;
        bool is_input_of_fc2 = place == ATTACH_FC2;
        for (int entry = 0; entry < ENTRY_INPUT; entry++)
            if (has_entry(image, bank_projection_entry(bank, layer, p, entry)))
                sites |= peft_site_bit(place, HOOK_BEFORE_ACTIVATION);
        if (has_entry(image, bank_projection_entry(bank, layer, p, ENTRY_INPUT)))
            sites |= is_input_of_fc2 ? peft_site_bit(ATTACH_FC1, HOOK_AFTER_ACTIVATION)
                                     : peft_site_bit(place, HOOK_BEFORE_ACTIVATION);
    }
    for (int is_mlp = 0; is_mlp < 2; is_mlp++)
        if (has_entry(image, bank_half_entry(bank, layer, is_mlp, ENTRY_HALF_DOWN)))
            sites |= peft_site_bit(is_mlp ? ATTACH_AFTER_MLP : ATTACH_AFTER_ATTENTION, HOOK_BEFORE_ACTIVATION);
    return (uint16_t)sites;
}

/* The memory begins with the entries. */
int image_make(struct image_maker *maker) {
    struct peft_bank *bank = maker->bank;
    struct peft_image *image = maker->image;
    size_t bytes = (size_t)bank_entry_count(bank) * sizeof *image->entries;
    maker->arena = maker_plans(maker) ? ARENA_PLAN : arena_over(image->memory, image->bytes);
    maker->puts = 0;
    void *entries = arena_take(&maker->arena, bytes);
    int status = image->method->make_image(maker);
    for (int64_t layer = 0; layer < bank->layers; layer++)
        image->sites[layer] = sites_of(bank, image, layer);
    if (has_entry(image, bank_projection_entry(bank, 0, bank->family->projection_count, ENTRY_DOWN)))
        image->sites[bank->layers] = peft_site_bit(ATTACH_HEAD, HOOK_BEFORE_ACTIVATION);
    image->device_entries = entries;
    if (!status && maker->phase == MAKER_FINISHES)
        status = stream_copy_to_device(bank->rank->exec.stream, entries, image->entries, bytes);
    THEN_IF(status, !maker_plans(maker), stream_wait(bank->rank->exec.stream));
    if (!status && (size_t)image->columns * sizeof(float) > bank->scratch_bytes)
        status = status_fail(STATUS_UNSUPPORTED, "an adapter of rank %lld: expected at most %lld",
                             (long long)image->columns, (long long)(bank->scratch_bytes / sizeof(float)));
    return status;
}

static int open_stack(const struct peft_bank *bank, const struct peft_config *config, struct peft **peft) {
    struct peft_options options = {.adapters = config, .count = 1, .model = &bank->model, .directory = bank->directory};
    return peft_open(&options, bank->rank, peft);
}

/* Computes the size of an image of the stack's adapter. */
static int plan(struct peft_bank *bank, struct peft *peft, struct peft_image *image) {
    struct image_maker maker = {.bank = bank, .image = image, .adapter = &peft->adapters[0]};
    int status = image_make(&maker);
    image->bytes = maker.arena.used;
    return status;
}

int peft_bank_image_bytes(const struct peft_bank *bank, const struct peft_config *config, size_t *bytes) {
    struct peft *peft = NULL;
    struct peft_image *image = image_new(bank, config);
    int status = image ? open_stack(bank, config, &peft) : status_no_memory();
    THEN(status, plan((struct peft_bank *)bank, peft, image));
    *bytes = image ? image->bytes : 0;
    image_free(image);
    peft_close(peft);
    return status;
}

void peft_bank_set_directory(struct peft_bank *bank, const char *directory) {
    bank->directory = directory;
}

int peft_bank_check(const struct peft_bank *bank, const struct peft_files *files, int index) {
    const struct peft_config *config = &peft_files_configs(files)[index];
    struct peft *peft = NULL;
    struct peft_image *image = image_new(bank, config);
    int status =
        image ? peft_explain_base(open_stack(bank, config, &peft), files, bank->directory) : status_no_memory();
    THEN(status, peft_check_values(peft, files, index));
    THEN(status, plan((struct peft_bank *)bank, peft, image));
    if (!status && bank->is_allocated && image->bytes > bank->memory_bytes)
        status = status_fail(STATUS_MEMORY,
                             "%s: the adapter takes %zu bytes, and all adapters have %zu: give adapters more memory",
                             peft_files_directory(files, index), image->bytes, bank->memory_bytes);
    image_free(image);
    peft_close(peft);
    return status;
}

/* A header, and numbers of at most eight bytes, each held by at least one rank; and copies of the base's ends. */
size_t peft_bank_most_file_bytes(const struct peft_bank *bank) {
    static const size_t header = (size_t)1 << 27, widest = 8;
    const struct rank_grid *grid = &bank->rank->grid;
    size_t ranks = (size_t)grid->tensor * (size_t)grid->pipeline;
    if (!bank->is_allocated)
        return SIZE_MAX;
    size_t ends = 2 * (size_t)(bank->model.base.config.vocab_size * bank->model.base.config.hidden_size) * widest;
    return header + ends + bank->memory_bytes * ranks * (widest / dtype_bytes(bank->model.base.dtype));
}

/* ---- room ---- */

static int compare_places(const void *a, const void *b) {
    const struct peft_image *const *x = a, *const *y = b;
    return ((*x)->memory > (*y)->memory) - ((*x)->memory < (*y)->memory);
}

/* Returns the first gap between images that is large enough; NULL: there is none. */
static int find_room(const struct peft_bank *bank, size_t bytes, char **place) {
    struct peft_image **sorted = malloc(((size_t)bank->image_count + 1) * sizeof(struct peft_image *));
    int count = 0;
    TRY(status_allocated(sorted));
    for (int i = 0; i < bank->image_count; i++)
        if (bank->images[i])
            sorted[count++] = bank->images[i];
    qsort(sorted, (size_t)count, sizeof *sorted, compare_places);
    char *at = bank->memory, *end = bank->memory + bank->memory_bytes;
    for (int i = 0; i < count && (size_t)(sorted[i]->memory - at) < bytes; i++)
        at = sorted[i]->memory + sorted[i]->bytes;
    free(sorted);
    *place = at;
    if (bank->memory && (size_t)(end - at) >= bytes)
        return STATUS_OK;
    return status_fail(STATUS_MEMORY,
                       "the adapter takes %zu bytes, and of the adapters' %zu bytes %zu are in use: give adapters more "
                       "memory, or unload one",
                       bytes, bank->memory_bytes, bank->used_bytes);
}

/* Returns the lowest free number. */
static int take_number(struct peft_bank *bank) {
    int number = 0;
    while (number < bank->image_count && bank->images[number])
        number++;
    if (number < bank->image_count)
        return number;
    struct peft_image **images = realloc(bank->images, ((size_t)number + 1) * sizeof(struct peft_image *));
    TRY(status_allocated(images));
    bank->images = images;
    bank->images[number] = NULL;
    bank->image_count = number + 1;
    return number;
}

/* ---- loading ---- */

/* An image under construction. First its values are read, then what it needs of the base is computed, then both are
 * copied. */
struct peft_loading {
    const struct peft_files *files;
    int index;
    struct peft *peft;
    struct peft_image *image;
    struct image_maker maker;
    int read, prepared; /* parameters that were read; parts that were prepared */
};

static int parts_of(const struct peft_adapter *adapter) {
    return adapter->method->image_parts ? adapter->method->image_parts(adapter) : 0;
}

/* Opens the stack, finds room, and gives the stack its memory. */
static int open_loading(struct peft_bank *bank, struct peft_loading *loading) {
    const struct peft_config *config = &peft_files_configs(loading->files)[loading->index];
    loading->image = image_new(bank, config);
    int status = loading->image ? open_stack(bank, config, &loading->peft) : status_no_memory();
    THEN(status, plan(bank, loading->peft, loading->image));
    THEN(status, find_room(bank, loading->image->bytes, &loading->image->memory));
    TRY(status);
    struct peft_adapter *adapter = &loading->peft->adapters[0];
    loading->maker =
        (struct image_maker){.bank = bank, .image = loading->image, .adapter = adapter, .phase = MAKER_COPIES};
    peft_set_base(loading->peft, bank->base);
    status = param_store_open(&loading->peft->store, NULL);
    THEN_IF(status, parts_of(adapter), adapter->method->allocate(adapter));
    return status ? status : peft_check_values(loading->peft, loading->files, loading->index);
}

void peft_bank_abandon(struct peft_bank *bank) {
    struct peft_loading *loading = bank->loading;
    if (!loading)
        return;
    image_free(loading->image);
    peft_close(loading->peft);
    free(loading);
    bank->loading = NULL;
}

int peft_bank_begin(struct peft_bank *bank, const struct peft_files *files, int index) {
    if (bank->loading)
        return status_fail(STATUS_INVALID, "an adapter is being loaded already");
    bank->loading = calloc(1, sizeof *bank->loading);
    TRY(status_allocated(bank->loading));
    bank->loading->files = files;
    bank->loading->index = index;
    int status = open_loading(bank, bank->loading);
    if (status)
        peft_bank_abandon(bank);
    return status;
}

int peft_bank_continue(struct peft_bank *bank, double seconds, bool *is_ready) {
    struct peft_loading *loading = bank->loading;
    struct peft_adapter *adapter = &loading->peft->adapters[0];
    int status = STATUS_OK, rows = loading->peft->table.count, parts = parts_of(adapter);
    struct image_maker *maker = &loading->maker;
    maker->end = clock_seconds() + seconds;
    while (!status && loading->read < rows && clock_seconds() < maker->end)
        status = peft_load_row(loading->peft, loading->files, loading->index, loading->read++);
    while (!status && loading->read == rows && loading->prepared < parts && clock_seconds() < maker->end)
        status = adapter->method->prepare_part(adapter, loading->prepared++);
    bool copies = loading->read == rows && loading->prepared == parts && clock_seconds() < maker->end;
    THEN_IF(status, copies, image_make(maker));
    *is_ready = copies && maker->copied == maker->puts;
    return status;
}

int peft_bank_commit(struct peft_bank *bank) {
    struct peft_loading *loading = bank->loading;
    struct peft_adapter *adapter = &loading->peft->adapters[0];
    int status = parts_of(adapter) ? adapter->method->begin_image(adapter) : STATUS_OK;
    loading->maker.phase = MAKER_FINISHES;
    THEN(status, image_make(&loading->maker));
    int number = status ? status : take_number(bank);
    if (number >= 0) {
        bank->images[number] = loading->image;
        bank->used_bytes += loading->image->bytes;
        loading->image = NULL;
    }
    peft_bank_abandon(bank);
    return number;
}

void peft_bank_drop(struct peft_bank *bank, int number) {
    bank->used_bytes -= bank->images[number]->bytes;
    image_free(bank->images[number]);
    bank->images[number] = NULL;
}

size_t peft_bank_bytes_of(const struct peft_bank *bank, int image) {
    return bank->images[image]->bytes;
}

int64_t peft_bank_prefix_tokens(const struct peft_bank *bank, int image) {
    return bank->images[image]->prefix_tokens;
}

int64_t peft_bank_virtual_tokens(const struct peft_bank *bank, int image) {
    return bank->images[image]->virtual_tokens;
}

int32_t peft_bank_first_id(const struct peft_bank *bank, int image) {
    return (int32_t)(bank->model.base.config.vocab_size + bank->images[image]->first_virtual);
}

/* ---- slots ---- */

int peft_bank_check_slot(const struct peft_bank *bank, const int *images, int count) {
    const struct peft_config *configs[PEFT_SLOT_IMAGES];
    int64_t tokens = 0, positions = bank->model.max_positions;
    int prefix = -1;
    if (count > PEFT_SLOT_IMAGES)
        return status_fail(STATUS_USAGE, "%d adapters for one text: expected at most %d", count, PEFT_SLOT_IMAGES);
    for (int i = 0; i < count; i++) {
        const struct peft_image *image = bank->images[images[i]];
        configs[i] = &image->config;
        tokens += image->prefix_tokens + image->virtual_tokens;
        if (tokens >= positions)
            return peft_fail_positions(&image->config, positions);
        if (image->prefix_tokens && prefix >= 0)
            return peft_fail_prefixes(prefix, i);
        prefix = image->prefix_tokens ? i : prefix;
        int status =
            count > 1 && image->method->check_together ? image->method->check_together(bank, image) : STATUS_OK;
        TRY(status);
    }
    return peft_check_stack(configs, count);
}
