/* Masks. Where many bytes may follow, a term's own mask gives all tokens that stay in its terminal. It is made once by
 * a walk of the whole trie, and a place adds the tokens that leave the terminal. Where few bytes may follow, a walk
 * with places is short. */
#include "mask-internal.h"

#include "base/base.h"

enum { FEW_BYTES = 32, FIRST_SLOTS = 16 };

static void allow(const struct grammar_vocabulary *vocabulary, int32_t id, uint32_t *words) {
    for (; id != NO_ID; id = vocabulary->same[id])
        words[id / 32] |= (uint32_t)1 << id % 32;
}

/* The bytes down to a node: those of a token of its subtree. */
static const char *path_to(const struct grammar_vocabulary *vocabulary, uint32_t node, unsigned *length) {
    *length = vocabulary->nodes[node].depth + 1u;
    while (vocabulary->nodes[node].id == NO_ID)
        node++;
    return vocabulary->bytes + vocabulary->begins[vocabulary->nodes[node].id];
}

int masks_open(struct masks *masks, const struct grammar_vocabulary *vocabulary, struct automaton *automaton) {
    *masks = (struct masks){.vocabulary = vocabulary, .automaton = automaton};
    masks->places = malloc((vocabulary->longest + 1) * sizeof *masks->places);
    masks->others = malloc((vocabulary->longest + 1) * sizeof *masks->others);
    return status_allocated(masks->places && masks->others);
}

void masks_clear(struct masks *masks) {
    for (size_t i = 0; i < masks->term_slots; i++)
        if (masks->terms[i].term != REGEX_NOTHING) {
            automaton_give(masks->automaton, masks->terms[i].within);
            automaton_give(masks->automaton, masks->terms[i].ends);
        }
    automaton_give(masks->automaton, masks->terms);
    masks->terms = NULL;
    masks->term_count = masks->term_slots = 0;
}

void masks_close(struct masks *masks) {
    if (masks->automaton)
        masks_clear(masks);
    free(masks->places);
    free(masks->others);
    *masks = (struct masks){0};
}

/* ---- of terms ---- */

static struct term_mask *find_slot(struct masks *masks, regex term, bool is_deep) {
    size_t slot = (term * 2 + is_deep) * 0x9e3779b1u % masks->term_slots;
    while (masks->terms[slot].term != REGEX_NOTHING &&
           (masks->terms[slot].term != term || masks->terms[slot].is_deep != is_deep))
        slot = (slot + 1) % masks->term_slots;
    return &masks->terms[slot];
}

static bool grow_terms(struct masks *masks) {
    size_t slots = masks->term_slots ? masks->term_slots * 2 : FIRST_SLOTS;
    struct term_mask *terms = automaton_take(masks->automaton, slots * sizeof *terms);
    if (!terms)
        return false;
    memset(terms, 0, slots * sizeof *terms);
    struct masks old = *masks;
    masks->terms = terms;
    masks->term_slots = slots;
    for (size_t i = 0; i < old.term_slots; i++)
        if (old.terms[i].term != REGEX_NOTHING)
            *find_slot(masks, old.terms[i].term, old.terms[i].is_deep) = old.terms[i];
    automaton_give(masks->automaton, old.terms);
    return true;
}

/* Walks the nodes from `begin` to `end` with a term that has come there. */
static bool walk_term(struct masks *masks, regex term, uint32_t begin, uint32_t end, bool is_deep,
                      struct finding *finding) {
    const struct grammar_vocabulary *vocabulary = masks->vocabulary;
    struct regexes *regexes = masks->automaton->regexes;
    masks->places[begin < end ? vocabulary->nodes[begin].depth : 0] = term;
    for (uint32_t i = begin; i < end;) {
        const struct trie_node *node = &vocabulary->nodes[i];
        regex after = regex_after(regexes, masks->places[node->depth], node->byte);
        if (after == REGEX_NOTHING) {
            if (!regexes_work(regexes))
                return false;
            i = node->end;
            continue;
        }
        allow(vocabulary, node->id, finding->words);
        bool has_more = node->end > i + 1;
        if (has_more && regex_accepts_empty(regexes, after)) {
            if (!regexes_reserve(regexes, &finding->ends, &finding->end_capacity, finding->end_count + 1,
                                 sizeof *finding->ends))
                return false;
            finding->ends[finding->end_count++] = i;
        }
        masks->places[node->depth + 1] = after;
        i = has_more && node->depth == SHALLOW_BYTES - 1 && !is_deep ? node->end : i + 1;
    }
    return !regexes->status;
}

