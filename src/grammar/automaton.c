#include "automaton-internal.h"

#include "base/base.h"

#include <malloc.h>

enum { FIRST_BUCKETS = 1 << 8, FIRST_SEEN = 1 << 6 };

static bool fail(struct automaton *automaton, int status) {
    if (!automaton->status)
        automaton->status = status;
    return false;
}

static bool is_well(struct automaton *automaton) {
    return !automaton->status && (regexes_work(automaton->regexes) || fail(automaton, automaton->regexes->status));
}

/* The bytes of an allocation, with those of the allocator. */
static size_t held(void *memory) {
    return memory ? malloc_usable_size(memory) + sizeof(size_t) : 0;
}

void *automaton_take(struct automaton *automaton, size_t bytes) {
    if (automaton->status)
        return NULL;
    void *memory = automaton->bytes + bytes > automaton->limit ? NULL : malloc(bytes);
    if (!memory)
        fail(automaton, automaton->bytes + bytes > automaton->limit ? STATUS_UNSUPPORTED : STATUS_MEMORY);
    else
        automaton->bytes += held(memory);
    return memory;
}

void automaton_keep(struct automaton *automaton, void *memory) {
    automaton->bytes += held(memory);
}

void automaton_give(struct automaton *automaton, void *memory) {
    automaton->bytes -= held(memory);
    free(memory);
}

static bool reserve(struct automaton *automaton, void *array, size_t *capacity, size_t needed, size_t element) {
    size_t before = *capacity;
    if (automaton->status || needed <= before)
        return !automaton->status;
    if (automaton->bytes + needed * element > automaton->limit || needed >= UNKNOWN)
        return fail(automaton, STATUS_UNSUPPORTED);
    if (array_reserve(array, capacity, needed, element))
        return fail(automaton, STATUS_MEMORY);
    automaton->bytes += (*capacity - before) * element;
    return true;
}

static struct item *copy_items(struct automaton *automaton, const struct item *items, size_t count) {
    struct item *copy = count ? automaton_take(automaton, count * sizeof *items) : NULL;
    if (copy)
        memcpy(copy, items, count * sizeof *items);
    return copy;
}

int automaton_status(const struct automaton *automaton) {
    if (automaton->status == STATUS_MEMORY)
        return status_no_memory();
    return automaton->status ? status_fail(automaton->status, "too large: it takes too much time or memory")
                             : STATUS_OK;
}

void automaton_resume(struct automaton *automaton, double deadline) {
    automaton->status = STATUS_OK;
    regexes_resume(automaton->regexes, deadline);
}

/* ---- places ---- */

static int by_fields(const void *left, const void *right) {
    return memcmp(left, right, sizeof(struct item));
}

