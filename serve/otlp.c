/* The queue of spans, and the thread that empties it. */
#include "otlp.h"

#include "openai/json_out.h"
#include "otlp_post.h"

#include "base/base.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

enum { BATCH_SPANS = 512, TRIES = 3 };
static const double batch_seconds = 1;   /* how long the first span of a batch waits for others */
static const double retry_seconds = 0.5; /* before the second attempt; twice that before the third */
static const double first_pause_seconds = 1, most_pause_seconds = 30; /* after a batch that was dropped */
static const double close_seconds = 3;

struct span {
    struct span *next;
    size_t length;
    char json[];
};

struct otlp {
    pthread_t thread;
    pthread_mutex_t lock; /* never held while waiting */
    pthread_cond_t has_changed;
    struct otlp_target target; /* the thread's, like `pause` and `envelope` */
    double pause;
    struct strbuf envelope;     /* the start of every body */
    struct span *first, **last; /* under the lock, like everything below */
    size_t count, bytes;        /* of the waiting spans */
    uint64_t sent, dropped;
    bool has_ended, is_abandoned; /* abandoned: the thread frees everything */
    atomic_bool is_ending;        /* also read by a POST that waits */
};

static void free_all(struct otlp *otlp) {
    for (struct span *span = otlp->first, *next; span; span = next) {
        next = span->next;
        free(span);
    }
    otlp_target_free(&otlp->target);
    strbuf_free(&otlp->envelope);
    pthread_mutex_destroy(&otlp->lock);
    pthread_cond_destroy(&otlp->has_changed);
    free(otlp);
}

/* ---- the loop's side ---- */

void otlp_add(struct otlp *otlp, const char *json, size_t length) {
    pthread_mutex_lock(&otlp->lock);
    bool has_room = otlp->count < OTLP_QUEUE_SPANS && otlp->bytes + length <= OTLP_QUEUE_BYTES;
    struct span *span = has_room ? malloc(sizeof *span + length) : NULL;
    if (span) {
        *span = (struct span){.length = length};
        memcpy(span->json, json, length);
        *otlp->last = span;
        otlp->last = &span->next;
        otlp->bytes += length;
        if (otlp->count++ == 0 || otlp->count == BATCH_SPANS)
            pthread_cond_signal(&otlp->has_changed);
    } else {
        otlp->dropped++;
    }
    pthread_mutex_unlock(&otlp->lock);
}

void otlp_drop(struct otlp *otlp) {
    pthread_mutex_lock(&otlp->lock);
    otlp->dropped++;
    pthread_mutex_unlock(&otlp->lock);
}

void otlp_counts(struct otlp *otlp, uint64_t *sent, uint64_t *dropped) {
    pthread_mutex_lock(&otlp->lock);
    *sent = otlp->sent;
    *dropped = otlp->dropped;
    pthread_mutex_unlock(&otlp->lock);
}

/* ---- the thread ---- */

/* Waits under the lock until something changes. Returns false when `seconds` have passed. */
static bool wait_seconds(struct otlp *otlp, double seconds) {
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    long nanoseconds = (long)((seconds - (double)(time_t)seconds) * 1e9) + end.tv_nsec;
    end.tv_sec += (time_t)seconds + nanoseconds / 1000000000;
    end.tv_nsec = nanoseconds % 1000000000;
    return pthread_cond_timedwait(&otlp->has_changed, &otlp->lock, &end) != ETIMEDOUT;
}

/* Under the lock. */
static void pause_for(struct otlp *otlp, double seconds) {
    double end = clock_seconds() + seconds, remaining;
    while (!atomic_load(&otlp->is_ending) && (remaining = end - clock_seconds()) > 0)
        wait_seconds(otlp, remaining);
}

/* Moves the spans of a batch into `body`, and returns their number; 0 at the end. */
static size_t take_batch(struct otlp *otlp, struct strbuf *body) {
    size_t taken = 0;
    pthread_mutex_lock(&otlp->lock);
    while (!otlp->count && !atomic_load(&otlp->is_ending))
        pthread_cond_wait(&otlp->has_changed, &otlp->lock);
    for (double end = clock_seconds() + batch_seconds;
         otlp->count < BATCH_SPANS && !atomic_load(&otlp->is_ending) && clock_seconds() < end;)
        wait_seconds(otlp, end - clock_seconds());
    struct span *first = otlp->first, *next;
    while (otlp->first && taken < BATCH_SPANS) {
        otlp->bytes -= otlp->first->length;
        otlp->first = otlp->first->next;
        taken++;
    }
    otlp->count -= taken;
    if (!otlp->first)
        otlp->last = &otlp->first;
    pthread_mutex_unlock(&otlp->lock);
    strbuf_add(body, otlp->envelope.data, otlp->envelope.length);
    for (size_t i = 0; i < taken; i++, first = next) {
        next = first->next;
        if (i)
            strbuf_add_char(body, ',');
        strbuf_add(body, first->json, first->length);
        free(first);
    }
    strbuf_add_text(body, "]}]}]}");
    return taken;
}