/* The term after the bytes down to a node. */
static regex term_at(struct masks *masks, regex term, uint32_t node) {
    unsigned length;
    const char *bytes = path_to(masks->vocabulary, node, &length);
    for (unsigned i = 0; i < length && term != REGEX_NOTHING; i++)
        term = regex_after(masks->automaton->regexes, term, (uint8_t)bytes[i]);
    return term;
}

/* Takes the subtree of a node out of what another term allows. */
static void forbid(const struct grammar_vocabulary *vocabulary, uint32_t begin, uint32_t end, uint32_t *words) {
    for (uint32_t i = begin; i < end; i++)
        for (int32_t id = vocabulary->nodes[i].id; id != NO_ID; id = vocabulary->same[id])
            words[id / 32] &= ~((uint32_t)1 << id % 32);
}

/* Corrects what a term allows to what it allows without some texts, which is `term`: few nodes lead to these texts. */
static bool walk_difference(struct masks *masks, regex term, regex without, struct finding *finding) {
    const struct grammar_vocabulary *vocabulary = masks->vocabulary;
    struct regexes *regexes = masks->automaton->regexes;
    size_t kept = 0, read = 0;
    masks->places[0] = term;
    masks->others[0] = without;
    for (uint32_t i = 0; i < vocabulary->node_count;) {
        const struct trie_node *node = &vocabulary->nodes[i];
        while (read < finding->end_count && finding->ends[read] < i)
            finding->ends[kept++] = finding->ends[read++];
        regex other = regex_after(regexes, masks->others[node->depth], node->byte);
        if (other == REGEX_NOTHING) {
            if (!regexes_work(regexes))
                return false;
            i = node->end;
            continue;
        }
        regex after = regex_after(regexes, masks->places[node->depth], node->byte);
        if (after == REGEX_NOTHING)
            forbid(vocabulary, i, node->end, finding->words);
        uint32_t gone = after == REGEX_NOTHING ? node->end : regex_accepts_empty(regexes, after) ? i : i + 1;
        while (read < finding->end_count && finding->ends[read] < gone)
            read++;
        masks->places[node->depth + 1] = after;
        masks->others[node->depth + 1] = other;
        i = after == REGEX_NOTHING ? node->end : i + 1;
    }
    while (read < finding->end_count)
        finding->ends[kept++] = finding->ends[read++];
    finding->end_count = kept;
    return !regexes->status;
}

static const struct term_mask *mask_of_term(struct masks *masks, regex term, bool is_deep);

/* Splits an intersection into a complement's texts and the rest. One byte may follow it: (x & ~y)b is xb & ~yb, as
 * only the last byte of a text is b. False: there is no complement. */
static bool split_complement(struct regexes *regexes, regex one, regex *rest, regex *without) {
    struct term term = regexes->terms[one];
    regex list[8], last = REGEX_EMPTY;
    size_t count = 0;
    *without = REGEX_NOTHING;
    if (term.kind == TERM_JOIN && regexes->terms[term.b].kind == TERM_SET) {
        last = term.b;
        term = regexes->terms[term.a];
    }
    if (term.kind != TERM_BOTH || term.b > sizeof list / sizeof *list)
        return false;
    for (uint32_t i = 0; i < term.b; i++) {
        regex part = regexes->lists[term.a + i];
        if (regexes->terms[part].kind == TERM_NOT)
            *without = regexes->terms[part].a;
        else
            list[count++] = part;
    }
    if (*without == REGEX_NOTHING)
        return false;
    *rest = regex_join(regexes, regex_all_of(regexes, list, count), last);
    *without = regex_join(regexes, *without, last);
    return true;
}