static uint64_t hash_of(const struct item *items, size_t count) {
    const uint32_t *words = (const uint32_t *)items;
    uint64_t hash = count;
    for (size_t i = 0; i < count * (sizeof *items / sizeof *words); i++) {
        hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return hash;
}

static bool rehash(struct automaton *automaton) {
    size_t count = automaton->bucket_count ? automaton->bucket_count * 2 : FIRST_BUCKETS;
    uint32_t *buckets = automaton_take(automaton, count * sizeof *buckets);
    if (!buckets)
        return false;
    automaton_give(automaton, automaton->buckets);
    automaton->buckets = buckets;
    automaton->bucket_count = count;
    memset(buckets, 0, count * sizeof *buckets);
    for (uint32_t i = PLACE_FIRST; i < automaton->count; i++) {
        struct place *place = &automaton->places[i];
        if (place->is_free)
            continue;
        uint32_t *head = &buckets[hash_of(place->kernel, place->kernel_count) % count];
        place->next = *head;
        *head = i;
    }
    return true;
}

uint32_t automaton_place(struct automaton *automaton, struct item *items, size_t count) {
    size_t kept = 1;
    if (automaton->count >= automaton->bucket_count && !rehash(automaton))
        return PLACE_NONE;
    if (count > 1) {
        qsort(items, count, sizeof *items, by_fields);
        for (size_t i = 1; i < count; i++)
            if (by_fields(&items[i], &items[kept - 1]))
                items[kept++] = items[i];
        count = kept;
    }
    uint32_t *head = &automaton->buckets[hash_of(items, count) % automaton->bucket_count];
    for (uint32_t i = *head; i; i = automaton->places[i].next)
        if (automaton->places[i].kernel_count == count &&
            !memcmp(automaton->places[i].kernel, items, count * sizeof *items))
            return i;
    uint32_t at = automaton->free;
    if (!at &&
        !reserve(automaton, &automaton->places, &automaton->capacity, automaton->count + 1, sizeof(struct place)))
        return PLACE_NONE;
    struct item *kernel = copy_items(automaton, items, count);
    if (count && !kernel)
        return PLACE_NONE;
    if (at)
        automaton->free = automaton->places[at].next;
    else
        at = (uint32_t)automaton->count++;
    automaton->places[at] = (struct place){.kernel = kernel, .kernel_count = (uint32_t)count, .next = *head};
    *head = at;
    for (size_t i = 0; i < count; i++)
        automaton->places[at].has_unique |= items[i].text != 0;
    return at;
}

static void drop_mask(struct automaton *automaton, struct place *place) {
    automaton_give(automaton, place->mask);
    place->mask = NULL;
}

/* Frees what a place has found; its kernel stays. */
static void open_place(struct automaton *automaton, struct place *place) {
    automaton_give(automaton, place->scans);
    automaton_give(automaton, place->calls);
    automaton_give(automaton, place->specials);
    automaton_give(automaton, place->after);
    drop_mask(automaton, place);
    place->scans = place->calls = place->specials = NULL;
    place->scan_count = place->call_count = place->special_count = 0;
    place->after = NULL;
    place->is_closed = false;
}

int automaton_open(const struct rules *rules, struct regexes *regexes, size_t bytes, struct automaton **out) {
    struct automaton *automaton = calloc(1, sizeof *automaton);
    *out = NULL;
    TRY(status_allocated(automaton));
    automaton->program = rules_program(rules);
    automaton->regexes = regexes;
    automaton->limit = bytes;
    automaton->bytes = sizeof *automaton;
    automaton->seen = automaton_take(automaton, FIRST_SEEN * sizeof *automaton->seen);
    automaton->seen_count = automaton->seen ? FIRST_SEEN : 0;
    if (reserve(automaton, &automaton->places, &automaton->capacity, 1, sizeof(struct place)) &&
        reserve(automaton, &automaton->texts, &automaton->text_capacity, 1, sizeof(struct text_link))) {
        automaton->places[0] = (struct place){.is_free = true}; /* PLACE_NONE */
        automaton->count = automaton->text_count = 1;
        automaton_place(automaton, NULL, 0);
    }
    int status = automaton_status(automaton);
    if (status)
        automaton_close(automaton);
    else
        *out = automaton;
    return status;
}

void automaton_close(struct automaton *automaton) {
    if (!automaton)
        return;
    for (size_t i = PLACE_FIRST; i < automaton->count; i++) {
        open_place(automaton, &automaton->places[i]);
        free(automaton->places[i].kernel);
    }
    free(automaton->places);
    free(automaton->buckets);
    free(automaton->texts);
    free(automaton->entries);
    free(automaton->seen);
    free(automaton->fresh);
    free(automaton->way);
    free(automaton);
}

/* ---- texts of unique terminals ---- */

uint32_t automaton_text(struct automaton *automaton, uint32_t before, uint8_t byte) {
    uint32_t *head = &automaton->text_buckets[(before * 31 + byte) % (sizeof automaton->text_buckets / sizeof *head)];
    for (uint32_t i = *head; i; i = automaton->texts[i].next)
        if (automaton->texts[i].before == before && automaton->texts[i].byte == byte)
            return i;
    if (!reserve(automaton, &automaton->texts, &automaton->text_capacity, automaton->text_count + 1,
                 sizeof *automaton->texts))
        return 0;
    automaton->texts[automaton->text_count] = (struct text_link){before, *head, byte};
    return *head = (uint32_t)automaton->text_count++;
}

/* The term of a text's bytes. */
static regex term_of_text(struct automaton *automaton, uint32_t text) {
    regex one = REGEX_EMPTY;
    for (; text && text != UNKNOWN; text = automaton->texts[text].before)
        one = regex_join(automaton->regexes,
                         regex_byte(automaton->regexes, automaton->texts[text].byte, automaton->texts[text].byte), one);
    return one;
}

/* ---- closing ---- */

static bool grow_seen(struct automaton *automaton) {
    size_t count = automaton->seen_count * 2;
    uint32_t *seen = automaton_take(automaton, count * sizeof *seen);
    if (!seen)
        return false;
    automaton_give(automaton, automaton->seen);
    automaton->seen = seen;
    automaton->seen_count = count;
    memset(seen, 0xff, count * sizeof *seen);
    for (size_t i = 0; i < automaton->entry_count; i++) {
        size_t slot = hash_of(&automaton->entries[i], 1) % count;
        while (seen[slot] != UNKNOWN)
            slot = (slot + 1) % count;
        seen[slot] = (uint32_t)i;
    }
    return true;
}

/* Adds an entry unless it is there. */
static void enter(struct automaton *automaton, struct item entry) {
    if (!is_well(automaton) || (automaton->entry_count * 2 >= automaton->seen_count && !grow_seen(automaton)))
        return;
    entry.text = 0;
    size_t slot = hash_of(&entry, 1) % automaton->seen_count;
    for (; automaton->seen[slot] != UNKNOWN; slot = (slot + 1) % automaton->seen_count)
        if (!by_fields(&automaton->entries[automaton->seen[slot]], &entry))
            return;
    if (!reserve(automaton, &automaton->entries, &automaton->entry_capacity, automaton->entry_count + 1, sizeof entry))
        return;
    automaton->seen[slot] = (uint32_t)automaton->entry_count;
    automaton->entries[automaton->entry_count++] = entry;
}

static struct item moved(struct item entry, uint32_t step) {
    entry.step = step;
    return entry;
}

/* Enters the first step of a rule that is called at `place`. */
static void enter_rule(struct automaton *automaton, uint32_t place, const struct item *caller, uint32_t rule) {
    const struct program_rule *called = &automaton->program->rules[rule];
    struct item entry = {.step = called->first, .origin = place, .rule = rule};
    if (!called->is_scope)
        entry.used = entry.before = caller->used;
    enter(automaton, entry);
}

/* If nothing follows the call, the called rule ends as its caller. A scope's texts are not its caller's. */
static bool ends_its_caller(const struct program *program, const struct item *call) {
    const struct step *step = &program->steps[call->step];
    return step->is_last && (!program->rules[step->a].is_scope || program->rules[call->rule].is_scope);
}

static void enter_call(struct automaton *automaton, uint32_t place, const struct item *entry) {
    const struct program *program = automaton->program;
    const struct step *step = &program->steps[entry->step];
    const struct program_rule *called = &program->rules[step->a];
    if (ends_its_caller(program, entry)) {
        struct item inner = moved(*entry, called->first);
        inner.counter = 0;
        inner.term = 0;
        if (called->is_scope)
            inner.used = REGEX_NOTHING;
        enter(automaton, inner);
    } else {
        enter_rule(automaton, place, entry, step->a);
    }
    if (called->is_nullable)
        enter(automaton, moved(*entry, step->next));
}

static void enter_repeat(struct automaton *automaton, const struct item *entry, const struct step *step) {
    if (entry->counter >= step->least)
        enter(automaton, moved(*entry, step->next));
    if (step->most == REGEX_ENDLESS || entry->counter < step->most) {
        struct item round = moved(*entry, step->a);
        round.term = 1;
        enter(automaton, round);
    }
}

/* Counts a round of the repeat; one without a byte adds nothing. */
static void enter_again(struct automaton *automaton, const struct item *entry, const struct step *step) {
    const struct step *repeat = &automaton->program->steps[step->next];
    if (entry->term)
        return;
    struct item next = moved(*entry, step->next);
    if (repeat->most != REGEX_ENDLESS || next.counter < repeat->least)
        next.counter++;
    enter(automaton, next);
}

/* Continues the calls that waited for the rule of a finished entry. */
static void finish(struct automaton *automaton, uint32_t place, const struct item *entry) {
    const struct place *origin = &automaton->places[entry->origin];
    bool is_scope = automaton->program->rules[entry->rule].is_scope;
    if (entry->origin == place)
        return; /* without a byte: callers know what derives the empty text */
    if (entry->origin == PLACE_FIRST && entry->rule == automaton->program->root)
        automaton->places[place].is_complete = true;
    size_t low = 0, high = origin->call_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (automaton->program->steps[origin->calls[middle].step].a < entry->rule)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < origin->call_count && automaton->program->steps[origin->calls[low].step].a == entry->rule; low++) {
        struct item next = origin->calls[low];
        if (!is_scope && next.used != entry->before)
            continue;
        if (!is_scope)
            next.used = entry->used;
        next.term = 0;
        enter(automaton, moved(next, automaton->program->steps[next.step].next));
    }
}

