/* One step of inference: flat rows through the same blocks as in training, over the paged cache. A pipeline stage
 * receives the rows of the stage before it and sends them to the next one. It may start the next step while a later
 * stage still works on this one. */
#include "model-internal.h"

int model_kv_put_prefix(struct inference_runner *inference, const struct model_prefix_rows *rows) {
    int64_t count = rows->count;
    struct stream *stream = inference->run.rank->exec.stream;
    int64_t end = base_first_layer(inference->run.base) + base_layers(inference->run.base);
    if (count > inference->run.max_rows)
        return status_fail(STATUS_INVALID, "more tokens of a prefix than the model was opened for");
    const int32_t *there = NULL;
    int status = upload_begin(&inference->run.upload, inference->stash.batch.block);
    if (!status) {
        there = upload_add(&inference->run.upload, rows->place, (size_t)count * sizeof *rows->place);
        status = upload_end(&inference->run.upload, stream);
    }
    for (int64_t layer = base_first_layer(inference->run.base); layer < end && !status; layer++) {
        struct hook_prefix prefix;
        struct kv_append append = model_kv_append(inference, there, layer, count);
        append.k_stride = append.v_stride = (int64_t)append.kv_heads * append.head_size;
        size_t skipped = (size_t)(rows->first * append.k_stride) * dtype_bytes(append.type);
        status = block_prefix(&inference->run, layer, rows->image, &prefix);
        append.k = (const char *)prefix.k + skipped;
        append.v = (const char *)prefix.v + skipped;
        THEN(status, rank_run(inference->run.rank, PHASE_ATTENTION, kv_append, &append));
    }
    return status ? status : stream_wait(stream);
}

/* Receives rows of the residual stream from the stage before. */
static int receive_rows(struct inference_runner *inference, int64_t rows, void *x) {
    struct rank *rank = inference->run.rank;
    int begun = rank_phase_begin(rank);
    struct comm_data data = {.receive = x,
                             .count = rows * inference->run.base->options.config.hidden_size,
                             .dtype = inference->run.base->options.dtype,
                             .stream = rank->exec.stream};
    int status = rank->is_planning ? STATUS_OK /* the sender's plan has them */
                                   : comm_receive(rank->pipeline[PIPELINE_FORWARD], &data, rank->place.pipeline - 1);
    return rank_phase_end(rank, PHASE_COMM, begun, status);
}

