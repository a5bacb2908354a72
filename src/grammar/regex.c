/* Terms of regular expressions: their constructors, which bring equal languages to one form where that is cheap. They
 * flatten unions and intersections, take common heads out of unions, and never recurse. What follows a byte is
 * regex_walk.c's. */
#include "terms-internal.h"

#include "base/utf8.h"

enum { FIRST_BUCKETS = 1 << 8, WORK_BETWEEN_CLOCKS = 1 << 10 };

bool regexes_fail(struct regexes *regexes, int status) {
    if (!regexes->status)
        regexes->status = status;
    return false;
}

bool regexes_work(struct regexes *regexes) {
    if (++regexes->work % WORK_BETWEEN_CLOCKS == 0 && regexes->deadline && clock_seconds() > regexes->deadline)
        return regexes_fail(regexes, STATUS_UNSUPPORTED);
    return !regexes->status;
}

size_t regexes_bytes(const struct regexes *regexes) {
    return (regexes->count - regexes->free_count) * sizeof *regexes->terms + regexes->bucket_count * sizeof(uint32_t) +
           regexes->set_count * sizeof *regexes->sets + regexes->class_count * sizeof *regexes->classes +
           (regexes->list_count + regexes->row_count + regexes->scratch_count) * sizeof(uint32_t);
}

size_t regexes_held(const struct regexes *regexes) {
    return sizeof *regexes + regexes->capacity * sizeof *regexes->terms + regexes->bucket_count * sizeof(uint32_t) +
           regexes->set_capacity * sizeof *regexes->sets + regexes->class_capacity * sizeof *regexes->classes +
           (regexes->list_capacity + regexes->row_capacity + regexes->scratch_capacity) * sizeof(uint32_t);
}

bool regexes_reserve(struct regexes *regexes, void *array, size_t *capacity, size_t needed, size_t element) {
    if (regexes->status)
        return false;
    if (needed <= *capacity)
        return true;
    if (needed >= UINT32_MAX || regexes_bytes(regexes) > regexes->limit)
        return regexes_fail(regexes, STATUS_UNSUPPORTED);
    return !array_reserve(array, capacity, needed, element) || regexes_fail(regexes, STATUS_MEMORY);
}

bool regexes_push(struct regexes *regexes, uint32_t one) {
    if (!regexes_reserve(regexes, &regexes->scratch, &regexes->scratch_capacity, regexes->scratch_count + 1,
                         sizeof one))
        return false;
    regexes->scratch[regexes->scratch_count++] = one;
    return true;
}

void regexes_resume(struct regexes *regexes, double deadline) {
    regexes->status = STATUS_OK;
    regexes->deadline = deadline;
}

int regexes_status(const struct regexes *regexes) {
    if (regexes->status == STATUS_MEMORY)
        return status_no_memory();
    return regexes->status ? status_fail(regexes->status, "too large: it takes too much time or memory") : STATUS_OK;
}

/* ---- one term for each structure ---- */

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

static bool is_list(const struct term *term) {
    return term->kind == TERM_EITHER || term->kind == TERM_BOTH;
}

static uint64_t term_hash(const struct regexes *regexes, const struct term *term, const uint32_t *list) {
    uint64_t hash = mix(term->kind + 1, (uint64_t)(uint32_t)term->least << 32 | (uint32_t)term->most);
    if (is_list(term))
        for (uint32_t i = 0; i < term->b; i++)
            hash = mix(hash, list[i]);
    else if (term->kind == TERM_SET)
        for (int i = 0; i < 4; i++)
            hash = mix(hash, regexes->sets[term->a].bits[i]);
    else
        hash = mix(hash, (uint64_t)term->a << 32 | term->b);
    return hash;
}

