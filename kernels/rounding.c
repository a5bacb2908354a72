/* Nearest rounding. A tile is what shares a scale: a group of a row, or of several. Flat groups are tiles of one long
 * row. bitsandbytes' values are those of its CPU library, which its steps below repeat one by one. */
#include "kernels/rounding.h"

#include <math.h>

static const struct rounding roundings[] = {
    {"int8", {CODES_INTEGERS, 8, 128, ENCODED_SYMMETRIC, DTYPE_BF16, -1, 0}, 1, false, 0, false},
    {"int4", {CODES_INTEGERS, 4, 8, ENCODED_SYMMETRIC, DTYPE_BF16, 0, 0}, 1, false, 0, false},
    {"nf4", {CODES_NF4, 4, 0, ENCODED_SYMMETRIC, DTYPE_F32, 64, 0}, 1, true, 0, true},
    {"fp4", {CODES_FP4, 4, 0, ENCODED_SYMMETRIC, DTYPE_F32, 64, 0}, 1, true, 0, true},
    {"fp8", {CODES_E4M3, 8, 0, ENCODED_SYMMETRIC, DTYPE_F32, 128, 0}, 128, false, 0, false},
};

const struct rounding *rounding_find(const char *name) {
    for (size_t i = 0; i < sizeof roundings / sizeof *roundings; i++)
        if (!strcmp(roundings[i].name, name))
            return &roundings[i];
    return NULL;
}

struct encoding rounding_encoding(const struct rounding *rounding, int64_t columns) {
    struct encoding encoding = rounding->encoding;
    if (rounding->is_flat)
        while (columns % encoding.group)
            encoding.group /= 2;
    else if (encoding.group <= 0) {
        int64_t group = encoding.group ? columns : 128;
        while (group >= 32 && columns % group)
            group /= 2;
        encoding.group = (int32_t)(group < 32 ? columns : group);
    }
    return encoding;
}

/* ---- the codes of one row of a tile ---------------------------------------------------------------------------- */

/* Adding this to a number of up to 22 bits rounds it to an integer, ties to even. */
static const float to_integer = 0x1.8p23F;

static void integer_codes(const float *x, int64_t count, float scale, int zero, int largest, uint8_t *out) {
    float low = (float)-zero, high = (float)(largest - zero);
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float number = x[i] / scale;
        number = number > low ? number : low;
        number = number < high ? number : high;
        out[i] = (uint8_t)((int)(number + to_integer - to_integer) + zero);
    }
}

/* The codes of fp8_from_float. Below 2^-6, numbers are multiples of 2^-9. */
static void e4m3_codes(const float *x, int64_t count, float scale, uint8_t *out) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float number = fp8_round(DTYPE_E4M3, x[i] / scale), size = number < 0 ? -number : number;
        uint32_t bits, normal;
        memcpy(&bits, &number, sizeof bits);
        normal = ((bits & 0x7fffffff) >> 20) - (120U << 3);
        out[i] = (uint8_t)((size < 0x1p-6F ? (uint32_t)(int)(size * 512) : normal) | bits >> 31 << 7);
    }
}

/* Codes of 16 numbers in ascending order. fp4 has 0 twice. */
static const uint8_t ascending[2][16] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                         {11, 10, 13, 12, 15, 14, 9, 0, 8, 1, 6, 7, 4, 5, 2, 3}};

/* Writes codes of up to 64 numbers. A group that is cut short is divided by its scale; others are multiplied by the
 * reciprocal. */
static void table_codes(enum encoded_codes codes, const float *x, int64_t count, float scale, bool is_short,
                        uint8_t *out) {
    const float *table = encoded_table(codes);
    const uint8_t *order = ascending[codes == CODES_FP4];
    float numbers[64], inverse = 1 / fmaxf(scale, 1e-38F);
    int below[64] = {0};
    for (int64_t i = 0; i < count; i++)
        numbers[i] = is_short ? x[i] / scale : x[i] * inverse;
    for (int j = 0; j < 15; j++) {
        float bound = (table[order[j]] + table[order[j + 1]]) / 2;
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            below[i] += bound < numbers[i];
    }
    for (int64_t i = 0; i < count; i++)
        out[i] = order[below[i]];
}

