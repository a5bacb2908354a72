/* Events of late: marks in its queues, which the host or another stream waits for. */
#include "late/late-internal.h"

#include <stdlib.h>

struct late_event {
    struct event event;
    struct late_stream *stream; /* NULL: not recorded yet */
    uint64_t number;            /* entries below it must have run */
    struct late_mark *mark;
};

static struct late_event *late_event(const struct event *event) {
    return (struct late_event *)(uintptr_t)event;
}

static int run_mark(const struct exec *exec, const void *arguments) {
    struct late_mark *mark = *(struct late_mark *const *)arguments;
    (void)exec;
    mark->seconds = clock_seconds();
    late_release_mark(mark);
    return STATUS_OK;
}

/* There is nothing to do: the entry runs only after the other stream is far enough. */
static int run_await(const struct exec *exec, const void *arguments) {
    (void)exec;
    (void)arguments;
    return STATUS_OK;
}

int late_event_open(struct device *device, struct event **out) {
    struct late_event *event = calloc(1, sizeof *event);
    struct late_mark *mark = calloc(1, sizeof *mark);
    *out = NULL;
    if (!event || !mark) {
        free(event);
        free(mark);
        return status_fail(STATUS_MEMORY, "out of memory");
    }
    atomic_init(&mark->holders, 1);
    event->event.device = device;
    event->mark = mark;
    *out = &event->event;
    return STATUS_OK;
}

void late_event_close(struct event *event) {
    late_release_mark(late_event(event)->mark);
    free(event);
}

int late_event_record(struct event *event, struct stream *stream) {
    struct late_event *own = late_event(event);
    struct late_stream *there = late_stream(stream);
    atomic_fetch_add(&own->mark->holders, 1); /* the entry may run at once */
    int status = late_queue(&(const struct exec){.stream = stream}, &(const struct late_work){.name = "event_record",
                                                                                              .run = run_mark,
                                                                                              .arguments = &own->mark,
                                                                                              .bytes = sizeof own->mark,
                                                                                              .kind = LATE_MARK});
    if (status) {
        late_release_mark(own->mark);
        return status;
    }
    own->stream = there;
    own->number = late_queued(there);
    return STATUS_OK;
}

int late_event_wait(struct event *event) {
    const struct late_event *own = late_event(event);
    return own->stream ? late_wait_for(own->stream, own->number) : STATUS_OK;
}

int late_event_seconds(const struct event *from, const struct event *to, double *seconds) {
    *seconds = late_event(to)->mark->seconds - late_event(from)->mark->seconds;
    return STATUS_OK;
}

int late_stream_wait_event(struct stream *stream, struct event *event) {
    const struct late_event *own = late_event(event);
    struct late_await await = {.stream = own->stream, .number = own->number};
    if (!own->stream || own->stream == late_stream(stream))
        return STATUS_OK;
    return late_queue(&(const struct exec){.stream = stream}, &(const struct late_work){.name = "stream_wait_event",
                                                                                        .run = run_await,
                                                                                        .arguments = &await,
                                                                                        .bytes = sizeof await,
                                                                                        .kind = LATE_AWAIT});
}
