/* Steps: the leader turns rows into a plan, with every page, place, segment and draw resolved. */
#include "engine-internal.h"

/* ---- what can run ---- */

static bool is_of_vocabulary(const struct engine *engine, int32_t token) {
    return token >= 0 && token < engine_config(engine)->vocab_size;
}

static int fail_token(const struct engine *engine, int32_t token) {
    return status_fail(STATUS_INVALID, "token %d is not in the vocabulary of %lld", token,
                       (long long)engine_config(engine)->vocab_size);
}

int engine_check_tokens(const struct engine *engine, int slot, const char *what, const int32_t *tokens, int64_t count) {
    int64_t positions = engine_max_positions(engine), virtual_tokens = engine_slot_virtual_tokens(engine, slot);
    if (count > positions - virtual_tokens && virtual_tokens)
        return status_fail(STATUS_INVALID,
                           "%s%lld tokens, with the adapters' %lld virtual tokens more than the model's %lld positions",
                           what, (long long)count, (long long)virtual_tokens, (long long)positions);
    if (count > positions)
        return status_fail(STATUS_INVALID, "%s%lld tokens, more than the model's %lld positions", what,
                           (long long)count, (long long)positions);
    for (int64_t i = 0; i < count; i++)
        if (!is_of_vocabulary(engine, tokens[i]))
            return fail_token(engine, tokens[i]);
    return STATUS_OK;
}

static int check_row(const struct engine *engine, const struct engine_row *row, int64_t number) {
    const struct model_config *config = engine_config(engine);
    if (row->sequence < 0 || row->sequence >= engine->sequences || !engine->leader->sequences[row->sequence].is_used)
        return status_fail(STATUS_INVALID, "row %lld: no sequence %d", (long long)number, row->sequence);
    const struct sequence *sequence = &engine->leader->sequences[row->sequence];
    const struct slot *slot = engine_slot(engine, sequence->slot);
    int64_t virtual_tokens = slot->prefix_tokens + slot->row_tokens, length = sequence->length - row->is_again;
    bool is_virtual = row->token == ENGINE_VIRTUAL_TOKEN;
    if (is_virtual != (length < virtual_tokens))
        return status_fail(STATUS_INVALID, "row %lld: sequence %d %s", (long long)number, row->sequence,
                           is_virtual ? "has no more virtual tokens" : "starts with virtual tokens");
    if (row->wants_logits && sequence->length < slot->prefix_tokens)
        return status_fail(STATUS_INVALID, "row %lld: a prefix has no logits", (long long)number);
    if (!is_virtual && !is_of_vocabulary(engine, row->token))
        return fail_token(engine, row->token);
    if (row->label >= config->vocab_size)
        return fail_token(engine, row->label);
    if (row->constraint && !(row->wants_logits && row->sampling))
        return status_fail(STATUS_INVALID, "row %lld: a mask without a draw", (long long)number);
    if (length < engine_max_positions(engine))
        return STATUS_OK;
    return virtual_tokens
               ? status_fail(STATUS_INVALID,
                             "a text that with the adapters' %lld virtual tokens has more than the model's %lld "
                             "positions",
                             (long long)virtual_tokens, (long long)engine_max_positions(engine))
               : status_fail(STATUS_INVALID, "a text of more than the model's %lld positions",
                             (long long)engine_max_positions(engine));
}

static int check_sums(const struct engine *engine, int64_t wanted, int64_t masks, int64_t changes) {
    const struct engine_options *o = &engine->options;
    if (wanted > o->max_logit_rows)
        return status_fail(STATUS_INVALID, "logits of %lld rows in an engine opened for %lld", (long long)wanted,
                           (long long)o->max_logit_rows);
    if (changes > engine->most.changes)
        return status_fail(STATUS_INVALID, "%lld changes of logits in a step that can have %lld", (long long)changes,
                           (long long)engine->most.changes);
    if (masks > engine->max_masks)
        return status_fail(STATUS_INVALID, "%lld masks in a step that can have %lld", (long long)masks,
                           (long long)engine->max_masks);
    return STATUS_OK;
}

