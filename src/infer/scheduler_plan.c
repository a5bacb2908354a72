/* One step: rows for texts that are being written, then chunks of prompts in what is left. */
#include "scheduler-internal.h"

#include <math.h>

/* ---- pages ---- */

/* The least important text that can give its pages back: one that is paused, else one that `is_less` than `than`. */
static struct text *find_victim(const struct scheduler *s, const struct text *than,
                                bool (*is_less)(const struct text *text, const struct text *than)) {
    struct text *victim = NULL;
    for (int64_t i = s->running_count - 1; i >= 0; i--) {
        struct text *text = s->running[i];
        if (text == than || text->under_way || text->is_ending)
            continue;
        if (text->request->is_paused)
            return text;
        if (!victim && is_less(text, than))
            victim = text;
    }
    return victim;
}

static bool comes_after(const struct text *text, const struct text *than) {
    return text_is_before(than, text);
}

static int64_t pages_left(const struct scheduler *s) {
    return s->engine.pages_available(s->engine.self) - s->planned_pages;
}

static int64_t pages_needed(const struct scheduler *s, const struct text *text, int64_t rows) {
    return s->engine.pages_needed(s->engine.self, text->sequence, rows);
}

/* The number of `rows` more that there are pages for, after less important texts have given theirs back. */
static int64_t reserve_pages(struct scheduler *s, struct text *text, int64_t rows) {
    int64_t wanted = rows;
    while (rows > 0 && pages_needed(s, text, rows) > pages_left(s)) {
        struct text *victim = find_victim(s, text, comes_after);
        if (victim)
            text_preempt(s, victim);
        else
            rows--;
    }
    if (rows < wanted && (!s->stalled || text_is_before(text, s->stalled)))
        s->stalled = text;
    if (rows > 0)
        s->planned_pages += pages_needed(s, text, rows);
    return rows;
}

/* Room for a row of the text that stalled, before less important ones are in the step and cannot give their pages
 * back. */
static void make_room(struct scheduler *s) {
    struct text *text = s->stalled, *victim = NULL;
    s->stalled = NULL;
    if (!text || text->request->is_paused)
        return;
    while (pages_needed(s, text, 1) > pages_left(s) && (victim = find_victim(s, text, comes_after)))
        text_preempt(s, victim);
}

/* ---- rows ---- */

static struct engine_row row_of(const struct text *text, int64_t place) {
    const struct scheduler_request *asked = &text->request->asked;
    int64_t index = place - asked->stem_tokens;
    struct engine_row row = {
        .token = index < 0 ? ENGINE_STEM : text->tokens[index], .sequence = text->sequence, .label = -1};
    if (text_row_is_scored(text, place)) {
        row.wants_logits = true;
        row.label = text->tokens[index + 1];
        row.top_count = asked->prompt_top_count;
    } else if (text_row_draws(text, place)) {
        row.wants_logits = true;
        row.top_count = asked->top_count;
        row.sampling = &text->sampling;
        row.changes = text->sampler.change;
        row.change_count = text->sampler.count;
    }
    return row;
}

static void note_queued(struct scheduler *s, struct request *request, int64_t submitted) {
    int64_t left = request->asked.stem_tokens + request->asked.prompt_length - submitted;
    left = left > 0 ? left : 0;
    if (left < request->queued_tokens) {
        s->queued_tokens -= request->queued_tokens - left;
        request->queued_tokens = left;
    }
}

