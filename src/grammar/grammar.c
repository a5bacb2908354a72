#include "mask-internal.h"
#include "readers-internal.h"

#include "base/base.h"
#include "base/clock.h"

#include <pthread.h>
#include <stdatomic.h>

struct grammar {
    atomic_int references;
    void (*on_idle)(void *context);
    void *context;
    atomic_size_t bytes, share;
    pthread_mutex_t lock; /* of all that follows */
    size_t kept;          /* bytes after the last sweep */
    const struct grammar_vocabulary *vocabulary;
    struct rules *rules;
    struct automaton *automaton;
    struct masks masks;
    size_t limit;
};

/* ---- memory ---- */

/* Notes the bytes, which any thread may then read. */
static void measure(struct grammar *grammar) {
    atomic_store_explicit(&grammar->bytes, grammar->automaton->bytes + rules_bytes(grammar->rules),
                          memory_order_relaxed);
}

size_t grammar_bytes(const struct grammar *grammar) {
    return atomic_load_explicit(&grammar->bytes, memory_order_relaxed);
}

void grammar_set_share(struct grammar *grammar, size_t bytes) {
    atomic_store_explicit(&grammar->share, bytes, memory_order_relaxed);
}

/* True when so much is used that caches must leave: of the limits, or of the share, which a sweep could halve. */
static bool is_full(const struct grammar *grammar) {
    const struct automaton *automaton = grammar->automaton;
    size_t bytes = grammar_bytes(grammar);
    return automaton->bytes > automaton->limit / 4 * 3 ||
           regexes_bytes(automaton->regexes) > automaton->regexes->limit / 4 * 3 ||
           (bytes > atomic_load_explicit(&grammar->share, memory_order_relaxed) && bytes > 2 * grammar->kept);
}

/* ---- compiling ---- */

static int read_choice(struct grammar_reading *reading, rule_node *node) {
    const struct grammar_source *source = reading->source;
    struct regexes *regexes = rules_regexes(reading->rules);
    json_error_t error;
    json_t *list;
    if (json_read(source->text, source->length, JSON_DECODE_ANY | JSON_ALLOW_NUL, &list, &error) == STATUS_MEMORY)
        return STATUS_MEMORY;
    size_t count = json_array_size(list);
    regex *texts = count ? malloc(count * sizeof *texts) : NULL;
    int status = STATUS_OK;
    if (!count)
        status = grammar_refuse(reading->report, GRAMMAR_INVALID, "expected a list of texts, at least one");
    else
        status = status_allocated(texts);
    for (size_t i = 0; i < count && !status; i++) {
        const json_t *text = json_array_get(list, i);
        if (!json_is_string(text) || !json_string_length(text))
            status = grammar_refuse(reading->report, GRAMMAR_INVALID, "[%zu]: expected a text that is not empty", i);
        else
            texts[i] = regex_text(regexes, json_string_value(text), json_string_length(text));
    }
    if (!status)
        *node = rule_terminal(reading->rules, regex_any_of(regexes, texts, count));
    free(texts);
    json_decref(list);
    return status;
}

static int read_regex(struct grammar_reading *reading, rule_node *node) {
    regex one;
    TRY(pattern_read(reading->source->text, reading->source->length, false, false, reading, &one));
    *node = rule_terminal(reading->rules, one);
    return STATUS_OK;
}

static int (*const readers[GRAMMAR_KINDS])(struct grammar_reading *reading, rule_node *node) = {
    [GRAMMAR_JSON_SCHEMA] = schema_read, [GRAMMAR_JSON_OBJECT] = schema_read_object,
    [GRAMMAR_REGEX] = read_regex,        [GRAMMAR_CHOICE] = read_choice,
    [GRAMMAR_GBNF] = gbnf_read,          [GRAMMAR_TAG] = tag_read,
    [GRAMMAR_ANSWER] = tag_read,
};

/* Reads the source into rules that end. */
static int read_rules(struct grammar_reading *reading) {
    rule_node node = RULE_NOTHING;
    int status = readers[reading->source->kind](reading, &node);
    if (status && rules_status(reading->rules)) { /* a reader may take a failure for an empty language */
        reading->report->refusal = GRAMMAR_FINE;
        strbuf_clear(&reading->report->message);
        return rules_status(reading->rules);
    }
    TRY(status);
    rule_id root = rule_declare(reading->rules);
    rule_define(reading->rules, root, node);
    if (rule_is_nothing(reading->rules, root) && !rules_status(reading->rules))
        return grammar_refuse(reading->report, GRAMMAR_INVALID, "it allows no text");
    rules_finish(reading->rules, root);
    return rules_status(reading->rules);
}

