/* The bank: its hooks, and the assignment of a step's rows to images.
 *
 * A slot is an ordered set of images. A place handles the first images that may change it, of all slots, then the
 * second, and so on. In each round it makes one call per method, over all rows with an image of that method. The order
 * within a slot is thereby kept, and the number of calls does not grow with the number of adapters. */
#include "bank-internal.h"

int bank_projection(const struct peft_bank *bank, const struct model_projection *projection) {
    int p = 0;
    while (strcmp(bank->projections[p].module, projection->module))
        p++;
    return p;
}

int64_t bank_first_column(const struct peft_bank *bank, const struct model_projection *projection) {
    return model_range(&bank->model.base.config, bank->rank->grid.tensor, projection).first;
}

/* Keeps a hook's columns of y, which has other strides and may have another type. */
static int keep_y(const struct bank_call *call) {
    const struct hook_call *hook = call->hook;
    const char *y = (const char *)hook->y + (size_t)hook->first * dtype_bytes(hook->y_dtype);
    struct scatter_add_rows copy = {.rows = hook->rows,
                                    .cols = hook->out,
                                    .x_type = hook->y_dtype,
                                    .y_type = hook->dtype,
                                    .x = y,
                                    .index = call->list->row_index,
                                    .y = call->kept.y,
                                    .x_stride = hook->y_stride};
    size_t bytes = (size_t)(hook->rows * hook->out) * dtype_bytes(hook->dtype);
    TRY(stream_zero(hook->rank->exec.stream, call->kept.y, bytes));
    return rank_run(hook->rank, PHASE_NORM, scatter_add_rows, &copy);
}

int bank_scale_rows(const struct bank_call *call, enum projection_entry entry) {
    const struct hook_call *hook = call->hook;
    if (call->kept.y)
        TRY(keep_y(call));
    struct group_scale a = {.count = call->list->count,
                            .segments = call->list->segments,
                            .entry = bank_projection_entry(call->bank, call->site->layer, call->projection, entry),
                            .first_row = hook->first_row,
                            .rows = hook->rows,
                            .x = hook->y,
                            .x_row = hook->first_row,
                            .ldx = hook->y_stride,
                            .x_type = hook->y_dtype,
                            .y = hook->y,
                            .y_row = hook->first_row,
                            .ldy = hook->y_stride,
                            .y_type = hook->y_dtype};
    return rank_run(hook->rank, PHASE_NORM, group_scale, &a);
}

/* ---- the hooks ---- */

static bool is_active(const void *self) {
    const struct bank_site *site = self;
    const struct peft_bank *bank = site->bank;
    if (bank->rank->is_planning)
        return true;
    uint16_t bit = peft_site_bit(site->place, site->side);
    for (int i = 0; bank->is_active && i < BANK_LISTS; i++) {
        const struct bank_list *list = &bank->lists[i / PEFT_TYPE_COUNT][i % PEFT_TYPE_COUNT];
        if (list->count && (list->sites[site->layer] & bit))
            return true;
    }
    return false;
}

static int plan(struct peft_bank *bank, const struct hook_call *hook) {
    int status = STATUS_OK;
    rank_unsure(hook->rank, true, 1); /* a step does what its images need */
    for (int type = 0; type < PEFT_TYPE_COUNT && !status; type++)
        if (peft_method(type)->plan_forward)
            status = peft_method(type)->plan_forward(bank, hook);
    rank_unsure(hook->rank, true, -1);
    return status;
}

/* Runs the forward of a list at every projection of the site; after a half of a block, once. */
static int run_list(struct bank_call *call, const struct peft_method *method) {
    const struct peft_bank *bank = call->bank;
    const struct bank_site *site = call->site;
    bool is_half = site->place == ATTACH_AFTER_ATTENTION || site->place == ATTACH_AFTER_MLP;
    enum attach_place place = site->side == HOOK_AFTER_ACTIVATION ? ATTACH_FC2 : site->place;
    int status = is_half ? method->forward(call) : STATUS_OK;
    for (; call->projection <= bank->family->projection_count && !status; call->projection++)
        if (bank->projections[call->projection].place == place)
            status = method->forward(call);
    return status;
}

