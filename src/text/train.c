/* Learning the merges: Sennrich et al., "Neural machine translation of rare words with subword units", 2016, as the
 * BpeTrainer of Hugging Face `tokenizers` does it, without recounting.
 *
 * All distinct words lie in one array of symbols, with NO_SYMBOL before, between and after them. A symbol's token is
 * stored at its first place and at its last one (a boundary tag: the left neighbour is found from the place before).
 * Places between them are NO_PLACE. Each pair of tokens has its count and the places where it begins. A merge visits
 * only those places, and skips those that an earlier merge has changed. Its token is new, so the pairs that it makes
 * are new too, and get their places from this single visit.
 *
 * A heap holds pairs by their count at the time of insertion. Counts only fall, so a pair that comes up with an
 * outdated count is inserted again with the true one. */
#include "text-internal.h"

#define NO_SYMBOL UINT32_MAX       /* between words */
#define NO_PLACE  (UINT32_MAX - 1) /* inside a symbol */

struct pair {
    uint64_t key; /* left << 32 | right */
    int64_t count;
    size_t first, places; /* a range of trainer.places */
};

struct heap_entry {
    int64_t count;
    uint64_t key;
    size_t pair;
};

/* One neighbour's part in a merge (a, b) -> z. With `token` x on the left, it concerns the pairs (x, a) and (x, z);
 * with y on the right, (b, y) and (z, y). */
struct side {
    int64_t lost, gained; /* of the old pair, of the new one */
    size_t places;        /* of the new pair */
    size_t pair;          /* the new pair, once it exists */
    bool is_touched;
};

struct visit {
    uint32_t token, place;
};

/* A growing array of visits, and the tokens in them in the order of their first visit. */
struct visits {
    struct visit *items;
    size_t count, capacity;
    uint32_t *touched;
    size_t touched_count;
    struct side *sides; /* by token */
};

struct trainer {
    uint32_t *symbols;
    uint32_t *word_of; /* by place: index of counts->words */
    size_t symbol_count;
    const struct word_counts *counts;

    struct pair *pairs;
    size_t pair_count, pair_capacity;
    size_t *table; /* open addressing: 1 + index into pairs, 0 is empty */
    unsigned table_bits;

    uint32_t *places;
    size_t place_count, place_capacity;

    struct heap_entry *heap;
    size_t heap_count, heap_capacity;

    struct visits left, right;

    struct strbuf bytes; /* of all tokens */
    size_t *starts;      /* vocab + 1 offsets */
    uint32_t vocab, target;
    int32_t *tokens_by_hash; /* open addressing by bytes; -1 is empty */
    unsigned tokens_bits;
    struct merge *merges;
    size_t merge_count;
};

static int out_of_memory(size_t bytes) {
    return status_fail(STATUS_MEMORY, "out of memory for learning merges (%zu bytes)", bytes);
}

static uint32_t token_length(const struct trainer *t, uint32_t token) {
    return (uint32_t)(t->starts[token + 1] - t->starts[token]);
}

/* True when `a` comes before `b`: the larger count, among equals the smaller ids. */
static bool is_before(const struct heap_entry *a, const struct heap_entry *b) {
    return a->count != b->count ? a->count > b->count : a->key < b->key;
}

static int heap_push(struct trainer *t, size_t pair) {
    struct heap_entry entry = {t->pairs[pair].count, t->pairs[pair].key, pair};
    TRY(array_reserve(&t->heap, &t->heap_capacity, t->heap_count + 1, sizeof *t->heap));
    size_t at = t->heap_count++;
    for (; at > 0 && is_before(&entry, &t->heap[(at - 1) / 2]); at = (at - 1) / 2)
        t->heap[at] = t->heap[(at - 1) / 2];
    t->heap[at] = entry;
    return STATUS_OK;
}

static struct heap_entry heap_pop(struct trainer *t) {
    struct heap_entry top = t->heap[0], moved = t->heap[--t->heap_count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= t->heap_count)
            break;
        if (child + 1 < t->heap_count && is_before(&t->heap[child + 1], &t->heap[child]))
            child++;
        if (!is_before(&t->heap[child], &moved))
            break;
        t->heap[at] = t->heap[child];
        at = child;
    }
    t->heap[at] = moved;
    return top;
}

