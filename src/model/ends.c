/* The two ends of the model: the embedding, and the head with its loss.
 *
 * The head never holds all logits. It processes the rows in chunks. During training it replaces each chunk's logits by
 * their gradient in place, so forward and backward of the head are one pass. */
#include "model-internal.h"

/* Sets *whole [N, C] to all rows of the stream: scratch.whole if they are cut, else `part` itself. */
static int gather_stream(const struct pass *pass, const void *part, const void **whole) {
    const struct runner *run = pass->run;
    struct rank *rank = run->rank;
    *whole = rank->is_sequence_parallel ? run->scratch.whole : part;
    if (!rank->is_sequence_parallel)
        return STATUS_OK;
    return rank_gather(rank, RANK_TENSOR, part, run->scratch.whole,
                       rank_stream_rows(rank, pass->rows) * run->base->options.config.hidden_size,
                       run->base->options.dtype);
}

static double embedding_dropout(const struct pass *pass) {
    const struct model_config *c = &pass->run->base->options.config;
    return !pass->asked.has_dropout ? 0 : c->embedding_dropout < 0 ? c->hidden_dropout : c->embedding_dropout;
}

/* The methods' virtual tokens, borrowed until they are returned. */
struct virtuals {
    int count;
    struct hook_virtual rows[HOOKS_PER_PLACE];
    int64_t tokens; /* of all */
};

static struct virtuals borrow_virtuals(const struct runner *run) {
    const struct token_list *hooks = hook_table_tokens(run->hooks);
    struct virtuals virtuals = {0};
    for (int i = 0; i < hooks->count; i++) {
        struct hook_virtual *rows = &virtuals.rows[virtuals.count++];
        hooks->hook[i].borrow_rows(hooks->hook[i].self, rows);
        virtuals.tokens += rows->tokens;
    }
    return virtuals;
}

static void return_virtuals(const struct runner *run) {
    const struct token_list *hooks = hook_table_tokens(run->hooks);
    for (int i = 0; i < hooks->count; i++)
        hooks->hook[i].return_rows(hooks->hook[i].self);
}

static size_t virtual_bytes(const struct runner *run, int64_t tokens) {
    return (size_t)(tokens * run->base->options.config.hidden_size) * dtype_bytes(run->base->options.dtype);
}

size_t embedding_virtual_bytes(const struct runner *run) {
    struct virtuals virtuals = borrow_virtuals(run);
    return_virtuals(run);
    return virtuals.count > 1 && run->rank->place.tensor == 0 ? virtual_bytes(run, virtuals.tokens) : 0;
}

int64_t embedding_ids(const struct runner *run) {
    struct virtuals virtuals = borrow_virtuals(run);
    return_virtuals(run);
    return run->base->options.config.vocab_size + virtuals.tokens;
}

/* Finds the rows of all methods as one table: the only method's table, or copies one after the other. Each rank has all
 * of them, but only one may add them. */
static int find_virtual_table(const struct runner *run, const struct virtuals *virtuals, const void **table) {
    char *to = run->scratch.virtual_rows;
    int status = STATUS_OK;
    bool is_first = run->rank->place.tensor == 0;
    *table = !is_first ? NULL : virtuals->count > 1 ? to : virtuals->rows[0].table;
    if (!is_first || virtuals->count < 2 || run->rank->is_planning)
        return STATUS_OK;
    for (int i = 0; i < virtuals->count && !status; i++) {
        size_t bytes = virtual_bytes(run, virtuals->rows[i].tokens);
        status = stream_copy(run->rank->exec.stream, to, virtuals->rows[i].table, bytes);
        to += bytes;
    }
    return status;
}

int embedding_pass_forward(const struct pass *pass, void *x) {
    const struct runner *run = pass->run;
    bool has_positions = run->base->position_table != PARAM_NONE;
    struct matrix_view tokens = param_borrow_rows(&run->base->store, run->base->token_table), positions = {0};
    if (has_positions)
        positions = param_borrow(&run->base->store, run->base->position_table);
    struct embedding call = {
        .rows = pass->rows,
        .cols = run->base->options.config.hidden_size,
        .type = run->base->options.dtype,
        .first_token = run->base->part.first_token,
        .token_count = run->base->part.vocab,
        .tokens = pass->batch->tokens,
        .positions = pass->batch->positions,
        .token_table = tokens,
        .position_table = positions.data,
        .x = run->rank->is_sequence_parallel ? run->scratch.whole : x,
    };
    struct virtuals virtuals = borrow_virtuals(run);
    call.first_virtual = run->base->options.config.vocab_size;
    call.virtual_tokens = virtuals.tokens;
    int status = find_virtual_table(run, &virtuals, &call.virtual_table);
    THEN(status, rank_run(run->rank, PHASE_REST, embedding_forward, &call));
    return_virtuals(run);
    param_return(&run->base->store, run->base->token_table);
    if (has_positions)
        param_return(&run->base->store, run->base->position_table);
    THEN(status, rank_sum_stream(pass->run->rank, call.x, x, pass->rows, pass->run->base->options.config.hidden_size,
                                 pass->run->base->options.dtype));
    double p = embedding_dropout(pass);
    THEN_IF(status, p > 0, dropout_forward(pass, p, 0, NULL, x, x));
    return status;
}