static bool is_equal(const struct regexes *regexes, const struct term *left, const struct term *right,
                     const uint32_t *list) {
    if (left->kind != right->kind || left->b != right->b || left->least != right->least || left->most != right->most)
        return false;
    if (is_list(left))
        return !memcmp(regexes->lists + left->a, list, left->b * sizeof *list);
    if (left->kind == TERM_SET)
        return !memcmp(&regexes->sets[left->a], &regexes->sets[right->a], sizeof *regexes->sets);
    return left->a == right->a;
}

static const uint32_t *list_of(const struct term *term, const uint32_t *lists) {
    return is_list(term) ? lists + term->a : NULL;
}

static bool rehash(struct regexes *regexes) {
    size_t count = regexes->bucket_count ? regexes->bucket_count * 2 : FIRST_BUCKETS;
    if (regexes_bytes(regexes) > regexes->limit)
        return regexes_fail(regexes, STATUS_UNSUPPORTED);
    uint32_t *heads = malloc(count * sizeof *heads);
    if (!heads)
        return regexes_fail(regexes, STATUS_MEMORY);
    free(regexes->heads);
    regexes->heads = heads;
    regexes->bucket_count = count;
    memset(heads, 0xff, count * sizeof *heads);
    for (size_t i = 0; i < regexes->count; i++) {
        struct term *term = &regexes->terms[i];
        if (term->kind == TERM_FREE)
            continue;
        uint32_t *head = &heads[term_hash(regexes, term, list_of(term, regexes->lists)) % count];
        term->next = *head;
        *head = (uint32_t)i;
    }
    return true;
}

/* Returns the term; `list` has its members where it is a list. */
static regex intern(struct regexes *regexes, struct term term, const uint32_t *list) {
    if (!regexes_work(regexes))
        return REGEX_NOTHING;
    if (regexes->count >= regexes->bucket_count && !rehash(regexes))
        return REGEX_NOTHING;
    uint32_t *head = &regexes->heads[term_hash(regexes, &term, list) % regexes->bucket_count];
    for (uint32_t i = *head; i != UNKNOWN; i = regexes->terms[i].next)
        if (is_equal(regexes, &regexes->terms[i], &term, list))
            return i;
    if (is_list(&term)) {
        if (!regexes_reserve(regexes, &regexes->lists, &regexes->list_capacity, regexes->list_count + term.b,
                             sizeof *list))
            return REGEX_NOTHING;
        memcpy(regexes->lists + regexes->list_count, list, term.b * sizeof *list);
        term.a = (uint32_t)regexes->list_count;
        regexes->list_count += term.b;
    }
    uint32_t at = regexes->free;
    if (at) {
        regexes->free = regexes->terms[at].next;
        regexes->free_count--;
    } else {
        if (!regexes_reserve(regexes, &regexes->terms, &regexes->capacity, regexes->count + 1, sizeof term))
            return REGEX_NOTHING;
        at = (uint32_t)regexes->count++;
    }
    term.life = term.kind == TERM_NOTHING ? LIFE_DEAD : term.is_plain || term.accepts_empty ? LIFE_ALIVE : LIFE_UNKNOWN;
    term.next = *head;
    *head = at;
    regexes->terms[at] = term;
    return at;
}

regex regex_set(struct regexes *regexes, const struct byte_set *set) {
    static const struct byte_set none;
    if (!memcmp(set, &none, sizeof none))
        return REGEX_NOTHING;
    if (!regexes_reserve(regexes, &regexes->sets, &regexes->set_capacity, regexes->set_count + 1, sizeof *set))
        return REGEX_NOTHING;
    regexes->sets[regexes->set_count] = *set;
    regex one = intern(
        regexes,
        (struct term){.kind = TERM_SET, .a = (uint32_t)regexes->set_count, .is_plain = true, .is_finite = true}, NULL);
    if (one != REGEX_NOTHING && regexes->terms[one].a == regexes->set_count)
        regexes->set_count++; /* a new one */
    return one;
}

