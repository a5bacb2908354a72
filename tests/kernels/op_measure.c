/* Measures a case's call. */
#include "op_cases-internal.h"

#include <stdlib.h>

enum { COPIES = 48, CALLS = 4096 };
static const size_t cold_bytes = (size_t)192 << 20; /* of tensors: more than any cache keeps from call to call */

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct copy {
    struct op_run run;
    struct op_scene scene;
};

/* One call, between two events: on a GPU the host would count its own wait. */
static int time_call(const struct copy *copy, struct event *const events[2], double *seconds) {
    struct stream *stream = copy->scene.stream;
    int status = event_record(events[0], stream);
    if (!status)
        status = copy->run.op_case->kind->call(&copy->run, copy->scene.ops, &copy->scene.exec);
    if (!status)
        status = event_record(events[1], stream);
    if (!status)
        status = stream_wait(stream);
    return status ? status : event_seconds(events[0], events[1], seconds);
}

static void forget_host(struct op_run *run) {
    for (int i = 0; i < OP_TENSORS; i++) {
        struct op_tensor *t = &run->tensor[i];
        free(t->value);
        free(t->image);
        t->value = NULL;
        t->image = NULL;
    }
}

/* Copies the tensors on the device. */
static int repeat(struct op_run *run, const struct op_run *first, struct device *device, struct stream *stream) {
    int status = STATUS_OK;
    *run = *first;
    run->state = NULL;
    for (int i = 0; i < OP_TENSORS; i++)
        run->tensor[i].block = run->tensor[i].data = NULL;
    for (int i = 0; i < OP_TENSORS && !status; i++) {
        struct op_tensor *t = &run->tensor[i];
        if (t->role)
            status = device_alloc(device, t->image_bytes, &t->block);
        if (t->role && !status) {
            t->data = (char *)t->block + OP_GUARD;
            status = stream_copy(stream, t->block, first->tensor[i].block, t->image_bytes);
        }
    }
    return status;
}

/* The first copy is made by the host, and the others on the device: the host takes longer than many calls. */
static int open_copy(struct copy *copy, const struct op_run *first, const struct op_case *c, struct device *device,
                     struct stream *stream) {
    copy->run.is_benchmark = true;
    copy->scene = (struct op_scene){.device = device, .stream = stream, .ops = ops_for(device)};
    int status = first ? repeat(&copy->run, first, device, stream) : op_run_open(&copy->run, c, device, stream);
    if (!status)
        status = op_scene_enter(&copy->scene, &copy->run);
    forget_host(&copy->run);
    return status;
}

static size_t bytes_of(const struct op_run *run) {
    size_t bytes = 0;
    for (int i = 0; i < OP_TENSORS; i++)
        bytes += run->tensor[i].image_bytes;
    return bytes;
}

/* Returns true if the device has the operation: only a run with tensors can tell. */
static bool exists(const struct copy *copy) {
    const struct op_kind *kind = copy->run.op_case->kind;
    return !kind->supports || kind->supports(&copy->run, copy->scene.ops, copy->scene.device);
}

int op_measure(struct device *device, const struct op_case *c, double seconds, struct op_timing *timing) {
    struct stream *stream;
    int status = stream_open(device, &stream), copies = 0, calls = 0;
    if (status)
        return status;
    struct copy *copy = calloc(COPIES, sizeof *copy);
    double *times = malloc(CALLS * sizeof *times);
    struct event *events[2] = {NULL, NULL};
    if (!copy || !times)
        status = status_fail(STATUS_MEMORY, "out of memory");
    for (int i = 0; i < 2 && !status; i++)
        status = event_open(device, &events[i]);
    for (size_t bytes = 0; !status && copies < COPIES && (bytes < cold_bytes || copies == 0); copies++) {
        status = open_copy(&copy[copies], copies ? &copy[0].run : NULL, c, device, stream);
        bytes += bytes_of(&copy[copies].run);
    }
    *timing = (struct op_timing){.is_missing = !status && !exists(&copy[0])};
    double end = clock_seconds() + seconds;
    for (int i = 0; !status && !timing->is_missing && calls < CALLS; i++) {
        if (clock_seconds() > end && calls >= 3)
            break;
        status = time_call(&copy[i % copies], events, &times[calls]);
        /* The first round meets untouched memory and makes primitives. */
        if (i >= copies)
            calls++;
        else
            end = clock_seconds() + seconds;
    }
    if (!status && calls) {
        qsort(times, (size_t)calls, sizeof *times, compare);
        *timing = (struct op_timing){.seconds = times[calls / 2], .best = times[0]};
        if (c->kind->cost)
            c->kind->cost(&copy[0].run, &timing->flops, &timing->bytes);
    }
    for (int i = 0; i < copies; i++) {
        if (copy[i].scene.workspace)
            op_scene_leave(&copy[i].scene, &copy[i].run);
        op_run_close(&copy[i].run, device);
    }
    free(copy);
    free(times);
    event_close(events[0]);
    event_close(events[1]);
    stream_close(stream);
    return status;
}
