/* One step of inference: a flat plan of rows through the same blocks, over the paged cache. A stage of a pipeline takes
 * the rows of the stage before and sends them on; the next step's may come while a later stage is at work. */
#include "model-internal.h"

#include "parallel/schedule.h"

#include <string.h>

int64_t model_kv_page_elements(const struct model *model) {
    const struct model_widths *widths = &model->share.widths;
    return model->rank->ops->kv_page_elements(model->rank->device, (int)widths->query_groups, (int)widths->head,
                                              model->options.dtype);
}

static size_t kv_page_bytes(const struct model *model) {
    return (size_t)model_kv_page_elements(model) * dtype_bytes(model->options.dtype);
}

size_t model_kv_bytes(const struct model *model, int64_t page_count) {
    return (size_t)model_layers(model) * (size_t)page_count * kv_page_bytes(model);
}

int model_kv_copy_page(struct model *model, const struct model_kv *kv, int32_t from, int32_t to) {
    size_t page = kv_page_bytes(model);
    int status = STATUS_OK;
    for (int64_t layer = 0; layer < model_layers(model) && !status; layer++) {
        char *pages = (char *)kv->pages + (size_t)(layer * kv->page_count) * page;
        status = stream_copy(model->rank->exec.stream, pages + (size_t)to * page, pages + (size_t)from * page, page);
    }
    return status;
}

int model_kv_put_prefix(struct model *model, const struct model_kv *kv, const struct model_prefix_rows *rows) {
    int64_t count = rows->count;
    struct stream *stream = model->rank->exec.stream;
    int64_t end = model_first_layer(model) + model_layers(model);
    if (count > model->options.max_rows)
        return status_fail(STATUS_INVALID, "more tokens of a prefix than the model was opened for");
    const int32_t *there = NULL;
    int status = upload_begin(&model->upload, model->step.block);
    if (!status) {
        there = upload_add(&model->upload, rows->place, (size_t)count * sizeof *rows->place);
        status = upload_end(&model->upload, stream);
    }
    for (int64_t layer = model_first_layer(model); layer < end && !status; layer++) {
        struct hook_prefix prefix;
        struct kv_append append = block_append_call(model, kv, there, layer, count);
        append.k_stride = append.v_stride = (int64_t)append.kv_heads * append.head_size;
        size_t skipped = (size_t)(rows->first * append.k_stride) * dtype_bytes(append.type);
        status = block_prefix(model, layer, rows->image, &prefix);
        append.k = (const char *)prefix.k + skipped;
        append.v = (const char *)prefix.v + skipped;
        if (!status)
            status = rank_run(model->rank, PHASE_ATTENTION, kv_append, &append);
    }
    return status ? status : stream_wait(stream);
}

/* The rows of the residual stream between two stages. */
static int receive_rows(struct model *model, int64_t rows, void *x) {
    struct rank *rank = model->rank;
    int begun = rank_phase_begin(rank);
    struct comm_data data = {.receive = x,
                             .count = rows * model->options.config.hidden_size,
                             .dtype = model->options.dtype,
                             .stream = rank->exec.stream};
    int status =
        rank->is_planning ? STATUS_OK : comm_receive(rank->pipeline[PIPELINE_FORWARD], &data, rank->place.pipeline - 1);
    return rank_phase_end(rank, PHASE_COMM, begun, status);
}

static int send_rows(struct model *model, int64_t rows, const void *x) {
    struct rank *rank = model->rank;
    int begun = rank_phase_begin(rank);
    struct comm_data data = {.send = x,
                             .count = rows * model->options.config.hidden_size,
                             .dtype = model->options.dtype,
                             .stream = rank->exec.stream};
    int status =
        rank->is_planning ? STATUS_OK : comm_send(rank->pipeline[PIPELINE_FORWARD], &data, rank->place.pipeline + 1);
    return rank_phase_end(rank, PHASE_COMM, begun, status);
}