regex regex_multiple(struct regexes *regexes, uint32_t modulus, uint32_t remainder) {
    return intern(
        regexes,
        (struct term){
            .kind = TERM_MULTIPLE, .a = modulus, .b = remainder, .is_plain = true, .accepts_empty = remainder == 0},
        NULL);
}

int regexes_open(size_t bytes, double deadline, struct regexes **out) {
    struct regexes *regexes = calloc(1, sizeof *regexes);
    *out = NULL;
    TRY(status_allocated(regexes));
    regexes->limit = bytes;
    regexes->deadline = deadline;
    memset(regexes->class_heads, 0xff, sizeof regexes->class_heads);
    static const struct term first[] = {
        {.kind = TERM_NOTHING, .is_plain = true, .is_finite = true},
        {.kind = TERM_EMPTY, .is_plain = true, .is_finite = true, .accepts_empty = true},
        {.kind = TERM_ANY, .is_plain = true, .accepts_empty = true},
    };
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        intern(regexes, first[i], NULL);
    if (regexes_reserve(regexes, &regexes->rows, &regexes->row_capacity, 1, sizeof *regexes->rows))
        regexes->row_count = 1; /* row 0 is none */
    if (regexes->status) {
        int status = regexes_status(regexes);
        regexes_close(regexes);
        return status;
    }
    *out = regexes;
    return STATUS_OK;
}

void regexes_close(struct regexes *regexes) {
    if (!regexes)
        return;
    free(regexes->terms);
    free(regexes->heads);
    free(regexes->sets);
    free(regexes->lists);
    free(regexes->rows);
    free(regexes->classes);
    free(regexes->scratch);
    free(regexes);
}

/* ---- concatenation and repetition ---- */

bool regex_accepts_empty(const struct regexes *regexes, regex one) {
    return regexes->terms[one].accepts_empty;
}

static int32_t add_counts(int32_t a, int32_t b) {
    return a == REGEX_ENDLESS || b >= REGEX_ENDLESS - a ? REGEX_ENDLESS : a + b;
}

/* A join whose left side is no join. */
static regex join_one(struct regexes *regexes, regex left, regex right) {
    if (left == REGEX_NOTHING || right == REGEX_NOTHING)
        return REGEX_NOTHING;
    if (left == REGEX_EMPTY)
        return right;
    if (right == REGEX_EMPTY || (left == REGEX_ANY && term_head(regexes, right) == REGEX_ANY))
        return right == REGEX_EMPTY ? left : right;
    struct term l = regexes->terms[left], next = regexes->terms[term_head(regexes, right)];
    if (l.kind == TERM_REPEAT && next.kind == TERM_REPEAT && l.a == next.a &&
        add_counts(l.least, next.least) != REGEX_ENDLESS) { /* x{a,b}x{c,d} */
        regex tail = term_tail(regexes, right);
        left = regex_repeat(regexes, l.a, l.least + next.least, add_counts(l.most, next.most));
        if (tail == REGEX_EMPTY)
            return left;
        l = regexes->terms[left];
        right = tail;
    }
    struct term r = regexes->terms[right];
    return intern(regexes,
                  (struct term){.kind = TERM_JOIN,
                                .a = left,
                                .b = right,
                                .accepts_empty = l.accepts_empty && r.accepts_empty,
                                .is_plain = l.is_plain && r.is_plain,
                                .is_finite = l.is_finite && r.is_finite,
                                .largest = l.largest > r.largest ? l.largest : r.largest},
                  NULL);
}

regex regex_join(struct regexes *regexes, regex left, regex right) {
    size_t base = regexes->scratch_count;
    for (; regexes->terms[left].kind == TERM_JOIN; left = regexes->terms[left].b)
        if (!regexes_push(regexes, regexes->terms[left].a))
            break;
    right = join_one(regexes, left, right);
    while (regexes->scratch_count > base)
        right = join_one(regexes, regexes->scratch[--regexes->scratch_count], right);
    return regexes->status ? REGEX_NOTHING : right;
}

