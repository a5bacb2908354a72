/* Derivatives of terms (Brzozowski 1964; Owens, Reppy and Turon 2009): the texts that may follow a byte. They are made
 * on demand for each class of bytes that a term does not tell apart, and kept in the term's row. Walks over terms use
 * stacks, never recursion. */
#include "terms-internal.h"

/* ---- classes of bytes ---- */

/* Splits the classes by a set. */
static void split_classes(struct byte_classes *classes, const struct byte_set *set) {
    uint16_t renamed[512]; /* by class, and whether the set has the byte */
    uint32_t count = 0;
    memset(renamed, 0xff, sizeof renamed);
    for (unsigned byte = 0; byte < 256; byte++) {
        uint16_t *name = &renamed[classes->of[byte] * 2 + set_has(set, byte)];
        if (*name == UINT16_MAX) {
            classes->some[count] = (uint8_t)byte;
            *name = (uint16_t)count++;
        }
        classes->of[byte] = (uint8_t)*name;
    }
    classes->count = count;
}

/* Pushes the terms on which a derivative of `one` depends. False is a failure. */
static bool push_parts(struct regexes *regexes, regex one) {
    struct term *term = &regexes->terms[one];
    switch (term->kind) {
    case TERM_JOIN:
        return regexes_push(regexes, term->a) &&
               (!regexes->terms[term->a].accepts_empty || regexes_push(regexes, term->b));
    case TERM_EITHER:
    case TERM_BOTH:
        for (uint32_t i = 0; i < term->b; i++)
            if (!regexes_push(regexes, regexes->lists[term->a + i]))
                return false;
        return true;
    case TERM_NOT:
    case TERM_REPEAT:
        return regexes_push(regexes, term->a);
    default:
        return true;
    }
}

/* Puts the number of the term's classes into *at. */
static bool find_classes(struct regexes *regexes, regex one, uint32_t *at) {
    struct byte_classes classes = {.count = 1};
    size_t base = regexes->scratch_count;
    uint32_t stamp = ++regexes->stamp;
    regexes_push(regexes, one);
    while (regexes->scratch_count > base && regexes_work(regexes)) {
        regex part = regexes->scratch[--regexes->scratch_count];
        struct term *term = &regexes->terms[part];
        if (term->stamp == stamp)
            continue;
        term->stamp = stamp;
        if (term->kind == TERM_SET)
            split_classes(&classes, &regexes->sets[term->a]);
        for (const char *c = "0123456789."; *c && term->kind == TERM_MULTIPLE; c++) {
            struct byte_set set = {{0}};
            set_add(&set, (unsigned char)*c);
            split_classes(&classes, &set);
        }
        push_parts(regexes, part);
    }
    regexes->scratch_count = base;
    uint32_t hash = 2166136261u;
    for (int i = 0; i < 256; i++)
        hash = (hash ^ classes.of[i]) * 16777619u;
    uint32_t *head = &regexes->class_heads[hash % CLASS_BUCKETS];
    for (uint32_t i = *head; i != UNKNOWN; i = regexes->classes[i].next)
        if (!memcmp(regexes->classes[i].of, classes.of, sizeof classes.of)) {
            *at = i;
            return !regexes->status;
        }
    if (!regexes_reserve(regexes, &regexes->classes, &regexes->class_capacity, regexes->class_count + 1,
                         sizeof classes))
        return false;
    *at = (uint32_t)regexes->class_count++;
    classes.next = *head;
    *head = *at;
    regexes->classes[*at] = classes;
    return true;
}

/* Makes the term's row. */
static bool make_row(struct regexes *regexes, regex one) {
    uint32_t classes;
    if (!find_classes(regexes, one, &classes))
        return false;
    uint32_t count = regexes->classes[classes].count;
    if (!regexes_reserve(regexes, &regexes->rows, &regexes->row_capacity, regexes->row_count + count + 1,
                         sizeof *regexes->rows))
        return false;
    regexes->terms[one].row = (uint32_t)regexes->row_count;
    regexes->rows[regexes->row_count++] = classes;
    memset(regexes->rows + regexes->row_count, 0xff, count * sizeof *regexes->rows);
    regexes->row_count += count;
    return true;
}

/* ---- derivatives ---- */