/* Finds what a term allows. */
static bool find_mask(struct masks *masks, regex term, bool is_deep, struct finding *finding) {
    const struct grammar_vocabulary *vocabulary = masks->vocabulary;
    struct regexes *regexes = masks->automaton->regexes;
    regex rest, without;
    if (split_complement(regexes, term, &rest, &without)) {
        const struct term_mask *base = mask_of_term(masks, rest, is_deep);
        if (!base || !regexes_reserve(regexes, &finding->ends, &finding->end_capacity, base->end_count + 1,
                                      sizeof *finding->ends))
            return false;
        memcpy(finding->words, base->within, grammar_vocabulary_words(vocabulary) * sizeof *finding->words);
        if (base->end_count)
            memcpy(finding->ends, base->ends, base->end_count * sizeof *finding->ends);
        finding->end_count = base->end_count;
        return walk_difference(masks, term, without, finding);
    }
    if (!is_deep)
        return walk_term(masks, term, 0, (uint32_t)vocabulary->node_count, false, finding);
    for (size_t i = 0; i < vocabulary->deep_count; i++) {
        uint32_t node = vocabulary->deep[i];
        regex after = term_at(masks, term, node);
        if (after != REGEX_NOTHING && !walk_term(masks, after, node + 1, vocabulary->nodes[node].end, true, finding))
            return false;
    }
    return !regexes->status;
}

/* Returns the mask of a term: that of tokens of at most SHALLOW_BYTES, or of the longer ones. NULL is a failure. */
static const struct term_mask *mask_of_term(struct masks *masks, regex term, bool is_deep) {
    struct automaton *automaton = masks->automaton;
    size_t words = grammar_vocabulary_words(masks->vocabulary);
    term = regex_near(automaton->regexes, term, is_deep ? (uint32_t)masks->vocabulary->longest : SHALLOW_BYTES);
    if ((masks->term_count * 2 >= masks->term_slots && !grow_terms(masks)) || automaton->regexes->status)
        return NULL;
    struct term_mask *found = find_slot(masks, term, is_deep);
    if (found->term != REGEX_NOTHING)
        return found;
    struct finding finding = {.words = automaton_take(automaton, words * sizeof *finding.words)};
    if (!finding.words)
        return NULL;
    memset(finding.words, 0, words * sizeof *finding.words);
    bool is_shared = shared_masks_find(masks, term, is_deep, &finding);
    bool is_found = is_shared || find_mask(masks, term, is_deep, &finding);
    if (!is_found || automaton->regexes->status ||
        (masks->term_count * 2 >= masks->term_slots && !grow_terms(masks))) { /* that of the rest may have come */
        automaton_give(automaton, finding.words);
        free(finding.ends);
        return NULL;
    }
    if (!is_shared)
        shared_masks_keep(masks, term, is_deep, &finding);
    automaton_keep(automaton, finding.ends);
    masks->term_count++;
    found = find_slot(masks, term, is_deep);
    *found = (struct term_mask){term, is_deep, finding.words, finding.ends, finding.end_count};
    return found;
}

/* ---- of places ---- */

/* Walks the nodes from `begin` to `end` with places, the first of which is `place`. False: a failure, or a unique text
 * began where `is_open`. */
static bool walk(struct masks *masks, uint32_t place, uint32_t begin, uint32_t end, uint32_t *words, bool is_open) {
    const struct grammar_vocabulary *vocabulary = masks->vocabulary;
    struct automaton *automaton = masks->automaton;
    unsigned base = begin < end ? vocabulary->nodes[begin].depth : 0;
    masks->places[base] = place;
    for (uint32_t i = begin; i < end;) {
        const struct trie_node *node = &vocabulary->nodes[i];
        uint32_t after = automaton_after(automaton, masks->places[node->depth], node->byte);
        if (after == PLACE_NONE) {
            if (automaton->status || automaton->regexes->status)
                return false;
            i = node->end;
            continue;
        }
        if (is_open && automaton->places[after].has_unique)
            return false;
        allow(vocabulary, node->id, words);
        masks->places[node->depth + 1] = after;
        i++;
    }
    return true;
}

/* The text of a unique terminal that has taken the bytes down to a node, too. */
static uint32_t text_at(struct masks *masks, uint32_t text, uint32_t node) {
    unsigned length;
    const char *bytes = path_to(masks->vocabulary, node, &length);
    for (unsigned i = 0; i < length; i++)
        text = automaton_text(masks->automaton, text, (uint8_t)bytes[i]);
    return text;
}

/* Adds the tokens that leave an item's terminal at the nodes of a mask. `place` is that after the terminal, without its
 * unique text: what follows does not depend on it, as long as the token begins no other. */