regex regex_sequence(struct regexes *regexes, const regex *list, size_t count) {
    regex one = REGEX_EMPTY;
    while (count-- > 0)
        one = regex_join(regexes, list[count], one);
    return one;
}

regex regex_byte(struct regexes *regexes, uint8_t first, uint8_t last) {
    struct byte_set set = {0};
    for (unsigned byte = first; byte <= last; byte++)
        set_add(&set, byte);
    return regex_set(regexes, &set);
}

regex regex_text(struct regexes *regexes, const void *bytes, size_t length) {
    const unsigned char *text = bytes;
    regex one = REGEX_EMPTY;
    while (length-- > 0 && !regexes->status)
        one = join_one(regexes, regex_byte(regexes, text[length], text[length]), one);
    return one;
}

/* ---- unions ---- */

static int by_head(const void *left, const void *right, void *regexes) {
    regex a = *(const regex *)left, b = *(const regex *)right;
    regex head_a = term_head(regexes, a), head_b = term_head(regexes, b);
    return head_a != head_b ? (head_a < head_b ? -1 : 1) : (a > b) - (a < b);
}

static int by_number(const void *left, const void *right, void *regexes) {
    regex a = *(const regex *)left, b = *(const regex *)right;
    (void)regexes;
    return (a > b) - (a < b);
}

/* Sorts the scratch from `base` on, and drops repeated members. */
static void sort_unique(struct regexes *regexes, size_t base, int (*compare)(const void *, const void *, void *)) {
    regex *list = regexes->scratch + base;
    size_t count = regexes->scratch_count - base, kept = 0;
    if (count < 2)
        return;
    qsort_r(list, count, sizeof *list, compare, regexes);
    for (size_t i = 0; i < count; i++)
        if (!kept || list[kept - 1] != list[i])
            list[kept++] = list[i];
    regexes->scratch_count = base + kept;
}

/* Flattens the members of a union or an intersection that lie from `base` on. Sets of bytes become one. */
static void flatten(struct regexes *regexes, size_t base, enum term_kind kind) {
    struct byte_set set = {0};
    bool has_set = false;
    size_t count = regexes->scratch_count - base;
    if (kind == TERM_BOTH)
        memset(&set, 0xff, sizeof set);
    for (size_t i = 0; i < count; i++) {
        regex member = regexes->scratch[base + i];
        struct term outer = regexes->terms[member];
        for (uint32_t j = 0; j < (outer.kind == kind ? outer.b : 1); j++) {
            regex one = outer.kind == kind ? regexes->lists[outer.a + j] : member;
            struct term term = regexes->terms[one];
            for (int k = 0; k < 4 && term.kind == TERM_SET; k++)
                set.bits[k] = kind == TERM_EITHER ? set.bits[k] | regexes->sets[term.a].bits[k]
                                                  : set.bits[k] & regexes->sets[term.a].bits[k];
            if (term.kind == TERM_SET)
                has_set = true;
            else if (one != (kind == TERM_EITHER ? REGEX_NOTHING : REGEX_ANY))
                regexes_push(regexes, one);
        }
    }
    if (has_set)
        regexes_push(regexes, regex_set(regexes, &set));
    regexes->scratch_count -= count;
    memmove(regexes->scratch + base, regexes->scratch + base + count,
            (regexes->scratch_count - base) * sizeof *regexes->scratch);
}

/* Brings the union from `base` on to its members by head; false when it is all texts. */
static bool begin_union(struct regexes *regexes, size_t base) {
    flatten(regexes, base, TERM_EITHER);
    if (regexes->status)
        return false;
    bool accepts = false;
    for (size_t i = base; i < regexes->scratch_count; i++) {
        regex one = regexes->scratch[i];
        if (one == REGEX_ANY)
            return false;
        accepts = accepts || (one != REGEX_EMPTY && regexes->terms[one].accepts_empty);
    }
    size_t kept = base;
    for (size_t i = base; i < regexes->scratch_count; i++)
        if (regexes->scratch[i] != REGEX_EMPTY || !accepts)
            regexes->scratch[kept++] = regexes->scratch[i];
    regexes->scratch_count = kept;
    sort_unique(regexes, base, by_head);
    return true;
}

