/* The next token of each row of logits: changes of single ids, then temperature, top-k, top-p and min-p. They mean the
 * same as in transformers' logits processors, except for ties: of equal logits, the lowest ids come first, so that
 * exactly top_k tokens are kept.
 *
 * Nothing is sorted. A filter finds the distance from the largest logit at which it cuts. It uses histograms of the
 * digits of that distance; positive floats have the order of their bits. It reads only the tokens that it may keep. For
 * top-k, these are the groups of 64 whose largest logit is among the k largest of all groups. For top-p, these are the
 * tokens that are not so rare that all of them together stay below 1 - p. min-p is itself a distance.
 *
 * A NaN logit is never drawn. Positive infinity counts as the largest float. If no logit is finite, the token is the
 * lowest allowed id. Scores of ids that a mask forbids are -infinity, so they have no weight. */
#include "cpu/level/softmax.h"

#include <float.h>

enum { GROUP = 64, DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };

struct scratch {
    float *distance;     /* [V] first the scores, then (largest - score) / temperature */
    float *weight;       /* [V] exp(-distance) */
    uint32_t *candidate; /* [V] ids, ascending */
    float *group_best;   /* [groups] first the largest score, then the smallest distance */
    double *group_mass;  /* [groups] sum of weights */
    int64_t groups;
};

static size_t scratch_bytes(int64_t vocab) {
    size_t groups = (size_t)(vocab + GROUP - 1) / GROUP;
    return groups * (GROUP * (2 * sizeof(float) + sizeof(uint32_t)) + sizeof(float) + sizeof(double)) + 64;
}

static struct scratch scratch_at(char *memory, int64_t vocab) {
    struct scratch s = {.groups = (vocab + GROUP - 1) / GROUP};
    size_t padded = (size_t)s.groups * GROUP;
    s.group_mass = (double *)memory;
    s.distance = (float *)(s.group_mass + s.groups);
    s.weight = s.distance + padded;
    s.candidate = (uint32_t *)(s.weight + padded);
    s.group_best = (float *)(s.candidate + padded);
    return s;
}

size_t LEVEL(cpu_sample_workspace)(struct device *device, const struct sample *a) {
    int64_t workers = a->rows < device->threads ? a->rows : device->threads;
    return (size_t)workers * ((scratch_bytes(a->vocab) + 63) / 64 * 64);
}

/* Between finite and -infinity, as scores are. */
static inline float bounded(float score) {
    score = score > FLT_MAX ? FLT_MAX : score;
    return score == score ? score : -INFINITY;
}

/* The changes and the mask of a row; NULL: it has none. */
struct draw_by {
    const struct sample_change *change;
    const uint32_t *mask;
};

static float changed(float logit, const struct sample_row *row, const struct sample_change *change) {
    float score = logit + change->bias;
    if (change->is_seen)
        score = score < 0 ? score * row->repetition_penalty : score / row->repetition_penalty;
    if (change->count > 0)
        score -= row->presence_penalty + (float)change->count * row->frequency_penalty;
    return bounded(score);
}

static int64_t group_count(int64_t vocab, int64_t group) {
    return vocab - group * GROUP < GROUP ? vocab - group * GROUP : GROUP;
}

static inline bool is_allowed(const uint32_t *mask, int64_t id) {
    return !mask || mask[id / 32] >> (id % 32) & 1;
}

/* Forbids ids of a group of `count` scores. `mask` begins with the group's first id. */
static void forbid(float *score, int64_t count, const uint32_t *mask) {
    for (int64_t first = 0; first < count; first += 32) {
        uint32_t word = mask[first / 32];
        int64_t end = count - first < 32 ? count - first : 32;
        for (int64_t j = 0; j < end && word != UINT32_MAX; j++)
            score[first + j] = word >> j & 1 ? score[first + j] : -INFINITY;
    }
}

/* Changes the scores of single ids, and the best scores of their groups. */
TYPED_BODY void change_scores(const void *x, int64_t vocab, const struct sample_row *row, const struct draw_by *by,
                              struct scratch *s, enum dtype type) {
    const struct sample_change *change = by->change;
    for (int64_t i = 0; i < row->change_count; i++)
        if (is_allowed(by->mask, change[i].id))
            s->distance[change[i].id] = changed(load(x, change[i].id, type), row, &change[i]);
    for (int64_t i = 0; i < row->change_count; i++) {
        int64_t g = change[i].id / GROUP;
        s->group_best[g] = row_max(s->distance + g * GROUP, group_count(vocab, g), DTYPE_F32);
    }
}

