/* A stack's adapters as images, so that training has the forward of a bank. Every row of a batch belongs to one
 * segment. Entries lead to the parameters themselves; what the forward reads in another order is copied at the
 * beginning of every global batch. */
#include "bank-internal.h"

#include <math.h>

struct stack_image {
    struct peft_image *image;
    struct bank_rows run;
    struct bank_list list;
    struct group_segment *segment; /* device: [1] */
    int32_t *row_index;            /* device: [max_rows] */
    bool is_made;                  /* its entries, segment and index are on the device */
};

static int open_image(struct peft_adapter *adapter) {
    struct peft_bank *bank = adapter->peft->bank;
    struct stack_image *stack = adapter->image = calloc(1, sizeof *stack);
    TRY(status_allocated(stack));
    struct peft_image *image = stack->image = image_new(bank, &adapter->config);
    TRY(status_allocated(image));
    struct image_maker maker = {.bank = bank, .image = image, .adapter = adapter, .is_stack = true};
    TRY(image_make(&maker));
    image->bytes = maker.arena.used;
    stack->run = (struct bank_rows){.rows = adapter->peft->max_rows, .image = image};
    stack->list = (struct bank_list){.count = 1,
                                     .total = adapter->peft->max_rows,
                                     .rows = &stack->run,
                                     .has_ratios = adapter->config.use_dora,
                                     .has_norm = image->has_norm};
    return STATUS_OK;
}

static void place_images(struct peft *peft, struct arena *arena) {
    for (int i = 0; i < peft->count; i++) {
        struct stack_image *stack = peft->adapters[i].image;
        if (!stack)
            continue;
        stack->image->memory = arena_take(arena, stack->image->bytes);
        stack->segment = arena_take(arena, sizeof *stack->segment);
        stack->row_index = arena_take(arena, (size_t)peft->max_rows * sizeof *stack->row_index);
        stack->list.segments = stack->list.listed = stack->segment;
        stack->list.row_index = stack->row_index;
    }
}

int peft_open_images(struct peft *peft) {
    struct model_options model = peft->base_options;
    struct arena arena = ARENA_PLAN;
    bool has_images = false, has_projections = false;
    for (int i = 0; i < peft->count; i++) {
        has_images |= peft->adapters[i].method->forward != NULL;
        has_projections |= peft->adapters[i].method->merge != NULL;
    }
    if (!has_images)
        return STATUS_OK;
    model.base.chunk_count = 0; /* entries for every layer, in whichever chunk it is */
    TRY(bank_new(&model, peft->rank, &peft->bank));
    if (!has_projections)
        peft->bank->fp32_product_bytes = 0;
    for (int i = 0; i < peft->count; i++)
        if (peft->adapters[i].method->forward)
            TRY(open_image(&peft->adapters[i]));
    place_images(peft, &arena);
    peft->image_bytes = arena.used;
    peft->method_bytes += arena.used + peft->bank->fp32_product_bytes + peft->bank->scratch_bytes;
    return STATUS_OK;
}

void peft_close_images(struct peft *peft) {
    for (int i = 0; i < peft->count && peft->adapters; i++) {
        if (peft->adapters[i].image)
            image_free(peft->adapters[i].image->image);
        free(peft->adapters[i].image);
    }
    peft_bank_close(peft->bank);
}

int peft_allocate_images(struct peft *peft) {
    if (!peft->bank)
        return STATUS_OK;
    TRY(peft_bank_allocate(peft->bank, peft->image_bytes));
    struct arena arena = arena_over(peft->bank->memory, peft->image_bytes);
    place_images(peft, &arena);
    return STATUS_OK;
}

/* Copies what every global batch reads, in the same places. */
static int upload(const struct peft *peft, struct stack_image *stack) {
    struct stream *stream = peft->rank->exec.stream;
    const struct peft_image *image = stack->image;
    const struct group_segment segment = {.rows = peft->max_rows, .entries = image->device_entries};
    int32_t *index = malloc((size_t)peft->max_rows * sizeof *index);
    TRY(status_allocated(index));
    for (int64_t i = 0; i < peft->max_rows; i++)
        index[i] = (int32_t)i;
    size_t bytes = (size_t)bank_entry_count(peft->bank) * sizeof *image->entries;
    int status = stream_copy_to_device(stream, (void *)image->device_entries, image->entries, bytes);
    THEN(status, stream_copy_to_device(stream, stack->segment, &segment, sizeof segment));
    THEN(status, stream_copy_to_device(stream, stack->row_index, index, (size_t)peft->max_rows * sizeof *index));
    THEN(status, stream_wait(stream));
    free(index);
    stack->is_made = !status;
    return status;
}

int peft_make_images(struct peft *peft) {
    int status = STATUS_OK;
    for (int i = 0; i < peft->count && !status; i++) {
        struct stack_image *stack = peft->adapters[i].image;
        if (!stack)
            continue;
        struct image_maker maker = {.bank = peft->bank,
                                    .image = stack->image,
                                    .adapter = &peft->adapters[i],
                                    .phase = MAKER_COPIES,
                                    .end = INFINITY,
                                    .is_stack = true};
        status = image_make(&maker);
        THEN_IF(status, !stack->is_made, upload(peft, stack));
    }
    return status;
}

/* Plans a forward from the image's entries: the two products of a pair or a bottleneck, or what IA3's inputs need. */
static int plan(const struct peft_adapter *adapter, const struct bank_call *call, bool is_half) {
    const struct peft_bank *bank = call->bank;
    const struct hook_call *hook = call->hook;
    const struct bank_site *site = call->site;
    const struct group_entry *entries = adapter->image->image->entries;
    const struct group_entry *of =
        entries + (is_half ? bank_half_entry(bank, site->layer, site->place == ATTACH_AFTER_MLP, ENTRY_HALF_DOWN)
                           : bank_projection_entry(bank, site->layer, call->projection, ENTRY_DOWN));
    if (!is_half && of[ENTRY_INPUT].n && site->side == HOOK_BEFORE_ACTIVATION)
        return adapter->method->plan_forward(call->bank, hook);
    for (int i = 0; i < 2 && of->n; i++) {
        const struct gemm gemm = {.a = matrix_plain(hook->dtype, NULL, hook->rows, of[i].k),
                                  .b = matrix_plain(hook->dtype, NULL, of[i].n, of[i].k),
                                  .c = matrix_plain(hook->dtype, NULL, hook->rows, of[i].n)};
        TRY(rank_note(hook->rank, PHASE_GEMM, OP_grouped_gemm, gemm_work(&gemm), &(const struct grouped_gemm){0}));
    }
    return STATUS_OK;
}

int peft_image_forward(const struct peft_adapter *adapter, const struct hook_call *hook, struct bank_call call) {
    struct peft_bank *bank = adapter->peft->bank;
    struct hook_call whole = *hook; /* all columns of the place */
    bool is_half = hook->place == ATTACH_AFTER_ATTENTION || hook->place == ATTACH_AFTER_MLP;
    bool is_after = !is_half && bank->projections[call.projection].place != hook->place;
    const struct bank_site site = {.bank = bank,
                                   .layer = hook->layer,
                                   .place = hook->place,
                                   .side = is_after ? HOOK_AFTER_ACTIVATION : HOOK_BEFORE_ACTIVATION};
    call.bank = bank;
    call.list = &adapter->image->list;
    call.site = &site;
    call.hook = &whole;
    if (hook->rank->is_planning)
        return plan(adapter, &call, is_half);
    whole.y = (char *)hook->y - (size_t)hook->first * dtype_bytes(hook->y_dtype);
    return adapter->method->forward(&call);
}