/* Joins [a] x and [b] x to [ab] x, and x{a,b} y and x{c,d} y to x{min,max} y where the counts touch. */
static void merge_tails(struct regexes *regexes, size_t base) {
    for (size_t i = base; i < regexes->scratch_count && !regexes->status; i++)
        for (size_t j = i + 1; j < regexes->scratch_count && regexes->scratch_count - base <= 64;) {
            regex left = regexes->scratch[i], right = regexes->scratch[j], merged = REGEX_NOTHING;
            struct term a = regexes->terms[term_head(regexes, left)], b = regexes->terms[term_head(regexes, right)];
            if (term_tail(regexes, left) == term_tail(regexes, right) && a.kind == b.kind) {
                if (a.kind == TERM_SET) {
                    struct byte_set set = regexes->sets[a.a];
                    for (int k = 0; k < 4; k++)
                        set.bits[k] |= regexes->sets[b.a].bits[k];
                    merged = regex_set(regexes, &set);
                } else if (a.kind == TERM_REPEAT && a.a == b.a && a.least <= add_counts(b.most, 1) &&
                           b.least <= add_counts(a.most, 1)) {
                    merged = regex_repeat(regexes, a.a, a.least < b.least ? a.least : b.least,
                                          a.most > b.most ? a.most : b.most);
                }
            }
            if (merged == REGEX_NOTHING) {
                j++;
                continue;
            }
            regexes->scratch[i] = regex_join(regexes, merged, term_tail(regexes, left));
            memmove(regexes->scratch + j, regexes->scratch + j + 1,
                    (--regexes->scratch_count - j) * sizeof *regexes->scratch);
            j = i + 1;
        }
}

/* Ends the list at `base`: one term of the kind. */
static regex end_list(struct regexes *regexes, size_t base, enum term_kind kind) {
    const regex *list = regexes->scratch + base;
    size_t count = regexes->scratch_count - base;
    regexes->scratch_count = base;
    if (regexes->status || !count)
        return kind == TERM_EITHER || regexes->status ? REGEX_NOTHING : REGEX_ANY;
    if (count == 1)
        return list[0];
    struct term term = {.kind = kind,
                        .b = (uint32_t)count,
                        .accepts_empty = kind == TERM_BOTH,
                        .is_plain = kind == TERM_EITHER,
                        .is_finite = kind == TERM_EITHER};
    for (size_t i = 0; i < count; i++) {
        const struct term *one = &regexes->terms[list[i]];
        if (kind == TERM_BOTH) {
            term.accepts_empty = term.accepts_empty && one->accepts_empty;
            term.is_finite = term.is_finite || one->is_finite;
            continue;
        }
        term.accepts_empty = term.accepts_empty || one->accepts_empty;
        term.is_plain = term.is_plain && one->is_plain;
        term.is_finite = term.is_finite && one->is_finite;
        term.largest = term.largest > one->largest ? term.largest : one->largest;
    }
    return intern(regexes, term, list);
}

/* A union under construction: the tails after one head are a union inside of it. */
struct union_frame {
    size_t base, group; /* the next group of members with one head */
};

/* Finds the next group of several members with the frame's head, and pushes their tails. */
static size_t push_tails(struct regexes *regexes, struct union_frame *frame, size_t end) {
    for (; frame->group < end; frame->group++) {
        regex head = term_head(regexes, regexes->scratch[frame->group]);
        size_t members = 1;
        while (frame->group + members < end && term_head(regexes, regexes->scratch[frame->group + members]) == head)
            members++;
        if (members == 1)
            continue;
        for (size_t i = 0; i < members; i++)
            regexes_push(regexes, term_tail(regexes, regexes->scratch[frame->group + i]));
        return members;
    }
    return 0;
}