/* Computes the scores and group_best. Returns the largest score. */
TYPED_BODY float score_row(const void *x, int64_t vocab, const struct sample_row *row, const struct draw_by *by,
                           struct scratch *s, enum dtype type) {
    float largest = -INFINITY;
    for (int64_t g = 0; g < s->groups; g++) {
        int64_t first = g * GROUP, count = group_count(vocab, g);
        const void *from = at_const(x, first, type);
        float *score = s->distance + first;
#pragma omp simd
        for (int64_t j = 0; j < count; j++)
            score[j] = bounded(load(from, j, type));
        if (by->mask)
            forbid(score, count, by->mask + first / 32);
        s->group_best[g] = row_max(score, count, DTYPE_F32);
    }
    if (row->change_count)
        change_scores(x, vocab, row, by, s, type);
    for (int64_t g = 0; g < s->groups; g++)
        largest = s->group_best[g] > largest ? s->group_best[g] : largest;
    return largest;
}

static int32_t first_with_score(const struct scratch *s, int64_t vocab, float score) {
    int64_t g = 0;
    while (g + 1 < s->groups && s->group_best[g] != score)
        g++;
    for (int64_t j = g * GROUP; j < vocab && j < (g + 1) * GROUP; j++)
        if (s->distance[j] == score)
            return (int32_t)j;
    return 0;
}

/* Replaces scores by distances, and computes weights. Returns the sum of the weights. */
static double weigh(struct scratch *s, int64_t vocab, float largest, float temperature) {
    double total = 0;
    for (int64_t g = 0; g < s->groups; g++) {
        int64_t first = g * GROUP, count = vocab - first < GROUP ? vocab - first : GROUP;
        float *distance = s->distance + first, *weight = s->weight + first, mass = 0;
#pragma omp simd reduction(+ : mass)
        for (int64_t j = 0; j < count; j++) {
            distance[j] = (largest - distance[j]) / temperature;
            weight[j] = vexp(-distance[j]);
            mass += weight[j];
        }
        s->group_best[g] = (largest - s->group_best[g]) / temperature;
        s->group_mass[g] = (double)mass;
        total += (double)mass;
    }
    return total;
}

static inline uint32_t distance_bits(float distance) {
    return vfloat_to_bits(distance) & 0x7fffffffu; /* zero has one sign here */
}

struct cut {
    uint32_t distance; /* as bits: all tokens that are nearer are kept */
    int64_t ties;      /* tokens kept at this distance */
};

/* Returns the cut at which the nearest of n distances reach `target`. Each counts its weight, or 1 without weights. A
 * NULL `id` means 0, 1, and so on. */
static struct cut find_cut(const float *distance, const float *weight, const uint32_t *id, int64_t n, double target) {
    uint32_t prefix = 0;
    double before = 0, mass[DIGITS], unit = 1;
    int64_t number[DIGITS], last_number = 1;
    static const int shifts[] = {20, 10, 0}, bits[] = {11, 10, 10};
    for (int level = 0; level < 3; level++) {
        uint32_t digits = 1u << bits[level], chosen = 0;
        memset(mass, 0, digits * sizeof *mass);
        memset(number, 0, digits * sizeof *number);
        for (int64_t i = 0; i < n; i++) {
            int64_t j = id ? id[i] : i;
            uint32_t key = distance_bits(distance[j]) >> shifts[level];
            if (level && key >> bits[level] != prefix)
                continue;
            key &= digits - 1;
            mass[key] += weight ? (double)weight[j] : 1.0;
            number[key]++;
        }
        /* If rounding puts the target just out of reach, the cut is the last digit that holds anything. */
        double reached = before;
        for (uint32_t d = 0; d < digits; d++) {
            if (!number[d])
                continue;
            chosen = d;
            before = reached;
            reached += mass[d];
            if (reached >= target)
                break;
        }
        prefix = prefix << bits[level] | chosen;
        unit = mass[chosen] / (double)number[chosen];
        last_number = number[chosen];
    }
    double ties = unit > 0 ? ceil((target - before) / unit) : (double)last_number;
    ties = ties < 1 ? 1 : ties;
    return (struct cut){prefix, ties < (double)last_number ? (int64_t)ties : last_number};
}

/* Keeps those of n candidates that are inside the cut, in order. Returns their number. */
static int64_t apply_cut(const struct scratch *s, int64_t n, struct cut cut) {
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = distance_bits(s->distance[s->candidate[i]]);
        bool is_tie = bits == cut.distance && cut.ties > 0;
        cut.ties -= is_tie;
        s->candidate[kept] = s->candidate[i];
        kept += bits < cut.distance || is_tie;
    }
    return kept;
}

