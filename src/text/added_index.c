/* Finds added tokens in a text in one pass, whatever the tokens are.
 *
 * The tokens' names, read from their ends, form an automaton (Aho and Corasick, CACM 18(6), 1975). It reads a text from
 * its end to its beginning and finds at each place the longest token that begins there. Each byte costs at most two
 * steps on average: one step goes a node deeper, and every other step goes back up. Reading forwards could not
 * guarantee that, because after a token that fails to match, the same bytes are read again for the next place.
 *
 * A node's children are neighbours, ordered by their bytes; they end where those of the next node begin. */
#include "text-internal.h"

/* Returns the byte of a token at a distance from its end. */
static unsigned char byte_from_end(const struct added_tokens *added, uint32_t item, size_t depth) {
    const struct added_token *token = &added->items[item];
    return (unsigned char)added->text.data[token->start + token->length - 1 - depth];
}

/* Returns how many bytes two tokens share at their ends. */
static size_t common_end(const struct added_tokens *added, uint32_t a, uint32_t b) {
    size_t shorter = added->items[a].length < added->items[b].length ? added->items[a].length : added->items[b].length;
    size_t common = 0;
    while (common < shorter && byte_from_end(added, a, common) == byte_from_end(added, b, common))
        common++;
    return common;
}

/* Orders by the bytes from the end on; among equals, the first in the list comes first. */
static int compare_from_end(const void *a, const void *b, void *context) {
    const struct added_tokens *added = context;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    size_t common = common_end(added, x, y), x_length = added->items[x].length, y_length = added->items[y].length;
    if (common < x_length && common < y_length)
        return byte_from_end(added, x, common) < byte_from_end(added, y, common) ? -1 : 1;
    if (x_length != y_length)
        return x_length < y_length ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Returns the child of a node for a byte; 0 when it has none. */
static uint32_t child_of(const struct added_node *nodes, uint32_t node, unsigned char byte) {
    uint32_t from = nodes[node].first, end = nodes[node + 1].first;
    while (from < end) {
        uint32_t middle = from + (end - from) / 2;
        if (nodes[middle].byte == byte)
            return middle;
        if (nodes[middle].byte < byte)
            from = middle + 1;
        else
            end = middle;
    }
    return 0;
}

/* Moves the automaton by one byte, to the deepest node that matches here. */
static inline uint32_t next_node(const struct added_tokens *added, uint32_t node, unsigned char byte, uint64_t *steps) {
    uint32_t next;
    for (++*steps; node > 0; node = added->nodes[node].shorter, ++*steps)
        if ((next = child_of(added->nodes, node, byte)))
            return next;
    return added->roots[byte];
}

/* The tokens below a node while the automaton is built: a range of the tokens ordered by their ends. */
struct span {
    uint32_t begin, end, depth;
};

/* Records the tokens that end at the node, and gives it its children. */
static void grow_node(struct added_tokens *added, const uint32_t *order, struct span *spans, uint32_t node,
                      uint32_t *count) {
    struct span here = spans[node];
    struct added_node *nodes = added->nodes;
    uint32_t at = here.begin;
    uint64_t steps = 0;
    nodes[node].first = *count;
    nodes[node].token = nodes[nodes[node].shorter].token;
    for (bool is_first = true; at < here.end && added->items[order[at]].length == here.depth; at++, is_first = false) {
        added->items[order[at]].prefix = nodes[nodes[node].shorter].token;
        nodes[node].token = is_first ? order[at] + 1 : nodes[node].token;
    }
    while (at < here.end) {
        unsigned char byte = byte_from_end(added, order[at], here.depth);
        uint32_t child = (*count)++;
        spans[child] = (struct span){.begin = at, .depth = here.depth + 1};
        while (at < here.end && byte_from_end(added, order[at], here.depth) == byte)
            at++;
        spans[child].end = at;
        nodes[child].byte = byte;
        nodes[child].shorter = node > 0 ? next_node(added, nodes[node].shorter, byte, &steps) : 0;
        if (node == 0)
            added->roots[byte] = child;
    }
}

int added_tokens_build(struct added_tokens *added) {
    uint32_t *order = malloc((added->count + 1) * sizeof *order);
    struct span *spans = NULL;
    size_t nodes = 1;
    for (uint32_t i = 0; order && i < added->count; i++)
        order[i] = i;
    if (order && added->count > 0) {
        qsort_r(order, added->count, sizeof *order, compare_from_end, added);
        nodes += added->items[order[0]].length;
        for (size_t i = 1; i < added->count; i++)
            nodes += added->items[order[i]].length - common_end(added, order[i - 1], order[i]);
    }
    if (order && nodes < UINT32_MAX) {
        added->nodes = calloc(nodes + 1, sizeof *added->nodes);
        spans = malloc(nodes * sizeof *spans);
    }
    int status = added->nodes && spans ? STATUS_OK
                                       : status_fail(STATUS_MEMORY, "out of memory for %zu added tokens", added->count);
    if (!status) {
        uint32_t count = 1;
        spans[0] = (struct span){.end = (uint32_t)added->count};
        for (uint32_t node = 0; node < count; node++)
            grow_node(added, order, spans, node, &count);
        added->nodes[count].first = count;
    }
    free(order);
    free(spans);
    return status;
}

int added_tokens_each(const struct added_tokens *added, const unsigned char *bytes, size_t length,
                      int (*on_token)(void *context, size_t at, uint32_t token), void *context, uint64_t *steps) {
    uint32_t node = 0;
    int status = STATUS_OK;
    for (size_t at = length; at > 0 && !status;) {
        if (node == 0) {
            while (at > 0 && !(node = added->roots[bytes[at - 1]]))
                at--;
            if (node == 0)
                break;
            at--;
            ++*steps;
        } else {
            node = next_node(added, node, bytes[--at], steps);
        }
        if (added->nodes[node].token)
            status = on_token(context, at, added->nodes[node].token - 1);
    }
    return status;
}

static int keep_hit(void *context, size_t at, uint32_t token) {
    struct added_hits *hits = context;
    TRY(array_reserve(&hits->items, &hits->capacity, hits->count + 1, sizeof *hits->items));
    hits->items[hits->count++] = (struct added_hit){(uint32_t)at, token};
    return STATUS_OK;
}

int added_tokens_hits(const struct added_tokens *added, const unsigned char *bytes, size_t length,
                      struct added_hits *hits) {
    hits->count = 0;
    if (length > UINT32_MAX)
        return status_fail(STATUS_UNSUPPORTED, "a text of %zu bytes after normalizing: at most %u are encoded at once",
                           length, UINT32_MAX);
    return added_tokens_each(added, bytes, length, keep_hit, hits, &hits->steps);
}

void added_hits_free(struct added_hits *hits) {
    free(hits->items);
    *hits = (struct added_hits){0};
}
