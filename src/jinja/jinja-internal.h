/* Inside the engine: a template's nodes, values, and the state of a rendering.
 *
 *     lex.c                          a template's text into tokens
 *     parse.c, expression.c          tokens into statements and expressions; parser.c has what both use
 *     run.c, operators.c             runs statements, evaluates expressions
 *     render.c                       from arguments to text
 *     value.c, write.c               values: made, compared, written as Python and as JSON
 *     string.c, case.c               strings with their marks
 *     attributes.c                   names after a dot
 *     operations.c                   filters, tests, methods and functions: found, given their parameters, run
 *     texts.c, filters.c, lists.c, tests.c, functions.c
 *     charge.c                       limits for all of this: steps, time, memory, depth
 *     memory.c                       arenas
 *
 * A rendering fails once. The first failure stays in `status`; every value made after it is undefined, and loops end.
 * Code therefore checks the status only when an undefined value would lead it astray. */
#pragma once

#include "jinja.h"

/* ---- memory ---- */

struct jinja_chunk;
/* An arena that gives back its memory only as a whole. Starts zeroed. */
struct jinja_arena {
    struct jinja_chunk *last;
    size_t bytes, limit; /* taken from the system; 0: no limit */
    char *top;           /* the end of the last piece */
    bool is_full;        /* the limit was reached */
};
/* Takes memory. NULL: there is none, or the limit is reached. */
void *jinja_take(struct jinja_arena *arena, size_t bytes, size_t alignment);
/* Extends the last piece in place. Returns false when the piece is not the last one, or there is no room. */
bool jinja_extend(struct jinja_arena *arena, const char *end, size_t more);
void jinja_arena_free(struct jinja_arena *arena);

/* ---- values ---- */

enum jinja_kind {
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INTEGER,
    JINJA_FLOAT,
    JINJA_STRING,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_RANGE,     /* a list that Python does not call a list */
    JINJA_VIEW,      /* keys, values or items of a dict */
    JINJA_GENERATOR, /* can be iterated once */
    JINJA_DICT,
    JINJA_NAMESPACE,
    JINJA_LOOP,
    JINJA_MACRO,
    JINJA_FUNCTION,
    JINJA_METHOD,
    JINJA_MISSING, /* no value: a name that is not set, an argument that is not given */
};

struct jinja_value {
    enum jinja_kind kind;
    union {
        bool truth;
        int64_t integer;
        double real;
        const char *hint; /* UNDEFINED: the undefined name */
        const struct jinja_string *string;
        struct jinja_list *list; /* LIST, TUPLE, RANGE, VIEW, GENERATOR */
        struct jinja_dict *dict; /* DICT, NAMESPACE */
        struct jinja_loop *loop;
        struct jinja_macro *macro;
        const struct jinja_operation *function;
        struct jinja_bound *bound; /* METHOD */
    };
};

struct jinja_string {
    const char *bytes; /* UTF-8 */
    size_t length;
    unsigned marks; /* of the whole string, when there are no ranges */
    bool is_safe;   /* Markup: text added to it is escaped */
    const struct jinja_range *ranges;
    size_t range_count;
};
struct jinja_list {
    struct jinja_value *items;
    size_t count, capacity;
    size_t gone;      /* GENERATOR: the items taken so far */
    const char *name; /* VIEW: "dict_keys" */
};
struct jinja_entry {
    struct jinja_value key, value;
};
struct jinja_dict {
    struct jinja_entry *entries; /* in order of insertion */
    size_t count, capacity;
};
struct jinja_loop {
    const struct jinja_list *items;
    size_t index;
    int depth;
};

static inline struct jinja_value jinja_none(void) {
    return (struct jinja_value){.kind = JINJA_NONE};
}
static inline struct jinja_value jinja_bool(bool truth) {
    return (struct jinja_value){.kind = JINJA_BOOL, .truth = truth};
}
static inline struct jinja_value jinja_integer(int64_t integer) {
    return (struct jinja_value){.kind = JINJA_INTEGER, .integer = integer};
}
static inline struct jinja_value jinja_float(double real) {
    return (struct jinja_value){.kind = JINJA_FLOAT, .real = real};
}
static inline struct jinja_value jinja_undefined(const char *hint) {
    return (struct jinja_value){.kind = JINJA_UNDEFINED, .hint = hint};
}
static inline struct jinja_value jinja_missing(void) {
    return (struct jinja_value){.kind = JINJA_MISSING};
}
static inline struct jinja_value jinja_string_value(const struct jinja_string *string) {
    return (struct jinja_value){.kind = JINJA_STRING, .string = string};
}
/* Returns NULL for a value that is not a string. */
static inline const struct jinja_string *jinja_string_of(const struct jinja_value *value) {
    return value->kind == JINJA_STRING ? value->string : NULL;
}