static int enlarge_pair_table(struct trainer *t) {
    unsigned bits = t->table_bits ? t->table_bits + 1 : 16;
    size_t places = (size_t)1 << bits;
    size_t *table = calloc(places, sizeof *table);
    if (!table)
        return out_of_memory(places * sizeof *table);
    for (size_t i = 0; i < t->pair_count; i++) {
        size_t at = text_hash_pair(t->pairs[i].key, bits);
        while (table[at])
            at = (at + 1) & (places - 1);
        table[at] = i + 1;
    }
    free(t->table);
    t->table = table;
    t->table_bits = bits;
    return STATUS_OK;
}

/* Returns the index of a pair, and adds a new one with a count of 0. */
static int find_pair(struct trainer *t, uint32_t left, uint32_t right, size_t *index) {
    uint64_t key = (uint64_t)left << 32 | right;
    if ((t->pair_count + 1) * 2 > (size_t)1 << t->table_bits) {
        TRY(enlarge_pair_table(t));
    }
    size_t mask = ((size_t)1 << t->table_bits) - 1, at = text_hash_pair(key, t->table_bits);
    for (; t->table[at]; at = (at + 1) & mask) {
        *index = t->table[at] - 1;
        if (t->pairs[*index].key == key)
            return STATUS_OK;
    }
    TRY(array_reserve(&t->pairs, &t->pair_capacity, t->pair_count + 1, sizeof *t->pairs));
    *index = t->pair_count;
    t->pairs[t->pair_count++] = (struct pair){.key = key};
    t->table[at] = t->pair_count;
    return STATUS_OK;
}

/* Stores the words as symbols of single bytes. */
static int lay_out_words(struct trainer *t, const uint32_t byte_tokens[256]) {
    const struct word_counts *counts = t->counts;
    t->symbol_count = counts->byte_count + counts->word_count + 1;
    if (t->symbol_count >= NO_PLACE)
        return status_fail(STATUS_UNSUPPORTED, "the distinct words have %zu bytes, more than 4 GB", counts->byte_count);
    t->symbols = malloc(t->symbol_count * sizeof *t->symbols);
    t->word_of = malloc(t->symbol_count * sizeof *t->word_of);
    if (!t->symbols || !t->word_of)
        return out_of_memory(2 * t->symbol_count * sizeof *t->symbols);
    size_t at = 0;
    t->symbols[at++] = NO_SYMBOL;
    for (size_t i = 0; i < counts->word_count; i++) {
        const struct word_count *word = &counts->words[i];
        for (uint32_t j = 0; j < word->length; j++) {
            t->word_of[at] = (uint32_t)i;
            t->symbols[at++] = byte_tokens[counts->bytes[word->start + j]];
        }
        t->symbols[at++] = NO_SYMBOL;
    }
    return STATUS_OK;
}

static bool is_byte_pair(const struct trainer *t, size_t at) {
    return t->symbols[at] != NO_SYMBOL && t->symbols[at + 1] != NO_SYMBOL;
}

/* Counts the pairs of bytes, records their places and inserts them. */
static int count_byte_pairs(struct trainer *t) {
    size_t *firsts = calloc(1 << 16, sizeof *firsts);
    if (!firsts)
        return out_of_memory((1 << 16) * sizeof *firsts);
    size_t total = 0;
    for (size_t at = 0; at + 1 < t->symbol_count; at++)
        if (is_byte_pair(t, at))
            firsts[t->symbols[at] << 8 | t->symbols[at + 1]]++;
    int status = STATUS_OK;
    for (uint32_t pair = 0; !status && pair < 1 << 16; pair++) {
        size_t index, places = firsts[pair];
        firsts[pair] = total;
        if (places == 0)
            continue;
        status = find_pair(t, pair >> 8, pair & 255, &index);
        if (!status)
            t->pairs[index].first = total;
        total += places;
    }
    THEN(status, array_reserve(&t->places, &t->place_capacity, total + 1, sizeof *t->places));
    for (size_t at = 0; !status && at + 1 < t->symbol_count; at++) {
        if (!is_byte_pair(t, at))
            continue;
        size_t index;
        status = find_pair(t, t->symbols[at], t->symbols[at + 1], &index);
        t->pairs[index].count += t->counts->words[t->word_of[at]].count;
        t->pairs[index].places++;
        t->places[firsts[t->symbols[at] << 8 | t->symbols[at + 1]]++] = (uint32_t)at;
    }
    t->place_count = total;
    for (size_t i = 0; !status && i < t->pair_count; i++)
        status = heap_push(t, i);
    free(firsts);
    return status;
}

