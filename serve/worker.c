/* Workers: one thread each, and a queue that has an end. */
#include "loop.h"

#include "base/base.h"

#include <pthread.h>
#include <stdlib.h>

struct worker {
    struct loop *loop;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t has_changed;
    struct worker_job *first, **last;
    size_t waiting, capacity;
    bool must_end;
};

static struct worker_job *next_job(struct worker *worker) {
    pthread_mutex_lock(&worker->lock);
    while (!worker->first && !worker->must_end)
        pthread_cond_wait(&worker->has_changed, &worker->lock);
    struct worker_job *job = worker->first;
    if (job) {
        worker->first = job->next;
        worker->last = job->next ? worker->last : &worker->first;
        worker->waiting--;
    }
    pthread_mutex_unlock(&worker->lock);
    return job;
}

static void finish(struct loop_note *note) {
    struct worker_job *job = (struct worker_job *)((char *)note - offsetof(struct worker_job, note));
    job->done(job);
}

static void *run(void *context) {
    struct worker *worker = context;
    for (struct worker_job *job; (job = next_job(worker));) {
        job->work(job);
        job->note.run = finish;
        loop_post(worker->loop, &job->note);
    }
    return NULL;
}

int worker_open(struct loop *loop, size_t capacity, struct worker **out) {
    struct worker *worker = *out = calloc(1, sizeof *worker);
    if (!worker)
        return status_fail(STATUS_MEMORY, "out of memory");
    *worker = (struct worker){.loop = loop, .capacity = capacity, .last = &worker->first};
    pthread_mutex_init(&worker->lock, NULL);
    pthread_cond_init(&worker->has_changed, NULL);
    if (!pthread_create(&worker->thread, NULL, run, worker))
        return STATUS_OK;
    free(worker);
    *out = NULL;
    return status_fail(STATUS_MEMORY, "cannot start a worker's thread");
}

bool worker_add(struct worker *worker, struct worker_job *job) {
    job->next = NULL;
    pthread_mutex_lock(&worker->lock);
    bool has_room = worker->waiting < worker->capacity && !worker->must_end;
    if (has_room) {
        *worker->last = job;
        worker->last = &job->next;
        worker->waiting++;
        pthread_cond_signal(&worker->has_changed);
    }
    pthread_mutex_unlock(&worker->lock);
    return has_room;
}

void worker_close(struct worker *worker) {
    if (!worker)
        return;
    pthread_mutex_lock(&worker->lock);
    worker->must_end = true;
    pthread_cond_signal(&worker->has_changed);
    pthread_mutex_unlock(&worker->lock);
    pthread_join(worker->thread, NULL);
    pthread_mutex_destroy(&worker->lock);
    pthread_cond_destroy(&worker->has_changed);
    free(worker);
}