/* Rows of a text, as far as rows and logits and pages go; how many there are. */
static int64_t add_rows(struct scheduler *s, struct step *step, struct text *text, int64_t rows) {
    int64_t logits = s->options.max_logit_rows - step->logit_rows, fit = 0;
    for (; fit < rows; fit++) {
        bool wants = text_row_is_scored(text, text->submitted + fit) || text_row_draws(text, text->submitted + fit);
        if (wants && logits-- == 0)
            break;
    }
    rows = reserve_pages(s, text, fit);
    if (rows == 0)
        return 0;
    struct step_text *of = &step->text[step->text_count++];
    *of = (struct step_text){.text = text, .first_row = step->rows, .start = text->submitted, .rows = rows};
    for (int64_t i = 0; i < rows; i++) {
        s->rows[step->rows] = row_of(text, text->submitted);
        step->logit_rows += s->rows[step->rows++].wants_logits;
        of->draws = text_row_draws(text, text->submitted++);
    }
    text->under_way++;
    if (text->choice == 0)
        note_queued(s, text->request, text->submitted);
    return rows;
}

/* ---- texts that are being written ---- */

static int64_t count_written(const struct scheduler *s) {
    int64_t count = 0;
    for (int64_t i = 0; i < s->running_count; i++)
        count += text_is_written(s->running[i]) && !s->running[i]->is_ending && !s->running[i]->request->is_paused;
    return count;
}

static bool has_waited_longer(const struct text *a, const struct text *b) {
    return a->turn < b->turn;
}

/* The texts whose next row can run, those that waited longest first. */
static int64_t find_ready(struct scheduler *s) {
    int64_t count = 0;
    for (int64_t i = 0; i < s->running_count; i++) {
        struct text *text = s->running[i];
        if (text_is_written(text) && !text->under_way && !text->is_ending && !text->request->is_paused)
            s->ready[count++] = text;
    }
    text_sort(s->ready, count, has_waited_longer);
    return count;
}

/* Texts are spread over the steps under way in groups of about equal size. Among those of a group the most important
 * one takes its page first; who finds none leaves its row to the next. */
static void plan_decode(struct scheduler *s, struct step *step, int64_t written, bool has_prefill) {
    const struct scheduler_options *o = &s->options;
    int64_t most = o->max_rows < o->max_logit_rows ? o->max_rows : o->max_logit_rows;
    int64_t group = (written + o->depth - 1) / o->depth;
    if (most > 1 || s->stats.steps % 2)
        most -= has_prefill; /* which always goes on; where there is one row, by turns */
    most = group < most ? group : most;
    int64_t count = find_ready(s);
    for (int64_t i = 0; i < count && i < most; i++)
        s->ready[i]->turn = ++s->turns;
    text_sort(s->ready, count < most ? count : most, text_is_before);
    for (int64_t i = 0; i < count && step->rows < most; i++)
        if (s->ready[i]->state == TEXT_RUNS) /* and has not lost its pages since */
            add_rows(s, step, s->ready[i], 1);
    step->decode_rows = step->rows;
}

/* ---- prefill ---- */

static bool has_rows_to_prefill(const struct text *text) {
    return text->state == TEXT_RUNS && !text->is_ending && !text->request->is_paused && !text_is_written(text) &&
           text->submitted < text_goal(text);
}

static bool is_in(const struct step *step, const struct text *text) {
    for (int64_t i = 0; i < step->text_count; i++)
        if (step->text[i].text == text)
            return true;
    return false;
}

static struct text *next_to_prefill(const struct scheduler *s, const struct step *step) {
    for (int64_t i = 0; i < s->running_count; i++)
        if (has_rows_to_prefill(s->running[i]) && !is_in(step, s->running[i]))
            return s->running[i];
    return NULL;
}

/* Further choices wait until the first has its prompt in the cache. */
static bool may_start(const struct text *text) {
    const struct text *first = &text->request->text[0];
    return !text->request->is_paused && (text == first || text_has_output(first) || first->state == TEXT_ENDED);
}

/* Both texts are of one client. */
static bool is_due_before(const struct text *a, const struct text *b) {
    const struct request *x = a->request, *y = b->request;
    if (x->asked.priority != y->asked.priority)
        return x->asked.priority < y->asked.priority;
    if (x->adapter->counter != y->adapter->counter)
        return x->adapter->counter < y->adapter->counter;
    return a->serial < b->serial;
}

