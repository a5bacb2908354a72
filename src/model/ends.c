/* The two ends of the model: the embedding, and the head with its loss.
 *
 * The head never holds all logits. It processes the rows in chunks. During training it replaces each chunk's logits by
 * their gradient in place, so forward and backward of the head are one pass. */
#include "model-internal.h"

/* Sums a partial [N, C] over the tensor ranks: in place, or under sequence parallelism into `part`, which receives this
 * rank's rows. */
static int sum_stream(const struct pass *pass, void *partial, void *part) {
    const struct model_options *o = &pass->model->options;
    struct rank *rank = pass->model->rank;
    int64_t C = o->config.hidden_size;
    if (!rank->is_sequence_parallel)
        return rank_sum(rank, RANK_TENSOR, partial, pass->rows * C, o->dtype);
    const struct comm_data data = {
        .send = partial, .receive = part, .count = rank_stream_rows(rank, pass->rows) * C, .dtype = o->dtype};
    struct comm_request request;
    int status = rank_scatter_start(rank, RANK_TENSOR, &data, &request);
    return status ? status : rank_wait(rank, &request);
}

/* Sets *whole [N, C] to all rows of the stream: scratch.whole if they are cut, else `part` itself. */
static int gather_stream(const struct pass *pass, const void *part, const void **whole) {
    const struct model *model = pass->model;
    struct rank *rank = model->rank;
    *whole = rank->is_sequence_parallel ? model->scratch.whole : part;
    if (!rank->is_sequence_parallel)
        return STATUS_OK;
    return rank_gather(rank, RANK_TENSOR, part, model->scratch.whole,
                       rank_stream_rows(rank, pass->rows) * model->options.config.hidden_size, model->options.dtype);
}

static double embedding_dropout(const struct pass *pass) {
    const struct model_config *c = &pass->model->options.config;
    return !pass->asked.has_dropout ? 0 : c->embedding_dropout < 0 ? c->hidden_dropout : c->embedding_dropout;
}

/* The methods' virtual tokens, borrowed until they are returned. */
struct virtuals {
    int count;
    struct hook_virtual rows[HOOKS_PER_PLACE];
    int64_t tokens; /* of all */
};

static struct virtuals borrow_virtuals(const struct model *model) {
    const struct token_list *hooks = hook_table_tokens(model->options.hooks);
    struct virtuals virtuals = {0};
    for (int i = 0; i < hooks->count; i++) {
        struct hook_virtual *rows = &virtuals.rows[virtuals.count++];
        hooks->hook[i].borrow_rows(hooks->hook[i].self, rows);
        virtuals.tokens += rows->tokens;
    }
    return virtuals;
}

static void return_virtuals(const struct model *model) {
    const struct token_list *hooks = hook_table_tokens(model->options.hooks);
    for (int i = 0; i < hooks->count; i++)
        hooks->hook[i].return_rows(hooks->hook[i].self);
}

static size_t virtual_bytes(const struct model *model, int64_t tokens) {
    return (size_t)(tokens * model->options.config.hidden_size) * dtype_bytes(model->options.dtype);
}

size_t embedding_virtual_bytes(const struct model *model) {
    struct virtuals virtuals = borrow_virtuals(model);
    return_virtuals(model);
    return virtuals.count > 1 && model->rank->place.tensor == 0 ? virtual_bytes(model, virtuals.tokens) : 0;
}

int64_t embedding_ids(const struct model *model) {
    struct virtuals virtuals = borrow_virtuals(model);
    return_virtuals(model);
    return model->options.config.vocab_size + virtuals.tokens;
}

/* Finds the rows of all methods as one table: the only method's table, or copies one after the other. Each rank has all
 * of them, but only one may add them. */
static int find_virtual_table(const struct model *model, const struct virtuals *virtuals, const void **table) {
    char *to = model->scratch.virtual_rows;
    int status = STATUS_OK;
    bool is_first = model->rank->place.tensor == 0;
    *table = !is_first ? NULL : virtuals->count > 1 ? to : virtuals->rows[0].table;
    if (!is_first || virtuals->count < 2 || model->rank->is_planning)
        return STATUS_OK;
    for (int i = 0; i < virtuals->count && !status; i++) {
        size_t bytes = virtual_bytes(model, virtuals->rows[i].tokens);
        status = stream_copy(model->rank->exec.stream, to, virtuals->rows[i].table, bytes);
        to += bytes;
    }
    return status;
}

