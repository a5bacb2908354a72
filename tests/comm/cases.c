#include "cases.h"

#include "support/processor_time.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

/* ---- values ---- */

/* Returns the i-th value of a rank. Sums of three round, and nothing overflows. */
static double value_of(int rank, int64_t i, enum dtype dtype) {
    struct philox words = philox(7, (uint32_t)rank, (uint32_t)i, (uint32_t)dtype, 0);
    double unit = rng_unit(words.word[0]) - 0.5;
    if (dtype == DTYPE_I64)
        return floor(unit * 0x1p40);
    return dtype == DTYPE_F64 ? unit : ldexp((double)(float)unit, (int)(words.word[1] % 8));
}

static void put(void *memory, int64_t i, enum dtype dtype, double value) {
    switch (dtype) {
    case DTYPE_F32:
        ((float *)memory)[i] = (float)value;
        break;
    case DTYPE_BF16:
        ((uint16_t *)memory)[i] = bf16_from_float((float)value);
        break;
    case DTYPE_F64:
        ((double *)memory)[i] = value;
        break;
    case DTYPE_I64:
        ((int64_t *)memory)[i] = (int64_t)value;
        break;
    default: /* types that only move */
        memset((char *)memory + (size_t)i * dtype_bytes(dtype), (int)(fabs(value) * 16), dtype_bytes(dtype));
    }
}

void cases_fill(void *memory, int rank, int64_t first, int64_t count, enum dtype dtype) {
    for (int64_t i = 0; i < count; i++)
        put(memory, i, dtype, value_of(rank, first + i, dtype));
}

/* Computes the sum of the ranks' values, or their maximum, element by element in the order of ranks. */
void cases_expected(void *memory, int size, int64_t first, int64_t count, enum dtype dtype, enum comm_op op) {
    for (int64_t i = 0; i < count; i++) {
        float narrow = 0; /* fp32, and bf16 */
        double wide = 0;
        int64_t whole = 0;
        for (int rank = 0; rank < size; rank++) {
            double value = value_of(rank, first + i, dtype);
            float f = dtype == DTYPE_BF16 ? bf16_to_float(bf16_from_float((float)value)) : (float)value;
            bool is_first = rank == 0, is_sum = op == COMM_SUM;
            narrow = is_first ? f : is_sum ? narrow + f : fmaxf(narrow, f);
            wide = is_first ? value : is_sum ? wide + value : fmax(wide, value);
            whole = is_first ? (int64_t)value : is_sum ? whole + (int64_t)value : (int64_t)wide;
        }
        if (dtype == DTYPE_I64)
            ((int64_t *)memory)[i] = op == COMM_SUM ? whole : (int64_t)wide;
        else
            put(memory, i, dtype, dtype == DTYPE_F64 ? wide : (double)narrow);
    }
}

/* ---- one size and type ---- */

struct buffers {
    char *a, *b, *c; /* size * count elements each */
};

static int reduce_scatter(struct comm *comm, const struct comm_data *data) {
    struct comm_request request;
    int status = comm_reduce_scatter_start(comm, data, &request);
    return status ? status : comm_wait(&request);
}

static int reductions(struct comm *comm, struct buffers m, int64_t count, enum dtype dtype) {
    size_t bytes = (size_t)count * dtype_bytes(dtype), mine = bytes * (size_t)comm->rank;
    for (int op = COMM_SUM; op <= COMM_MAX; op++) {
        cases_expected(m.c, comm->size, 0, count, dtype, op);
        cases_fill(m.a, comm->rank, 0, count, dtype);
        expect_ok(comm_all_reduce(comm, &(struct comm_data){m.a, m.b, count, dtype, NULL}, op));
        expect(!memcmp(m.b, m.c, bytes));
        expect_ok(comm_all_reduce(comm, &(struct comm_data){m.a, m.a, count, dtype, NULL}, op));
        expect(!memcmp(m.a, m.c, bytes));
    }
    cases_expected(m.c, comm->size, count * comm->rank, count, dtype, COMM_SUM);
    cases_fill(m.a, comm->rank, 0, count * comm->size, dtype);
    expect_ok(reduce_scatter(comm, &(struct comm_data){m.a, m.b, count, dtype, NULL}));
    expect(!memcmp(m.b, m.c, bytes));
    expect_ok(reduce_scatter(comm, &(struct comm_data){m.a, m.a + mine, count, dtype, NULL}));
    expect(!memcmp(m.a + mine, m.c, bytes));
    return STATUS_OK;
}