/* Refuses rows that cannot run, before anything has changed. `length` is counted up over the rows and restored. */
static int check_rows(struct engine *engine, const struct engine_row *rows, int64_t count, int64_t available) {
    int64_t wanted = 0, masks = 0, changes = 0, pages = 0, done = 0;
    int status = STATUS_OK;
    if (count < 1 || count > engine->options.max_rows)
        return status_fail(STATUS_INVALID, "a step of %lld rows in an engine opened for %lld", (long long)count,
                           (long long)engine->options.max_rows);
    for (; done < count && !(status = check_row(engine, &rows[done], done)); done++) {
        struct sequence *sequence = &engine->leader->sequences[rows[done].sequence];
        pages += !rows[done].is_again && sequence->length % KV_PAGE_TOKENS == 0;
        sequence->length += !rows[done].is_again;
        wanted += rows[done].wants_logits;
        masks += rows[done].constraint != NULL;
        changes += rows[done].wants_logits && rows[done].sampling ? rows[done].change_count : 0;
    }
    for (int64_t i = 0; i < done; i++)
        engine->leader->sequences[rows[i].sequence].length -= !rows[i].is_again;
    THEN(status, check_sums(engine, wanted, masks, changes));
    if (!status && pages > available)
        status = status_fail(STATUS_INVALID, "the KV cache has %lld free pages of %lld and %lld are needed",
                             (long long)available, (long long)engine_pages(engine), (long long)pages);
    return status;
}

/* ---- rows into a plan ---- */

/* Publishes a full page. If an equal page was published before, it replaces this one. Rows of this plan then write
 * nothing, because the replaced page may be reused at once. */
static void publish_page(struct engine *engine, struct sequence *sequence, int64_t index) {
    struct plan *plan = &engine->leader->built;
    int32_t full = sequence->pages[index], parent = index ? sequence->pages[index - 1] : -1;
    int32_t page = kv_pool_publish(&engine->leader->pool, full, &sequence->root, parent, sequence->page_tokens);
    if (page == full)
        return;
    sequence->pages[index] = page;
    sequence->planned = index < sequence->planned ? index : sequence->planned;
    for (int64_t i = 0; i < plan->header.counts.rows; i++)
        if (plan->place[i] >= 0 && plan->place[i] / KV_PAGE_TOKENS == full)
            plan->place[i] = -1;
    for (int64_t i = 0; i < plan->header.counts.places; i++)
        if (plan->places[i] >= 0 && plan->places[i] / KV_PAGE_TOKENS == full)
            plan->places[i] = -1;
}

/* Makes room for one more token, and returns the place of its key and value. A page is available. */
static int32_t extend(struct engine *engine, struct sequence *sequence, int32_t token) {
    int64_t index = sequence->length / KV_PAGE_TOKENS, at = sequence->length % KV_PAGE_TOKENS;
    if (at == 0)
        sequence->pages[index] = kv_pool_take(&engine->leader->pool);
    sequence->page_tokens[at] = token;
    sequence->length++;
    return (int32_t)(sequence->pages[index] * KV_PAGE_TOKENS + at);
}

static void publish_if_full(struct engine *engine, struct sequence *sequence) {
    if (sequence->length % KV_PAGE_TOKENS == 0)
        publish_page(engine, sequence, sequence->length / KV_PAGE_TOKENS - 1);
}

static void add_prefix_row(struct engine *engine, const struct engine_row *row) {
    struct plan *plan = &engine->leader->built;
    struct plan_counts *n = &plan->header.counts;
    struct sequence *sequence = &engine->leader->sequences[row->sequence];
    const struct slot *slot = engine_slot(engine, sequence->slot);
    int64_t token = sequence->length;
    int image = slot->images[0];
    for (int i = 0; i < slot->count; i++)
        image = peft_bank_prefix_tokens(engine->bank, slot->images[i]) ? slot->images[i] : image;
    struct plan_prefix *last = n->prefixes ? &plan->prefixes[n->prefixes - 1] : NULL;
    bool continues = last && last->image == image && last->first + last->count == token &&
                     plan->prefix_sequence[n->prefixes - 1] == row->sequence;
    if (!continues) {
        plan->prefix_sequence[n->prefixes] = row->sequence;
        last = &plan->prefixes[n->prefixes++];
        *last = (struct plan_prefix){.image = image, .first = token, .first_place = n->places};
    }
    last->count++;
    plan->places[n->places++] = extend(engine, sequence, ENGINE_VIRTUAL_TOKEN);
}

/* Adds the row to the segment of adjacent rows with the same slot. */
static void add_segment(struct plan *plan, const struct slot *slot, int64_t row) {
    struct plan_counts *n = &plan->header.counts;
    struct peft_segment *last = n->segments ? &plan->segments[n->segments - 1] : NULL;
    if (!slot->count)
        return;
    if (!last || last->first_row + last->rows != row || last->count != slot->count ||
        memcmp(last->images, slot->images, (size_t)slot->count * sizeof *slot->images)) {
        last = &plan->segments[n->segments++];
        *last = (struct peft_segment){.first_row = row, .count = slot->count};
        memcpy(last->images, slot->images, sizeof last->images);
    }
    last->rows++;
}