static struct side *touch(struct visits *visits, uint32_t token) {
    struct side *side = &visits->sides[token];
    if (!side->is_touched) {
        side->is_touched = true;
        visits->touched[visits->touched_count++] = token;
    }
    return side;
}

/* Adds `count` to the pair that a merge made with the neighbour `token`, beginning at `place`. */
static int gain(struct visits *visits, uint32_t token, uint32_t place, int64_t count) {
    TRY(array_reserve(&visits->items, &visits->capacity, visits->count + 1, sizeof *visits->items));
    visits->items[visits->count++] = (struct visit){token, place};
    struct side *side = touch(visits, token);
    side->gained += count;
    side->places++;
    return STATUS_OK;
}

/* Merges one place of the pair (a, b) into z and records the changes on both sides. */
static int merge_place(struct trainer *t, uint32_t at, uint32_t a, uint32_t b, uint32_t z) {
    uint32_t middle = at + token_length(t, a), last = middle + token_length(t, b) - 1;
    uint32_t x = t->symbols[at - 1], y = t->symbols[last + 1];
    int64_t count = t->counts->words[t->word_of[at]].count;
    t->symbols[middle - 1] = NO_PLACE;
    t->symbols[middle] = NO_PLACE;
    t->symbols[at] = z;
    t->symbols[last] = z;
    int status = STATUS_OK;
    if (x != NO_SYMBOL) {
        touch(&t->left, x)->lost += count;
        status = gain(&t->left, x, at - token_length(t, x), count);
    }
    if (!status && y != NO_SYMBOL) {
        touch(&t->right, y)->lost += count;
        status = gain(&t->right, y, at, count);
    }
    return status;
}

/* Makes room for more places of the pair, after t->places. A pair can have places already only when two pairs spell the
 * same token; it then moves them along. */
static int open_places(struct trainer *t, struct pair *pair, size_t more) {
    TRY(array_reserve(&t->places, &t->place_capacity, t->place_count + pair->places + more + 1, sizeof *t->places));
    for (size_t i = 0; i < pair->places; i++)
        t->places[t->place_count + i] = t->places[pair->first + i];
    pair->first = t->place_count;
    t->place_count += pair->places + more;
    return STATUS_OK;
}

/* Updates the counts of one side, stores the places of its new pairs and inserts them. `old` is the token of the merged
 * pair on this side, `z` the new one. */
static int settle(struct trainer *t, struct visits *visits, bool is_left, uint32_t old, uint32_t z) {
    for (size_t i = 0; i < visits->touched_count; i++) {
        uint32_t token = visits->touched[i];
        struct side *side = &visits->sides[token];
        size_t lost;
        int status = STATUS_OK;
        if (side->lost) {
            status = find_pair(t, is_left ? token : old, is_left ? old : token, &lost);
            if (!status)
                t->pairs[lost].count -= side->lost;
        }
        THEN(status, find_pair(t, is_left ? token : z, is_left ? z : token, &side->pair));
        THEN(status, open_places(t, &t->pairs[side->pair], side->places));
        TRY(status);
        t->pairs[side->pair].count += side->gained;
        if (t->pairs[side->pair].count > 0)
            status = heap_push(t, side->pair);
        TRY(status);
    }
    for (size_t i = 0; i < visits->count; i++) {
        struct pair *made = &t->pairs[visits->sides[visits->items[i].token].pair];
        t->places[made->first + made->places++] = visits->items[i].place;
    }
    for (size_t i = 0; i < visits->touched_count; i++)
        visits->sides[visits->touched[i]] = (struct side){0};
    visits->count = visits->touched_count = 0;
    return STATUS_OK;
}