static int moves(struct comm *comm, struct buffers m, int64_t count, enum dtype dtype) {
    int size = comm->size;
    size_t bytes = (size_t)count * dtype_bytes(dtype), mine = bytes * (size_t)comm->rank;
    for (int r = 0; r < size; r++)
        cases_fill(m.c + bytes * (size_t)r, r, 0, count, dtype);
    cases_fill(m.a, comm->rank, 0, count, dtype);
    expect_ok(comm_all_gather(comm, &(struct comm_data){m.a, m.b, count, dtype, NULL}));
    expect(!memcmp(m.b, m.c, bytes * (size_t)size));
    memset(m.b, 0, bytes * (size_t)size);
    cases_fill(m.b + mine, comm->rank, 0, count, dtype);
    expect_ok(comm_all_gather(comm, &(struct comm_data){m.b + mine, m.b, count, dtype, NULL}));
    expect(!memcmp(m.b, m.c, bytes * (size_t)size));

    for (int root = 0; root < size; root++) {
        memset(m.b, 0, bytes);
        expect_ok(comm_broadcast(comm, &(struct comm_data){m.a, m.b, count, dtype, NULL}, root));
        expect(!memcmp(m.b, m.c + bytes * (size_t)root, bytes));
        cases_fill(m.b, comm->rank, 0, count, dtype);
        expect_ok(comm_broadcast(comm, &(struct comm_data){m.b, m.b, count, dtype, NULL}, root));
        expect(!memcmp(m.b, m.c + bytes * (size_t)root, bytes));
    }
    return STATUS_OK;
}

static int messages(struct comm *comm, struct buffers m, int64_t count, enum dtype dtype) {
    size_t bytes = (size_t)count * dtype_bytes(dtype);
    cases_fill(m.a, comm->rank, 0, count, dtype);
    for (int step = 1; step < comm->size; step++) { /* to every other one, and from every other one */
        int to = (comm->rank + step) % comm->size, from = (comm->rank + comm->size - step) % comm->size;
        struct comm_request sending, receiving;
        memset(m.b, 0, bytes);
        expect_ok(comm_receive_start(comm, &(struct comm_data){NULL, m.b, count, dtype, NULL}, from, &receiving));
        expect_ok(comm_send_start(comm, &(struct comm_data){m.a, NULL, count, dtype, NULL}, to, &sending));
        expect_ok(comm_wait(&sending));
        expect_ok(comm_wait(&receiving));
        cases_fill(m.c, from, 0, count, dtype);
        expect(!memcmp(m.b, m.c, bytes));
    }
    /* Down the line and back, as a pipeline. */
    int last = comm->size - 1;
    if (comm->rank > 0)
        expect_ok(comm_receive_patient(comm, &(struct comm_data){NULL, m.b, count, dtype, NULL}, comm->rank - 1));
    if (comm->rank < last) {
        expect_ok(
            comm_send(comm, &(struct comm_data){comm->rank ? m.b : m.a, NULL, count, dtype, NULL}, comm->rank + 1));
        expect_ok(comm_receive(comm, &(struct comm_data){NULL, m.b, count, dtype, NULL}, comm->rank + 1));
    }
    if (comm->rank > 0)
        expect_ok(comm_send(comm, &(struct comm_data){m.b, NULL, count, dtype, NULL}, comm->rank - 1));
    cases_fill(m.c, 0, 0, count, dtype);
    expect(comm->size == 1 || !memcmp(m.b, m.c, bytes));
    return STATUS_OK;
}