regex regex_union(struct regexes *regexes, size_t base) {
    struct union_frame *frames = NULL;
    size_t depth = 0, capacity = 0, start = base;
    bool begins = true;
    regex done = REGEX_NOTHING;
    do {
        bool ends = false;
        if (begins) {
            if (!regexes_reserve(regexes, &frames, &capacity, depth + 1, sizeof *frames))
                break;
            frames[depth++] = (struct union_frame){start, start};
            begins = false;
            if (!begin_union(regexes, start)) {
                regexes->scratch_count = start;
                done = REGEX_ANY;
                ends = true;
            }
        }
        struct union_frame *frame = &frames[depth - 1];
        size_t end = regexes->scratch_count, members = ends ? 0 : push_tails(regexes, frame, end);
        if (members) { /* they become one member, which joins their head and the union of their tails */
            regex *at = regexes->scratch + frame->group;
            memmove(at + 1, at + members, (regexes->scratch_count - frame->group - members) * sizeof *at);
            regexes->scratch_count -= members - 1;
            start = regexes->scratch_count - members;
            begins = true;
            continue;
        }
        if (!ends) {
            merge_tails(regexes, frame->base);
            done = end_list(regexes, frame->base, TERM_EITHER);
        }
        if (--depth) {
            frame = &frames[depth - 1];
            regex joined = regex_join(regexes, term_head(regexes, regexes->scratch[frame->group]), done);
            regexes->scratch[frame->group++] = joined;
        }
    } while (depth && !regexes->status);
    free(frames);
    regexes->scratch_count = base;
    return regexes->status ? REGEX_NOTHING : done;
}

regex regex_any_of(struct regexes *regexes, const regex *list, size_t count) {
    size_t base = regexes->scratch_count;
    for (size_t i = 0; i < count; i++)
        regexes_push(regexes, list[i]);
    return regex_union(regexes, base);
}

regex regex_either(struct regexes *regexes, regex left, regex right) {
    if (left == right || right == REGEX_NOTHING)
        return left;
    regex list[2] = {left, right};
    return left == REGEX_NOTHING ? right : regex_any_of(regexes, list, 2);
}

/* ---- repetition ---- */

/* A union without the empty text as its member. */
static regex without_empty(struct regexes *regexes, regex one) {
    struct term term = regexes->terms[one];
    size_t base = regexes->scratch_count;
    if (term.kind != TERM_EITHER)
        return one;
    for (uint32_t i = 0; i < term.b; i++)
        if (regexes->lists[term.a + i] != REGEX_EMPTY)
            regexes_push(regexes, regexes->lists[term.a + i]);
    return end_list(regexes, base, TERM_EITHER);
}

regex regex_repeat(struct regexes *regexes, regex one, int32_t least, int32_t most) {
    if (regexes->terms[one].accepts_empty)
        least = 0;
    one = without_empty(regexes, one);
    struct term term = regexes->terms[one];
    if (least > most || regexes->status)
        return REGEX_NOTHING;
    if (most == 0 || one == REGEX_EMPTY || (one == REGEX_NOTHING && least == 0))
        return REGEX_EMPTY;
    if (one == REGEX_NOTHING || one == REGEX_ANY)
        return one;
    if (most == 1)
        return least ? one : regex_either(regexes, one, REGEX_EMPTY);
    bool is_star = least <= 1 && most == REGEX_ENDLESS;
    if (term.kind == TERM_REPEAT && term.least <= 1 && (term.most == REGEX_ENDLESS || is_star)) {
        least = term.least ? least : 0; /* (x+){a,b} is x{a,}, (x*){a,b} is x* */
        most = REGEX_ENDLESS;
        one = term.a;
        term = regexes->terms[one];
    }
    static const struct byte_set all = {{UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}};
    if (least == 0 && most == REGEX_ENDLESS && term.kind == TERM_SET &&
        !memcmp(&regexes->sets[term.a], &all, sizeof all))
        return REGEX_ANY;
    uint32_t largest = most != REGEX_ENDLESS ? (uint32_t)most : least > 1 ? (uint32_t)least - 1 : 0;
    return intern(regexes,
                  (struct term){.kind = TERM_REPEAT,
                                .a = one,
                                .least = least,
                                .most = most,
                                .accepts_empty = least == 0,
                                .is_plain = term.is_plain,
                                .is_finite = term.is_finite && most != REGEX_ENDLESS,
                                .largest = largest > term.largest ? largest : term.largest},
                  NULL);
}

