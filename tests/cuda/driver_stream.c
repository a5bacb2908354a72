#include "cuda/driver_stream.h"

#include <stdlib.h>
#include <time.h>

struct stream *stream_open(struct streams *streams) {
    struct stream *stream = calloc(1, sizeof *stream);
    if (stream) {
        stream->last = &stream->first;
        stream->next = streams->list;
        streams->list = stream;
    }
    return stream;
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
    return 0;
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
    if (work->kind == WORK_RECORD) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        work->event->done = work->ticket;
        work->event->time = (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
    } else if (machine->failed || work->kind == WORK_AWAIT) {
        return; /* after a fault, streams only run empty */
    } else if (work->kind == WORK_LAUNCH) {
        launch_run(machine, &work->launch);
    } else if (work->kind == WORK_CALL) {
        work->call(machine, work->context);
    } else if (work->kind == WORK_GRAPH) {
        for (const struct work *part = work->graph->first; part; part = part->next) {
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
    return work && (work->kind != WORK_AWAIT || work->event->done >= work->ticket);
}

/* Runs the first work of one ready stream. False where none is ready. */
static bool run_one(struct streams *streams) {
    uint32_t count = 0;
    for (struct stream *stream = streams->list; stream; stream = stream->next) {
        count += is_ready(stream);
    }
    if (count == 0) {
        return false;
    }
    uint32_t chosen = machine_draw(streams->machine, count);
    struct stream *stream = streams->list;
    while (!is_ready(stream) || chosen-- > 0) {
        stream = stream->next;
    }
    struct work *work = stream->first;
    run_work(streams->machine, work);
    stream->first = work->next;
    stream->last = stream->first ? stream->last : &stream->first;
    free_work(work);
    return true;
}

static bool is_all_empty(const struct streams *streams) {
    for (const struct stream *stream = streams->list; stream; stream = stream->next) {
        if (stream->first) {
            return false;
        }
    }
    return true;
}

void streams_run(struct streams *streams, const struct stream *until_empty, const struct event *until_done) {
    for (;;) {
        bool is_done = until_done    ? until_done->done >= until_done->recorded
                       : until_empty ? until_empty->first == NULL
                                     : is_all_empty(streams);
        if (is_done || !run_one(streams)) {
            return;
        }
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
