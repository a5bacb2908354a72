/* A list of the ids whose logits change, with an index by hash. */
#include "infer/sampler.h"

#include <math.h>

static int64_t place_of(const struct sampler *sampler, int32_t id) {
    uint64_t mask = (uint64_t)sampler->index_count - 1;
    uint64_t at = (uint64_t)(uint32_t)id * 0x9e3779b97f4a7c15u >> 20 & mask;
    while (sampler->index[at] >= 0 && sampler->change[sampler->index[at]].id != id)
        at = (at + 1) & mask;
    return (int64_t)at;
}

/* Returns the change of an id, after adding it if necessary. */
static struct sample_change *change_of(struct sampler *sampler, int32_t id) {
    int64_t place = place_of(sampler, id);
    if (sampler->index[place] < 0) {
        sampler->index[place] = (int32_t)sampler->count;
        sampler->change[sampler->count++] = (struct sample_change){.id = id};
    }
    return &sampler->change[sampler->index[place]];
}

static int allocate(struct sampler *sampler, int64_t capacity, int64_t banned_count) {
    sampler->index_count = 1;
    while (sampler->index_count < 2 * capacity)
        sampler->index_count *= 2;
    sampler->change = malloc((size_t)capacity * sizeof *sampler->change);
    sampler->index = malloc((size_t)sampler->index_count * sizeof *sampler->index);
    sampler->banned = malloc((size_t)(banned_count + 1) * sizeof *sampler->banned);
    sampler->banned_bias = malloc((size_t)(banned_count + 1) * sizeof *sampler->banned_bias);
    if (!sampler->change || !sampler->index || !sampler->banned || !sampler->banned_bias) {
        sampler_close(sampler);
        return status_no_memory();
    }
    memset(sampler->index, 0xff, (size_t)sampler->index_count * sizeof *sampler->index); /* -1 */
    return STATUS_OK;
}

static void ban(struct sampler *sampler, const struct sampler_options *o) {
    for (int64_t i = 0; i < o->banned_count; i++) {
        struct sample_change *change = change_of(sampler, o->banned[i]);
        if (change->bias == -INFINITY) /* listed twice, or banned for ever */
            continue;
        sampler->banned[sampler->banned_count] = o->banned[i];
        sampler->banned_bias[sampler->banned_count++] = change->bias;
        change->bias = -INFINITY;
    }
}

int sampler_open(struct sampler *sampler, const struct sampler_options *o) {
    const struct sampling *s = o->sampling;
    bool has_bans = o->min_tokens > 0 && o->banned_count > 0;
    *sampler = (struct sampler){
        .sees_prompt = s->repetition_penalty != 1,
        .counts_output = s->repetition_penalty != 1 || s->presence_penalty != 0 || s->frequency_penalty != 0,
        .min_tokens = o->min_tokens,
    };
    if (!sampler->counts_output && !o->bias_count && !has_bans)
        return STATUS_OK;
    int64_t capacity = o->bias_count + (has_bans ? o->banned_count : 0) +
                       (sampler->sees_prompt ? o->prompt_length : 0) + (sampler->counts_output ? o->max_tokens : 0);
    TRY(allocate(sampler, capacity, has_bans ? o->banned_count : 0));
    for (int64_t i = 0; i < o->bias_count; i++)
        change_of(sampler, o->bias[i].id)->bias += o->bias[i].bias;
    if (has_bans)
        ban(sampler, o);
    for (int64_t i = 0; sampler->sees_prompt && i < o->prompt_length; i++)
        change_of(sampler, o->prompt[i])->is_seen = true;
    return STATUS_OK;
}

void sampler_close(struct sampler *sampler) {
    free(sampler->change);
    free(sampler->index);
    free(sampler->banned);
    free(sampler->banned_bias);
    *sampler = (struct sampler){0};
}

void sampler_add(struct sampler *sampler, int32_t token) {
    if (sampler->counts_output) {
        struct sample_change *change = change_of(sampler, token);
        change->count++;
        change->is_seen = true;
    }
    if (++sampler->length != sampler->min_tokens)
        return;
    for (int64_t i = 0; i < sampler->banned_count; i++)
        change_of(sampler, sampler->banned[i])->bias = sampler->banned_bias[i];
}