/* The derivative of one term, from those of its parts. */
static regex derive_one(struct regexes *regexes, regex one, uint8_t byte) {
    struct term term = regexes->terms[one];
    size_t base = regexes->scratch_count;
    regex result;
    switch (term.kind) {
    case TERM_ANY:
        return one;
    case TERM_SET:
        return set_has(&regexes->sets[term.a], byte) ? REGEX_EMPTY : REGEX_NOTHING;
    case TERM_MULTIPLE:
        if (byte == '.')
            return one;
        return byte >= '0' && byte <= '9'
                   ? regex_multiple(regexes, term.a, (uint32_t)((term.b * (uint64_t)10 + byte - '0') % term.a))
                   : REGEX_NOTHING;
    case TERM_JOIN:
        result = regex_join(regexes, regexes->terms[term.a].result, term.b);
        return regexes->terms[term.a].accepts_empty ? regex_either(regexes, result, regexes->terms[term.b].result)
                                                    : result;
    case TERM_REPEAT:
        return regex_join(regexes, regexes->terms[term.a].result,
                          regex_repeat(regexes, term.a, term.least ? term.least - 1 : 0,
                                       term.most == REGEX_ENDLESS ? term.most : term.most - 1));
    case TERM_NOT:
        return regex_not(regexes, regexes->terms[term.a].result);
    case TERM_EITHER:
    case TERM_BOTH: {
        for (uint32_t i = 0; i < term.b; i++) {
            regex part = regexes->terms[regexes->lists[term.a + i]].result;
            if (part == REGEX_NOTHING && term.kind == TERM_BOTH) {
                regexes->scratch_count = base;
                return REGEX_NOTHING;
            }
            if (part != REGEX_NOTHING)
                regexes_push(regexes, part);
        }
        size_t count = regexes->scratch_count - base;
        if (count < 2) {
            regexes->scratch_count = base;
            return count ? regexes->scratch[base] : REGEX_NOTHING;
        }
        regex *list = malloc(count * sizeof *list); /* the scratch moves while the list is read */
        if (!list) {
            regexes_fail(regexes, STATUS_MEMORY);
            return REGEX_NOTHING;
        }
        memcpy(list, regexes->scratch + base, count * sizeof *list);
        regexes->scratch_count = base;
        result = term.kind == TERM_EITHER ? regex_any_of(regexes, list, count) : regex_all_of(regexes, list, count);
        free(list);
        return result;
    }
    default:
        return REGEX_NOTHING;
    }
}

/* The derivative, which may be an empty language of another form. */
static regex derive(struct regexes *regexes, regex one, uint8_t byte) {
    size_t base = regexes->scratch_count;
    uint32_t stamp = ++regexes->stamp;
    regexes_push(regexes, one);
    while (regexes->scratch_count > base && regexes_work(regexes)) {
        regex part = regexes->scratch[regexes->scratch_count - 1];
        if (regexes->terms[part].stamp == stamp) {
            regexes->scratch_count--;
            continue;
        }
        size_t before = regexes->scratch_count, kept = before;
        push_parts(regexes, part);
        for (size_t i = before; i < regexes->scratch_count; i++)
            if (regexes->terms[regexes->scratch[i]].stamp != stamp)
                regexes->scratch[kept++] = regexes->scratch[i];
        regexes->scratch_count = kept;
        if (kept > before)
            continue; /* they come first */
        regexes->scratch_count--;
        regex result = derive_one(regexes, part, byte);
        regexes->terms[part].stamp = stamp;
        regexes->terms[part].result = result;
    }
    regexes->scratch_count = base;
    return regexes->status ? REGEX_NOTHING : regexes->terms[one].result;
}

/* The derivative for a class of the term's row, kept there. */
static regex step(struct regexes *regexes, regex one, uint32_t class) {
    uint32_t at = regexes->terms[one].row + 1 + class;
    if (regexes->rows[at] != UNKNOWN)
        return regexes->rows[at];
    uint32_t classes = regexes->rows[regexes->terms[one].row];
    regex after = derive(regexes, one, regexes->classes[classes].some[class]);
    if (!regexes->status)
        regexes->rows[at] = after;
    return after;
}

static uint32_t class_count(const struct regexes *regexes, regex one) {
    return regexes->classes[regexes->rows[regexes->terms[one].row]].count;
}