int embedding_pass_backward(const struct pass *pass) {
    const struct runner *run = pass->run;
    double p = embedding_dropout(pass);
    int status = p > 0 ? dropout_backward(pass, p, 0, pass->d, pass->d) : STATUS_OK;
    const void *whole = pass->d;
    bool has_positions = run->base->position_table != PARAM_NONE;
    THEN(status, gather_stream(pass, pass->d, &whole));
    struct embedding call = {
        .rows = pass->rows,
        .cols = run->base->options.config.hidden_size,
        .type = run->base->options.dtype,
        .first_token = run->base->part.first_token,
        .token_count = run->base->part.vocab,
        .tokens = pass->batch->tokens,
        .positions = pass->batch->positions,
        .dx = whole,
        .dtoken_table = param_gradient(&run->base->store, run->base->token_table),
        .dposition_table = has_positions ? param_gradient(&run->base->store, run->base->position_table) : NULL,
    };
    bool is_frozen = !hook_table_tokens(run->hooks)->count &&
                     !param_trains(&run->base->store, run->base->token_table) &&
                     !(has_positions && param_trains(&run->base->store, run->base->position_table));
    if (status || is_frozen)
        return status;
    struct virtuals virtuals = borrow_virtuals(run);
    call.first_virtual = run->base->options.config.vocab_size;
    for (int i = 0; i < (virtuals.count ? virtuals.count : 1) && !status; i++) {
        call.virtual_tokens = virtuals.rows[i].tokens;
        call.dvirtual_table = virtuals.rows[i].gradient;
        status = rank_run(run->rank, PHASE_REST, embedding_backward, &call);
        call.first_virtual += call.virtual_tokens;
        call.dtoken_table = call.dposition_table = NULL; /* virtual tokens have gradients of their methods */
    }
    return_virtuals(run);
    return status;
}

enum dtype head_logits_type(const struct runner *run) {
    return device_is_batch_invariant(run->rank->device) ? DTYPE_F32 : run->base->options.dtype;
}

int64_t head_rows_most(const struct runner *run) {
    const struct ops_sizes *sizes = model_sizes(run);
    bool is_cut = head_logits_type(run) != run->base->options.dtype && !run->base->options.trains;
    int64_t most =
        is_cut && sizes->head_rows / 4 % sizes->head_rows_multiple == 0 ? sizes->head_rows / 4 : sizes->head_rows;
    return run->head_rows && run->head_rows < most ? run->head_rows : most;
}

size_t head_hook_saved_bytes(const struct runner *run) {
    int64_t most = head_rows_most(run);
    const struct hook_call call = {.rank = run->rank,
                                   .place = ATTACH_HEAD,
                                   .dtype = run->base->options.dtype,
                                   .rows = run->max_rows < most ? run->max_rows : most,
                                   .in = run->base->options.config.hidden_size,
                                   .out = run->base->part.vocab};
    return hook_list_saved_bytes(head_hooks(run), &call);
}

/* Returns the keys of dropout for the head's rows from `first` on. */
static struct row_keys head_keys(const struct pass *pass, int64_t first) {
    const struct row_keys *keys = &pass->batch->head.keys;
    if (!pass->asked.has_dropout || !keys->sample)
        return (struct row_keys){0};
    return (struct row_keys){.sample = keys->sample + first, .token = keys->token + first};
}

/* `logits`: the place of the first row's. */
static struct linear_call head_call(const struct pass *pass, int64_t first, int64_t count, void *logits) {
    struct runner *run = pass->run;
    bool is_cut = run->rank->is_sequence_parallel;
    return (struct linear_call){
        .rank = run->rank,
        .store = &run->base->store,
        .hooks = head_hooks(run),
        .hook = {.layer = (int)run->base->options.config.num_layers,
                 .place = ATTACH_HEAD,
                 .keys = head_keys(pass, first),
                 .saved = run->scratch.head_hooks},
        .dtype = run->base->options.dtype,
        .y_dtype_is_fp32 = head_logits_type(run) == DTYPE_F32,
        .rows = count,
        .x = model_row(run, is_cut ? run->scratch.whole : run->scratch.final, first),
        .y = logits,
        .y_stride = run->base->part.vocab_stride,
        .dy = logits,
        .dx = model_row(run, is_cut ? run->gradients.whole : run->gradients.norm, first),
    };
}