/* ---- nodes ---- */

enum jinja_node_kind {
    /* expressions */
    NODE_CONSTANT,
    NODE_NAME,
    NODE_ATTRIBUTE, /* a.name */
    NODE_ITEM,      /* a[b] */
    NODE_SLICE,     /* a[items[0]:items[1]:items[2]]; each may be NULL */
    NODE_CALL,      /* a(items) */
    NODE_FILTER,    /* a|name(items); a NULL: the filter of a block */
    NODE_TEST,      /* a is name(items) */
    NODE_NEGATIVE,
    NODE_POSITIVE,
    NODE_NOT,
    NODE_AND,
    NODE_OR,
    NODE_CONDITION, /* b if a else c */
    NODE_COMPARE,   /* a, then items, each NODE_OPERAND */
    NODE_OPERAND,   /* name: enum jinja_operator; a */
    NODE_BINARY,    /* a OPERATOR b, name: enum jinja_operator */
    NODE_CONCAT,    /* a, then items */
    NODE_LIST,
    NODE_TUPLE,
    NODE_DICT, /* items: key, value, key, value */
    /* arguments of calls */
    NODE_KEYWORD, /* name = a; value: the name as a string */
    NODE_STAR,
    NODE_DOUBLE_STAR,
    /* statements */
    NODE_TEXT,       /* value */
    NODE_PRINT,      /* a */
    NODE_SET,        /* a = b */
    NODE_SET_BLOCK,  /* a = items, through the filters b */
    NODE_FOR,        /* for a in b if c: items, else others */
    NODE_IF,         /* if a: items, else the next NODE_IF b, or others */
    NODE_MACRO,      /* name(others, each a NODE_KEYWORD, whose a may be NULL): items */
    NODE_WITH,       /* others: target, value, target, value; items */
    NODE_GENERATION, /* items */
    NODE_FILTERED,   /* items through the filters b */
    NODE_BREAK,
    NODE_CONTINUE,
    /* targets of assignments: NODE_NAME, NODE_TUPLE, and */
    NODE_NAMESPACE, /* name.b's name */
};

/* Operators as templates write them: name, text, level, and the kind of the node that it makes. Those of a higher level
 * bind tighter; level 2 is that of "not", which has no left operand. */
#define JINJA_OPERATORS(row)                                                                                           \
    row(OR, "or", 0, OR) row(AND, "and", 1, AND) row(EQUAL, "==", 3, COMPARE) row(NOT_EQUAL, "!=", 3, COMPARE)         \
        row(LESS, "<", 3, COMPARE) row(LESS_EQUAL, "<=", 3, COMPARE) row(GREATER, ">", 3, COMPARE)                     \
            row(GREATER_EQUAL, ">=", 3, COMPARE) row(IN, "in", 3, COMPARE) row(NOT_IN, "not in", 3, COMPARE)           \
                row(ADD, "+", 4, BINARY) row(SUBTRACT, "-", 4, BINARY) row(CONCAT, "~", 5, CONCAT)                     \
                    row(MULTIPLY, "*", 6, BINARY) row(DIVIDE, "/", 6, BINARY) row(FLOOR_DIVIDE, "//", 6, BINARY)       \
                        row(MODULO, "%", 6, BINARY) row(POWER, "**", 7, BINARY)
#define OPERATOR_OF(name, text, level, kind) OPERATOR_##name,
enum jinja_operator { JINJA_OPERATORS(OPERATOR_OF) OPERATOR_COUNT };
struct jinja_operator_row {
    const char *text;
    int level;
    enum jinja_node_kind kind;
};
extern const struct jinja_operator_row jinja_operators[OPERATOR_COUNT];

