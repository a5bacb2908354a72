/* Weights, blends and splits: the part of a blend that gives the next sample, and the sequences of each split
 * (blended_dataset.py, blended_megatron_dataset_config.py, helpers.cpp). Doubles are added and compared in upstream's
 * order, because the last bit decides which part is chosen. */
#include "data-internal.h"

#include <math.h>

/* A fused multiply-add would change an error term; GCC knows only its own spelling. */
#pragma STDC FP_CONTRACT OFF
#pragma GCC optimize("fp-contract=off")

double blend_pairwise_sum(const double *a, int64_t n) {
    if (n < 8) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += a[i];
        return sum;
    }
    if (n <= 128) {
        double r[8];
        int64_t i = 8;
        memcpy(r, a, sizeof r);
        for (; i < n - n % 8; i += 8)
            for (int k = 0; k < 8; k++)
                r[k] += a[i + k];
        double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
        for (; i < n; i++)
            sum += a[i];
        return sum;
    }
    int64_t half = n / 2;
    half -= half % 8;
    return blend_pairwise_sum(a, half) + blend_pairwise_sum(a + half, n - half);
}

void blend_normalize(double *weights, int64_t count) {
    double sum = blend_pairwise_sum(weights, count);
    for (int64_t i = 0; i < count; i++)
        weights[i] /= sum;
}

void blend_fill(const double *weights, int64_t count, int64_t size, int64_t *drawn, int16_t *dataset_index,
                int64_t *dataset_sample_index) {
    for (int64_t k = 0; k < count; k++)
        drawn[k] = 0;
    for (int64_t i = 0; i < size; i++) {
        double due = i > 0 ? (double)i : 1.0, worst = 0;
        int64_t chosen = -1;
        for (int64_t k = 0; k < count; k++) {
            double error = weights[k] * due - (double)drawn[k];
            if (chosen < 0 || error > worst) {
                worst = error;
                chosen = k;
            }
        }
        dataset_index[i] = (int16_t)chosen;
        dataset_sample_index[i] = drawn[chosen]++;
    }
}

void blend_fill_exhaustive(const int64_t *lengths, int64_t count, int64_t *drawn, int16_t *dataset_index,
                           int64_t *dataset_sample_index) {
    int64_t total = 0;
    for (int64_t k = 0; k < count; k++) {
        total += lengths[k];
        drawn[k] = 0;
    }
    for (int64_t i = 0; i < total; i++) {
        double due = i > 0 ? (double)i : 1.0, worst = 0;
        int64_t chosen = -1;
        for (int64_t k = 0; k < count; k++) {
            if (drawn[k] == lengths[k])
                continue;
            double error = (double)lengths[k] / (double)total * due - (double)drawn[k];
            if (chosen < 0 || error > worst) {
                worst = error;
                chosen = k;
            }
        }
        dataset_index[i] = (int16_t)chosen;
        dataset_sample_index[i] = drawn[chosen]++;
    }
}

/* Reads a number as Python's float does; returns false for any other text. */
static bool parse_weight(const char *word, double *weight) {
    char *end;
    if (word[0] == 0 || word[strspn(word, "0123456789.eE+-")] != 0)
        return false;
    *weight = strtod(word, &end);
    return *end == 0;
}

int blend_parse(const struct config_list *words, const char ***prefixes, double **weights, int64_t *count) {
    size_t numbers = 0, n = words->count;
    double weight;
    *prefixes = NULL;
    *weights = NULL;
    *count = 0;
    if (n == 0)
        return status_fail(STATUS_USAGE, "no data path is given");
    if (n > 2 * (INT16_MAX - 1))
        return status_fail(STATUS_USAGE, "a data path of %zu words is longer than a blend may be", n);
    for (size_t i = 0; n % 2 == 0 && i < n; i += 2)
        numbers += parse_weight(words->items[i], &weight);
    if (numbers > 0 && numbers < n / 2)
        return status_fail(
            STATUS_USAGE,
            "data path: some of '%s', ... are weights and some are not; expected w1 P1 w2 P2 ... or P1 P2 ...",
            words->items[0]);
    if (numbers == 0 && n % 2 == 1 && n > 1 && parse_weight(words->items[0], &weight))
        return status_fail(STATUS_USAGE,
                           "data path: %zu words that begin with the weight '%s'; expected pairs w1 P1 w2 P2 ...", n,
                           words->items[0]);
    *prefixes = calloc(n, sizeof **prefixes);
    *weights = calloc(n, sizeof **weights);
    if (!*prefixes || !*weights)
        return status_no_memory();
    for (size_t i = 0; i < n; i++) {
        if (numbers > 0) {
            parse_weight(words->items[i], &weight);
            if (!(weight > 0) || !isfinite(weight))
                return status_fail(STATUS_USAGE, "data path: weight '%s' of %s is not above 0", words->items[i],
                                   words->items[i + 1]);
            (*weights)[*count] = weight;
            i++;
        }
        (*prefixes)[(*count)++] = words->items[i];
    }
    if (numbers == 0) {
        free(*weights);
        *weights = NULL;
    }
    return STATUS_OK;
}

/* Reads the numbers of "99990,8,2", "98/1/1" or "[98, 1, 1]". */
static int parse_split_weights(const char *text, double weights[SPLIT_COUNT]) {
    int count = 0;
    for (const char *p = text; *p;) {
        size_t length = strspn(p, ".0123456789");
        if (length == 0) {
            if (*p == '-')
                return status_fail(STATUS_USAGE, "split '%s': a weight is below 0", text);
            if (!strchr(" \t\n,;/:[]()", *p))
                return status_fail(STATUS_USAGE, "split '%s': '%.20s' is not a weight; expected numbers as in 969,30,1",
                                   text, p);
            p++;
            continue;
        }
        char number[64], *end;
        if (count == SPLIT_COUNT)
            return status_fail(STATUS_USAGE, "split '%s' has more than the 3 weights of train, valid, test", text);
        if (length < sizeof number) {
            memcpy(number, p, length);
            number[length] = 0;
            weights[count] = strtod(number, &end);
        }
        if (length >= sizeof number || *end || end == number)
            return status_fail(STATUS_USAGE, "split '%s': '%.*s' is not a number", text, (int)length, p);
        count++;
        p += length;
    }
    return STATUS_OK;
}

int split_parse(const char *text, int64_t sequences, int64_t first[SPLIT_COUNT], int64_t last[SPLIT_COUNT]) {
    double weights[SPLIT_COUNT] = {0}, begin = 0;
    TRY(text ? parse_split_weights(text, weights) : STATUS_OK);
    if (!text)
        weights[SPLIT_TRAIN] = 1;
    double sum = blend_pairwise_sum(weights, SPLIT_COUNT);
    if (!(sum > 0) || !isfinite(sum))
        return status_fail(STATUS_USAGE, "split '%s' has no weight above 0; expected train,valid,test as in 969,30,1",
                           text);
    for (int i = 0; i < SPLIT_COUNT; i++) {
        double end = begin + weights[i] / sum;
        first[i] = last[i] = 0;
        if (end > begin) { /* halves round to even, as in Python */
            first[i] = (int64_t)nearbyint(begin * (double)sequences);
            last[i] = (int64_t)nearbyint(end * (double)sequences);
            if (last[i] > sequences)
                last[i] = sequences;
        }
        begin = end;
    }
    return STATUS_OK;
}
