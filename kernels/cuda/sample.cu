/* The next token of each row of logits, by a block for each row: changes of single ids, then temperature, top-k, top-p
 * and min-p. Ties and logits that are not finite mean the same as in cpu/level/sample.c.
 *
 * Nothing is sorted. A filter finds the distance from the largest logit at which it cuts, from histograms of the digits
 * of that distance; positive floats have the order of their bits. Weights are added as whole numbers, in units of
 * 2^-42. So sums have no rounding, and atomic additions may come in any order. */
#include "cuda/sample.h"
#include "cuda/softmax.cuh"

enum { WARPS_MOST = SAMPLE_THREADS_MOST / 32, BINS = 2048, NO_ID = 0x7fffffff };
constexpr uint32_t EVERYTHING = 0x80000000; /* lies farther than any distance */

typedef unsigned long long mass; /* in units of 2^-42; a filter by number counts tokens */

struct choice {
    float score;
    int32_t id;
};

/* Tokens that are nearer than `distance`, and the first `ties` at this distance. */
struct cut {
    uint32_t distance; /* the bits */
    mass ties;
};

/* Shared memory of a block. */
struct scratch {
    mass bins[BINS];
    mass masses[WARPS_MOST];
    float2 sums[WARPS_MOST];
    choice choices[WARPS_MOST];
    uint32_t ties[WARPS_MOST];
    mass before; /* the mass that is nearer than the chosen bin */
    uint32_t bin;
    int32_t token;
};

/* ---- sums and choices of a warp or a block ---- */

static __device__ __forceinline__ mass warp_sum_to(mass value) { /* of this lane and those below it */
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        mass below = __shfl_up_sync(~0u, value, distance);
        value += threadIdx.x % 32 >= distance ? below : 0;
    }
    return value;
}

/* The sum of this thread and those below it. `total` is that of the block. */
static __device__ mass block_sum_to(mass value, mass *total, mass *warps) {
    value = warp_sum_to(value);
    if (threadIdx.x % 32 == 31)
        warps[threadIdx.x / 32] = value;
    __syncthreads();
    *total = 0;
#pragma unroll 1
    for (int w = 0; w < blockDim.x / 32; w++) {
        value += w < threadIdx.x / 32 ? warps[w] : 0;
        *total += warps[w];
    }
    return value;
}

/* The larger score; of equal ones, the lower id. */
static __device__ __forceinline__ choice better(choice a, choice b) {
    return b.score > a.score || (b.score == a.score && b.id < a.id) ? b : a;
}

/* The best choice of all threads; every thread gets it. There must be a barrier between two calls. */
static __device__ choice block_best(choice own, choice *warps) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        own = better(own, {__shfl_xor_sync(~0u, own.score, distance), __shfl_xor_sync(~0u, own.id, distance)});
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = own;
    __syncthreads();
#pragma unroll 1
    for (int w = 0; w < blockDim.x / 32; w++)
        own = better(own, warps[w]);
    return own;
}

/* ---- scores ---- */

/* Between finite and -infinity, as scores are. */
static __device__ __forceinline__ float bounded(float score) {
    return score == score ? fminf(score, FLT_MAX) : -INFINITY;
}

static __device__ float changed(float logit, const struct sample_row &row, const struct sample_change &change) {
    float score = logit + change.bias;
    if (change.is_seen)
        score = score < 0 ? score * row.repetition_penalty : score / row.repetition_penalty;
    if (change.count > 0)
        score -= row.presence_penalty + (float)change.count * row.frequency_penalty;
    return bounded(score);
}

/* The row's mask; NULL: every id is allowed. */
static __device__ __forceinline__ const uint32_t *mask_of(const struct sample &a, const struct sample_row &row) {
    return row.mask ? a.masks + (row.mask - 1) * sample_mask_words(a.vocab) : NULL;
}

static __device__ __forceinline__ bool is_allowed(const uint32_t *mask, int64_t id) {
    return !mask || mask[id / 32] >> (id % 32) & 1;
}

/* The better of a choice and an id, if it is allowed. */
static __device__ __forceinline__ choice better_allowed(choice own, const uint32_t *mask, float score, int64_t id) {
    return is_allowed(mask, id) ? better(own, {score, (int32_t)id}) : own;
}

template <class T, int WIDTH>
static __device__ __forceinline__ void score_pack(const T *x, int64_t first, const uint32_t *mask, float *score,
                                                  choice &own) {
    pack<T, WIDTH> logits = *(const pack<T, WIDTH> *)(x + first);
#pragma unroll
    for (int k = 0; k < WIDTH; k++) {
        score[first + k] = is_allowed(mask, first + k) ? bounded(to_float(logits.at[k])) : -INFINITY;
        own = better_allowed(own, mask, score[first + k], first + k);
    }
}

