/* SentencePiece's BPE merges the two neighbours whose union has the highest score. A tokenizer.json lists merges in
 * place of scores: each way to divide a token into two others is a merge, ranked by the token's score. */
#include "score_merges-internal.h"

#include "base/json.h"
#include "base/utf8.h"

enum { LONGEST_PIECE = 1024 }; /* bytes; SentencePiece's are of 16 characters */

struct scored_merge {
    double score;
    size_t left_characters, right_characters;
    int32_t id, left, right;
};

/* The normal tokens by their texts. */
struct score_index {
    const struct tokenizer_lists *lists;
    int32_t *ids; /* [count], sorted by text */
    size_t count;
    struct scored_merge *merges;
    size_t merge_count, capacity;
};

static int compare_names(const struct tokenizer_name *a, const struct tokenizer_name *b) {
    int order = memcmp(a->bytes, b->bytes, a->length < b->length ? a->length : b->length);
    return order ? order : (a->length > b->length) - (a->length < b->length);
}

static int compare_ids(const void *a, const void *b, void *context) {
    const struct tokenizer_lists *lists = context;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    int order = compare_names(&lists->tokens[x], &lists->tokens[y]);
    return order ? order : (x > y) - (x < y);
}

/* Returns the token of a text; -1 when there is none. */
static int32_t find(const struct score_index *index, const char *bytes, size_t length) {
    const struct tokenizer_name wanted = {bytes, length};
    size_t low = 0, high = index->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = compare_names(&wanted, &index->lists->tokens[index->ids[middle]]);
        if (order == 0)
            return index->ids[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

/* Adds each way to divide a token into two others. */
static int divide(struct score_index *index, int32_t id) {
    const struct tokenizer_name *name = &index->lists->tokens[id];
    size_t characters = 0, before = 0;
    for (size_t at = 0; at < name->length; at++)
        characters += (name->bytes[at] & 0xc0) != 0x80;
    for (size_t at = 1; at < name->length; at++) {
        if ((name->bytes[at] & 0xc0) == 0x80)
            continue;
        before++;
        int32_t left = find(index, name->bytes, at);
        int32_t right = left < 0 ? -1 : find(index, name->bytes + at, name->length - at);
        if (right < 0)
            continue;
        TRY(array_reserve(&index->merges, &index->capacity, index->merge_count + 1, sizeof *index->merges));
        index->merges[index->merge_count++] = (struct scored_merge){.score = index->lists->scores[id],
                                                                    .left_characters = before,
                                                                    .right_characters = characters - before,
                                                                    .id = id,
                                                                    .left = left,
                                                                    .right = right};
    }
    return STATUS_OK;
}

static int descending(size_t a, size_t b) {
    return (a < b) - (a > b);
}

static int ascending(int32_t a, int32_t b) {
    return (a > b) - (a < b);
}

/* Higher scores first; then longer parts, then smaller ids. */
static int compare_merges(const void *a, const void *b) {
    const struct scored_merge *x = a, *y = b;
    int order = (x->score < y->score) - (x->score > y->score);
    order = order ? order : descending(x->left_characters, y->left_characters);
    order = order ? order : descending(x->right_characters, y->right_characters);
    order = order ? order : ascending(x->id, y->id);
    order = order ? order : ascending(x->left, y->left);
    return order ? order : ascending(x->right, y->right);
}

static int find_merges(struct score_index *index) {
    const struct tokenizer_lists *lists = index->lists;
    int status = STATUS_OK;
    for (size_t id = 0; id < lists->count; id++) {
        if (lists->kinds[id] != LIST_NORMAL)
            continue;
        if (lists->tokens[id].length > LONGEST_PIECE)
            return status_fail(STATUS_INVALID, "token %zu has %zu bytes, more than the %d allowed", id,
                               lists->tokens[id].length, LONGEST_PIECE);
        index->ids[index->count++] = (int32_t)id;
    }
    qsort_r(index->ids, index->count, sizeof *index->ids, compare_ids, (void *)lists);
    for (size_t id = 0; id < lists->count && !status; id++)
        if (lists->kinds[id] == LIST_NORMAL)
            status = divide(index, (int32_t)id);
    if (index->merge_count)
        qsort(index->merges, index->merge_count, sizeof *index->merges, compare_merges);
    return status;
}

static void add_merge(const struct tokenizer_lists *lists, const struct scored_merge *merge, bool is_first,
                      struct strbuf *out) {
    strbuf_add_text(out, is_first ? "\n      [" : ",\n      [");
    json_add_string(out, lists->tokens[merge->left].bytes, lists->tokens[merge->left].length);
    strbuf_add_text(out, ", ");
    json_add_string(out, lists->tokens[merge->right].bytes, lists->tokens[merge->right].length);
    strbuf_add_char(out, ']');
}

int score_merges_add(const struct tokenizer_lists *lists, struct strbuf *out) {
    struct score_index index = {.lists = lists, .ids = malloc((lists->count + 1) * sizeof *index.ids)};
    int status = index.ids ? find_merges(&index) : status_no_memory();
    for (size_t i = 0; i < index.merge_count && !status; i++)
        add_merge(lists, &index.merges[i], i == 0, out);
    free(index.ids);
    free(index.merges);
    return status;
}