static struct sample_row sample_row_of(const struct engine_row *row, int64_t position, int64_t first_change) {
    const struct sampling *s = row->sampling;
    struct sample_row sample = {.top_p = 1, .repetition_penalty = 1, .top_count = row->top_count};
    if (!s)
        return sample;
    sample.draws = true;
    sample.temperature = s->top_p > 0 ? (float)s->temperature : 0;
    sample.top_p = (float)s->top_p;
    sample.min_p = (float)s->min_p;
    sample.top_k = s->top_k > 0 ? (int32_t)s->top_k : 0;
    sample.repetition_penalty = (float)s->repetition_penalty;
    sample.presence_penalty = (float)s->presence_penalty;
    sample.frequency_penalty = (float)s->frequency_penalty;
    sample.seed = s->seed;
    sample.choice = s->choice;
    sample.position = (uint32_t)position;
    sample.first_change = (int32_t)first_change;
    sample.change_count = (int32_t)row->change_count;
    return sample;
}

/* Adds a row that wants logits; it is `row` of the plan, at `position` of its sequence. */
static void add_wanted(struct plan *plan, const struct engine_row *from, int64_t row, int64_t position) {
    struct plan_header *h = &plan->header;
    int64_t wanted = h->counts.logit_rows++;
    plan->logit_row[wanted] = (int32_t)row;
    plan->labels[wanted] = from->label >= 0 ? from->label : 0;
    plan->sample[wanted] = sample_row_of(from, position + 1, h->counts.changes);
    plan->sample[wanted].mask = from->constraint ? (int32_t)++h->masks : 0;
    h->has_labels |= from->label >= 0;
    h->draws |= from->sampling != NULL;
    h->has_top |= from->top_count > 0;
    if (!from->sampling || !from->change_count)
        return;
    memcpy(plan->changes + h->counts.changes, from->changes, (size_t)from->change_count * sizeof *from->changes);
    h->counts.changes += from->change_count;
}

static void add_row(struct engine *engine, const struct engine_row *from) {
    struct plan *plan = &engine->leader->built;
    struct sequence *sequence = &engine->leader->sequences[from->sequence];
    const struct slot *slot = engine_slot(engine, sequence->slot);
    if (sequence->length < slot->prefix_tokens) {
        add_prefix_row(engine, from);
        publish_if_full(engine, sequence);
        return;
    }
    int64_t row = plan->header.counts.rows++, position = sequence->length - from->is_again;
    plan->tokens[row] = from->token == ENGINE_VIRTUAL_TOKEN
                            ? slot_virtual_id(engine, slot, position - slot->prefix_tokens)
                            : from->token;
    plan->positions[row] = plan->cached[row] = (int32_t)position;
    plan->sequence[row] = from->sequence;
    plan->place[row] = from->is_again ? -1 : extend(engine, sequence, from->token);
    add_segment(plan, slot, row);
    if (from->wants_logits)
        add_wanted(plan, from, row, position);
    if (!from->is_again)
        publish_if_full(engine, sequence);
}

/* Adds the pages of the plan's sequences that no plan has sent yet. */
static void add_pages(struct engine *engine, const struct engine_row *rows, int64_t count) {
    struct plan *plan = &engine->leader->built;
    for (int64_t i = 0; i < count; i++) {
        struct sequence *sequence = &engine->leader->sequences[rows[i].sequence];
        int64_t pages = engine_pages_of(sequence->length);
        for (; sequence->planned < pages; sequence->planned++)
            plan->pages[plan->header.counts.pages++] =
                (struct id_change){.place = (int32_t)(rows[i].sequence * engine->max_pages + sequence->planned),
                                   .id = sequence->pages[sequence->planned]};
    }
}

/* ---- steps ---- */

static struct flight *flight_at(struct engine *engine, int64_t number) {
    return &engine->leader->flights[number % engine_flights(engine)];
}

int engine_fill_masks(void *self, uint32_t *masks) {
    enum { WAITS = 32 }; /* beyond a step's usual time, masks may take this part of it */
    struct engine *engine = self;
    struct engine_leader *leader = engine->leader;
    const struct flight *flight = flight_at(engine, leader->submitted - 1);
    double now = clock_seconds(), until = flight->start + leader->patience;
    until = (until > now ? until : now) + leader->patience / WAITS;
    for (int64_t i = 0; i < leader->built.header.masks; i++)
        constraint_write_mask(flight->constraints[i], until, masks + i * engine->mask_words);
    return STATUS_OK;
}

static int run(struct engine *engine, struct flight *flight) {
    struct engine_leader *leader = engine->leader;
    bool is_here = model_gives_results(engine->runner);
    int status = !is_here && flight->wanted ? engine_expect_results(engine, flight) : STATUS_OK;
    THEN(status, engine_send_plan(engine, &leader->built));
    THEN(status, engine_run_plan(engine, &leader->built));
    THEN_IF(status, !is_here && leader->built.header.masks, engine_send_masks(engine));
    flight->is_here = is_here && !status && leader->built.header.counts.rows;
    return status;
}