regex regex_after(struct regexes *regexes, regex one, uint8_t byte) {
    const struct term *term = &regexes->terms[one];
    regex after;
    if (one <= REGEX_EMPTY)
        return REGEX_NOTHING;
    if (term->kind == TERM_SET || (term->kind == TERM_JOIN && regexes->terms[term->a].kind == TERM_SET)) {
        const struct term *head = term->kind == TERM_SET ? term : &regexes->terms[term->a];
        after = !set_has(&regexes->sets[head->a], byte) ? REGEX_NOTHING : term_tail(regexes, one);
        if (regexes->terms[after].life == LIFE_ALIVE)
            return after;
        return regex_is_nothing(regexes, after) ? REGEX_NOTHING : after;
    }
    if (!term->row && !make_row(regexes, one))
        return REGEX_NOTHING;
    uint32_t row = regexes->terms[one].row, class = regexes->classes[regexes->rows[row]].of[byte];
    after = step(regexes, one, class);
    if (regexes->terms[after].life == LIFE_ALIVE)
        return after;
    if (after == REGEX_NOTHING || !regex_is_nothing(regexes, after))
        return after;
    if (!regexes->status)
        regexes->rows[regexes->terms[one].row + 1 + class] = REGEX_NOTHING;
    return REGEX_NOTHING;
}

/* ---- questions about languages ---- */

/* A term that a search has reached, and from where. */
struct reached {
    regex one;
    uint32_t from;
};

bool regex_is_nothing(struct regexes *regexes, regex one) {
    if (regexes->terms[one].life != LIFE_UNKNOWN)
        return regexes->terms[one].life == LIFE_DEAD;
    struct reached *queue = NULL;
    size_t count = 0, capacity = 0;
    uint32_t seen = ++regexes->seen;
    bool is_found = false;
    if (regexes_reserve(regexes, &queue, &capacity, 1, sizeof *queue))
        queue[count++] = (struct reached){one, UNKNOWN};
    regexes->terms[one].seen = seen;
    for (size_t i = 0; i < count && !is_found && regexes_work(regexes); i++) {
        regex from = queue[i].one;
        if (!regexes->terms[from].row && !make_row(regexes, from))
            break;
        for (uint32_t class = 0; class < class_count(regexes, from) && !is_found; class ++) {
            regex after = step(regexes, from, class);
            struct term *term = &regexes->terms[after];
            if (term->life == LIFE_ALIVE) {
                is_found = true;
                for (uint32_t at = (uint32_t)i; at != UNKNOWN; at = queue[at].from)
                    regexes->terms[queue[at].one].life = LIFE_ALIVE;
            } else if (term->life == LIFE_UNKNOWN && term->seen != seen) {
                term->seen = seen;
                if (!regexes_reserve(regexes, &queue, &capacity, count + 1, sizeof *queue))
                    break;
                queue[count++] = (struct reached){after, (uint32_t)i};
            }
        }
    }
    for (size_t i = 0; i < count && !is_found && !regexes->status; i++)
        regexes->terms[queue[i].one].life = LIFE_DEAD;
    free(queue);
    return !is_found;
}

bool regex_matches(struct regexes *regexes, regex one, const void *bytes, size_t length) {
    const uint8_t *at = bytes;
    for (size_t i = 0; i < length && one != REGEX_NOTHING; i++)
        one = regex_after(regexes, one, at[i]);
    return regex_accepts_empty(regexes, one);
}

struct byte_set regex_first(struct regexes *regexes, regex one) {
    struct byte_set set = {0};
    regex head = term_head(regexes, one);
    if (regexes->terms[head].kind == TERM_SET && regexes->terms[term_tail(regexes, one)].life == LIFE_ALIVE)
        return regexes->sets[regexes->terms[head].a];
    for (unsigned byte = 0; byte < 256 && one > REGEX_EMPTY; byte++)
        if (regex_after(regexes, one, (uint8_t)byte) != REGEX_NOTHING)
            set_add(&set, byte);
    return set;
}

/* ---- look-ahead ---- */