int grammar_compile(const struct grammar_source *source, const struct grammar_vocabulary *vocabulary,
                    const struct grammar_limits *limits, struct grammar_report *report, struct grammar **out) {
    struct grammar *grammar = calloc(1, sizeof *grammar);
    double deadline = clock_seconds() + limits->seconds;
    *out = NULL;
    TRY(status_allocated(grammar));
    atomic_init(&grammar->references, 1);
    atomic_init(&grammar->share, SIZE_MAX);
    pthread_mutex_init(&grammar->lock, NULL);
    grammar->vocabulary = vocabulary;
    grammar->limit = limits->bytes;
    int status = rules_open(limits->bytes, deadline, &grammar->rules);
    struct grammar_reading reading = {.source = source,
                                      .vocabulary = vocabulary,
                                      .rules = grammar->rules,
                                      .report = report,
                                      .is_compact = source->is_compact,
                                      .is_closed = source->is_closed,
                                      .is_lenient = source->is_lenient};
    snprintf(report->field, sizeof report->field, "%s", source->field ? source->field : "");
    THEN(status, read_rules(&reading));
    THEN(status, automaton_open(grammar->rules, rules_regexes(grammar->rules), limits->bytes / 2, &grammar->automaton));
    THEN(status, masks_open(&grammar->masks, vocabulary, grammar->automaton));
    if (!status && !automaton_close_place(grammar->automaton, PLACE_FIRST))
        status = automaton_status(grammar->automaton);
    if (status == STATUS_UNSUPPORTED && report->refusal == GRAMMAR_FINE)
        status = grammar_refuse(report, GRAMMAR_TOO_LARGE, "it takes over %g s or %zu bytes to compile",
                                limits->seconds, limits->bytes);
    if (status) {
        grammar_release(grammar);
        return status;
    }
    measure(grammar);
    grammar->kept = grammar_bytes(grammar);
    *out = grammar;
    return STATUS_OK;
}

struct grammar *grammar_share(struct grammar *grammar) {
    atomic_fetch_add_explicit(&grammar->references, 1, memory_order_relaxed);
    return grammar;
}

void grammar_watch(struct grammar *grammar, void (*on_idle)(void *context), void *context) {
    grammar->context = context;
    grammar->on_idle = on_idle;
}

bool grammar_is_used(const struct grammar *grammar) {
    return atomic_load_explicit(&grammar->references, memory_order_relaxed) > 1;
}

void grammar_release(struct grammar *grammar) {
    if (!grammar)
        return;
    void (*on_idle)(void *context) = grammar->on_idle;
    void *context = grammar->context;
    int before = atomic_fetch_sub_explicit(&grammar->references, 1, memory_order_acq_rel);
    if (before == 2 && on_idle)
        on_idle(context);
    if (before > 1)
        return;
    masks_close(&grammar->masks);
    automaton_close(grammar->automaton);
    rules_close(grammar->rules);
    pthread_mutex_destroy(&grammar->lock);
    free(grammar);
}

/* ---- states ---- */

/* Locks the grammar for work that may take `seconds`, and makes room where little is left. */
static void enter(struct grammar *grammar, double seconds) {
    pthread_mutex_lock(&grammar->lock);
    struct automaton *automaton = grammar->automaton;
    automaton_resume(automaton, seconds > 0 ? clock_seconds() + seconds : 0);
    if (is_full(grammar)) {
        masks_clear(&grammar->masks);
        automaton_sweep(automaton);
        measure(grammar);
        grammar->kept = grammar_bytes(grammar);
    }
}

/* Unlocks it; returns what has failed. */
static int leave(struct grammar *grammar) {
    int status = automaton_status(grammar->automaton);
    if (!status)
        status = regexes_status(grammar->automaton->regexes);
    measure(grammar);
    pthread_mutex_unlock(&grammar->lock);
    return status;
}

static void stand_on(struct grammar_state *state, uint32_t place) {
    struct automaton *automaton = state->grammar->automaton;
    if (state->place != PLACE_NONE)
        automaton->places[state->place].users--;
    if (place != PLACE_NONE)
        automaton->places[place].users++;
    state->place = place;
}

/* True when only the end may follow. */
static bool is_at_end(struct automaton *automaton, uint32_t number) {
    if (!automaton_close_place(automaton, number))
        return false;
    const struct place *place = &automaton->places[number];
    return place->is_complete && !place->scan_count && !place->special_count;
}