/* Makes all tokens within `reach` the candidates. Returns their number. */
static int64_t collect(const struct scratch *s, int64_t vocab, float reach) {
    int64_t n = 0;
    for (int64_t g = 0; g < s->groups; g++) {
        if (!(s->group_best[g] <= reach))
            continue;
        int64_t end = (g + 1) * GROUP < vocab ? (g + 1) * GROUP : vocab;
        for (int64_t j = g * GROUP; j < end; j++) {
            s->candidate[n] = (uint32_t)j;
            n += s->distance[j] <= reach;
        }
    }
    return n;
}

static int64_t keep_top_k(const struct scratch *s, int64_t vocab, int64_t k) {
    float reach = INFINITY;
    if (k <= s->groups)
        reach = vbits_to_float(find_cut(s->group_best, NULL, NULL, s->groups, (double)k).distance);
    int64_t n = collect(s, vocab, reach);
    return apply_cut(s, n, find_cut(s->distance, NULL, s->candidate, n, (double)k));
}

static double mass_of(const struct scratch *s, int64_t n) {
    double mass = 0;
    for (int64_t i = 0; i < n; i++)
        mass += (double)s->weight[s->candidate[i]];
    return mass;
}

/* Keeps the likeliest tokens until they hold p of the mass. n < 0: no filter came before. Returns their number. */
static int64_t keep_top_p(const struct scratch *s, int64_t vocab, int64_t n, double p, double total) {
    if (n >= 0) {
        total = mass_of(s, n);
    } else {
        /* V tokens of weight w hold at most V w. If that is below (1 - p) of the mass, none of them is kept. */
        double rare = 0.999 * (1 - p) * total / (double)vocab;
        n = collect(s, vocab, (float)fmax(-log(rare) * 1.0001 + 1e-3, 0));
    }
    return apply_cut(s, n, find_cut(s->distance, s->weight, s->candidate, n, p * total));
}

/* Keeps tokens with at least p of the likeliest token's weight, which is 1. n < 0: no filter came before. Returns their
 * number. */
static int64_t keep_min_p(const struct scratch *s, int64_t vocab, int64_t n, float p) {
    int64_t kept = 0;
    p = p < 1 ? p : 1;
    if (n < 0)
        n = collect(s, vocab, -logf(p) * 1.0001f + 1e-3f);
    for (int64_t i = 0; i < n; i++) {
        s->candidate[kept] = s->candidate[i];
        kept += s->weight[s->candidate[i]] >= p;
    }
    return kept;
}

static int32_t draw_candidate(const struct scratch *s, int64_t n, double unit) {
    double target = unit * mass_of(s, n), sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)s->weight[s->candidate[i]];
        if (sum > target)
            return (int32_t)s->candidate[i];
    }
    return (int32_t)s->candidate[n - 1];
}

static int32_t draw_any(const struct scratch *s, int64_t vocab, double target) {
    int32_t last = 0;
    for (int64_t g = 0; g < s->groups; g++) {
        if (s->group_mass[g] <= target && g + 1 < s->groups) {
            target -= s->group_mass[g];
            continue;
        }
        for (int64_t j = g * GROUP; j < vocab && j < (g + 1) * GROUP; j++) {
            last = s->weight[j] > 0 ? (int32_t)j : last;
            target -= (double)s->weight[j];
            if (target < 0)
                return last;
        }
    }
    return last;
}

/* Returns the lowest allowed id; -1: none is. */
static int32_t first_allowed(const uint32_t *mask, int64_t vocab) {
    int64_t id = 0;
    while (id < vocab && !is_allowed(mask, id))
        id += mask[id / 32] ? 1 : 32;
    return id < vocab ? (int32_t)id : -1;
}

static int32_t draw(struct scratch *s, int64_t vocab, const struct sample_row *row, const uint32_t *mask,
                    float largest) {
    if (!(largest > -INFINITY))
        return first_allowed(mask, vocab);
    if (row->temperature == 0)
        return first_with_score(s, vocab, largest);
    double total = weigh(s, vocab, largest, row->temperature);
    double unit = rng_unit(rng_sample_word(row->seed, row->choice, row->position));
    int64_t kept = -1;
    if (row->top_k > 0 && row->top_k < vocab)
        kept = keep_top_k(s, vocab, row->top_k);
    if (row->top_p < 1)
        kept = keep_top_p(s, vocab, kept, (double)row->top_p, total);
    if (row->min_p > 0)
        kept = keep_min_p(s, vocab, kept, row->min_p);
    return kept < 0 ? draw_any(s, vocab, unit * total) : draw_candidate(s, kept, unit);
}