/* The near form of one term, from those of its parts. */
static regex near_one(struct regexes *regexes, regex one, uint32_t horizon) {
    struct term term = regexes->terms[one];
    if (term.kind == TERM_JOIN)
        return regex_join(regexes, regexes->terms[term.a].result, regexes->terms[term.b].result);
    if (term.kind == TERM_REPEAT) {
        int32_t most = term.most > (int32_t)horizon ? REGEX_ENDLESS : term.most;
        int32_t least = term.least > (int32_t)horizon ? (int32_t)horizon + 1 : term.least;
        return regex_repeat(regexes, regexes->terms[term.a].result, least, most);
    }
    regex *list = malloc(term.b * sizeof *list); /* a union */
    if (!list) {
        regexes_fail(regexes, STATUS_MEMORY);
        return REGEX_NOTHING;
    }
    for (uint32_t i = 0; i < term.b; i++)
        list[i] = regexes->terms[regexes->lists[term.a + i]].result;
    one = regex_any_of(regexes, list, term.b);
    free(list);
    return one;
}

regex regex_near(struct regexes *regexes, regex one, uint32_t horizon) {
    size_t base = regexes->scratch_count;
    uint32_t stamp = ++regexes->stamp;
    if (regexes->terms[one].largest <= horizon)
        return one;
    regexes_push(regexes, one);
    while (regexes->scratch_count > base && regexes_work(regexes)) {
        regex part = regexes->scratch[regexes->scratch_count - 1];
        struct term *term = &regexes->terms[part];
        if (term->stamp == stamp || term->largest <= horizon) {
            if (term->stamp != stamp)
                term->result = part;
            term->stamp = stamp;
            regexes->scratch_count--;
            continue;
        }
        size_t before = regexes->scratch_count, kept = before;
        if (push_parts(regexes, part) && term->kind == TERM_JOIN)
            regexes_push(regexes, term->b);
        for (size_t i = before; i < regexes->scratch_count; i++)
            if (regexes->terms[regexes->scratch[i]].stamp != stamp)
                regexes->scratch[kept++] = regexes->scratch[i];
        regexes->scratch_count = kept;
        if (kept > before)
            continue;
        regexes->scratch_count--;
        regex result = near_one(regexes, part, horizon);
        regexes->terms[part].stamp = stamp;
        regexes->terms[part].result = result;
    }
    regexes->scratch_count = base;
    return regexes->status ? one : regexes->terms[one].result;
}

/* ---- copies ---- */

/* The copy of one term, from those of its parts. */
static regex import_one(struct regexes *to, struct regexes *from, regex one) {
    struct term term = from->terms[one];
    size_t base = to->scratch_count;
    regex result = REGEX_NOTHING;
    switch (term.kind) {
    case TERM_SET:
        return regex_set(to, &from->sets[term.a]);
    case TERM_MULTIPLE:
        return regex_multiple(to, term.a, term.b);
    case TERM_JOIN:
        return regex_join(to, from->terms[term.a].result, from->terms[term.b].result);
    case TERM_REPEAT:
        return regex_repeat(to, from->terms[term.a].result, term.least, term.most);
    case TERM_EITHER:
        for (uint32_t i = 0; i < term.b; i++)
            regexes_push(to, from->terms[from->lists[term.a + i]].result);
        result = regex_union(to, base);
        return result;
    default:
        return one <= REGEX_ANY ? one : REGEX_NOTHING;
    }
}

regex regex_import(struct regexes *to, struct regexes *from, regex one, size_t largest) {
    size_t base = from->scratch_count, count = 0;
    uint32_t stamp = ++from->stamp;
    regexes_push(from, one);
    while (from->scratch_count > base && !from->status && !to->status && count <= largest) {
        regex part = from->scratch[from->scratch_count - 1];
        struct term *term = &from->terms[part];
        size_t before = from->scratch_count, kept = before;
        if (term->stamp != stamp && push_parts(from, part) && term->kind == TERM_JOIN)
            regexes_push(from, term->b);
        for (size_t i = before; i < from->scratch_count; i++)
            if (from->terms[from->scratch[i]].stamp != stamp)
                from->scratch[kept++] = from->scratch[i];
        from->scratch_count = kept;
        if (kept > before)
            continue;
        from->scratch_count--;
        if (term->stamp == stamp)
            continue;
        regex result = import_one(to, from, part);
        from->terms[part].stamp = stamp;
        from->terms[part].result = result;
        count++;
    }
    from->scratch_count = base;
    return from->status || to->status || count > largest ? REGEX_NOTHING : from->terms[one].result;
}
