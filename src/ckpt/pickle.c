/* The stack machine that reads a pickle. An opcode is a row of a table: its byte, and the function that does it. */
#include "pickle-internal.h"

#include "base/utf8.h"

enum {
    MAX_STACK = 1 << 20, /* nodes that wait for the container that they belong to */
    MAX_MARKS = 256,     /* containers that are open within each other */
    MAX_LONG = 8,        /* bytes of an integer */
};

/* A value on the stack. `rest` is where the memory begins that is used for its parts while they are read. */
struct slot {
    struct pickle_node *node;
    struct pickle_place rest;
};

struct machine {
    struct pickle *pickle;
    const struct pickle_taker *taker;
    size_t at;
    struct slot *stack;
    size_t stack_count, stack_capacity;
    struct pickle_memo memo;
    struct pickle_place kept; /* all memory before it may be recalled */
    size_t marks[MAX_MARKS];  /* places in the stack */
    int mark_count, status;
    bool is_done;
};

static void fail(struct machine *m, const char *expected) {
    if (!m->status)
        m->status = status_fail(STATUS_INVALID, "%s: byte %lld: expected %s", m->pickle->where,
                                (long long)(m->pickle->start + (int64_t)m->at), expected);
}

/* ---- memory ---- */

/* Returns memory that lives as long as the pickle, unless a taker gives it back; NULL after a failure. */
static void *take_memory(struct machine *m, size_t bytes) {
    void *memory = pickle_memory_take(&m->pickle->memory, bytes);
    if (!memory && m->pickle->memory.is_full)
        fail(m, "a pickle that takes less memory for its length");
    else if (!memory)
        m->status = status_fail(STATUS_MEMORY, "%s: out of memory", m->pickle->where);
    return memory;
}

/* Keeps all memory so far when a node that something recalls has changed: its parts lie there. */
static void keep_parts(struct machine *m, const struct pickle_node *node) {
    if (node->is_kept)
        m->kept = pickle_memory_place(&m->pickle->memory);
}

/* Adds items after the `count` that a node has. */
static void add_items(struct machine *m, struct pickle_node *node, const struct slot *items, size_t more) {
    size_t needed = node->count + more;
    if (needed > node->capacity) {
        size_t capacity = node->count ? needed * 2 : needed;
        const struct pickle_node **larger = take_memory(m, capacity * sizeof(struct pickle_node *));
        if (!larger)
            return;
        if (node->count)
            memcpy(larger, node->items, node->count * sizeof *larger);
        node->items = larger;
        node->capacity = (uint32_t)capacity;
    }
    for (size_t i = 0; i < more; i++)
        node->items[node->count + i] = items[i].node;
    node->count = (uint32_t)needed;
    keep_parts(m, node);
}

/* ---- the stack ---- */

static void push(struct machine *m, struct pickle_node *node) {
    if (m->status || !node)
        return;
    if (m->stack_count == MAX_STACK) {
        fail(m, "fewer values that wait for their container");
        return;
    }
    m->status = array_reserve(&m->stack, &m->stack_capacity, m->stack_count + 1, sizeof *m->stack);
    if (!m->status)
        m->stack[m->stack_count++] = (struct slot){node, pickle_memory_place(&m->pickle->memory)};
}

/* Makes a node with the members of its kind, all zero. */
static struct pickle_node *make_node(struct machine *m, enum pickle_kind kind) {
    bool has_name = kind == PICKLE_GLOBAL || kind == PICKLE_PERSISTENT;
    size_t bytes = kind == PICKLE_OBJECT ? sizeof(struct pickle_node)
                   : has_name            ? offsetof(struct pickle_node, callee)
                                         : offsetof(struct pickle_node, name);
    struct pickle_node *node = m->status ? NULL : take_memory(m, bytes);
    if (node) {
        memset(node, 0, bytes);
        node->kind = (uint8_t)kind;
        node->at = (uint32_t)m->at;
    }
    return node;
}

static struct pickle_node *push_new(struct machine *m, enum pickle_kind kind) {
    struct pickle_node *node = make_node(m, kind);
    push(m, node);
    return m->status ? NULL : node;
}

/* Returns the value on top, which no open container has below it; NULL after a failure. */
static struct pickle_node *peek(struct machine *m) {
    size_t floor = m->mark_count ? m->marks[m->mark_count - 1] : 0;
    if (m->stack_count <= floor)
        fail(m, "a value on the stack");
    return m->status ? NULL : m->stack[m->stack_count - 1].node;
}

static struct pickle_node *pop(struct machine *m) {
    struct pickle_node *node = peek(m);
    m->stack_count -= node != NULL;
    return node;
}

