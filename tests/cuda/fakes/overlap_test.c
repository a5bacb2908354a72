/* Sums of gradients over NCCL travel beside the backward, in the order of events. Two ranks, which are threads with a
 * GPU each, train three steps. Each run is a process of its own, in which the stand-in runs streams in the order that
 * hurts most. Buckets have a layer each.
 *
 * Then each edge between two streams is removed once: a stream does not wait for an event. The figures are wrong then,
 * or the stand-in reports that numbers changed while they were under way. The short form does so with ZeRO-1 alone, and
 * for every third edge. */
#include "train/support.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 2, STEPS = 3, FIGURES = 2 * STEPS, LINES = 20000, LOOKED_AT = 1, CARD = 4, SPARED = 1 };

/* The linker puts __wrap_ops_for in the place of ops_for. */
const struct ops *__real_ops_for(const struct device *device);
const struct ops *__wrap_ops_for(const struct device *device);

static const struct ops_sizes *layer_buckets(struct device *device) {
    static _Thread_local struct ops_sizes sizes;
    sizes = *__real_ops_for(device)->sizes(device);
    sizes.bucket_elements = 1;
    return &sizes;
}

const struct ops *__wrap_ops_for(const struct device *device) {
    static _Thread_local struct ops ops;
    ops = *__real_ops_for(device);
    ops.sizes = layer_buckets;
    return &ops;
}

/* One run, and what it leaves in memory that the processes share. */
struct run {
    bool is_sharded;
    double *figures; /* [FIGURES] */
};

static void mark(const struct comm *world, int step) {
    const char *path = getenv("CAMBIUM_CUDA_TRACE");
    int file = path ? open(path, O_WRONLY | O_APPEND) : -1;
    if (file >= 0) {
        dprintf(file, "%d 0 step %d\n", world->rank, step);
        close(file);
    }
}

static int train(struct comm *world, struct trainer *trainer, void *context) {
    const struct run *own = context;
    struct train_record record;
    int status = STATUS_OK;
    for (int i = 0; i < STEPS && !status; i++) {
        mark(world, i);
        status = trainer_step(trainer, &record);
        if (world->rank == 0) {
            own->figures[2 * i] = record.lm_loss;
            own->figures[2 * i + 1] = record.grad_norm;
        }
    }
    mark(world, STEPS);
    return status;
}

static int run_rank(struct comm *world, void *context) {
    const struct run *own = context;
    char *prefix = write_text();
    struct train_run run = make_run((const char **)&prefix, PRECISION_FP32, 1);
    run.config.train.global_batch_size = RANKS;
    run.config.parallel.use_distributed_optimizer = own->is_sharded;
    run.config.parallel.gemm_sm_margin = SPARED;
    run.config.parallel.overlap_grad_reduce = run.config.parallel.overlap_param_gather = true;
    int status = use_trainer(&run, world, train, context);
    free(prefix);
    return status;
}

/* Runs in a process of its own, and returns true if it ends in order. */
static bool run_apart(const struct run *run, const char *order, const char *fault, const char *trace) {
    int result;
    pid_t child = fork();
    if (child == 0) {
        setenv("CAMBIUM_CUDA_ORDER", order, 1);
        if (fault)
            setenv("CAMBIUM_CUDA_FAIL", fault, 1);
        if (trace)
            setenv("CAMBIUM_CUDA_TRACE", trace, 1);
        if (fault)
            freopen("/dev/null", "w", stderr);
        alarm(120);
        _exit(comm_local_run(RANKS, run_rank, (void *)(uintptr_t)run) ? 1 : 0);
    }
    waitpid(child, &result, 0);
    return WIFEXITED(result) && WEXITSTATUS(result) == 0;
}

/* ---- traces ---- */

struct line {
    int card, priority, number;
    char what[64];
};

struct trace {
    struct line *lines;
    int count;
};

/* Reads the lines of one GPU. */
static struct trace read_trace(const char *path, int card) {
    struct trace trace = {.lines = calloc(LINES, sizeof *trace.lines)};
    FILE *file = fopen(path, "r");
    char text[128];
    assert_true(trace.lines && file);
    while (fgets(text, sizeof text, file)) {
        struct line line = {0};
        assert_true(sscanf(text, "%d %d %63s %d", &line.card, &line.priority, line.what, &line.number) >= 3);
        assert_true(trace.count < LINES);
        if (line.card == card)
            trace.lines[trace.count++] = line;
    }
    fclose(file);
    return trace;
}

static bool is_called(const struct line *line, const char *what) {
    return !strcmp(line->what, what);
}

static int step_begin(const struct trace *trace, int step) {
    int i = 0;
    while (i < trace->count && !(is_called(&trace->lines[i], "step") && trace->lines[i].number == step))
        i++;
    assert_true(i < trace->count);
    return i;
}

/* The last line of a step with this name. */
static int last_of(const struct trace *trace, int step, const char *what) {
    int i = step_begin(trace, step + 1);
    while (i >= 0 && !is_called(&trace->lines[i], what))
        i--;
    assert_true(i > step_begin(trace, step));
    return i;
}

