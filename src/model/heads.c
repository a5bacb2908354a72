/* Processes queries and keys between the product that makes them and the attention. It applies the norm of each head,
 * if the model has it, and the rotation by angles that grow with the position.
 *
 * The angles have the same bits as in `transformers` if the C library's powers have. An angle is an inverse frequency
 * in fp32 times the position, rounded to fp32. Cosine and sine are then multiplied by YaRN's attention factor. */
#include "model-internal.h"

#include <math.h>

/* ---- angles ---- */

int heads_turned_columns(const struct model_config *config) {
    bool turns = config->position_embedding != POSITION_LEARNED;
    return turns ? (int)((double)model_widths(config, 1).head * config->rotary.percent) : 0;
}

/* Llama 3's rule: low frequencies are divided by the factor, high ones are kept, and those in between are interpolated.
 */
static float llama3_frequency(const struct model_config *c, float frequency) {
    double original = (double)c->rotary.original_positions;
    float wave = (float)(2 * M_PI) / frequency, factor = (float)c->rotary.factor;
    if (wave < (float)(original / c->rotary.high))
        return frequency;
    if (wave > (float)(original / c->rotary.low))
        return frequency / factor;
    float smooth = ((float)original / wave - (float)c->rotary.low) / (float)(c->rotary.high - c->rotary.low);
    return (1 - smooth) * frequency / factor + smooth * frequency;
}

/* Returns the column pair that makes `turns` full rotations within the model's original positions. */
static double yarn_pair(const struct model_config *c, double turns, int columns) {
    double original = (double)c->rotary.original_positions;
    return columns * log(original / (turns * 2 * M_PI)) / (2 * log(c->rotary.base));
}

/* YaRN's rule (arXiv 2309.00071): fast pairs are kept, slow pairs are divided by the factor, and a ramp joins those in
 * between. */
static float yarn_frequency(const struct model_config *c, float frequency, int pair, int columns) {
    double low = floor(yarn_pair(c, c->rotary.beta_fast, columns));
    double high = ceil(yarn_pair(c, c->rotary.beta_slow, columns));
    low = low > 0 ? low : 0;
    high = high < columns - 1 ? high : columns - 1;
    if (low == high)
        high += 0.001;
    float ramp = ((float)pair - (float)low) / (float)(high - low);
    float kept = 1 - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp);
    return frequency / (float)c->rotary.yarn_factor * (1 - kept) + frequency * kept;
}

static float inverse_frequency(const struct model_config *c, int pair, int columns) {
    float power = (float)pow(c->rotary.base, (double)((float)(2 * pair) / (float)columns));
    float frequency = 1.0f / power;
    if (c->position_embedding == POSITION_YARN)
        return yarn_frequency(c, frequency, pair, columns);
    if (c->rotary.factor > 0)
        return llama3_frequency(c, frequency);
    return c->rotary.interpolation > 0 ? frequency / (float)c->rotary.interpolation : frequency;
}

static float attention_factor(const struct model_config *c) {
    if (c->position_embedding != POSITION_YARN)
        return 1;
    return (float)(c->rotary.attention_factor > 0 ? c->rotary.attention_factor : 0.1 * log(c->rotary.yarn_factor) + 1);
}

int heads_upload_angles(struct runner *run) {
    const struct model_config *c = &run->base->options.config;
    const struct model_angles *angles = &run->angles;
    struct stream *stream = run->rank->exec.stream;
    int64_t pairs = angles->columns / 2, count = angles->positions * pairs;
    if (!angles->columns)
        return STATUS_OK;
    float *cosines = malloc((size_t)(2 * count + pairs) * sizeof *cosines);
    TRY(status_allocated(cosines));
    float *sines = cosines + count, *frequencies = sines + count;
    float factor = attention_factor(c);
    for (int64_t pair = 0; pair < pairs; pair++)
        frequencies[pair] = inverse_frequency(c, (int)pair, angles->columns);
        /* As many threads as for initial values: a model with 131,072 positions has 8 million angles. */
#pragma omp parallel for num_threads(usable_cores()) schedule(static)
    for (int64_t i = 0; i < count; i++) {
        float angle = (float)(i / pairs) * frequencies[i % pairs];
        cosines[i] = cosf(angle) * factor;
        sines[i] = sinf(angle) * factor;
    }
    int status = stream_copy_to_device(stream, angles->cos, cosines, (size_t)count * sizeof *cosines);
    THEN(status, stream_copy_to_device(stream, angles->sin, sines, (size_t)count * sizeof *sines));
    THEN(status, stream_wait(stream));
    free(cosines);
    return status;
}

