/* The time of a rank's operations, by kind of work. Each operation has an event before and one after it in the stream,
 * so that timing does not change the order of work. */
#include "parallel/rank.h"

enum { PHASE_SPANS = 1024 };

const char *const phase_names[PHASE_COUNT] = {"gemm",      "attention",     "norms", "loss",
                                              "optimizer", "communication", "rest"};

struct phase_span {
    struct event *before, *after;
    enum phase phase;
};

static int open_spans(struct rank *rank) {
    struct phase_timer *timer = &rank->timer;
    int status = STATUS_OK;
    timer->spans = calloc(PHASE_SPANS, sizeof *timer->spans);
    TRY(status_allocated(timer->spans));
    for (int i = 0; i < PHASE_SPANS && !status; i++) {
        status = event_open(rank->device, &timer->spans[i].before);
        THEN(status, event_open(rank->device, &timer->spans[i].after));
    }
    return status;
}

void phase_timer_close(struct phase_timer *timer) {
    for (int i = 0; i < PHASE_SPANS && timer->spans; i++) {
        event_close(timer->spans[i].before);
        event_close(timer->spans[i].after);
    }
    free(timer->spans);
    *timer = (struct phase_timer){0};
}

static int read_spans(struct phase_timer *timer) {
    int status = timer->count ? event_wait(timer->spans[timer->count - 1].after) : STATUS_OK;
    for (int i = 0; i < timer->count && !status; i++) {
        const struct phase_span *span = &timer->spans[i];
        double seconds;
        status = event_seconds(span->before, span->after, &seconds);
        timer->seconds[span->phase] += status ? 0 : seconds;
    }
    timer->count = 0;
    return status;
}

int rank_time_phases(struct rank *rank, bool is_timed) {
    int status = is_timed && !rank->timer.spans ? open_spans(rank) : STATUS_OK;
    if (status)
        phase_timer_close(&rank->timer);
    rank->timer.is_on = is_timed && !status;
    return status;
}

int rank_take_phases(struct rank *rank, double seconds[PHASE_COUNT]) {
    int status = read_spans(&rank->timer);
    for (int i = 0; i < PHASE_COUNT; i++) {
        seconds[i] = rank->timer.seconds[i];
        rank->timer.seconds[i] = 0;
    }
    return status;
}

int rank_span_begin_(struct rank *rank) {
    struct phase_timer *timer = &rank->timer;
    int status = timer->count == PHASE_SPANS ? read_spans(timer) : STATUS_OK;
    return status ? status : event_record(timer->spans[timer->count].before, rank->exec.stream);
}

int rank_phase_end(struct rank *rank, enum phase phase, int begun, int status) {
    struct phase_timer *timer = &rank->timer;
    if (!timer->is_on || status || begun)
        return status ? status : begun;
    timer->spans[timer->count].phase = phase;
    return event_record(timer->spans[timer->count++].after, rank->exec.stream);
}