static int every_type(struct comm *comm) {
    static const int64_t counts[] = {0, 1, 3, 17, 1001, 9973, 70001};
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F64, DTYPE_I64, DTYPE_I32, DTYPE_U8};
    size_t most = 70001 * 8 * (size_t)comm->size;
    struct buffers m = {malloc(most), malloc(most), malloc(most)};
    int status = m.a && m.b && m.c ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    for (size_t c = 0; c < sizeof counts / sizeof *counts && !status; c++)
        for (size_t t = 0; t < sizeof types / sizeof *types && !status; t++) {
            if (types[t] <= DTYPE_I64 && types[t] != DTYPE_F16)
                status = reductions(comm, m, counts[c], types[t]);
            status = status ? status : moves(comm, m, counts[c], types[t]);
            status = status ? status : messages(comm, m, counts[c], types[t]);
            if (status)
                status_wrap(status, "%lld %s", (long long)counts[c], dtype_name(types[t]));
        }
    if (status)
        comm_abort(comm, status_text()); /* before the buffers go */
    free(m.a);
    free(m.b);
    free(m.c);
    return status;
}

/* Sums as long as those of real gradients: more than two of MPI's windows, and a remainder. */
static int long_sums(struct comm *comm) {
    const int64_t count = (2 << 18) + 77;
    size_t most = (size_t)count * sizeof(float) * (size_t)comm->size;
    if (comm->size > 4)
        return STATUS_OK;
    struct buffers m = {malloc(most), malloc(most), malloc(most)};
    int status = m.a && m.b && m.c ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    status = status ? status : reductions(comm, m, count, DTYPE_F32);
    status = status ? status : reductions(comm, m, count, DTYPE_BF16);
    if (status)
        comm_abort(comm, status_text()); /* before the buffers go */
    free(m.a);
    free(m.b);
    free(m.c);
    return status ? status_wrap(status, "long sums") : STATUS_OK;
}

/* ---- started and waited for later ---- */

enum { STARTED = 4, LONG = 40000 };

static int started_in_any_order(struct comm *comm) {
    int size = comm->size, rank = comm->rank;
    float *memory = calloc((size_t)LONG * (size_t)(size + 4), sizeof *memory);
    expect(memory);
    float *sum = memory, *scattered = sum + LONG, *whole = scattered + LONG;
    float *max = whole + (size_t)LONG * (size_t)size, *check = max + LONG;
    struct comm_request request[STARTED] = {0};
    int status = STATUS_OK;
    for (int round = 0; round < 6 && !status; round++) {
        cases_fill(sum, rank, 0, LONG, DTYPE_F32);
        cases_fill(max, rank, 0, LONG, DTYPE_F32);
        cases_fill(whole, rank, 0, (int64_t)LONG * size, DTYPE_F32);
        status =
            comm_all_reduce_start(comm, &(struct comm_data){sum, sum, LONG, DTYPE_F32, NULL}, COMM_SUM, &request[0]);
        status = status ? status
                        : comm_reduce_scatter_start(comm, &(struct comm_data){whole, scattered, LONG, DTYPE_F32, NULL},
                                                    &request[1]);
        status = status ? status : comm_barrier(comm); /* a whole one between started ones */
        status = status ? status
                        : comm_all_reduce_start(comm, &(struct comm_data){max, max, LONG, DTYPE_F32, NULL}, COMM_MAX,
                                                &request[2]);
        for (int i = 0; i < 3 && !status; i++) /* each rank in another order */
            status = comm_wait(&request[(round + rank) % 2 ? i : 2 - i]);
        status = status ? status : comm_wait(&request[3]); /* never started: nothing to wait for */
    }
    bool is_right = true;
    cases_expected(check, size, 0, LONG, DTYPE_F32, COMM_SUM);
    is_right = is_right && !memcmp(check, sum, LONG * sizeof *check);
    cases_expected(check, size, 0, LONG, DTYPE_F32, COMM_MAX);
    is_right = is_right && !memcmp(check, max, LONG * sizeof *check);
    cases_expected(check, size, (int64_t)LONG * rank, LONG, DTYPE_F32, COMM_SUM);
    is_right = is_right && !memcmp(check, scattered, LONG * sizeof *check);
    if (status)
        comm_abort(comm, status_text());
    free(memory);
    expect_ok(status);
    expect(is_right);
    return STATUS_OK;
}