/* Returns the first token whose logit is `largest`. */
TYPED_BODY int32_t first_with_logit(const void *x, int64_t vocab, float largest, enum dtype type) {
    for (int64_t first = 0; first < vocab; first += GROUP) {
        int64_t end = first + GROUP < vocab ? first + GROUP : vocab;
        int found = 0;
#pragma omp simd reduction(| : found)
        for (int64_t j = first; j < end; j++)
            found |= load(x, j, type) == largest;
        for (int64_t j = first; found && j < end; j++)
            if (load(x, j, type) == largest)
                return (int32_t)j;
    }
    return 0;
}

/* ---- the likeliest ---- */

struct top {
    int32_t most, count;
    float logit[SAMPLE_MAX_TOP]; /* descending; of equal logits, the lower id comes first */
    int32_t id[SAMPLE_MAX_TOP];
};

/* Inserts a logit. Ids come in ascending order, so an equal logit is put after those that are there. */
static void put_top(struct top *top, int32_t id, float logit) {
    if (top->count == top->most && !(logit > top->logit[top->most - 1]))
        return;
    int32_t at = top->count < top->most ? top->count++ : top->most - 1;
    for (; at > 0 && top->logit[at - 1] < logit; at--) {
        top->logit[at] = top->logit[at - 1];
        top->id[at] = top->id[at - 1];
    }
    top->logit[at] = logit;
    top->id[at] = id;
}

TYPED_BODY void find_top(const void *x, int64_t vocab, struct top *top, enum dtype type) {
    for (int64_t first = 0; first < vocab; first += GROUP) {
        int64_t count = vocab - first < GROUP ? vocab - first : GROUP;
        if (top->count == top->most && !(row_max(at_const(x, first, type), count, type) > top->logit[top->most - 1]))
            continue;
        for (int64_t j = first; j < first + count; j++) {
            float logit = load(x, j, type);
            if (logit == logit)
                put_top(top, (int32_t)j, logit);
        }
    }
}

static float logprob_of(float logit, const struct softmax_sum *all) {
    return (float)((double)logit - (double)all->max - log(all->sum));
}

TYPED_BODY void top_of_row(const struct sample *a, int64_t i, const struct softmax_sum *all, enum dtype type) {
    struct top top = {.most = a->row[i].top_count};
    int32_t *token = a->top_token + i * SAMPLE_MAX_TOP;
    float *logprob = a->top_logprob + i * SAMPLE_MAX_TOP;
    if (top.most > 0)
        find_top(at_const(a->logits, i * a->stride, type), a->vocab, &top, type);
    for (int j = 0; j < SAMPLE_MAX_TOP; j++) {
        token[j] = j < top.count ? top.id[j] : -1;
        logprob[j] = j < top.count ? logprob_of(top.logit[j], all) : 0;
    }
}

/* A greedy choice needs no scores: without changes and infinities, it is the largest logit. */
TYPED_BODY void sample_row(const struct sample *a, int64_t i, char *memory, enum dtype type) {
    struct scratch s = scratch_at(memory, a->vocab);
    const struct sample_row *row = &a->row[i];
    const struct draw_by by = {
        .change = row->change_count ? a->changes + row->first_change : NULL,
        .mask = row->mask ? a->masks + (row->mask - 1) * sample_mask_words(a->vocab) : NULL,
    };
    const void *x = at_const(a->logits, i * a->stride, type);
    bool wants_top = a->top_token && row->top_count > 0;
    struct softmax_sum all = {.max = INFINITY};
    if ((a->logprob && row->draws) || wants_top)
        all = softmax_finite_row(x, a->vocab, type);
    int32_t token = -1;
    if (row->draws && row->temperature == 0 && !by.change && !by.mask && all.max > -INFINITY && all.max < FLT_MAX)
        token = first_with_logit(x, a->vocab, all.max, type);
    else if (row->draws)
        token = draw(&s, a->vocab, row, by.mask, score_row(x, a->vocab, row, &by, &s, type));
    a->token[i] = token;
    if (a->logprob)
        a->logprob[i] = token >= 0 ? logprob_of(load(x, token, type), &all) : 0;
    if (a->top_token)
        top_of_row(a, i, &all, type);
}

int LEVEL(cpu_sample)(const struct exec *exec, const struct sample *a) {
    TRY(require_activation("sample", a->type));
    size_t each = (scratch_bytes(a->vocab) + 63) / 64 * 64;
    int64_t workers = a->rows < exec_threads(exec) ? a->rows : exec_threads(exec);
#pragma omp parallel for num_threads(workers > 1 ? exec_threads(exec) : 1) schedule(static)
    for (int64_t w = 0; w < workers; w++)
        for (int64_t i = w; i < a->rows; i += workers) {
            char *memory = (char *)exec->workspace + (size_t)w * each;
            WITH_TYPE(T, a->type, sample_row(a, i, memory, T));
        }
    return STATUS_OK;
}