/* Sends rows to the next stage. Those of the previous step may still be on their way, so two buffers alternate. */
static int send_rows(struct inference_runner *inference, int64_t rows) {
    struct rank *rank = inference->run.rank;
    struct device_step *step = &inference->step;
    struct comm_data data = {.send = step->out[step->turn],
                             .count = rows * inference->run.base->options.config.hidden_size,
                             .dtype = inference->run.base->options.dtype,
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
static int find_out(struct inference_runner *inference, void **out) {
    struct device_step *step = &inference->step;
    step->turn = 1 - step->turn;
    *out = step->out[step->turn];
    return inference->run.rank->is_planning ? STATUS_OK : comm_wait(&step->sent[step->turn]);
}

int model_infer_end(struct inference_runner *inference) {
    int status = STATUS_OK;
    for (int i = 0; i < 2; i++) {
        int waited = comm_wait(&inference->step.sent[i]);
        status = status ? status : waited;
    }
    return status;
}

static int run_embedding(const struct pass *pass) {
    int status = unit_begin(pass, PARAM_UNIT_FIRST, PARAM_EVALUATION);
    return status ? status : unit_end(pass, PARAM_UNIT_FIRST, embedding_pass_forward(pass, pass->stash->saved[0].x));
}

static int run_blocks(const struct pass *pass) {
    struct inference_runner *inference = pass->inference;
    const struct model_stash *stash = pass->stash;
    int64_t layers = pass->chunk->count;
    void *last = stash->x_last;
    int status = inference->run.base->part.has_head ? STATUS_OK : find_out(inference, &last);
    THEN(status, inference->run.base->part.has_embedding ? run_embedding(pass)
                                                         : receive_rows(inference, pass->rows, stash->saved[0].x));
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
    return status || inference->run.base->part.has_head ? status : send_rows(inference, pass->rows);
}

/* ---- the head ---- */

/* Computes the logits of wanted rows [first, first + count) of the step, in step.logits. */
static int make_logits(const struct pass *pass, int64_t first, int64_t count) {
    struct inference_runner *inference = pass->inference;
    const struct device_step *step = &inference->step;
    const struct gather_rows wanted = {.rows = count,
                                       .cols = inference->run.base->options.config.hidden_size,
                                       .type = inference->run.base->options.dtype,
                                       .x = pass->stash->x_last,
                                       .index = pass->batch->logit_row + first,
                                       .out = step->rows};
    int status = rank_run(inference->run.rank, PHASE_REST, gather_rows, &wanted);
    if (!status)
        status = norm_forward(&inference->run, &inference->run.base->final_norm,
                              &(const struct norm){.rows = count, .x = step->rows, .y = step->rows});
    struct linear_call head = {
        .rank = inference->run.rank,
        .store = &inference->run.base->store,
        .hooks = head_hooks(&inference->run),
        .hook = {.layer = (int)inference->run.base->options.config.num_layers,
                 .place = ATTACH_HEAD,
                 .first_row = first},
        .dtype = inference->run.base->options.dtype,
        .y_dtype_is_fp32 = true, /* bf16's 8 bits are too few for log-probabilities */
        .rows = count,
        .x = step->rows,
        .y = step->logits,
        .y_stride = inference->run.base->part.vocab_stride,
    };
    return status ? status : linear_forward(&inference->run.base->head, &head);
}

static int find_label_losses(const struct pass *pass, int64_t first, int64_t count) {
    struct inference_runner *inference = pass->inference;
    struct cross_entropy call = {
        .rows = count,
        .vocab = inference->run.base->part.vocab,
        .first_label = inference->run.base->part.first_token,
        .stride = inference->run.base->part.vocab_stride,
        .type = DTYPE_F32,
        .logits = inference->step.logits,
        .labels = pass->batch->head.labels + first,
        .loss = inference->step.at.label_logprob + first,
        .is_greedy = inference->step.at.is_greedy + first,
    };
    return inference->run.rank->grid.tensor > 1
               ? head_join_loss(&inference->run, &call, false)
               : rank_run(inference->run.rank, PHASE_LOSS, cross_entropy_forward, &call);
}

/* Returns the operation that draws tokens for the chunk's rows from `logits` of the whole vocabulary. */
static struct sample sample_call(const struct inference_runner *inference, int64_t first, int64_t count,
                                 const float *logits) {
    const struct device_step *step = &inference->step;
    return (struct sample){
        .rows = count,
        .vocab = inference->run.base->options.config.vocab_size,
        .stride = inference->run.base->part.whole_vocab_stride,
        .type = DTYPE_F32,
        .logits = logits,
        .row = step->sample + first,
        .changes = step->changes,
        .masks = step->masks,
        .token = step->at.token + first,
        .logprob = step->at.logprob + first,
        .top_token = step->at.top_token ? step->at.top_token + first * SAMPLE_MAX_TOP : NULL,
        .top_logprob = step->at.top_token ? step->at.top_logprob + first * SAMPLE_MAX_TOP : NULL,
    };
}

/* Returns the stride of a tensor rank's part of the logits. */
static int64_t part_stride(const struct inference_runner *inference, int rank, int64_t *first, int64_t *end) {
    int64_t V = inference->run.base->options.config.vocab_size;
    int ranks = inference->run.rank->grid.tensor;
    *first = param_share(V, rank, ranks);
    *end = param_share(V, rank + 1, ranks);
    return model_vocab_stride(*end - *first);
}

/* Receives the other ranks' parts together. */
static int receive_parts(struct inference_runner *inference, int64_t count) {
    const struct rank *rank = inference->run.rank;
    const struct device_step *step = &inference->step;
    float *at = step->arrived;
    int64_t first, end;
    int status = STATUS_OK;
    for (int t = 1; t < rank->grid.tensor && !status; t++) {
        struct comm_data part = {.receive = at,
                                 .count = count * part_stride(inference, t, &first, &end),
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
static int join_parts(const struct inference_runner *inference, int64_t count) {
    const struct rank *rank = inference->run.rank;
    const struct device_step *step = &inference->step;
    const float *at = step->arrived;
    int status = STATUS_OK;
    for (int t = 0; t < rank->grid.tensor && !status; t++) {
        int64_t first, end, stride = part_stride(inference, t, &first, &end);
        struct copy_call copy = {.kind = COPY_ON_DEVICE,
                                 .to = step->whole + first,
                                 .from = t > 0 ? at : step->logits,
                                 .rows = (size_t)count,
                                 .bytes = (size_t)(end - first) * sizeof(float),
                                 .to_stride = (size_t)inference->run.base->part.whole_vocab_stride * sizeof(float),
                                 .from_stride = (size_t)stride * sizeof(float)};
        status = stream_copy_rows(rank->exec.stream, &copy);
        at += t > 0 ? count * stride : 0;
    }
    return status;
}

/* The vocabulary is cut over the tensor ranks. But top-k and top-p need all of it, and the draw must have the same bits
 * as on a single rank. Each rank therefore sends its columns of the chunk to the first tensor rank, in one message. */
static int collect_logits(struct inference_runner *inference, int64_t count) {
    struct rank *rank = inference->run.rank;
    int64_t own = count * inference->run.base->part.vocab_stride;
    if (rank->is_planning)
        return rank->place.tensor > 0 ? rank_note_messages(rank, RANK_TENSOR, WORK_SEND, own, DTYPE_F32, 1) : STATUS_OK;
    if (rank->place.tensor > 0) {
        struct comm_data part = {
            .send = inference->step.logits, .count = own, .dtype = DTYPE_F32, .stream = rank->exec.stream};
        return comm_send(rank->tensor, &part, 0);
    }
    int status = receive_parts(inference, count);
    return status ? status : join_parts(inference, count);
}

static int draw(struct inference_runner *inference, const struct model_step *of, int64_t first, int64_t count) {
    struct rank *rank = inference->run.rank;
    bool is_cut = rank->grid.tensor > 1;
    struct sample call = sample_call(inference, first, count, is_cut ? inference->step.whole : inference->step.logits);
    int status = STATUS_OK;
    if (is_cut) {
        int begun = rank_phase_begin(rank);
        status = rank_phase_end(rank, PHASE_COMM, begun, collect_logits(inference, count));
    }
    if (status || rank->place.tensor > 0)
        return status;
    if (first == 0)
        TRY(step_meet_masks(inference, &of->masks));
    return rank_run(rank, PHASE_REST, sample, &call);
}

/* Computes the results of the wanted rows in chunks, so their logits never exist all at once. */
static int run_wanted(const struct pass *pass, const struct model_step *step) {
    struct inference_runner *inference = pass->inference;
    int64_t most = model_sizes(&inference->run)->step_rows;
    int status = STATUS_OK;
    for (int64_t first = 0; first < step->logit_rows && !status; first += most) {
        int64_t left = step->logit_rows - first, count = left < most ? left : most;
        int64_t at = inference->run.rank->is_planning ? 0 : first; /* there are no arrays yet */
        status = make_logits(pass, at, count);
        THEN_IF(status, step->labels, find_label_losses(pass, at, count));
        THEN_IF(status, step->sample, draw(inference, step, at, count));
    }
    return status;
}

static int run_head(const struct pass *pass, const struct model_step *step) {
    int status = head_begin(pass, PARAM_EVALUATION);
    return status ? status : head_end(pass, run_wanted(pass, step));
}

/* ---- a step ---- */

/* Returns a pass of `rows` rows through the only chunk. */
static struct pass pass_of(struct inference_runner *inference, int64_t rows) {
    const struct model_stash *stash = &inference->stash;
    return (struct pass){
        .run = &inference->run,
        .inference = inference,
        .chunk = &inference->run.base->options.chunks[0],
        .stash = stash,
        .batch = &stash->batch,
        .rows = rows,
    };
}

int model_plan_step(struct inference_runner *inference, const struct model_step_shape *shape) {
    static const struct sample_row unread;
    const struct model_step draws = {.logit_rows = shape->logit_rows, .sample = &unread};
    struct pass pass = pass_of(inference, shape->rows);
    pass.seen = shape->seen;
    rank_plan_part(inference->run.rank, WORK_FORWARD, 0);
    int status = run_blocks(&pass);
    THEN_IF(status, inference->run.base->part.has_head && shape->logit_rows, run_head(&pass, &draws));
    rank_plan_part(inference->run.rank, WORK_UPDATE, 0);
    return status;
}

int model_step_work(struct inference_runner *inference, const struct model_step_shape *shape, struct work_list *list) {
    struct rank *rank = inference->run.rank;
    const struct work_list opened = rank->work;
    rank->work = (struct work_list){0};
    rank->is_planning = true;
    int status = model_plan_step(inference, shape);
    *list = rank->work;
    rank->work = opened;
    rank->is_planning = false;
    return status;
}

static void add_page_changes(struct upload *upload, struct inference_runner *inference, const struct model_step *step,
                             int64_t padded) {
    static const struct id_change none = {.place = -1};
    inference->step.page_changes = (struct change_ids){
        .count = padded,
        .changes = upload_add_padded(upload, step->page_changes, step->page_change_count, padded, &none, sizeof none),
        .table = inference->step.page_table};
}

/* Adds the arrays of `padded` wanted rows. Rows that pad the step draw nothing. */
static void add_wanted(struct upload *upload, struct inference_runner *inference, const struct model_step *step,
                       int64_t padded) {
    static const struct sample_row none = {.top_p = 1, .repetition_penalty = 1};
    static const int32_t no_row = -1;
    struct device_step *device = &inference->step;
    inference->stash.batch.logit_row =
        upload_add_padded(upload, step->logit_row, step->logit_rows, padded, &no_row, sizeof no_row);
    if (step->labels)
        inference->stash.batch.head.labels =
            upload_add(upload, step->labels, (size_t)step->logit_rows * sizeof(int32_t));
    if (step->sample)
        device->sample = upload_add_padded(upload, step->sample, step->logit_rows, padded, &none, sizeof none);
    device->at = model_results_at(device->results, padded);
    device->at.top_token = step->sample && step->has_top ? device->at.top_token : NULL;
}

/* The changes of logits come last in the upload, because every step has another number of them. */
static void add_changes(struct upload *upload, struct inference_runner *inference, const struct model_step *step,
                        bool is_recorded) {
    int64_t count = step->sample ? step->change_count : 0;
    inference->step.changes = count || is_recorded
                                  ? upload_add_padded(upload, step->changes, count, count, NULL, sizeof *step->changes)
                                  : NULL;
}

int step_upload(struct inference_runner *inference, const struct model_step *step, const struct step_record *record) {
    struct upload *upload = &inference->run.upload;
    const struct hook_table *hooks = inference->run.hooks;
    TRY(upload_begin(upload, inference->stash.batch.block));
    rows_upload(upload,
                &(const struct host_rows){.rows = step->rows,
                                          .padded = record ? record->rows : step->rows,
                                          .tokens = step->tokens,
                                          .positions = step->positions,
                                          .sequence = step->sequence,
                                          .cached = step->cached,
                                          .place = step->place},
                &inference->stash.batch);
    add_page_changes(upload, inference, step, record ? record->rows : step->page_change_count);
    if (inference->run.base->part.has_head && (step->logit_rows || record))
        add_wanted(upload, inference, step, record ? record->rows : step->logit_rows);
    if (hooks && hooks->upload.bytes && !record)
        hooks->upload.add(hooks->upload.self, upload);
    if (record && record->level)
        hooks->upload.add_by_row(hooks->upload.self, upload, record->level, record->rows);
    add_changes(upload, inference, step, record);
    return upload_end(upload, inference->run.rank->exec.stream);
}

static int change_pages(struct inference_runner *inference, const struct change_ids *changes) {
    return changes->count ? rank_run(inference->run.rank, PHASE_ATTENTION, change_ids, changes) : STATUS_OK;
}

int model_kv_change_pages(struct inference_runner *inference, const struct id_change *changes, int64_t count) {
    const struct model_step step = {.page_change_count = count, .page_changes = changes};
    int status = count ? upload_begin(&inference->run.upload, inference->stash.batch.block) : STATUS_OK;
    if (status || !count)
        return status;
    add_page_changes(&inference->run.upload, inference, &step, count);
    status = upload_end(&inference->run.upload, inference->run.rank->exec.stream);
    return status ? status : change_pages(inference, &inference->step.page_changes);
}

int step_run(struct inference_runner *inference, const struct model_step *step) {
    struct pass pass = pass_of(inference, step->rows);
    int status = change_pages(inference, &inference->step.page_changes);
    THEN(status, run_blocks(&pass));
    THEN_IF(status, inference->run.base->part.has_head, run_head(&pass, step));
    param_check_returned(&inference->run.base->store, "a step of inference");
    return status;
}
