/* Measured speeds of a cluster file: a list of texts such as "bf16 gemm 1024x3072x768 812.3 GFLOP/s". */
#include "cluster-internal.h"

#include "config/run.h"
#include "parallel/rank.h"

#include <math.h>

#define MOST_SPEED 1e21

static bool counts_flops(int phase) {
    return phase == PHASE_GEMM || phase == PHASE_ATTENTION;
}

int cluster_add_speed(struct cluster *cluster, const struct cluster_speed *speed) {
    struct cluster_speed *speeds =
        realloc(cluster->speeds, (size_t)(cluster->speed_count + 1) * sizeof *cluster->speeds);
    TRY(status_allocated(speeds));
    cluster->speeds = speeds;
    speeds[cluster->speed_count++] = *speed;
    return STATUS_OK;
}

/* ---- reading and writing ---- */

/* Moves *text past `word` and the space after it. */
static bool take_word(const char **text, const char *word) {
    size_t length = strlen(word);
    if (strncmp(*text, word, length) || (*text)[length] != ' ')
        return false;
    *text += length + 1;
    return true;
}

static bool take_shape(const char **text, int64_t shape[3]) {
    for (int i = 0; i < 3; i++) {
        char *end;
        size_t digits = strspn(*text, "0123456789");
        shape[i] = digits && digits < 12 ? strtoll(*text, &end, 10) : 0;
        if (shape[i] < 1 || *end != (i < 2 ? 'x' : ' '))
            return false;
        *text = end + 1;
    }
    return true;
}

static int read_speed(const char *text, struct cluster_speed *speed) {
    const char *at = text;
    bool is_right = false;
    *speed = (struct cluster_speed){.phase = PHASE_GEMM};
    for (int i = 0; plain_precision_names[i] && !is_right; i++) {
        speed->precision = i;
        is_right = take_word(&at, plain_precision_names[i]);
    }
    while (speed->phase < PHASE_COUNT && (speed->phase == PHASE_COMM || !take_word(&at, phase_names[speed->phase])))
        speed->phase++;
    if (!is_right || speed->phase == PHASE_COUNT || (speed->phase == PHASE_GEMM && !take_shape(&at, speed->shape)))
        return status_fail(STATUS_USAGE,
                           "'%.80s' is no speed, such as 'bf16 gemm 1024x3072x768 800 GFLOP/s' or 'bf16 norms 20 GB/s'",
                           text);
    const struct config_row row = {.unit = counts_flops(speed->phase) ? "FLOP/s" : "B/s"};
    struct config_quantity quantity;
    int status = config_read_quantity(&row, at, &quantity);
    if (!status && (quantity.value < 1 || quantity.value > MOST_SPEED))
        status = status_fail(STATUS_USAGE, "'%.80s': expected 1 to %g %s", at, MOST_SPEED, row.unit);
    speed->value = status ? 0 : quantity.value;
    return status;
}

int cluster_read_speeds(const char *name, struct cluster *cluster) {
    int status = STATUS_OK;
    for (size_t i = 0; i < cluster->speed_texts.count && !status; i++) {
        struct cluster_speed speed;
        status = read_speed(cluster->speed_texts.items[i], &speed);
        if (status)
            status_wrap(status, "%s:%zu: achieved.speeds", name, config_line(cluster->config, "achieved.speeds"));
        THEN(status, cluster_add_speed(cluster, &speed));
    }
    return status;
}

void cluster_write_speeds(const struct cluster *cluster, struct strbuf *out) {
    strbuf_add_text(out, cluster->speed_count ? "  speeds:\n" : "");
    for (int i = 0; i < cluster->speed_count; i++) {
        const struct cluster_speed *speed = &cluster->speeds[i];
        const long long shape[] = {speed->shape[0], speed->shape[1], speed->shape[2]};
        strbuf_format(out, "    - \"%s %s ", precision_names[speed->precision], phase_names[speed->phase]);
        if (speed->phase == PHASE_GEMM)
            strbuf_format(out, "%lldx%lldx%lld ", shape[0], shape[1], shape[2]);
        strbuf_format(out, "%.5g G%s\"\n", speed->value / 1e9, counts_flops(speed->phase) ? "FLOP/s" : "B/s");
    }
}

/* ---- finding ---- */

/* Returns the share of a large product's speed that this one reaches, by the constants. */
static double share_of(const struct cluster *cluster, const int64_t shape[3]) {
    double least = fmin(fmin((double)shape[0], (double)shape[1]), (double)shape[2]);
    return least / (least + cluster->achieved[CLUSTER_SMALL_DIMENSION].value);
}

static double distance(const int64_t a[3], const int64_t b[3]) {
    double sum = 0;
    for (int i = 0; i < 3; i++)
        sum += a[i] == b[i] ? 0 : fabs(log((double)a[i] / (double)b[i]));
    return sum;
}

double cluster_speed(const struct cluster *cluster, int precision, int phase, const int64_t *shape) {
    const struct cluster_speed *best = NULL;
    double least = INFINITY;
    for (int i = 0; i < cluster->speed_count && least > 0; i++) {
        const struct cluster_speed *speed = &cluster->speeds[i];
        if (speed->precision != precision || speed->phase != phase)
            continue;
        double far = shape ? distance(speed->shape, shape) : 0;
        best = far < least ? speed : best;
        least = fmin(least, far);
    }
    if (!best)
        return 0;
    return least > 0 ? best->value * share_of(cluster, shape) / share_of(cluster, best->shape) : best->value;
}