static int forward(void *self, const struct hook_call *hook) {
    const struct bank_site *site = self;
    struct peft_bank *bank = site->bank;
    uint16_t bit = peft_site_bit(site->place, site->side);
    int status = STATUS_OK;
    if (hook->rank->is_planning)
        return plan(bank, hook);
    for (int round = 0; round < PEFT_SLOT_IMAGES && !status; round++)
        for (int type = 0; type < PEFT_TYPE_COUNT && !status; type++) {
            struct bank_list list = bank->lists[round][type];
            struct bank_call call = {.bank = bank, .list = &list, .site = site, .hook = hook, .columns = list.columns};
            if (site->place == ATTACH_HEAD)
                list.segments = list.wanted;
            if (list.count && (list.sites[site->layer] & bit))
                status = run_list(&call, peft_method(type));
        }
    return status;
}

static int give_prefix(void *self, int number, int layer, struct hook_prefix *prefix) {
    const struct peft_bank *bank = self;
    const struct peft_image *image = bank->images[number];
    const void *const *here = &image->prefix[2 * (layer - bank->first_layer)];
    *prefix = (struct hook_prefix){.tokens = image->prefix_tokens, .k = here[0], .v = here[1]};
    return STATUS_OK;
}

static size_t row_bytes(const struct peft_bank *bank) {
    return (size_t)bank->model.base.config.hidden_size * dtype_bytes(bank->model.base.dtype);
}

/* All image memory forms one table; each image has its virtual tokens at rows of it. */
static void borrow_rows(void *self, struct hook_virtual *rows) {
    const struct peft_bank *bank = self;
    *rows = (struct hook_virtual){.tokens = (int64_t)(bank->memory_bytes / row_bytes(bank)), .table = bank->memory};
}

static void return_rows(void *self) {
}

static int add_hook(struct peft_bank *bank, int64_t layer, enum attach_place place, enum hook_side side) {
    struct bank_site *site = &bank->sites[layer * BANK_SITES + 2 * (int)place + (int)side];
    *site = (struct bank_site){.bank = bank, .layer = layer, .place = place, .side = side};
    bool is_rounded = place != ATTACH_AFTER_ATTENTION && place != ATTACH_AFTER_MLP && place != ATTACH_HEAD;
    struct hook hook = {.self = site, .side = side, .forward = forward, .is_active = is_active};
    if (is_rounded && side == HOOK_BEFORE_ACTIVATION && bank->fp32_product_bytes)
        hook.fp32_y = &bank->fp32_product;
    return hook_table_add(&bank->hooks, bank->first_layer + layer, place, &hook);
}

static int attach(struct peft_bank *bank) {
    const struct prefix_hook prefix = {.self = bank, .prefix = give_prefix};
    const struct token_hook tokens = {.self = bank, .borrow_rows = borrow_rows, .return_rows = return_rows};
    int status = bank->first_layer == 0 ? hook_table_add_tokens(&bank->hooks, &tokens) : STATUS_OK;
    for (int64_t layer = 0; layer < bank->layers && !status; layer++) {
        status = hook_table_add_prefix(&bank->hooks, bank->first_layer + layer, &prefix);
        for (enum attach_place place = ATTACH_QKV; place < ATTACH_HEAD && !status; place++)
            status = add_hook(bank, layer, place, HOOK_BEFORE_ACTIVATION);
        THEN(status, add_hook(bank, layer, ATTACH_FC1, HOOK_AFTER_ACTIVATION));
    }
    if (!status && model_has_layer(&bank->model.base, bank->model.base.config.num_layers))
        status = add_hook(bank, bank->layers, ATTACH_HEAD, HOOK_BEFORE_ACTIVATION);
    return status;
}

const struct hook_table *peft_bank_hooks(const struct peft_bank *bank) {
    return &bank->hooks;
}

