/* Constraints and the threads that make their masks. The lock guards the queues and each constraint's place in them. A
 * constraint that is not idle belongs to the threads, but for the flag that it is closed. Only they use the grammar,
 * because a call may wait for another thread's mask. */
#include "infer/constraint.h"

#include "base/clock.h"
#include "kernels/ops.h"

#include <pthread.h>

enum { FORCED_MOST = 64 };
#define QUICK_SECONDS 0.02 /* a mask that takes longer is made again by the slow lane */

struct lane {
    struct constraint *first, *last;
    pthread_cond_t has_work;
};
enum { LANE_QUICK, LANE_SLOW, LANES };
static const double lane_seconds[LANES] = {QUICK_SECONDS, CONSTRAINT_MASK_SECONDS};

struct constraint_pool {
    struct constraint_pool_options options;
    pthread_mutex_t lock;
    pthread_cond_t has_mask;
    struct lane lanes[LANES];
    const struct grammar *slow; /* the grammar whose mask the slow lane is making; NULL: none */
    bool is_closing;
    int count, started;  /* threads; each takes the next number */
    pthread_t threads[]; /* [count] number 0 is of the slow lane */
};

struct constraint {
    struct constraint_pool *pool;
    struct constraint *next;
    bool is_idle, is_closed, draws_all, is_over;
    struct grammar *grammar;
    struct grammar_state state;
    int status;    /* of the mask */
    int32_t taken; /* the token to take before it; -1: none */
    struct grammar_allowed allowed;
    int32_t forced[FORCED_MOST]; /* [forced_count] the tokens before the mask; the state has taken them */
    int forced_count, given;
    int64_t words, vocab;
    uint32_t mask[]; /* [words], or those of the model's ids if they are more */
};

/* ---- masks ---- */

/* Forbids the ids of the tokenizer that the model does not have. */
static void cut_mask(struct constraint *c) {
    for (int64_t id = c->vocab; id < c->words * 32; id = (id / 32 + 1) * 32) {
        uint32_t cut = c->mask[id / 32] & ~0u << id % 32;
        c->allowed.count -= (size_t)__builtin_popcount(cut);
        c->mask[id / 32] &= ~cut;
    }
    c->allowed.only = c->allowed.only < c->vocab ? c->allowed.only : -1;
}

static int make_mask(struct constraint *c, double seconds) {
    double start = clock_seconds();
    TRY(grammar_mask(&c->state, seconds, c->mask, &c->allowed));
    cut_mask(c);
    if (c->pool->options.on_mask)
        c->pool->options.on_mask(c->pool->options.self, clock_seconds() - start);
    return c->allowed.count ? STATUS_OK
                            : status_fail(STATUS_UNSUPPORTED, "the model has no token that the constraint allows");
}

/* Takes the token, and the forced ones after it, and makes the mask. It may be called again after a failure. */
static int advance(struct constraint *c, double seconds) {
    if (!c->state.grammar)
        TRY(grammar_begin(c->grammar, &c->state));
    for (;;) {
        if (c->taken >= 0)
            TRY(grammar_accept(&c->state, c->taken, NULL));
        c->taken = -1;
        if (!c->state.is_over)
            TRY(make_mask(c, seconds));
        c->is_over = c->state.is_over || (c->allowed.count == 1 && grammar_is_complete(&c->state));
        if (c->is_over || c->allowed.only < 0 || c->draws_all || c->forced_count == FORCED_MOST)
            return STATUS_OK;
        c->taken = c->forced[c->forced_count++] = c->allowed.only;
    }
}

/* ---- threads ---- */

static void push(struct constraint_pool *pool, int number, struct constraint *c) {
    struct lane *lane = &pool->lanes[number];
    c->next = NULL;
    *(lane->first ? &lane->last->next : &lane->first) = c;
    lane->last = c;
    pthread_cond_signal(&lane->has_work);
}

/* Takes the first constraint whose grammar the slow lane does not use: a grammar's masks may wait for each other. */
static struct constraint *pull(struct constraint_pool *pool, int number) {
    struct lane *lane = &pool->lanes[number];
    struct constraint *before = NULL, *c = lane->first;
    for (; c && number == LANE_QUICK && c->grammar == pool->slow; c = c->next)
        before = c;
    if (!c)
        return NULL;
    *(before ? &before->next : &lane->first) = c->next;
    lane->last = lane->last == c ? before : lane->last;
    return c;
}

static void free_constraint(struct constraint *c) {
    grammar_end(&c->state);
    grammar_release(c->grammar);
    free(c);
}

/* Works on a constraint without the lock. Returns whether it is done with it. */
static bool work_on(struct constraint *c, bool is_closed, int number) {
    if (is_closed)
        free_constraint(c);
    else
        c->status = advance(c, lane_seconds[number]);
    return is_closed || c->status != STATUS_UNSUPPORTED || number == LANE_SLOW;
}

