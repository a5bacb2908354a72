/* The steps of a real run of four stages come in the order and at the places in time of the walk. The linker puts a
 * recorder before the trainer's worker (tests/CMakeLists.txt). Nothing is timed: a step takes the seconds that the walk
 * is given, and a step that is held lets others begin exactly as far as the walk says. */
#include "train/support.h"

#include "parallel/pipeline.h"
#include "planner/walk.h"

#include <pthread.h>
#include <time.h>

enum { STAGES = 4, LAYERS = 8, MESSAGES = 64, PATIENCE = 100 };
static const double held_seconds = 1e6;
static const double forward[STAGES] = {1, 1.25, 1, 1.5}, backward[STAGES] = {2, 2.25, 2.5, 2};

/* The steps and messages of one global batch so far; `lock` is for all members. */
static struct recording {
    pthread_mutex_t lock;
    pthread_cond_t change;
    struct walk walk;
    int begun[STAGES]; /* steps */
    double now[STAGES];
    struct {
        bool is_there;
        double end;
    } sent[STAGES][PIPELINE_KINDS][MESSAGES]; /* by the sender and the number */
    int held_stage, held_step;                /* the step that is held; -1: none is */
    bool is_held;                             /* it still waits */
} recording = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};

static double step_seconds(const void *context, int stage, const struct pipeline_step *step) {
    const struct recording *r = context;
    const struct walk *walk = &r->walk;
    bool is_held = false;
    if (stage == r->held_stage) {
        const struct pipeline_step *held = &walk_event_at(walk, stage, r->held_step)->step;
        is_held = held->kind == step->kind && held->chunk == step->chunk && held->micro_batch == step->micro_batch;
    }
    return (step->kind == PIPELINE_FORWARD ? forward[stage] : backward[stage]) + (is_held ? held_seconds : 0);
}

static double no_seconds(const void *context, int from, int to) {
    (void)context;
    (void)from;
    (void)to;
    return 0;
}

/* Returns how many steps of a stage begin before the held one ends. */
static int count_before(const struct walk *walk, int stage) {
    int count = 0;
    while (count < walk->steps && walk_event_at(walk, stage, count)->start < held_seconds)
        count++;
    return count;
}

/* Holds the step until all others have begun that can. They have a minute and more for it. */
static int hold(struct recording *r) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += PATIENCE;
    int stage = 0, waited = 0;
    while (stage < STAGES && !waited)
        if (r->begun[stage] >= count_before(&r->walk, stage))
            stage++;
        else
            waited = pthread_cond_timedwait(&r->change, &r->lock, &end);
    r->is_held = false;
    return waited ? status_fail(STATUS_INVALID, "step %d of stage %d is held: stage %d begins %d steps, not %d",
                                r->held_step, r->held_stage, stage, r->begun[stage], count_before(&r->walk, stage))
                  : STATUS_OK;
}

/* Compares a step that begins with the walk; `start` is when its input is there. */
static int compare(const struct recording *r, int stage, const struct pipeline_step *step, double start) {
    int number = r->begun[stage];
    const struct walk_event *event = walk_event_at(&r->walk, stage, number);
    if (memcmp(&event->step, step, sizeof *step))
        return status_fail(STATUS_INVALID, "stage %d: step %d is another than in the walk", stage, number);
    if (r->held_stage < 0 && event->start != start)
        return status_fail(STATUS_INVALID, "stage %d: step %d begins at %g, in the walk at %g", stage, number, start,
                           event->start);
    if (r->held_stage >= 0 && r->is_held && number >= count_before(&r->walk, stage))
        return status_fail(STATUS_INVALID, "stage %d: step %d begins before step %d of stage %d ends", stage, number,
                           r->held_step, r->held_stage);
    return STATUS_OK;
}

static int begin(struct recording *r, int stage, const struct pipeline_step *step) {
    double start = r->now[stage];
    if (step->receive.stage != PIPELINE_NO_MESSAGE) {
        if (!r->sent[step->receive.stage][step->kind][step->receive.number].is_there)
            return status_fail(STATUS_INVALID, "stage %d: step %d begins before its message was sent", stage,
                               r->begun[stage]);
        double arrival = r->sent[step->receive.stage][step->kind][step->receive.number].end;
        start = arrival > start ? arrival : start;
    }
    int status = compare(r, stage, step, start);
    bool is_held = stage == r->held_stage && r->begun[stage] == r->held_step;
    r->now[stage] = start + step_seconds(r, stage, step);
    r->begun[stage]++;
    pthread_cond_broadcast(&r->change);
    return status || !is_held ? status : hold(r);
}