int embedding_pass_forward(const struct pass *pass, void *x) {
    const struct model *model = pass->model;
    bool has_positions = model->position_table != PARAM_NONE;
    struct matrix_view tokens = param_borrow(&model->store, model->token_table), positions = {0};
    if (has_positions)
        positions = param_borrow(&model->store, model->position_table);
    struct embedding call = {
        .rows = pass->rows,
        .cols = model->options.config.hidden_size,
        .type = model->options.dtype,
        .first_token = model->share.first_token,
        .token_count = model->share.vocab,
        .tokens = pass->batch->tokens,
        .positions = pass->batch->positions,
        .token_table = tokens.data,
        .position_table = positions.data,
        .x = model->rank->is_sequence_parallel ? model->scratch.whole : x,
    };
    struct virtuals virtuals = borrow_virtuals(model);
    call.first_virtual = model->options.config.vocab_size;
    call.virtual_tokens = virtuals.tokens;
    int status = find_virtual_table(model, &virtuals, &call.virtual_table);
    THEN(status, rank_run(model->rank, PHASE_REST, embedding_forward, &call));
    return_virtuals(model);
    param_return(&model->store, model->token_table);
    if (has_positions)
        param_return(&model->store, model->position_table);
    THEN(status, sum_stream(pass, call.x, x));
    double p = embedding_dropout(pass);
    if (!status && p > 0)
        status = dropout_forward(pass, p, 0, NULL, x, x);
    return status;
}

int embedding_pass_backward(const struct pass *pass) {
    const struct model *model = pass->model;
    double p = embedding_dropout(pass);
    int status = p > 0 ? dropout_backward(pass, p, 0, pass->d, pass->d) : STATUS_OK;
    const void *whole = pass->d;
    bool has_positions = model->position_table != PARAM_NONE;
    THEN(status, gather_stream(pass, pass->d, &whole));
    struct embedding call = {
        .rows = pass->rows,
        .cols = model->options.config.hidden_size,
        .type = model->options.dtype,
        .first_token = model->share.first_token,
        .token_count = model->share.vocab,
        .tokens = pass->batch->tokens,
        .positions = pass->batch->positions,
        .dx = whole,
        .dtoken_table = param_gradient(&model->store, model->token_table),
        .dposition_table = has_positions ? param_gradient(&model->store, model->position_table) : NULL,
    };
    bool is_frozen = !hook_table_tokens(model->options.hooks)->count &&
                     !param_trains(&model->store, model->token_table) &&
                     !(has_positions && param_trains(&model->store, model->position_table));
    if (status || is_frozen)
        return status;
    struct virtuals virtuals = borrow_virtuals(model);
    call.first_virtual = model->options.config.vocab_size;
    for (int i = 0; i < (virtuals.count ? virtuals.count : 1) && !status; i++) {
        call.virtual_tokens = virtuals.rows[i].tokens;
        call.dvirtual_table = virtuals.rows[i].gradient;
        status = rank_run(model->rank, PHASE_REST, embedding_backward, &call);
        call.first_virtual += call.virtual_tokens;
        call.dtoken_table = call.dposition_table = NULL; /* virtual tokens have gradients of their methods */
    }
    return_virtuals(model);
    return status;
}

static void *row_at(const struct model *model, void *base, int64_t row) {
    size_t bytes = (size_t)model->options.config.hidden_size * dtype_bytes(model->options.dtype);
    return base ? (char *)base + (size_t)row * bytes : NULL;
}

static struct linear_call head_call(struct model *model, int64_t first, int64_t count) {
    static const struct hook_list no_hooks;
    bool is_cut = model->rank->is_sequence_parallel;
    return (struct linear_call){
        .rank = model->rank,
        .store = &model->store,
        .hooks = &no_hooks,
        .dtype = model->options.dtype,
        .mixes_rows = true,
        .rows = count,
        .x = row_at(model, is_cut ? model->scratch.whole : model->scratch.final, first),
        .y = model->scratch.logits,
        .y_stride = model->share.vocab_stride,
        .dy = model->scratch.logits,
        .dx = row_at(model, is_cut ? model->gradients.whole : model->gradients.norm, first),
    };
}

int head_logits(struct model *model, int64_t first, int64_t count) {
    struct linear_call call = head_call(model, first, count);
    return linear_forward(&model->head, &call);
}

/* Joins the losses of a vocabulary that is cut over ranks. The ranks exchange four numbers per row, never logits. */
int head_join_loss(struct model *model, const struct cross_entropy *call, bool train) {
    struct rank *rank = model->rank;
    struct cross_entropy partial = *call, whole = *call;
    partial.part = model->scratch.parts + (int64_t)rank->place.tensor * call->rows;
    whole.part = model->scratch.joined;
    const struct cross_entropy_join join = {whole, rank->grid.tensor, model->scratch.parts};
    int status = rank_run(rank, PHASE_LOSS, cross_entropy_part, &partial);
    if (!status)
        status = rank_gather(rank, RANK_TENSOR, partial.part, model->scratch.parts,
                             call->rows * (int64_t)(sizeof *partial.part / sizeof(double)), DTYPE_F64);
    THEN(status, rank_run(rank, PHASE_LOSS, cross_entropy_join, &join));
    return status || !train ? status : rank_run(rank, PHASE_LOSS, cross_entropy_part_backward, &whole);
}