/* The blocks, and the logits of the wanted rows in step.logits of the last stage. */
static int run(const struct pass *pass, int64_t wanted) {
    struct model *model = pass->model;
    const struct model_stash *stash = pass->stash;
    const struct device_step *step = pass->step;
    int64_t layers = pass->chunk->count;
    int status = model->share.has_embedding ? embedding_pass_forward(pass, stash->saved[0].x)
                                            : receive_rows(model, pass->rows, stash->saved[0].x);
    for (int64_t layer = 0; layer < layers && !status; layer++) {
        struct block_pass block = {
            .pass = pass,
            .layer = pass->chunk->first + layer,
            .saved = &stash->saved[layer],
            .out = layer + 1 == layers ? stash->x_last : stash->saved[layer + 1].x,
        };
        status = block_forward(&block);
    }
    if (!status && !model->share.has_head)
        return send_rows(model, pass->rows, stash->x_last);
    if (status || wanted == 0)
        return status;
    status = rank_run(model->rank, PHASE_REST, gather_rows, wanted, model->options.config.hidden_size,
                      model->options.dtype, stash->x_last, step->logit_row, step->rows);
    if (!status)
        status = norm_forward(model, &model->final_norm, wanted, step->rows, step->rows, NULL, NULL);
    struct linear_call head = {
        .rank = model->rank,
        .store = &model->store,
        .hooks = hook_table_list(NULL, 0, ATTACH_QKV),
        .dtype = model->options.dtype,
        .y_dtype_is_fp32 = true, /* log-probabilities deserve more than 8 bits */
        .rows = wanted,
        .x = step->rows,
        .y = step->logits,
        .y_stride = model->share.vocab_stride,
    };
    return status ? status : linear_forward(&model->head, &head);
}

/* Drawing for rows [first, first + count) of those that are wanted, from `logits` of the whole vocabulary. */
static struct sample sample_call(const struct model *model, int64_t first, int64_t count, const float *logits) {
    return (struct sample){
        .rows = count,
        .vocab = model->options.config.vocab_size,
        .stride = model->share.whole_vocab_stride,
        .type = DTYPE_F32,
        .logits = logits,
        .row = model->step.sample + first,
        .changes = model->step.changes,
        .token = model->step.drawn + first,
        .logprob = model->step.logprob + first,
    };
}

/* One row's logits of every tensor rank, to the first one's `whole` [V]. */
static int collect_row(struct model *model, const float *own, float *whole) {
    struct rank *rank = model->rank;
    struct stream *stream = rank->exec.stream;
    int64_t V = model->options.config.vocab_size;
    struct comm_data data = {.send = own, .count = model->share.vocab, .dtype = DTYPE_F32, .stream = stream};
    if (rank->place.tensor > 0)
        return comm_send(rank->tensor, &data, 0);
    int status = stream_copy(stream, whole, own, (size_t)model->share.vocab * sizeof *whole);
    for (int t = 1; t < rank->grid.tensor && !status; t++) {
        int64_t first = param_share(V, t, rank->grid.tensor), end = param_share(V, t + 1, rank->grid.tensor);
        data = (struct comm_data){.receive = whole + first, .count = end - first, .dtype = DTYPE_F32, .stream = stream};
        status = comm_receive(rank->tensor, &data, t);
    }
    return status;
}

/* A pass of so many rows through the one chunk. */
static struct pass pass_of(struct model *model, const struct model_kv *kv, int64_t rows) {
    const struct model_stash *stash = model_stash(model, 0);
    return (struct pass){
        .model = model,
        .chunk = &model->options.chunks[0],
        .stash = stash,
        .batch = &stash->batch,
        .rows = rows,
        .kv = kv,
        .step = &model->step,
    };
}

int model_plan_step(struct model *model, int64_t rows) {
    int64_t wanted = rows < model->options.max_logit_rows ? rows : model->options.max_logit_rows;
    struct model_kv kv = {.page_count = 1};
    struct pass pass = pass_of(model, &kv, rows);
    pass.max_pages = model->options.max_pages;
    int status = run(&pass, wanted);
    if (model->rank->grid.tensor > 1 && wanted > DRAW_CHUNK_ROWS)
        wanted = DRAW_CHUNK_ROWS;
    struct sample call = sample_call(model, 0, wanted, NULL);
    bool draws = model->share.has_head && model->rank->place.tensor == 0;
    return status || !draws ? status : rank_run_scratch(model->rank, PHASE_REST, sample, &call);
}

