/* Learns the cost of steps from their times. The cost of a decode step depends on its number of rows. The cost of a
 * prefill row is the average time by which recent steps with such rows took longer than steps without. A row with
 * earlier rows costs more, because it attends to them. */
#include "scheduler-internal.h"

#include <math.h>

/* OLD: steps with prefill after which one without is measured again; OLD_SOON: the same after an unexpected result.
 * FEW_ROWS: a prefill step with fewer rows teaches more about the fixed cost of a step than about rows. */
enum { OLD = 64, OLD_SOON = 8, FEW_ROWS = 16 };
static const double as_expected = 0.25, fall_part = 0.8, rise_part = 0.2, most_rise = 2, kept_part = 0.8;

int step_cost_open(struct step_cost *cost, int64_t max_decode) {
    *cost = (struct step_cost){.max_decode = max_decode};
    for (int i = 0; i < COST_BUCKETS; i++)
        cost->mixed[i] = -1;
    cost->decode = calloc((size_t)max_decode + 1, sizeof *cost->decode);
    return status_allocated(cost->decode);
}

void step_cost_close(struct step_cost *cost) {
    free(cost->decode);
    *cost = (struct step_cost){0};
}

static int bucket_of(int64_t rows) {
    int bucket = 0;
    for (; rows > 1 && bucket < COST_BUCKETS - 1; rows /= 2)
        bucket++;
    return bucket;
}

bool step_cost_is_old(const struct step_cost *cost, int64_t decode_rows) {
    int32_t mixed = cost->mixed[bucket_of(decode_rows)];
    return mixed < 0 || mixed >= OLD;
}

/* A slow step may have other causes and counts little; a fast step shows what is possible. */
static void learn_decode(struct step_cost *cost, int64_t rows, double seconds) {
    double *known = &cost->decode[rows], before = *known > 0 ? *known : seconds;
    bool is_expected = fabs(seconds - before) <= as_expected * before;
    double rise = rise_part * (seconds < most_rise * before ? seconds - before : (most_rise - 1) * before);
    *known = before + (seconds < before ? fall_part * (seconds - before) : rise);
    cost->mixed[bucket_of(rows)] = is_expected ? 0 : OLD - OLD_SOON;
}

static void learn_prefill(struct step_cost *cost, double work, double seconds) {
    cost->seconds = kept_part * cost->seconds + seconds;
    cost->work = kept_part * cost->work + work;
}

void step_cost_learn(struct step_cost *cost, int64_t decode_rows, int64_t prefill_rows, double work, double seconds) {
    if (prefill_rows == 0) {
        learn_decode(cost, decode_rows, seconds);
        return;
    }
    double alone = step_cost_decode(cost, decode_rows);
    int32_t *mixed = &cost->mixed[bucket_of(decode_rows)];
    if (decode_rows ? alone > 0 : prefill_rows >= FEW_ROWS || cost->work == 0)
        learn_prefill(cost, work, seconds - alone);
    if (decode_rows && *mixed >= 0)
        ++*mixed;
}

double step_cost_decode(const struct step_cost *cost, int64_t rows) {
    int64_t below = rows, above = rows;
    while (below > 0 && cost->decode[below] == 0)
        below--;
    while (above <= cost->max_decode && cost->decode[above] == 0)
        above++;
    if (above > cost->max_decode)
        return below > 0 ? cost->decode[below] : 0;
    if (below <= 0 || below == above)
        return cost->decode[above];
    double share = (double)(rows - below) / (double)(above - below);
    return cost->decode[below] + share * (cost->decode[above] - cost->decode[below]);
}

double step_cost_prefill_row(const struct step_cost *cost) {
    if (cost->work == 0)
        return 0;
    double row = cost->seconds / cost->work;
    return row > 1e-9 ? row : 1e-9; /* decode rows hide the cost, but it counts as known */
}

void slice_cost_learn(struct slice_cost *cost, const struct slice *slice) {
    static const double kept = 0.95; /* slices are many, and their pieces differ */
    for (int k = 0; k < SLICE_KINDS; k++)
        if (slice->work[k] > 0) {
            cost->seconds[k] = kept * cost->seconds[k] + slice->seconds[k];
            cost->work[k] = kept * cost->work[k] + slice->work[k];
        }
}

double slice_cost_rate(const struct slice_cost *cost, enum slice_kind kind) {
    return cost->work[kind] > 0 ? cost->seconds[kind] / cost->work[kind] : 0;
}
