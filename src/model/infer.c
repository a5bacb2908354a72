/* One step of inference: flat rows through the same blocks as in training, over the paged cache. A pipeline stage
 * receives the rows of the stage before it and sends them to the next one. It may start the next step while a later
 * stage still works on this one. */
#include "model-internal.h"

#include "parallel/schedule.h"

#include <string.h>

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
        struct kv_append append = model_kv_append(model, kv, there, layer, count);
        append.k_stride = append.v_stride = (int64_t)append.kv_heads * append.head_size;
        size_t skipped = (size_t)(rows->first * append.k_stride) * dtype_bytes(append.type);
        status = block_prefix(model, layer, rows->image, &prefix);
        append.k = (const char *)prefix.k + skipped;
        append.v = (const char *)prefix.v + skipped;
        THEN(status, rank_run(model->rank, PHASE_ATTENTION, kv_append, &append));
    }
    return status ? status : stream_wait(stream);
}

/* Receives rows of the residual stream from the stage before. */
static int receive_rows(struct model *model, int64_t rows, void *x) {
    struct rank *rank = model->rank;
    int begun = rank_phase_begin(rank);
    struct comm_data data = {.receive = x,
                             .count = rows * model->options.config.hidden_size,
                             .dtype = model->options.dtype,
                             .stream = rank->exec.stream};
    int status = rank->is_planning ? STATUS_OK /* the sender's plan has them */
                                   : comm_receive(rank->pipeline[PIPELINE_FORWARD], &data, rank->place.pipeline - 1);
    return rank_phase_end(rank, PHASE_COMM, begun, status);
}

/* Sends rows to the next stage. Those of the previous step may still be on their way, so two buffers alternate. */
static int send_rows(struct model *model, int64_t rows) {
    struct rank *rank = model->rank;
    struct device_step *step = &model->step;
    struct comm_data data = {.send = step->out[step->turn],
                             .count = rows * model->options.config.hidden_size,
                             .dtype = model->options.dtype,
                             .stream = rank->exec.stream};
    if (rank->is_planning)
        return rank_note_messages(rank, RANK_PIPELINE, WORK_SEND, data.count, data.dtype, 1);
    int begun = rank_phase_begin(rank);
    int status =
        comm_send_start(rank->pipeline[PIPELINE_FORWARD], &data, rank->place.pipeline + 1, &step->sent[step->turn]);
    THEN(status, comm_post(rank->pipeline[PIPELINE_FORWARD]));
    return rank_phase_end(rank, PHASE_COMM, begun, status);
}

/* Finds a buffer for the output of the last block, from which nothing is being sent any more. */
static int find_out(struct model *model, void **out) {
    struct device_step *step = &model->step;
    step->turn = 1 - step->turn;
    *out = step->out[step->turn];
    return model->rank->is_planning ? STATUS_OK : comm_wait(&step->sent[step->turn]);
}

int model_infer_end(struct model *model) {
    int status = STATUS_OK;
    for (int i = 0; i < 2; i++) {
        int waited = comm_wait(&model->step.sent[i]);
        status = status ? status : waited;
    }
    return status;
}

static int run_embedding(const struct pass *pass) {
    int status = unit_begin(pass, PARAM_UNIT_FIRST, PARAM_EVALUATION);
    return status ? status : unit_end(pass, PARAM_UNIT_FIRST, embedding_pass_forward(pass, pass->stash->saved[0].x));
}

static int run_blocks(const struct pass *pass) {
    struct model *model = pass->model;
    const struct model_stash *stash = pass->stash;
    int64_t layers = pass->chunk->count;
    void *last = stash->x_last;
    int status = model->share.has_head ? STATUS_OK : find_out(model, &last);
    THEN(status, model->share.has_embedding ? run_embedding(pass) : receive_rows(model, pass->rows, stash->saved[0].x));
    for (int64_t layer = 0; layer < layers && !status; layer++) {
        struct block_pass block = {
            .pass = pass,
            .layer = pass->chunk->first + layer,
            .saved = &stash->saved[layer],
            .out = layer + 1 == layers ? last : stash->saved[layer + 1].x,
        };
        status = unit_begin(pass, block.layer, PARAM_EVALUATION);
        THEN(status, unit_end(pass, block.layer, block_forward(&block)));
    }
    return status || model->share.has_head ? status : send_rows(model, pass->rows);
}

/* ---- the head ---- */

