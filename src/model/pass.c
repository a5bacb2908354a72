/* One micro batch on its way through a chunk, forward and backward. */
#include "model-internal.h"

#include "parallel/sync.h"

/* ---- the batch ---- */

static int upload_batch(struct training_runner *training, const struct model_batch *batch, struct device_rows *device) {
    struct runner *run = &training->run;
    const struct model_config *c = &run->base->options.config;
    if (batch->rows < 1 || batch->rows > run->max_rows)
        return status_fail(STATUS_INVALID, "a batch of %lld rows in a model opened for %lld", (long long)batch->rows,
                           (long long)run->max_rows);
    int64_t ids = embedding_ids(run);
    for (int64_t i = 0; i < batch->rows; i++) {
        if (batch->tokens[i] < 0 || batch->tokens[i] >= ids || batch->labels[i] < 0 ||
            batch->labels[i] >= c->vocab_size)
            return status_fail(STATUS_INVALID, "row %lld: token %d or label %d is not in the vocabulary of %lld",
                               (long long)i, batch->tokens[i], batch->labels[i], (long long)c->vocab_size);
        if (batch->positions[i] < 0 || batch->positions[i] >= run->max_positions)
            return status_fail(STATUS_INVALID, "row %lld: position %d of a model with %lld", (long long)i,
                               batch->positions[i], (long long)run->max_positions);
    }
    struct upload *upload = &run->upload;
    TRY(upload_begin(upload, device->block));
    rows_upload(upload,
                &(const struct host_rows){.rows = batch->rows,
                                          .padded = batch->rows,
                                          .segments = batch->segments,
                                          .segment_start = batch->segment_start,
                                          .tokens = batch->tokens,
                                          .positions = batch->positions,
                                          .sample = batch->sample,
                                          .token = batch->token},
                device);
    head_rows_upload(training, batch, &device->head);
    return upload_end(upload, training->run.rank->exec.stream);
}

/* ---- forward and backward ---- */

static struct pass pass_of(struct training_runner *training, const struct model_pass *asked) {
    const struct model_stash *stash = training_stash(training, asked->stash);
    struct model_pass own = *asked;
    own.is_first_micro_batch |=
        param_cuts_gradients(&training->run.base->store); /* each micro batch has its own gradients */
    return (struct pass){
        .run = &training->run,
        .training = training,
        .asked = own,
        .chunk = &training->run.base->options.chunks[asked->chunk],
        .stash = stash,
        .batch = &stash->batch,
        .rows = stash->batch.rows,
    };
}

/* Returns the place where `layer`, counted within the chunk, stores its results. */
static const struct block_saved *saved_of(const struct pass *pass, int64_t layer) {
    const struct training_runner *training = pass->training;
    return model_keeps(training, pass->chunk, pass->asked.stash, layer) ? &pass->stash->saved[layer]
                                                                        : &training->kept.transient[layer % 2];
}

/* Returns the pass through `layer`, counted within the chunk; `y` receives the chunk's output. */
static struct block_pass block_pass_of(const struct pass *pass, int64_t layer, void *y) {
    bool is_last = layer + 1 == pass->chunk->count;
    return (struct block_pass){
        .pass = pass,
        .layer = pass->chunk->first + layer,
        .saved = saved_of(pass, layer),
        .out = is_last ? y : saved_of(pass, layer + 1)->x,
    };
}

static int show_output(const struct pass *pass, int64_t layer, const void *x) {
    const struct model_pass *asked = &pass->asked;
    return asked->layer_output ? asked->layer_output(asked->context, (int)layer, x, pass->rows) : STATUS_OK;
}

