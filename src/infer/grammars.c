/* A table of entries by their constraint. An entry waits in the queue of the threads, is compiled, waits until there is
 * room for it, and then lies in a list by its last use. One whose compiling fails is removed.
 *
 * The grammars in use have room for what they need, and share the rest of the memory for their caches. Others leave
 * when the memory is full. Orders get room in their order, so that none waits for ever. */
#include "infer/grammars.h"

#include "base/clock.h"
#include "base/cores.h"
#include "base/digest.h"

#include <pthread.h>
#include <sys/queue.h>

enum {
    LISTS = 1024,
    MASKS_BETWEEN = 8, /* masks make caches grow, so the memory is checked after this number */
    SPARE_BYTES =
        1 << 17 /* beyond twice what a grammar has at first, so that it need not drop its caches all the time */
};
const double grammars_bounds[GRAMMARS_BUCKETS] = {1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 2e-3, 5e-3, 1e-2,
                                                  2e-2, 5e-2, 0.1,  0.2,  0.5,  1,    2,    5};

struct entry {
    LIST_ENTRY(entry) same; /* the list of its hash */
    TAILQ_ENTRY(entry) all; /* in one of the lists of the store; in none while it is compiled */
    uint64_t hash;
    struct grammar_source source;
    const struct grammar_vocabulary *vocabulary;
    uint64_t client, turn;
    struct grammar_order *orders; /* that wait */
    struct grammar *grammar;
    struct grammar_report report;
    size_t needed; /* bytes of the grammar in use; 0: not compiled yet */
    bool is_ready;
    char text[];
};
LIST_HEAD(entry_list, entry);
TAILQ_HEAD(entry_queue, entry);

struct grammars {
    struct grammars_options options;
    struct constraint_pool *pool;
    pthread_mutex_t lock;
    pthread_cond_t has_work, is_done;
    struct entry_list lists[LISTS];
    struct entry_queue waiting; /* for a thread */
    struct entry_queue full;    /* for room, compiled */
    struct entry_queue ready;   /* by its last use, the latest first */
    uint64_t turn;              /* of the entry that was compiled last */
    uint64_t masks;
    struct grammars_figures figures;
    bool is_closing;
    int count;
    pthread_t threads[]; /* [count] */
};

/* ---- memory ---- */

static void free_entry(struct entry *entry) {
    grammar_release(entry->grammar);
    grammar_report_free(&entry->report);
    free(entry);
}

static size_t bytes_of(const struct entry *entry) {
    return sizeof *entry + entry->source.length + grammar_bytes(entry->grammar);
}

static bool is_urgent(const struct entry *entry) {
    const struct grammar_order *order = entry->orders;
    while (order && !order->is_urgent)
        order = order->next;
    return order != NULL;
}

/* Returns what the grammars in use need, and their number. Under the lock. */
static size_t needed_in_use(const struct grammars *g, size_t *count) {
    const struct entry *entry;
    size_t needed = 0;
    *count = 0;
    TAILQ_FOREACH(entry, &g->ready, all) {
        if (grammar_is_used(entry->grammar)) {
            needed += entry->needed;
            ++*count;
        }
    }
    return needed;
}

/* True when an entry can be used beside those that are. Under the lock. */
static bool has_room(const struct grammars *g, const struct entry *entry) {
    size_t count, needed = needed_in_use(g, &count);
    return !count || needed + entry->needed <= (size_t)g->options.memory;
}

/* Shares the memory among the grammars in use. Under the lock. */
static void share_room(struct grammars *g) {
    size_t count, needed = needed_in_use(g, &count), memory = (size_t)g->options.memory;
    struct entry *entry;
    TAILQ_FOREACH(entry, &g->ready, all) {
        if (grammar_is_used(entry->grammar))
            grammar_set_share(entry->grammar, entry->needed + (memory > needed ? memory - needed : 0) / count);
    }
}

/* Adds up the bytes, and moves the least recently used entries that exceed the memory to `gone`, unless they are in
 * use. Under the lock. */
static void measure(struct grammars *g, struct entry_queue *gone) {
    struct entry *entry, *before;
    size_t bytes = 0, memory = (size_t)g->options.memory;
    TAILQ_FOREACH(entry, &g->ready, all) bytes += bytes_of(entry);
    TAILQ_FOREACH(entry, &g->full, all) bytes += bytes_of(entry);
    if ((entry = TAILQ_FIRST(&g->ready)))
        bytes += grammar_vocabulary_shared_bytes(entry->vocabulary);
    for (entry = TAILQ_LAST(&g->ready, entry_queue); entry && bytes > memory; entry = before) {
        before = TAILQ_PREV(entry, entry_queue, all);
        if (grammar_is_used(entry->grammar))
            continue;
        bytes -= bytes_of(entry);
        LIST_REMOVE(entry, same);
        TAILQ_REMOVE(&g->ready, entry, all);
        TAILQ_INSERT_TAIL(gone, entry, all);
    }
    g->figures.bytes = TAILQ_EMPTY(&g->ready) ? 0 : bytes;
}