/* Computes the logits of wanted rows [first, first + count) of the step, in step.logits. */
static int make_logits(const struct pass *pass, int64_t first, int64_t count) {
    struct model *model = pass->model;
    const struct device_step *step = pass->step;
    const struct gather_rows wanted = {.rows = count,
                                       .cols = model->options.config.hidden_size,
                                       .type = model->options.dtype,
                                       .x = pass->stash->x_last,
                                       .index = step->logit_row + first,
                                       .out = step->rows};
    int status = rank_run(model->rank, PHASE_REST, gather_rows, &wanted);
    if (!status)
        status = norm_forward(model, &model->final_norm,
                              &(const struct norm){.rows = count, .x = step->rows, .y = step->rows});
    struct linear_call head = {
        .rank = model->rank,
        .store = &model->store,
        .hooks = hook_table_list(NULL, 0, ATTACH_QKV),
        .dtype = model->options.dtype,
        .y_dtype_is_fp32 = true, /* bf16's 8 bits are too few for log-probabilities */
        .rows = count,
        .x = step->rows,
        .y = step->logits,
        .y_stride = model->share.vocab_stride,
    };
    return status ? status : linear_forward(&model->head, &head);
}

static int find_label_losses(const struct pass *pass, int64_t first, int64_t count) {
    struct model *model = pass->model;
    struct cross_entropy call = {
        .rows = count,
        .vocab = model->share.vocab,
        .first_label = model->share.first_token,
        .stride = model->share.vocab_stride,
        .type = DTYPE_F32,
        .logits = model->step.logits,
        .labels = pass->batch->head.labels + first,
        .loss = model->step.label_loss + first,
        .is_greedy = model->step.is_greedy + first,
    };
    return model->rank->grid.tensor > 1 ? head_join_loss(model, &call, false)
                                        : rank_run(model->rank, PHASE_LOSS, cross_entropy_forward, &call);
}

/* Returns the operation that draws tokens for the chunk's rows from `logits` of the whole vocabulary. */
static struct sample sample_call(const struct model *model, int64_t first, int64_t count, const float *logits) {
    const struct device_step *step = &model->step;
    return (struct sample){
        .rows = count,
        .vocab = model->options.config.vocab_size,
        .stride = model->share.whole_vocab_stride,
        .type = DTYPE_F32,
        .logits = logits,
        .row = step->sample + first,
        .changes = step->changes,
        .token = step->drawn + first,
        .logprob = step->logprob + first,
        .top_token = step->top_token ? step->top_token + first * SAMPLE_MAX_TOP : NULL,
        .top_logprob = step->top_token ? step->top_logprob + first * SAMPLE_MAX_TOP : NULL,
    };
}

/* Returns the stride of a tensor rank's part of the logits. */
static int64_t part_stride(const struct model *model, int rank, int64_t *first, int64_t *end) {
    int64_t V = model->options.config.vocab_size;
    int ranks = model->rank->grid.tensor;
    *first = param_share(V, rank, ranks);
    *end = param_share(V, rank + 1, ranks);
    return model_vocab_stride(*end - *first);
}

/* Receives the other ranks' parts together. */
static int receive_parts(struct model *model, int64_t count) {
    const struct rank *rank = model->rank;
    const struct device_step *step = &model->step;
    float *at = step->arrived;
    int64_t first, end;
    int status = STATUS_OK;
    for (int t = 1; t < rank->grid.tensor && !status; t++) {
        struct comm_data part = {.receive = at,
                                 .count = count * part_stride(model, t, &first, &end),
                                 .dtype = DTYPE_F32,
                                 .stream = rank->exec.stream};
        status = comm_receive_start(rank->tensor, &part, t, &step->parts[t]);
        at += part.count;
    }
    for (int t = 1; t < rank->grid.tensor && !status; t++)
        status = comm_wait(&step->parts[t]);
    return status;
}

/* Puts the parts side by side. */
static int join_parts(const struct model *model, int64_t count) {
    const struct rank *rank = model->rank;
    const struct device_step *step = &model->step;
    const float *at = step->arrived;
    int status = STATUS_OK;
    for (int t = 0; t < rank->grid.tensor && !status; t++) {
        int64_t first, end, stride = part_stride(model, t, &first, &end);
        struct copy_call copy = {.kind = COPY_ON_DEVICE,
                                 .to = step->whole + first,
                                 .from = t > 0 ? at : step->logits,
                                 .rows = (size_t)count,
                                 .bytes = (size_t)(end - first) * sizeof(float),
                                 .to_stride = (size_t)model->share.whole_vocab_stride * sizeof(float),
                                 .from_stride = (size_t)stride * sizeof(float)};
        status = stream_copy_rows(rank->exec.stream, &copy);
        at += t > 0 ? count * stride : 0;
    }
    return status;
}