/* Writes the scores; those of forbidden ids are -infinity. Returns the largest one, with its first allowed id. */
template <class T, int WIDTH>
static __device__ choice write_scores(const struct sample &a, const struct sample_row &row, const T *x, float *score,
                                      choice *warps) {
    choice own = {-INFINITY, NO_ID};
    const uint32_t *mask = mask_of(a, row);
    int64_t whole = a.vocab / WIDTH * WIDTH;
#pragma unroll(4 / WIDTH > 0 ? 4 / WIDTH : 1)
    for (int64_t j = WIDTH * threadIdx.x; j < whole; j += WIDTH * blockDim.x)
        score_pack<T, WIDTH>(x, j, mask, score, own);
#pragma unroll 1
    for (int64_t j = whole + threadIdx.x; j < a.vocab; j += blockDim.x)
        score_pack<T, 1>(x, j, mask, score, own);
    if (row.change_count) {
        __syncthreads(); /* the scores are written */
#pragma unroll 1
        for (int i = threadIdx.x; i < row.change_count; i += blockDim.x) {
            struct sample_change change = a.changes[row.first_change + i];
            if (is_allowed(mask, change.id))
                score[change.id] = changed(to_float(x[change.id]), row, change);
        }
        __syncthreads(); /* and changed */
        own = {-INFINITY, NO_ID};
        for (int64_t j = threadIdx.x; j < a.vocab; j += blockDim.x)
            own = better_allowed(own, mask, score[j], j);
    }
    return block_best(own, warps);
}

/* ---- filters ---- */

/* The tokens of a row that a filter may keep. */
struct tokens {
    const float *distance;
    int64_t vocab;
};

static __device__ __forceinline__ uint32_t distance_bits(float distance) {
    return __float_as_uint(distance) & 0x7fffffff; /* zero has one sign here */
}

static __device__ __forceinline__ mass mass_of(float weight) {
    return __float2ull_rn(weight * 0x1p42f);
}

static __device__ __forceinline__ float weight_at(uint32_t distance) {
    return expf(-__uint_as_float(distance));
}

/* How a filter measures tokens: by their number up to `least`, or by their weights up to this share (of 2^64) of all.
 */
struct measure_by {
    bool is_number;
    mass least;
};

static __device__ __forceinline__ mass mass_at(uint32_t distance, const measure_by &by) {
    return by.is_number ? 1 : mass_of(weight_at(distance));
}

/* Fills the bins with tokens inside a cut whose higher digits are `prefix`. */
static __device__ void fill_bins(const tokens &t, const cut &inside, const measure_by &by, int shift, uint32_t prefix,
                                 mass *bins) {
#pragma unroll 1
    for (int b = threadIdx.x; b < BINS; b += blockDim.x)
        bins[b] = 0;
    __syncthreads();
    for (int64_t j = threadIdx.x; j <= t.vocab; j += blockDim.x) { /* the last one stands for the ties */
        bool is_token = j < t.vocab;
        uint32_t distance = is_token ? distance_bits(t.distance[j]) : inside.distance;
        if ((is_token && distance >= inside.distance) || (shift < 20 && distance >> (shift + 10) != prefix))
            continue;
        mass many = mass_at(distance, by) * (is_token ? 1 : inside.ties);
        if (many)
            atomicAdd(&bins[shift < 20 ? distance >> shift & 1023 : distance >> shift], many);
    }
    __syncthreads();
}

/* Finds the bin in which the mass reaches `least`, and writes it to the scratch. */
static __device__ void choose_bin(mass before, mass own, mass least, scratch &s) {
    int each = BINS / blockDim.x;
    if (before >= least || before + own < least)
        return;
    int b = threadIdx.x * each;
#pragma unroll 1
    for (; before + s.bins[b] < least; b++)
        before += s.bins[b];
    s.before = before;
    s.bin = b;
}

/* Returns the cut at which the nearest tokens inside another cut reach what the filter wants. */
static __device__ cut find_cut(const tokens &t, const cut &inside, const measure_by &by, scratch &s) {
    int each_thread = BINS / blockDim.x;
    uint32_t prefix = 0;
    mass before = 0, least = by.least, total;
#pragma unroll 1
    for (int shift = 20; shift >= 0; shift -= 10) {
        fill_bins(t, inside, by, shift, prefix, s.bins);
        mass own = 0;
#pragma unroll 1
        for (int b = 0; b < each_thread; b++)
            own += s.bins[threadIdx.x * each_thread + b];
        mass end = before + block_sum_to(own, &total, s.masses);
        if (shift == 20 && !by.is_number)
            least = __umul64hi(total, by.least);
        least = least ? least : 1;
        choose_bin(end - own, own, least, s);
        __syncthreads();
        before = s.before;
        prefix = shift == 20 ? s.bin : prefix << 10 | s.bin;
    }
    mass each = mass_at(prefix, by);
    return {prefix, (least - before + each - 1) / each};
}

