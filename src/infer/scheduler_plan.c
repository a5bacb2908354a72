/* Plans one step: rows for completions that are decoding, then chunks of prompts in the remaining rows. */
#include "scheduler-internal.h"

#include "base/clock.h"

#include <math.h>

/* ---- pages ---- */

/* Returns the least important completion that can give its pages back: a paused one, else one for which `is_less`
 * holds. */
static struct completion *find_victim(const struct scheduler *s, const struct completion *than,
                                      bool (*is_less)(const struct completion *completion,
                                                      const struct completion *than)) {
    struct completion *victim = NULL;
    for (int64_t i = s->running_count - 1; i >= 0; i--) {
        struct completion *completion = s->running[i];
        if (completion == than || completion->under_way || completion->is_ending || completion->is_full)
            continue;
        if (completion->request->is_paused)
            return completion;
        if (!victim && is_less(completion, than))
            victim = completion;
    }
    return victim;
}

static bool comes_after(const struct completion *completion, const struct completion *than) {
    return completion_is_before(than, completion);
}

static int64_t pages_remaining(const struct scheduler *s) {
    return s->engine.pages_available(s->engine.self) - s->planned_pages;
}

/* Returns how many more pages `rows` more rows need, after those that the step has already. */
static int64_t pages_needed(const struct scheduler *s, const struct completion *completion, int64_t rows) {
    int64_t planned = completion->part ? completion->part->rows : 0;
    int64_t held = planned ? s->engine.pages_needed(s->engine.self, completion->sequence, planned) : 0;
    return s->engine.pages_needed(s->engine.self, completion->sequence, planned + rows) - held;
}

/* Preempts less important completions as needed. Returns for how many of `rows` more rows there are pages. */
static int64_t reserve_pages(struct scheduler *s, struct completion *completion, int64_t rows) {
    int64_t wanted = rows;
    while (rows > 0 && pages_needed(s, completion, rows) > pages_remaining(s)) {
        struct completion *victim = find_victim(s, completion, comes_after);
        if (victim)
            completion_preempt(s, victim);
        else
            rows--;
    }
    if (rows < wanted && (!s->stalled || completion_is_before(completion, s->stalled)))
        s->stalled = completion;
    if (rows > 0)
        s->planned_pages += pages_needed(s, completion, rows);
    return rows;
}

/* Makes room for a row of the stalled completion first: less important ones in the step could not give pages back. */
static void make_room(struct scheduler *s) {
    struct completion *completion = s->stalled, *victim = NULL;
    s->stalled = NULL;
    if (!completion || completion->request->is_paused)
        return;
    while (pages_needed(s, completion, 1) > pages_remaining(s) && (victim = find_victim(s, completion, comes_after)))
        completion_preempt(s, victim);
}

/* ---- rows ---- */

static struct engine_row row_of(const struct completion *completion, int64_t place) {
    const struct scheduler_request *asked = &completion->request->asked;
    int64_t index = place - asked->virtual_tokens;
    struct engine_row row = {.token = index < 0 ? ENGINE_VIRTUAL_TOKEN : completion->tokens[index],
                             .sequence = completion->sequence,
                             .label = -1,
                             .is_again = completion->is_again};
    if (completion_row_is_scored(completion, place)) {
        row.wants_logits = true;
        row.label = completion->tokens[index + 1];
        row.top_count = asked->prompt_top_count;
    } else if (completion_row_draws(completion, place)) {
        row.wants_logits = true;
        row.top_count = asked->top_count;
        row.sampling = &completion->sampling;
        row.changes = completion->sampler.change;
        row.change_count = completion->sampler.count;
        row.constraint = completion->constraint;
    }
    return row;
}

static void note_queued(struct scheduler *s, struct request *request, int64_t submitted) {
    int64_t remaining = request->asked.virtual_tokens + request->asked.prompt_length - submitted;
    remaining = remaining > 0 ? remaining : 0;
    if (remaining < request->queued_tokens) {
        s->queued_tokens -= request->queued_tokens - remaining;
        request->queued_tokens = remaining;
    }
}

static bool row_wants_logits(const struct completion *completion, int64_t row) {
    return completion_row_is_scored(completion, row) || completion_row_draws(completion, row);
}