/* Returns the number of values above the last mark, which ends here. */
static size_t end_mark(struct machine *m) {
    if (!m->mark_count)
        fail(m, "a mark before this opcode");
    return m->status ? 0 : m->stack_count - m->marks[--m->mark_count];
}

/* ---- bytes ---- */

static const unsigned char *take(struct machine *m, size_t count) {
    if (!m->status && count > m->pickle->length - m->at)
        fail(m, "more bytes, but the pickle ends");
    if (m->status)
        return NULL;
    m->at += count;
    return m->pickle->bytes + m->at - count;
}

static uint64_t take_number(struct machine *m, size_t count) {
    uint64_t number = 0;
    const unsigned char *bytes = take(m, count);
    if (bytes)
        memcpy(&number, bytes, count);
    return number;
}

/* Returns the text up to a line's end, and its length. */
static const char *take_line(struct machine *m, size_t *length) {
    const char *text = (const char *)m->pickle->bytes + m->at;
    const char *end = memchr(text, '\n', m->pickle->length - m->at);
    *length = end ? (size_t)(end - text) : 0;
    if (!end || !*length || utf8_valid_length((const unsigned char *)text, *length) != *length)
        fail(m, "a line with a name");
    else
        m->at += *length + 1;
    return text;
}

/* ---- opcodes; `argument` is that of the row ---- */

static void do_nothing(struct machine *m, int bytes) {
    take(m, (size_t)bytes);
}

static void do_proto(struct machine *m, int bytes) {
    uint64_t protocol = take_number(m, (size_t)bytes);
    if (!m->status && (protocol < 2 || protocol > 5))
        fail(m, "protocol 2, 3, 4 or 5");
}

static void do_stop(struct machine *m, int argument) {
    m->pickle->root = pop(m);
    if (!m->status && (m->stack_count || m->mark_count))
        fail(m, "one value at the end");
    m->is_done = true;
}

static void do_mark(struct machine *m, int argument) {
    if (m->mark_count == MAX_MARKS)
        fail(m, "fewer containers within each other");
    else
        m->marks[m->mark_count++] = m->stack_count;
}

static void do_none(struct machine *m, int argument) {
    push(m, &m->pickle->none);
}

static void do_bool(struct machine *m, int argument) {
    push(m, &m->pickle->truth[argument]);
}

static void push_integer(struct machine *m, int64_t value) {
    if (value >= 0 && value < 256) {
        push(m, &m->pickle->small[value]);
        return;
    }
    struct pickle_node *node = push_new(m, PICKLE_INTEGER);
    if (node)
        node->integer = value;
}

static void do_integer(struct machine *m, int bytes) {
    uint64_t number = take_number(m, (size_t)bytes);
    push_integer(m, bytes == 4 ? (int32_t)number : (int64_t)number);
}

static void do_long(struct machine *m, int length_bytes) {
    uint64_t length = take_number(m, (size_t)length_bytes);
    if (length > MAX_LONG)
        fail(m, "an integer of 64 bits");
    const unsigned char *bytes = take(m, length);
    uint64_t number = bytes && length && bytes[length - 1] & 0x80 ? UINT64_MAX : 0;
    if (bytes)
        memcpy(&number, bytes, length);
    push_integer(m, (int64_t)number);
}

static void do_number(struct machine *m, int bytes) {
    uint64_t bits = __builtin_bswap64(take_number(m, (size_t)bytes));
    struct pickle_node *node = push_new(m, PICKLE_NUMBER);
    if (node)
        memcpy(&node->number, &bits, sizeof bits);
}

static void do_text(struct machine *m, int length_bytes) {
    uint64_t length = take_number(m, (size_t)length_bytes);
    const unsigned char *bytes = take(m, length);
    if (bytes && (length > UINT32_MAX || utf8_valid_length(bytes, length) != length))
        fail(m, "a text in UTF-8");
    struct pickle_node *node = push_new(m, PICKLE_TEXT);
    if (node) {
        node->text = (const char *)bytes;
        node->count = (uint32_t)length;
    }
}

static void push_global(struct machine *m, const char *module, size_t module_length, const char *name,
                        size_t name_length) {
    struct pickle_node *node = push_new(m, PICKLE_GLOBAL);
    if (node) {
        node->text = module;
        node->count = (uint32_t)module_length;
        node->name = name;
        node->capacity = (uint32_t)name_length;
    }
}

static void do_global(struct machine *m, int argument) {
    size_t module_length, name_length;
    const char *module = take_line(m, &module_length), *name = take_line(m, &name_length);
    push_global(m, module, module_length, name, name_length);
}

static void do_stack_global(struct machine *m, int argument) {
    const struct pickle_node *name = pop(m), *module = pop(m);
    if (m->status)
        return;
    if (name->kind != PICKLE_TEXT || module->kind != PICKLE_TEXT)
        fail(m, "the names of a module and of a class or function");
    push_global(m, module->text, module->count, name->text, name->count);
}

