/* The stack: table, store and hooks of its adapters. */
#include "bank-internal.h"

/* ---- what methods ask ---- */

int peft_add_row(struct peft_adapter *adapter, struct param *row) {
    row->is_trainable = true;
    if (row->dims == 1)
        row->shape[1] = 1;
    if (!row->slice_count) {
        row->slice_count = 1;
        row->slices[0].rows = row->slices[0].file_rows = row->shape[0];
    }
    if (adapter->peft->count > 1) {
        char name[PARAM_NAME_BYTES];
        int n = snprintf(name, sizeof name, "%d.%s", adapter->number, row->name);
        if (n < 0 || (size_t)n >= sizeof name)
            return status_fail(STATUS_INVALID, "name too long: %s", row->name);
        memcpy(row->name, name, sizeof name);
    }
    return param_table_add(&adapter->peft->table, row);
}

void peft_tensor_name(const struct peft *peft, int64_t layer, const char *module, const char *kind,
                      char out[PARAM_NAME_BYTES]) {
    if (layer == peft->base.num_layers)
        snprintf(out, PARAM_NAME_BYTES, "base_model.model.%s.%s", module, kind);
    else
        snprintf(out, PARAM_NAME_BYTES, "base_model.model.%s%s.%lld.%s.%s", peft->family->files.prefix,
                 peft->family->layers, (long long)layer, module, kind);
}

void peft_list_projections(const struct model_config *base, struct model_projection out[MODEL_MAX_PROJECTIONS + 1]) {
    const struct model_family *family = model_family(base);
    family->projections(base, out);
    out[family->projection_count] = (struct model_projection){.place = ATTACH_HEAD,
                                                              .module = family->modules.head,
                                                              .out = base->vocab_size,
                                                              .in = base->hidden_size,
                                                              .parts = 1};
}

/* Tensor ranks may have unequal shares of the vocabulary. */
struct model_range peft_range(const struct peft *peft, const struct model_projection *projection) {
    int rank = peft->rank->place.tensor, ranks = peft->rank->grid.tensor;
    if (projection->place != ATTACH_HEAD)
        return model_range(&peft->base, ranks, projection);
    int64_t first = param_share(projection->out, rank, ranks);
    return (struct model_range){0, param_share(projection->out, rank + 1, ranks) - first};
}

int peft_add_hook(struct peft *peft, int64_t layer, const struct model_projection *projection, struct hook hook) {
    struct model_range range = peft_range(peft, projection);
    hook.first = range.first;
    hook.columns = range.columns;
    bool is_head = projection->place == ATTACH_HEAD; /* its logits are in fp32 already, where that matters */
    hook.fp32_y = !is_head && peft->bank && peft->bank->fp32_product_bytes ? &peft->bank->fp32_product : NULL;
    return hook_table_add(&peft->hooks, layer, projection->place, &hook);
}

int peft_multiply_base(const struct peft *peft, int64_t layer, const struct hook_call *call, struct gemm *gemm) {
    struct rank *rank = call->rank;
    int id = model_find_linear(call->base->map.table, layer, call->place, false);
    if (rank->is_planning) {
        gemm->b = matrix_rows(param_view(call->base, id, PARAM_LINEAR), call->first, call->out);
        return rank_multiply(rank, PHASE_GEMM, gemm);
    }
    gemm->b = matrix_rows(param_borrow_linear(call->base, id), call->first, call->out);
    int status = rank_multiply(rank, PHASE_GEMM, gemm);
    param_return(call->base, id);
    return status;
}

void peft_need_scratch(struct peft *peft, size_t bytes) {
    if (bytes > peft->scratch_bytes)
        peft->scratch_bytes = bytes;
}

bool peft_has_layer(const struct peft *peft, int64_t layer) {
    return model_has_layer(&peft->base_options.base, layer);
}

int peft_check_virtual_tokens(const struct peft_adapter *adapter) {
    const struct peft *peft = adapter->peft;
    int64_t tokens = adapter->config.num_virtual_tokens, positions = model_positions(&peft->base);
    if (tokens < 1)
        return status_fail(STATUS_USAGE, "peft.num_virtual_tokens %lld: expected at least 1", (long long)tokens);
    if (tokens >= positions || peft_virtual_tokens(peft) + peft_prefix_tokens(peft) >= positions)
        return peft_fail_positions(&adapter->config, positions);
    return STATUS_OK;
}