/* Charges for the rows of its input that run for the first time. */
static void charge_input(struct scheduler *s, struct completion *completion, int64_t from) {
    const struct request *request = completion->request;
    int64_t input = request->asked.virtual_tokens + request->asked.prompt_length;
    int64_t end = completion->submitted < input ? completion->submitted : input;
    from = from > completion->charged ? from : completion->charged;
    if (end > from)
        request_charge(completion->request, s->options.in_weight * (double)(end - from));
    completion->charged = end > completion->charged ? end : completion->charged;
}

/* Adds up to `rows` more rows of a completion, limited by rows, logits and pages. Returns how many were added. */
static int64_t add_rows(struct scheduler *s, struct step *step, struct completion *completion, int64_t rows) {
    int64_t logits = s->options.max_logit_rows - step->logit_rows, fit = 0, before = completion->submitted;
    for (; fit < rows; fit++)
        if (row_wants_logits(completion, before + fit) && logits-- == 0)
            break;
    rows = completion->is_again ? fit : reserve_pages(s, completion, fit);
    if (rows == 0)
        return 0;
    if (!completion->part) {
        completion->part = &step->completion[step->completion_count++];
        *completion->part = (struct step_completion){.completion = completion, .start = before};
        completion->under_way++;
    }
    completion->part->rows += rows;
    step->rows += rows;
    completion->submitted += rows;
    for (int64_t i = before; i < completion->submitted; i++)
        step->logit_rows += row_wants_logits(completion, i);
    charge_input(s, completion, before);
    if (completion->choice == 0)
        note_queued(s, completion->request, completion->submitted);
    return rows;
}

/* Writes the rows of all parts of a step that is planned. */
static void write_rows(struct scheduler *s, struct step *step) {
    int64_t count = 0;
    for (int64_t i = 0; i < step->completion_count; i++) {
        struct step_completion *of = &step->completion[i];
        of->first_row = count;
        of->draws = completion_row_draws(of->completion, of->start + of->rows - 1);
        for (int64_t row = 0; row < of->rows; row++)
            s->rows[count++] = row_of(of->completion, of->start + row);
        of->completion->part = NULL;
        of->completion->is_again = false;
    }
}

/* ---- decode ---- */

static int64_t count_written(const struct scheduler *s) {
    int64_t count = 0;
    for (int64_t i = 0; i < s->running_count; i++)
        count +=
            completion_is_decoding(s->running[i]) && !s->running[i]->is_ending && !s->running[i]->request->is_paused;
    return count;
}

static bool has_waited_longer(const struct completion *a, const struct completion *b) {
    return a->turn < b->turn;
}

/* Finds the completions whose next row can run; those that waited longest come first. */
static int64_t find_ready(struct scheduler *s) {
    int64_t count = 0;
    for (int64_t i = 0; i < s->running_count; i++) {
        struct completion *completion = s->running[i];
        if (completion_is_decoding(completion) && !completion->under_way && !completion->is_ending &&
            !completion->request->is_paused && !completion->is_held)
            s->ready[count++] = completion;
    }
    completion_sort(s->ready, count, has_waited_longer);
    return count;
}

/* Spreads completions over the steps under way in groups of about equal size. Within a group the most important
 * completion takes its page first; one that finds no page leaves its row to the next. */
static void plan_decode(struct scheduler *s, struct step *step, int64_t written, bool has_prefill) {
    const struct scheduler_options *o = &s->options;
    int64_t most = o->max_rows < o->max_logit_rows ? o->max_rows : o->max_logit_rows;
    int64_t group = (written + o->depth - 1) / o->depth;
    if (most > 1 || s->stats.steps % 2)
        most -= has_prefill; /* prefill always gets a row; with only one row they alternate */
    most = group < most ? group : most;
    int64_t count = find_ready(s);
    for (int64_t i = 0; i < count && i < most; i++)
        s->ready[i]->turn = ++s->turns;
    completion_sort(s->ready, count < most ? count : most, completion_is_before);
    for (int64_t i = 0; i < count && step->rows < most; i++)
        if (s->ready[i]->state == COMPLETION_RUNS) /* it was not preempted since */
            add_rows(s, step, s->ready[i], 1);
    step->decode_rows = step->rows;
}

/* ---- constraints ---- */

/* True when tokens may be appended now: earlier rows have reported, and other choices find the prompt in the cache. */
static bool may_settle(const struct completion *completion) {
    const struct request *request = completion->request;
    int64_t input = request->asked.virtual_tokens + request->asked.prompt_length;
    bool is_scored = request->asked.wants_prompt_logprobs && completion->choice == 0 &&
                     request->given_logprobs < request->asked.prompt_length;
    return completion->constraint && !completion->under_way && !completion->is_ending &&
           (!request->is_paused || completion->is_full) && !request->is_cancelled && !is_scored &&
           (request->asked.choices == 1 || completion->submitted >= input - 1);
}

