/* The watch of ranks: its thread and its findings. watch_join.c makes the connections. */
#include "watch-internal.h"

#include "base/base.h"

#include <errno.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { STACK_BYTES = 1 << 20, LINE_BYTES = 128 };
static const double beat_seconds = 0.25;
static const double late_seconds = 1; /* if a tick is this late, the process or the machine was stopped */

static void watch_say(int fd, enum watch_sign sign) {
    char byte = (char)sign;
    send(fd, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void say_to_all(const struct watch *watch, enum watch_sign sign) {
    for (int r = 0; r < watch->peer_count; r++)
        if (watch->peers[r].state == PEER_HERE)
            watch_say(watch->peers[r].fd, sign);
}

/* ---- the end ---- */

static void end_process(void *context, int rank, const char *line) {
    if (line)
        log_error("%s", line);
    _exit(1); /* another thread may hang inside MPI, and would keep exit() waiting */
}

/* Ends the run after `wait` seconds. A stopped rank gets the sign, too, and reads it when it resumes. */
static void end_run(struct watch *watch, int rank, const char *line, double wait) {
    struct timespec time = {.tv_sec = (time_t)wait, .tv_nsec = (long)((wait - (double)(time_t)wait) * 1e9)};
    watch->has_said = true;
    say_to_all(watch, WATCH_OVER);
    clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
    watch->options.on_end(watch->options.context, rank, line);
}

/* Reports a lost rank: rank 0 does at once, or rank 1 if rank 0 is lost. The others do later, in case that rank 1 is
 * lost, too. Until then mpirun, which needs one to two seconds on an idle machine, can end them. */
static void find(struct watch *watch, int rank, bool is_dead) {
    char line[LINE_BYTES];
    double seconds = watch->options.seconds;
    if (watch->has_said)
        return;
    if (is_dead)
        snprintf(line, sizeof line, "rank %d has died", rank);
    else
        snprintf(line, sizeof line, "rank %d has not been heard of for %g s", rank, seconds);
    end_run(watch, rank, line, watch->options.rank <= 1 ? 0 : seconds);
}

/* ---- the thread ---- */

/* Reads a peer's signs. A closed connection still yields its last ones first. */
static void hear(struct watch *watch, int rank) {
    struct watch_peer *peer = &watch->peers[rank];
    char signs[64];
    ssize_t count;
    while ((count = recv(peer->fd, signs, sizeof signs, MSG_DONTWAIT)) > 0) {
        peer->silent = 0;
        if (memchr(signs, WATCH_OVER, (size_t)count) && !watch->has_said)
            end_run(watch, -1, NULL, watch->options.seconds / 2);
        if (watch->has_said)
            return;
        if (memchr(signs, WATCH_GOODBYE, (size_t)count)) {
            peer->state = PEER_GONE;
            close(peer->fd);
            peer->fd = -1;
            return;
        }
        if (memchr(signs, WATCH_SIGN, (size_t)count))
            atomic_fetch_add_explicit(&peer->signs, 1, memory_order_relaxed);
    }
    if (count == 0 || (errno != EAGAIN && errno != EINTR))
        find(watch, rank, true);
}

/* Waits for signs until the next tick, and reads them. Returns true if the thread must end. */
static bool listen_until(struct watch *watch, double next) {
    struct pollfd *polled = watch->polled;
    int count = 2, milliseconds = (int)((next - clock_seconds()) * 1000) + 1;
    bool has_place = false;
    for (int i = 0; i < WATCH_GUESTS; i++) {
        has_place = has_place || watch->guests[i].fd < 0;
        polled[count++] = (struct pollfd){.fd = watch->guests[i].fd, .events = POLLIN};
    }
    for (int r = 0; r < watch->peer_count; r++)
        polled[count++] = (struct pollfd){.fd = watch->peers[r].fd, .events = POLLIN};
    polled[0] = (struct pollfd){.fd = watch->wake, .events = POLLIN};
    polled[1] = (struct pollfd){.fd = has_place ? watch->listener : -1, .events = POLLIN};
    if (poll(polled, (nfds_t)count, milliseconds > 0 ? milliseconds : 0) <= 0)
        return false;
    if (polled[0].revents)
        return true;
    const struct pollfd *of_guests = polled + 2, *of_peers = of_guests + WATCH_GUESTS;
    for (int r = 0; r < watch->peer_count && !watch->has_said; r++)
        if (of_peers[r].revents)
            hear(watch, r);
    for (int i = 0; i < WATCH_GUESTS; i++)
        if (of_guests[i].revents)
            watch_hear_guest(watch, &watch->guests[i]);
    if (polled[1].revents)
        watch_accept(watch);
    watch_close_door(watch);
    return watch->has_said;
}

/* Counts one tick, whatever time has passed, and sends beats. */
static void tick(struct watch *watch, bool is_late) {
    uint64_t signs = atomic_load_explicit(&watch->signs, memory_order_relaxed);
    say_to_all(watch, signs == watch->reported ? WATCH_BEAT : WATCH_SIGN);
    watch->reported = signs;
    for (int r = 0; r < watch->peer_count; r++) {
        struct watch_peer *peer = &watch->peers[r];
        peer->silent = is_late ? 0 : peer->silent + 1;
        if (peer->state != PEER_GONE && peer->silent >= watch->timeout)
            find(watch, r, false);
    }
    for (int i = 0; i < WATCH_GUESTS; i++) {
        struct watch_guest *guest = &watch->guests[i];
        if (guest->fd >= 0 && ++guest->silent > watch->timeout / 2) {
            close(guest->fd);
            guest->fd = -1;
        }
    }
}

static void *look_after(void *context) {
    struct watch *watch = context;
    double next = clock_seconds() + beat_seconds;
    while (!watch->has_said && !listen_until(watch, next)) {
        double now = clock_seconds();
        if (now < next)
            continue;
        tick(watch, now > next + late_seconds);
        next = now + beat_seconds;
    }
    return NULL;
}

static int start(struct watch *watch) {
    sigset_t all, before;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes))
        return status_no_memory();
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* other threads handle signals */
    int error = pthread_create(&watch->thread, &attributes, look_after, watch);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    watch->is_running = !error;
    return error ? status_fail(STATUS_IO, "cannot start a thread to watch the ranks: %s", strerror(error)) : STATUS_OK;
}

