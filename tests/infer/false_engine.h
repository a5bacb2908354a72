/* An engine without a model, for tests of the scheduler. Its pages are a real kv_pool. A row stores in them a number
 * made of its token and the row before it. A drawn token is a hash of all rows of its sequence, as found in its pages,
 * and of the settings of the draw. A completion therefore has the right tokens only if each of its rows ran once, in
 * order, in pages that nobody else wrote. The engine runs a step when it is collected. It fails the test when it gets a
 * request that a real engine may refuse. false_text computes a completion alone, from nothing but the request. */
#pragma once

#include "base/base.h"
#include "base/clock.h"
#include "infer/kv_pool.h"
#include "infer/scheduler.h"
#include "support/test.h"

#include <math.h>

enum {
    FALSE_PAGE = KV_PAGE_TOKENS,
    FALSE_PAGES = 512,
    FALSE_LONGEST = 512, /* rows of a sequence */
    FALSE_SEQUENCES = 32,
    FALSE_ROWS = 256,
    FALSE_DEPTH = 8,
    FALSE_TOP = 4,
    FALSE_VOCAB = 50,
    FALSE_SLOTS = 4,
};
static const int64_t false_virtual_tokens[FALSE_SLOTS] = {0, 5, 20, 0}; /* slot -1 has none */

struct false_sequence {
    bool is_open;
    int slot;
    struct kv_root root;
    int64_t length, published; /* rows, pages */
    int64_t under_way;         /* steps */
    bool draws;                /* one of them */
    int32_t token[FALSE_LONGEST];
    int32_t page[FALSE_LONGEST / FALSE_PAGE];
};

/* A row with its places resolved, as a plan has it. */
struct false_row {
    struct engine_row row;
    struct sampling sampling;
    int64_t length; /* of the sequence, with this row */
    int slot;
    int32_t page[FALSE_LONGEST / FALSE_PAGE];
    uint32_t mask[(FALSE_VOCAB + 31) / 32];
};

struct false_step {
    int64_t count;
    double submitted_at;
    struct false_row row[FALSE_ROWS];
};

struct false_engine {
    struct kv_pool pool;
    struct scheduler_options options;
    uint64_t value[FALSE_PAGES][FALSE_PAGE]; /* the cache */
    struct false_sequence sequence[FALSE_SEQUENCES];
    struct false_step step[FALSE_DEPTH];
    int first, under_way;
    double clock;
    double step_seconds, decode_row_seconds, prefill_row_seconds; /* what a step costs */
    double row_growth; /* part of itself by which a prefill row costs more for each row before it */
    int64_t fails_at;  /* the step whose collect fails; 0: none */
    int64_t fails_submit_at, bad_logits_at;
    int64_t steps, draws;
    double mask_patience; /* real seconds that a step waits for masks */
    /* For the last step that was submitted, and the most at once. */
    int64_t last_rows, last_decode_rows, last_prefill_rows, open_sequences, most_sequences, most_rows;
    double last_seconds; /* of the last step that was collected */
    int64_t collected_decode_rows, collected_prefill_rows;
    double collected_prefill_work; /* in rows with nothing before them */
    int32_t top_token[FALSE_ROWS][FALSE_TOP];
    float top_logprob[FALSE_ROWS][FALSE_TOP];
};

/* ---- what a model would compute ---- */

static inline uint64_t false_mix(uint64_t a, uint64_t b) {
    uint64_t hash = (a ^ (b + 0x9e3779b97f4a7c15u + (a << 6))) * 0xff51afd7ed558ccdu;
    return hash ^ hash >> 29;
}

static inline uint64_t false_value(uint64_t before, int slot, int64_t place, int32_t token) {
    return false_mix(false_mix(before, (uint64_t)(slot + 2)), (uint64_t)place << 32 | (uint32_t)token);
}

/* Returns the change in a draw, whatever the order of the ids. */
static inline uint64_t false_change(int32_t id, int32_t count, float bias, bool is_seen) {
    if (count == 0 && bias == 0 && !is_seen)
        return 0;
    uint64_t bits = bias == -INFINITY ? 999999 : (uint64_t)(int64_t)(bias * 1024);
    return false_mix(false_mix((uint64_t)id, (uint64_t)count), bits * 2 + is_seen);
}

