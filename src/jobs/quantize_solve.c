/* Codes that keep a linear's outputs. A change d of a row changes its outputs by d' H d, where H is the sum of x x'
 * over its inputs. A row's result depends on that row and H only, so any rank may compute it. */
#include "quantize-internal.h"

#include <math.h>

enum { TILE = 16, ERROR_ROWS = 128, MOST_TRIES = 6, FACTOR_STEPS = 20 };

/* ---- the factor of the inverse ---- */

/* Replaces the upper triangle of H by V with H = V V'. Returns false where H is not positive. */
static bool factor(float *h, int64_t n, int threads) {
    for (int64_t j = n - 1; j >= 0; j--) {
        const float *vj = h + j * n;
        double pivot = vj[j];
        for (int64_t k = j + 1; k < n; k++)
            pivot -= (double)vj[k] * vj[k];
        if (!(pivot > 0))
            return false;
        float root = (float)sqrt(pivot);
        h[j * n + j] = root;
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t i = 0; i < j; i++) {
            float *vi = h + i * n, sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t k = j + 1; k < n; k++)
                sum += vi[k] * vj[k];
            vi[j] = (vi[j] - sum) / root;
        }
    }
    return true;
}

/* Replaces the upper triangle of V by that of its inverse. */
static void invert(float *v, int64_t n, float *row, int threads) {
    enum { WIDE = 256 };
    for (int64_t i = n - 1; i >= 0; i--) {
        float scale = 1 / v[i * n + i];
        memcpy(row + i, v + i * n + i, (size_t)(n - i) * sizeof *row);
        v[i * n + i] = scale;
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t first = (i + 1) / WIDE * WIDE; first < n; first += WIDE) {
            int64_t from = first > i ? first : i + 1, end = first + WIDE < n ? first + WIDE : n;
            for (int64_t c = from; c < end; c++)
                v[i * n + c] = 0;
            for (int64_t k = i + 1; k < end; k++) {
                int64_t start = k > from ? k : from;
                float factor_k = row[k] * scale;
#pragma omp simd
                for (int64_t c = start; c < end; c++)
                    v[i * n + c] -= factor_k * v[k * n + c];
            }
        }
    }
}

/* The order in which inputs are rounded, and the factor in this order. */
struct plan {
    int64_t *order; /* [n] */
    float *u;       /* [n, n] upper, with u' u the inverse of H */
};

static void free_plan(struct plan *plan) {
    free(plan->order);
    free(plan->u);
}

