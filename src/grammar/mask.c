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

int masks_open(struct masks *masks, const struct grammar_vocabulary *vocabulary, struct automaton *automaton) {
    *masks = (struct masks){.vocabulary = vocabulary, .automaton = automaton};
    masks->places = malloc((vocabulary->longest + 1) * sizeof *masks->places);
    return status_allocated(masks->places);
}

void masks_clear(struct masks *masks) {
    for (size_t i = 0; i < masks->term_slots; i++)
        if (masks->terms[i].term != REGEX_NOTHING) {
            masks->automaton->bytes -=
                (grammar_vocabulary_words(masks->vocabulary) + masks->terms[i].end_count) * sizeof(uint32_t);
            free(masks->terms[i].within);
            free(masks->terms[i].ends);
        }
    masks->automaton->bytes -= masks->term_slots * sizeof *masks->terms;
    free(masks->terms);
    masks->terms = NULL;
    masks->term_count = masks->term_slots = 0;
}

void masks_close(struct masks *masks) {
    if (masks->automaton)
        masks_clear(masks);
    free(masks->places);
    *masks = (struct masks){0};
}

/* ---- of terms ---- */

static struct term_mask *find_slot(struct masks *masks, regex term) {
    size_t slot = term * 0x9e3779b1u % masks->term_slots;
    while (masks->terms[slot].term != REGEX_NOTHING && masks->terms[slot].term != term)
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
            *find_slot(masks, old.terms[i].term) = old.terms[i];
    masks->automaton->bytes -= old.term_slots * sizeof *terms;
    free(old.terms);
    return true;
}

/* Walks the trie with a term. `ends` receives nodes where it accepts, and may have room for none. */
static void walk_term(struct masks *masks, regex term, uint32_t *words, uint32_t *ends, size_t *end_count) {
    const struct grammar_vocabulary *vocabulary = masks->vocabulary;
    struct regexes *regexes = masks->automaton->regexes;
    *end_count = 0;
    masks->places[0] = term;
    for (uint32_t i = 0; i < vocabulary->node_count && regexes_work(regexes);) {
        const struct trie_node *node = &vocabulary->nodes[i];
        regex after = regex_after(regexes, masks->places[node->depth], node->byte);
        if (after == REGEX_NOTHING || regex_is_nothing(regexes, after)) {
            i = node->end;
            continue;
        }
        allow(vocabulary, node->id, words);
        if (node->end > i + 1) {
            masks->places[node->depth + 1] = after;
            if (regex_accepts_empty(regexes, after)) {
                if (ends)
                    ends[*end_count] = i;
                ++*end_count;
            }
        }
        i++;
    }
}

/* Returns the mask of a term; NULL is a failure. */
static const struct term_mask *mask_of_term(struct masks *masks, regex term) {
    struct automaton *automaton = masks->automaton;
    size_t words = grammar_vocabulary_words(masks->vocabulary);
    term = regex_near(automaton->regexes, term, (uint32_t)masks->vocabulary->longest);
    if ((masks->term_count * 2 >= masks->term_slots && !grow_terms(masks)) || automaton->regexes->status)
        return NULL;
    struct term_mask *found = find_slot(masks, term), made = {.term = term};
    if (found->term != REGEX_NOTHING)
        return found;
    made.within = automaton_take(automaton, words * sizeof *made.within);
    if (!made.within)
        return NULL;
    memset(made.within, 0, words * sizeof *made.within);
    walk_term(masks, term, made.within, NULL, &made.end_count);
    made.ends = automaton_take(automaton, made.end_count * sizeof *made.ends);
    if (made.ends)
        walk_term(masks, term, made.within, made.ends, &made.end_count);
    if (!made.ends || automaton->regexes->status) {
        automaton->bytes -= (words + (made.ends ? made.end_count : 0)) * sizeof *made.within;
        free(made.within);
        free(made.ends);
        return NULL;
    }
    masks->term_count++;
    *found = made;
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
    const struct grammar_vocabulary *vocabulary = masks->vocabulary;
    unsigned length = vocabulary->nodes[node].depth + 1u;
    while (vocabulary->nodes[node].id == NO_ID)
        node++; /* a token of the subtree has these bytes */
    const char *bytes = vocabulary->bytes + vocabulary->begins[vocabulary->nodes[node].id];
    for (unsigned i = 0; i < length; i++)
        text = automaton_text(masks->automaton, text, (uint8_t)bytes[i]);
    return text;
}

/* Adds the tokens of an item of many bytes. */
static bool add_wide(struct masks *masks, struct item item, uint32_t *words) {
    const struct grammar_vocabulary *vocabulary = masks->vocabulary;
    struct automaton *automaton = masks->automaton;
    const struct term_mask *own = mask_of_term(masks, item.term);
    uint32_t text = item.text;
    if (!own)
        return false;
    for (size_t i = 0; i < grammar_vocabulary_words(vocabulary); i++)
        words[i] |= own->within[i];
    /* What follows does not depend on a unique text, as long as the token begins no other. */
    item.term = REGEX_EMPTY;
    item.text = 0;
    uint32_t place = automaton_place(automaton, &item, 1);
    for (size_t i = 0; i < own->end_count && place != PLACE_NONE; i++) {
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
    return place != PLACE_NONE;
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
    if (automaton->places[number].mask)
        return automaton->places[number].mask;
    struct place_mask *mask = automaton_take(automaton, bytes);
    if (!mask)
        return NULL;
    memset(mask, 0, bytes);
    mask->bytes = bytes;
    if (!fill_mask(masks, number, mask->words)) {
        automaton->bytes -= bytes;
        free(mask);
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