static void upload_list(const struct peft_bank *bank, struct bank_list *list, struct upload *upload) {
    bool has_head = list->sites[bank->layers];
    for (int64_t i = 0; i < list->count; i++) {
        const struct bank_rows *rows = &list->rows[i];
        list->host[i] = (struct group_segment){rows->first_row, rows->rows, rows->image->device_entries};
        list->host[list->count + i] =
            (struct group_segment){rows->first_listed, rows->rows, rows->image->device_entries};
        list->host[2 * list->count + i] =
            (struct group_segment){rows->first_wanted, rows->wanted, rows->image->device_entries};
        for (int64_t k = 0; k < rows->rows; k++)
            list->host_index[rows->first_listed + k] = (int32_t)(rows->first_row + k);
    }
    list->segments = upload_add(upload, list->host, (has_head ? 3 : 2) * (size_t)list->count * sizeof *list->host);
    list->listed = list->segments + list->count;
    list->wanted = list->listed + list->count;
    list->row_index = upload_add(upload, list->host_index, (size_t)list->total * sizeof *list->host_index);
}

/* Adds the arrays of the lists to the upload of the model's step. */
static void add_upload(void *self, struct upload *upload) {
    struct peft_bank *bank = self;
    for (int i = 0; i < BANK_LISTS && bank->is_active; i++)
        if (bank_list_at(bank, i)->count)
            upload_list(bank, bank_list_at(bank, i), upload);
}

/* ---- opening ---- */

static size_t fp32_product_bytes(const struct peft_bank *bank) {
    int64_t most = 0;
    struct model_widths widths = model_widths(&bank->model.base.config, bank->rank->grid.tensor);
    int64_t outputs[] = {widths.qkv, widths.fc1, bank->model.base.config.hidden_size};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        most = outputs[i] > most ? outputs[i] : most;
    return bank->model.base.dtype == DTYPE_BF16 ? (size_t)(bank->model.max_rows * most) * sizeof(float) : 0;
}

/* The runs, once in the batch, once by themselves and once in the head, the numbers of their rows, and the lists; or
 * what a recorded step has. */