/* ---- tiles ----------------------------------------------------------------------------------------------------- */

struct tiles {
    const struct rounding_call *call;
    int64_t rows, columns, group; /* of the matrix as tiles divide it: flat groups are of one row */
    int64_t across, count;        /* tiles of a row, and in all */
};

static void store(enum dtype type, void *array, int64_t i, float value) {
    if (type == DTYPE_F32)
        ((float *)array)[i] = value;
    else
        ((uint16_t *)array)[i] = type == DTYPE_BF16 ? bf16_from_float(value) : f16_from_float(value);
}

static float rounded_to(enum dtype type, float value) {
    return type == DTYPE_F32    ? value
           : type == DTYPE_BF16 ? bf16_to_float(bf16_from_float(value))
                                : f16_to_float(f16_from_float(value));
}

/* Widens *low .. *high, which has 0, to the range of a row. */
static void find_range(const float *x, int64_t count, float *low, float *high) {
    float least = *low, most = *high;
#pragma omp simd reduction(min : least) reduction(max : most)
    for (int64_t i = 0; i < count; i++) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
    }
    *low = least;
    *high = most;
}

/* Returns the scale, rounded to its type, of numbers from `low` to `high`. */
static float scale_of(const struct rounding *rounding, float low, float high, bool is_short, int *zero) {
    const struct encoding *e = &rounding->encoding;
    bool has_zeros = e->shift == ENCODED_ZEROS;
    int largest = (1 << e->bits) - 1;
    float divisor = e->codes == CODES_E4M3       ? fp8_largest(DTYPE_E4M3)
                    : e->codes != CODES_INTEGERS ? 1
                    : has_zeros                  ? (float)largest
                                                 : (float)(largest / 2);
    float scale = (has_zeros ? high - low : fmaxf(high, -low)) / divisor;
    scale = rounded_to(e->scale_type, is_short ? fmaxf(scale, 1e-38F) : scale);
    if (scale == 0 && !rounding->is_flat) /* all values are 0, or vanish in the scale's type */
        scale = 1;
    *zero = has_zeros ? (int)fmaxf(fminf(rintf(-low / scale), (float)largest), rounding->lowest_zero) : e->bias;
    return scale;
}

float rounding_scale(const struct rounding *rounding, const float *x, int64_t count, int *zero) {
    float low = 0, high = 0;
    find_range(x, count, &low, &high);
    return scale_of(rounding, low, high, false, zero);
}

void rounding_store(const struct encoded_rows *to, int64_t row, int64_t group, float scale, int zero) {
    int64_t at = row * encoded_groups(&to->encoding, to->positions) + group;
    store(to->encoding.scale_type, to->scales, at, scale);
    if (to->encoding.shift == ENCODED_ZEROS)
        ((uint8_t *)to->shifts)[at] = (uint8_t)zero;
}

static void round_tile(const struct tiles *tiles, int64_t tile) {
    const struct rounding_call *call = tiles->call;
    const struct encoding *e = &call->rounding->encoding;
    struct encoded_rows *to = call->to;
    int64_t row = tile / tiles->across * call->rounding->tall, first = tile % tiles->across * tiles->group;
    int64_t wide = tiles->columns - first < tiles->group ? tiles->columns - first : tiles->group;
    int64_t end = tiles->rows - row < call->rounding->tall ? tiles->rows : row + call->rounding->tall;
    float low = 0, high = 0;
    for (int64_t r = row; r < end; r++)
        find_range(call->values + r * tiles->columns + first, wide, &low, &high);
    bool is_short = call->rounding->is_flat && wide < tiles->group;
    int zero;
    float scale = scale_of(call->rounding, low, high, is_short, &zero);
    for (int64_t r = row; r < end; r++) {
        int64_t at = r * tiles->across + tile % tiles->across;
        const float *x = call->values + r * tiles->columns + first;
        uint8_t *out = to->codes + r * tiles->columns + first;
        store(e->scale_type, to->scales, at, scale);
        if (e->shift == ENCODED_ZEROS)
            ((uint8_t *)to->shifts)[at] = (uint8_t)zero;
        if (e->codes == CODES_INTEGERS)
            integer_codes(x, wide, scale, zero, (1 << e->bits) - 1, out);
        else if (e->codes == CODES_E4M3)
            e4m3_codes(x, wide, scale, out);
        else
            table_codes(e->codes, x, wide, scale, is_short, out);
    }
}