/* ---- the draw: a warp works on consecutive ids ---- */

/* A token's mass, as min_p keeps it. */
static __device__ __forceinline__ mass kept_mass(uint32_t distance, float min_p) {
    float weight = weight_at(distance);
    return weight >= min_p ? mass_of(weight) : 0;
}

/* The warp's mass before the cut, and its number of ties, are written to the scratch. */
static __device__ void sum_range(const tokens &t, const cut &cut, float min_p, int64_t first, int64_t end, scratch &s) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    mass sum = 0;
    uint32_t ties = 0;
    for (int64_t j = first + lane; j < end; j += 32) {
        uint32_t distance = distance_bits(t.distance[j]);
        sum += distance < cut.distance ? kept_mass(distance, min_p) : 0;
        ties += distance == cut.distance;
    }
    sum = warp_sum_to(sum);
    ties = __reduce_add_sync(~0u, ties);
    if (lane == 31) {
        s.masses[warp] = sum;
        s.ties[warp] = ties;
    }
}

/* Writes the first id of a warp's range at which the mass exceeds `target`. `before` and `ties` belong to the ids below
 * the range. */
static __device__ void draw_in_range(const tokens &t, const cut &cut, float min_p, int64_t first, int64_t end,
                                     mass before, mass ties, mass target, scratch &s) {
    int lane = threadIdx.x % 32;
#pragma unroll 1
    for (; first < end; first += 32) {
        uint32_t distance = first + lane < end ? distance_bits(t.distance[first + lane]) : ~0u;
        uint32_t equal = __ballot_sync(~0u, distance == cut.distance);
        bool is_tie = equal >> lane & 1 && ties + __popc(equal & ((1u << lane) - 1)) < cut.ties;
        mass reached = before + warp_sum_to(distance < cut.distance || is_tie ? kept_mass(distance, min_p) : 0);
        uint32_t found = __ballot_sync(~0u, reached > target);
        if (found) {
            if (lane == 0)
                s.token = (int32_t)first + __ffs(found) - 1;
            return;
        }
        before = __shfl_sync(~0u, reached, 31);
        ties += __popc(equal);
    }
}

/* `share` of 2^64 is where the draw falls. */
static __device__ void draw_inside(const tokens &t, const cut &cut, float min_p, mass share, scratch &s) {
    int warp = threadIdx.x / 32;
    int64_t range = (t.vocab + blockDim.x - 1) / blockDim.x * 32;
    int64_t first = warp * range, end = first + range < t.vocab ? first + range : t.vocab;
    sum_range(t, cut, min_p, first, end, s);
    __syncthreads();
    mass total = 0, before = 0, own = 0, ties = 0, ties_before = 0, each = kept_mass(cut.distance, min_p);
#pragma unroll 1
    for (int w = 0; w < blockDim.x / 32; w++) {
        mass rest = cut.ties - ties, many = s.ties[w] < rest ? s.ties[w] : rest, sum = s.masses[w] + many * each;
        before = w == warp ? total : before;
        ties_before = w == warp ? ties : ties_before;
        own = w == warp ? sum : own;
        total += sum;
        ties += many;
    }
    mass target = __umul64hi(total, share);
    if (before <= target && target < before + own)
        draw_in_range(t, cut, min_p, first, end, before, ties_before, target, s);
    __syncthreads();
}

/* Returns the token of a row whose scores are written; -1: no id is allowed. */
static __device__ int32_t draw(const struct sample &a, const struct sample_row &row, float *distance, choice best,
                               scratch &s) {
    if (row.temperature == 0 || best.score == -INFINITY)
        return best.id == NO_ID ? -1 : best.id;
    for (int64_t j = threadIdx.x; j < a.vocab; j += blockDim.x)
        distance[j] = (best.score - distance[j]) / row.temperature;
    __syncthreads();
    const tokens t = {distance, a.vocab};
    cut kept = {EVERYTHING, 0};
    if (row.top_k > 0 && row.top_k < a.vocab)
        kept = find_cut(t, kept, {true, (mass)row.top_k}, s);
    if (row.top_p < 1)
        kept = find_cut(t, kept, {false, __float2ull_rn(fmaxf(row.top_p, 0) * 0x1p64f)}, s);
    uint32_t word = rng_sample_word(row.seed, row.choice, row.position);
    draw_inside(t, kept, fminf(row.min_p, 1), (mass)word << 32 | 1u << 31, s);
    return s.token;
}