/* Settles a running completion. A mask that is due gets a small part of a step's time to become ready. */
static void settle(struct scheduler *s, struct completion *completion, bool is_due) {
    enum { WAITS = 32 };
    if (may_settle(completion))
        completion_settle(s, completion, is_due ? s->planned_at + s->last_seconds / WAITS : 0);
}

/* ---- prefill ---- */

static bool has_rows_to_prefill(const struct completion *completion) {
    return completion->state == COMPLETION_RUNS && !completion->is_ending && !completion->request->is_paused &&
           !completion->is_held && !completion_is_decoding(completion) &&
           completion->submitted < completion_goal(completion);
}

static bool has_prompts(const struct scheduler *s) {
    for (int64_t i = 0; i < s->running_count; i++)
        if (has_rows_to_prefill(s->running[i]))
            return true;
    return false;
}

/* Further choices wait until the first one's prompt is in the cache. */
static bool may_start(const struct completion *completion) {
    const struct completion *first = &completion->request->completion[0];
    return !completion->request->is_paused &&
           (completion == first || completion_has_output(first) || first->state == COMPLETION_ENDED);
}

/* True when `a` starts before `b`; both belong to one client. */
static bool is_due_before(const struct completion *a, const struct completion *b) {
    const struct request *x = a->request, *y = b->request;
    if (x->asked.priority != y->asked.priority)
        return x->asked.priority < y->asked.priority;
    if (x->adapter->counter != y->adapter->counter)
        return x->adapter->counter < y->adapter->counter;
    return a->serial < b->serial;
}

/* Sets each client's `due` to the completion to start next; NULL when none can. */
static void find_due(struct scheduler *s) {
    for (struct share *client = s->everybody.children; client; client = client->next)
        client->due = NULL;
    for (struct completion *completion = s->waiting; completion; completion = completion->next) {
        struct share *client = completion->request->client;
        if (may_start(completion) && (!client->due || is_due_before(completion, client->due)))
            client->due = completion;
    }
}

/* True when `a` had less service than `b`, which may be NULL. Priorities do not count between clients. */
static bool has_had_less(const struct share *a, const struct share *b) {
    if (!b || a->counter != b->counter)
        return !b || a->counter < b->counter;
    return a->due->serial < b->due->serial;
}

static struct completion *next_to_start(struct scheduler *s) {
    const struct share *next = NULL;
    find_due(s);
    for (const struct share *client = s->everybody.children; client; client = client->next)
        if (client->due && has_had_less(client, next))
            next = client;
    return next ? next->due : NULL;
}

static void begin(struct scheduler *s, struct completion *completion, int sequence, int64_t cached) {
    struct request *request = completion->request;
    completion_run(s, completion, sequence, cached);
    if (completion->choice == 0)
        note_queued(s, request, cached);
    if (completion->choice > 0 || request->has_started)
        return;
    request->has_started = true;
    int64_t of_prompt = cached - request->asked.virtual_tokens;
    if (request->asked.calls.on_start)
        request->asked.calls.on_start(request->asked.context, of_prompt > 0 ? of_prompt : 0);
}

/* Returns how many pages the prompts that have started still need: clients' prompts share the steps. */
static int64_t pages_of_prompts(const struct scheduler *s) {
    int64_t pages = 0;
    for (int64_t i = 0; i < s->running_count; i++)
        if (has_rows_to_prefill(s->running[i]))
            pages += pages_needed(s, s->running[i], completion_goal(s->running[i]) - s->running[i]->submitted);
    return pages;
}

/* True when there are pages for all its known rows, and for the prompts that have started. Each running completion gets
 * one more, so that none is preempted soon. */
static bool has_pages_for(struct scheduler *s, struct completion *completion, int sequence, int64_t cached) {
    for (;;) {
        int64_t needed = s->engine.pages_needed(s->engine.self, sequence, completion_goal(completion) - cached);
        if (needed + pages_of_prompts(s) + s->running_count <= pages_remaining(s))
            return true;
        if (s->running_count == 0)
            return needed <= pages_remaining(s);
        struct completion *victim = find_victim(s, completion, completion_yields_to);
        if (!victim)
            return false;
        completion_preempt(s, victim);
    }
}