static bool add_fresh(struct automaton *automaton, struct item item) {
    if (!reserve(automaton, &automaton->fresh, &automaton->fresh_capacity, automaton->fresh_count + 1, sizeof item))
        return false;
    automaton->fresh[automaton->fresh_count++] = item;
    return true;
}

/* Adds a terminal that may begin, or an item that may continue. */
static void add_scan(struct automaton *automaton, struct place *place, struct item item) {
    struct byte_set first = regex_first(automaton->regexes, item.term);
    for (int i = 0; i < 4; i++)
        place->live.bits[i] |= first.bits[i];
    if (set_count(&first))
        add_fresh(automaton, item);
}

static void enter_terminal(struct automaton *automaton, struct place *place, const struct item *entry,
                           const struct step *step) {
    struct item item = *entry;
    item.term = step->a;
    if (step->kind == STEP_UNIQUE) {
        item.term = regex_both(automaton->regexes, step->a, regex_not(automaton->regexes, item.used));
        item.text = UNKNOWN;
    } else if (regex_accepts_empty(automaton->regexes, item.term)) {
        enter(automaton, moved(*entry, step->next));
    }
    if (!regex_is_nothing(automaton->regexes, item.term))
        add_scan(automaton, place, item);
}

/* Enters what follows an item of the kernel whose terminal may end here. */
static void enter_item(struct automaton *automaton, const struct item *item) {
    struct item next = moved(*item, automaton->program->steps[item->step].next);
    if (automaton->program->steps[item->step].kind == STEP_UNIQUE)
        next.used = regex_either(automaton->regexes, next.used, term_of_text(automaton, item->text));
    next.term = 0;
    enter(automaton, next);
}

