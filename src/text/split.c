/* Splits a text into words by several steps, like the pre-tokenizers of a Sequence: each step splits the pieces of the
 * previous one. */
#include "text-internal.h"

#include "scan-internal.h"

void split_steps_free(struct split_step *steps, size_t count) {
    for (size_t i = 0; i < count; i++) {
        text_regex_close(steps[i].regex);
        free(steps[i].string);
    }
    free(steps);
}

/* A text while it is being split. */
struct splitting {
    const struct tokenizer_rules *rules;
    struct regex_scratch *scratch;
    int (*on_word)(void *context, const unsigned char *word, size_t length);
    void *context;
};

static int split_from(const struct splitting *splitting, size_t step, const unsigned char *bytes, size_t length);

/* A piece that a step has found and not yet passed on: a match, or the text between two matches. */
struct held {
    const unsigned char *bytes; /* in the step's text */
    size_t start, end;
    bool is_there, is_match;
};

static int hand_on(const struct splitting *splitting, size_t step, struct held *held) {
    bool is_empty = !held->is_there || held->start == held->end;
    held->is_there = false;
    return is_empty ? STATUS_OK : split_from(splitting, step + 1, held->bytes + held->start, held->end - held->start);
}

/* True when the piece belongs to the previous one. */
static bool joins(const struct held *before, bool is_match, enum split_behavior behavior) {
    if (!before->is_there)
        return false;
    if (behavior == SPLIT_MERGED_WITH_PREVIOUS)
        return is_match && !before->is_match;
    if (behavior == SPLIT_MERGED_WITH_NEXT)
        return before->is_match && !is_match;
    return behavior == SPLIT_CONTIGUOUS && before->is_match == is_match;
}

static int take_piece(const struct splitting *splitting, size_t step, struct held *held, size_t start, size_t end,
                      bool is_found) {
    enum split_behavior behavior = splitting->rules->steps[step].behavior;
    bool is_match = is_found != splitting->rules->steps[step].is_inverted;
    if (joins(held, is_match, behavior)) {
        held->end = end;
        held->is_match = is_match || behavior == SPLIT_MERGED_WITH_NEXT;
        return behavior == SPLIT_MERGED_WITH_NEXT ? hand_on(splitting, step, held) : STATUS_OK;
    }
    int status = hand_on(splitting, step, held);
    *held = (struct held){held->bytes, start, end, .is_there = !(is_match && behavior == SPLIT_REMOVED), is_match};
    return status;
}

/* Finds the next match of a regular expression like Oniguruma's iterator in Rust: an empty match right after the
 * previous match does not count. */
static int find_regex(const struct splitting *splitting, const struct split_step *step, const unsigned char *bytes,
                      size_t length, size_t *from, bool has_before, size_t *start, size_t *end) {
    size_t before = *from;
    for (;;) {
        if (*from > length)
            return STATUS_NOT_FOUND;
        int status = text_regex_find(step->regex, splitting->scratch, bytes, length, *from, start, end);
        if (status || *end > *start || !has_before || *end != before)
            return status;
        *from += *from < length ? utf8_length(bytes + *from, bytes + length) : 1;
    }
}

static int find_string(const struct split_step *step, const unsigned char *bytes, size_t length, size_t from,
                       size_t *start, size_t *end) {
    size_t wanted = strlen(step->string);
    const unsigned char *found = wanted ? memmem(bytes + from, length - from, step->string, wanted) : NULL;
    if (!found)
        return STATUS_NOT_FOUND;
    *start = (size_t)(found - bytes);
    *end = *start + wanted;
    return STATUS_OK;
}

static int find_digit(const unsigned char *bytes, size_t length, size_t from, size_t *start, size_t *end) {
    size_t step;
    for (; from < length; from += step)
        if (scan_character(bytes + from, bytes + length, &step) == UNICODE_NUMBER) {
            *start = from;
            *end = from + step;
            return STATUS_OK;
        }
    return STATUS_NOT_FOUND;
}

static int split_by_matches(const struct splitting *splitting, size_t number, const unsigned char *bytes,
                            size_t length) {
    const struct split_step *step = &splitting->rules->steps[number];
    struct held held = {.bytes = bytes};
    size_t from = 0, previous = 0, start = 0, end = 0;
    int status = STATUS_OK;
    for (bool has_before = false; !status; has_before = true) {
        int found = step->kind == SPLIT_REGEX
                        ? find_regex(splitting, step, bytes, length, &from, has_before, &start, &end)
                    : step->kind == SPLIT_STRING ? find_string(step, bytes, length, from, &start, &end)
                                                 : find_digit(bytes, length, from, &start, &end);
        if (found == STATUS_NOT_FOUND)
            break;
        TRY(found);
        if (start > previous)
            status = take_piece(splitting, number, &held, previous, start, false);
        THEN(status, take_piece(splitting, number, &held, start, end, true));
        from = previous = end;
    }
    THEN_IF(status, previous < length, take_piece(splitting, number, &held, previous, length, false));
    return status ? status : hand_on(splitting, number, &held);
}

static int split_from(const struct splitting *splitting, size_t step, const unsigned char *bytes, size_t length) {
    if (step == splitting->rules->step_count)
        return splitting->on_word(splitting->context, bytes, length);
    if (splitting->rules->steps[step].kind != SPLIT_PATTERN)
        return split_by_matches(splitting, step, bytes, length);
    const unsigned char *end = bytes + length, *next;
    int status = STATUS_OK;
    for (; !status && bytes < end; bytes = next) {
        next = scan_word(splitting->rules->steps[step].pattern, bytes, end);
        status = split_from(splitting, step + 1, bytes, (size_t)(next - bytes));
    }
    return status;
}

int split_text(const struct tokenizer_rules *rules, struct regex_scratch *scratch, const unsigned char *bytes,
               size_t length, int (*on_word)(void *context, const unsigned char *word, size_t length), void *context) {
    struct splitting splitting = {rules, scratch, on_word, context};
    return length > 0 ? split_from(&splitting, 0, bytes, length) : STATUS_OK;
}