/* Returns the limit of steps under way: one more than stages when this rank reads the results, which it does when a
 * step is collected. */
static int most_under_way(const struct engine *engine) {
    return model_gives_results(engine->runner) ? engine_depth(engine) + 1 : engine_depth(engine);
}

static int submit(struct engine *engine, const struct engine_row *rows, int64_t count, int64_t available) {
    struct engine_leader *leader = engine->leader;
    int status = check_rows(engine, rows, count, available);
    if (!status && leader->submitted - leader->collected >= most_under_way(engine))
        status = status_fail(STATUS_INVALID, "%d steps are under way already", most_under_way(engine));
    TRY(status);
    struct flight *flight = flight_at(engine, leader->submitted);
    struct plan_header *header = &leader->built.header;
    *header = (struct plan_header){.kind = PLAN_STEP};
    for (int64_t i = 0; i < count; i++) {
        int64_t wanted = header->counts.logit_rows;
        if (rows[i].constraint)
            flight->constraints[header->masks] = rows[i].constraint;
        add_row(engine, &rows[i]);
        if (header->counts.logit_rows > wanted)
            flight->result_row[wanted] = (int32_t)i;
    }
    add_pages(engine, rows, count);
    for (int64_t i = 0; i < count; i++) { /* a row whose mask is late comes again */
        struct sequence *sequence = &leader->sequences[rows[i].sequence];
        engine_leave_pages(engine, sequence, sequence->length - (rows[i].constraint != NULL));
    }
    flight->rows = count;
    flight->start = clock_seconds();
    flight->wanted = header->counts.logit_rows;
    flight->has_top = header->has_top;
    flight->has_landed = false;
    leader->submitted++;
    return run(engine, flight);
}

int engine_submit(struct engine *engine, const struct engine_row *rows, int64_t count) {
    return submit(engine, rows, count, engine_pages_available(engine));
}

/* Waits for a step's results; they stay with the step until they are given. */
static int land(struct engine *engine, struct flight *flight) {
    struct engine_leader *leader = engine->leader;
    struct model_step_result block = model_results_at(flight->results, flight->wanted);
    if (flight->has_landed)
        return STATUS_OK;
    int status = flight->is_here ? model_infer_results(engine->runner, &block) : comm_wait(&flight->arriving);
    flight->is_here = false;
    flight->has_landed = true;
    double seconds = leader->step_seconds = clock_seconds() - flight->start, most = 1.1 * leader->patience;
    leader->patience = leader->patience > 0 && most < seconds ? most : seconds;
    return status;
}

static int give(struct engine *engine, struct flight *flight, struct engine_result *results) {
    int status = land(engine, flight);
    struct model_step_result block = model_results_at(flight->results, flight->wanted);
    for (int64_t i = 0; i < flight->wanted && !status; i++)
        results[flight->result_row[i]] = (struct engine_result){
            .token = block.token[i],
            .logprob = block.logprob[i],
            .label_logprob = block.label_logprob[i],
            .is_greedy = block.is_greedy[i],
            .top_token = flight->has_top ? block.top_token + i * SAMPLE_MAX_TOP : NULL,
            .top_logprob = flight->has_top ? block.top_logprob + i * SAMPLE_MAX_TOP : NULL,
        };
    return status;
}

int engine_collect(struct engine *engine, struct engine_result *results) {
    struct engine_leader *leader = engine->leader;
    if (leader->collected == leader->submitted)
        return status_fail(STATUS_INVALID, "no step is under way");
    return give(engine, flight_at(engine, leader->collected++), results);
}

int engine_step_between(struct engine *engine, const struct engine_row *rows, int64_t count,
                        struct engine_result *results) {
    struct engine_leader *leader = engine->leader;
    TRY(submit(engine, rows, count, kv_pool_available(&leader->pool)));
    int status = STATUS_OK;
    leader->submitted--;
    for (int64_t i = leader->collected; i < leader->submitted && !status; i++) /* results arrive in order */
        status = land(engine, flight_at(engine, i));
    return status ? status : give(engine, flight_at(engine, leader->submitted), results);
}

double engine_step_seconds(const struct engine *engine) {
    return engine->leader->step_seconds;
}

int engine_read_logits(struct engine *engine, int64_t rows, float *logits) {
    return model_step_logits(engine->runner, rows, logits);
}

int engine_step(struct engine *engine, const struct engine_row *rows, int64_t count, struct engine_result *results) {
    int status = engine_submit(engine, rows, count);
    return status ? status : engine_collect(engine, results);
}