static inline uint64_t false_draw(uint64_t seen, const struct sampling *s, int64_t position, uint64_t changes) {
    uint64_t hash = false_mix(false_mix(seen, s->seed), (uint64_t)position << 32 | s->choice);
    hash = false_mix(hash, (uint64_t)(s->temperature * 1000) * 7919 + (uint64_t)s->top_k);
    return false_mix(hash, changes);
}

static inline float false_logprob(uint64_t seen, int32_t token) {
    return -(float)(false_mix(seen, (uint64_t)token) % 4096) / 256;
}

static inline bool false_is_greedy(uint64_t seen, int32_t token) {
    return false_mix(seen, (uint64_t)token + 1) % 2;
}

/* ---- the calls ---- */

static inline int64_t false_virtual_count(int slot) {
    return slot < 0 ? 0 : false_virtual_tokens[slot];
}

static inline int false_open(void *self, const struct sequence_beginning *beginning, int64_t *cached) {
    struct false_engine *e = self;
    int number = 0;
    while (number < e->options.max_sequences && e->sequence[number].is_open)
        number++;
    if (number == e->options.max_sequences)
        return STATUS_MEMORY;
    struct false_sequence *q = &e->sequence[number];
    int64_t virtual_tokens = false_virtual_count(beginning->slot), count = beginning->count;
    q->is_open = true;
    q->slot = beginning->slot;
    q->root = (struct kv_root){.slot_key = (uint64_t)(beginning->slot + 1), .salt = beginning->salt};
    q->length = q->published = q->under_way = 0;
    q->draws = false;
    for (int64_t i = 0; i < virtual_tokens + count; i++)
        q->token[i] = i < virtual_tokens ? -1 : beginning->tokens[i - virtual_tokens];
    while (q->length + FALSE_PAGE < virtual_tokens + count) {
        int64_t at = q->published;
        int32_t page = kv_pool_find(&e->pool, &q->root, at ? q->page[at - 1] : -1, q->token + q->length);
        if (page < 0)
            break;
        q->page[q->published++] = page;
        q->length += FALSE_PAGE;
    }
    *cached = q->length;
    e->open_sequences++;
    e->most_sequences = e->open_sequences > e->most_sequences ? e->open_sequences : e->most_sequences;
    return number;
}

static inline void false_close(void *self, int number) {
    struct false_engine *e = self;
    struct false_sequence *q = &e->sequence[number];
    if (!q->is_open || q->under_way)
        fail_msg("sequence %d is closed while %lld of its steps are under way", number, (long long)q->under_way);
    for (int64_t page = (q->length + FALSE_PAGE - 1) / FALSE_PAGE; page-- > 0;)
        kv_pool_release(&e->pool, q->page[page]);
    q->is_open = false;
    e->open_sequences--;
}

static inline int64_t false_available(void *self) {
    struct false_engine *e = self;
    return kv_pool_available(&e->pool);
}

static inline int64_t false_needed(void *self, int number, int64_t rows) {
    struct false_engine *e = self;
    int64_t length = e->sequence[number].length;
    if (!e->sequence[number].is_open)
        fail_msg("pages for sequence %d, which is not open", number);
    return (length + rows + FALSE_PAGE - 1) / FALSE_PAGE - (length + FALSE_PAGE - 1) / FALSE_PAGE;
}

static inline void false_take_row(struct false_engine *e, const struct engine_row *row, struct false_row *out) {
    struct false_sequence *q = &e->sequence[row->sequence];
    if (!q->is_open || q->draws)
        fail_msg("a row of a sequence that %s", q->draws ? "draws in a step under way" : "is not open");
    q->length -= row->is_again;
    if (row->is_again && q->token[q->length] != row->token)
        fail_msg("another token than before");
    if (q->length >= e->options.max_positions)
        fail_msg("more rows than positions");
    if ((row->token == ENGINE_VIRTUAL_TOKEN) != (q->length < false_virtual_count(q->slot)))
        fail_msg("row %lld of slot %d is %d", (long long)q->length, q->slot, row->token);
    if (!row->is_again && q->length % FALSE_PAGE == 0 && (q->page[q->length / FALSE_PAGE] = kv_pool_take(&e->pool)) < 0)
        fail_msg("a step takes more pages than there are");
    q->token[q->length++] = row->token;
    *out = (struct false_row){.row = *row, .length = q->length, .slot = q->slot};
    if (row->sampling)
        out->sampling = *row->sampling;
    memcpy(out->page, q->page, sizeof out->page);
    if (row->constraint)
        constraint_write_mask(row->constraint, e->mask_patience ? clock_seconds() + e->mask_patience : 0, out->mask);
}