static void free_all(struct entry_queue *gone) {
    for (struct entry *entry; (entry = TAILQ_FIRST(gone));) {
        TAILQ_REMOVE(gone, entry, all);
        free_entry(entry);
    }
}

static void count_time(struct grammars_times *times, double seconds) {
    int bucket = 0;
    while (bucket < GRAMMARS_BUCKETS && seconds > grammars_bounds[bucket])
        bucket++;
    times->counts[bucket]++;
    times->sum += seconds;
}

static void on_mask(void *self, double seconds) {
    struct grammars *g = self;
    struct entry_queue gone = TAILQ_HEAD_INITIALIZER(gone);
    pthread_mutex_lock(&g->lock);
    count_time(&g->figures.mask, seconds);
    if (++g->masks % MASKS_BETWEEN == 0)
        measure(g, &gone);
    pthread_mutex_unlock(&g->lock);
    free_all(&gone);
}

/* A grammar is not used any more: another one may have room. */
static void on_idle(void *self) {
    struct grammars *g = self;
    pthread_mutex_lock(&g->lock);
    share_room(g);
    if (!TAILQ_EMPTY(&g->full))
        pthread_cond_signal(&g->has_work);
    pthread_mutex_unlock(&g->lock);
}

/* ---- orders ---- */

static uint64_t hash_of(const struct grammar_order *order) {
    const struct grammar_source *s = &order->source;
    const unsigned char kind[] = {(unsigned char)s->kind, s->is_compact, s->is_closed, s->is_lenient};
    uint64_t hash = digest_bytes(DIGEST_START, kind, sizeof kind);
    hash = digest_bytes(hash, &order->vocabulary, sizeof(void *));
    hash = s->field ? digest_bytes(hash, s->field, strlen(s->field)) : hash;
    return s->length ? digest_bytes(hash, s->text, s->length) : hash;
}

static bool is_of(const struct entry *entry, const struct grammar_order *order, uint64_t hash) {
    const struct grammar_source *a = &entry->source, *b = &order->source;
    return entry->hash == hash && entry->vocabulary == order->vocabulary && a->kind == b->kind &&
           !strcmp(a->field ? a->field : "", b->field ? b->field : "") && a->is_compact == b->is_compact &&
           a->is_closed == b->is_closed && a->is_lenient == b->is_lenient && a->length == b->length &&
           (!a->length || !memcmp(a->text, b->text, a->length));
}

/* Gives an order what came of its entry. Under the lock. */
static void answer(const struct entry *entry, int status, struct grammar_order *order) {
    const struct grammar_report *from = &entry->report;
    order->grammar = NULL;
    order->report.refusal = from->refusal;
    memcpy(order->report.field, from->field, sizeof from->field);
    if (from->message.length)
        strbuf_add(&order->report.message, strbuf_text(&from->message), from->message.length);
    order->report.ignored = from->ignored ? json_deep_copy(from->ignored) : NULL;
    order->status = status                                    ? status
                    : from->ignored && !order->report.ignored ? STATUS_MEMORY
                                                              : strbuf_status(&order->report.message);
    if (!order->status)
        order->grammar = grammar_share(entry->grammar);
}

/* Makes an entry, and puts it into the queue. An entry's turn is the present one, or the one after the client's last:
 * a client's further ones come after the first of each other client. NULL: no memory. */
static struct entry *add_entry(struct grammars *g, const struct grammar_order *order, uint64_t hash) {
    struct entry *entry = calloc(1, sizeof *entry + order->source.length + 1), *other;
    if (!entry)
        return NULL;
    entry->hash = hash;
    entry->source = order->source;
    entry->source.text = entry->text;
    if (order->source.length)
        memcpy(entry->text, order->source.text, order->source.length);
    entry->vocabulary = order->vocabulary;
    entry->client = order->client;
    entry->turn = g->turn;
    TAILQ_FOREACH(other, &g->waiting, all)
    if (other->client == order->client)
        entry->turn = other->turn + 1;
    LIST_INSERT_HEAD(&g->lists[hash % LISTS], entry, same);
    TAILQ_FOREACH(other, &g->waiting, all)
    if (other->turn > entry->turn)
        break;
    if (other)
        TAILQ_INSERT_BEFORE(other, entry, all);
    else
        TAILQ_INSERT_TAIL(&g->waiting, entry, all);
    pthread_cond_signal(&g->has_work);
    return entry;
}