/* Starts with the embedding, or with the output of the layer before; then come the blocks, if there are any. */
int pass_forward(struct training_runner *training, const struct model_pass *asked, enum param_use use, const void *x,
                 void *y) {
    struct pass pass = pass_of(training, asked);
    int status = STATUS_OK;
    rank_plan_part(training->run.rank, WORK_FORWARD, asked->chunk);
    void *end = chunk_has_head(training->run.base, pass.chunk) ? pass.stash->x_last : y;
    void *first = pass.chunk->count ? saved_of(&pass, 0)->x : end;
    if (chunk_has_embedding(training->run.base, pass.chunk)) {
        status = unit_begin(&pass, PARAM_UNIT_FIRST, use);
        THEN(status, unit_end(&pass, PARAM_UNIT_FIRST, embedding_pass_forward(&pass, first)));
        THEN(status, show_output(&pass, PARAM_UNIT_FIRST, first));
    } else if (!training->run.rank->is_planning) {
        status = stream_copy(training->run.rank->exec.stream, first, x, model_stream_bytes(pass.run, pass.rows));
    }
    for (int64_t layer = 0; layer < pass.chunk->count && !status; layer++) {
        struct block_pass block = block_pass_of(&pass, layer, end);
        block.measures = use == PARAM_FORWARD;
        status = unit_begin(&pass, block.layer, use);
        THEN(status, unit_end(&pass, block.layer, block_forward(&block)));
        THEN(status, show_output(&pass, block.layer, block.out));
    }
    training->kept.fresh = pass.stash;
    param_check_returned(&training->run.base->store, "a forward");
    return status;
}

bool model_runs_again(const struct training_runner *training, const struct model_chunk *chunk, int stash, int64_t layer,
                      bool is_fresh, struct layer_group *group) {
    int64_t next_first, next_end, layers = chunk->count;
    if (!model_recompute_group(training, layers, stash, layer, &group->first, &group->end) || layer + 1 != group->end)
        return false;
    bool is_last =
        group->end == layers || !model_recompute_group(training, layers, stash, group->end, &next_first, &next_end);
    return !is_fresh || !is_last;
}

/* Called before the backward of `layer`. */
static int run_again(const struct pass *pass, int64_t layer) {
    const struct training_runner *training = pass->training;
    struct layer_group group;
    int status = STATUS_OK;
    if (!model_runs_again(training, pass->chunk, pass->asked.stash, layer, pass->is_fresh, &group))
        return STATUS_OK;
    for (int64_t again = group.first; again < group.end && !status; again++) {
        struct block_pass block = block_pass_of(pass, again, training->run.scratch.branch);
        block.is_again = again + 1 == group.end;
        status = unit_begin(pass, block.layer, PARAM_RECOMPUTATION);
        THEN(status, unit_end(pass, block.layer, block_forward(&block)));
    }
    return status;
}

/* Reports that the gradients of a layer are final. Gradients that are cut are summed over the tensor ranks later. */
static int layer_done(const struct pass *pass, int64_t layer) {
    const struct model_pass *asked = &pass->asked;
    int status = unit_end_gradients(pass, layer);
    if (!status && !param_cuts_gradients(&pass->training->run.base->store))
        status = asked->is_last_micro_batch
                     ? gradient_sum_over_tensor(pass->training->run.rank, &pass->training->run.base->store, (int)layer)
                     : STATUS_OK;
    return !status && asked->layer_done ? asked->layer_done(asked->context, (int)layer) : status;
}

static int run_blocks_backward(const struct pass *pass) {
    int64_t lowest = pass->training->run.lowest;
    int status = STATUS_OK;
    for (int64_t layer = pass->chunk->count - 1; layer >= 0 && !status; layer--) {
        struct block_pass block = block_pass_of(pass, layer, NULL);
        if (block.layer < lowest)
            return STATUS_OK;
        block.is_lowest = block.layer == lowest;
        block.is_fresh = pass->is_fresh && layer + 1 == pass->chunk->count;
        status = run_again(pass, layer);
        THEN(status, unit_begin(pass, block.layer, PARAM_BACKWARD));
        THEN(status, unit_end(pass, block.layer, block_backward(&block)));
        THEN(status, layer_done(pass, block.layer));
    }
    return status;
}

