/* The parser of calls and reasoning: text, marks in it, and sections of calls. */
#include "call_parser-internal.h"

#include "base/rng.h"
#include "base/utf8.h"

/* ---- opening ---- */

static void set_text(struct literal *literal, const struct tokenizer *tokenizer, const char *text) {
    if (text)
        literal_set(literal, tokenizer, text, strlen(text));
}

/* The same without the white space around it. */
static void set_trimmed(struct literal *literal, const struct tokenizer *tokenizer, const char *text) {
    size_t length = strlen(text);
    while (length && unit_is_space(text[length - 1]))
        length--;
    for (; length && unit_is_space(*text); length--)
        text++;
    literal_set(literal, tokenizer, text, length);
}

/* Divides the text of a call into steps, without its white space. */
static void set_steps(struct call_parser *parser, const char *text) {
    const struct tokenizer *tokenizer = parser->options.tokenizer;
    while (*(text += strspn(text, "\n "))) {
        struct call_step *step = &parser->steps[parser->step_count++];
        size_t length = *text == '%' ? 2 : strcspn(text, "%\n ");
        step->kind = *text == '%' ? text[1] : 'T';
        if (*text != '%')
            literal_set(&step->text, tokenizer, text, length);
        text += length;
    }
}

int call_parser_open(const struct call_parser_options *options, struct call_parser **out) {
    const struct tool_format *format = options->format;
    const struct tokenizer *tokenizer = options->tokenizer;
    struct call_parser *parser = *out = calloc(1, sizeof *parser);
    TRY(status_allocated(parser));
    parser->options = *options;
    parser->is_fresh = true;
    parser->may_think = options->thought == THOUGHT_MAY;
    parser->place = options->thought == THOUGHT_HAS_BEGUN ? IN_THOUGHT : IN_TEXT;
    set_text(&parser->think, tokenizer, THINK_BEGIN);
    set_text(&parser->think_end, tokenizer, THINK_END);
    if (!format)
        return STATUS_OK;
    set_text(&parser->begin, tokenizer, format->begin);
    set_text(&parser->other, tokenizer, format->other);
    set_text(&parser->end, tokenizer, format->end);
    set_trimmed(&parser->more, tokenizer, format->more);
    set_text(&parser->call_id, tokenizer, "[CALL_ID]");
    set_text(&parser->parameter, tokenizer, "<parameter=");
    set_text(&parser->parameter_end, tokenizer, "</parameter>");
    set_steps(parser, format->call);
    return STATUS_OK;
}

/* Forgets a call, and keeps its memory. */
static void clear_call(struct call_parser *parser) {
    struct call_reading *call = &parser->call, kept = *call;
    strbuf_clear(&kept.arguments);
    strbuf_clear(&kept.keys);
    strbuf_clear(&kept.value);
    strbuf_clear(&kept.parameter_key);
    kept.tried.count = 0;
    *call = (struct call_reading){.tried = kept.tried,
                                  .arguments = kept.arguments,
                                  .keys = kept.keys,
                                  .value = kept.value,
                                  .parameter_key = kept.parameter_key};
    parser->is_complete = parser->has_begun = false;
}

void call_parser_close(struct call_parser *parser) {
    if (!parser)
        return;
    strbuf_free(&parser->call.arguments);
    strbuf_free(&parser->call.keys);
    strbuf_free(&parser->call.value);
    strbuf_free(&parser->call.parameter_key);
    strbuf_free(&parser->out);
    strbuf_free(&parser->waiting);
    free(parser->call.tried.items);
    free(parser->held.items);
    free(parser);
}

int64_t call_parser_calls(const struct call_parser *parser) {
    return parser->calls;
}

int64_t call_parser_reasoning_tokens(const struct call_parser *parser) {
    return parser->reasoning_tokens;
}

/* ---- events ---- */

static int tell(struct call_parser *parser, const struct call_event *event) {
    return parser->options.on_event(parser->options.context, event);
}

/* Passes on what was written: whole characters, or all of it. */
static int flush(struct call_parser *parser, bool is_all) {
    struct strbuf *out = &parser->out;
    TRY(strbuf_status(out));
    size_t kept = is_all ? 0 : utf8_unfinished_length((const unsigned char *)strbuf_text(out), out->length);
    size_t length = out->length - kept;
    if (!length)
        return STATUS_OK;
    TRY(tell(parser, &(struct call_event){
                         .kind = parser->writes, .text = out->data, .length = length, .index = parser->calls}));
    memmove(out->data, out->data + length, kept);
    out->length = kept;
    return STATUS_OK;
}

