/* Seconds of operations and messages on a device of the cluster, and of the units that they make up. */
#include "cost-internal.h"

#include "train/plan.h"

#include <math.h>

void cost_add(struct cost_seconds *sum, const struct cost_seconds *more, double factor) {
    sum->products += factor * more->products;
    sum->other += factor * more->other;
    sum->tensor += factor * more->tensor;
    sum->floor += factor * more->floor;
}

struct cost_link cost_link(const struct cluster *cluster, bool is_within) {
    if (is_within)
        return (struct cost_link){cluster->node_bandwidth.value, cluster->node_latency.value};
    return (struct cost_link){cluster->network_bandwidth.value * cluster->achieved[CLUSTER_NETWORK].value,
                              cluster->network_latency.value};
}

double cost_ring(double bytes, int ranks, double passes, struct cost_link link) {
    if (ranks < 2)
        return 0;
    return passes * ((ranks - 1.0) / ranks * bytes / link.bandwidth + log2(ranks) * link.latency);
}

struct rates {
    const struct cluster *cluster;
    const struct cost_work *work;
    double product, half; /* FLOP/s of large products; the dimension that halves it */
    double fp8;           /* FLOP/s of large products of FP8 operands */
    double attention;     /* share of the peak that attention's large products reach */
    double bytes;         /* bytes/s of other operations */
    bool stores_attention, selects_attention;
};

/* Returns the FLOP/s of an operation's large products. */
static double product_rate(const struct rates *rates, const struct work_item *item, bool is_attention) {
    int plain = cost_plain_precision(rates->work->precision);
    if (is_attention)
        return cluster_attention_peak(rates->cluster, plain, item->work.shape[2]) * rates->attention;
    return item->work.fp8_flops > 0 ? rates->fp8 : rates->product;
}

/* Returns the seconds of FLOPs at this rate in products with this smallest dimension. */
static double product_seconds(const struct rates *rates, double rate, double flops, double least) {
    return flops / (rate * least / (least + rates->half));
}

double cost_bytes_seconds(const struct cluster *cluster, int precision, int phase, double bytes) {
    double speed = cluster_speed(cluster, cost_plain_precision(precision), phase, NULL);
    return bytes / (speed > 0 ? speed : cluster->memory_bandwidth.value * cluster->achieved[CLUSTER_OTHER].value);
}

/* Returns the seconds of an operation by a measured speed; 0: there is none. */
static double measured_seconds(const struct rates *rates, const struct work_item *item) {
    const struct op_work *work = &item->work;
    if (!rates->cluster->speed_count)
        return 0;
    if (work->flops > 0) {
        bool is_product = item->phase == PHASE_GEMM && work->shape[0] > 0 && work->shape[1] > 0 && work->shape[2] > 0 &&
                          work->fp8_flops == 0; /* these are not measured */
        double speed = is_product || item->phase == PHASE_ATTENTION
                           ? cluster_speed(rates->cluster, cost_plain_precision(rates->work->precision), item->phase,
                                           is_product ? work->shape : NULL)
                           : 0;
        return speed > 0 ? work->flops / speed : 0;
    }
    int phase = item->phase <= PHASE_ATTENTION ? PHASE_NORM : item->phase;
    return cost_bytes_seconds(rates->cluster, rates->work->precision, phase, work->bytes);
}

/* Adds `count` times the attention of a stack that stores its scores. They are written and read by the products, the
 * scaled and masked softmax, and the dropout with its mask: 13 bytes a score forward, and 17 backward. */
static void add_stored_attention(const struct rates *rates, const struct work_item *item, bool is_backward,
                                 struct cost_seconds *sum) {
    double rows = (double)item->work.shape[0], heads = (double)item->work.shape[1], head = (double)item->work.shape[2];
    double scores = rows * (double)rates->work->seq_length * heads, count = (double)item->count;
    bool repeats = is_backward && rates->selects_attention;
    double products = is_backward ? (repeats ? 6 : 4) : 2, bytes = is_backward ? (repeats ? 30 : 17) : 13;
    sum->products += count * product_seconds(rates, rates->product, products * 2 * scores * head, head);
    sum->other += count * (scores * bytes + item->work.bytes) / rates->bytes;
}

static bool attends(const struct work_item *item) {
    if (item->op == OP_COUNT)
        return false;
    switch (op_facts[item->op].cost) {
    case OP_ATTENDS:
        return true;
    case OP_MOVES:
    case OP_MULTIPLIES:
    case OP_ATTENDS_PAGES: /* of inference */
        return false;
    }
    return false;
}

static void add_operation(const struct rates *rates, const struct work_item *item, struct cost_seconds *sum) {
    const struct op_work *work = &item->work;
    double count = (double)item->count;
    bool is_attention = attends(item);
    double measured = measured_seconds(rates, item);
    if (measured > 0) {
        *(work->flops > 0 ? &sum->products : &sum->other) += count * measured;
    } else if (is_attention && rates->stores_attention) {
        add_stored_attention(rates, item, item->op == OP_attention_backward, sum);
    } else if (work->flops > 0) {
        double least = is_attention ? (double)work->shape[2] : INFINITY;
        for (int i = 0; i < 3 && !is_attention; i++)
            least = work->shape[i] > 0 && (double)work->shape[i] < least ? (double)work->shape[i] : least;
        double seconds = product_seconds(rates, product_rate(rates, item, is_attention), work->flops, least);
        double moved = work->bytes / rates->bytes;
        sum->products += count * (seconds > moved ? seconds : moved);
    } else {
        sum->other += count * work->bytes / rates->bytes;
    }
}