static int count_between(const struct trace *trace, int first, int end, const char *what, bool is_urgent) {
    int count = 0;
    for (int i = first; i < end; i++)
        count += is_called(&trace->lines[i], what) && (trace->lines[i].priority < 0) == is_urgent;
    return count;
}

/* The sums of a step begin where the stream of buckets may begin as soon as its events have come. */
static void check_order(const struct trace *trace, bool is_sharded) {
    int first = step_begin(trace, LOOKED_AT), end = step_begin(trace, LOOKED_AT + 1);
    int update = last_of(trace, LOOKED_AT, "clip_factor"),
        backward = last_of(trace, LOOKED_AT, "embedding_backward_fp32");
    int forward = first;
    while (!is_called(&trace->lines[forward], "embedding_forward_fp32"))
        forward++;
    int all = count_between(trace, forward, update, "meeting", true);
    int early = count_between(trace, forward, backward, "meeting", true);
    print_message("%s: %d sums, %d before the backward has ended\n", is_sharded ? "ZeRO-1" : "data", all, early);
    assert_true(all >= 4);
    assert_true(early >= all - 2); /* but those of the embedding: cut parameters and copies are two buckets */
    assert_int_equal(count_between(trace, first, end, "wait", false), 1);
}

/* Products leave multiprocessors alone from the first sum on until a stream waits for the last one. Lines of products
 * and edges are in the order in which the host asks for them. */
static void check_products(const struct trace *trace) {
    int whole = 0, spared = 0;
    bool are_under_way = false;
    for (int i = step_begin(trace, LOOKED_AT); i < step_begin(trace, LOOKED_AT + 1); i++) {
        const struct line *line = &trace->lines[i];
        if (is_called(line, "edge"))
            are_under_way = line->priority < 0;
        if (!is_called(line, "product"))
            continue;
        assert_int_equal(line->number, are_under_way ? CARD - SPARED : 0);
        whole += !are_under_way;
        spared += are_under_way;
    }
    print_message("%d products on a whole GPU, %d beside sums\n", whole, spared);
    assert_true(whole > 0 && spared > 0);
}

/* ---- removed edges ---- */

/* Returns the number of edges. An urgent stream that does not wait begins too early where urgent work goes first.
 * Others miss its result where it goes last. Which events have come already depends on the order, so each has its own
 * trace. */
static int check_edges(const struct run *run, const char *order, const char *path, const double *right) {
    struct trace trace = read_trace(path, 1);
    bool is_urgent = !strcmp(order, "urgent");
    int begin = step_begin(&trace, LOOKED_AT), end = step_begin(&trace, LOOKED_AT + 1), edges = 0;
    for (int i = begin; i < end; i++) {
        const struct line *line = &trace.lines[i];
        if (!is_called(line, "edge") || (line->priority < 0) != is_urgent)
            continue;
        if (edges++ % 3 && !test_is_long())
            continue;
        char fault[32];
        snprintf(fault, sizeof fault, "event:%d@1", line->number);
        if (run_apart(run, order, fault, NULL) && !memcmp(run->figures, right, FIGURES * sizeof *right))
            fail_msg("%s: without edge %d the figures are right", order, line->number);
    }
    free(trace.lines);
    return edges;
}

static void check(bool is_sharded) {
    static const char *const orders[] = {"urgent", "patient"};
    double right[FIGURES];
    struct run run = {.is_sharded = is_sharded};
    char *directory = test_directory(), *paths[2];
    run.figures = mmap(NULL, FIGURES * sizeof(double), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(run.figures != MAP_FAILED);
    for (int i = 0; i < 2; i++) {
        assert_true(asprintf(&paths[i], "%s/%s", directory, orders[i]) > 0);
        assert_true(run_apart(&run, orders[i], NULL, paths[i]));
        if (i == 0)
            memcpy(right, run.figures, sizeof right);
    }
    assert_memory_equal(run.figures, right, sizeof right);
    struct trace trace = read_trace(paths[0], 1);
    check_order(&trace, is_sharded);
    if (!is_sharded) /* else weights travel during the forward as well */
        check_products(&trace);
    free(trace.lines);
    for (int i = 0; i < 2; i++) {
        int least = is_sharded || i == 0 ? 2 : 1; /* data ranks' compute stream waits for the last sum alone */
        if (is_sharded || test_is_long())
            assert_true(check_edges(&run, orders[i], paths[i], right) >= least);
        free(paths[i]);
    }
    munmap(run.figures, FIGURES * sizeof(double));
    free(directory);
}

static void sums_of_gradients_travel_beside_the_backward(void **state) {
    (void)state;
    check(false);
}

static void pieces_travel_beside_the_passes(void **state) {
    (void)state;
    check(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_gradients_travel_beside_the_backward),
        cmocka_unit_test(pieces_travel_beside_the_passes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