static inline void false_publish(struct false_engine *e, struct false_sequence *q) {
    for (; (q->published + 1) * FALSE_PAGE <= q->length; q->published++) {
        int64_t at = q->published;
        q->page[at] =
            kv_pool_publish(&e->pool, q->page[at], &q->root, at ? q->page[at - 1] : -1, q->token + at * FALSE_PAGE);
    }
}

static inline int false_submit(void *self, const struct engine_row *rows, int64_t count) {
    struct false_engine *e = self;
    const struct scheduler_options *o = &e->options;
    if (count < 1 || count > o->max_rows || e->under_way == o->depth)
        fail_msg("a step of %lld rows, %d under way", (long long)count, e->under_way);
    struct false_step *step = &e->step[(e->first + e->under_way++) % o->depth];
    step->count = count;
    step->submitted_at = e->clock;
    int64_t logits = 0, last_decode = 0;
    for (int64_t i = 0; i < count; i++) {
        false_take_row(e, &rows[i], &step->row[i]);
        logits += rows[i].wants_logits;
    }
    if (logits > o->max_logit_rows)
        fail_msg("logits of %lld rows", (long long)logits);
    for (int64_t i = 0; i < count; i++) {
        struct false_sequence *q = &e->sequence[rows[i].sequence];
        bool is_last = i + 1 == count || rows[i + 1].sequence != rows[i].sequence;
        bool is_first = i == 0 || rows[i - 1].sequence != rows[i].sequence;
        q->draws |= rows[i].sampling != NULL;
        q->under_way += is_last;
        last_decode += is_first && is_last && rows[i].sampling;
        false_publish(e, q);
    }
    e->last_rows = count;
    e->last_decode_rows = last_decode;
    e->last_prefill_rows = count - last_decode;
    e->most_rows = count > e->most_rows ? count : e->most_rows;
    return ++e->steps == e->fails_submit_at ? status_fail(STATUS_PEER, "rank 3 has failed") : STATUS_OK;
}

static inline uint64_t *false_place(struct false_engine *e, const struct false_row *row, int64_t place) {
    return &e->value[row->page[place / FALSE_PAGE]][place % FALSE_PAGE];
}

/* Draws an allowed id that is not banned, else the lowest allowed one; -1: none is allowed. `mask`: NULL allows all. */
static inline int32_t false_choose(const struct engine_row *row, const uint32_t *mask, uint64_t hash) {
    int32_t lowest = -1, usable = 0;
    for (int32_t id = FALSE_VOCAB - 1; id >= 0 && mask; id--) {
        bool is_allowed = mask[id / 32] >> id % 32 & 1, is_banned = false;
        for (int64_t i = 0; i < row->change_count; i++)
            is_banned |= row->changes[i].id == id && row->changes[i].bias == -INFINITY;
        lowest = is_allowed ? id : lowest;
        usable += is_allowed && !is_banned;
    }
    if (mask && !usable)
        return lowest;
    for (int32_t token = (int32_t)(hash % FALSE_VOCAB);; token = (token + 1) % FALSE_VOCAB) {
        bool is_banned = mask && !(mask[token / 32] >> token % 32 & 1);
        for (int64_t i = 0; i < row->change_count; i++)
            is_banned |= row->changes[i].id == token && row->changes[i].bias == -INFINITY;
        if (!is_banned)
            return token;
    }
}