static void do_empty_tuple(struct machine *m, int argument) {
    push(m, &m->pickle->empty_tuple);
}

static void do_new(struct machine *m, int kind) {
    push_new(m, (enum pickle_kind)kind);
}

/* A tuple of `count` values; -1: of those above the mark. */
static void do_tuple(struct machine *m, int count) {
    size_t items = count < 0 ? end_mark(m) : (size_t)count;
    for (size_t i = 0; i < items && !m->status; i++)
        pop(m);
    const struct slot *first = m->stack + m->stack_count;
    struct pickle_node *node = make_node(m, PICKLE_TUPLE);
    if (!node)
        return;
    add_items(m, node, first, items);
    push(m, node);
}

/* Adds values to the container below them, in groups of `group`: all above the mark, or one group without a mark. */
static void add_to_container(struct machine *m, bool has_mark, size_t group, enum pickle_kind kind) {
    size_t count = has_mark ? end_mark(m) : group;
    for (size_t i = 0; i < count && !m->status; i++)
        pop(m);
    if (m->status)
        return;
    const struct slot *first = m->stack + m->stack_count;
    struct pickle_node *node = peek(m);
    if (m->status)
        return;
    if ((node->kind != kind && node->kind != PICKLE_OBJECT) || count % group)
        fail(m, group == 2 ? "a dict, and keys with values" : "a list");
    else
        add_items(m, node, first, count);
}

static void do_append(struct machine *m, int has_mark) {
    add_to_container(m, has_mark, 1, PICKLE_LIST);
}

static void do_set_item(struct machine *m, int has_mark) {
    add_to_container(m, has_mark, 2, PICKLE_DICT);
}

static void do_call(struct machine *m, int argument) {
    const struct pickle_node *arguments = pop(m), *callee = pop(m);
    if (m->status)
        return;
    if (callee->kind != PICKLE_GLOBAL || arguments->kind != PICKLE_TUPLE)
        fail(m, "the name of a class or function, and a tuple of arguments");
    struct pickle_node *node = push_new(m, PICKLE_OBJECT);
    if (node) {
        node->callee = callee;
        node->arguments = arguments;
        m->stack[m->stack_count - 1].rest.used -= sizeof *node - offsetof(struct pickle_node, name);
    }
}

/* Offers a complete object to the taker, and gives the memory of its parts back if it is taken. */
static void offer(struct machine *m, struct slot *slot) {
    int64_t number = -1;
    m->status = m->taker->take(m->taker->context, m->pickle, slot->node, &number);
    if (m->status || number < 0)
        return;
    slot->node->kind = PICKLE_TAKEN;
    slot->node->integer = number;
    bool is_kept = pickle_place_is_after(m->kept, slot->rest);
    pickle_memory_return(&m->pickle->memory, is_kept ? m->kept : slot->rest);
}

static void do_build(struct machine *m, int argument) {
    const struct pickle_node *state = pop(m);
    struct pickle_node *node = peek(m);
    if (m->status)
        return;
    if (node->kind != PICKLE_OBJECT || node->state) {
        fail(m, "an object without a state");
        return;
    }
    node->state = state;
    if (m->taker)
        offer(m, &m->stack[m->stack_count - 1]);
    keep_parts(m, node);
}

static void do_persistent(struct machine *m, int argument) {
    const struct pickle_node *id = pop(m);
    struct pickle_node *node = push_new(m, PICKLE_PERSISTENT);
    if (node)
        node->arguments = id;
}

/* Remembers the value on top; 0 bytes: under the next number. Writers count from 0, so a number beyond that is no
 * writer's. */
static void do_remember(struct machine *m, int bytes) {
    uint64_t number = bytes ? take_number(m, (size_t)bytes) : m->memo.count;
    struct pickle_node *node = peek(m);
    if (!m->status && number > m->memo.count)
        fail(m, "the next number of the memo");
    if (m->status || !pickle_memo_put(&m->memo, number, node))
        return;
    node->is_kept = true;
    keep_parts(m, node);
}

static void do_recall(struct machine *m, int bytes) {
    uint64_t number = take_number(m, (size_t)bytes);
    if (!m->status && number >= m->memo.count)
        fail(m, "a number that the memo has");
    push(m, m->status ? NULL : pickle_memo_get(&m->memo, number));
}

/* The bytes after an opcode: none; `argument` bytes; a length of `argument` bytes, and as many; two lines. */
enum operand { NONE, BYTES, TEXT, LINES };