bool grammars_order(struct grammars *g, struct grammar_order *order) {
    uint64_t hash = hash_of(order);
    struct entry *entry;
    pthread_mutex_lock(&g->lock);
    LIST_FOREACH(entry, &g->lists[hash % LISTS], same)
    if (is_of(entry, order, hash))
        break;
    *(entry ? &g->figures.hits : &g->figures.misses) += 1;
    bool is_used = entry && entry->is_ready && grammar_is_used(entry->grammar);
    bool is_ready = entry && entry->is_ready;
    if (is_ready && !is_used && !g->is_closing)
        is_ready = TAILQ_EMPTY(&g->full) && has_room(g, entry);
    if (entry && entry->is_ready) {
        TAILQ_REMOVE(&g->ready, entry, all);
        entry->is_ready = is_ready;
        if (is_ready)
            TAILQ_INSERT_HEAD(&g->ready, entry, all);
        else
            TAILQ_INSERT_TAIL(&g->full, entry, all);
    }
    if (is_ready) {
        answer(entry, STATUS_OK, order);
        if (!is_used)
            share_room(g);
    } else if (g->is_closing) {
        order->status = STATUS_INTERRUPTED;
        is_ready = true;
    } else if (entry || (entry = add_entry(g, order, hash))) {
        order->next = entry->orders;
        entry->orders = order;
    } else {
        order->status = status_no_memory();
        is_ready = true;
    }
    pthread_mutex_unlock(&g->lock);
    return is_ready;
}

/* ---- compiling ---- */

/* Makes the first mask: a grammar whose masks take too long is refused before a completion begins. */
static int try_mask(struct entry *entry) {
    uint32_t *mask = malloc((grammar_vocabulary_words(entry->vocabulary) + 1) * sizeof *mask);
    struct grammar_state state = {0};
    struct grammar_allowed allowed;
    int status = status_allocated(mask);
    THEN(status, grammar_begin(entry->grammar, &state));
    if (!status && !state.is_over)
        status = grammar_mask(&state, CONSTRAINT_MASK_SECONDS, mask, &allowed);
    grammar_end(&state);
    free(mask);
    if (status == STATUS_UNSUPPORTED) {
        entry->report.refusal = GRAMMAR_TOO_LARGE;
        strbuf_clear(&entry->report.message);
        strbuf_format(&entry->report.message, "the allowed tokens of its beginning take more than %g s to find",
                      CONSTRAINT_MASK_SECONDS);
    }
    return status;
}

static int compile(struct grammars *g, struct entry *entry) {
    const struct grammar_limits limits = {.seconds = g->options.seconds,
                                          .bytes = (size_t)g->options.memory / GRAMMARS_SHARE};
    TRY(grammar_compile(&entry->source, entry->vocabulary, &limits, &entry->report, &entry->grammar));
    int status = try_mask(entry);
    if (status)
        grammar_release(entry->grammar);
    entry->grammar = status ? NULL : entry->grammar;
    return status;
}

static bool is_wanted(const struct entry *entry) {
    const struct grammar_order *order = entry->orders;
    while (order && order->is_unwanted && atomic_load(order->is_unwanted))
        order = order->next;
    return order != NULL;
}

/* Answers the orders of an entry, which is in no list. The lock is held, and released meanwhile. */
static void finish(struct grammars *g, struct entry *entry, int status) {
    struct entry_queue gone = TAILQ_HEAD_INITIALIZER(gone);
    struct grammar_order *orders = entry->orders, *next;
    entry->orders = NULL;
    for (struct grammar_order *order = orders; order; order = order->next)
        answer(entry, status, order);
    if (status) {
        LIST_REMOVE(entry, same);
        TAILQ_INSERT_TAIL(&gone, entry, all);
    } else {
        entry->is_ready = true;
        TAILQ_INSERT_HEAD(&g->ready, entry, all);
        share_room(g);
        measure(g, &gone);
    }
    pthread_mutex_unlock(&g->lock);
    for (struct grammar_order *order = orders; order; order = next) {
        next = order->next;
        order->on_done(order);
    }
    free_all(&gone);
    pthread_mutex_lock(&g->lock);
}

/* Compiles an entry, which then waits for room. The lock is held, and released meanwhile. */
static void try_entry(struct grammars *g, struct entry *entry) {
    g->turn = entry->turn;
    if (!is_wanted(entry) || g->is_closing) {
        finish(g, entry, STATUS_INTERRUPTED);
        return;
    }
    pthread_mutex_unlock(&g->lock);
    double start = clock_seconds();
    int status = compile(g, entry);
    double seconds = clock_seconds() - start;
    pthread_mutex_lock(&g->lock);
    count_time(&g->figures.compile, seconds);
    if (status) {
        finish(g, entry, status);
        return;
    }
    entry->needed = 2 * grammar_bytes(entry->grammar) + SPARE_BYTES;
    grammar_watch(entry->grammar, on_idle, g);
    TAILQ_INSERT_TAIL(&g->full, entry, all);
}

