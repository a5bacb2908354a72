/* A trained adapter and its image in a bank have one forward: on the same inputs and base product, every place gets the
 * same bits. So do the tables of prompts and prefixes. In fp32 and bf16, on one and two tensor ranks, and for stacks.
 */
#include "model/family.h"
#include "peft/bank.h"
#include "peft/support.h"

enum { ROWS = TUNED_ROWS, MOST = 3 };
static const struct stack {
    const char *family; /* NULL: GPT-2 */
    int count;
    struct peft_config adapters[MOST];
} stacks[] = {
    {NULL, 1, {{.type = PEFT_LORA, .r = 3, .lora_alpha = 5, .target_modules = EVERYTHING}}},
    {"llama",
     1,
     {{.type = PEFT_LORA,
       .r = 70,
       .lora_alpha = 3,
       .use_rslora = true,
       .target_modules = LIST("all-linear"),
       .rank_pattern = LIST("q_proj=5")}}},
    {NULL, 1, {{.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .use_dora = true, .target_modules = EVERYTHING}}},
    {"llama",
     1,
     {{.type = PEFT_LORA,
       .r = 2,
       .lora_alpha = 2,
       .use_dora = true,
       .target_modules = LIST("k_proj", "o_proj", "up_proj", "down_proj")}}},
    {NULL, 1, {{.type = PEFT_LORA, .r = 3, .lora_alpha = 5, .target_modules = LIST("c_attn", "lm_head")}}},
    {NULL, 1, {{.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .use_dora = true, .target_modules = LIST("lm_head")}}},
    {NULL, 1, {{.type = PEFT_IA3}}},
    {"llama",
     1,
     {{.type = PEFT_IA3,
       .target_modules = LIST("all-linear"),
       .feedforward_modules = LIST("k_proj", "gate_proj", "o_proj", "down_proj")}}},
    {NULL, 1, {{.type = PEFT_ADAPTER, .bottleneck = 3, .adapter_scaling = 1}}},
    {NULL,
     1,
     {{.type = PEFT_ADAPTER,
       .bottleneck = 5,
       .adapter_scaling = 0.5,
       .adapter_style = PEFT_PFEIFFER,
       .adapter_activation = PEFT_RELU,
       .adapter_pre_norm = true}}},
    {"llama",
     1,
     {{.type = PEFT_ADAPTER,
       .bottleneck = 4,
       .adapter_scaling = 4,
       .adapter_style = PEFT_PARALLEL,
       .adapter_activation = PEFT_SWISH,
       .adapter_pre_norm = true}}},
    {NULL, 1, {{.type = PEFT_PROMPT, .num_virtual_tokens = 2}}},
    {NULL, 1, {{.type = PEFT_PTUNING, .num_virtual_tokens = 2, .encoder_num_layers = 1}}},
    {NULL,
     1,
     {{.type = PEFT_PTUNING,
       .num_virtual_tokens = 2,
       .encoder_reparameterization_type = PEFT_LSTM,
       .encoder_num_layers = 2}}},
    {NULL, 1, {{.type = PEFT_PREFIX, .num_virtual_tokens = 2}}},
    {NULL, 1, {{.type = PEFT_PREFIX, .num_virtual_tokens = 2, .prefix_projection = true}}},
    {NULL,
     3,
     {{.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .target_modules = EVERYTHING},
      {.type = PEFT_IA3},
      {.type = PEFT_ADAPTER, .bottleneck = 3, .adapter_scaling = 1}}},
    {"llama",
     3,
     {{.type = PEFT_IA3},
      {.type = PEFT_PREFIX, .num_virtual_tokens = 1},
      {.type = PEFT_LORA, .r = 4, .lora_alpha = 2, .target_modules = LIST("all-linear")}}},
};

struct scene {
    const struct stack *stack;
    enum dtype dtype;
    const char *directory;
};

/* One rank's stack, and its bank. */
struct pair {
    struct tuned tuned;
    struct peft_bank *bank;
    int images[MOST];
    struct upload upload;
    void *block;
    int changed; /* places that the stack changed */
};