static int by_rule(const void *left, const void *right) {
    const struct item *a = left, *b = right;
    return a->term != b->term ? (a->term < b->term ? -1 : 1) : by_fields(left, right);
}

bool automaton_close_place(struct automaton *automaton, uint32_t number) {
    const struct program *program = automaton->program;
    struct place found = automaton->places[number], *place = &found;
    if (place->is_closed)
        return !automaton->status;
    automaton->entry_count = automaton->fresh_count = 0;
    if (!is_well(automaton))
        return false;
    memset(automaton->seen, 0xff, automaton->seen_count * sizeof *automaton->seen);
    place->live = (struct byte_set){0};
    if (number == PLACE_FIRST) {
        automaton->places[number].is_complete = program->rules[program->root].is_nullable;
        enter_rule(automaton, number, &(struct item){0}, program->root);
    }
    for (uint32_t i = 0; i < place->kernel_count; i++) {
        add_scan(automaton, place, place->kernel[i]);
        if (regex_accepts_empty(automaton->regexes, place->kernel[i].term))
            enter_item(automaton, &place->kernel[i]);
    }
    size_t calls = 0, specials = 0;
    for (size_t i = 0; i < automaton->entry_count && is_well(automaton); i++) {
        struct item entry = automaton->entries[i];
        const struct step *step = &program->steps[entry.step];
        switch ((enum step_kind)step->kind) {
        case STEP_FINISH:
            finish(automaton, number, &entry);
            break;
        case STEP_TERMINAL:
        case STEP_UNIQUE:
            enter_terminal(automaton, place, &entry, step);
            break;
        case STEP_SPECIAL:
            specials++;
            break;
        case STEP_CALL:
            calls += !ends_its_caller(program, &entry);
            enter_call(automaton, number, &entry);
            break;
        case STEP_SPLIT:
            enter(automaton, moved(entry, step->a));
            enter(automaton, moved(entry, step->next));
            break;
        case STEP_REPEAT:
            enter_repeat(automaton, &entry, step);
            break;
        case STEP_AGAIN:
            enter_again(automaton, &entry, step);
            break;
        }
    }
    if (automaton->regexes->status)
        fail(automaton, automaton->regexes->status); /* terms may be missing */
    place->scans = copy_items(automaton, automaton->fresh, automaton->fresh_count);
    place->scan_count = place->scans ? (uint32_t)automaton->fresh_count : 0;
    place->calls = calls ? automaton_take(automaton, calls * sizeof *place->calls) : NULL;
    place->specials = specials ? automaton_take(automaton, specials * sizeof *place->specials) : NULL;
    for (size_t i = 0; i < automaton->entry_count && !automaton->status; i++) {
        struct item *entry = &automaton->entries[i];
        const struct step *step = &program->steps[entry->step];
        if (step->kind == STEP_CALL && !ends_its_caller(program, entry)) {
            entry->term = step->a; /* to sort by */
            place->calls[place->call_count++] = *entry;
        } else if (step->kind == STEP_SPECIAL) {
            place->specials[place->special_count++] = *entry;
        }
    }
    if (place->calls && !automaton->status)
        qsort(place->calls, place->call_count, sizeof *place->calls, by_rule);
    if (automaton->status) {
        place->call_count = (uint32_t)(place->calls ? calls : 0);
        place->special_count = (uint32_t)(place->specials ? specials : 0);
        open_place(automaton, place);
        return false;
    }
    place->is_closed = true;
    place->is_complete = automaton->places[number].is_complete;
    automaton->places[number] = found;
    return true;
}