int peft_fail_positions(const struct peft_config *config, int64_t positions) {
    return status_fail(STATUS_USAGE,
                       "peft.num_virtual_tokens %lld: the model has %lld positions, also for the virtual tokens of "
                       "other adapters and at least one token of a sample",
                       (long long)config->num_virtual_tokens, (long long)positions);
}

int peft_fail_prefixes(int first, int second) {
    return status_fail(STATUS_USAGE, "adapters %d and %d are both prefixes: a stack can have one", first, second);
}

/* ---- opening ---- */

bool peft_is_encoded(const struct peft_adapter *adapter) {
    const struct peft_method *method = adapter->method;
    return adapter->peft->trains && !adapter->peft->takes_tables && method->is_encoded &&
           method->is_encoded(&adapter->config);
}

const struct param_table *peft_table(const struct peft_adapter *adapter) {
    return adapter->peft->count > 1 ? &adapter->training_table : &adapter->peft->table;
}

static int peft_copy_table(const struct param_table *table, struct param_table *copy) {
    *copy = (struct param_table){.count = table->count, .capacity = table->count};
    copy->rows = malloc(((size_t)table->count + 1) * sizeof *copy->rows);
    TRY(status_allocated(copy->rows));
    memcpy(copy->rows, table->rows, (size_t)table->count * sizeof *copy->rows);
    return STATUS_OK;
}

const struct param_table *peft_state_table(const struct peft *peft) {
    return peft->count > 1 ? &peft->state_table : &peft->table;
}

static int make_state_table(struct peft *peft) {
    int status = peft_copy_table(&peft->table, &peft->state_table);
    for (int i = 0; i < peft->count && !status; i++)
        for (int row = peft->adapters[i].first_row; row < peft->adapters[i].end_row && !status; row++)
            for (int s = 0; s < peft->table.rows[row].slice_count && !status; s++) {
                struct param_slice *slice = &peft->state_table.rows[row].slices[s];
                const char *old = peft->table.rows[row].slices[s].name;
                int n = snprintf(slice->name, sizeof slice->name, "%s.%s", old,
                                 peft_method_names[peft->adapters[i].config.type]);
                if (n < 0 || (size_t)n >= sizeof slice->name)
                    status = status_fail(STATUS_INVALID, "name too long: %s", old);
            }
    return status;
}

static int make_training_table(struct peft_adapter *adapter) {
    const struct param_table *all = &adapter->peft->table;
    struct param_table *copy = &adapter->training_table;
    TRY(peft_copy_table(all, copy));
    for (int i = 0; i < all->count; i++)
        copy->rows[i].is_trainable = i >= adapter->first_row && i < adapter->end_row;
    return STATUS_OK;
}

const char *peft_measures(const struct peft_config *config) {
    const struct peft_method *method = peft_method(config->type);
    return method->measures ? method->measures(config) : NULL;
}

/* A measure of the bare weights scales a projection's outputs. Another adapter that changes them would be scaled too,
 * or be missing from the measure. */
int peft_check_stack(const struct peft_config *const *configs, int count) {
    for (int i = 0; i < count; i++)
        for (int k = 0; k < count; k++) {
            const char *measuring = peft_measures(configs[i]);
            int other = configs[k]->type;
            if (measuring && i != k && peft_method(other)->merge)
                return status_fail(STATUS_USAGE,
                                   "%s cannot be stacked with %s: it measures and scales the base's own projections",
                                   measuring, peft_method_names[other]);
        }
    return STATUS_OK;
}

static int check_stack(const struct peft_options *options) {
    int frozen = options->frozen_count, count = frozen + options->count;
    const struct peft_config **configs = malloc(((size_t)count + 1) * sizeof *configs);
    TRY(status_allocated(configs));
    for (int i = 0; i < count; i++)
        configs[i] = i < frozen ? &options->frozen[i] : &options->adapters[i - frozen];
    int status = peft_check_stack(configs, count);
    free(configs);
    return status;
}

