/* The engine's paths: each runs all texts in another way, and compares every row that it computes. */
#include "verify-internal.h"

#include "infer/sequences.h"
#include "infer/slots.h"

enum { TOGETHER = 8, COMPANIONS = 3 };

/* A text on its way, or a companion, whose rows nobody compares. */
struct run {
    int64_t text; /* whose tokens it runs; -1: the place is free */
    bool is_companion;
    int slot, sequence;
    int64_t before; /* virtual tokens of the slot */
    int64_t at;     /* rows that ran, virtual ones included */
    int64_t end;
};

/* How a path runs its texts. */
struct way {
    const char *name;
    int chunks[4]; /* rows of a text in a step, in turn; 0 ends the list */
    int together;  /* texts at once */
    bool looks_up; /* texts have run before: their beginnings are found in the cache */
    bool is_mixed; /* with companions */
    bool is_dumped;
};
static const struct way ways[] = {
    {.name = "prefill", .chunks = {VERIFY_ROWS}, .together = 1},
    {.name = "chunked", .chunks = {7, VERIFY_ROWS, 1, 16}, .together = 1},
    {.name = "decode", .chunks = {1}, .together = TOGETHER, .is_dumped = true},
    {.name = "prefix_hit", .chunks = {VERIFY_ROWS}, .together = 1, .looks_up = true},
    {.name = "mixed", .chunks = {5, 1, 13}, .together = 2, .is_mixed = true},
};

struct serving {
    struct verify *verify;
    struct engine *engine;
    int slots[COMPANIONS]; /* of companions: the base, and single adapters of a stack */
    int opened;            /* of these, to close */
    const struct way *way;
    struct verify_path path;
    struct run runs[TOGETHER + COMPANIONS];
    int64_t steps; /* of the path */
};

static int begin(struct serving *s, struct run *run, int64_t text, int slot, bool looks_up) {
    const struct verify_text *t = &s->verify->texts[text];
    struct sequence_beginning beginning = {.slot = slot, .tokens = looks_up ? t->tokens : NULL, .count = t->count};
    *run = (struct run){.text = text, .slot = slot, .before = engine_slot_virtual_tokens(s->engine, slot)};
    run->end = run->before + t->count;
    run->sequence = engine_sequence_open(s->engine, &beginning, &run->at);
    return run->sequence < 0 ? run->sequence : STATUS_OK;
}

static void finish(struct serving *s, struct run *run) {
    if (run->text >= 0)
        engine_sequence_close(s->engine, run->sequence);
    run->text = -1;
}

/* Adds the next rows of a run, at most `most`. Every token's row wants its logits. */
static int64_t add_rows(const struct serving *s, const struct run *run, int64_t most, struct engine_row *rows) {
    int64_t count = 0;
    for (int64_t at = run->at; at < run->end && count < most; at++)
        rows[count++] = (struct engine_row){
            .token = at < run->before ? ENGINE_VIRTUAL_TOKEN : s->verify->texts[run->text].tokens[at - run->before],
            .sequence = run->sequence,
            .wants_logits = at >= run->before,
            .label = -1,
            .top_count = at >= run->before};
    return count;
}

/* Compares the rows of a run that a step has computed; `row` is the first of its logits. */
static int take_rows(struct serving *s, struct run *run, int64_t count, float **row) {
    struct verify *v = s->verify;
    for (int64_t i = 0; i < count; i++, run->at++) {
        if (run->at < run->before)
            continue;
        if (!run->is_companion) {
            verify_compare(v, &s->path, run->text, run->at - run->before, *row);
            TRY(verify_dump_row(s->way->is_dumped ? v->dump : NULL, VERIFY_SERVING, run->text, run->at - run->before,
                                *row));
        }
        *row += v->vocab;
    }
    if (run->at == run->end)
        finish(s, run);
    return STATUS_OK;
}