/* ---- scales that are rounded themselves ------------------------------------------------------------------------ */

/* The numbers of bitsandbytes' dynamic map above 0, as PyTorch computes them. Those below 0 mirror them, but for -1. */
static const float above_zero[128] = {
    5.5000004e-7F, 3.2500002e-6F, 7.75e-6F,      2.1249998e-5F, 4.375e-5F,    6.625e-5F,     8.875e-5F,
    .00015625001F, .00026875004F, .00038125002F, .00049375003F, .0006062501F, .00071875006F, .00083125F,
    .0009437501F,  .0012812499F,  .00184375F,    .00240625F,    .00296875F,   .0035312497F,  .00409375F,
    .0046562497F,  .0052187503F,  .00578125F,    .00634375F,    .00690625F,   .00746875F,    .00803125F,
    .00859375F,    .009156249F,   .00971875F,    .01140625F,    .01421875F,   .01703125F,    .019843752F,
    .02265625F,    .02546875F,    .028281251F,   .03109375F,    .03390625F,   .036718752F,   .03953125F,
    .042343747F,   .04515625F,    .04796875F,    .05078125F,    .05359375F,   .05640625F,    .059218753F,
    .06203125F,    .06484375F,    .067656256F,   .070468746F,   .07328125F,   .07609375F,    .07890625F,
    .08171876F,    .08453125F,    .08734375F,    .09015625F,    .092968754F,  .09578126F,    .09859375F,
    .107031256F,   .12109375F,    .13515624F,    .14921875F,    .16328125F,   .17734376F,    .19140625F,
    .20546874F,    .21953125F,    .23359375F,    .24765624F,    .26171875F,   .27578127F,    .28984374F,
    .30390626F,    .31796873F,    .33203125F,    .34609374F,    .36015624F,   .37421876F,    .38828123F,
    .40234375F,    .41640624F,    .43046874F,    .44453126F,    .45859373F,   .47265625F,    .4867187F,
    .50078124F,    .5148437F,     .5289062F,     .54296875F,    .5570313F,    .5710938F,     .58515626F,
    .5992187F,     .61328125F,    .6273438F,     .6414063F,     .65546876F,   .6695312F,     .68359375F,
    .6976563F,     .7117188F,     .72578126F,    .7398437F,     .75390625F,   .7679688F,     .78203124F,
    .79609376F,    .8101562F,     .82421875F,    .8382813F,     .85234374F,   .86640626F,    .8804687F,
    .89453125F,    .9085938F,     .92265624F,    .93671876F,    .9507812F,    .96484375F,    .9789063F,
    .99296874F,    1.0F};

void rounding_map(float map[256]) {
    map[127] = 0;
    for (int i = 0; i < 128; i++) {
        map[128 + i] = above_zero[i];
        if (i < 127)
            map[126 - i] = -above_zero[i];
    }
}