/* A growing array of nodes; outgrown arrays stay in the arena. */
struct jinja_nodes {
    struct jinja_node **items;
    uint32_t count, capacity;
};

struct jinja_node {
    enum jinja_node_kind kind;
    int line;
    uint32_t name; /* of jinja->names, or an enum jinja_operator */
    struct jinja_node *a, *b, *c;
    struct jinja_nodes items, others;
    const struct jinja_operation *operation; /* FILTER, TEST; NULL: there is none of this name */
    struct jinja_value value;
};

struct jinja_name {
    const char *bytes; /* of a name: followed by a zero byte */
    size_t length;
};
enum { JINJA_MAX_NAMES = 2048, JINJA_NAME_SLOTS = 2 * JINJA_MAX_NAMES };

struct jinja {
    struct jinja_arena arena;
    struct jinja_name *names; /* [name_count] */
    uint32_t *slots;          /* [JINJA_NAME_SLOTS] a name's index + 1, at its digest's place; 0: free */
    uint32_t name_count;
    struct jinja_nodes body;
    bool has_generation;
    struct jinja_name *literals; /* [literal_count] strings and texts of the template */
    size_t literal_count;
};

/* ---- a rendering ---- */

struct jinja_variable {
    uint32_t name;
    struct jinja_value value;
};
/* Names inside a loop, a macro or a block; run->globals has the outermost names. */
struct jinja_scope {
    struct jinja_scope *parent; /* where it is written, not where it is called */
    struct jinja_variable *items;
    size_t count, capacity;
    bool is_kept; /* a macro refers to it */
};
struct jinja_macro {
    const struct jinja_node *node;
    struct jinja_scope *scope;
};

/* A string under construction, or the output. */
struct jinja_builder {
    char *bytes;
    size_t length, capacity;
    struct jinja_range *ranges;
    size_t count, range_capacity;
};

struct jinja_run {
    const struct jinja *jinja;
    struct jinja_arena objects, bytes;
    int status;
    int line;
    int64_t steps;
    size_t unpaid;            /* bytes that were not charged yet */
    int64_t unwatched;        /* steps until the clock is checked again */
    int64_t most_unwatched;   /* the maximum number of steps between two checks */
    double seconds, deadline; /* of clock_seconds(); 0: none */
    int depth, max_depth;
    unsigned marks;              /* JINJA_GENERATED while one of its blocks runs */
    uint32_t loop_name;          /* of "loop"; none when the template does not use it */
    struct jinja_value *globals; /* [jinja->name_count] */
    struct jinja_scope *scope;   /* NULL: the outermost */
    struct jinja_builder *out;
    const struct tm *now;
    struct jinja_list nothing; /* the result of failed allocations */
    struct jinja_dict no_entries;
};

/* ---- limits: charge.c ---- */