/* ---- moving ---- */

uint32_t automaton_after(struct automaton *automaton, uint32_t number, uint8_t byte) {
    if (!automaton_close_place(automaton, number) || !set_has(&automaton->places[number].live, byte))
        return PLACE_NONE;
    struct place *place = &automaton->places[number];
    unsigned rank = set_rank(&place->live, byte);
    if (!place->after) {
        size_t bytes = set_count(&place->live) * sizeof *place->after;
        place->after = automaton_take(automaton, bytes);
        if (!place->after)
            return PLACE_NONE;
        memset(place->after, 0xff, bytes);
    }
    if (place->after[rank] != UNKNOWN)
        return place->after[rank];
    automaton->fresh_count = 0;
    for (uint32_t i = 0; i < place->scan_count; i++) {
        struct item item = place->scans[i];
        item.term = regex_after(automaton->regexes, item.term, byte);
        if (item.term == REGEX_NOTHING || regex_is_nothing(automaton->regexes, item.term))
            continue;
        if (item.text)
            item.text = automaton_text(automaton, item.text, byte);
        add_fresh(automaton, item);
    }
    uint32_t next = PLACE_NONE;
    if (!is_well(automaton))
        return PLACE_NONE;
    if (automaton->fresh_count)
        next = automaton_place(automaton, automaton->fresh, automaton->fresh_count);
    if (!automaton->status)
        automaton->places[number].after[rank] = next;
    return next;
}

