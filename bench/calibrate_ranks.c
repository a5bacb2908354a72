/* Measurements of a rank while all ranks work: ceilings, products and links. */
#include "calibrate.h"

/* Steps and requests are measured in rounds, at different times: the speed of many machines changes within minutes. */
enum { ROUNDS = 3 };
static const double round_seconds = 40; /* no round follows one that took longer */

struct rounds {
    struct calibrate_alone found[ROUNDS];
    int count;
    double seconds; /* of the longest */
};

struct seat {
    struct calibration *calibration;
    struct comm *world;
    struct rank_site site;
    struct device *device;
    struct stream *stream;
    int processors; /* of the host, for its ranks */
    char name[64];  /* of the device, with its number if there are several */
};

/* Replaces each of the values by the mean over the ranks. */
static int average(struct comm *world, double *values, int64_t count) {
    const struct comm_data data = {.send = values, .receive = values, .count = count, .dtype = DTYPE_F64};
    int status = world->size > 1 ? comm_all_reduce(world, &data, COMM_SUM) : STATUS_OK;
    for (int64_t i = 0; i < count; i++)
        values[i] /= world->size;
    return status;
}

/* Finds how many of its ranks a host can run at once. It looks before ranks are bound. */
static int find_processors(struct seat *seat) {
    struct calibration *c = seat->calibration;
    struct rank_seat *seats = calloc((size_t)seat->world->size, sizeof *seats);
    int cores = usable_cores(), here = 0;
    int status =
        seats ? rank_site_survey(seat->world, seat->world->size, (int)c->options->threads, seats) : status_no_memory();
    for (int rank = 0; rank < seat->world->size && !status; rank++)
        here += seats[rank].is_here;
    if (!status) {
        const struct rank_seat *mine = &seats[seat->world->rank];
        int at_once = cores / mine->threads; /* of the ranks with these cores */
        bool is_shared = device_uses_host_memory(c->cluster.kind) && at_once < mine->sharing;
        seat->processors = is_shared ? here / mine->sharing * (at_once > 0 ? at_once : 1) : here;
    }
    free(seats);
    return status;
}

static int open_seat(struct seat *seat) {
    const struct bench_options *o = seat->calibration->options;
    int status = find_processors(seat);
    THEN(status, rank_site_find(seat->world, (int)o->threads, &seat->site));
    THEN(status, device_open(o->device, rank_site_device(&seat->site, o->device), seat->site.threads, &seat->device));
    const char *kind = seat->calibration->cluster.kind;
    bool has_number = device_uses_host_memory(kind) || strchr(kind, ':');
    snprintf(seat->name, sizeof seat->name, has_number ? "%s" : "%s:%d", kind,
             status ? 0 : device_number(seat->device));
    return status ? status : stream_open(seat->device, &seat->stream);
}

static int measure_ceilings(struct seat *seat, struct calibration *found) {
    struct bench_ceiling *ceilings = found->ceilings;
    found->has_bf16 = true;
    for (int i = 0; i <= PRECISION_TF32; i++) {
        int status = comm_barrier(seat->world);
        THEN(status, bench_measure_ceiling(seat->device, precision_dtype(i), i == PRECISION_TF32, &ceilings[i]));
        if (status &&
            (status != STATUS_UNSUPPORTED || i == PRECISION_FP32 || i == seat->calibration->options->precision))
            return status_wrap(status, "--precision %s", precision_names[i]);
        if (status)
            ceilings[i] = (struct bench_ceiling){0};
        if (status && i == PRECISION_BF16) {
            found->has_bf16 = false;
            ceilings[i] = ceilings[PRECISION_FP32];
        }
    }
    return average(seat->world, &ceilings[0].gemm, 2 * (PRECISION_TF32 + 1));
}

/* Lists the first ranks of all hosts, or the ranks of this rank's host. Returns their number. */
static int list_ranks(const int *firsts, int size, int host, int *ranks) {
    int count = 0;
    for (int rank = 0; rank < size; rank++)
        if (host < 0 ? firsts[rank] == rank : firsts[rank] == host)
            ranks[count++] = rank;
    return count;
}

static int measure_group(struct seat *seat, const int *ranks, int count, struct cost_link *link) {
    struct comm *group;
    TRY(comm_subgroup(seat->world, ranks, count, &group));
    int status = calibrate_link(group, seat->stream, link);
    comm_close(group);
    return status;
}

static int measure_links(struct seat *seat, int *firsts, int *ranks, struct calibration *found) {
    int64_t mine = seat->site.first_on_host;
    int64_t *all = calloc((size_t)seat->world->size, sizeof *all);
    const struct comm_data data = {.send = &mine, .receive = all, .count = 1, .dtype = DTYPE_I64};
    int status = all ? comm_all_gather(seat->world, &data) : status_no_memory();
    for (int rank = 0; rank < seat->world->size && !status; rank++)
        firsts[rank] = (int)all[rank];
    free(all);
    TRY(status);
    found->per_node = list_ranks(firsts, seat->world->size, seat->site.first_on_host, ranks);
    if (found->per_node > 1)
        status = measure_group(seat, ranks, found->per_node, &found->node);
    int hosts = list_ranks(firsts, seat->world->size, -1, ranks);
    THEN_IF(status, hosts > 1 && seat->site.is_first_on_host, measure_group(seat, ranks, hosts, &found->network));
    return status ? status : comm_barrier(seat->world);
}