/* Draws a value around the initial ones for every element of the whole parameters. */
static int fill(const struct pair *p) {
    const struct param_store *store = p->tuned.store;
    struct stream *stream = p->tuned.rank->exec.stream;
    struct test_values all = test_values(store, stream);
    for (int id = 0; id < store->map.table->count; id++) {
        struct param_rect rects[PARAM_MAX_SLICES];
        int count = param_part_rects(&store->map.part, store->map.table, id, rects);
        for (int r = 0; r < count; r++)
            for (int64_t e = 0; e < rects[r].rows * rects[r].columns; e++) {
                int64_t y = e / rects[r].columns, x = e % rects[r].columns;
                int64_t at = store->map.places[id].offset + (rects[r].local_row + y) * rects[r].columns + x;
                float drawn =
                    tuned_draw(id, (rects[r].row + y) * store->map.table->rows[id].shape[1] + rects[r].column + x);
                uint16_t *half = (uint16_t *)(void *)all.weights + at;
                if (store->map.type == DTYPE_BF16)
                    *half = bf16_from_float(bf16_to_float(*half) + drawn);
                else
                    all.weights[at] += drawn;
            }
    }
    return test_values_put(&all, stream);
}

static int save(const struct pair *p, const struct scene *scene, const struct model_config *base) {
    struct peft_texts texts;
    int status =
        peft_texts_make(scene->stack->adapters, scene->stack->count, base, "base", &(struct peft_notes){0}, &texts);
    THEN(status, peft_export(p->tuned.peft, &(const struct peft_export){.texts = texts.items,
                                                                        .text_count = texts.count,
                                                                        .directory = scene->directory}));
    peft_texts_free(&texts);
    return status;
}

static int load(struct pair *p, const struct scene *scene) {
    struct peft_files *files = NULL;
    int status = peft_files_open(&scene->directory, 1, false, &files);
    for (int i = 0; i < scene->stack->count && !status; i++) {
        bool is_ready = false;
        /* files are ordered by their directories' names */
        int at = 0;
        while (peft_files_configs(files)[at].type != scene->stack->adapters[i].type)
            at++;
        status = peft_bank_begin(p->bank, files, at);
        while (!status && !is_ready)
            status = peft_bank_continue(p->bank, 1, &is_ready);
        int number = status ? status : peft_bank_commit(p->bank);
        p->images[i] = number;
        status = number < 0 ? number : STATUS_OK;
    }
    peft_files_close(files);
    return status;
}

/* All rows of the next step go through the images. */
static int step(struct pair *p, int count) {
    struct peft_segment segment = {.rows = ROWS, .count = count};
    const struct hook_upload *hooks = &peft_bank_hooks(p->bank)->upload;
    memcpy(segment.images, p->images, (size_t)count * sizeof *p->images);
    int32_t rows[ROWS];
    for (int i = 0; i < ROWS; i++)
        rows[i] = i;
    TRY(peft_bank_step(p->bank, &segment, 1, (struct peft_wanted){ROWS, rows}));
    TRY(upload_open(&p->upload, p->tuned.rank->device, hooks->bytes));
    TRY(device_alloc(p->tuned.rank->device, hooks->bytes, &p->block));
    TRY(upload_begin(&p->upload, p->block));
    hooks->add(hooks->self, &p->upload);
    TRY(upload_end(&p->upload, p->tuned.rank->exec.stream));
    return stream_wait(p->tuned.rank->exec.stream);
}

static void draw(void *x, int64_t count, enum dtype dtype, uint32_t key) {
    for (int64_t i = 0; i < count; i++)
        if (dtype == DTYPE_F32)
            ((float *)x)[i] = 2 * tuned_draw((int)key, i);
        else
            ((uint16_t *)x)[i] = bf16_from_float(2 * tuned_draw((int)key, i));
}

static int run_hooks(const struct hook_list *list, enum hook_side side, const struct hook_call *call, const void *from,
                     size_t bytes, void *result) {
    struct stream *stream = call->rank->exec.stream;
    TRY(test_write(stream, call->y, from, bytes));
    TRY(hook_list_forward(list, side, call));
    return test_read(stream, result, call->y, bytes);
}