int head_logits(const struct pass *pass, int64_t first, int64_t count) {
    struct linear_call call = head_call(pass, first, count, pass->run->scratch.logits);
    return linear_forward(&pass->run->base->head, &call);
}

/* Joins the losses of a vocabulary that is cut over ranks. The ranks exchange four numbers per row, never logits. */
int head_join_loss(struct runner *run, const struct cross_entropy *call, bool train) {
    struct rank *rank = run->rank;
    struct cross_entropy partial = *call, whole = *call;
    partial.part = run->scratch.parts + (int64_t)rank->place.tensor * call->rows;
    whole.part = run->scratch.joined;
    const struct cross_entropy_join join = {whole, rank->grid.tensor, run->scratch.parts};
    int status = rank_run(rank, PHASE_LOSS, cross_entropy_part, &partial);
    THEN(status, rank_gather(rank, RANK_TENSOR, partial.part, run->scratch.parts,
                             call->rows * (int64_t)(sizeof *partial.part / sizeof(double)), DTYPE_F64));
    THEN(status, rank_run(rank, PHASE_LOSS, cross_entropy_join, &join));
    return status || !train ? status : rank_run(rank, PHASE_LOSS, cross_entropy_part_backward, &whole);
}

static int chunk_loss(const struct pass *pass, int64_t first, int64_t count, void *logits, bool train) {
    struct runner *run = pass->run;
    struct cross_entropy call = {
        .rows = count,
        .vocab = run->base->part.vocab,
        .first_label = run->base->part.first_token,
        .stride = run->base->part.vocab_stride,
        .type = head_logits_type(run),
        .gradient_is_bf16 = head_logits_type(run) != run->base->options.dtype,
        .logits = logits,
        .labels = pass->batch->head.labels + first,
        .loss = run->scratch.losses + first,
        .dloss = pass->batch->head.loss_weight + first,
    };
    if (run->rank->grid.tensor > 1)
        return head_join_loss(run, &call, train);
    return train ? rank_run(run->rank, PHASE_LOSS, cross_entropy_fused, &call)
                 : rank_run(run->rank, PHASE_LOSS, cross_entropy_forward, &call);
}

int final_norm_forward(const struct pass *pass) {
    const struct runner *run = pass->run;
    const struct model_scratch *scratch = &run->scratch;
    const void *whole;
    if (!pass->batch->head.is_all)
        return head_rows_forward(pass);
    int status = norm_forward(run, &run->base->final_norm,
                              &(const struct norm){.rows = rank_stream_rows(run->rank, pass->rows),
                                                   .x = pass->stash->x_last,
                                                   .y = scratch->final,
                                                   .mean = scratch->final_mean,
                                                   .rstd = scratch->final_rstd});
    return status ? status : gather_stream(pass, scratch->final, &whole);
}

/* Computes pass->d from the head's gradient. */
static int final_norm_backward(const struct pass *pass) {
    const struct runner *run = pass->run;
    const struct model_scratch *scratch = &run->scratch;
    void *norm = run->gradients.norm;
    if (!pass->batch->head.is_all)
        return head_rows_backward(pass);
    void *partial = run->rank->is_sequence_parallel ? run->gradients.whole : norm;
    int status = rank_sum_stream(run->rank, partial, norm, pass->rows, run->base->options.config.hidden_size,
                                 run->base->options.dtype);
    return status ? status
                  : norm_backward(run, &run->base->final_norm,
                                  &(const struct norm){.rows = rank_stream_rows(run->rank, pass->rows),
                                                       .x = pass->stash->x_last,
                                                       .mean = scratch->final_mean,
                                                       .rstd = scratch->final_rstd,
                                                       .dy = norm,
                                                       .dx = pass->d});
}