/* Fails with "line N: "; returns an undefined value. */
struct jinja_value jinja_fail(struct jinja_run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Fails with the reason why an arena gave nothing. */
void jinja_fail_memory(struct jinja_run *run, const struct jinja_arena *arena);
/* Charges steps of work; returns false when no steps or no time are left. */
bool jinja_charge(struct jinja_run *run, size_t steps);
enum { JINJA_STEP_BYTES = 64, JINJA_UNPAID_BYTES = 4096 };
/* Charges the bytes that were not charged yet; it checks the clock every few thousand steps. */
bool jinja_pay_bytes(struct jinja_run *run);
/* Charges bytes read or written: JINJA_STEP_BYTES cost a step, and smaller amounts add up. */
static inline bool jinja_charge_bytes(struct jinja_run *run, size_t bytes) {
    run->unpaid += bytes;
    return run->unpaid < JINJA_UNPAID_BYTES ? !run->status : jinja_pay_bytes(run);
}
/* Makes a charged copy; returns false after a failure. */
bool jinja_copy(struct jinja_run *run, void *to, const void *from, size_t length);
/* Returns charged memory that starts with a copy of from[length] and is zero after it; NULL after a failure. */
void *jinja_grown(struct jinja_run *run, const void *from, size_t length, size_t bytes);
/* Returns `items`, or a charged copy of them, with room for one more after the `count` that are there. NULL after a
 * failure. `each` is the size of an item. */
void *jinja_double(struct jinja_run *run, void *items, size_t *capacity, size_t each);
static inline void *jinja_room(struct jinja_run *run, void *items, size_t count, size_t *capacity, size_t each) {
    return count < *capacity ? items : jinja_double(run, items, capacity, each);
}
/* Returns zeroed memory; NULL after a failure. */
void *jinja_object(struct jinja_run *run, size_t bytes);
/* Returns how many bytes of a text an error message shows. */
static inline int jinja_shown(size_t length) {
    return length < 512 ? (int)length : 512;
}
/* Enters one more level until jinja_leave. Returns false when that is too deep; jinja_leave must follow in either
 * case. */
bool jinja_enter(struct jinja_run *run);
static inline void jinja_leave(struct jinja_run *run) {
    run->depth--;
}

/* ---- strings ---- */

void jinja_build(struct jinja_run *run, struct jinja_builder *builder, const void *bytes, size_t length,
                 unsigned marks);
void jinja_build_text(struct jinja_run *run, struct jinja_builder *builder, const char *text);
void jinja_build_string(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_string *string);
/* Appends bytes [begin, end) of a string. */
void jinja_build_part(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_string *string,
                      size_t begin, size_t end);
/* Returns the finished string. */
struct jinja_value jinja_built(struct jinja_run *run, struct jinja_builder *builder);
/* Makes a string of bytes that live as long as the run. */
struct jinja_value jinja_string(struct jinja_run *run, const char *bytes, size_t length, unsigned marks);
/* These make strings that the run owns. */
struct jinja_value jinja_text_value(struct jinja_run *run, const char *text);
struct jinja_value jinja_part(struct jinja_run *run, const struct jinja_string *string, size_t begin, size_t end);
struct jinja_value jinja_concat(struct jinja_run *run, const struct jinja_string *left,
                                const struct jinja_string *right);
struct jinja_value jinja_escape(struct jinja_run *run, const struct jinja_string *string);
/* Returns the string, marked as safe or not. */
struct jinja_value jinja_set_safe(struct jinja_run *run, struct jinja_value string, bool is_safe);
unsigned jinja_marks_at(const struct jinja_string *string, size_t at);
/* Counts characters, not bytes. */
size_t jinja_characters(struct jinja_run *run, const struct jinja_string *string);
/* Returns the byte at which character `index` begins. */
size_t jinja_byte_of(struct jinja_run *run, const struct jinja_string *string, size_t index);
/* Compares as memcmp() does; 0 after a failure. */
int jinja_memcmp(struct jinja_run *run, const void *left, const void *right, size_t length);
/* True when these bytes are the same. */
bool jinja_same(struct jinja_run *run, const void *left, const void *right, size_t length);
/* Finds the first occurrence of a byte in [from, to); returns `to` when there is none. */
size_t jinja_find_byte(struct jinja_run *run, const struct jinja_string *string, char byte, size_t from, size_t to);
bool jinja_string_is(const struct jinja_string *string, const char *text);
/* Finds `part` in `string` from byte `from` on; SIZE_MAX: not found. */
size_t jinja_find(struct jinja_run *run, const struct jinja_string *string, const struct jinja_string *part,
                  size_t from);
/* Finds the last `part` that ends at or before `end`; SIZE_MAX: not found. */
size_t jinja_find_last(struct jinja_run *run, const struct jinja_string *string, const struct jinja_string *part,
                       size_t end);

enum jinja_sides { JINJA_LEFT = 1, JINJA_RIGHT = 2, JINJA_BOTH = 3 };
/* Strips characters; NULL: white space. */
struct jinja_value jinja_strip(struct jinja_run *run, const struct jinja_string *string,
                               const struct jinja_string *characters, enum jinja_sides sides);
/* Replaces at most `most` occurrences; below 0: all. */
struct jinja_value jinja_replace(struct jinja_run *run, const struct jinja_string *string,
                                 const struct jinja_string *from, const struct jinja_string *to, int64_t most);
/* Splits at a separator; NULL: white space. From the right, a limit needs a separator. */
struct jinja_value jinja_split(struct jinja_run *run, const struct jinja_string *string,
                               const struct jinja_string *separator, int64_t most, bool is_from_right);
enum jinja_case {
    JINJA_UPPER,
    JINJA_LOWER,
    JINJA_CAPITALIZED,
    JINJA_TITLE,
    JINJA_WORDS /* `title` as the filter does it */
};
struct jinja_value jinja_change_case(struct jinja_run *run, const struct jinja_string *string, enum jinja_case to);

/* ---- values ---- */

struct jinja_value jinja_list_new(struct jinja_run *run, enum jinja_kind kind, size_t capacity);
void jinja_list_add(struct jinja_run *run, struct jinja_list *list, struct jinja_value item);
struct jinja_value jinja_pair(struct jinja_run *run, struct jinja_value first, struct jinja_value second);
struct jinja_value jinja_dict_new(struct jinja_run *run, enum jinja_kind kind);
/* Dicts. Getters return MISSING when there is no such key. */
struct jinja_value jinja_dict_get(struct jinja_run *run, const struct jinja_dict *dict, struct jinja_value key);
struct jinja_value jinja_dict_find(struct jinja_run *run, const struct jinja_dict *dict, const char *key,
                                   size_t length);
void jinja_dict_put(struct jinja_run *run, struct jinja_dict *dict, struct jinja_value key, struct jinja_value value);
struct jinja_value jinja_from_json(struct jinja_run *run, const json_t *json, const struct jinja_argument *argument);

bool jinja_is_true(const struct jinja_value *value);
/* Python's type names ("str", "list"), conversions and comparisons. */
const char *jinja_type(const struct jinja_value *value);
bool jinja_is_number(const struct jinja_value *value); /* booleans count as numbers */
double jinja_as_real(const struct jinja_value *value);
int64_t jinja_as_integer(const struct jinja_value *value);
bool jinja_equal(struct jinja_run *run, const struct jinja_value *left, const struct jinja_value *right);
/* jinja_order returns a negative number, 0 or a positive one; it fails when Python has no order. */
int jinja_order(struct jinja_run *run, const struct jinja_value *left, const struct jinja_value *right);
bool jinja_contains(struct jinja_run *run, const struct jinja_value *container, const struct jinja_value *item);
/* Python's len(); fails when there is none. */
size_t jinja_length(struct jinja_run *run, const struct jinja_value *value);
/* Returns the items that a loop visits; a generator is empty afterwards. Fails for a value that cannot be iterated. */
const struct jinja_list *jinja_iterate(struct jinja_run *run, const struct jinja_value *value);
/* str(). */
struct jinja_value jinja_str(struct jinja_run *run, const struct jinja_value *value);
void jinja_build_str(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_value *value);
/* Appends `count` spaces. */
void jinja_build_spaces(struct jinja_run *run, struct jinja_builder *builder, int64_t count);
bool jinja_read_integer(struct jinja_run *run, const struct jinja_string *string, int base, int64_t *integer);
bool jinja_read_float(struct jinja_run *run, const struct jinja_string *string, double *real);
/* Reports the use of an undefined value. */
struct jinja_value jinja_fail_undefined(struct jinja_run *run, const struct jinja_value *value);

/* ---- calls ---- */

struct jinja_call;
/* The kinds of parameters. */
enum jinja_wanted {
    WANTS_NOTHING, /* there is no such parameter */
    WANTS_VALUE,   /* any value; MISSING when it is not given */
    WANTS_TRUTH,   /* a bool, or the fallback */
    WANTS_INTEGER, /* an integer, or the fallback; others fail */
    WANTS_STRING,  /* a string, or MISSING; others fail */
    WANTS_NEEDED,  /* a string, which must be given */
    WANTS_TEXT,    /* str() of a value, or MISSING */
    WANTS_OTHER,   /* the other value of a test, which must be given */
    WANTS_NUMBER,  /* for what the operation works on: a number */
    WANTS_DICT,    /* as well: a dict */
    WANTS_CALL,    /* the operation reads the arguments of the call itself */
};
struct jinja_parameter {
    const char *name; /* NULL: it cannot be named */
    enum jinja_wanted wanted;
    int64_t fallback;
};
enum { JINJA_FEW = 4, JINJA_PARAMETERS = 4 };
/* A filter, test, method or function. */
struct jinja_operation {
    const char *name;
    enum jinja_wanted self; /* what it works on */
    struct jinja_value (*run)(struct jinja_run *run, struct jinja_value self, struct jinja_call *call);
    int variant; /* tells apart operations that share a function */
    struct jinja_parameter parameters[JINJA_PARAMETERS];
};
/* Defines a function of operations, and a row of a table of them. */
#define JINJA_OPERATION(function)                                                                                      \
    static struct jinja_value function(struct jinja_run *run, struct jinja_value self, struct jinja_call *call)
#define ROW(row_name, wanted, function, kind, ...)                                                                     \
    {                                                                                                                  \
        .name = row_name, .self = wanted, .run = function, .variant = kind, .parameters = { __VA_ARGS__ }              \
    }
/* All operations: tables whose last row has no name. Groups of the same name follow each other. */
struct jinja_group {
    const char *name;
    const struct jinja_operation *rows;
};
enum jinja_group_index {
    JINJA_FILTERS,
    JINJA_TESTS = JINJA_FILTERS + 3,
    JINJA_FUNCTIONS,
    JINJA_STRING_METHODS,
    JINJA_DICT_METHODS,
    JINJA_LIST_METHODS,
    JINJA_LOOP_METHODS,
    JINJA_GROUPS
};
extern const struct jinja_group jinja_groups[JINJA_GROUPS];
extern const struct jinja_operation jinja_text_filters[], jinja_value_filters[], jinja_list_filters[], jinja_tests[],
    jinja_functions[], jinja_string_methods[], jinja_dict_methods[], jinja_list_methods[], jinja_loop_methods[];
/* Returns NULL when the group has no such operation. */
const struct jinja_operation *jinja_operation_find(enum jinja_group_index group, const char *name, size_t length);
extern const char *const jinja_other_string_methods[]; /* Python's other methods, not implemented; NULL-terminated */

struct jinja_keyword {
    const struct jinja_string *name;
    struct jinja_value value;
    bool is_taken;
};
struct jinja_call {
    const struct jinja_operation *operation;
    const char *brackets; /* after its name in messages: "()", or "" */
    struct jinja_list arguments;
    struct jinja_keyword *keywords; /* [keyword_count] */
    size_t keyword_count, keyword_capacity;
    struct jinja_value given[JINJA_PARAMETERS]; /* the values of the operation's parameters */
    struct jinja_value few[JINJA_FEW];          /* room for most calls */
    struct jinja_keyword few_keywords[JINJA_FEW];
};
/* Returns argument `index`, or the keyword; MISSING when neither is given. Marks it as taken: jinja_call_end finds the
 * others. */
struct jinja_value jinja_argument(struct jinja_run *run, struct jinja_call *call, size_t index, const char *keyword);
/* Fails when there are more than `most` arguments, or keywords that were not taken. */
bool jinja_call_end(struct jinja_run *run, const struct jinja_call *call, size_t most, const char *what);
/* Gives an operation its parameters and runs it. */
struct jinja_value jinja_run_operation(struct jinja_run *run, const struct jinja_operation *operation,
                                       struct jinja_value self, struct jinja_call *call);
struct jinja_bound {
    struct jinja_value self;
    const struct jinja_operation *method;
};

/* a.name and a[key]. */
struct jinja_value jinja_attribute(struct jinja_run *run, const struct jinja_value *value, const char *name,
                                   size_t length);
struct jinja_value jinja_item(struct jinja_run *run, const struct jinja_value *value, const struct jinja_value *key);
/* Evaluates a path as filters use it: "address.city", or a number. */
struct jinja_value jinja_path(struct jinja_run *run, struct jinja_value value, const struct jinja_value *path);

/* The filter tojson. */
struct jinja_value jinja_to_json(struct jinja_run *run, struct jinja_value self, struct jinja_call *call);
struct jinja_value jinja_binary(struct jinja_run *run, enum jinja_operator operation, const struct jinja_value *left,
                                const struct jinja_value *right);
bool jinja_compare(struct jinja_run *run, enum jinja_operator operation, const struct jinja_value *left,
                   const struct jinja_value *right);
struct jinja_value jinja_slice(struct jinja_run *run, const struct jinja_value *value,
                               const struct jinja_value bounds[3]);

/* Runs the whole template into run->out. */
void jinja_run_body(struct jinja_run *run);
/* Returns the slot where a name is, or belongs. */
uint32_t *jinja_name_slot(const struct jinja *jinja, const char *bytes, size_t length);