static void stop(struct watch *watch) {
    uint64_t one = 1;
    if (!watch->is_running)
        return;
    if (write(watch->wake, &one, sizeof one) == (ssize_t)sizeof one)
        pthread_join(watch->thread, NULL);
    watch->is_running = false;
}

/* ---- opening and closing ---- */

static int make(const struct watch_options *options, struct watch **out) {
    struct watch *watch = *out = calloc(1, sizeof *watch);
    int count = options->rank == 0 ? options->size : 1;
    TRY(status_allocated(watch));
    watch->listener = watch->wake = -1;
    for (int i = 0; i < WATCH_GUESTS; i++)
        watch->guests[i].fd = -1;
    watch->peers = calloc((size_t)count, sizeof *watch->peers);
    watch->polled = calloc(2 + WATCH_GUESTS + (size_t)count, sizeof *watch->polled);
    TRY(status_allocated(watch->peers && watch->polled));
    watch->options = *options;
    if (!options->on_end)
        watch->options.on_end = end_process;
    watch->timeout = (int)(options->seconds / beat_seconds + 0.5);
    watch->peer_count = count;
    for (int r = 0; r < count; r++)
        watch->peers[r] = (struct watch_peer){.state = PEER_AWAITED, .fd = -1};
    watch->wake = eventfd(0, EFD_CLOEXEC);
    return watch->wake < 0 ? status_fail_errno("cannot watch the ranks") : STATUS_OK;
}

static int finish(int status, struct watch **watch) {
    THEN(status, start(*watch));
    if (status) {
        watch_close(*watch);
        *watch = NULL;
    }
    return status;
}

int watch_lead(const struct watch_options *options, struct watch_card *card, struct watch **watch) {
    *card = (struct watch_card){0};
    int status = make(options, watch);
    if (!status) {
        (*watch)->peers[0].state = PEER_GONE;
        status = watch_listen(*watch, card);
    }
    status = finish(status, watch);
    if (status)
        card->port = 0;
    return status;
}

int watch_join(const struct watch_options *options, const struct watch_card *card, struct watch **watch) {
    int status = make(options, watch);
    THEN(status, watch_connect(*watch, card, options->seconds / 2));
    return finish(status, watch);
}

void watch_give_sign(struct watch *watch) {
    if (watch)
        atomic_store_explicit(&watch->signs, atomic_load_explicit(&watch->signs, memory_order_relaxed) + 1,
                              memory_order_relaxed);
}

bool watch_signs_of(const struct watch *watch, int rank, uint64_t *count) {
    const _Atomic uint64_t *signs = rank == watch->options.rank ? &watch->signs
                                    : rank < watch->peer_count  ? &watch->peers[rank].signs
                                                                : NULL;
    if (signs)
        *count = atomic_load_explicit(signs, memory_order_relaxed);
    return signs != NULL;
}

void watch_fail(struct watch *watch) {
    if (!watch)
        return;
    stop(watch);
    say_to_all(watch, WATCH_OVER);
}

void watch_close(struct watch *watch) {
    if (!watch)
        return;
    stop(watch);
    say_to_all(watch, WATCH_GOODBYE);
    for (int r = 0; r < watch->peer_count; r++)
        if (watch->peers[r].fd >= 0)
            close(watch->peers[r].fd);
    for (int i = 0; i < WATCH_GUESTS; i++)
        if (watch->guests[i].fd >= 0)
            close(watch->guests[i].fd);
    if (watch->listener >= 0)
        close(watch->listener);
    if (watch->wake >= 0)
        close(watch->wake);
    free(watch->polled);
    free(watch->peers);
    free(watch);
}