static int compare_place(struct pair *p, const struct model_config *base, enum dtype dtype, int layer,
                         enum attach_place place, enum hook_side side) {
    struct rank *rank = p->tuned.rank;
    struct model_widths widths = model_widths(base, rank->grid.tensor);
    const struct hook_list *ours = hook_table_list(peft_hooks(p->tuned.peft), layer, place),
                           *served = hook_table_list(peft_bank_hooks(p->bank), layer, place);
    int64_t C = base->hidden_size;
    bool is_half = place == ATTACH_AFTER_ATTENTION || place == ATTACH_AFTER_MLP,
         is_after = side != HOOK_BEFORE_ACTIVATION;
    struct hook_call call = {.rank = rank, .layer = layer, .place = place, .dtype = dtype, .rows = ROWS};
    call.in = place == ATTACH_FC2 ? widths.ffn : place == ATTACH_PROJECTION ? widths.q : C;
    call.out = is_after ? widths.ffn : place == ATTACH_QKV ? widths.qkv : place == ATTACH_FC1 ? widths.fc1 : C;
    if (place == ATTACH_HEAD)
        call.out = param_share(base->vocab_size, rank->place.tensor + 1, rank->grid.tensor) -
                   param_share(base->vocab_size, rank->place.tensor, rank->grid.tensor);
    call.y_stride = call.out;
    call.y_dtype = is_half || is_after ? dtype : DTYPE_F32;
    if (!ours->count)
        return STATUS_OK;
    size_t x_bytes = (size_t)(ROWS * call.in) * sizeof(float),
           y_bytes = (size_t)(ROWS * call.out) * dtype_bytes(call.y_dtype);
    char *x = malloc(x_bytes), *y = malloc(y_bytes), *a = malloc(y_bytes), *b = malloc(y_bytes);
    void *in = NULL, *residual = NULL;
    draw(x, ROWS * call.in, dtype, 40);
    draw(y, ROWS * call.out, call.y_dtype, 41);
    int status = device_alloc(rank->device, x_bytes, &in);
    THEN(status, device_alloc(rank->device, x_bytes, &residual));
    THEN(status, device_alloc(rank->device, y_bytes, &call.y));
    THEN(status, device_alloc(rank->device, hook_list_saved_bytes(ours, &call) + 64, &call.saved));
    THEN(status, test_write(rank->exec.stream, in, x, x_bytes));
    draw(x, ROWS * call.in, dtype, 42);
    THEN(status, test_write(rank->exec.stream, residual, x, x_bytes));
    call.x = in;
    call.residual = residual;
    THEN(status, run_hooks(ours, side, &call, y, y_bytes, a));
    THEN(status, run_hooks(served, side, &call, y, y_bytes, b));
    p->changed += !status && memcmp(a, y, y_bytes) != 0;
    if (!status && memcmp(a, b, y_bytes) != 0)
        status = status_fail(STATUS_INVALID, "layer %d, place %d, side %d: other bits", layer, (int)place, (int)side);
    device_free(rank->device, call.saved);
    device_free(rank->device, call.y);
    device_free(rank->device, residual);
    device_free(rank->device, in);
    free(b);
    free(a);
    free(y);
    free(x);
    return status;
}

/* Compares two arrays in device memory: STATUS_INVALID with their name if they differ. */
static int compare_arrays(const struct pair *p, const char *name, const void *a, const void *b, size_t bytes) {
    struct stream *stream = p->tuned.rank->exec.stream;
    void *x = test_copy(stream, a, bytes), *y = test_copy(stream, b, bytes);
    int differs = memcmp(x, y, bytes);
    free(x);
    free(y);
    return differs ? status_fail(STATUS_INVALID, "%s: other bits", name) : STATUS_OK;
}

static int compare_tables(struct pair *p, const struct model_config *base, const struct scene *scene) {
    const struct token_list *ours = hook_table_tokens(peft_hooks(p->tuned.peft)),
                            *served = hook_table_tokens(peft_bank_hooks(p->bank));
    size_t row = (size_t)base->hidden_size * dtype_bytes(scene->dtype);
    size_t keys = (size_t)model_widths(base, p->tuned.rank->grid.tensor).kv * dtype_bytes(scene->dtype);
    for (int i = 0, next = 0; i < scene->stack->count; i++) {
        int64_t tokens = peft_bank_virtual_tokens(p->bank, p->images[i]);
        struct hook_virtual a, b;
        if (!tokens)
            continue;
        const struct token_hook *hook = &ours->hook[next++];
        hook->borrow_rows(hook->self, &a);
        served->hook[0].borrow_rows(served->hook[0].self, &b);
        const char *image =
            (const char *)b.table + (size_t)(peft_bank_first_id(p->bank, p->images[i]) - base->vocab_size) * row;
        p->changed++;
        int status = compare_arrays(p, "virtual tokens", a.table, image, (size_t)tokens * row);
        hook->return_rows(hook->self);
        if (status)
            return status;
    }
    for (int layer = 0; layer < base->num_layers; layer++)
        for (int i = 0; i < scene->stack->count; i++) {
            size_t bytes = (size_t)peft_bank_prefix_tokens(p->bank, p->images[i]) * keys;
            struct hook_prefix a, b;
            if (!bytes)
                continue;
            const struct prefix_hook *hook = hook_table_prefixes(peft_hooks(p->tuned.peft), layer)->hook,
                                     *bank = hook_table_prefixes(peft_bank_hooks(p->bank), layer)->hook;
            TRY(hook->prefix(hook->self, 0, layer, &a));
            TRY(bank->prefix(bank->self, p->images[i], layer, &b));
            p->changed++;
            TRY(compare_arrays(p, "a prefix's keys", a.k, b.k, bytes));
            TRY(compare_arrays(p, "a prefix's values", a.v, b.v, bytes));
        }
    return STATUS_OK;
}