/* Returns how many tokens of a completion to look up in the cache: all, or those before the next one to report. */
static int64_t count_findable(const struct completion *completion) {
    const struct request *request = completion->request;
    bool reports = request->asked.wants_prompt_logprobs && completion->choice == 0 &&
                   request->given_logprobs < request->asked.prompt_length;
    return reports ? request->given_logprobs : completion->count;
}

/* Opens a completion's sequence. Returns 1, 0 when there is no room now, or a negative status. */
static int start(struct scheduler *s, struct completion *completion) {
    const struct scheduler_request *asked = &completion->request->asked;
    struct completion *victim = find_victim(s, completion, completion_yields_to);
    if ((s->running_count == s->options.max_sequences || completion->blocked_at == s->closed) && !victim)
        return 0;
    if (s->running_count == s->options.max_sequences)
        completion_preempt(s, victim);
    const struct sequence_beginning beginning = {
        .slot = asked->slot,
        .tokens = completion->tokens,
        .count = count_findable(completion),
        .salt = asked->salt,
    };
    int64_t cached = 0;
    int sequence = s->engine.sequence_open(s->engine.self, &beginning, &cached);
    if (sequence >= 0 && has_pages_for(s, completion, sequence, cached)) {
        begin(s, completion, sequence, cached);
        settle(s, completion, true);
        if (completion_is_complete(completion))
            completion_end(s, completion, SCHEDULER_LENGTH);
        return 1;
    }
    if (sequence >= 0)
        s->engine.sequence_close(s->engine.self, sequence);
    completion->blocked_at = s->closed;
    return sequence < 0 && sequence != STATUS_MEMORY ? sequence : 0;
}

/* Starts urgent completions before those of the same client that yield to them get into the step. When another client
 * is due, an urgent completion replaces one of its own client: no client runs more for having urgent ones. */
static int start_urgent(struct scheduler *s) {
    const struct completion *due = next_to_start(s);
    const struct share *next = NULL;
    for (const struct share *client = s->everybody.children; client; client = client->next)
        if (client->due && completion_yields_to(client->least, client->due) &&
            find_victim(s, client->due, completion_yields_to) && has_had_less(client, next))
            next = client;
    if (next && next->due != due)
        completion_preempt(s, find_victim(s, next->due, completion_yields_to));
    return next ? start(s, next->due) : 0;
}

/* Returns the cost of `rows` rows after `before` others, in units of a row without earlier rows. */
static double prefill_work(const struct scheduler *s, int64_t before, int64_t rows) {
    double n = (double)rows;
    return n + s->options.row_growth * n * ((double)before + (n - 1) / 2);
}

/* Returns the largest number of rows after `before` that cost at most `work`; at least one. */
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

/* Returns the rows of a step that decodes all completions that can run at once. It counts waiting ones too: protecting
 * a few running ones would admit the others one by one, in short steps that mostly read weights. */
static int64_t full_group(const struct scheduler *s) {
    const struct scheduler_options *o = &s->options;
    int64_t completions = s->running_count + s->waiting_count;
    completions = completions < o->max_sequences ? completions : o->max_sequences;
    return (completions + o->depth - 1) / o->depth;
}

/* Returns how much prefill the step may add to its decode rows, in units of a row without earlier rows. */
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

/* Sets each client's `prompt`. What has started continues before others start, except those of higher priority. */
static void find_prompts(struct scheduler *s, bool can_start) {
    find_due(s);
    for (struct share *client = s->everybody.children; client; client = client->next)
        client->prompt = NULL;
    for (int64_t i = 0; i < s->running_count; i++) {
        struct share *client = s->running[i]->request->client;
        if (!client->prompt && has_rows_to_prefill(s->running[i]))
            client->prompt = s->running[i];
    }
    for (struct share *client = s->everybody.children; client && can_start; client = client->next)
        if (client->due && (!client->prompt || completion_yields_to(client->prompt, client->due)))
            client->prompt = client->due;
}

/* True when `a` has less of the step than `b`, by weight; among equals, when it had less service. `b` may be NULL. */
static bool has_less_of_step(const struct share *a, const struct share *b) {
    double of_a = b ? a->work * b->weight : 0, of_b = b ? b->work * a->weight : 0;
    return of_a != of_b ? of_a < of_b : !b || a->counter < b->counter;
}