static int chunk_loss(const struct pass *pass, int64_t first, int64_t count, bool train) {
    struct model *model = pass->model;
    struct cross_entropy call = {
        .rows = count,
        .vocab = model->share.vocab,
        .first_label = model->share.first_token,
        .stride = model->share.vocab_stride,
        .type = model->options.dtype,
        .logits = model->scratch.logits,
        .labels = pass->batch->head.labels + first,
        .loss = model->scratch.losses + first,
        .dloss = pass->batch->head.loss_weight + first,
    };
    if (model->rank->grid.tensor > 1)
        return head_join_loss(model, &call, train);
    return train ? rank_run(model->rank, PHASE_LOSS, cross_entropy_fused, &call)
                 : rank_run(model->rank, PHASE_LOSS, cross_entropy_forward, &call);
}

/* Computes the final norm of the head's rows, where the head reads it. */
static int final_norm_forward(const struct pass *pass) {
    const struct model *model = pass->model;
    const struct model_scratch *scratch = &model->scratch;
    const void *whole;
    if (!pass->batch->head.is_all)
        return head_rows_forward(pass);
    int status = norm_forward(model, &model->final_norm,
                              &(const struct norm){.rows = rank_stream_rows(model->rank, pass->rows),
                                                   .x = pass->stash->x_last,
                                                   .y = scratch->final,
                                                   .mean = scratch->final_mean,
                                                   .rstd = scratch->final_rstd});
    return status ? status : gather_stream(pass, scratch->final, &whole);
}

/* Computes pass->d from the head's gradient. */
static int final_norm_backward(const struct pass *pass) {
    const struct model *model = pass->model;
    const struct model_scratch *scratch = &model->scratch;
    void *norm = model->gradients.norm;
    if (!pass->batch->head.is_all)
        return head_rows_backward(pass);
    int status = sum_stream(pass, model->rank->is_sequence_parallel ? model->gradients.whole : norm, norm);
    return status ? status
                  : norm_backward(model, &model->final_norm,
                                  &(const struct norm){.rows = rank_stream_rows(model->rank, pass->rows),
                                                       .x = pass->stash->x_last,
                                                       .mean = scratch->final_mean,
                                                       .rstd = scratch->final_rstd,
                                                       .dy = norm,
                                                       .dx = pass->d});
}

/* Runs the head and its loss over rows [first, first + count) of the head's rows, and with `train` the backward. */
static int head_chunk(const struct pass *pass, int64_t first, int64_t count, bool train, bool overwrite_gradients) {
    struct model *model = pass->model;
    int status = head_logits(model, first, count);
    THEN(status, chunk_loss(pass, first, count, train));
    struct linear_call call = head_call(model, first, count);
    call.overwrite_gradients = overwrite_gradients;
    return status || !train ? status : linear_backward(&model->head, &call);
}

/* Plans every number of rows that a partial chunk can have. The data decides which one occurs, and nothing may be
 * prepared inside a step. */
static int plan_few_rows(const struct pass *pass, bool train) {
    const struct ops_sizes *sizes = model_sizes(pass->model);
    int64_t multiple = sizes->head_rows_multiple;
    int status = STATUS_OK;
    rank_unsure(pass->model->rank, true, 1);
    for (int64_t count = multiple; count <= sizes->head_rows && count < pass->rows && !status; count += multiple) {
        status = head_chunk(pass, 0, count, train, true);
        THEN(status, head_chunk(pass, 0, count, train, false));
    }
    rank_unsure(pass->model->rank, true, -1);
    return status;
}

int head_pass(const struct pass *pass, bool train) {
    const struct head_rows *head = &pass->batch->head;
    const struct model *model = pass->model;
    int64_t most = model_sizes(model)->head_rows;
    int status = final_norm_forward(pass);
    for (int64_t first = 0; first < head->count && !status; first += most) {
        int64_t count = head->count - first < most ? head->count - first : most;
        status = head_chunk(pass, first, count, train, pass->asked.is_first_micro_batch && first == 0);
    }
    if (!status && model->rank->is_planning && pass->rows == model->options.max_rows)
        status = plan_few_rows(pass, train);
    const struct weighted_sum loss = {.count = head->count,
                                      .x = model->scratch.losses,
                                      .weight = head->loss_weight,
                                      .accumulate = true,
                                      .sum = model->scratch.loss_sum};
    THEN(status, rank_run(model->rank, PHASE_LOSS, weighted_sum, &loss));
    return status || !train ? status : final_norm_backward(pass);
}