int grammar_begin(struct grammar *grammar, struct grammar_state *state) {
    enter(grammar, 0);
    *state = (struct grammar_state){.grammar = grammar_share(grammar)};
    stand_on(state, PLACE_FIRST);
    state->is_over = is_at_end(grammar->automaton, PLACE_FIRST);
    int status = leave(grammar);
    if (status)
        grammar_end(state);
    return status;
}

void grammar_end(struct grammar_state *state) {
    if (!state->grammar)
        return;
    pthread_mutex_lock(&state->grammar->lock);
    stand_on(state, PLACE_NONE);
    pthread_mutex_unlock(&state->grammar->lock);
    grammar_release(state->grammar);
    *state = (struct grammar_state){0};
}

int grammar_copy(const struct grammar_state *state, struct grammar_state *copy) {
    *copy = *state;
    copy->place = PLACE_NONE;
    grammar_share(state->grammar);
    pthread_mutex_lock(&state->grammar->lock);
    stand_on(copy, state->place);
    pthread_mutex_unlock(&state->grammar->lock);
    return STATUS_OK;
}

int grammar_mask(struct grammar_state *state, double seconds, uint32_t *mask, struct grammar_allowed *allowed) {
    struct grammar *grammar = state->grammar;
    enter(grammar, seconds);
    const struct place_mask *found = masks_of(&grammar->masks, state->place);
    if (found) {
        memcpy(mask, found->words, grammar_vocabulary_words(grammar->vocabulary) * sizeof *mask);
        *allowed = (struct grammar_allowed){found->count, found->only};
    }
    return leave(grammar);
}

int grammar_vocabulary_prepare(const struct grammar_vocabulary *vocabulary) {
    static const char schema[] = "{\"type\":\"string\"}";
    const struct grammar_source source = {.kind = GRAMMAR_JSON_SCHEMA, .text = schema, .length = sizeof schema - 1};
    const struct grammar_limits limits = {.seconds = 60, .bytes = (size_t)1 << 26};
    struct grammar_report report = {0};
    struct grammar *grammar;
    int status = grammar_compile(&source, vocabulary, &limits, &report, &grammar);
    if (!status) {
        enter(grammar, 0);
        uint32_t inside = automaton_after(grammar->automaton, PLACE_FIRST, '"');
        if (inside != PLACE_NONE)
            masks_of(&grammar->masks, inside); /* the vocabulary keeps those of the term */
        status = leave(grammar);
    }
    grammar_release(grammar);
    grammar_report_free(&report);
    return status == STATUS_MEMORY ? status : STATUS_OK; /* a mask that is missing is made when it is needed */
}

int grammar_accept(struct grammar_state *state, int32_t id, size_t *bytes) {
    struct grammar *grammar = state->grammar;
    const struct grammar_vocabulary *vocabulary = grammar->vocabulary;
    bool is_known = id >= 0 && (size_t)id < vocabulary->count, is_end = is_known && vocabulary->kinds[id] == TOKEN_END;
    enter(grammar, 0);
    struct automaton *automaton = grammar->automaton;
    uint32_t place = is_known ? automaton_after_special(automaton, state->place, id) : PLACE_NONE;
    size_t taken = 0;
    if (place == PLACE_NONE && is_known && vocabulary->kinds[id] == TOKEN_PLAIN) {
        size_t length = vocabulary->begins[id + 1] - vocabulary->begins[id];
        const char *text = vocabulary->bytes + vocabulary->begins[id];
        place = length ? state->place : PLACE_NONE;
        for (; taken < length && place != PLACE_NONE; taken++)
            place = automaton_after(automaton, place, (uint8_t)text[taken]);
        taken -= place == PLACE_NONE && length;
    }
    bool is_complete = automaton_close_place(automaton, state->place) && automaton->places[state->place].is_complete;
    bool is_allowed = place != PLACE_NONE || (is_end && is_complete);
    bool is_over = place == PLACE_NONE || is_at_end(automaton, place);
    if (is_allowed && !automaton->status && !automaton->regexes->status) {
        if (place != PLACE_NONE)
            stand_on(state, place);
        state->is_over = is_over;
        state->accepted++;
    }
    TRY(leave(grammar));
    if (is_allowed)
        return STATUS_OK;
    if (bytes)
        *bytes = taken;
    return status_fail(STATUS_INVALID, "token %d is forbidden", (int)id);
}

bool grammar_is_complete(const struct grammar_state *state) {
    enter(state->grammar, 0);
    struct automaton *automaton = state->grammar->automaton;
    bool is_complete = automaton_close_place(automaton, state->place) && automaton->places[state->place].is_complete;
    measure(state->grammar);
    pthread_mutex_unlock(&state->grammar->lock);
    return is_complete;
}
