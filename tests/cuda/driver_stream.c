#include "cuda/driver_stream.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct stream *stream_open(struct streams *streams) {
    struct stream *stream = calloc(1, sizeof *stream);
    if (stream) {
        stream->last = &stream->first;
        stream->streams = streams;
        stream->number = ++streams->opened;
        stream->next = streams->list;
        streams->list = stream;
    }
    return stream;
}

void streams_trace(const struct streams *streams, int priority, const char *what, unsigned long number) {
    if (streams->trace >= 0) {
        dprintf(streams->trace, "%d %d %s %lu\n", streams->slot, priority, what, number);
    }
}

static void trace_work(const struct stream *stream, const struct work *work) {
    const char *what = work->kind == WORK_LAUNCH ? work->launch.kernel->name
                       : work->kind == WORK_MEET ? "meeting"
                                                 : NULL;
    if (what) {
        streams_trace(stream->streams, stream->priority, what, 0);
    }
}

int stream_queue(struct stream *stream, const struct work *work) {
    struct work *queued = malloc(sizeof *queued);
    if (!queued) {
        return -1;
    }
    *queued = *work;
    queued->next = NULL;
    struct work ***last = stream->captured ? &stream->captured->last : &stream->last;
    **last = queued;
    *last = &queued->next;
    stream->streams->meetings += work->kind == WORK_MEET && !stream->captured;
    stream->is_joined = false;
    trace_work(stream, work);
    stream->queued += work->kind != WORK_RECORD;
    if (work->kind == WORK_RECORD) {
        work->event->source = stream->number;
        work->event->mark = stream->queued;
    }
    return 0;
}

static int queue_parts(struct stream *stream, const struct work *first, const struct work *end) {
    return first == end ? 0 : stream_queue(stream, &(struct work){.kind = WORK_GRAPH, .part = first, .end = end});
}

/* Meetings are work of their own, because they may have to wait. */
int stream_queue_graph(struct stream *stream, const struct graph *graph) {
    const struct work *first = graph->first;
    for (const struct work *part = first; part; part = part->next) {
        if (part->kind != WORK_MEET) {
            continue;
        }
        struct work meet = {.kind = WORK_MEET, .meeting = part->meeting, .context = part->meeting.again(part->context)};
        if (!meet.context || queue_parts(stream, first, part) || stream_queue(stream, &meet)) {
            return -1;
        }
        first = part->next;
    }
    return queue_parts(stream, first, NULL);
}

bool stream_end_capture(struct stream *origin) {
    const struct graph *graph = origin->captured;
    bool is_joined = true;
    for (struct stream *stream = origin->streams->list; stream; stream = stream->next) {
        if (stream->captured == graph) {
            is_joined &= stream == origin || stream->is_joined;
            stream->captured = NULL;
        }
    }
    return is_joined;
}

bool stream_has_followed(struct stream *stream, const struct event *event) {
    bool has = stream->source == event->source && event->mark <= stream->mark;
    stream->source = event->source;
    stream->mark = has ? stream->mark : event->mark;
    return has;
}

static void free_work(struct work *work) {
    free((void *)work->launch.params);
    free(work->context);
    free(work);
}

void graph_free(struct graph *graph) {
    while (graph && graph->first) {
        struct work *work = graph->first;
        graph->first = work->next;
        if (work->kind == WORK_MEET) {
            work->meeting.drop(work->context);
            work->context = NULL;
        }
        free_work(work);
    }
    free(graph);
}

static void *host(uint64_t address) {
    return (void *)(uintptr_t)address;
}

static void run_rows(struct machine *machine, const struct work *work) {
    for (uint64_t row = 0; row < work->rows; row++) {
        uint64_t to = work->to + row * work->to_pitch, from = work->from + row * work->from_pitch;
        int status = work->kind == WORK_WRITE  ? memory_write(machine, to, host(from), work->bytes)
                     : work->kind == WORK_READ ? memory_read(machine, host(to), from, work->bytes)
                                               : memory_move(machine, to, from, work->bytes);
        if (status) {
            return;
        }
    }
}

static void run_work(struct machine *machine, const struct work *work) {
    struct timespec now;
    if (work->fails) {
        machine_fail(machine, "%s fails on command", work->kind == WORK_LAUNCH ? work->launch.kernel->name : "a copy");
    }
    if (work->kind == WORK_RECORD && work->ticket < work->event->done) {
        return; /* a later record on another stream has run */
    } else if (work->kind == WORK_RECORD) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        work->event->done = work->ticket;
        work->event->time = (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6 + machine->claimed;
    } else if (machine->failed || work->kind == WORK_AWAIT || work->kind == WORK_MEET) {
        return; /* after a fault, streams only run empty */
    } else if (work->kind == WORK_LAUNCH) {
        launch_run(machine, &work->launch);
    } else if (work->kind == WORK_CALL) {
        work->call(machine, work->context);
    } else if (work->kind == WORK_GRAPH) {
        for (const struct work *part = work->part; part != work->end; part = part->next) {
            run_work(machine, part);
        }
    } else if (work->kind == WORK_SET) {
        memory_set(machine, work->to, work->value, work->bytes);
    } else {
        run_rows(machine, work);
    }
}

static bool is_ready(const struct stream *stream) {
    const struct work *work = stream->first;
    return work && !stream->is_passed_over && (work->kind != WORK_AWAIT || work->event->done >= work->ticket);
}

/* True where the first stream must run before the second, if both are ready. */
static bool goes_before(const struct stream *a, const struct stream *b) {
    int order = a->streams->order;
    return order == ORDER_URGENT ? a->priority < b->priority : order == ORDER_PATIENT && a->priority > b->priority;
}