/* Orders inputs by the size of their sums, the largest first: their errors can spread over the others. */
static void choose_order(const float *sums, int64_t n, int64_t *order) {
    for (int64_t i = 0; i < n; i++) {
        int64_t at = i;
        for (; at > 0 && sums[order[at - 1] * (n + 1)] < sums[i * (n + 1)]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

/* Makes the factor of H, whose diagonal grows by 1% of its mean, or more if it must. */
static int make_plan(const float *sums, int64_t n, int threads, struct plan *plan) {
    float *row = malloc((size_t)n * sizeof *row);
    double mean = 0, share = 0.01;
    bool is_made = false;
    plan->order = malloc((size_t)n * sizeof *plan->order);
    plan->u = malloc((size_t)(n * n) * sizeof *plan->u);
    int status = status_allocated(row && plan->order && plan->u);
    if (!status)
        choose_order(sums, n, plan->order);
    for (int64_t i = 0; i < n; i++)
        mean += sums[i * n + i] / (double)n;
    mean = mean > 0 ? mean : 1;
    for (int try = 0; try < MOST_TRIES && !status && !is_made; try++, share *= 10) {
        for (int64_t i = 0; i < n; i++)
            for (int64_t k = 0; k < n; k++)
                plan->u[i * n + k] = sums[plan->order[i] * n + plan->order[k]];
        for (int64_t i = 0; i < n; i++)
            plan->u[i * n + i] += (float)(share * mean);
        is_made = factor(plan->u, n, threads);
    }
    THEN_IF(status, !is_made, status_fail(STATUS_INVALID, "the samples give inputs that are not finite"));
    if (!status)
        invert(plan->u, n, row, threads);
    free(row);
    return status;
}

/* ---- GPTQ ---- */

/* Rounds input after input of some rows, and spreads each error over the inputs that follow. Scales are those of the
 * nearest rounding. */
static void solve_rows(const struct rounding_call *call, const struct plan *plan, int64_t first, int64_t count,
                       float *w) {
    const struct encoding *e = &call->to->encoding;
    int64_t n = call->columns, groups = encoded_groups(e, n);
    float error[TILE], top = (float)((1 << e->bits) - 1);
    float *scales = w + TILE * n;
    int *zeros = (int *)(scales + TILE * groups);
    for (int64_t r = 0; r < count; r++) {
        const float *exact = call->values + (first + r) * n;
        for (int64_t i = 0; i < n; i++)
            w[r * n + i] = exact[plan->order[i]];
        for (int64_t g = 0; g < groups; g++) {
            int64_t at = g * e->group, wide = n - at < e->group ? n - at : e->group;
            scales[r * groups + g] = rounding_scale(call->rounding, exact + at, wide, &zeros[r * groups + g]);
            rounding_store(call->to, first + r, g, scales[r * groups + g], zeros[r * groups + g]);
        }
    }
    for (int64_t j = 0; j < n; j++) {
        const float *uj = plan->u + j * n;
        int64_t input = plan->order[j];
        for (int64_t r = 0; r < count; r++) {
            float value = w[r * n + j], scale = scales[r * groups + input / e->group];
            float zero = (float)zeros[r * groups + input / e->group];
            float code = fminf(fmaxf(rintf(value / scale) + zero, 0), top);
            call->to->codes[(first + r) * n + input] = (uint8_t)code;
            error[r] = (value - scale * (code - zero)) / uj[j];
        }
        for (int64_t r = 0; r < count; r++) {
            float *row = w + r * n;
#pragma omp simd
            for (int64_t k = j + 1; k < n; k++)
                row[k] -= error[r] * uj[k];
        }
    }
}

/* Rounds the rows of one rank. */
static int solve_share(const struct rounding_call *call, const float *sums) {
    int64_t n = call->columns;
    size_t each = (size_t)(TILE * (n + 2 * encoded_groups(&call->to->encoding, n)));
    struct plan plan = {0};
    float *w = malloc((size_t)call->threads * each * sizeof *w);
    int status = status_allocated(w);
    THEN(status, make_plan(sums, n, call->threads, &plan));
#pragma omp parallel for num_threads(call->threads) schedule(static)
    for (int t = 0; t < (status ? 0 : call->threads); t++)
        for (int64_t first = t * TILE; first < call->rows; first += call->threads * TILE) {
            int64_t count = call->rows - first < TILE ? call->rows - first : TILE;
            solve_rows(call, &plan, first, count, w + (size_t)t * each);
        }
    free_plan(&plan);
    free(w);
    return status;
}

/* Returns `count` of a linear's rows. */
static struct encoded_rows share_of(const struct encoded_rows *all, int64_t first, int64_t count) {
    struct encoded_rows share = *all;
    int64_t groups = encoded_groups(&all->encoding, all->positions);
    share.rows = count;
    share.codes += first * all->positions;
    share.scales = (char *)all->scales + (size_t)(first * groups) * dtype_bytes(all->encoding.scale_type);
    share.shifts = all->shifts ? (char *)all->shifts + first * groups : NULL;
    return share;
}

/* Gives a rank's rows to the others. */
static int give_share(struct comm *world, const struct encoded_rows *share, int rank) {
    int64_t groups = share->rows * encoded_groups(&share->encoding, share->positions);
    struct comm_data parts[] = {{.receive = share->codes, .count = share->rows * share->positions, .dtype = DTYPE_U8},
                                {.receive = share->scales, .count = groups, .dtype = share->encoding.scale_type},
                                {.receive = share->shifts, .count = share->shifts ? groups : 0, .dtype = DTYPE_U8}};
    for (int i = 0; i < 3; i++) {
        parts[i].send = parts[i].receive;
        TRY(parts[i].count ? comm_broadcast(world, &parts[i], rank) : STATUS_OK);
    }
    return STATUS_OK;
}

int solve_gptq(struct comm *world, const struct rounding_call *call, const float *sums) {
    int64_t each = (call->rows + world->size - 1) / world->size;
    for (int pass = 0; pass < 2; pass++) /* each solves its rows before any gives them away */
        for (int r = 0; r < world->size; r++) {
            int64_t first = each * r < call->rows ? each * r : call->rows;
            int64_t count = call->rows - first < each ? call->rows - first : each;
            struct encoded_rows share = share_of(call->to, first, count);
            struct rounding_call own = *call;
            own.values += first * call->columns;
            own.rows = count;
            own.to = &share;
            if (pass)
                TRY(give_share(world, &share, r));
            else if (r == world->rank && count)
                TRY(solve_share(&own, sums));
        }
    return STATUS_OK;
}

/* ---- errors of outputs ---- */

/* Returns x' H x. */
static double square(const float *x, const float *h, int64_t n) {
    double total = 0;
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t k = 0; k < n; k++)
            sum += h[i * n + k] * x[k];
        total += (double)x[i] * sum;
    }
    return total;
}

int ranks_add(struct comm *world, double *numbers, int64_t count, double *sum) {
    struct comm_data data = {.send = numbers, .receive = numbers, .count = count, .dtype = DTYPE_F64};
    TRY(comm_all_reduce(world, &data, COMM_SUM));
    *sum = 0;
    for (int64_t i = 0; i < count; i++)
        *sum += numbers[i];
    return STATUS_OK;
}

int solve_errors(struct comm *world, const struct rounding_call *call, const float *sums, const float *factors,
                 double *error, double *size) {
    int64_t n = call->columns, step = (call->rows + ERROR_ROWS - 1) / ERROR_ROWS;
    float *rows = malloc((size_t)(2 * n * ERROR_ROWS) * sizeof *rows);
    double errors[ERROR_ROWS] = {0}, sizes[ERROR_ROWS] = {0}, sum[2];
    TRY(status_allocated(rows));
#pragma omp parallel for num_threads(call->threads) schedule(static)
    for (int64_t at = world->rank; at < (call->rows + step - 1) / step; at += world->size) {
        float *change = rows + at * 2 * n, *exact = change + n;
        encoded_row_values(call->to, at * step, change);
        for (int64_t i = 0; i < n; i++) {
            float factor = factors ? factors[i] : 1;
            exact[i] = call->values[at * step * n + i] / factor;
            change[i] = change[i] / factor - exact[i];
        }
        errors[at] = square(change, sums, n);
        sizes[at] = square(exact, sums, n);
    }
    free(rows);
    TRY(ranks_add(world, errors, ERROR_ROWS, &sum[0]));
    TRY(ranks_add(world, sizes, ERROR_ROWS, &sum[1]));
    *error += sum[0];
    *size += sum[1];
    return STATUS_OK;
}

/* ---- AWQ ---- */

/* Sets factors to the power `share` of the inputs' root mean squares, around 1. */
static void set_factors(const float *sizes, int64_t n, double share, float *factors) {
    double most = 0, least = INFINITY;
    for (int64_t i = 0; i < n; i++) {
        double factor = pow(fmax(sizes[i], 1e-12), share / 2);
        factors[i] = (float)factor;
        most = fmax(most, factor);
        least = fmin(least, factor);
    }
    for (int64_t i = 0; i < n; i++)
        factors[i] = (float)(factors[i] / sqrt(most * least));
}

/* Returns the change of a row's outputs when its values are multiplied, rounded, and divided again. */
static double scaled_error(const struct rounding *rounding, const float *exact, int64_t n, const float *sums,
                           const float *factors, float *row) {
    int64_t group = rounding_encoding(rounding, n).group;
    float top = (float)((1 << rounding->encoding.bits) - 1);
    for (int64_t i = 0; i < n; i++)
        row[i] = exact[i] * factors[i];
    for (int64_t first = 0; first < n; first += group) {
        int64_t end = first + group < n ? first + group : n;
        int zero;
        float scale = rounding_scale(rounding, row + first, end - first, &zero);
        for (int64_t i = first; i < end; i++) {
            float code = fminf(fmaxf(rintf(row[i] / scale) + (float)zero, 0), top);
            row[i] = scale * (code - (float)zero) / factors[i] - exact[i];
        }
    }
    return square(row, sums, n);
}

int solve_factors(struct comm *world, const struct rounding_call *call, const float *sums, const float *sizes,
                  float *factors) {
    int64_t n = call->columns;
    float *tried = malloc((size_t)n * sizeof *tried), *rows = malloc((size_t)(call->rows * n) * sizeof *rows);
    double *errors = malloc((size_t)call->rows * sizeof *errors), best = INFINITY;
    int status = status_allocated(tried && rows && errors);
    for (int step = 0; step < FACTOR_STEPS && !status; step++) {
        double error = 0;
        set_factors(sizes, n, (double)step / FACTOR_STEPS, tried);
#pragma omp parallel for num_threads(call->threads) schedule(static)
        for (int64_t r = 0; r < call->rows; r++)
            errors[r] = r % world->size != world->rank
                            ? 0
                            : scaled_error(call->rounding, call->values + r * n, n, sums, tried, rows + r * n);
        status = ranks_add(world, errors, call->rows, &error);
        if (!status && error < best) {
            best = error;
            memcpy(factors, tried, (size_t)n * sizeof *factors);
        }
    }
    free(tried);
    free(rows);
    free(errors);
    return status;
}