/* ---- plain logits ---- */

static __device__ __forceinline__ float logprob_of(float logit, const figures &all) {
    return logit - all.max - logf(all.sum);
}

/* Writes the likeliest ids of a row, one after the other: the best of those that come after the one before. */
template <class T>
static __device__ void write_top(const struct sample &a, int64_t i, const T *x, const figures &all, scratch &s) {
    int32_t *token = a.top_token + i * SAMPLE_MAX_TOP;
    float *logprob = a.top_logprob + i * SAMPLE_MAX_TOP;
    choice last = {INFINITY, -1};
#pragma unroll 1
    for (int n = 0; n < SAMPLE_MAX_TOP; n++) {
        choice own = {-INFINITY, NO_ID};
        for (int64_t j = threadIdx.x; n < a.row[i].top_count && j < a.vocab; j += blockDim.x) {
            choice next = {to_float(x[j]), (int32_t)j};
            if (next.score < last.score || (next.score == last.score && next.id > last.id))
                own = better(own, next);
        }
        if (n < a.row[i].top_count) {
            __syncthreads(); /* the choices before these have been read */
            last = own = block_best(own, s.choices);
        }
        bool is_there = own.id != NO_ID;
        if (threadIdx.x == 0) {
            token[n] = is_there ? own.id : -1;
            logprob[n] = is_there ? logprob_of(own.score, all) : 0;
        }
    }
}

/* The best choice of a row that is greedy and has neither changes nor a mask, and the figures of its logits: one
 * reading of the row. */
template <class T, int WIDTH>
static __device__ choice measure_best(const T *x, int64_t vocab, figures &all, scratch &s) {
    own_figures own = {-INFINITY, 0, 0};
    choice best = {-INFINITY, NO_ID};
    int64_t whole = vocab / WIDTH;
#pragma unroll 4
    for (int64_t j = threadIdx.x; j < whole; j += blockDim.x) {
        pack<T, WIDTH> logits = ((const pack<T, WIDTH> *)x)[j];
        add_pack<T, WIDTH>(&logits, own);
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            best = better(best, {bounded(to_float(logits.at[k])), (int32_t)(j * WIDTH + k)});
    }
#pragma unroll 1
    for (int64_t j = whole * WIDTH + threadIdx.x; j < vocab; j += blockDim.x) {
        add_pack<T, 1>((const pack<T, 1> *)x + j, own);
        best = better(best, {bounded(to_float(x[j])), (int32_t)j});
    }
    all = join_figures(own, true, s.sums);
    return block_best(best, s.choices);
}

template <class T> static __device__ void sample_row_of(const struct sample_call &c, int64_t i, scratch &s) {
    const struct sample &a = c.call;
    const struct sample_row row = a.row[i];
    const T *x = (const T *)a.logits + i * a.stride;
    bool is_packed = a.stride % PACK<T> == 0 && is_aligned(a.logits);
    figures all = {};
    int32_t token = -1;
    bool is_plain = row.draws && row.temperature == 0 && !row.change_count && !row.mask;
    if (is_plain)
        token = (is_packed ? measure_best<T, PACK<T>>(x, a.vocab, all, s) : measure_best<T, 1>(x, a.vocab, all, s)).id;
    else if ((a.logprob && row.draws) || (a.top_token && row.top_count > 0))
        all = is_packed ? measure<T, PACK<T>>(x, a.vocab, true, s.sums) : measure<T, 1>(x, a.vocab, true, s.sums);
    if (row.draws && !is_plain) {
        float *distance = c.distance + i * c.distance_stride;
        choice best = is_packed ? write_scores<T, PACK<T>>(a, row, x, distance, s.choices)
                                : write_scores<T, 1>(a, row, x, distance, s.choices);
        token = draw(a, row, distance, best, s);
    }
    if (threadIdx.x == 0) {
        a.token[i] = token;
        if (a.logprob)
            a.logprob[i] = token >= 0 ? logprob_of(to_float(x[token]), all) : 0;
    }
    if (a.top_token)
        write_top(a, i, x, all, s);
}

extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS_MOST) sample_fp32(struct sample_call c) {
    __shared__ scratch s;
    wait_for_kernels_before();
    sample_row_of<float>(c, blockIdx.x, s);
}
extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS_MOST) sample_bf16(struct sample_call c) {
    __shared__ scratch s;
    wait_for_kernels_before();
    sample_row_of<bf16>(c, blockIdx.x, s);
}