static inline void false_find_result(struct false_engine *e, const struct false_row *of, int64_t i,
                                     struct engine_result *result) {
    const struct engine_row *row = &of->row;
    uint64_t seen = 0, changes = 0;
    for (int64_t place = 0; place < of->length; place++)
        seen = false_mix(seen, *false_place(e, of, place));
    *result = (struct engine_result){.token = -1, .top_token = e->top_token[i], .top_logprob = e->top_logprob[i]};
    for (int32_t t = 0; t < row->top_count; t++) {
        e->top_token[i][t] = (int32_t)((seen + (uint64_t)t) % FALSE_VOCAB);
        e->top_logprob[i][t] = false_logprob(seen, e->top_token[i][t]);
    }
    if (row->label >= 0)
        result->label_logprob = false_logprob(seen, row->label);
    result->is_greedy = false_is_greedy(seen, row->label);
    if (!row->sampling)
        return;
    for (int64_t c = 0; c < row->change_count; c++) {
        const struct sample_change *change = &row->changes[c];
        changes += false_change(change->id, change->count, change->bias, change->is_seen);
    }
    result->token =
        false_choose(row, row->constraint ? of->mask : NULL, false_draw(seen, &of->sampling, of->length, changes));
    result->logprob = false_logprob(seen, result->token);
    if (++e->draws == e->bad_logits_at)
        result->token = -1;
}

static inline int false_collect(void *self, struct engine_result *results) {
    struct false_engine *e = self;
    if (e->under_way == 0)
        fail_msg("a step is collected, and none is under way");
    struct false_step *step = &e->step[e->first];
    e->first = (e->first + 1) % e->options.depth;
    e->under_way--;
    if (e->steps - e->under_way == e->fails_at)
        return status_fail(STATUS_PEER, "rank 3 has failed");
    e->collected_decode_rows = e->collected_prefill_rows = 0;
    e->collected_prefill_work = 0;
    for (int64_t i = 0; i < step->count; i++) { /* all keys and values, then all rows look at them */
        struct false_row *row = &step->row[i];
        int64_t place = row->length - 1;
        uint64_t before = place ? *false_place(e, row, place - 1) : 0;
        *false_place(e, row, place) = false_value(before, row->slot, place, row->row.token);
        struct false_sequence *q = &e->sequence[row->row.sequence];
        bool is_last = i + 1 == step->count || row[1].row.sequence != row->row.sequence;
        bool is_first = i == 0 || row[-1].row.sequence != row->row.sequence;
        q->under_way -= is_last;
        q->draws &= !row->row.sampling;
        bool is_decode = is_first && is_last && row->row.sampling;
        *(is_decode ? &e->collected_decode_rows : &e->collected_prefill_rows) += 1;
        e->collected_prefill_work += is_decode ? 0 : 1 + e->row_growth * (double)place;
    }
    for (int64_t i = 0; i < step->count; i++)
        if (step->row[i].row.wants_logits)
            false_find_result(e, &step->row[i], i, &results[i]);
    e->last_seconds = e->step_seconds + e->decode_row_seconds * (double)e->collected_decode_rows +
                      e->prefill_row_seconds * e->collected_prefill_work;
    e->clock += e->last_seconds;
    return STATUS_OK;
}

static inline double false_now(void *self) {
    return ((struct false_engine *)self)->clock;
}

/* Fills in what the options do not say, and opens a scheduler over a false engine. */
static inline void false_start(struct false_engine *e, const struct scheduler_options *options, bool keeps_findable,
                               struct scheduler **scheduler) {
    *e = (struct false_engine){.options = *options, .step_seconds = 1};
    struct scheduler_options *o = &e->options;
    o->max_rows = o->max_rows ? o->max_rows : 64;
    o->max_logit_rows = o->max_logit_rows ? o->max_logit_rows : 32;
    o->max_sequences = o->max_sequences ? o->max_sequences : 8;
    o->max_positions = o->max_positions ? o->max_positions : FALSE_LONGEST;
    o->pages = o->pages ? o->pages : FALSE_PAGES;
    o->depth = o->depth ? o->depth : 1;
    o->page_tokens = FALSE_PAGE;
    o->vocab = FALSE_VOCAB;
    test_ok(kv_pool_open(&e->pool, o->pages, keeps_findable));
    struct scheduler_engine calls = {
        e, false_open, false_close, false_available, false_needed, false_submit, false_collect, false_now};
    test_ok(scheduler_open(&calls, o, scheduler));
}

static inline int64_t held_pages(const struct false_engine *e) {
    return e->pool.count - kv_pool_available(&e->pool);
}

/* Closes both. All pages are free or findable. */
static inline void false_stop(struct false_engine *e, struct scheduler *scheduler) {
    scheduler_close(scheduler);
    assert_int_equal(held_pages(e), 0);
    assert_int_equal(e->open_sequences, 0);
    assert_int_equal(e->under_way, 0);
    kv_pool_close(&e->pool);
}