/* Gives the losses of the head's rows to the caller, and takes their gradients as weights. */
static int weigh_rows(const struct pass *pass, bool train) {
    const struct head_rows *head = &pass->batch->head;
    struct stream *stream = pass->run->rank->exec.stream;
    float *losses = pass->training->row_losses, *values = losses + pass->run->max_rows;
    size_t bytes = (size_t)head->count * sizeof *values;
    int status = stream_copy_to_host(stream, losses, pass->run->scratch.losses, bytes);
    THEN(status, stream_wait(stream));
    if (!status)
        memcpy(values, losses, bytes); /* a copy of values to the device may wait while losses arrive */
    THEN(status, pass->asked.weigh(pass->asked.context, head->count, values));
    return status || !train ? status : stream_copy_to_device(stream, (void *)head->loss_weight, values, bytes);
}

/* Runs the head and its loss over rows [first, first + count) of the head's rows, and with `train` the backward. */
static int head_chunk(const struct pass *pass, int64_t first, int64_t count, bool train, bool overwrite_gradients) {
    struct runner *run = pass->run;
    const struct head_rows *head = &pass->batch->head;
    bool is_kept = head->count <= head_rows_most(run);
    bool has_logits = pass->asked.weigh && train && is_kept && !head_hooks(run)->count; /* whose results are not kept */
    size_t at = is_kept ? (size_t)(first * run->base->part.vocab_stride) * dtype_bytes(head_logits_type(run)) : 0;
    struct linear_call call = head_call(pass, first, count, (char *)run->scratch.logits + at);
    int status = has_logits ? STATUS_OK : linear_forward(&run->base->head, &call);
    THEN(status, chunk_loss(pass, first, count, call.y, train));
    call.overwrite_gradients = overwrite_gradients;
    if (head_logits_type(run) != call.dtype) /* bf16 rows lie where the fp32 logits were */
        call.y_stride *= 2;
    return status || !train ? status : linear_backward(&run->base->head, &call);
}

/* Plans every number of rows that a partial chunk can have. The data decides which one occurs, and nothing may be
 * prepared inside a step. */
static int plan_few_rows(const struct pass *pass, bool train) {
    const struct ops_sizes *sizes = model_sizes(pass->run);
    int64_t multiple = sizes->head_rows_multiple, most = head_rows_most(pass->run);
    int status = STATUS_OK;
    rank_unsure(pass->run->rank, true, 1);
    for (int64_t count = multiple; count <= most && count < pass->rows && !status; count += multiple) {
        status = head_chunk(pass, 0, count, train, true);
        THEN(status, head_chunk(pass, 0, count, train, false));
    }
    rank_unsure(pass->run->rank, true, -1);
    return status;
}

static int head_chunks(const struct pass *pass, bool train) {
    const struct head_rows *head = &pass->batch->head;
    const struct model_config *c = &pass->run->base->options.config;
    double weights = (double)(c->hidden_size * c->vocab_size / pass->run->rank->grid.tensor), products = train ? 2 : 1;
    struct slice_rows next = {SLICE_HEAD, 0, products * 2 * SLICE_BYTE * weights, products * 2 * weights};
    int64_t most = head_rows_most(pass->run), count;
    const struct linear_call call = head_call(pass, 0, most, NULL);
    bool cuts_columns = linear_cuts_columns(&pass->run->base->head, &call);
    int status = STATUS_OK;
    for (int64_t first = 0; first < head->count && !status; first += count) {
        count = head->count - first < most ? head->count - first : most;
        next.rows = count;
        if (!cuts_columns)
            TRY(rank_pause_rows(pass->run->rank, &next, &count));
        status = head_chunk(pass, first, count, train, pass->asked.is_first_micro_batch && first == 0);
    }
    return status;
}

/* A loss that weighs its rows needs all their losses before any gradient. If the logits of all rows have a place, they
 * are still there; otherwise they are made again. */
static int head_weighed(const struct pass *pass, bool train) {
    int status = final_norm_forward(pass);
    THEN(status, head_chunks(pass, false));
    THEN(status, weigh_rows(pass, train));
    THEN_IF(status, train, head_chunks(pass, true));
    return status || !train ? status : final_norm_backward(pass);
}

int head_pass(const struct pass *pass, bool train) {
    const struct head_rows *head = &pass->batch->head;
    const struct runner *run = pass->run;
    if (pass->asked.weigh)
        return head_weighed(pass, train);
    int status = final_norm_forward(pass);
    THEN(status, head_chunks(pass, train));
    THEN_IF(status, run->rank->is_planning && pass->rows == run->max_rows, plan_few_rows(pass, train));
    const struct weighted_sum loss = {.count = head->count,
                                      .x = run->scratch.losses,
                                      .weight = head->loss_weight,
                                      .accumulate = true,
                                      .sum = run->scratch.loss_sum};
    THEN(status, rank_run(run->rank, PHASE_LOSS, weighted_sum, &loss));
    return status || !train ? status : final_norm_backward(pass);
}