/* The text of each client that begins next; NULL where none can. */
static void find_due(struct scheduler *s) {
    for (struct share *client = s->everybody.children; client; client = client->next)
        client->due = NULL;
    for (struct text *text = s->waiting; text; text = text->next) {
        struct share *client = text->request->client;
        if (may_start(text) && (!client->due || is_due_before(text, client->due)))
            client->due = text;
    }
}

/* Whether `a`, which has had less, comes before `b`; `b` may be NULL. Priorities are each client's own matter. */
static bool has_had_less(const struct share *a, const struct share *b) {
    if (!b || a->counter != b->counter)
        return !b || a->counter < b->counter;
    return a->due->serial < b->due->serial;
}

static struct text *next_to_start(struct scheduler *s) {
    const struct share *next = NULL;
    find_due(s);
    for (const struct share *client = s->everybody.children; client; client = client->next)
        if (client->due && has_had_less(client, next))
            next = client;
    return next ? next->due : NULL;
}

static void begin(struct scheduler *s, struct text *text, int sequence, int64_t cached) {
    struct request *request = text->request;
    text_run(s, text, sequence, cached);
    if (!text->was_charged) {
        text->was_charged = true;
        request_charge(request, s->options.in_weight * (double)(text_goal(text) - cached));
    }
    if (text->choice == 0)
        note_queued(s, request, cached);
    if (text->choice > 0 || request->has_started)
        return;
    request->has_started = true;
    int64_t of_prompt = cached - request->asked.stem_tokens;
    if (request->asked.calls.on_start)
        request->asked.calls.on_start(request->asked.context, of_prompt > 0 ? of_prompt : 0);
}

/* Pages for all that is known of it, and one for each text that runs, so that none of them has to go for it soon. */
static bool has_pages_for(struct scheduler *s, struct text *text, int sequence, int64_t cached) {
    for (;;) {
        int64_t needed = s->engine.pages_needed(s->engine.self, sequence, text_goal(text) - cached);
        if (needed + s->running_count <= pages_left(s))
            return true;
        if (s->running_count == 0)
            return needed <= pages_left(s);
        struct text *victim = find_victim(s, text, text_yields_to);
        if (!victim)
            return false;
        text_preempt(s, victim);
    }
}

/* Opens a text's sequence: 1; 0 when there is no room for it now; or a negative status. */
static int start(struct scheduler *s, struct text *text) {
    const struct scheduler_request *asked = &text->request->asked;
    struct text *victim = find_victim(s, text, text_yields_to);
    if ((s->running_count == s->options.max_sequences || text->blocked_at == s->closed) && !victim)
        return 0;
    if (s->running_count == s->options.max_sequences)
        text_preempt(s, victim);
    bool reads_cache =
        !asked->wants_prompt_logprobs || text->choice > 0 || text->request->given_logprobs >= asked->prompt_length;
    int64_t cached = 0;
    int sequence = s->engine.sequence_open(s->engine.self, asked->slot, text->tokens, text->count, asked->salt,
                                           reads_cache, &cached);
    if (sequence >= 0 && has_pages_for(s, text, sequence, cached)) {
        begin(s, text, sequence, cached);
        if (text_is_complete(text))
            text_end(s, text, SCHEDULER_LENGTH);
        return 1;
    }
    if (sequence >= 0)
        s->engine.sequence_close(s->engine.self, sequence);
    text->blocked_at = s->closed;
    return sequence < 0 && sequence != STATUS_MEMORY ? sequence : 0;
}

/* A text begins before one of its client's that yields to it is in the step. Where another client is due, it takes the
 * place of its own: no client has more texts running for having urgent ones. */
static int start_urgent(struct scheduler *s) {
    const struct text *due = next_to_start(s);
    const struct share *next = NULL;
    for (const struct share *client = s->everybody.children; client; client = client->next)
        if (client->due && text_yields_to(client->least, client->due) && find_victim(s, client->due, text_yields_to) &&
            has_had_less(client, next))
            next = client;
    if (next && next->due != due)
        text_preempt(s, find_victim(s, next->due, text_yields_to));
    return next ? start(s, next->due) : 0;
}