/* The vocabulary is cut over the tensor ranks. But top-k and top-p need all of it, and the draw must have the same bits
 * as on a single rank. Each rank therefore sends its columns of the chunk to the first tensor rank, in one message. */
static int collect_logits(struct model *model, int64_t count) {
    struct rank *rank = model->rank;
    int64_t own = count * model->share.vocab_stride;
    if (rank->is_planning)
        return rank->place.tensor > 0 ? rank_note_messages(rank, RANK_TENSOR, WORK_SEND, own, DTYPE_F32, 1) : STATUS_OK;
    if (rank->place.tensor > 0) {
        struct comm_data part = {
            .send = model->step.logits, .count = own, .dtype = DTYPE_F32, .stream = rank->exec.stream};
        return comm_send(rank->tensor, &part, 0);
    }
    int status = receive_parts(model, count);
    return status ? status : join_parts(model, count);
}

static int draw(struct model *model, int64_t first, int64_t count) {
    struct rank *rank = model->rank;
    bool is_cut = rank->grid.tensor > 1;
    struct sample call = sample_call(model, first, count, is_cut ? model->step.whole : model->step.logits);
    int status = STATUS_OK;
    if (is_cut) {
        int begun = rank_phase_begin(rank);
        status = rank_phase_end(rank, PHASE_COMM, begun, collect_logits(model, count));
    }
    return status || rank->place.tensor > 0 ? status : rank_run(rank, PHASE_REST, sample, &call);
}

/* Computes the results of the wanted rows in chunks, so their logits never exist all at once. */
static int run_wanted(const struct pass *pass, const struct model_step *step) {
    struct model *model = pass->model;
    int64_t most = model_sizes(model)->step_rows;
    int status = STATUS_OK;
    for (int64_t first = 0; first < step->logit_rows && !status; first += most) {
        int64_t left = step->logit_rows - first, count = left < most ? left : most;
        status = make_logits(pass, first, count);
        if (!status && step->labels)
            status = find_label_losses(pass, first, count);
        if (!status && step->sample)
            status = draw(model, first, count);
    }
    return status;
}

static int run_head(const struct pass *pass, const struct model_step *step) {
    int status = head_begin(pass, PARAM_EVALUATION);
    return status ? status : head_end(pass, run_wanted(pass, step));
}

/* ---- a step ---- */

/* Returns a pass of `rows` rows through the only chunk. */
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

/* Plans logits and draws of `rows` rows; only their number matters. */
static int plan_head(const struct pass *pass, int64_t rows) {
    int64_t most = model_sizes(pass->model)->step_rows;
    int status = STATUS_OK;
    for (int64_t first = 0; first < rows && !status; first += most) {
        int64_t left = rows - first, count = left < most ? left : most;
        status = make_logits(pass, 0, count);
        THEN(status, draw(pass->model, 0, count));
    }
    return status;
}

int model_plan_step(struct model *model, const struct model_step_shape *shape) {
    struct model_kv kv = {.page_count = 1};
    struct pass pass = pass_of(model, &kv, shape->rows);
    pass.max_pages = model->options.infer.max_pages;
    pass.seen = shape->seen;
    rank_plan_part(model->rank, WORK_FORWARD, 0);
    int status = run_blocks(&pass);
    if (!status && model->share.has_head && shape->logit_rows)
        status = head_begin(&pass, PARAM_EVALUATION);
    if (!status && model->share.has_head && shape->logit_rows)
        status = head_end(&pass, plan_head(&pass, shape->logit_rows));
    rank_plan_part(model->rank, WORK_UPDATE, 0);
    return status;
}

int model_step_work(struct model *model, const struct model_step_shape *shape, struct work_list *list) {
    struct rank *rank = model->rank;
    const struct work_list opened = rank->work;
    rank->work = (struct work_list){0};
    rank->is_planning = true;
    int status = model_plan_step(model, shape);
    *list = rank->work;
    rank->work = opened;
    rank->is_planning = false;
    return status;
}

/* Adds an array, with `pad` after its `count` elements until it has `padded`. */
static void *add_padded(struct upload *upload, const void *from, int64_t count, int64_t padded, const void *pad,
                        size_t width) {
    char *taken = upload_take(upload, (size_t)padded * width);
    if (count)
        memcpy(taken, from, (size_t)count * width);
    for (int64_t i = count; i < padded; i++)
        memcpy(taken + (size_t)i * width, pad, width);
    return upload_place(upload, taken);
}

static int32_t *add_ids(struct upload *upload, const int32_t *from, int64_t count, int64_t padded, int32_t pad) {
    return add_padded(upload, from, count, padded, &pad, sizeof pad);
}