struct opcode {
    void (*run)(struct machine *m, int argument);
    int argument;
    enum operand operand;
};
static const struct opcode opcodes[256] = {
    [0x80] = {do_proto, 1, BYTES},       [0x95] = {do_nothing, 8, BYTES},    ['.'] = {do_stop, 0, NONE},
    ['('] = {do_mark, 0, NONE},          ['N'] = {do_none, 0, NONE},         [0x88] = {do_bool, 1, NONE},
    [0x89] = {do_bool, 0, NONE},         ['J'] = {do_integer, 4, BYTES},     ['K'] = {do_integer, 1, BYTES},
    ['M'] = {do_integer, 2, BYTES},      [0x8a] = {do_long, 1, TEXT},        ['G'] = {do_number, 8, BYTES},
    [0x8c] = {do_text, 1, TEXT},         ['X'] = {do_text, 4, TEXT},         ['c'] = {do_global, 0, LINES},
    [0x93] = {do_stack_global, 0, NONE}, [')'] = {do_empty_tuple, 0, NONE},  ['t'] = {do_tuple, -1, NONE},
    [0x85] = {do_tuple, 1, NONE},        [0x86] = {do_tuple, 2, NONE},       [0x87] = {do_tuple, 3, NONE},
    [']'] = {do_new, PICKLE_LIST, NONE}, ['a'] = {do_append, false, NONE},   ['e'] = {do_append, true, NONE},
    ['}'] = {do_new, PICKLE_DICT, NONE}, ['s'] = {do_set_item, false, NONE}, ['u'] = {do_set_item, true, NONE},
    [0x81] = {do_call, 0, NONE},         ['R'] = {do_call, 0, NONE},         ['b'] = {do_build, 0, NONE},
    ['Q'] = {do_persistent, 0, NONE},    [0x94] = {do_remember, 0, NONE},    ['q'] = {do_remember, 1, BYTES},
    ['r'] = {do_remember, 4, BYTES},     ['h'] = {do_recall, 1, BYTES},      ['j'] = {do_recall, 4, BYTES},
};

/* Notes which numbers of the memo are recalled; nothing else is remembered. Stops where the machine will. */
static void note_recalled(struct machine *m) {
    size_t length = 0;
    for (m->at = 0; m->at < m->pickle->length && !m->status;) {
        const struct opcode *opcode = &opcodes[*take(m, 1)];
        if (!opcode->run || opcode->run == do_stop)
            break;
        if (opcode->run == do_recall)
            pickle_memo_note(&m->memo, take_number(m, (size_t)opcode->argument));
        else if (opcode->operand == BYTES)
            take(m, (size_t)opcode->argument);
        else if (opcode->operand == TEXT)
            take(m, take_number(m, (size_t)opcode->argument));
        for (int i = 0; i < 2 && opcode->operand == LINES; i++)
            take_line(m, &length);
    }
    m->at = 0;
    m->status = STATUS_OK;
}

static int run(struct machine *m) {
    while (!m->status && !m->is_done) {
        const unsigned char *byte = take(m, 1);
        const struct opcode *opcode = byte ? &opcodes[*byte] : NULL;
        if (opcode && opcode->run) {
            opcode->run(m, opcode->argument);
        } else if (byte) {
            m->at--;
            m->status = status_fail(STATUS_INVALID, "%s: byte %lld: expected an opcode of torch's files, found 0x%02x",
                                    m->pickle->where, (long long)(m->pickle->start + (int64_t)m->at), *byte);
        }
    }
    return m->status;
}

int pickle_read(const char *where, int64_t start, const void *bytes, size_t length, const struct pickle_taker *taker,
                struct pickle **out) {
    *out = NULL;
    struct pickle *pickle = calloc(1, sizeof *pickle);
    if (!pickle || !(pickle->where = strdup(where))) {
        free(pickle);
        return status_no_memory();
    }
    pickle->start = start;
    pickle->bytes = bytes;
    pickle->length = length < UINT32_MAX ? length : UINT32_MAX;
    pickle->memory = pickle_memory_for(pickle->length);
    for (int i = 0; i < 256; i++)
        pickle->small[i] = (struct pickle_node){.kind = PICKLE_INTEGER, .integer = i};
    for (int i = 0; i < 2; i++)
        pickle->truth[i] = (struct pickle_node){.kind = PICKLE_BOOL, .integer = i};
    pickle->empty_tuple = (struct pickle_node){.kind = PICKLE_TUPLE};
    struct machine m = {.pickle = pickle, .taker = taker};
    int status = pickle_memo_open(&m.memo, pickle->length);
    if (!status) {
        note_recalled(&m);
        status = pickle_memo_make_room(&m.memo);
    }
    THEN(status, run(&m));
    free(m.stack);
    pickle_memo_free(&m.memo);
    if (status)
        pickle_free(pickle);
    else
        *out = pickle;
    return status;
}