/* If the collector cannot be reached, there are two more attempts; then the batch is lost, and the next one waits
 * longer. */
static void deliver(struct otlp *otlp, const struct strbuf *body, size_t spans) {
    enum otlp_result result = OTLP_FAILED;
    uint64_t rejected = 0;
    for (int tries = 0; tries < TRIES && result == OTLP_FAILED && !body->failed; tries++) {
        if (tries) {
            pthread_mutex_lock(&otlp->lock);
            pause_for(otlp, retry_seconds * tries);
            pthread_mutex_unlock(&otlp->lock);
        }
        result = otlp_post(&otlp->target, body->data, body->length, &otlp->is_ending, &rejected);
    }
    if (result != OTLP_SENT || rejected > spans)
        rejected = spans;
    pthread_mutex_lock(&otlp->lock);
    otlp->sent += spans - rejected;
    otlp->dropped += rejected;
    if (result == OTLP_FAILED) {
        double longer = otlp->pause * 2 > most_pause_seconds ? most_pause_seconds : otlp->pause * 2;
        otlp->pause = otlp->pause > 0 ? longer : first_pause_seconds;
        pause_for(otlp, otlp->pause);
    } else {
        otlp->pause = 0;
    }
    pthread_mutex_unlock(&otlp->lock);
}

static void *run(void *context) {
    struct otlp *otlp = context;
    struct strbuf body = STRBUF_INIT;
    for (size_t spans; (spans = take_batch(otlp, &body));) {
        deliver(otlp, &body, spans);
        strbuf_free(&body);
        body = (struct strbuf)STRBUF_INIT;
    }
    strbuf_free(&body);
    pthread_mutex_lock(&otlp->lock);
    otlp->has_ended = true;
    bool is_abandoned = otlp->is_abandoned;
    pthread_cond_signal(&otlp->has_changed);
    pthread_mutex_unlock(&otlp->lock);
    if (is_abandoned)
        free_all(otlp);
    return NULL;
}

/* ---- opening and closing ---- */

int otlp_open(const char *endpoint, const char *version, struct otlp **out) {
    struct otlp *otlp = calloc(1, sizeof *otlp);
    pthread_condattr_t monotonic;
    *out = NULL;
    TRY(status_allocated(otlp));
    otlp->last = &otlp->first;
    pthread_mutex_init(&otlp->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&otlp->has_changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int status = otlp_target_read(endpoint, &otlp->target);
    strbuf_add_text(&otlp->envelope,
                    "{\"resourceSpans\":[{\"resource\":{\"attributes\":[{\"key\":\"service.name\",\"value\":"
                    "{\"stringValue\":\"cambium\"}},{\"key\":\"service.version\",\"value\":{\"stringValue\":");
    json_out_text(&otlp->envelope, version);
    strbuf_add_text(&otlp->envelope, "}}]},\"scopeSpans\":[{\"scope\":{\"name\":\"cambium\",\"version\":");
    json_out_text(&otlp->envelope, version);
    strbuf_add_text(&otlp->envelope, "},\"spans\":[");
    THEN(status, strbuf_status(&otlp->envelope));
    if (!status && pthread_create(&otlp->thread, NULL, run, otlp))
        status = status_fail(STATUS_MEMORY, "cannot start the thread that sends spans");
    if (status)
        free_all(otlp);
    else
        *out = otlp;
    return status;
}

/* A thread that still resolves a name cannot be stopped: it is abandoned and frees everything itself. */
void otlp_close(struct otlp *otlp) {
    if (!otlp)
        return;
    pthread_mutex_lock(&otlp->lock);
    atomic_store(&otlp->is_ending, true);
    pthread_cond_signal(&otlp->has_changed);
    for (double end = clock_seconds() + close_seconds; !otlp->has_ended && clock_seconds() < end;)
        wait_seconds(otlp, end - clock_seconds());
    bool has_ended = otlp->has_ended;
    otlp->is_abandoned = !has_ended;
    if (!has_ended)
        pthread_detach(otlp->thread);
    pthread_mutex_unlock(&otlp->lock);
    if (!has_ended)
        return;
    pthread_join(otlp->thread, NULL);
    free_all(otlp);
}