static int merge_everywhere(struct trainer *t, size_t pair, uint32_t z) {
    uint32_t a = (uint32_t)(t->pairs[pair].key >> 32), b = (uint32_t)t->pairs[pair].key;
    const uint32_t *places = t->places + t->pairs[pair].first;
    size_t count = t->pairs[pair].places;
    int status = STATUS_OK;
    for (size_t i = 0; !status && i < count; i++)
        if (t->symbols[places[i]] == a && t->symbols[places[i] + token_length(t, a)] == b)
            status = merge_place(t, places[i], a, b, z);
    THEN(status, settle(t, &t->left, true, a, z));
    THEN(status, settle(t, &t->right, false, b, z));
    if (!status)
        t->pairs[pair].count = 0;
    return status;
}

/* Returns the token with the joined bytes of two tokens: a new one, or, as in `tokenizers`, the existing one when two
 * pairs spell the same. */
static int join_tokens(struct trainer *t, uint32_t a, uint32_t b, uint32_t *joined) {
    size_t length = token_length(t, a) + (size_t)token_length(t, b), start = t->bytes.length;
    TRY(strbuf_reserve(&t->bytes, length));
    strbuf_add(&t->bytes, t->bytes.data + t->starts[a], token_length(t, a));
    strbuf_add(&t->bytes, t->bytes.data + t->starts[b], token_length(t, b));
    size_t mask = ((size_t)1 << t->tokens_bits) - 1;
    size_t at = text_hash_bytes(t->bytes.data + start, length) >> (64 - t->tokens_bits);
    for (; t->tokens_by_hash[at] >= 0; at = (at + 1) & mask) {
        *joined = (uint32_t)t->tokens_by_hash[at];
        if (token_length(t, *joined) == length &&
            !memcmp(t->bytes.data + t->starts[*joined], t->bytes.data + start, length)) {
            t->bytes.length = start;
            return STATUS_OK;
        }
    }
    *joined = t->vocab++;
    t->tokens_by_hash[at] = (int32_t)*joined;
    t->starts[t->vocab] = t->bytes.length;
    return STATUS_OK;
}

static int learn(struct trainer *t, int64_t min_frequency) {
    struct progress progress;
    int status = STATUS_OK;
    progress_begin(&progress, "learning merges", t->target);
    while (!status && t->vocab < t->target && t->merge_count < t->target && t->heap_count > 0) {
        struct heap_entry top = heap_pop(t);
        int64_t count = t->pairs[top.pair].count;
        if (count != top.count) {
            status = count > 0 ? heap_push(t, top.pair) : STATUS_OK;
            continue;
        }
        if (count < min_frequency)
            break;
        uint32_t a = (uint32_t)(top.key >> 32), b = (uint32_t)top.key, joined = 0;
        status = join_tokens(t, a, b, &joined);
        if (!status) {
            t->merges[t->merge_count++] = (struct merge){(int32_t)a, (int32_t)b, (int32_t)joined};
            status = merge_everywhere(t, top.pair, joined);
        }
        progress_update(&progress, t->vocab, "%u tokens", t->vocab);
    }
    progress_end(&progress);
    return status;
}

static void trainer_free(struct trainer *t) {
    free(t->symbols);
    free(t->word_of);
    free(t->pairs);
    free(t->table);
    free(t->places);
    free(t->heap);
    free(t->left.items);
    free(t->left.touched);
    free(t->left.sides);
    free(t->right.items);
    free(t->right.touched);
    free(t->right.sides);
    strbuf_free(&t->bytes);
    free(t->starts);
    free(t->tokens_by_hash);
    free(t->merges);
}

/* Allocates everything whose size follows from the vocabulary's, and makes the 256 tokens of single bytes in GPT-2's
 * order. */