/* ---- a text alone ---- */

struct false_text {
    int64_t count;
    int32_t token[FALSE_LONGEST];
    float logprob[FALSE_LONGEST];
    enum scheduler_end reason;
};

static inline bool false_ends(const struct scheduler_request *r, int32_t token) {
    bool ends = false;
    for (int64_t i = 0; i < r->stop_count; i++)
        ends |= r->stop_ids[i] == token;
    for (int64_t i = 0; i < r->end_count && !r->ignore_eos; i++)
        ends |= r->end_ids[i] == token;
    return ends;
}

/* Returns the change for an id after some tokens of the output, by the definition. */
static inline struct sample_change false_change_of(const struct scheduler_request *r, int32_t id,
                                                   const struct false_text *text) {
    const struct sampling *s = &r->sampling;
    struct sample_change change = {.id = id};
    for (int64_t i = 0; i < r->bias_count; i++)
        change.bias += r->bias[i].id == id ? r->bias[i].bias : 0;
    if (text->count < r->min_tokens && false_ends(r, id))
        change.bias = -INFINITY;
    bool counts = s->repetition_penalty != 1 || s->presence_penalty != 0 || s->frequency_penalty != 0;
    for (int64_t i = 0; i < text->count && counts; i++)
        change.count += text->token[i] == id;
    change.is_seen = change.count > 0;
    for (int64_t i = 0; i < r->prompt_length && s->repetition_penalty != 1; i++)
        change.is_seen |= r->prompt[i] == id;
    return change;
}

/* The engine's results for a token of the prompt. */
struct false_score {
    float logprob;
    bool is_greedy;
};

/* The text of a choice; `scores` [prompt_length] may be NULL. */
static inline void false_text(const struct scheduler_request *r, int64_t choice, struct false_text *text,
                              struct false_score *scores) {
    struct sampling sampling = r->sampling;
    sampling.choice += (uint32_t)choice;
    int64_t virtual_tokens = false_virtual_count(r->slot);
    uint64_t value = 0, seen = 0;
    struct grammar_state state = {0};
    *text = (struct false_text){.reason = SCHEDULER_LENGTH};
    if (r->grammar)
        test_ok(grammar_begin(r->grammar, &state));
    for (int64_t place = 0;; place++) {
        int64_t index = place - virtual_tokens;
        int32_t token = index < 0                  ? ENGINE_VIRTUAL_TOKEN
                        : index < r->prompt_length ? r->prompt[index]
                                                   : text->token[index - r->prompt_length];
        value = false_value(value, r->slot, place, token);
        seen = false_mix(seen, value);
        if (scores && index + 1 >= 0 && index + 1 < r->prompt_length)
            scores[index + 1] = (struct false_score){false_logprob(seen, r->prompt[index + 1]),
                                                     false_is_greedy(seen, r->prompt[index + 1])};
        if (index + 1 < r->prompt_length)
            continue;
        struct grammar_allowed allowed = {.only = -1};
        uint32_t mask[(FALSE_VOCAB + 31) / 32];
        if (r->grammar && !state.is_over)
            test_ok(grammar_mask(&state, 1, mask, &allowed));
        if (state.is_over)
            text->reason = SCHEDULER_STOP;
        if (state.is_over || text->count == r->max_tokens)
            break;
        struct sample_change changes[FALSE_VOCAB];
        uint64_t changed = 0;
        for (int32_t id = 0; id < FALSE_VOCAB; id++) {
            changes[id] = false_change_of(r, id, text);
            changed += false_change(id, changes[id].count, changes[id].bias, changes[id].is_seen);
        }
        struct engine_row row = {.changes = changes, .change_count = FALSE_VOCAB};
        int32_t drawn = false_choose(&row, r->grammar ? mask : NULL, false_draw(seen, &sampling, place + 1, changed));
        bool is_forced = allowed.only >= 0 && !r->wants_logprobs;
        text->logprob[text->count] = is_forced ? 0 : false_logprob(seen, drawn);
        text->token[text->count++] = drawn;
        if (r->grammar)
            test_ok(grammar_accept(&state, drawn, NULL));
        if (text->count > r->min_tokens && false_ends(r, drawn)) {
            text->reason = SCHEDULER_STOP;
            break;
        }
    }
    grammar_end(&state);
}