/* ---- passes ---- */

const void *heads_of(const struct block_pass *block, int64_t *stride) {
    const struct runner *run = block->pass->run;
    const struct model_widths *widths = &run->base->part.widths;
    bool has_norms = run->base->options.config.qk_layernorm;
    *stride = has_norms ? widths->q + widths->kv : widths->qkv;
    return has_norms ? block->saved->turned : block->saved->qkv;
}

void *heads_gradient(const struct runner *run) {
    return run->base->options.config.qk_layernorm ? run->gradients.turned : run->gradients.qkv;
}

static int turn(const struct block_pass *block, void *heads, int64_t stride, bool is_backward) {
    const struct runner *run = block->pass->run;
    const struct model_widths *widths = &run->base->part.widths;
    struct rotary call = {
        .rows = block->pass->rows,
        .heads = (int)(widths->heads + widths->query_groups),
        .head_size = (int)widths->head,
        .rotary = run->angles.columns,
        .type = run->base->options.dtype,
        .positions = block->pass->batch->positions,
        .cos = run->angles.cos,
        .sin = run->angles.sin,
        .x = heads,
        .stride = stride,
        .is_backward = is_backward,
    };
    return run->angles.columns ? rank_run(run->rank, PHASE_ATTENTION, rotary, &call) : STATUS_OK;
}

/* The heads that share one norm: their columns in the product's output, and in the normalised result. */
struct heads {
    const struct norm_params *norm;
    int64_t first, count;
    float *mean, *rstd;
};

enum { NORMED_HEADS = 2 };

static void list_heads(const struct block_pass *block, struct heads heads[NORMED_HEADS]) {
    const struct block_params *params = &block->pass->run->base->blocks[block->layer];
    const struct model_widths *widths = &block->pass->run->base->part.widths;
    const struct block_saved *saved = block->saved;
    heads[0] = (struct heads){&params->q_norm, 0, widths->heads, saved->mean_q, saved->rstd_q};
    heads[1] = (struct heads){&params->k_norm, widths->q, widths->query_groups, saved->mean_k, saved->rstd_k};
}

static struct norm heads_norm(const struct block_pass *block, const struct heads *heads) {
    const struct runner *run = block->pass->run;
    return (struct norm){
        .rows = block->pass->rows,
        .cols = run->base->part.widths.head,
        .heads = (int)heads->count,
        .x = model_element(run, block->saved->qkv, heads->first),
        .x_stride = run->base->part.widths.qkv,
        .mean = heads->mean,
        .rstd = heads->rstd,
    };
}

static int norm_heads(const struct block_pass *block) {
    const struct runner *run = block->pass->run;
    struct heads heads[NORMED_HEADS];
    int status = STATUS_OK;
    list_heads(block, heads);
    for (int i = 0; i < NORMED_HEADS && !status; i++) {
        struct norm call = heads_norm(block, &heads[i]);
        call.y = model_element(run, block->saved->turned, heads[i].first);
        call.y_stride = run->base->part.widths.q + run->base->part.widths.kv;
        status = norm_forward(run, heads[i].norm, &call);
    }
    return status;
}

static int norm_heads_backward(const struct block_pass *block) {
    const struct runner *run = block->pass->run;
    struct heads heads[NORMED_HEADS];
    int status = STATUS_OK;
    list_heads(block, heads);
    for (int i = 0; i < NORMED_HEADS && !status; i++) {
        struct norm call = heads_norm(block, &heads[i]);
        call.dx = model_element(run, run->gradients.qkv, heads[i].first);
        call.dy = model_element(run, run->gradients.turned, heads[i].first);
        call.y_stride = run->base->part.widths.q + run->base->part.widths.kv;
        call.dx_stride = call.x_stride;
        status = norm_backward(run, heads[i].norm, &call);
    }
    return status;
}

int heads_forward(const struct block_pass *block) {
    int64_t stride;
    const void *heads = heads_of(block, &stride);
    int status = block->pass->run->base->options.config.qk_layernorm ? norm_heads(block) : STATUS_OK;
    return status ? status : turn(block, (void *)heads, stride, false);
}

int heads_backward(const struct block_pass *block) {
    const struct runner *run = block->pass->run;
    int64_t stride;
    heads_of(block, &stride);
    int status = turn(block, heads_gradient(run), stride, true);
    return status || !run->base->options.config.qk_layernorm ? status : norm_heads_backward(block);
}