static int open_adapters(struct peft *peft, const struct peft_options *options) {
    int status = check_stack(options);
    for (int i = 0; i < options->count && !status; i++) {
        struct peft_adapter *adapter = &peft->adapters[i];
        *adapter = (struct peft_adapter){.peft = peft,
                                         .method = peft_method(options->adapters[i].type),
                                         .config = options->adapters[i],
                                         .number = i,
                                         .first_row = peft->table.count};
        status = adapter->method->describe(adapter);
        adapter->end_row = peft->table.count;
    }
    for (int i = 0; i < options->count && options->count > 1 && !status; i++)
        status = make_training_table(&peft->adapters[i]);
    return status || options->count < 2 || !options->trains ? status : make_state_table(peft);
}

/* Chooses the rows of this stage's layers; rows before the layers belong to the first stage. */
static int choose_rows(struct peft *peft) {
    peft->is_held = calloc((size_t)peft->table.count + 1, sizeof *peft->is_held);
    TRY(status_allocated(peft->is_held));
    for (int i = 0; i < peft->table.count; i++) {
        int layer = peft->table.rows[i].layer;
        peft->is_held[i] = peft_has_layer(peft, layer);
    }
    return STATUS_OK;
}

static int open_store(struct peft *peft, const struct model_options *model) {
    struct param_part part = {
        .tensor = peft->rank->place.tensor, .tensors = peft->rank->grid.tensor, .is_held = peft->is_held};
    return param_store_sketch(&peft->store,
                              &(const struct param_store_options){.table = &peft->table,
                                                                  .part = &part,
                                                                  .device = peft->rank->device,
                                                                  .dtype = peft->dtype,
                                                                  .has_gradients = peft->trains,
                                                                  .layer_shards = model->base.layer_shards});
}

static int open_stack(const struct peft_options *options, struct rank *rank, const struct peft_options *above,
                      struct peft **out);

/* Opens the frozen adapters as a stack that does not train, and puts their hooks before all others. */
static int open_frozen(struct peft *peft, const struct peft_options *options) {
    const struct peft_options frozen = {.adapters = options->frozen,
                                        .count = options->frozen_count,
                                        .model = options->model,
                                        .directory = options->directory};
    if (!frozen.count)
        return STATUS_OK;
    TRY(open_stack(&frozen, peft->rank, options, &peft->frozen));
    peft->method_bytes += param_weight_bytes(&peft->frozen->store) + peft_device_bytes(peft->frozen);
    return hook_table_stand_on(&peft->hooks, &peft->frozen->hooks);
}

static int open_stack(const struct peft_options *options, struct rank *rank, const struct peft_options *above,
                      struct peft **out) {
    *out = NULL;
    struct peft *peft = calloc(1, sizeof *peft);
    TRY(status_allocated(peft));
    *peft = (struct peft){.rank = rank,
                          .base_options = *options->model,
                          .base = options->model->base.config,
                          .directory = options->directory,
                          .family = model_family(&options->model->base.config),
                          .dtype = options->model->base.dtype,
                          .trains = options->trains,
                          .takes_tables = options->takes_tables,
                          .has_backward = options->trains || (above && above->trains),
                          .others = above ? above->count : options->frozen_count,
                          .sample = -1,
                          .max_rows = options->model->max_rows,
                          .count = options->count,
                          .adapters = calloc((size_t)options->count, sizeof *peft->adapters)};
    int status = status_allocated(peft->adapters);
    peft_list_projections(&peft->base, peft->projections);
    THEN(status, hook_table_init(&peft->hooks, peft->base.num_layers));
    THEN(status, open_frozen(peft, options));
    THEN(status, open_adapters(peft, options));
    THEN(status, choose_rows(peft));
    THEN(status, open_store(peft, options->model));
    THEN(status, peft_open_images(peft));
    for (int i = 0; i < peft->count && !status; i++) {
        peft->hooks.owner = i;
        status = peft->adapters[i].method->attach(&peft->adapters[i]);
    }
    THEN_IF(status, peft->trains, peft_open_tables(peft));
    if (status)
        peft_close(peft);
    else
        *out = peft;
    return status;
}

int peft_open(const struct peft_options *options, struct rank *rank, struct peft **out) {
    return open_stack(options, rank, NULL, out);
}