/* ---- intersection and complement ---- */

regex regex_not(struct regexes *regexes, regex one) {
    struct term term = regexes->terms[one];
    if (one == REGEX_NOTHING || one == REGEX_ANY)
        return one == REGEX_ANY || regexes->status ? REGEX_NOTHING : REGEX_ANY;
    if (term.kind == TERM_NOT)
        return term.a;
    return intern(regexes, (struct term){.kind = TERM_NOT, .a = one, .accepts_empty = !term.accepts_empty}, NULL);
}

regex regex_all_of(struct regexes *regexes, const regex *list, size_t count) {
    size_t base = regexes->scratch_count, kept = base;
    for (size_t i = 0; i < count; i++)
        regexes_push(regexes, list[i]);
    flatten(regexes, base, TERM_BOTH);
    /* Complements are the complement of one union, which is built on top of the others. */
    size_t end = regexes->scratch_count;
    bool has_nothing = false, has_empty = false, accepts = true;
    for (size_t i = base; i < end; i++) {
        regex one = regexes->scratch[i];
        has_nothing = has_nothing || one == REGEX_NOTHING;
        has_empty = has_empty || one == REGEX_EMPTY;
        accepts = accepts && regexes->terms[one].accepts_empty;
        if (regexes->terms[one].kind == TERM_NOT)
            regexes_push(regexes, regexes->terms[one].a);
        else
            regexes->scratch[kept++] = one;
    }
    if (has_nothing || has_empty || regexes->status) {
        bool is_empty = has_empty && accepts && !has_nothing && !regexes->status;
        regexes->scratch_count = base;
        return is_empty ? REGEX_EMPTY : REGEX_NOTHING;
    }
    regex none = kept < end ? regex_not(regexes, regex_union(regexes, end)) : REGEX_ANY;
    regexes->scratch_count = kept;
    if (none != REGEX_ANY)
        regexes_push(regexes, none);
    sort_unique(regexes, base, by_number);
    regex one = end_list(regexes, base, TERM_BOTH);
    return none == REGEX_NOTHING ? REGEX_NOTHING : one;
}

regex regex_both(struct regexes *regexes, regex left, regex right) {
    regex list[2] = {left, right};
    return left == right ? left : regex_all_of(regexes, list, 2);
}

/* ---- characters ---- */

/* Pushes the sequences of bytes of the characters first to last, whose encodings have one length. */
static void push_encoded(struct regexes *regexes, uint32_t first, uint32_t last) {
    while (first <= last && !regexes->status) {
        unsigned char from[4], to[4];
        size_t length = utf8_encode(first, from);
        /* The largest block whose trailing bytes are all free. */
        size_t free_bytes = 0;
        while (free_bytes + 1 < length) {
            uint32_t block = (uint32_t)1 << (6 * (free_bytes + 1));
            if (first % block || last - first < block - 1)
                break;
            free_bytes++;
        }
        uint32_t block = (uint32_t)1 << (6 * free_bytes);
        /* The byte before them may vary, as far as it stays in its own range. */
        uint32_t end = length - free_bytes > 1 ? (first / (block * 64) + 1) * block * 64 - 1 : last;
        if (end > last)
            end = last;
        end = first + (end - first + 1) / block * block - 1;
        utf8_encode(end, to);
        regex one = REGEX_EMPTY;
        for (size_t i = length; i-- > 0;)
            one = regex_join(regexes, regex_byte(regexes, from[i], to[i]), one);
        regexes_push(regexes, one);
        first = end + 1;
    }
}