static int upload_step(struct model *model, const struct model_step *step) {
    const struct model_options *o = &model->options;
    if (step->rows < 1 || step->rows > o->max_rows || step->logit_rows > o->max_logit_rows ||
        step->sequences > o->max_sequences || step->max_pages > o->max_pages ||
        step->change_count > model_max_changes(&o->config, o->max_logit_rows))
        return status_fail(STATUS_INVALID, "an engine step beyond what the model was opened for");
    struct device_step *device = &model->step;
    struct device_batch *batch = &model_stash(model, 0)->batch;
    struct upload *upload = &model->upload;
    size_t rows = (size_t)step->rows * sizeof(int32_t), wanted = (size_t)step->logit_rows * sizeof(int32_t);
    int status = upload_begin(upload, device->block);
    if (status)
        return status;
    batch->tokens = upload_add(upload, step->tokens, rows);
    batch->positions = upload_add(upload, step->positions, rows);
    device->sequence = upload_add(upload, step->sequence, rows);
    device->cached = upload_add(upload, step->cached, rows);
    device->place = upload_add(upload, step->place, rows);
    device->page_table =
        upload_add(upload, step->page_table, (size_t)(step->sequences * step->max_pages) * sizeof(int32_t));
    if (model->share.has_head && wanted) {
        device->logit_row = upload_add(upload, step->logit_row, wanted);
        if (step->labels)
            batch->head.labels = upload_add(upload, step->labels, wanted);
        if (step->sample)
            device->sample = upload_add(upload, step->sample, (size_t)step->logit_rows * sizeof *step->sample);
        if (step->change_count)
            device->changes = upload_add(upload, step->changes, (size_t)step->change_count * sizeof *step->changes);
        device->drawn = device->results;
        device->logprob = (float *)device->results + step->logit_rows;
        device->label_loss = device->logprob + step->logit_rows;
    }
    return upload_end(upload, model->rank->exec.stream);
}

static int find_label_losses(const struct pass *pass, int64_t rows) {
    struct model *model = pass->model;
    struct cross_entropy call = {
        .rows = rows,
        .vocab = model->share.vocab,
        .first_label = model->share.first_token,
        .stride = model->share.vocab_stride,
        .type = DTYPE_F32,
        .logits = model->step.logits,
        .labels = pass->batch->head.labels,
        .loss = model->step.label_loss,
    };
    return model->rank->grid.tensor > 1 ? head_join_loss(model, &call, false)
                                        : rank_run(model->rank, PHASE_LOSS, cross_entropy_forward, &call);
}

/* The vocabulary is cut over the tensor ranks. top-k and top-p need the whole one, and the draw must be that of a rank
 * alone, bit for bit: the few rows that are drawn for go to the first tensor rank. */
static int draw_from_parts(struct model *model, int64_t wanted) {
    struct rank *rank = model->rank;
    int status = STATUS_OK;
    for (int64_t first = 0; first < wanted && !status; first += DRAW_CHUNK_ROWS) {
        int64_t count = wanted - first < DRAW_CHUNK_ROWS ? wanted - first : DRAW_CHUNK_ROWS;
        int begun = rank_phase_begin(rank);
        for (int64_t i = 0; i < count && !status; i++)
            status = collect_row(model, model->step.logits + (first + i) * model->share.vocab_stride,
                                 rank->place.tensor ? NULL : model->step.whole + i * model->share.whole_vocab_stride);
        status = rank_phase_end(rank, PHASE_COMM, begun, status);
        struct sample call = sample_call(model, first, count, model->step.whole);
        if (!status && rank->place.tensor == 0)
            status = rank_run(rank, PHASE_REST, sample, &call);
    }
    return status;
}

static int draw(struct model *model, int64_t rows) {
    struct sample call = sample_call(model, 0, rows, model->step.logits);
    return model->rank->grid.tensor > 1 ? draw_from_parts(model, rows)
                                        : rank_run(model->rank, PHASE_REST, sample, &call);
}

/* In one copy, which waits for the step. */
static int fetch_results(struct model *model, const struct model_step *step, const struct model_step_result *result) {
    struct stream *stream = model->rank->exec.stream;
    int64_t rows = step->logit_rows;
    int status = stream_copy_to_host(stream, model->step.fetched, model->step.results, model_results_bytes(rows));
    if (!status)
        status = stream_wait(stream);
    if (status)
        return status;
    const float *logprob = (const float *)model->step.fetched + rows, *label_loss = logprob + rows;
    if (step->sample) {
        memcpy(result->token, model->step.fetched, (size_t)rows * sizeof *result->token);
        if (result->logprob)
            memcpy(result->logprob, logprob, (size_t)rows * sizeof *logprob);
    }
    for (int64_t i = 0; i < rows && step->labels; i++)
        result->label_logprob[i] = -label_loss[i];
    return STATUS_OK;
}

int model_infer(struct model *model, const struct model_kv *kv, const struct model_step *step,
                const struct model_step_result *result) {
    struct pass pass = pass_of(model, kv, step->rows);
    pass.max_pages = step->max_pages;
    int status = upload_step(model, step);
    if (!status)
        status = run(&pass, step->logit_rows);
    param_check_returned(&model->store, "a step of inference");
    bool has_results = model->share.has_head && step->logit_rows && (step->labels || step->sample);
    if (!status && has_results && step->labels)
        status = find_label_losses(&pass, step->logit_rows);
    if (!status && has_results && step->sample)
        status = draw(model, step->logit_rows);
    if (status)
        return status;
    return has_results ? fetch_results(model, step, result) : stream_wait(model->rank->exec.stream);
}