static int write_as(struct call_parser *parser, enum call_event_kind kind) {
    int status = parser->writes == kind ? STATUS_OK : flush(parser, true);
    parser->writes = kind;
    return status;
}

/* The id follows from the seed, the prompt, the choice and the index. */
static void make_id(struct call_parser *parser, char id[TOOL_ID_BYTES]) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    const struct call_parser_options *o = &parser->options;
    int count = o->format->id_bytes ? o->format->id_bytes : 24;
    if (!parser->has_digest) {
        uint64_t digest = digest_bytes(DIGEST_START, &o->choice, sizeof o->choice);
        if (o->prompt)
            digest = digest_bytes(digest, o->prompt->ids, o->prompt->count * sizeof *o->prompt->ids);
        parser->digest = digest;
        parser->has_digest = true;
    }
    char *at = id + snprintf(id, TOOL_ID_BYTES, "%s", o->format->id_bytes ? "" : "call_");
    for (int i = 0; i < count; i++) {
        struct philox words = philox(o->seed, (uint32_t)i, (uint32_t)parser->calls, (uint32_t)parser->digest,
                                     (uint32_t)(parser->digest >> 32));
        *at++ = letters[words.word[0] % 62];
    }
    *at = 0;
}

/* Reports the call's beginning, once, and the arguments that have come. */
static int tell_call(struct call_parser *parser) {
    struct call_reading *call = &parser->call;
    int status = strbuf_status(&call->arguments);
    if (!parser->has_begun) {
        char id[TOOL_ID_BYTES];
        make_id(parser, id);
        THEN(status, write_as(parser, CALL_ARGUMENTS));
        THEN(status,
             tell(parser, &(struct call_event){
                              .kind = CALL_BEGINS, .index = parser->calls, .id = id, .name = call->tool->name}));
        parser->has_begun = true;
        parser->held.count = 0;
    }
    strbuf_add(&parser->out, strbuf_text(&call->arguments), call->arguments.length);
    strbuf_clear(&call->arguments);
    return status ? status : strbuf_status(&parser->out);
}

static int end_call(struct call_parser *parser) {
    int status = tell_call(parser);
    THEN(status, flush(parser, true));
    THEN(status, tell(parser, &(struct call_event){.kind = CALL_ENDS, .index = parser->calls}));
    parser->calls++;
    clear_call(parser);
    parser->is_fresh = true;
    return status;
}

/* ---- text ---- */

/* Writes the first `count` held units as text, or as reasoning. */
static int release(struct call_parser *parser, size_t count) {
    struct units *held = &parser->held;
    TRY(write_as(parser, parser->place == IN_THOUGHT ? CALL_REASONING : CALL_TEXT));
    for (size_t i = 0; i < count; i++)
        unit_add_bytes(parser, held->items[i], &parser->out);
    if (held->count > count)
        memmove(held->items, held->items + count, (held->count - count) * sizeof *held->items);
    held->count -= count;
    parser->spaces = 0;
    if (count)
        parser->is_fresh = parser->may_think = parser->has_thought = false;
    return strbuf_status(&parser->out);
}

static void begin_section(struct call_parser *parser, bool is_other) {
    parser->place = IN_CALL;
    parser->is_other = is_other;
    parser->is_list = parser->has_list = false;
    clear_call(parser);
}

static void end_section(struct call_parser *parser) {
    parser->place = parser->options.is_single && parser->calls ? OVER : IN_TEXT;
    parser->held.count = parser->spaces = 0;
}

/* Compares the units after the white space with all marks that may come; acts on one that is whole. Returns false when
 * none can begin there. */
static bool match_mark(struct call_parser *parser) {
    const unit *units = parser->held.items + parser->spaces;
    size_t count = parser->held.count - parser->spaces;
    if (parser->place == IN_THOUGHT) {
        int match = literal_match(&parser->think_end, units, count);
        if (match == 2) {
            parser->place = IN_TEXT;
            parser->held.count = parser->spaces = 0;
            parser->is_fresh = parser->has_thought = true;
        }
        return match > 0;
    }
    int think = parser->may_think ? literal_match(&parser->think, units, count) : 0;
    int begin = literal_match(&parser->begin, units, count), other = literal_match(&parser->other, units, count);
    if (think == 2) {
        parser->place = IN_THOUGHT;
        parser->held.count = parser->spaces = 0;
        parser->may_think = false;
        parser->is_fresh = true;
    } else if (begin == 2 || other == 2)
        begin_section(parser, other == 2);
    return think || begin || other;
}