static void *work(void *self) {
    struct constraint_pool *pool = self;
    pthread_mutex_lock(&pool->lock);
    int number = pool->started++ ? LANE_QUICK : LANE_SLOW;
    while (!pool->is_closing) {
        struct constraint *c = pull(pool, number);
        if (!c) {
            pthread_cond_wait(&pool->lanes[number].has_work, &pool->lock);
            continue;
        }
        bool was_closed = c->is_closed;
        pool->slow = number == LANE_SLOW ? c->grammar : pool->slow;
        pthread_mutex_unlock(&pool->lock);
        bool is_done = work_on(c, was_closed, number);
        pthread_mutex_lock(&pool->lock);
        if (number == LANE_SLOW) {
            pool->slow = NULL;
            pthread_cond_broadcast(&pool->lanes[LANE_QUICK].has_work);
        }
        if (was_closed)
            continue;
        c->is_idle = is_done && !c->is_closed;
        if (!c->is_idle)
            push(pool, c->is_closed ? LANE_QUICK : LANE_SLOW, c);
        pthread_cond_broadcast(&pool->has_mask);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

int constraint_pool_open(const struct constraint_pool_options *options, struct constraint_pool **out) {
    int count = options->threads + 1;
    struct constraint_pool *pool = *out = calloc(1, sizeof *pool + (size_t)count * sizeof *pool->threads);
    TRY(status_allocated(pool));
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pool->options = *options;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->has_mask, &attributes);
    for (int lane = 0; lane < LANES; lane++)
        pthread_cond_init(&pool->lanes[lane].has_work, NULL);
    pthread_condattr_destroy(&attributes);
    while (pool->count < count && !pthread_create(&pool->threads[pool->count], NULL, work, pool))
        pool->count++;
    if (pool->count == count)
        return STATUS_OK;
    constraint_pool_close(pool);
    *out = NULL;
    return status_fail(STATUS_MEMORY, "out of memory for the threads of masks");
}

void constraint_pool_close(struct constraint_pool *pool) {
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->is_closing = true;
    for (int lane = 0; lane < LANES; lane++)
        pthread_cond_broadcast(&pool->lanes[lane].has_work);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->count; i++)
        pthread_join(pool->threads[i], NULL);
    for (int lane = 0; lane < LANES; lane++) {
        for (struct constraint *c; (c = pull(pool, lane));)
            free_constraint(c);
        pthread_cond_destroy(&pool->lanes[lane].has_work);
    }
    pthread_cond_destroy(&pool->has_mask);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

/* ---- constraints ---- */

static void start(struct constraint *c) {
    pthread_mutex_lock(&c->pool->lock);
    c->is_idle = false;
    push(c->pool, LANE_QUICK, c);
    pthread_mutex_unlock(&c->pool->lock);
}

int constraint_open(struct constraint_pool *pool, const struct constraint_options *options, struct constraint **out) {
    int64_t words = sample_mask_words(options->vocab);
    size_t bytes = (size_t)(words > options->words ? words : options->words) * sizeof(uint32_t);
    struct constraint *c = calloc(1, sizeof *c + bytes);
    TRY(status_allocated(c));
    c->pool = pool;
    c->taken = -1;
    c->words = options->words;
    c->vocab = options->vocab;
    c->draws_all = options->draws_all;
    c->grammar = grammar_share(options->grammar);
    start(c);
    *out = c;
    return STATUS_OK;
}

void constraint_close(struct constraint *c) {
    if (!c)
        return;
    struct constraint_pool *pool = c->pool;
    pthread_mutex_lock(&pool->lock);
    c->is_closed = true;
    if (c->is_idle) {
        c->is_idle = false;
        push(pool, LANE_QUICK, c);
    }
    pthread_mutex_unlock(&pool->lock);
}

/* Waits for the mask until then. Returns whether it is there. */
static bool wait_for(struct constraint *c, double until) {
    struct timespec at = {.tv_sec = (time_t)until, .tv_nsec = (long)((until - (double)(time_t)until) * 1e9)};
    int waited = 0;
    pthread_mutex_lock(&c->pool->lock);
    while (!c->is_idle && until > 0 && !waited)
        waited = pthread_cond_timedwait(&c->pool->has_mask, &c->pool->lock, &at);
    bool is_idle = c->is_idle;
    pthread_mutex_unlock(&c->pool->lock);
    return is_idle;
}

enum constraint_next constraint_find(struct constraint *c, double until, int32_t *forced) {
    *forced = -1;
    if (!wait_for(c, until))
        return CONSTRAINT_UNKNOWN;
    if (c->given < c->forced_count) {
        *forced = c->forced[c->given];
        return CONSTRAINT_FORCED;
    }
    return c->status ? CONSTRAINT_FAILED : c->is_over ? CONSTRAINT_OVER : CONSTRAINT_DRAWS;
}

void constraint_take(struct constraint *c, int32_t token) {
    if (c->given < c->forced_count) {
        c->given++;
        return;
    }
    c->forced_count = c->given = 0;
    c->taken = token;
    start(c);
}

void constraint_write_mask(struct constraint *c, double until, uint32_t *mask) {
    int32_t forced;
    enum constraint_next next = constraint_find(c, until, &forced);
    memset(mask, 0, (size_t)sample_mask_words(c->vocab) * sizeof *mask);
    if (next == CONSTRAINT_FORCED)
        mask[forced / 32] = 1u << forced % 32;
    else if (next == CONSTRAINT_DRAWS)
        memcpy(mask, c->mask, (size_t)sample_mask_words(c->vocab) * sizeof *mask);
}