uint32_t automaton_after_special(struct automaton *automaton, uint32_t number, int32_t id) {
    if (!automaton_close_place(automaton, number))
        return PLACE_NONE;
    const struct place *place = &automaton->places[number];
    automaton->fresh_count = 0;
    for (uint32_t i = 0; i < place->special_count; i++)
        if (automaton->program->steps[place->specials[i].step].a == (uint32_t)id) {
            struct item item = place->specials[i];
            item.term = REGEX_EMPTY;
            add_fresh(automaton, item);
        }
    return automaton->fresh_count && !automaton->status
               ? automaton_place(automaton, automaton->fresh, automaton->fresh_count)
               : PLACE_NONE;
}

/* ---- look-ahead ---- */

/* The first of the counters of a repeat that no text of at most `horizon` bytes tells from this one. Such a text ends
 * the present round, and others that have bytes. */
static int32_t near_counter(const struct program_rule *rule, int32_t counter, uint32_t horizon) {
    int64_t reach = horizon / rule->round + 2;
    if (counter < rule->least)
        return rule->least - counter > reach ? 0 : counter;
    return rule->most != REGEX_ENDLESS && rule->most - counter > reach ? rule->least : counter;
}

static void make_near(struct automaton *automaton, struct item *item, uint32_t horizon) {
    const struct program *program = automaton->program;
    const struct program_rule *rule = &program->rules[program->steps[item->step].rule];
    if (rule->is_repeat)
        item->counter = near_counter(rule, item->counter, horizon);
}

/* A place in whose stead rules were called at this one, whose near place is known: it has the same waiting calls, and
 * nothing else. Rules that end ask for no more of their origin. */
static uint32_t find_caller(struct automaton *automaton, uint32_t number, uint32_t horizon) {
    uint32_t near = automaton->places[number].near;
    if (number == PLACE_FIRST || automaton->places[near].caller || !automaton_close_place(automaton, near))
        return number == PLACE_FIRST ? PLACE_FIRST : automaton->places[near].caller;
    automaton->fresh_count = 0;
    for (uint32_t i = 0; i < automaton->places[near].call_count; i++) {
        struct item call = automaton->places[near].calls[i];
        make_near(automaton, &call, horizon);
        call.origin = call.origin == near ? PLACE_NONE : call.origin; /* the place itself, which has no number yet */
        add_fresh(automaton, call);
    }
    uint32_t caller =
        automaton->status ? PLACE_NONE : automaton_place(automaton, automaton->fresh, automaton->fresh_count);
    struct place *place = &automaton->places[caller];
    if (caller != PLACE_NONE && !place->is_closed) {
        place->calls = copy_items(automaton, place->kernel, place->kernel_count);
        place->call_count = place->calls ? place->kernel_count : 0;
        for (uint32_t i = 0; i < place->call_count; i++)
            if (place->calls[i].origin == PLACE_NONE)
                place->calls[i].origin = caller;
        if (place->calls)
            qsort(place->calls, place->call_count, sizeof *place->calls, by_rule);
        place->is_closed = place->calls != NULL;
    }
    return automaton->status ? PLACE_NONE : (automaton->places[near].caller = caller);
}

/* The near place of one whose origins have theirs. */
static uint32_t find_near(struct automaton *automaton, uint32_t number, uint32_t horizon) {
    bool differs = false;
    uint32_t count = automaton->places[number].kernel_count;
    for (uint32_t i = 0; i < count; i++)
        if (find_caller(automaton, automaton->places[number].kernel[i].origin, horizon) == PLACE_NONE)
            return PLACE_NONE;
    automaton->fresh_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct item item = automaton->places[number].kernel[i];
        make_near(automaton, &item, horizon);
        item.term = regex_near(automaton->regexes, item.term, horizon);
        item.origin = find_caller(automaton, item.origin, horizon);
        differs = differs || by_fields(&item, &automaton->places[number].kernel[i]);
        add_fresh(automaton, item);
    }
    if (!is_well(automaton))
        return PLACE_NONE;
    return differs ? automaton_place(automaton, automaton->fresh, automaton->fresh_count) : number;
}