void peft_close(struct peft *peft) {
    if (!peft)
        return;
    for (int i = 0; i < peft->count && peft->adapters; i++)
        if (peft->adapters[i].method && peft->adapters[i].method->close)
            peft->adapters[i].method->close(&peft->adapters[i]);
    for (int i = 0; i < peft->count && peft->adapters; i++) {
        param_table_free(&peft->adapters[i].training_table);
        free(peft->adapters[i].choices);
    }
    peft_close_images(peft);
    peft_close(peft->tables);
    peft_close(peft->frozen);
    device_free(peft->rank->device, peft->scratch);
    param_store_close(&peft->store);
    param_table_free(&peft->table);
    param_table_free(&peft->state_table);
    hook_table_free(&peft->hooks);
    free(peft->is_held);
    free(peft->adapters);
    free(peft);
}

const struct hook_table *peft_hooks(const struct peft *peft) {
    return &peft->hooks;
}

int peft_hooks_of(const struct peft *peft, int adapter, struct hook_table *hooks) {
    return hook_table_of(&peft->hooks, adapter, hooks);
}

const struct peft *peft_frozen(const struct peft *peft) {
    return peft->frozen;
}

struct param_store *peft_store(struct peft *peft) {
    return &peft->store;
}

int64_t peft_virtual_tokens(const struct peft *peft) {
    int64_t tokens = peft->frozen ? peft_virtual_tokens(peft->frozen) : 0;
    for (int i = 0; i < peft->count; i++)
        tokens += peft_config_virtual_tokens(&peft->adapters[i].config);
    return tokens;
}

int64_t peft_prefix_tokens(const struct peft *peft) {
    int64_t tokens = peft->frozen ? peft_prefix_tokens(peft->frozen) : 0;
    for (int i = 0; i < peft->count; i++)
        tokens += peft_config_prefix_tokens(&peft->adapters[i].config);
    return tokens;
}

size_t peft_device_bytes(const struct peft *peft) {
    return peft->scratch_bytes + peft->method_bytes;
}

int peft_allocate(struct peft *peft) {
    int status = peft->frozen ? peft_allocate(peft->frozen) : STATUS_OK;
    THEN(status, param_store_open(&peft->store, NULL));
    THEN_IF(status, peft->scratch_bytes, device_alloc(peft->rank->device, peft->scratch_bytes, &peft->scratch));
    THEN(status, peft_allocate_images(peft));
    for (int i = 0; i < peft->count && !status; i++)
        if (peft->adapters[i].method->allocate)
            status = peft->adapters[i].method->allocate(&peft->adapters[i]);
    return status || !peft->tables ? status : peft_allocate(peft->tables);
}

void peft_set_base(struct peft *peft, const struct param_store *weights) {
    peft->weights = weights;
    if (peft->frozen)
        peft_set_base(peft->frozen, weights);
    if (peft->bank)
        peft_bank_set_base(peft->bank, weights);
}

int peft_initialise(struct peft *peft, uint64_t seed) {
    int status = param_store_initialise(&peft->store, peft->rank->exec.stream, seed);
    for (int i = 0; i < peft->count && !status; i++)
        if (peft->adapters[i].method->initialise)
            status = peft->adapters[i].method->initialise(&peft->adapters[i], seed);
    return status;
}

/* ---- a global batch ---- */

static int begin(struct peft *peft, int64_t sample);

/* Runs once: neither frozen values nor those of the base change. */
static int begin_frozen(struct peft *frozen) {
    int status = frozen && !frozen->is_begun ? begin(frozen, -1) : STATUS_OK;
    if (frozen)
        frozen->is_begun = !status;
    return status;
}

static int begin(struct peft *peft, int64_t sample) {
    peft->sample = sample;
    int status = begin_frozen(peft->frozen);
    THEN(status, param_clear_gradients(&peft->store, peft->rank->exec.stream));
    for (int i = 0; i < peft->count && !status; i++)
        if (peft->adapters[i].method->begin)
            status = peft->adapters[i].method->begin(&peft->adapters[i]);
    THEN(status, peft_make_images(peft));
    param_check_returned(&peft->store, "the beginning of a global batch");
    return status;
}

int peft_begin(struct peft *peft) {
    return begin(peft, -1);
}

int peft_begin_batch(struct peft *peft, int64_t sample) {
    return begin(peft, sample);
}

int peft_end(struct peft *peft) {
    int status = STATUS_OK;
    for (int i = peft->count - 1; i >= 0 && !status; i--)
        if (peft->adapters[i].method->end)
            status = peft->adapters[i].method->end(&peft->adapters[i]);
    param_check_returned(&peft->store, "the end of a global batch");
    return status;
}