/* PyTorch's sum on one thread: eight columns in four rows at a time, summed by levels of 16 or more. */
enum { LANES = 8, ILP = 4, LEVELS = 4, SUMS = LANES * ILP };
static float torch_sum(const float *x, int64_t count) {
    float sums[LEVELS][SUMS] = {0}, total = 0;
    int64_t lines = count / LANES, size = lines / ILP, i = 0;
    int power = 4;
    while (power < 15 && (int64_t)1 << (4 * power + 3) < size)
        power++;
    int64_t step = (int64_t)1 << power, whole = size & -step;
    for (; i < size; i++) {
        for (int k = 0; k < SUMS; k++)
            sums[0][k] += x[i * SUMS + k];
        for (int level = 1; level < LEVELS && i < whole && (i + 1) % ((int64_t)1 << (level * power)) == 0; level++)
            for (int k = 0; k < SUMS; k++) {
                sums[level][k] += sums[level - 1][k];
                sums[level - 1][k] = 0;
            }
    }
    for (int level = 1; level < LEVELS; level++)
        for (int k = 0; k < SUMS; k++)
            sums[0][k] += sums[level][k];
    for (i = size * ILP; i < lines; i++)
        for (int k = 0; k < LANES; k++)
            sums[0][k] += x[i * LANES + k];
    for (int k = LANES; k < SUMS; k++)
        sums[0][k % LANES] += sums[0][k];
    for (i = lines * LANES; i < count; i++)
        total += x[i];
    for (int k = 0; k < LANES; k++)
        total += sums[0][k];
    return total;
}

/* Returns the code of a number from -1 to 1. The library has a table of 65,536 steps, whose bounds this repeats. */
static int scale_code(const float map[256], float number) {
    float step = (float)((double)((number + 1) * 0.5F) * 65535 + 0.5);
    float middle = (float)(int)step * 2 / 65535 - 1;
    int low = 0, high = 255;
    while (low < high) {
        int half = (low + high) / 2;
        if (middle > (map[half] + map[half + 1]) * 0.5F)
            low = half + 1;
        else
            high = half;
    }
    return low;
}

/* Rounds `count` scales in place. */
static void round_scales(float *values, int64_t count, struct rounding_scales *out) {
    float map[256], offset = torch_sum(values, count) / (float)count;
    rounding_map(map);
    if (out)
        out->offset = offset;
    for (int64_t first = 0; first < count; first += ROUNDING_SCALES_BLOCK) {
        int64_t end = count - first < ROUNDING_SCALES_BLOCK ? count : first + ROUNDING_SCALES_BLOCK;
        float absmax = 0;
        for (int64_t i = first; i < end; i++)
            absmax = fmaxf(absmax, fabsf(values[i] - offset));
        float inverse = absmax > 0 ? 1 / absmax : 0;
        for (int64_t i = first; i < end; i++) {
            float number = fminf(fmaxf((values[i] - offset) * inverse, -1), 1);
            int code = absmax > 0 ? scale_code(map, number) : 0;
            values[i] = map[code] * absmax + offset;
            if (out)
                out->codes[i] = (uint8_t)code;
        }
        if (out)
            out->absmax[first / ROUNDING_SCALES_BLOCK] = absmax;
    }
}

void rounding_rows(const struct rounding_call *call) {
    const struct rounding *r = call->rounding;
    int64_t groups = encoded_groups(&call->to->encoding, call->columns);
    struct tiles tiles = {call, call->rows, call->columns, call->to->encoding.group, 0, 0};
    if (r->is_flat)
        tiles = (struct tiles){call, 1, call->rows * call->columns, r->encoding.group, 0, 0};
    tiles.across = (tiles.columns + tiles.group - 1) / tiles.group;
    tiles.count = tiles.across * ((tiles.rows + r->tall - 1) / r->tall);
#pragma omp parallel for num_threads(call->threads) schedule(static)
    for (int64_t tile = 0; tile < tiles.count; tile++)
        round_tile(&tiles, tile);
    if (!r->is_flat)
        return;
    float *scales = call->to->scales;
    if (r->is_twice)
        round_scales(scales, tiles.count, call->scales);
    int64_t group = call->to->encoding.group; /* divides that of the tiles: scales move up, from the last */
    for (int64_t i = call->rows * groups - 1; i > 0 && group < tiles.group; i--)
        scales[i] = scales[i * group / tiles.group];
}