static bool add_leaving(struct masks *masks, struct item item, uint32_t place, uint32_t text,
                        const struct term_mask *own, uint32_t *words) {
    const struct grammar_vocabulary *vocabulary = masks->vocabulary;
    struct automaton *automaton = masks->automaton;
    for (size_t i = 0; i < own->end_count; i++) {
        uint32_t node = own->ends[i];
        if (walk(masks, place, node + 1, vocabulary->nodes[node].end, words, text))
            continue;
        if (automaton->status || automaton->regexes->status)
            return false;
        item.text = text_at(masks, text, node);
        uint32_t exact = item.text ? automaton_place(automaton, &item, 1) : PLACE_NONE;
        if (exact == PLACE_NONE || !walk(masks, exact, node + 1, vocabulary->nodes[node].end, words, false))
            return false;
    }
    return true;
}

/* Adds the tokens of an item of many bytes. */
static bool add_wide(struct masks *masks, struct item item, uint32_t *words) {
    struct automaton *automaton = masks->automaton;
    uint32_t text = item.text;
    regex term = item.term;
    item.term = REGEX_EMPTY;
    item.text = 0;
    uint32_t place = automaton_place(automaton, &item, 1);
    for (int is_deep = 0; is_deep < 2; is_deep++) {
        const struct term_mask *own = place == PLACE_NONE ? NULL : mask_of_term(masks, term, is_deep);
        if (!own)
            return false;
        for (size_t i = 0; i < grammar_vocabulary_words(masks->vocabulary); i++)
            words[i] |= own->within[i];
        if (!add_leaving(masks, item, place, text, own, words))
            return false;
    }
    return true;
}

static bool fill_mask(struct masks *masks, uint32_t number, uint32_t *words) {
    struct automaton *automaton = masks->automaton;
    const struct grammar_vocabulary *vocabulary = masks->vocabulary;
    if (!automaton_close_place(automaton, number))
        return false;
    uint32_t count = automaton->places[number].scan_count, few = 0;
    struct item *narrow = NULL;
    bool is_wide = set_count(&automaton->places[number].live) > FEW_BYTES, is_well = true;
    if (is_wide) {
        narrow = malloc((count + 1) * sizeof *narrow);
        if (!narrow)
            automaton->status = STATUS_MEMORY;
        for (uint32_t i = 0; i < count && narrow && is_well; i++) {
            struct item item = automaton->places[number].scans[i];
            struct byte_set first = regex_first(automaton->regexes, item.term);
            if (set_count(&first) > FEW_BYTES)
                is_well = add_wide(masks, item, words);
            else
                narrow[few++] = item;
        }
        number = is_well && few ? automaton_place(automaton, narrow, few) : PLACE_NONE;
    }
    is_well = is_well && !automaton->status;
    if (is_well && number != PLACE_NONE)
        is_well = walk(masks, number, 0, (uint32_t)vocabulary->node_count, words, false);
    free(narrow);
    return is_well;
}

const struct place_mask *masks_of(struct masks *masks, uint32_t number) {
    const struct grammar_vocabulary *vocabulary = masks->vocabulary;
    struct automaton *automaton = masks->automaton;
    size_t words = grammar_vocabulary_words(vocabulary), bytes = sizeof(struct place_mask) + words * sizeof(uint32_t);
    number = automaton_near(automaton, number, (uint32_t)vocabulary->longest);
    if (number == PLACE_NONE || automaton->places[number].mask)
        return automaton->places[number].mask;
    struct place_mask *mask = automaton_take(automaton, bytes);
    if (!mask)
        return NULL;
    memset(mask, 0, bytes);
    if (!fill_mask(masks, number, mask->words) || automaton->regexes->status) {
        automaton_give(automaton, mask);
        return NULL;
    }
    const struct place *place = &automaton->places[number];
    for (size_t i = 0; i < vocabulary->end_count && place->is_complete; i++)
        if (vocabulary->ends[i] >= 0 && (size_t)vocabulary->ends[i] < vocabulary->count)
            mask->words[vocabulary->ends[i] / 32] |= (uint32_t)1 << vocabulary->ends[i] % 32;
    for (uint32_t i = 0; i < place->special_count; i++) {
        uint32_t id = automaton->program->steps[place->specials[i].step].a;
        mask->words[id / 32] |= (uint32_t)1 << id % 32;
    }
    mask->only = NO_ID;
    for (size_t i = 0; i < words; i++) {
        if (mask->words[i])
            mask->only = (int32_t)(i * 32) + __builtin_ctz(mask->words[i]);
        mask->count += (size_t)__builtin_popcount(mask->words[i]);
    }
    if (mask->count != 1)
        mask->only = NO_ID;
    return automaton->places[number].mask = mask;
}