/* Draws one of the streams that are ready; NULL where none is. */
static struct stream *draw_ready(struct streams *streams) {
    uint32_t count = 0;
    const struct stream *first = NULL;
    for (const struct stream *stream = streams->list; stream; stream = stream->next) {
        first = is_ready(stream) && (!first || goes_before(stream, first)) ? stream : first;
    }
    for (const struct stream *stream = streams->list; stream; stream = stream->next) {
        count += is_ready(stream) && !goes_before(first, stream);
    }
    uint32_t chosen = count ? machine_draw(streams->machine, count) : 0;
    struct stream *stream = count ? streams->list : NULL;
    while (stream && (!is_ready(stream) || goes_before(first, stream) || chosen-- > 0)) {
        stream = stream->next;
    }
    return stream;
}

static void remove_first(struct stream *stream) {
    struct work *work = stream->first;
    stream->first = work->next;
    stream->last = stream->first ? stream->last : &stream->first;
    stream->streams->meetings -= work->kind == WORK_MEET;
    free_work(work);
}

/* How often a GPU with the order "urgent" looks whether other ranks have come to a meeting, before it runs less urgent
 * work. */
enum { HOLDS_MOST = 150 };

/* Runs the first work of one ready stream. False where none is ready; then `waiting` is the number of meetings that
 * wait for other ranks, the first work of the streams that were passed over. */
static bool run_one(struct streams *streams, int *waiting) {
    *waiting = 0;
    for (struct stream *stream = streams->list; stream; stream = stream->next) {
        stream->is_passed_over = false;
    }
    for (struct stream *stream; (stream = draw_ready(streams));) {
        struct work *work = stream->first;
        if (work->kind == WORK_MEET && !streams->machine->failed &&
            !work->meeting.attend(streams->machine, work->context)) {
            stream->is_passed_over = true;
            ++*waiting;
            if (streams->order == ORDER_URGENT && stream->priority < 0 && streams->holds < HOLDS_MOST) {
                streams->holds++;
                return false;
            }
            continue;
        }
        streams->holds = work->kind == WORK_MEET ? 0 : streams->holds;
        run_work(streams->machine, work);
        remove_first(stream);
        return true;
    }
    return false;
}

static void stand(const struct streams *streams, int waiting) {
    int called = 0;
    for (const struct stream *stream = streams->list; stream; stream = stream->next) {
        if (stream->is_passed_over) {
            called++;
            stream->first->meeting.stand(stream->first->context, called == 1, called == waiting);
        }
    }
}

static bool is_all_empty(const struct streams *streams) {
    for (const struct stream *stream = streams->list; stream; stream = stream->next) {
        if (stream->first) {
            return false;
        }
    }
    return true;
}

/* Gives other threads and processes their turn. */
static void rest(struct streams *streams, int rests) {
    enum { TURNS = 20 };
    pthread_mutex_unlock(streams->lock);
    if (rests < TURNS) {
        sched_yield();
    } else {
        nanosleep(&(const struct timespec){.tv_nsec = 200000}, NULL);
    }
    pthread_mutex_lock(streams->lock);
}

void streams_run(struct streams *streams, const struct stream *until_empty, const struct event *until_done) {
    int waiting;
    for (int rests = 0;;) {
        bool is_done = until_done    ? until_done->done >= until_done->recorded
                       : until_empty ? until_empty->first == NULL
                                     : is_all_empty(streams);
        streams->waits++;
        if (is_done) {
            return;
        }
        if (run_one(streams, &waiting)) {
            rests = 0;
        } else if (waiting) {
            if (streams->holds == 0 || streams->holds == HOLDS_MOST) {
                stand(streams, waiting);
            }
            rest(streams, rests++);
        } else {
            return;
        }
    }
}

/* ---- the helper ---- */

/* Runs all that is ready when the host has not waited for a while, in milliseconds. It is long where the order is not
 * random: then hosts queue whole steps before any of it runs. */
static void *help(void *context) {
    struct streams *streams = context;
    int patience = streams->order == ORDER_RANDOM ? 1 : 5000, idle = 0, waiting;
    unsigned long waits = 0;
    pthread_mutex_lock(streams->lock);
    while (!streams->is_ending) {
        idle = streams->meetings && streams->waits == waits ? idle + 1 : 0;
        waits = streams->waits;
        while (idle >= patience && run_one(streams, &waiting)) {
        }
        pthread_mutex_unlock(streams->lock);
        nanosleep(&(const struct timespec){.tv_nsec = 1000000}, NULL);
        pthread_mutex_lock(streams->lock);
    }
    pthread_mutex_unlock(streams->lock);
    return NULL;
}

void streams_start_helper(struct streams *streams) {
    if (!streams->has_helper) {
        streams->is_ending = false;
        streams->has_helper = !pthread_create(&streams->helper, NULL, help, streams);
    }
}

void streams_end_helper(struct streams *streams) {
    pthread_mutex_lock(streams->lock);
    bool has_helper = streams->has_helper;
    streams->is_ending = true;
    streams->has_helper = false;
    pthread_mutex_unlock(streams->lock);
    if (has_helper) {
        pthread_join(streams->helper, NULL);
    }
}

void stream_close(struct streams *streams, struct stream *stream) {
    streams_run(streams, stream, NULL);
    for (struct stream **at = &streams->list; *at; at = &(*at)->next) {
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    }
    graph_free(stream->captured);
    free(stream);
}