/* Runs the head and its loss; in a backward also their gradients. */
static int run_head(const struct pass *pass, enum param_use use) {
    int status = head_begin(pass, use);
    return status ? status : head_end(pass, head_pass(pass, use == PARAM_BACKWARD));
}

/* Starts with the head, or with the gradient from the next layer; then come the blocks and the embedding. */
static int run_backward(const struct pass *pass, const void *dy) {
    struct training_runner *training = pass->training;
    bool has_head = chunk_has_head(training->run.base, pass->chunk);
    bool clears = pass->asked.is_first_micro_batch && !param_cuts_gradients(&training->run.base->store);
    int status = clears ? chunk_clear_gradients(training, pass->chunk) : STATUS_OK;
    if (!status && has_head)
        status = run_head(pass, PARAM_BACKWARD);
    else if (!status && !training->run.rank->is_planning)
        status = stream_copy(training->run.rank->exec.stream, pass->d, dy, model_stream_bytes(pass->run, pass->rows));
    THEN_IF(status, has_head, layer_done(pass, training->run.base->options.config.num_layers));
    THEN(status, run_blocks_backward(pass));
    if (status || !chunk_has_embedding(training->run.base, pass->chunk))
        return status;
    if (training->run.lowest < 0) {
        status = unit_begin(pass, PARAM_UNIT_FIRST, PARAM_BACKWARD);
        THEN(status, unit_end(pass, PARAM_UNIT_FIRST, embedding_pass_backward(pass)));
    }
    return status ? status : layer_done(pass, -1);
}

int model_backward(struct training_runner *training, const struct model_pass *asked, const void *dy, void *dx) {
    struct pass pass = pass_of(training, asked);
    pass.d = model_sends_gradient(&training->run, pass.chunk) ? dx : training->run.gradients.stream;
    pass.is_fresh = training->kept.fresh == pass.stash;
    training->kept.fresh = NULL;
    if (!chunk_has_backward(&training->run, pass.chunk))
        return STATUS_OK;
    rank_plan_part(training->run.rank, WORK_BACKWARD, asked->chunk);
    int status = run_backward(&pass, dy);
    param_check_returned(&training->run.base->store, "a backward");
    return status;
}

/* ---- from outside ---- */

int model_forward(struct training_runner *training, const struct model_batch *batch, const struct model_pass *pass,
                  const void *x, void *y) {
    int status = upload_batch(training, batch, &training_stash(training, pass->stash)->batch);
    return status ? status : pass_forward(training, pass, PARAM_FORWARD, x, y);
}

int model_sum_tied_gradients(struct training_runner *training) {
    struct rank *rank = training->run.rank;
    if (rank_group_size(rank, RANK_EMBEDDING) < 2 ||
        training->run.base->options.config.untie_embeddings_and_output_weights ||
        !param_trains(&training->run.base->store, training->run.base->token_table))
        return STATUS_OK;
    return gradient_sum(rank, RANK_EMBEDDING, &training->run.base->store, training->run.base->token_table);
}

int pass_evaluate(struct training_runner *training, const struct model_pass *asked, const void *x, void *y) {
    struct pass pass = pass_of(training, asked);
    int status = pass_forward(training, asked, PARAM_EVALUATION, x, y);
    return status || !chunk_has_head(training->run.base, pass.chunk) ? status : run_head(&pass, PARAM_EVALUATION);
}

int model_evaluate(struct training_runner *training, const struct model_batch *batch,
                   const struct model_pass *evaluated, const void *x, void *y) {
    const struct model_pass asked = {
        .chunk = evaluated->chunk, .weigh = evaluated->weigh, .context = evaluated->context};
    TRY(upload_batch(training, batch, &training_stash(training, 0)->batch));
    int status = pass_evaluate(training, &asked, x, y);
    training->kept.fresh = NULL;
    param_check_returned(&training->run.base->store, "an evaluation");
    return status;
}