/* Several messages of one pair are under way at once, and arrive in the order in which they were sent. */
static int started_messages(struct comm *comm) {
    int next = (comm->rank + 1) % comm->size, before = (comm->rank + comm->size - 1) % comm->size;
    if (comm->size == 1)
        return STATUS_OK;
    enum { DEPTH = 4, LENGTH = 3000 };
    int64_t out[DEPTH][LENGTH], in[DEPTH][LENGTH];
    struct comm_request sends[DEPTH], receives[DEPTH];
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < DEPTH; i++) {
            for (int k = 0; k < LENGTH; k++)
                out[i][k] = comm->rank * 1000000 + round * 1000 + i;
            struct comm_data to = {out[i], NULL, LENGTH, DTYPE_I64, NULL},
                             from = {NULL, in[i], LENGTH, DTYPE_I64, NULL};
            expect_ok(comm_receive_start(comm, &from, before, &receives[i]));
            expect_ok(comm_send_start(comm, &to, next, &sends[i]));
        }
        for (int i = 0; i < DEPTH; i++)
            expect_ok(comm_wait(&receives[(i + round) % DEPTH]));
        for (int i = 0; i < DEPTH; i++) {
            expect(in[i][0] == before * 1000000 + round * 1000 + i);
            expect(in[i][LENGTH - 1] == in[i][0]);
            expect_ok(comm_wait(&sends[i]));
        }
    }
    return STATUS_OK;
}

/* ---- the rest ---- */

/* A message goes to the receive that was started first, whichever call looks first. */
static int patience_takes_what_comes_after(struct comm *comm) {
    int32_t words[2] = {2 * comm->rank, 2 * comm->rank + 1}, first = -1, second = -1;
    int next = (comm->rank + 1) % comm->size, before = (comm->rank + comm->size - 1) % comm->size;
    struct comm_request receiving, sending[2];
    if (comm->size == 1)
        return STATUS_OK;
    expect_ok(comm_receive_start(comm, &(struct comm_data){NULL, &first, 1, DTYPE_I32, NULL}, before, &receiving));
    for (int i = 0; i < 2; i++)
        expect_ok(comm_send_start(comm, &(struct comm_data){&words[i], NULL, 1, DTYPE_I32, NULL}, next, &sending[i]));
    expect_ok(comm_receive_patient(comm, &(struct comm_data){NULL, &second, 1, DTYPE_I32, NULL}, before));
    expect_ok(comm_wait(&receiving));
    for (int i = 0; i < 2; i++)
        expect_ok(comm_wait(&sending[i]));
    expect(first == 2 * before && second == 2 * before + 1);
    return STATUS_OK;
}

static int many_small_ones(struct comm *comm) {
    for (int64_t i = 0; i < 3000; i++) {
        int64_t values[3] = {i, comm->rank, 1};
        expect_ok(comm_all_reduce(comm, &(struct comm_data){values, values, 3, DTYPE_I64, NULL}, COMM_SUM));
        expect(values[0] == i * comm->size && values[2] == comm->size);
        if (i % 7 == comm->rank)
            sched_yield();
        if (i % 50 == 0)
            expect_ok(comm_barrier(comm));
    }
    return STATUS_OK;
}

/* The digits of a sum show which ranks took part. */
static int sum_of_powers(struct comm *comm, int world_rank, int64_t *sum) {
    int64_t one = INT64_C(1) << (4 * world_rank);
    return comm_all_reduce(comm, &(struct comm_data){&one, sum, 1, DTYPE_I64, NULL}, COMM_SUM);
}