regex regex_characters(struct regexes *regexes, const struct regex_range *ranges, size_t count) {
    /* Encodings change their length between these; surrogates have none. */
    static const struct regex_range parts[] = {
        {0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, 0x10ffff}};
    size_t base = regexes->scratch_count;
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < sizeof parts / sizeof *parts; j++) {
            uint32_t first = ranges[i].first > parts[j].first ? ranges[i].first : parts[j].first;
            uint32_t last = ranges[i].last < parts[j].last ? ranges[i].last : parts[j].last;
            if (first <= last)
                push_encoded(regexes, first, last);
        }
    return regex_union(regexes, base);
}

/* ---- sweeping ---- */

void regexes_sweep_begin(struct regexes *regexes) {
    regexes->status = STATUS_OK;
    regexes->scratch_count = 0;
    regexes->seen++;
    for (regex one = REGEX_NOTHING; one <= REGEX_ANY; one++)
        regexes->terms[one].seen = regexes->seen;
}

void regexes_sweep_keep(struct regexes *regexes, regex one) {
    regexes_push(regexes, one);
    while (regexes->scratch_count) {
        struct term *term = &regexes->terms[regexes->scratch[--regexes->scratch_count]];
        if (term->seen == regexes->seen)
            continue;
        term->seen = regexes->seen;
        for (uint32_t i = 0; is_list(term) && i < term->b; i++)
            regexes_push(regexes, regexes->lists[term->a + i]);
        if (term->kind == TERM_JOIN)
            regexes_push(regexes, term->b);
        if (term->kind == TERM_JOIN || term->kind == TERM_NOT || term->kind == TERM_REPEAT)
            regexes_push(regexes, term->a);
    }
}

void regexes_sweep_end(struct regexes *regexes) {
    if (regexes->status)
        return; /* not all that is in use could be marked */
    uint32_t *lists = malloc((regexes->list_count + 1) * sizeof *lists);
    if (!lists) {
        regexes_fail(regexes, STATUS_MEMORY);
        return;
    }
    size_t list_count = 0;
    memset(regexes->heads, 0xff, regexes->bucket_count * sizeof *regexes->heads);
    regexes->free = 0;
    regexes->free_count = 0;
    for (size_t i = 0; i < regexes->count; i++) {
        struct term *term = &regexes->terms[i];
        term->row = 0;
        if (term->kind == TERM_FREE || term->seen != regexes->seen) {
            *term = (struct term){.kind = TERM_FREE, .next = regexes->free};
            regexes->free = (uint32_t)i;
            regexes->free_count++;
            continue;
        }
        if (is_list(term)) {
            memcpy(lists + list_count, regexes->lists + term->a, term->b * sizeof *lists);
            term->a = (uint32_t)list_count;
            list_count += term->b;
        }
        uint32_t *head = &regexes->heads[term_hash(regexes, term, list_of(term, lists)) % regexes->bucket_count];
        term->next = *head;
        *head = (uint32_t)i;
    }
    free(regexes->lists);
    regexes->lists = lists;
    regexes->list_capacity = regexes->list_count + 1;
    regexes->list_count = list_count;
    regexes->row_count = 1;
    regexes->class_count = 0;
    free(regexes->classes);
    regexes->classes = NULL;
    regexes->class_capacity = 0;
    uint32_t *rows = realloc(regexes->rows, sizeof *rows); /* it may stay as large as it is */
    regexes->row_capacity = rows ? 1 : regexes->row_capacity;
    regexes->rows = rows ? rows : regexes->rows;
    memset(regexes->class_heads, 0xff, sizeof regexes->class_heads);
}
