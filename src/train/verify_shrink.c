/* The run of a proof: the layout of the real one, with a small model and few tokens. What divides over ranks keeps its
 * shape: shares of heads, an uneven vocabulary, stages with more layers or fewer, a last group of micro batches. */
#include "verify-internal.h"

#include "base/smaller.h"

enum { HEAD_SIZE = 8, TEXT_TOKENS = 24, VOCABULARY = 24, LAYER_ELEMENTS = 1 << 14, SAMPLES_MAX = 2 };

static const double LEARNING_RATE = 1e-3, INITIAL_DEVIATION = 0.1, CLIP = 0.1;

/* Returns columns of a head of which the rotation takes an even number. */
static int64_t small_head(const struct model_config *model) {
    int64_t size = HEAD_SIZE, rotated;
    for (; size < model->kv_channels && model->position_embedding != POSITION_LEARNED; size *= 2) {
        rotated = (int64_t)((double)size * model->rotary.percent);
        if (rotated > 0 && rotated % 2 == 0)
            break;
    }
    return smaller(size, model->kv_channels);
}

/* A rank has two groups of heads, or shares one with others, and enough of the MLP to fill a bucket of gradients. */
static void shrink_model(struct model_config *model, int64_t tensor) {
    int64_t heads = model->num_attention_heads / model->num_query_groups, per_group;
    model->num_query_groups = smaller(model->num_query_groups, 2 * tensor);
    per_group = model->num_query_groups < tensor ? tensor / model->num_query_groups : 1;
    model->num_attention_heads = model->num_query_groups * per_group * smaller(heads / per_group, 2);
    model->kv_channels = small_head(model);
    model->hidden_size = model->num_attention_heads * model->kv_channels;
    model->ffn_hidden_size = tensor * (LAYER_ELEMENTS / (2 * model->hidden_size) + 1);
    model->vocab_size = smaller(model->vocab_size, VOCABULARY * tensor + model->vocab_size % tensor);
    model->init_method_std = INITIAL_DEVIATION;
    if (model->window)
        model->window = smaller(model->window, TEXT_TOKENS / 2);
}

/* One layer for each chunk, two where the real chunks have several; the first and the last stage have a chunk more or
 * less, as they do in the run. */
static void shrink_layers(struct run_config *run, const struct rank_grid *grid) {
    int64_t chunks = run->parallel.virtual_pipeline_model_parallel_size;
    int64_t *ends[] = {&run->parallel.decoder_first_pipeline_num_layers,
                       &run->parallel.decoder_last_pipeline_num_layers};
    int64_t places = grid->pipeline * chunks, inner = grid->pipeline, layers = run->model.num_layers;
    int64_t counted =
        run->parallel.account_for_embedding_in_pipeline_split + run->parallel.account_for_loss_in_pipeline_split;
    int64_t rest = layers;
    for (int i = 0; i < 2; i++) {
        inner -= *ends[i] > 0;
        rest -= *ends[i];
    }
    if (inner == grid->pipeline) {
        run->model.num_layers = smaller((layers + counted) / places, 2) * places - counted;
        return;
    }
    int64_t each = inner ? rest / inner : 0, small = 2 * chunks;
    run->model.num_layers = inner * small;
    for (int i = 0; i < 2; i++) {
        if (!*ends[i])
            continue;
        *ends[i] = *ends[i] > each ? small + chunks : *ends[i] < each ? small - chunks : small;
        run->model.num_layers += *ends[i];
    }
}

/* At most 8 micro batches for each rank, in groups with a remainder like the run's. */
static void shrink_batch(struct run_config *run, const struct rank_grid *grid) {
    int64_t micro = run->train.global_batch_size / run->train.micro_batch_size / grid->data;
    int64_t group = run->parallel.microbatch_group_size_per_vp_stage, most = VERIFY_MICRO_BATCHES_MAX;
    most = grid->pipeline > most ? grid->pipeline : most;
    if (micro > most) {
        int64_t size = group > grid->pipeline ? smaller(group, most) : grid->pipeline;
        int64_t rest = micro % (group ? group : grid->pipeline), whole = most / size * size;
        micro = smaller(whole - (whole > size && rest ? size : 0) + rest, most);
        run->parallel.microbatch_group_size_per_vp_stage = group ? size : 0;
    }
    run->train.micro_batch_size = smaller(run->train.micro_batch_size, SAMPLES_MAX);
    run->train.global_batch_size = micro * run->train.micro_batch_size * grid->data;
}

/* Changes a run of any size: nothing is read or logged, and products are in fp32. */
static void simplify(struct run_config *run, int steps) {
    run->device = run->gemm_algorithms = run->tokenizer.path = NULL;
    run->collectives = 0;
    run->data.data_path = (struct config_list){0};
    run->train.precision = PRECISION_FP32;
    run->train.fp8_format = run->train.fp8_amax_compute_algo = 0;
    run->train.fp8_margin = run->train.fp8_amax_history_len = 0;
    run->train.train_iters = run->optim.lr_decay_iters = steps + 1;
    run->train.eval_interval = run->train.eval_iters = run->train.early_stop = run->train.exit_interval = 0;
    run->train.skip_train = false;
    run->optim.lr = LEARNING_RATE;
    run->optim.min_lr = run->optim.lr_warmup_init = 0;
    run->optim.lr_warmup_iters = run->optim.lr_wsd_decay_iters = 0;
    run->optim.lr_decay_style = LR_CONSTANT;
    run->optim.clip_grad = run->optim.clip_grad > 0 ? CLIP : 0; /* so small that it clips */
    run->checkpoint.save = run->checkpoint.load = NULL;
    run->checkpoint.save_interval = 0;
    run->checkpoint.async_save = false;
    run->log.metrics_file = run->log.tensorboard_dir = NULL;
}