enum { SPACES = 256 };

/* Takes a unit outside of calls. White space is held where a call or the end of the reasoning may follow. */
static int take_text(struct call_parser *parser, unit one) {
    bool is_thought = parser->place == IN_THOUGHT, is_space = unit_is_space(one);
    struct units *held = &parser->held;
    if (is_space && held->count == parser->spaces) {
        if (parser->is_fresh && (is_thought || parser->has_thought))
            return STATUS_OK;
        if ((is_thought || parser->is_fresh) && parser->spaces < SPACES) {
            parser->spaces++;
            return units_add(held, one);
        }
    }
    TRY(units_add(held, one));
    while (held->count > parser->spaces && !match_mark(parser))
        TRY(release(parser, parser->spaces + 1));
    return STATUS_OK;
}

/* True when an answer begins here with a call that has no mark. */
static bool begins_bare(const struct call_parser *parser, unit one) {
    const struct tool_format *format = parser->options.format;
    return format && !*format->begin && parser->place == IN_TEXT && parser->is_fresh && !parser->calls &&
           parser->held.count == parser->spaces && one == '{';
}

/* ---- calls ---- */

static enum taken take_id(struct call_parser *parser, unit one) {
    struct call_reading *call = &parser->call;
    const struct literal *const literals[] = {&parser->steps[call->step + 1].text, &parser->call_id};
    int found;
    if (call->key_length) { /* inside of the id */
        if (unit_is_of_name(one) || unit_is_space(one))
            return TAKEN;
        call->step++;
        return AGAIN;
    }
    enum taken taken = literals_take(call, literals, 2, one, &found);
    call->key_length = found == 1;
    if (found == 0)
        call->step += 2;
    return taken;
}

static enum taken take_step(struct call_parser *parser, unit one) {
    struct call_reading *call = &parser->call;
    const struct call_step *step = &parser->steps[call->step];
    const struct literal *const literals[] = {&step->text};
    enum taken taken;
    int found;
    switch (step->kind) {
    case 'T':
        taken = literals_take(call, literals, 1, one, &found);
        call->step += found == 0;
        return taken;
    case 'N':
        if (!call->name_length && unit_is_space(one))
            return TAKEN;
        taken = name_take(parser, one);
        call->step += taken == AGAIN;
        return taken;
    case 'I':
        return take_id(parser, one);
    case 'O':
        if (one == '[' && call->object == OBJECT_BEGIN && !parser->has_list) {
            parser->is_list = parser->has_list = true;
            return TAKEN;
        }
        taken = object_take(parser, one);
        break;
    case 'P':
        taken = parameters_take(parser, one);
        call->step += call->has_ended; /* its last unit is that of the text after it */
        break;
    default:
        taken = arguments_take(parser, one);
    }
    call->step += call->has_ended;
    call->has_ended = false;
    return taken;
}

/* Returns the text between two calls of a section; an empty one: a section has one call, or a list. */
static const struct literal *text_between(const struct call_parser *parser) {
    static const struct literal none;
    if (parser->options.format->grouping != TOOL_ALL || parser->has_list)
        return &none;
    return parser->more.count ? &parser->more : &parser->steps[0].text;
}

static const struct literal *text_after(const struct call_parser *parser) {
    static const struct literal none;
    return parser->is_other ? &none : &parser->end;
}

/* Reports a complete call; another one follows, or none. */
static enum taken finish(struct call_parser *parser, bool has_next) {
    parser->status = end_call(parser);
    parser->place = IN_CALL;
    if (!has_next || parser->options.is_single)
        end_section(parser);
    return parser->status ? FAILED : TAKEN;
}

/* Takes a unit after a complete call, which is no call before it is followed rightly. */
static enum taken take_after(struct call_parser *parser, unit one) {
    const struct literal *const literals[] = {text_after(parser), text_between(parser)};
    int found;
    if (parser->is_list) {
        if (one != ']')
            return unit_is_space(one) ? TAKEN : one == ',' ? finish(parser, true) : BAD;
        parser->is_list = false;
        return literals[0]->count ? TAKEN : finish(parser, false);
    }
    enum taken taken = literals_take(&parser->call, literals, 2, one, &found);
    if (found >= 0)
        taken = finish(parser, found == 1);
    if (found == 1 && !parser->more.count)
        parser->call.step = 1; /* its first text was this one */
    return taken;
}