static int subgroups(struct comm *world) {
    int ranks[64], count = 0;
    int64_t wanted = 0, sum;
    for (int r = world->rank % 2; r < world->size; r += 2) { /* even and odd ranks */
        ranks[count++] = r;
        wanted += INT64_C(1) << (4 * r);
    }
    struct comm *half, *reversed, *alone, *pair;
    expect_ok(comm_subgroup(world, ranks, count, &half));
    expect(half->size == count && half->rank == world->rank / 2 && half->world_rank == world->world_rank);
    for (int i = 0; i < 20; i++) {
        expect_ok(sum_of_powers(half, world->rank, &sum));
        expect(sum == wanted);
    }
    for (int i = 0; i < world->size; i++) /* backwards, inside the halves */
        ranks[i] = half->size - 1 - i;
    expect_ok(comm_subgroup(half, ranks, half->size, &reversed));
    expect(reversed->rank == half->size - 1 - half->rank);
    int64_t number = world->rank, first = -1;
    expect_ok(comm_broadcast(reversed, &(struct comm_data){&number, &first, 1, DTYPE_I64, NULL}, 0));
    expect(first == world->rank % 2 + 2 * (half->size - 1));

    expect_ok(comm_subgroup(world, &world->rank, 1, &alone));
    expect(alone->size == 1 && alone->world_rank == world->world_rank);
    expect_ok(sum_of_powers(alone, world->rank, &sum));
    expect(sum == INT64_C(1) << (4 * world->rank));
    int members = world->size > 1 && world->rank < 2 ? 2 : 0; /* the others are in no group */
    expect_ok(comm_subgroup(world, (int[]){1, 0}, members, &pair));
    expect(!pair == !members);
    if (pair) {
        expect_ok(sum_of_powers(pair, world->rank, &sum));
        expect(sum == 0x11 && pair->rank == 1 - world->rank);
        comm_close(pair);
    }
    comm_close(alone);
    comm_close(reversed);
    comm_close(half);
    return STATUS_OK;
}

/* Sums whose order matters, repeated while ranks come at different times, have the same bits on all ranks each time. */
static int bits_are_the_same(struct comm *comm) {
    enum { N = 50021, AGAIN = 12 };
    float *memory = malloc(3 * N * sizeof *memory);
    expect(memory);
    float *own = memory, *sum = own + N, *first = sum + N;
    bool is_same = true;
    int status = STATUS_OK;
    cases_fill(own, comm->rank, 0, N, DTYPE_F32);
    for (int round = 0; round < AGAIN && !status; round++) {
        for (int i = 0; i < (round * 7 + comm->rank * 3) % 11; i++)
            sched_yield();
        status = comm_all_reduce(comm, &(struct comm_data){own, sum, N, DTYPE_F32, NULL}, COMM_SUM);
        if (round == 0 && !status) { /* rank 0's bits for everybody */
            memcpy(first, sum, N * sizeof *sum);
            status = comm_broadcast(comm, &(struct comm_data){first, first, N, DTYPE_F32, NULL}, 0);
        }
        is_same = is_same && !status && !memcmp(first, sum, N * sizeof *sum);
    }
    /* Pieces of any size give the same bits again. */
    for (int64_t at = 0, piece = 1; at < N && !status; at += piece, piece = piece * 3 + 1) {
        piece = N - at < piece ? N - at : piece;
        status = comm_all_reduce(comm, &(struct comm_data){own + at, sum + at, piece, DTYPE_F32, NULL}, COMM_SUM);
    }
    is_same = is_same && !memcmp(first, sum, N * sizeof *sum);
    if (status)
        comm_abort(comm, status_text());
    free(memory);
    expect_ok(status);
    expect(is_same);
    return STATUS_OK;
}

static int nan_is_not_hidden(struct comm *comm) {
    for (int who = 0; who < comm->size; who++) {
        float value = comm->rank == who ? NAN : 1;
        uint16_t narrow = bf16_from_float(value);
        expect_ok(comm_all_reduce(comm, &(struct comm_data){&value, &value, 1, DTYPE_F32, NULL}, COMM_MAX));
        expect_ok(comm_all_reduce(comm, &(struct comm_data){&narrow, &narrow, 1, DTYPE_BF16, NULL}, COMM_MAX));
        expect(isnan(value) && isnan(bf16_to_float(narrow)));
    }
    return STATUS_OK;
}