static int compare(struct pair *p, const struct model_config *base, const struct scene *scene) {
    int status = STATUS_OK;
    for (int layer = 0; layer < base->num_layers && !status; layer++) {
        for (enum attach_place place = ATTACH_QKV; place < ATTACH_HEAD && !status; place++)
            status = compare_place(p, base, scene->dtype, layer, place, HOOK_BEFORE_ACTIVATION);
        THEN(status, compare_place(p, base, scene->dtype, layer, ATTACH_FC1, HOOK_AFTER_ACTIVATION));
    }
    THEN(status, compare_place(p, base, scene->dtype, (int)base->num_layers, ATTACH_HEAD, HOOK_BEFORE_ACTIVATION));
    THEN(status, compare_tables(p, base, scene));
    return status || p->changed ? status : status_fail(STATUS_INVALID, "nothing is changed");
}

static int run_rank(struct comm *world, void *context) {
    const struct scene *scene = context;
    const struct rank_grid grid = {world->size, 1, 1, 1, 1};
    struct model_config base = tuned_base(false);
    if (scene->stack->family)
        tiny_model_become(&base, scene->stack->family, 2, 6);
    struct model_options options = {.base.config = base,
                                    .base.dtype = scene->dtype,
                                    .max_rows = ROWS,
                                    .infer.max_sequences = 1,
                                    .infer.max_pages = 1};
    struct tuned_options tuned = {
        .adapters = scene->stack->adapters, .count = scene->stack->count, .dtype = scene->dtype, .base = &base};
    struct pair p = {0};
    struct device *device;
    struct rank rank;
    TRY(device_open(test_device(), DEVICE_FIRST, 1, &device));
    int status = rank_open(&rank, &grid, world, device, 1);
    THEN(status, tuned_open(&p.tuned, &tuned, &rank));
    THEN(status, fill(&p));
    THEN(status, save(&p, scene, &base));
    THEN(status, peft_begin(p.tuned.peft));
    THEN(status, peft_bank_open(&options, &rank, &p.bank));
    if (!status)
        peft_bank_set_base(p.bank, p.tuned.base ? base_store(p.tuned.base) : NULL);
    THEN(status, peft_bank_allocate(p.bank, 1 << 20));
    THEN(status, load(&p, scene));
    THEN(status, step(&p, scene->stack->count));
    THEN(status, compare(&p, &base, scene));
    if (status)
        comm_abort(world, status_text());
    upload_close(&p.upload);
    device_free(device, p.block);
    peft_bank_close(p.bank);
    tuned_close(&p.tuned);
    rank_close(&rank);
    device_close(device);
    return status;
}

static void check(enum dtype dtype) {
    for (size_t s = 0; s < sizeof stacks / sizeof *stacks; s++)
        for (int tensors = 1; tensors <= 2; tensors++) {
            char *directory = test_directory();
            struct scene scene = {.stack = &stacks[s], .dtype = dtype, .directory = directory};
            if (comm_local_run(tensors, run_rank, &scene))
                fail_msg("stack %zu, %d ranks: %s", s, tensors, status_text());
            free(directory);
        }
}

static void training_and_a_bank_have_the_same_bits(void **state) {
    (void)state;
    check(DTYPE_F32);
}

static void so_in_bf16(void **state) {
    (void)state;
    test_skip_without_bf16();
    check(DTYPE_BF16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_and_a_bank_have_the_same_bits),
        cmocka_unit_test(so_in_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