struct recorded {
    const struct pipeline_worker *worker;
    int stage;
};

static int run_step(void *context, const struct pipeline_step *step, const void *in, void *out) {
    struct recorded *recorded = context;
    struct recording *r = &recording;
    pthread_mutex_lock(&r->lock);
    int status = begin(r, recorded->stage, step);
    pthread_mutex_unlock(&r->lock);
    if (!status)
        status = recorded->worker->run(recorded->worker->context, step, in, out);
    pthread_mutex_lock(&r->lock);
    if (step->send.stage != PIPELINE_NO_MESSAGE) {
        r->sent[recorded->stage][step->kind][step->send.number].is_there = true;
        r->sent[recorded->stage][step->kind][step->send.number].end = r->now[recorded->stage];
    }
    pthread_mutex_unlock(&r->lock);
    return status;
}

int __real_pipeline_run(struct pipeline *pipeline, bool is_forward_only, const struct pipeline_worker *worker);
int __wrap_pipeline_run(struct pipeline *pipeline, bool is_forward_only, const struct pipeline_worker *worker);
int __wrap_pipeline_run(struct pipeline *pipeline, bool is_forward_only, const struct pipeline_worker *worker) {
    struct recorded recorded = {worker, pipeline->rank->place.pipeline};
    return __real_pipeline_run(pipeline, is_forward_only, &(struct pipeline_worker){run_step, &recorded});
}

/* Walks the shape twice: the second walk knows which step is held. */
static void start_recording(const struct pipeline_shape *shape, int held_stage, int held_step) {
    struct recording *r = &recording;
    const struct walk_times times = {.step = step_seconds, .message = no_seconds, .context = r};
    struct walk plain;
    memset(r->begun, 0, sizeof r->begun);
    memset(r->now, 0, sizeof r->now);
    memset(r->sent, 0, sizeof r->sent);
    r->held_stage = -1;
    test_ok(walk_run(shape, &times, &r->walk));
    if (held_stage < 0)
        return;
    plain = r->walk;
    r->held_stage = held_stage;
    r->held_step = held_step;
    r->is_held = true;
    struct walk held;
    test_ok(walk_run(shape, &times, &held));
    walk_free(&plain);
    r->walk = held;
}

struct task {
    struct train_run run;
    struct pipeline_shape shape;
};

/* One global batch without a held step, and one for some steps of each stage. */
static int take_batches(struct comm *world, struct trainer *trainer, void *context) {
    const struct task *task = context;
    int steps = pipeline_step_count(&task->shape), status = STATUS_OK;
    for (int i = -1; i < STAGES * steps && !status; i += i < 0 ? 1 : 3) {
        struct train_record record;
        if (world->rank == 0)
            start_recording(&task->shape, i < 0 ? -1 : i % STAGES, i / STAGES);
        status = comm_barrier(world);
        if (!status)
            status = trainer_step(trainer, &record);
        if (!status)
            status = comm_barrier(world);
        for (int stage = 0; world->rank == 0 && stage < STAGES && !status; stage++)
            assert_int_equal(recording.begun[stage], steps);
        if (world->rank == 0 && !status)
            walk_free(&recording.walk);
    }
    return status;
}

static int run_rank(struct comm *world, void *context) {
    struct task *task = context;
    return use_trainer(&task->run, world, take_batches, context);
}

static void events_come_in_the_walked_order(void **state) {
    (void)state;
    static const int shapes[][2] = {{1, 8}, {1, 3}, {2, 8}, {2, 6}}; /* chunks, micro batches */
    char *prefix = write_text();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct task task = {.run = make_run((const char **)&prefix, PRECISION_FP32, 1)};
        struct run_config *config = &task.run.config;
        struct rank_grid grid;
        config->device = test_device();
        config->model.num_layers = LAYERS;
        config->train.global_batch_size = shapes[i][1];
        config->train.train_iters = config->optim.lr_decay_iters = 2 * shapes[i][0] * shapes[i][1] * STAGES;
        config->parallel.threads_per_rank = 1;
        config->parallel.pipeline_model_parallel_size = STAGES;
        config->parallel.virtual_pipeline_model_parallel_size = shapes[i][0];
        test_ok(run_config_resolve(config));
        test_ok(train_plan_grid(&task.run, STAGES, &grid, &task.shape));
        test_ok(comm_local_run(STAGES, run_rank, &task));
    }
    free(prefix);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_come_in_the_walked_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