static void add_message(const struct rates *rates, const struct work_item *item, struct cost_seconds *sum) {
    struct cost_link link = cost_link(rates->cluster, item->ranks <= rates->cluster->per_node);
    double passes = item->message == WORK_ALL_REDUCE ? 2 : 1;
    sum->tensor += (double)item->count * cost_ring(item->work.bytes, item->ranks, passes, link);
}

static struct cost_seconds sum_of(const struct rates *rates, enum cost_list list, enum work_part part) {
    struct cost_seconds sum = {0};
    const struct work_list *items = &rates->work->lists[list];
    for (int i = 0; i < items->count; i++) {
        const struct work_item *item = &items->items[i];
        if (item->part != part || !item->count)
            continue;
        if (item->group == RANK_ALONE)
            add_operation(rates, item, &sum);
        else if (item->group == RANK_TENSOR || item->group == RANK_SHARERS)
            add_message(rates, item, &sum);
    }
    return sum;
}

/* Divides two stages' sums: *layer is the mean of the layers that the larger one has more, *rest what the smaller one
 * has besides its layer. */
static void divide(const struct rates *rates, enum cost_list less, enum cost_list more, enum work_part part,
                   struct cost_seconds *layer, struct cost_seconds *rest) {
    struct cost_seconds smaller = sum_of(rates, less, part);
    *layer = (struct cost_seconds){0};
    struct cost_seconds larger = sum_of(rates, more, part);
    cost_add(layer, &larger, 1 / rates->work->layers);
    cost_add(layer, &smaller, -1 / rates->work->layers);
    *rest = smaller;
    cost_add(rest, layer, -1);
}

static void raise_to_floor(struct cost_seconds *seconds, double least) {
    double total = cost_total(seconds);
    seconds->floor += total < least ? least - total : 0;
}

void cost_units_find(const struct cost_work *work, const struct cluster *cluster, bool selects_attention,
                     struct cost_units *units) {
    const struct config_quantity *achieved = cluster->achieved;
    int plain = cost_plain_precision(work->precision);
    struct rates rates = {
        .cluster = cluster,
        .work = work,
        .product = cluster_peak(cluster, plain) * achieved[CLUSTER_PRODUCTS].value,
        .fp8 = cluster_peak(cluster, PRECISION_FP8) * achieved[CLUSTER_PRODUCTS].value,
        .attention = achieved[CLUSTER_PRODUCTS].value * achieved[CLUSTER_ATTENTION].value *
                     (work->drops_attention ? achieved[CLUSTER_ATTENTION_DROPOUT].value : 1),
        .half = achieved[CLUSTER_SMALL_DIMENSION].value,
        .bytes = cluster->memory_bandwidth.value * achieved[CLUSTER_OTHER].value,
        .stores_attention = cluster->train == CLUSTER_TRAINS_MEGATRON_2022,
        .selects_attention = selects_attention,
    };
    struct cost_seconds ignored;
    for (int part = WORK_FORWARD; part <= WORK_BACKWARD; part++) {
        struct cost_seconds *seconds = part == WORK_FORWARD ? units->forward : units->backward;
        double least = achieved[part == WORK_FORWARD ? CLUSTER_LAYER_FORWARD : CLUSTER_LAYER_BACKWARD].value;
        double again = part == WORK_FORWARD ? 0 : achieved[CLUSTER_LAYER_FORWARD].value;
        divide(&rates, COST_FIRST, COST_FIRST_MORE, (enum work_part)part, &seconds[COST_LAYER],
               &seconds[COST_EMBEDDING]);
        divide(&rates, COST_AGAIN, COST_AGAIN_MORE, (enum work_part)part, &seconds[COST_LAYER_AGAIN], &ignored);
        seconds[COST_HEAD] = sum_of(&rates, COST_LAST, (enum work_part)part);
        cost_add(&seconds[COST_HEAD], &seconds[COST_LAYER], -1);
        /* The backward hides a share of its own messages, and none of those of a repeated forward. */
        double hidden = part == WORK_BACKWARD ? achieved[CLUSTER_TENSOR_HIDDEN].value : 0;
        seconds[COST_LAYER_AGAIN].tensor -= hidden * seconds[COST_LAYER].tensor;
        for (int unit = 0; unit < COST_UNITS; unit++)
            seconds[unit].tensor *= unit == COST_LAYER_AGAIN ? 1 : 1 - hidden;
        if (rates.stores_attention && part == WORK_BACKWARD) { /* it repeats the whole forward */
            seconds[COST_LAYER_AGAIN] = seconds[COST_LAYER];
            cost_add(&seconds[COST_LAYER_AGAIN], &units->forward[COST_LAYER], 1);
            seconds[COST_LAYER_AGAIN].floor = 0;
        }
        raise_to_floor(&seconds[COST_LAYER], least);
        raise_to_floor(&seconds[COST_LAYER_AGAIN], least + again);
    }
}