/* Returns the first urgent entry of a list. */
static struct entry *first_urgent(struct entry_queue *list) {
    struct entry *entry = TAILQ_FIRST(list);
    while (entry && !is_urgent(entry))
        entry = TAILQ_NEXT(entry, all);
    return entry;
}

/* Gives room to an entry that waits for it. Returns false where none can have it. */
static bool give_room(struct grammars *g) {
    struct entry *entry = first_urgent(&g->full);
    entry = entry ? entry : TAILQ_FIRST(&g->full);
    if (!entry || !(g->is_closing || !is_wanted(entry) || is_urgent(entry) || has_room(g, entry)))
        return false;
    TAILQ_REMOVE(&g->full, entry, all);
    finish(g, entry, g->is_closing || !is_wanted(entry) ? STATUS_INTERRUPTED : STATUS_OK);
    return true;
}

static void *work(void *self) {
    struct grammars *g = self;
    pthread_mutex_lock(&g->lock);
    for (;;) {
        if (give_room(g))
            continue;
        struct entry *entry = TAILQ_EMPTY(&g->full) ? TAILQ_FIRST(&g->waiting) : first_urgent(&g->waiting);
        if (!entry && g->is_closing)
            break;
        if (!entry) {
            pthread_cond_wait(&g->has_work, &g->lock);
            continue;
        }
        TAILQ_REMOVE(&g->waiting, entry, all);
        try_entry(g, entry);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

/* ---- looking for one ---- */

static void note_done(struct grammar_order *order) {
    struct grammars *g = order->context;
    pthread_mutex_lock(&g->lock);
    order->is_done = true;
    pthread_cond_broadcast(&g->is_done);
    pthread_mutex_unlock(&g->lock);
}

bool grammars_begin(struct grammars *g, struct grammar_order *order) {
    order->on_done = note_done;
    order->context = g;
    return grammars_order(g, order);
}

bool grammars_end(struct grammars *g, struct grammar_order *order, bool waits) {
    pthread_mutex_lock(&g->lock);
    order->is_urgent |= waits;
    if (waits)
        pthread_cond_broadcast(&g->has_work);
    while (waits && !order->is_done)
        pthread_cond_wait(&g->is_done, &g->lock);
    bool is_done = order->is_done;
    pthread_mutex_unlock(&g->lock);
    return is_done;
}

int grammars_verdict(const struct grammar_order *order) {
    if (order->status && order->report.message.length)
        return status_fail(order->status, "%s", strbuf_text(&order->report.message));
    return order->status == STATUS_MEMORY ? status_no_memory() : order->status;
}

/* ---- opening ---- */

int grammars_open(const struct grammars_options *options, struct grammars **out) {
    int count = options->threads ? (int)options->threads : usable_cores() / 2;
    count = count ? count : 1;
    struct grammars *g = *out = calloc(1, sizeof *g + (size_t)count * sizeof *g->threads);
    TRY(status_allocated(g));
    g->options = *options;
    TAILQ_INIT(&g->waiting);
    TAILQ_INIT(&g->full);
    TAILQ_INIT(&g->ready);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->has_work, NULL);
    pthread_cond_init(&g->is_done, NULL);
    const struct constraint_pool_options pool = {.threads = count, .on_mask = on_mask, .self = g};
    int status = constraint_pool_open(&pool, &g->pool);
    while (!status && g->count < count) {
        if (pthread_create(&g->threads[g->count], NULL, work, g))
            status = status_fail(STATUS_MEMORY, "out of memory for the threads of grammars");
        g->count += !status;
    }
    if (status) {
        grammars_close(g);
        *out = NULL;
    }
    return status;
}

void grammars_stop(struct grammars *g) {
    if (!g)
        return;
    pthread_mutex_lock(&g->lock);
    g->is_closing = true;
    pthread_cond_broadcast(&g->has_work);
    pthread_mutex_unlock(&g->lock);
    for (int i = 0; i < g->count; i++)
        pthread_join(g->threads[i], NULL);
    g->count = 0;
}

void grammars_close(struct grammars *g) {
    if (!g)
        return;
    grammars_stop(g);
    constraint_pool_close(g->pool);
    free_all(&g->ready);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->has_work);
    pthread_cond_destroy(&g->is_done);
    free(g);
}

void grammars_schedule(struct grammars *g, const struct grammar_vocabulary *vocabulary,
                       struct scheduler_options *options) {
    options->constraints = g ? g->pool : NULL;
    options->mask_words = g ? (int64_t)grammar_vocabulary_words(vocabulary) : 0;
}

void grammars_read(struct grammars *g, struct grammars_figures *figures) {
    pthread_mutex_lock(&g->lock);
    *figures = g->figures;
    pthread_mutex_unlock(&g->lock);
}