static size_t step_bytes(const struct peft_bank *bank) {
    size_t rows = PEFT_SLOT_IMAGES * (size_t)bank->model.max_rows;
    size_t bytes = rows * (3 * sizeof(struct group_segment) + sizeof(int32_t)) + 2 * BANK_LISTS * ARENA_ALIGNMENT;
    size_t recorded = bank_recorded_bytes(bank), most = bytes > recorded ? bytes : recorded;
    return (most + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

/* The first list's arrays have room for the images of all rows; the others follow as far as needed. */
static void place_lists(struct peft_bank *bank, struct arena *arena) {
    size_t rows = PEFT_SLOT_IMAGES * (size_t)bank->model.max_rows;
    struct bank_list *first = bank_list_at(bank, 0);
    first->rows = arena_take(arena, rows * sizeof *first->rows);
    first->host = arena_take(arena, 3 * rows * sizeof *first->host);
    first->host_index = arena_take(arena, rows * sizeof *first->host_index);
    for (int i = 0; i < BANK_LISTS; i++)
        bank_list_at(bank, i)->sites = arena_take(arena, (size_t)(bank->layers + 1) * sizeof *first->sites);
}

static int allocate_lists(struct peft_bank *bank) {
    struct arena arena = ARENA_PLAN;
    place_lists(bank, &arena);
    bank->list_bytes = arena.used;
    bank->host = aligned_alloc(ARENA_ALIGNMENT, bank->list_bytes);
    TRY(status_allocated(bank->host));
    arena = arena_over(bank->host, bank->list_bytes);
    place_lists(bank, &arena);
    return STATUS_OK;
}

int bank_new(const struct model_options *model, struct rank *rank, struct peft_bank **out) {
    struct peft_bank *bank = *out = calloc(1, sizeof *bank);
    TRY(status_allocated(bank));
    *bank = (struct peft_bank){.rank = rank, .model = *model, .family = model_family(&model->base.config)};
    bank->model.hooks = NULL;
    peft_list_projections(&model->base.config, bank->projections);
    bank->first_layer = model->base.chunk_count ? model->base.chunks[0].first : 0;
    bank->layers = model->base.chunk_count ? model->base.chunks[0].count : model->base.config.num_layers;
    bank->entries = bank->family->projection_count * PROJECTION_ENTRIES + 2 * HALF_ENTRIES;
    bank->fp32_product_bytes = fp32_product_bytes(bank);
    bank->scratch_bytes = rank->ops->sizes(rank->device)->bank_scratch_bytes;
    return STATUS_OK;
}

int peft_bank_open(const struct model_options *model, struct rank *rank, struct peft_bank **out) {
    struct peft_bank *bank;
    int status = bank_new(model, rank, &bank);
    *out = NULL;
    TRY(status);
    bank->sites = calloc((size_t)((bank->layers + 1) * BANK_SITES), sizeof *bank->sites);
    status = bank->sites ? allocate_lists(bank) : status_no_memory();
    THEN(status, hook_table_init(&bank->hooks, model->base.config.num_layers));
    bank->hooks.upload = (struct hook_upload){.bytes = step_bytes(bank), .add = add_upload, .self = bank};
    bank_set_levels(bank);
    THEN(status, attach(bank));
    if (status)
        peft_bank_close(bank);
    else
        *out = bank;
    return status;
}

void peft_bank_close(struct peft_bank *bank) {
    if (!bank)
        return;
    for (int i = 0; i < bank->image_count; i++)
        if (bank->images[i])
            peft_bank_drop(bank, i);
    peft_bank_abandon(bank);
    free(bank->images);
    device_free(bank->rank->device, bank->memory);
    device_free(bank->rank->device, bank->fp32_product);
    device_free(bank->rank->device, bank->scratch);
    hook_table_free(&bank->hooks);
    free(bank->host);
    free(bank->sites);
    free(bank);
}

size_t peft_bank_fixed_bytes(const struct peft_bank *bank) {
    return bank->fp32_product_bytes + bank->scratch_bytes + bank->hooks.upload.bytes;
}

size_t peft_bank_list_bytes(const struct peft_bank *bank) {
    return bank->list_bytes;
}

size_t peft_bank_used(const struct peft_bank *bank) {
    return bank->used_bytes;
}

void peft_bank_set_base(struct peft_bank *bank, const struct param_store *weights) {
    bank->base = weights;
}

int peft_bank_allocate(struct peft_bank *bank, size_t memory) {
    struct device *device = bank->rank->device;
    void *product = NULL, *scratch = NULL, *images = NULL;
    int status = STATUS_OK;
    if (bank->fp32_product_bytes)
        status = device_alloc(device, bank->fp32_product_bytes, &product);
    bank->fp32_product = product;
    THEN(status, device_alloc(device, bank->scratch_bytes, &scratch));
    bank->scratch = scratch;
    THEN_IF(status, memory, device_alloc(device, memory, &images));
    bank->memory = images;
    bank->memory_bytes = status ? 0 : memory;
    bank->is_allocated = !status;
    return status ? status_wrap(status, "adapters") : STATUS_OK;
}

/* ---- a step ---- */

static int check_segments(const struct peft_bank *bank, const struct peft_segment *segments, int64_t count) {
    int64_t end = 0;
    for (int64_t i = 0; i < count; i++) {
        const struct peft_segment *s = &segments[i];
        if (s->first_row < end || s->rows < 0 || s->first_row + s->rows > bank->model.max_rows || s->count < 0 ||
            s->count > PEFT_SLOT_IMAGES)
            return status_fail(STATUS_INVALID, "segment %lld of a step is out of place", (long long)i);
        for (int k = 0; k < s->count; k++)
            if (s->images[k] < 0 || s->images[k] >= bank->image_count || !bank->images[s->images[k]])
                return status_fail(STATUS_INVALID, "segment %lld of a step: there is no image %d", (long long)i,
                                   s->images[k]);
        end = s->first_row + s->rows;
    }
    return STATUS_OK;
}

/* The lists share the arrays, one after the other. */
static void share_arrays(struct peft_bank *bank, const int64_t *counts, const int64_t *totals) {
    for (int i = 1; i < BANK_LISTS; i++) {
        struct bank_list *list = bank_list_at(bank, i), *before = bank_list_at(bank, i - 1);
        list->rows = before->rows + counts[i - 1];
        list->host = before->host + 3 * counts[i - 1];
        list->host_index = before->host_index + totals[i - 1];
    }
}

static void clear_lists(struct peft_bank *bank) {
    for (int i = 0; i < BANK_LISTS; i++) {
        struct bank_list *list = bank_list_at(bank, i);
        list->count = list->total = list->columns = 0;
        list->has_ratios = list->has_inputs = list->has_norm = false;
        memset(list->sites, 0, (size_t)(bank->layers + 1) * sizeof *list->sites);
    }
}

/* A segment, and its rows among those that go through the head. */
struct placed_segment {
    const struct peft_segment *segment;
    int64_t first_wanted, wanted;
};

static void add_rows(const struct peft_bank *bank, struct bank_list *list, const struct placed_segment *placed,
                     const struct peft_image *image) {
    const struct peft_segment *segment = placed->segment;
    list->rows[list->count++] = (struct bank_rows){.first_row = segment->first_row,
                                                   .rows = segment->rows,
                                                   .image = image,
                                                   .first_listed = list->total,
                                                   .first_wanted = placed->first_wanted,
                                                   .wanted = placed->wanted};
    list->total += segment->rows;
    list->columns = image->columns > list->columns ? image->columns : list->columns;
    list->has_ratios |= image->config.use_dora;
    list->has_inputs |= image->scaled_input != NULL;
    list->has_norm |= image->has_norm;
    for (int64_t layer = 0; layer <= bank->layers; layer++)
        list->sites[layer] |= image->sites[layer];
}

/* Moves to the next segment. */
static void place_segment(const struct peft_segment *segment, const struct peft_wanted *wanted,
                          struct placed_segment *placed) {
    int64_t at = placed->first_wanted + placed->wanted, end = segment->first_row + segment->rows;
    while (at < wanted->count && wanted->rows[at] < segment->first_row)
        at++;
    *placed = (struct placed_segment){.segment = segment, .first_wanted = at};
    while (at < wanted->count && wanted->rows[at++] < end)
        placed->wanted++;
}

/* Returns the number of an image's list, or -1 for an image that changes no site. Its round is the number of images
 * before it in the slot whose method may change the same sites. */
static int list_of(const struct peft_bank *bank, const struct peft_segment *segment, int number) {
    const struct peft_image *image = bank->images[segment->images[number]];
    int round = 0;
    if (!image->method->forward)
        return -1;
    for (int i = 0; i < number; i++) {
        const struct peft_method *method = bank->images[segment->images[i]]->method;
        round += method->forward && method->sites() & image->method->sites();
    }
    return round * PEFT_TYPE_COUNT + image->config.type;
}

static void fill_lists(struct peft_bank *bank, const struct peft_segment *segments, int64_t count,
                       struct peft_wanted wanted) {
    int64_t counts[BANK_LISTS] = {0}, totals[BANK_LISTS] = {0};
    clear_lists(bank);
    for (int64_t i = 0; i < count; i++)
        for (int k = 0; k < segments[i].count; k++) {
            int list = list_of(bank, &segments[i], k);
            if (list < 0)
                continue;
            counts[list]++;
            totals[list] += segments[i].rows;
        }
    share_arrays(bank, counts, totals);
    struct placed_segment placed = {0};
    for (int64_t i = 0; i < count; i++) {
        place_segment(&segments[i], &wanted, &placed);
        for (int k = 0; k < segments[i].count; k++) {
            int list = list_of(bank, &segments[i], k);
            if (list >= 0)
                add_rows(bank, bank_list_at(bank, list), &placed, bank->images[segments[i].images[k]]);
        }
    }
}

int peft_bank_step(struct peft_bank *bank, const struct peft_segment *segments, int64_t count,
                   struct peft_wanted wanted) {
    int status = check_segments(bank, segments, count);
    bank->is_active = false;
    TRY(status);
    fill_lists(bank, segments, count, wanted);
    for (int i = 0; i < BANK_LISTS; i++)
        bank->is_active |= bank_list_at(bank, i)->count > 0;
    return STATUS_OK;
}
