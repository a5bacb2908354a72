/* The loop's thread and its notes. While notes wait, however many, a single event is active. */
#include "loop.h"

#include "base/base.h"

#include <event2/thread.h>
#include <pthread.h>
#include <time.h>

struct loop {
    struct event_base *base;
    struct event *wake;
    pthread_t thread;
    pthread_mutex_t lock;
    struct loop_note *first, **last;
    bool is_running, must_stop;
    /* The thread's: */
    bool is_over;
    struct loop_turns turns;
};

static void run_notes(evutil_socket_t fd, short what, void *context) {
    struct loop *loop = context;
    pthread_mutex_lock(&loop->lock);
    struct loop_note *notes = loop->first;
    loop->first = NULL;
    loop->last = &loop->first;
    bool must_stop = loop->must_stop;
    pthread_mutex_unlock(&loop->lock);
    for (struct loop_note *note = notes, *next; note; note = next) {
        next = note->next;
        note->run(note);
    }
    loop->is_over = must_stop;
}

int loop_open(struct loop **out) {
    struct loop *loop = *out = calloc(1, sizeof *loop);
    if (!loop || evthread_use_pthreads()) {
        free(loop);
        *out = NULL;
        return status_no_memory();
    }
    pthread_mutex_init(&loop->lock, NULL);
    loop->last = &loop->first;
    loop->base = event_base_new();
    loop->wake = loop->base ? event_new(loop->base, -1, EV_PERSIST, run_notes, loop) : NULL;
    if (loop->wake)
        return STATUS_OK;
    loop_close(loop);
    *out = NULL;
    return status_fail(STATUS_IO, "cannot make an event loop");
}

struct event_base *loop_base(struct loop *loop) {
    return loop->base;
}

/* Returns the thread's processor time so far, including the kernel's for it. */
static double thread_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void *run(void *context) {
    struct loop *loop = context;
    for (double before = thread_seconds(), now; !loop->is_over; before = now) {
        if (event_base_loop(loop->base, EVLOOP_ONCE | EVLOOP_NO_EXIT_ON_EMPTY) < 0)
            break;
        now = thread_seconds();
        loop_turns_count(&loop->turns, now - before);
    }
    return NULL;
}

const struct loop_turns *loop_turns(const struct loop *loop) {
    return &loop->turns;
}

int loop_start(struct loop *loop) {
    int failed = pthread_create(&loop->thread, NULL, run, loop);
    loop->is_running = !failed;
    return failed ? status_fail(STATUS_MEMORY, "cannot start the event loop's thread") : STATUS_OK;
}

void loop_post(struct loop *loop, struct loop_note *note) {
    note->next = NULL;
    loop_post_all(loop, note, &note->next);
}

void loop_post_all(struct loop *loop, struct loop_note *first, struct loop_note **last) {
    pthread_mutex_lock(&loop->lock);
    bool was_empty = !loop->first;
    *loop->last = first;
    loop->last = last;
    pthread_mutex_unlock(&loop->lock);
    if (was_empty)
        event_active(loop->wake, EV_READ, 0);
}

void loop_stop(struct loop *loop) {
    if (!loop->is_running)
        return;
    pthread_mutex_lock(&loop->lock);
    loop->must_stop = true;
    pthread_mutex_unlock(&loop->lock);
    event_active(loop->wake, EV_READ, 0);
    pthread_join(loop->thread, NULL);
    loop->is_running = false;
}

void loop_close(struct loop *loop) {
    if (!loop)
        return;
    loop_stop(loop);
    if (loop->wake)
        event_free(loop->wake);
    if (loop->base)
        event_base_free(loop->base);
    pthread_mutex_destroy(&loop->lock);
    free(loop);
}