/* The work of rows that follow others, in rows with nothing before them. */
static double prefill_work(const struct scheduler *s, int64_t before, int64_t rows) {
    double n = (double)rows;
    return n + s->options.row_growth * n * ((double)before + (n - 1) / 2);
}

/* The most rows after `before` whose work is no more, at least one. */
static int64_t rows_of_work(const struct scheduler *s, int64_t before, int64_t most, double work) {
    int64_t low = 1, high = most;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (prefill_work(s, before, middle) <= work)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Rows of a step that writes all texts that can run at once. A few texts are not protected from many more that wait to
 * stand beside them: those would come in one by one, through short steps that mostly read weights. */
static int64_t full_group(const struct scheduler *s) {
    const struct scheduler_options *o = &s->options;
    int64_t texts = s->running_count + s->waiting_count;
    texts = texts < o->max_sequences ? texts : o->max_sequences;
    return (texts + o->depth - 1) / o->depth;
}

/* How much work of prefill the step may have beside its decode rows, in rows with nothing before them. */
static double prefill_budget(const struct scheduler *s, const struct step *step, int64_t written) {
    const struct scheduler_options *o = &s->options;
    if (!written || o->prefill_stretch == 0)
        return INFINITY;
    if (step->decode_rows && step_cost_is_old(&s->cost, step->decode_rows))
        return 0;
    double row = step_cost_prefill_row(&s->cost), decode = step_cost_decode(&s->cost, full_group(s));
    double alone = step_cost_decode(&s->cost, step->decode_rows);
    double fit = row > 0 && decode > 0 ? (o->prefill_stretch * decode - alone) / row : (double)o->page_tokens;
    return fit < 1 ? 1 : fit;
}

/* Texts that are begun go on before others begin, but for those of higher priority. */
static int plan_prefill(struct scheduler *s, struct step *step, double budget) {
    bool is_full = false;
    while (budget >= 1 && step->rows < s->options.max_rows) {
        struct text *text = next_to_prefill(s, step), *waiting = is_full ? NULL : next_to_start(s);
        if (waiting && (!text || text_yields_to(text, waiting))) {
            int started = start(s, waiting);
            if (started < 0)
                return started;
            is_full = !started;
            if (!started || waiting->state != TEXT_RUNS)
                continue;
            text = waiting;
        }
        if (!text)
            break;
        int64_t left = text_goal(text) - text->submitted, room = s->options.max_rows - step->rows;
        int64_t before = text->submitted;
        int64_t rows = add_rows(s, step, text, rows_of_work(s, before, left < room ? left : room, budget));
        if (rows == 0)
            break;
        double work = prefill_work(s, before, rows);
        step->prefill_work += work;
        budget -= work;
    }
    return STATUS_OK;
}

int scheduler_plan(struct scheduler *s) {
    struct step *step = &s->step[(s->first + s->under_way) % s->options.depth];
    *step = (struct step){.text = step->text};
    s->planned_pages = 0;
    make_room(s);
    int status = start_urgent(s);
    if (status < 0)
        return status;
    int64_t written = count_written(s);
    bool can_start = s->running_count < s->options.max_sequences && next_to_start(s);
    plan_decode(s, step, written, can_start || next_to_prefill(s, step));
    status = plan_prefill(s, step, prefill_budget(s, step, written));
    if (!status && step->rows == 0)
        plan_decode(s, step, written, false); /* the row that was left for prefill, which found no pages */
    if (status || step->rows == 0)
        return status;
    step->submitted_at = s->engine.now(s->engine.self);
    s->under_way++;
    s->stats.steps++;
    s->stats.decode_rows += step->decode_rows;
    s->stats.prefill_rows += step->rows - step->decode_rows;
    status = s->engine.submit(s->engine.self, s->rows, step->rows);
    return status ? status : 1;
}
