/* Workers: one thread each, with a bounded queue.
 *
 * Each job has a turn. An owner's first job gets the present turn, or the next one if the owner was served in the
 * present one. Each further job of the same owner gets the turn after its last one. An owner with many jobs therefore
 * delays another by at most one of them. */
#include "loop.h"

#include "base/base.h"

#include <pthread.h>

struct worker {
    struct loop *loop;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t has_changed;
    struct worker_job *first; /* by turns, within a turn in order of arrival */
    size_t waiting, capacity;
    uint64_t turn, last_owner; /* of the job taken last */
    bool must_end;
};

static struct worker_job *next_job(struct worker *worker) {
    pthread_mutex_lock(&worker->lock);
    while (!worker->first && !worker->must_end)
        pthread_cond_wait(&worker->has_changed, &worker->lock);
    struct worker_job *job = worker->first;
    if (job) {
        worker->first = job->next;
        worker->turn = job->turn;
        worker->last_owner = job->owner;
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
        bool has_end = job->done != NULL;
        job->work(job);
        if (!has_end)
            continue;
        job->note.run = finish;
        loop_post(worker->loop, &job->note);
    }
    return NULL;
}

int worker_open(struct loop *loop, size_t capacity, struct worker **out) {
    struct worker *worker = *out = calloc(1, sizeof *worker);
    TRY(status_allocated(worker));
    *worker = (struct worker){.loop = loop, .capacity = capacity};
    pthread_mutex_init(&worker->lock, NULL);
    pthread_cond_init(&worker->has_changed, NULL);
    if (!pthread_create(&worker->thread, NULL, run, worker))
        return STATUS_OK;
    free(worker);
    *out = NULL;
    return status_fail(STATUS_MEMORY, "cannot start a worker's thread");
}

/* Sets the job's turn, and returns how many jobs its owner has in the queue. Under the lock. */
static size_t set_turn(const struct worker *worker, struct worker_job *job) {
    size_t count = 0;
    job->turn = worker->turn + (job->owner && job->owner == worker->last_owner);
    for (const struct worker_job *other = worker->first; other && job->owner; other = other->next)
        if (other->owner == job->owner) {
            job->turn = other->turn + 1;
            count++;
        }
    return count;
}

/* Under the lock. */
static void insert(struct worker *worker, struct worker_job *job) {
    struct worker_job **place = &worker->first;
    while (*place && (*place)->turn <= job->turn)
        place = &(*place)->next;
    job->next = *place;
    *place = job;
    worker->waiting++;
    pthread_cond_signal(&worker->has_changed);
}

bool worker_add(struct worker *worker, struct worker_job *job) {
    pthread_mutex_lock(&worker->lock);
    bool has_room = worker->waiting < worker->capacity && !worker->must_end &&
                    set_turn(worker, job) < worker->capacity - worker->waiting;
    if (has_room)
        insert(worker, job);
    pthread_mutex_unlock(&worker->lock);
    return has_room;
}

void worker_drop(struct worker *worker, struct worker_job *job) {
    bool is_taken = false;
    job->owner = 0;
    job->done = NULL;
    if (worker) {
        pthread_mutex_lock(&worker->lock);
        is_taken = !worker->must_end;
        if (is_taken) {
            set_turn(worker, job);
            insert(worker, job);
        }
        pthread_mutex_unlock(&worker->lock);
    }
    if (!is_taken)
        job->work(job);
}

void worker_stop(struct worker *worker) {
    if (!worker)
        return;
    pthread_mutex_lock(&worker->lock);
    worker->must_end = true;
    pthread_cond_signal(&worker->has_changed);
    pthread_mutex_unlock(&worker->lock);
    pthread_join(worker->thread, NULL);
}

void worker_close(struct worker *worker) {
    if (!worker)
        return;
    pthread_mutex_destroy(&worker->lock);
    pthread_cond_destroy(&worker->has_changed);
    free(worker);
}