/* Chooses the client whose prompt is next, and how much it may add. The clients share the step by their weights; what
 * one does not need goes to the others. Each gets at least a row. Prompts start in the order of service, because there
 * may be fewer sequences than clients. NULL: the step is full, or nobody has a prompt. */
static struct share *next_client(const struct scheduler *s, double room, double budget, double *rows, double *work) {
    struct share *begun = NULL, *waiting = NULL;
    double weights = 0;
    for (const struct share *client = s->everybody.children; client; client = client->next) {
        weights += client->prompt ? client->weight : 0;
        room += client->prompt ? client->rows : 0;
        budget += client->prompt ? client->work : 0;
    }
    for (struct share *client = s->everybody.children; client; client = client->next) {
        if (!client->prompt || (client->work > 0 && budget * client->weight / weights - client->work < 1))
            continue;
        if (client->prompt->state == COMPLETION_WAITS)
            waiting = has_had_less(client, waiting) ? client : waiting;
        else
            begun = has_less_of_step(client, begun) ? client : begun;
    }
    struct share *next = waiting && (!begun || has_less_of_step(waiting, begun)) ? waiting : begun;
    if (!next)
        return NULL;
    *rows = fmax(room * next->weight / weights - next->rows, 1);
    *work = budget * next->weight / weights - next->work;
    return next;
}

/* Adds prefill rows. */
static int plan_prefill(struct scheduler *s, struct step *step, double budget) {
    bool is_full = false;
    for (struct share *client = s->everybody.children; client; client = client->next)
        client->rows = client->work = 0;
    while (step->rows < s->options.max_rows) {
        double most, work;
        find_prompts(s, !is_full);
        struct share *client = next_client(s, (double)(s->options.max_rows - step->rows), budget, &most, &work);
        if (!client)
            break;
        struct completion *completion = client->prompt;
        if (completion->state == COMPLETION_WAITS) {
            int started = start(s, completion);
            if (started < 0)
                return started;
            is_full = !started;
            if (!started || completion->state != COMPLETION_RUNS)
                continue;
        }
        int64_t before = completion->submitted, remaining = completion_goal(completion) - before;
        int64_t room = s->options.max_rows - step->rows; /* less than `most` when another had to get a row */
        remaining = remaining < room ? remaining : room;
        remaining = (double)remaining < most ? remaining : (int64_t)most;
        int64_t rows = add_rows(s, step, completion, rows_of_work(s, before, remaining, work));
        if (rows == 0)
            break;
        double done = prefill_work(s, before, rows);
        step->prefill_work += done;
        budget -= done;
        client->rows += (double)rows;
        client->work += done;
    }
    return STATUS_OK;
}

double scheduler_spare(struct scheduler *s) {
    bool can_start = s->running_count < s->options.max_sequences && next_to_start(s);
    int64_t written = count_written(s);
    if (s->failure || can_start || has_prompts(s))
        return 0;
    if (!written)
        return s->options.slice_seconds;
    double decode = step_cost_decode(&s->cost, written);
    return s->options.slice_share * (decode > 0 ? decode : s->last_seconds);
}

int scheduler_plan(struct scheduler *s) {
    struct step *step = &s->step[(s->first + s->under_way) % s->options.depth];
    *step = (struct step){.completion = step->completion};
    s->planned_pages = 0;
    s->planned_at = clock_seconds();
    for (int64_t i = s->running_count - 1; i >= 0; i--)
        settle(s, s->running[i], completion_goal(s->running[i]) - s->running[i]->submitted == 1);
    make_room(s);
    int status = start_urgent(s);
    if (status < 0)
        return status;
    int64_t written = count_written(s);
    bool can_start = s->running_count < s->options.max_sequences && next_to_start(s);
    plan_decode(s, step, written, can_start || has_prompts(s));
    double budget = prefill_budget(s, step, written);
    status = budget < 1 ? STATUS_OK : plan_prefill(s, step, budget);
    if (!status && step->rows == 0)
        plan_decode(s, step, written, false); /* the row that was reserved for prefill, which found no pages */
    if (status || step->rows == 0)
        return status;
    write_rows(s, step);
    step->submitted_at = s->engine.now(s->engine.self);
    s->under_way++;
    s->stats.steps++;
    s->stats.decode_rows += step->decode_rows;
    s->stats.prefill_rows += step->rows - step->decode_rows;
    status = s->engine.submit(s->engine.self, s->rows, step->rows);
    return status ? status : 1;
}