static int trainer_init(struct trainer *t, const struct word_counts *counts, uint32_t target,
                        uint32_t byte_tokens[256]) {
    *t = (struct trainer){.counts = counts, .target = target, .vocab = 256, .tokens_bits = 4};
    while ((size_t)1 << t->tokens_bits < 2 * (size_t)target)
        t->tokens_bits++;
    t->starts = calloc((size_t)target + 1, sizeof *t->starts);
    t->merges = calloc(target, sizeof *t->merges);
    t->tokens_by_hash = malloc(sizeof *t->tokens_by_hash << t->tokens_bits);
    struct visits *sides[] = {&t->left, &t->right};
    for (int i = 0; i < 2; i++) {
        sides[i]->sides = calloc(target, sizeof *sides[i]->sides);
        sides[i]->touched = calloc(target, sizeof *sides[i]->touched);
        if (!sides[i]->sides || !sides[i]->touched)
            return out_of_memory(target * sizeof *sides[i]->sides);
    }
    if (!t->starts || !t->merges || !t->tokens_by_hash)
        return out_of_memory(target * sizeof *t->starts);
    memset(t->tokens_by_hash, 0xff, sizeof *t->tokens_by_hash << t->tokens_bits);
    for (uint32_t token = 0; token < 256; token++) {
        unsigned char byte = byte_alphabet_ranked((int)token);
        byte_tokens[byte] = token;
        strbuf_add_char(&t->bytes, (char)byte);
        t->starts[token + 1] = t->bytes.length;
    }
    return strbuf_status(&t->bytes);
}

/* Makes a tokenizer from the result, with <|endoftext|> as its last token. */
static int trainer_finish(struct trainer *t, struct tokenizer **tokenizer) {
    struct token_source *tokens = calloc((size_t)t->vocab + 1, sizeof *tokens);
    if (!tokens)
        return out_of_memory(((size_t)t->vocab + 1) * sizeof *tokens);
    for (uint32_t i = 0; i < t->vocab; i++)
        tokens[i] = (struct token_source){.bytes = t->bytes.data + t->starts[i], .length = token_length(t, i)};
    tokens[t->vocab] =
        (struct token_source){.bytes = END_OF_TEXT, .length = strlen(END_OF_TEXT), .kind = TOKEN_ADDED | TOKEN_SPECIAL};
    struct tokenizer *made = NULL;
    int status = tokenizer_new(tokens, (int32_t)t->vocab + 1, &(struct tokenizer_rules){0}, &made);
    free(tokens);
    TRY(status);
    status = tokenizer_set_merges(made, t->merges, t->merge_count);
    t->merges = NULL;
    if (status) {
        tokenizer_close(made);
        return status;
    }
    made->roles[ROLE_EOS] = (int32_t)t->vocab;
    *tokenizer = made;
    return STATUS_OK;
}

int tokenizer_train(const struct tokenizer_training *training, struct tokenizer **tokenizer) {
    if (training->vocab_size < 257 || training->vocab_size > TEXT_MAX_VOCAB)
        return status_fail(STATUS_USAGE,
                           "a vocabulary of %lld: 256 bytes and " END_OF_TEXT " need 257, and at most %d are possible",
                           (long long)training->vocab_size, TEXT_MAX_VOCAB);
    struct word_counts counts = {0};
    struct trainer trainer = {0};
    uint32_t byte_tokens[256];
    int status = word_counts_of_files(training->inputs, training->input_count,
                                      training->threads > 0 ? training->threads : usable_cores(), &counts);
    if (!status && counts.word_count == 0)
        status = status_fail(STATUS_INVALID, "no text to learn from: %s%s empty",
                             training->input_count == 1 ? training->inputs[0] : "all input files",
                             training->input_count == 1 ? " is" : " are");
    THEN(status, trainer_init(&trainer, &counts, (uint32_t)training->vocab_size - 1, byte_tokens));
    THEN(status, lay_out_words(&trainer, byte_tokens));
    THEN(status, count_byte_pairs(&trainer));
    THEN(status, learn(&trainer, training->min_frequency > 1 ? training->min_frequency : 1));
    THEN(status, trainer_finish(&trainer, tokenizer));
    trainer_free(&trainer);
    word_counts_free(&counts);
    return status;
}