/* Ends what is no call: a call that was reported ends, anything else is text. */
static int give_up(struct call_parser *parser) {
    size_t count = parser->held.count;
    parser->place = IN_TEXT;
    if (parser->has_begun)
        return end_call(parser);
    clear_call(parser);
    return release(parser, count);
}

static enum taken take_call(struct call_parser *parser, unit one) {
    enum taken taken = take_step(parser, one);
    if (taken == TAKEN && parser->call.step == parser->step_count) {
        parser->is_complete = true;
        parser->place = AFTER_CALL;
        if (!parser->is_list && !text_after(parser)->count && !text_between(parser)->count)
            return finish(parser, false);
    }
    if (taken == TAKEN && parser->options.is_constrained && !parser->is_other && parser->call.tool &&
        parser->call.has_arguments)
        parser->status = tell_call(parser);
    return parser->status ? FAILED : taken;
}

static int feed(struct call_parser *parser, unit one) {
    for (;;) {
        if (begins_bare(parser, one))
            begin_section(parser, false);
        if (parser->place == OVER)
            return STATUS_OK;
        if (parser->place < IN_CALL)
            return take_text(parser, one);
        enum taken taken = parser->place == IN_CALL ? take_call(parser, one) : take_after(parser, one);
        if (taken == FAILED)
            return parser->status ? parser->status : STATUS_MEMORY;
        if (taken == TAKEN)
            return parser->place < IN_CALL || parser->place == OVER || parser->has_begun
                       ? STATUS_OK
                       : units_add(&parser->held, one);
        if (taken == BAD)
            TRY(give_up(parser));
    }
}

/* ---- a completion ---- */

static int feed_bytes(struct call_parser *parser, const char *bytes, size_t length) {
    int status = STATUS_OK;
    for (size_t i = 0; i < length && !status; i++)
        status = feed(parser, (unsigned char)bytes[i]);
    return status;
}

int call_parser_take(struct call_parser *parser, const struct call_update *update, const struct call_piece *piece) {
    const struct tokenizer *tokenizer = parser->options.tokenizer;
    struct strbuf *waiting = &parser->waiting;
    size_t used = 0;
    strbuf_add(waiting, strbuf_text(&update->text) + piece->begin, piece->length);
    int status = strbuf_status(waiting);
    for (int64_t i = 0; i < piece->token_count && !status; i++) {
        int32_t id = update->tokens[piece->first_token + i].id;
        bool was_thought = parser->place == IN_THOUGHT, is_first = parser->options.is_answer && !parser->has_token;
        size_t length;
        (is_first ? tokenizer_first_bytes : tokenizer_token_bytes)(tokenizer, id, &length);
        size_t given = length < waiting->length - used ? length : waiting->length - used; /* a stop may cut it */
        bool is_mark = given && given == length && tokenizer_is_special(tokenizer, id);
        parser->has_token = true;
        status = is_mark ? feed(parser, UNIT_MARK + id) : feed_bytes(parser, strbuf_text(waiting) + used, given);
        used += given;
        parser->reasoning_tokens += was_thought || parser->place == IN_THOUGHT;
    }
    if (used)
        memmove(waiting->data, waiting->data + used, waiting->length - used);
    waiting->length -= used;
    return status ? status : flush(parser, false);
}

int call_parser_add(struct call_parser *parser, const char *bytes, size_t length) {
    int status = feed_bytes(parser, bytes, length);
    return status ? status : flush(parser, false);
}

int call_parser_end(struct call_parser *parser, bool is_stop) {
    struct units *held = &parser->held;
    int status = feed_bytes(parser, strbuf_text(&parser->waiting), parser->waiting.length);
    bool is_written =
        parser->is_complete || parser->has_begun || (!is_stop && parser->call.tool && parser->call.has_arguments);
    strbuf_clear(&parser->waiting);
    if (!status && (parser->place == IN_CALL || parser->place == AFTER_CALL))
        status = is_written ? end_call(parser) : give_up(parser);
    bool is_dropped = held->count == parser->spaces && (parser->calls || parser->place == IN_THOUGHT);
    THEN_IF(status, !is_dropped, release(parser, held->count));
    THEN(status, flush(parser, true));
    return status;
}