/* Adds the arrays of rows. Rows that pad the step see nothing, and their keys and values are stored nowhere. */
static void add_rows(struct upload *upload, struct model *model, const struct model_step *step, int64_t padded) {
    struct device_step *device = &model->step;
    struct device_batch *batch = &model_stash(model, 0)->batch;
    batch->tokens = add_ids(upload, step->tokens, step->rows, padded, 0);
    batch->positions = add_ids(upload, step->positions, step->rows, padded, 0);
    device->sequence = add_ids(upload, step->sequence, step->rows, padded, -1);
    device->cached = add_ids(upload, step->cached, step->rows, padded, -1);
    device->place = add_ids(upload, step->place, step->rows, padded, -1);
}

static void add_page_changes(struct upload *upload, struct model *model, const struct model_step *step,
                             int64_t padded) {
    static const struct id_change none = {.place = -1};
    model->step.page_changes = (struct change_ids){
        .count = padded,
        .changes = add_padded(upload, step->page_changes, step->page_change_count, padded, &none, sizeof none),
        .table = model->step.page_table};
}

/* Adds the arrays of `padded` wanted rows. Rows that pad the step draw nothing. */
static void add_wanted(struct upload *upload, struct model *model, const struct model_step *step, int64_t padded) {
    static const struct sample_row none = {.top_p = 1, .repetition_penalty = 1};
    struct device_step *device = &model->step;
    device->logit_row = add_ids(upload, step->logit_row, step->logit_rows, padded, -1);
    if (step->labels)
        model_stash(model, 0)->batch.head.labels =
            upload_add(upload, step->labels, (size_t)step->logit_rows * sizeof(int32_t));
    if (step->sample)
        device->sample = add_padded(upload, step->sample, step->logit_rows, padded, &none, sizeof none);
    device->drawn = device->results;
    device->logprob = (float *)device->results + padded;
    device->label_loss = device->logprob + padded;
    device->is_greedy = (int32_t *)(device->label_loss + padded);
    device->top_token = step->sample && step->has_top ? device->is_greedy + padded : NULL;
    device->top_logprob = (float *)(device->is_greedy + padded + padded * SAMPLE_MAX_TOP);
}

/* The changes of logits come last in the upload, because every step has another number of them. */
static void add_changes(struct upload *upload, struct model *model, const struct model_step *step, bool is_recorded) {
    int64_t count = step->sample ? step->change_count : 0;
    model->step.changes =
        count || is_recorded ? add_padded(upload, step->changes, count, count, NULL, sizeof *step->changes) : NULL;
}

int step_upload(struct model *model, const struct model_step *step, const struct step_record *record) {
    struct upload *upload = &model->upload;
    const struct hook_table *hooks = model->options.hooks;
    TRY(upload_begin(upload, model->step.block));
    add_rows(upload, model, step, record ? record->rows : step->rows);
    add_page_changes(upload, model, step, record ? record->rows : step->page_change_count);
    if (model->share.has_head && (step->logit_rows || record))
        add_wanted(upload, model, step, record ? record->rows : step->logit_rows);
    if (hooks && hooks->upload.bytes && !record)
        hooks->upload.add(hooks->upload.self, upload);
    if (record && record->level)
        hooks->upload.add_by_row(hooks->upload.self, upload, record->level, record->rows);
    add_changes(upload, model, step, record);
    return upload_end(upload, model->rank->exec.stream);
}

static int change_pages(struct model *model, const struct change_ids *changes) {
    return changes->count ? rank_run(model->rank, PHASE_ATTENTION, change_ids, changes) : STATUS_OK;
}

int model_kv_change_pages(struct model *model, const struct id_change *changes, int64_t count) {
    const struct model_step step = {.page_change_count = count, .page_changes = changes};
    int status = count ? upload_begin(&model->upload, model->step.block) : STATUS_OK;
    if (status || !count)
        return status;
    add_page_changes(&model->upload, model, &step, count);
    status = upload_end(&model->upload, model->rank->exec.stream);
    return status ? status : change_pages(model, &model->step.page_changes);
}

int step_run(struct model *model, const struct model_kv *kv, const struct model_step *step) {
    struct pass pass = pass_of(model, kv, step->rows);
    pass.max_pages = model->options.infer.max_pages;
    int status = change_pages(model, &model->step.page_changes);
    THEN(status, run_blocks(&pass));
    if (!status && model->share.has_head)
        status = run_head(&pass, step);
    param_check_returned(&model->store, "a step of inference");
    return status;
}