/* Runs the next rows of all runs. */
static int step(struct serving *s) {
    struct verify *v = s->verify;
    struct engine_row rows[VERIFY_ROWS];
    struct engine_result results[VERIFY_ROWS];
    int64_t counts[TOGETHER + COMPANIONS] = {0}, used = 0, wanted = 0;
    int turns = 0;
    while (turns < 4 && s->way->chunks[turns])
        turns++;
    for (int i = 0; i < TOGETHER + COMPANIONS; i++) {
        /* companions come between texts, and take other chunks */
        int64_t chunk = s->way->chunks[(s->steps + i) % turns], room = VERIFY_ROWS - used;
        if (s->runs[i].text < 0)
            continue;
        counts[i] = add_rows(s, &s->runs[i], chunk < room ? chunk : room, rows + used);
        used += counts[i];
    }
    for (int64_t i = 0; i < used; i++)
        wanted += rows[i].wants_logits;
    s->steps++;
    TRY(stop_check("while the engine ran"));
    TRY(engine_step(s->engine, rows, used, results));
    if (wanted)
        TRY(engine_read_logits(s->engine, wanted, v->row));
    TRY(verify_normalise(v, v->row, wanted));
    float *row = v->row;
    for (int i = 0; i < TOGETHER + COMPANIONS; i++)
        TRY(s->runs[i].text >= 0 ? take_rows(s, &s->runs[i], counts[i], &row) : STATUS_OK);
    return STATUS_OK;
}

/* Lets companions run without end beside the texts: place 1, 3 and 5 of the runs. */
static int begin_companions(struct serving *s, int64_t text) {
    for (int c = 0; c < COMPANIONS; c++) {
        struct run *run = &s->runs[1 + 2 * c];
        if (run->text >= 0)
            continue;
        TRY(begin(s, run, (text + 1 + c) % s->verify->count, s->slots[c], false));
        run->is_companion = true;
    }
    return STATUS_OK;
}

static int run_way(struct serving *s, const struct way *way, bool is_compared) {
    struct verify *v = s->verify;
    int64_t next = 0, under_way = 0;
    s->way = way;
    s->steps = 0;
    s->path = (struct verify_path){.name = way->name};
    while (next < v->count || under_way) {
        under_way = 0;
        for (int i = 0; i < TOGETHER + COMPANIONS; i++) {
            bool is_text = s->runs[i].text < 0 && next < v->count && (!way->is_mixed || i % 2 == 0);
            if (is_text && under_way < way->together)
                TRY(begin(s, &s->runs[i], next++, engine_opened_slot(s->engine), way->looks_up));
            under_way += s->runs[i].text >= 0 && !s->runs[i].is_companion;
        }
        if (under_way && way->is_mixed)
            TRY(begin_companions(s, next));
        TRY(under_way ? step(s) : STATUS_OK);
    }
    for (int i = 0; i < TOGETHER + COMPANIONS; i++)
        finish(s, &s->runs[i]);
    return is_compared ? verify_tell(v, &s->path) : STATUS_OK;
}

/* Finds slots for companions: with adapters, each of them by itself; and the base. */
static int open_slots(struct serving *s) {
    int images[PEFT_SLOT_IMAGES], opened = engine_opened_slot(s->engine);
    int count = opened >= 0 ? engine_slot_images(s->engine, opened, images) : 0;
    for (int c = 0; c < COMPANIONS; c++)
        s->slots[c] = -1;
    for (int c = 1; c < COMPANIONS && c <= count; c++, s->opened++)
        TRY(engine_slot_open(s->engine, &images[c - 1], 1, &s->slots[c]));
    return STATUS_OK;
}

static int lead(struct serving *s) {
    TRY(open_slots(s));
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
        TRY(run_way(s, &ways[w], true));
    for (int c = 1; c <= s->opened; c++)
        engine_slot_close(s->engine, s->slots[c]);
    return STATUS_OK;
}

int verify_engine(struct verify *v) {
    struct serving s = {.verify = v};
    struct job_memory memory = {.help = "a smaller --precision, or " JOB_MEMORY_RANKS, .beside = v->numbers};
    const struct engine_options options = {.max_rows = VERIFY_ROWS,
                                           .max_logit_rows = VERIFY_ROWS,
                                           .max_sequences = TOGETHER + COMPANIONS,
                                           .cache_tokens =
                                               (TOGETHER + COMPANIONS) * (v->longest + v->before + KV_PAGE_TOKENS)};
    for (int i = 0; i < TOGETHER + COMPANIONS; i++)
        s.runs[i].text = -1;
    int status = job_model_open(v->job->model, v->world, options, &memory, &s.engine);
    THEN(status, engine_leads(s.engine) ? lead(&s) : engine_follow(s.engine));
    THEN(status, engine_end(s.engine));
    memory.planned = memory.planned > v->planned ? memory.planned : v->planned;
    if (!v->job->is_quiet)
        THEN(status, job_memory_tell(v->world, &memory));
    if (status)
        comm_fail(v->world, status);
    engine_close(s.engine);
    return status;
}