uint32_t automaton_near(struct automaton *automaton, uint32_t number, uint32_t horizon) {
    size_t depth = 0;
    for (uint32_t at = number; !automaton->places[number].near;) {
        const struct place *place = &automaton->places[at];
        uint32_t i = 0;
        while (i < place->kernel_count && automaton->places[place->kernel[i].origin].near)
            i++;
        if (i < place->kernel_count) {
            if (!reserve(automaton, &automaton->way, &automaton->way_capacity, depth + 1, sizeof at))
                return PLACE_NONE;
            automaton->way[depth++] = at;
            at = place->kernel[i].origin;
            continue;
        }
        uint32_t near = find_near(automaton, at, horizon);
        if (near == PLACE_NONE)
            return PLACE_NONE;
        automaton->places[at].near = automaton->places[near].near = near;
        at = depth ? automaton->way[--depth] : number;
    }
    return automaton->places[number].near;
}

/* ---- sweeping ---- */

/* Marks what places with users need: themselves, and the origins of their items. */
static bool mark_places(struct automaton *automaton) {
    uint32_t *stack = malloc(automaton->count * sizeof *stack);
    size_t depth = 0;
    if (!stack)
        return fail(automaton, STATUS_MEMORY);
    for (uint32_t i = PLACE_FIRST; i < automaton->count; i++) {
        struct place *place = &automaton->places[i];
        place->is_marked = i == PLACE_FIRST || place->users;
        if (place->is_marked)
            stack[depth++] = i;
    }
    while (depth) {
        const struct place *place = &automaton->places[stack[--depth]];
        for (uint32_t i = 0; i < place->kernel_count; i++) {
            struct place *origin = &automaton->places[place->kernel[i].origin];
            if (!origin->is_marked)
                stack[depth++] = place->kernel[i].origin;
            origin->is_marked = true;
        }
    }
    free(stack);
    return true;
}

static void keep_terms(struct automaton *automaton, const struct item *items, size_t count, bool has_terms) {
    for (size_t i = 0; i < count; i++) {
        regexes_sweep_keep(automaton->regexes, items[i].used);
        regexes_sweep_keep(automaton->regexes, items[i].before);
        if (has_terms)
            regexes_sweep_keep(automaton->regexes, items[i].term);
    }
}

static void sweep_terms(struct automaton *automaton) {
    const struct program *program = automaton->program;
    regexes_sweep_begin(automaton->regexes);
    for (size_t i = 0; i < program->step_count; i++)
        if (program->steps[i].kind == STEP_TERMINAL || program->steps[i].kind == STEP_UNIQUE)
            regexes_sweep_keep(automaton->regexes, program->steps[i].a);
    for (uint32_t i = PLACE_FIRST; i < automaton->count; i++) {
        const struct place *place = &automaton->places[i];
        keep_terms(automaton, place->kernel, place->kernel_count, true);
        keep_terms(automaton, place->scans, place->scan_count, true);
        keep_terms(automaton, place->calls, place->call_count, false);
        keep_terms(automaton, place->specials, place->special_count, false);
    }
    regexes_sweep_end(automaton->regexes);
}

void automaton_sweep(struct automaton *automaton) {
    bool has_texts = false;
    if (!mark_places(automaton))
        return;
    memset(automaton->buckets, 0, automaton->bucket_count * sizeof *automaton->buckets);
    automaton->free = 0;
    for (uint32_t i = PLACE_FIRST; i < automaton->count; i++) {
        struct place *place = &automaton->places[i];
        drop_mask(automaton, place);
        automaton_give(automaton, place->after);
        place->after = NULL;
        place->near = place->caller = PLACE_NONE;
        if (place->is_marked) {
            uint32_t *head = &automaton->buckets[hash_of(place->kernel, place->kernel_count) % automaton->bucket_count];
            place->next = *head;
            *head = i;
            has_texts = has_texts || place->has_unique;
            continue;
        }
        open_place(automaton, place);
        automaton_give(automaton, place->kernel);
        *place = (struct place){.is_free = true, .next = automaton->free};
        automaton->free = i;
    }
    if (!has_texts) {
        automaton->text_count = 1;
        memset(automaton->text_buckets, 0, sizeof automaton->text_buckets);
    }
    sweep_terms(automaton);
}