int verify_shrink(struct verify_layout *job, bool is_full_size) {
    struct run_config *run = &job->run.config;
    struct rank_grid grid;
    struct pipeline_shape shape;
    if (job->ranks > VERIFY_RANKS_MAX)
        return status_fail(STATUS_USAGE, "verify layout: %d ranks, expected at most %d", job->ranks, VERIFY_RANKS_MAX);
    TRY(train_plan_grid(&job->run, job->ranks, &grid, &shape));
    simplify(run, job->steps);
    if (is_full_size)
        return run_config_resolve(run);
    struct model_config model = run->model;
    int64_t tokens = TEXT_TOKENS + job->virtual_tokens + job->first_position;
    shrink_model(&model, grid.tensor);
    model.max_position_embeddings = run->data.seq_length = (tokens + grid.tensor - 1) / grid.tensor * grid.tensor;
    run->model = model;
    shrink_layers(run, &grid);
    shrink_batch(run, &grid);
    if (run->parallel.recompute_num_layers > run->model.num_layers)
        run->parallel.recompute_num_layers = run->model.num_layers;
    model = run->model;
    run_config_take_model(run, &model);
    return run_config_resolve(run);
}

struct run_config verify_one_rank(const struct run_config *run) {
    struct run_config one = *run;
    memset(&one.parallel, 0, sizeof one.parallel); /* nothing is cut, overlapped or recomputed */
    one.parallel.tensor_model_parallel_size = one.parallel.pipeline_model_parallel_size = 1;
    one.parallel.context_parallel_size = one.parallel.expert_model_parallel_size = 1;
    one.parallel.virtual_pipeline_model_parallel_size = 1;
    return one;
}

/* ---- texts ---- */

static void put(struct gpt_batch *batch, int32_t token, int64_t position, int64_t sample, int64_t place) {
    int64_t at = batch->rows++;
    batch->tokens[at] = token;
    batch->labels[at] = 0;
    batch->loss_mask[at] = 0;
    batch->positions[at] = (int32_t)position;
    batch->sample[at] = (uint32_t)sample;
    batch->token[at] = (uint32_t)place;
}

/* Every sample is one text of 1/2 to all of the positions. Its first tokens are not trained, so ranks have unequal
 * numbers of labels. */
static int read_texts(const struct train_source *base, struct gpt_batch *batch, const struct train_samples *samples) {
    const struct verify_texts *texts = (const struct verify_texts *)base;
    int64_t before = texts->virtual_tokens, most = batch->seq_length - before - texts->first_position;
    int64_t first = samples->first;
    batch->rows = batch->segments = 0;
    for (int64_t k = first; k < first + batch->samples; k++) {
        struct philox draw = philox(texts->seed, (uint32_t)k, 0, 1, (uint32_t)RNG_TEST << 24);
        int64_t rows = most - draw.word[0] % (uint32_t)(most / 2), untrained = draw.word[1] % (uint32_t)(rows / 2);
        batch->segment_start[batch->segments++] = batch->rows;
        for (int64_t i = 0; i < before + rows; i++) {
            struct philox word = philox(texts->seed, (uint32_t)k, (uint32_t)i, 0, (uint32_t)RNG_TEST << 24);
            bool is_virtual = i < before;
            put(batch, (int32_t)(is_virtual ? texts->vocab + i : (int64_t)(word.word[0] % (uint32_t)texts->vocab)),
                texts->first_position + i, k, i);
            batch->labels[batch->rows - 1] = (int32_t)(word.word[1] % (uint32_t)texts->vocab);
            batch->loss_mask[batch->rows - 1] = i >= before + untrained;
        }
    }
    batch->padding = (texts->multiple - batch->rows % texts->multiple) % texts->multiple;
    if (batch->padding)
        batch->segment_start[batch->segments++] = batch->rows;
    for (int64_t i = 0; i < batch->padding; i++)
        put(batch, 0, texts->first_position, first, i);
    batch->segment_start[batch->segments] = batch->rows;
    return STATUS_OK;
}

struct verify_texts verify_texts_of(const struct verify_layout *job) {
    const struct run_config *run = &job->run.config;
    return (struct verify_texts){
        .source.read = read_texts,
        .seed = (uint64_t)run->data.seed,
        .vocab = run->model.vocab_size,
        .virtual_tokens = job->virtual_tokens,
        .first_position = job->first_position,
        .multiple = run->parallel.sequence_parallel ? run->parallel.tensor_model_parallel_size : 1,
    };
}