int model_evaluate_chunk(struct training_runner *training, const struct model_batch *batch, int chunk, const void *x,
                         void *y) {
    return model_evaluate(training, batch, &(const struct model_pass){.chunk = chunk}, x, y);
}

int model_loss_fetch(struct training_runner *training) {
    struct stream *stream = training->run.rank->exec.stream;
    if (!training->run.base->part.has_head)
        return STATUS_OK;
    int status = stream_copy_to_host(stream, training->fetched_loss, training->run.scratch.loss_sum, sizeof(double));
    return status ? status : stream_zero(stream, training->run.scratch.loss_sum, sizeof(double));
}

double model_fetched_loss(const struct training_runner *training) {
    return training->run.base->part.has_head ? *(const double *)training->fetched_loss : 0;
}

int model_loss(struct training_runner *training, double *loss) {
    int status = model_loss_fetch(training);
    THEN_IF(status, training->run.base->part.has_head, rank_finish(training->run.rank));
    *loss = status ? 0 : model_fetched_loss(training);
    return status;
}

int logits_fetch(struct rank *rank, const struct logits_view *from, int64_t vocab, float *out) {
    size_t width = dtype_bytes(from->type), bytes = (size_t)(from->rows * from->stride) * width;
    char *host = malloc(bytes);
    TRY(status_allocated(host));
    int status = stream_copy_to_host(rank->exec.stream, host, from->logits, bytes);
    THEN(status, rank_finish(rank));
    for (int64_t i = 0; i < from->rows && !status; i++)
        for (int64_t v = 0; v < from->count; v++)
            out[i * vocab + from->first + v] = from->type == DTYPE_F32
                                                   ? ((float *)host)[i * from->stride + v]
                                                   : bf16_to_float(((uint16_t *)host)[i * from->stride + v]);
    free(host);
    return status;
}

/* Reads a part of the logits, some rows at a time. */
static int read_logits(const struct pass *pass, const struct model_logits_part *part) {
    struct runner *run = &pass->training->run;
    int64_t most = head_rows_most(run), vocab = run->base->options.config.vocab_size, end = part->first + part->count;
    struct logits_view view = {.logits = run->scratch.logits,
                               .type = head_logits_type(run),
                               .stride = run->base->part.vocab_stride,
                               .first = run->base->part.first_token,
                               .count = run->base->part.vocab};
    int status = final_norm_forward(pass);
    for (int64_t first = part->first; first < end && !status; first += most) {
        view.rows = end - first < most ? end - first : most;
        status = head_logits(pass, first, view.rows);
        THEN(status, logits_fetch(run->rank, &view, vocab, part->logits + (first - part->first) * vocab));
    }
    return status;
}

int model_logits_chunk(struct training_runner *training, const struct model_batch *batch, int chunk, const void *x,
                       void *y, const struct model_logits_part *part) {
    const struct model_pass asked = {.chunk = chunk};
    struct device_rows *rows = &training_stash(training, 0)->batch;
    TRY(upload_batch(training, batch, rows));
    rows->head.is_all = true; /* whatever their weights are */
    struct pass pass = pass_of(training, &asked);
    int status = pass_forward(training, &asked, PARAM_EVALUATION, x, y);
    training->kept.fresh = NULL;
    if (status || !chunk_has_head(training->run.base, pass.chunk))
        return status;
    status = head_begin(&pass, PARAM_EVALUATION);
    return status ? status : head_end(&pass, read_logits(&pass, part));
}

int model_logits(struct training_runner *training, const struct model_batch *batch, float *logits) {
    const struct model_logits_part all = {.count = batch->rows, .logits = logits};
    return model_logits_chunk(training, batch, 0, NULL, NULL, &all);
}

const struct hook_table *training_set_hooks(struct training_runner *training, const struct hook_table *hooks) {
    const struct hook_table *before = training->run.hooks;
    training->run.hooks = hooks;
    return before;
}