/* The first rank with a failure of its own keeps it, and the others hear of that one. */
static int failures_are_reported_once(struct comm *comm) {
    expect_ok(comm_agree(comm, STATUS_OK));
    for (int first = 0; first < comm->size; first++) {
        int status = STATUS_OK;
        if (comm->rank >= first && comm->rank % 2 == first % 2)
            status = status_fail(STATUS_IO, "the disk of rank %d is full", comm->rank);
        else if (comm->rank == 0)
            status = status_fail(STATUS_PEER, "it only heard of it");
        char text[64], report[96];
        snprintf(text, sizeof text, "the disk of rank %d is full", first);
        snprintf(report, sizeof report, "rank %d failed: %s", first, text);
        status = comm_agree(comm, status);
        expect(status == (comm->rank == first ? STATUS_IO : STATUS_PEER));
        expect(!strcmp(status_text(), comm->rank == first ? text : report));
    }
    return STATUS_OK;
}

int cases_run(struct comm *world, void *context) {
    (void)context;
    expect_ok(every_type(world));
    expect_ok(long_sums(world));
    expect_ok(started_in_any_order(world));
    expect_ok(started_messages(world));
    expect_ok(patience_takes_what_comes_after(world));
    expect_ok(many_small_ones(world));
    expect_ok(subgroups(world));
    expect_ok(bits_are_the_same(world));
    expect_ok(nan_is_not_hidden(world));
    expect_ok(failures_are_reported_once(world));
    expect_ok(comm_barrier(world));
    return STATUS_OK;
}

/* ---- patience ---- */

/* The promise is 0.02; the rest is room for other work of the machine. */
static const double most_of_a_core = 0.05;
enum { IDLE_SECONDS = 2, MESSAGE = 1 << 20 };

/* Rank 0 waits until the others have started their calls, sleeps, and wakes them. */
static int wake_the_others(struct comm *world, float *numbers) {
    int32_t word = 11;
    for (int r = 1; r < world->size; r++) {
        expect_ok(comm_receive(world, &(struct comm_data){NULL, numbers, MESSAGE, DTYPE_F32, NULL}, r));
        expect(numbers[0] == (float)r && numbers[MESSAGE - 1] == (float)r);
    }
    nanosleep(&(const struct timespec){.tv_sec = IDLE_SECONDS}, NULL);
    for (int r = 1; r < world->size; r++)
        expect_ok(comm_send(world, &(struct comm_data){&word, NULL, 1, DTYPE_I32, NULL}, r));
    return STATUS_OK;
}

static int wait_patiently(struct comm *world, float *numbers, clockid_t clock) {
    struct comm_request sending;
    int32_t word = 0;
    for (int64_t i = 0; i < MESSAGE; i++)
        numbers[i] = (float)world->rank;
    expect_ok(comm_send_start(world, &(struct comm_data){numbers, NULL, MESSAGE, DTYPE_F32, NULL}, 0, &sending));
    double start = clock_seconds(), before = processor_seconds(clock);
    expect_ok(comm_receive_patient(world, &(struct comm_data){NULL, &word, 1, DTYPE_I32, NULL}, 0));
    double waited = clock_seconds() - start, used = processor_seconds(clock) - before;
    expect(word == 11);
    expect_ok(comm_wait(&sending));
    if (used > most_of_a_core * waited)
        return status_fail(STATUS_INVALID, "%g s of processor time while rank %d waited for %g s", used, world->rank,
                           waited);
    return STATUS_OK;
}

int cases_patience(struct comm *world, void *context) {
    float *numbers = malloc(MESSAGE * sizeof *numbers);
    expect(numbers);
    int status = world->rank ? wait_patiently(world, numbers, *(clockid_t *)context) : wake_the_others(world, numbers);
    free(numbers);
    expect_ok(status);
    return comm_barrier(world);
}