static int measure_steps(struct seat *seat, const struct calibrate_place *place, int64_t micro_batches,
                         struct bench_steps *steps) {
    int status = calibrate_alone(seat->calibration, place, micro_batches, steps);
    THEN(status, average(seat->world, &steps->seconds, 1));
    return status ? status : average(seat->world, steps->phases, PHASE_COUNT);
}

/* Measures steps and requests of a rank by itself. */
static int measure_alone(struct seat *seat, struct calibrate_alone *found) {
    const struct calibrate_place place = {seat->world, seat->name, seat->site.threads};
    int status = measure_steps(seat, &place, 1, &found->one);
    THEN(status, measure_steps(seat, &place, CALIBRATE_MICRO_BATCHES, &found->many));
    THEN(status, calibrate_requests(seat->calibration, &place, found->requests));
    return status ? status : average(seat->world, found->requests, CALIBRATE_REQUESTS);
}

/* Measures a round, unless the ranks' rounds take too long. */
static int measure_round(struct seat *seat, struct rounds *rounds) {
    if (rounds->seconds > round_seconds)
        return STATUS_OK;
    double start = clock_seconds();
    int status = measure_alone(seat, &rounds->found[rounds->count++]);
    double seconds = clock_seconds() - start;
    THEN(status, average(seat->world, &seconds, 1));
    rounds->seconds = seconds > rounds->seconds ? seconds : rounds->seconds;
    return status;
}

/* Returns the median of each figure over the rounds. */
static struct calibrate_alone find_medians(const struct rounds *rounds) {
    enum { FIGURES = sizeof(struct calibrate_alone) / sizeof(double) };
    double figures[ROUNDS][FIGURES], found[FIGURES];
    struct calibrate_alone medians;
    memcpy(figures, rounds->found, sizeof figures);
    for (int i = 0; i < FIGURES; i++) {
        double values[ROUNDS];
        for (int round = 0; round < rounds->count; round++)
            values[round] = figures[round][i];
        found[i] = bench_median(values, rounds->count);
    }
    memcpy(&medians, found, sizeof medians);
    return medians;
}

static int measure_all(struct seat *seat, double *seconds, int *firsts, int *ranks) {
    struct calibration *c = seat->calibration, found = {0};
    struct rounds rounds = {.count = 0};
    int status = open_seat(seat);
    THEN(status, measure_ceilings(seat, &found));
    THEN(status, measure_round(seat, &rounds));
    for (int i = 0; i < c->product_count && !status; i++) {
        status = comm_barrier(seat->world);
        THEN(status, calibrate_product(seat->stream, c->options->precision, &c->products[i], &seconds[i]));
    }
    THEN(status, average(seat->world, seconds, c->product_count));
    THEN(status, measure_round(seat, &rounds));
    THEN(status, seat->world->size > 1 ? measure_links(seat, firsts, ranks, &found) : STATUS_OK);
    THEN(status, measure_round(seat, &rounds));
    if (status || !seat->site.is_first_in_process)
        return status;
    memcpy(c->ceilings, found.ceilings, sizeof c->ceilings);
    c->has_bf16 = found.has_bf16;
    c->per_node = found.per_node ? found.per_node : 1;
    c->processors = seat->processors < c->per_node ? seat->processors : c->per_node;
    c->node = found.node;
    c->network = found.network;
    c->alone = find_medians(&rounds);
    c->memory = device_memory(seat->device);
    snprintf(c->device, sizeof c->device, "%s", device_description(seat->device));
    for (int i = 0; i < c->product_count; i++)
        c->products[i].seconds = seconds[i];
    return STATUS_OK;
}

static int measure_rank(struct comm *world, void *context) {
    struct seat seat = {.calibration = context, .world = world};
    size_t products = (size_t)seat.calibration->product_count + 1;
    double *seconds = calloc(products, sizeof *seconds);
    int *firsts = calloc(2 * (size_t)world->size, sizeof *firsts);
    log_quiet(world->rank > 0);
    int status = seconds && firsts ? measure_all(&seat, seconds, firsts, firsts + world->size) : status_no_memory();
    if (status)
        comm_fail(world, status);
    stream_close(seat.stream);
    device_close(seat.device);
    free(seconds);
    free(firsts);
    return status;
}

int calibrate_ranks(struct calibration *c) {
    struct comm *alone;
    if (c->options->world)
        return measure_rank(c->options->world, c);
    if (c->options->ranks > 1)
        return comm_local_run((int)c->options->ranks, measure_rank, c);
    TRY(comm_single_open(&alone));
    int status = measure_rank(alone, c);
    comm_close(alone);
    return status;
}
