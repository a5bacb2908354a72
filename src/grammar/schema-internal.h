/* JSON schemas, from their text to rules, in these files:
 *
 *     schema_document.c  where each part of the document is; checks of every keyword; references
 *     schema_shape.c     shapes: what values a schema allows; they can be intersected, united and complemented
 *     schema_number.c    languages of numbers: ranges and multiples
 *     schema_keywords.c  each keyword as a shape
 *     schema_set.c       spots, sets, and what is needed next
 *     schema_make.c      shapes of spots and sets, in the order in which they need each other
 *     schema_rules.c     rules that derive the values of a shape
 *     schema.c           the room's functions
 *
 * A spot is one place in the document, as a schema or as a constant, or what such a place forbids. A set is a list of
 * spots that all hold, and stands for an item or a property. It is looked into only when it is needed: recursive
 * schemas have finitely many sets. */
#pragma once

#include "readers-internal.h"
#include "spelling-internal.h"

typedef uint32_t spot_id;
typedef uint32_t set_id;
enum { SPOT_NOTHING /* false */, SPOT_ANYTHING /* true */, SPOT_OBJECT /* any object */, FIRST_SPOTS };
enum { SET_ANYTHING = 0, SET_NOTHING = 1 };
enum { NEEDS = 1 };        /* a status: the shape of another spot or set must be made first */
#define ENDLESS UINT64_MAX /* of counts */

/* ---- shapes ---- */

enum { HAS_NULL = 1, HAS_FALSE = 2, HAS_TRUE = 4 };
/* Languages of numbers and strings hold all spellings of their values that have no exponent, and the canonical contents
 * of strings. These two stand for all numbers and strings, in every spelling. */
#define ALL_VALUES UINT32_MAX
enum spelling {
    ANY_SPELLING,
    NO_POINT, /* integers are written without a point */
    SHORTEST, /* also no zeros at the end, and no -0 */
};
struct property {
    uint32_t name; /* of schema_name */
    set_id value;
    bool is_required;
    bool is_declared; /* in `properties` */
};
/* Keys that are no property of the shape. */
struct cell {
    regex keys; /* contents, or ALL_VALUES */
    set_id value;
    bool is_implied; /* only the absence of additionalProperties allows them */
    bool is_pattern; /* of patternProperties */
};
/* At least one key of the language has a value of the set. */
struct demand {
    regex keys;
    set_id value;
    spot_id source; /* which schema demands it, for messages */
    bool is_rest;   /* no property of the object can meet it */
};
struct object {
    struct property *properties;
    struct cell *cells; /* disjoint; keys outside of them are forbidden */
    struct demand *demands;
    uint32_t property_count, cell_count, demand_count;
    uint64_t least, most; /* properties */
};
struct contained {
    set_id value;
    uint64_t least, most;
    spot_id source;
};
struct array {
    set_id *first;
    struct contained *contained;
    set_id rest;
    uint32_t first_count, contained_count;
    uint64_t least, most;
    spot_id unique; /* whose uniqueItems it is; 0: none */
};
struct shape {
    unsigned simple; /* null, false, true */
    regex number, string;
    enum spelling spelling; /* of numbers */
    bool has_nul;           /* a constant has U+0000 */
    bool is_wider;          /* a keyword was dropped: more is allowed than the schema says */
    struct array *arrays;   /* alternatives */
    struct object *objects;
    uint32_t array_count, object_count;
};

/* ---- the document ---- */

struct schema_place {
    const json_t *value;
    uint32_t parent; /* index; its own for the root */
    uint32_t base;   /* the place whose $id holds here */
    const char *key; /* in an object; NULL in an array */
    uint32_t index;  /* in its parent */
    uint32_t next_same_hash;
    bool is_schema; /* its keywords have been checked */
};
struct spot {
    const json_t *value;
    bool is_constant, is_negated;
    bool is_ready, is_open;
    uint32_t next_same_hash;
    struct shape *shape;
};
struct set {
    spot_id *spots;
    uint32_t count;
    bool is_ready, is_open; /* of is_empty */
    bool is_empty;          /* no value, for certain */
    bool has_rule;
    uint32_t next_same_hash;
    rule_id rule;
    struct shape *shape; /* NULL until it is made */
};
struct name {
    const char *text;
    size_t length;
    uint32_t next_same_hash;
    uint32_t marks[3], at[2]; /* scratch of a merge: is it in the left, the right, the result; where */
};
enum { SCHEMA_BUCKETS = 4096 };
struct schema {
    struct grammar_reading *reading;
    struct rules *rules;
    struct regexes *regexes;
    const char *place; /* of the schema, for messages */
    const json_t *root;
    /* Memory that lives as long as the schema is read; the first failure stays in `status`. */
    struct block *blocks;
    size_t bytes;
    int status;
    struct schema_place *places;
    size_t place_count, place_capacity;
    struct spot *spots;
    size_t spot_count, spot_capacity;
    struct resource {
        const char *uri, *anchor; /* an anchor's name; NULL: the resource itself */
        uint32_t place, base;
    } * resources;
    size_t resource_count, resource_capacity;
    struct set *sets;
    size_t set_count, set_capacity;
    struct name *names;
    size_t name_count, name_capacity;
    uint32_t place_buckets[SCHEMA_BUCKETS], spot_buckets[SCHEMA_BUCKETS], set_buckets[SCHEMA_BUCKETS],
        name_buckets[SCHEMA_BUCKETS];
    uint32_t mark;
    struct need {
        bool is_set;
        uint32_t id;
    } * needs; /* spots and sets that are being made, the innermost last */
    size_t need_count, need_capacity;
    bool has_needs;  /* since the last one began, others were added */
    set_id *written; /* sets with rules */
    size_t written_count, written_capacity;
    /* Keywords that are named in the answer: positions of schemas, and texts after them. */
    struct ignored {
        const char *order, *text;
    } * ignored;
    size_t ignored_count, ignored_capacity;
    regex space, quote, free_string, any_number, plain_number, integer, whole_numbers, exact_numbers, shortest,
        character, content;
    bool has_nul; /* some constant has U+0000 */
};

static inline uint32_t schema_hash(const void *bytes, size_t length) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    return (uint32_t)(hash >> 20 ^ hash) % SCHEMA_BUCKETS;
}

enum {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_NUMBER = 8,
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64
};
/* The bit of a type's name; 0: unknown. */
unsigned schema_type(const char *name);
void schema_free_blocks(struct schema *schema);

/* Returns zeroed memory that ends with the schema, or NULL; the failure stays in schema->status. */
void *schema_take(struct schema *schema, size_t count, size_t bytes);

/* Lists every object and array of the document. */
int schema_index(struct schema *schema, const json_t *root);
/* Returns a value's place; 0 for one without members (true, false). */
uint32_t schema_place_of(struct schema *schema, const json_t *value);
/* Checks the keywords of a schema and of all schemas in it; later calls for the same do nothing. */
int schema_check(struct schema *schema, const json_t *value);
/* Refuses: "PLACE.keyword: MESSAGE". `keyword` may be NULL. */
int schema_refuse(struct schema *schema, const json_t *value, const char *keyword, enum grammar_refusal refusal,
                  const char *format, ...) __attribute__((format(printf, 5, 6)));
/* Names a keyword in the answer, `detail` (may be NULL) after it. */
int schema_ignore(struct schema *schema, const json_t *value, const char *keyword, const char *detail);
/* A keyword that cannot be enforced: refuses it, or names it and sets *is_dropped. */
int schema_drop(struct schema *schema, const json_t *value, const char *keyword, const char *why, bool *is_dropped);
/* Makes the report's list of ignored keywords. */
int schema_report_ignored(struct schema *schema);
/* Finds what a $ref of a schema means. */
int schema_find(struct schema *schema, const json_t *from, const char *reference, const json_t **target);

uint32_t schema_name(struct schema *schema, const char *text, size_t length);
spot_id schema_spot(struct schema *schema, const json_t *value, bool is_constant, bool is_negated);
/* The set of two sets' spots, in order. */
set_id schema_both(struct schema *schema, set_id left, set_id right);
set_id schema_single(struct schema *schema, spot_id spot);

/* ---- shapes' operations ---- */

extern const struct object FREE_OBJECT;
extern const struct array FREE_ARRAY;
bool object_is_free(const struct object *object);
bool array_is_free(const struct array *array);
void shape_anything(struct shape *shape);
/* Shapes share their lists. The first may return NEEDS, and whatever calls it. */
int shape_intersect(struct schema *schema, const struct shape *left, const struct shape *right, struct shape *made);
int shape_unite(struct schema *schema, const struct shape *left, const struct shape *right, struct shape *made);
/* STATUS_NOT_FOUND, without a text, where the complement is not known. `source`: the schema that asks. */
int shape_complement(struct schema *schema, const struct shape *shape, spot_id source, struct shape *made);
/* The values that exactly one of the shapes has. NEEDS; STATUS_NOT_FOUND as above. */
int shape_exactly_one(struct schema *schema, const struct shape *const *shapes, size_t count, spot_id source,
                      struct shape *made);
/* True when a shape is known to have no value. It may not be known yet: then schema->has_needs. */
int shape_is_empty(struct schema *schema, const struct shape *shape, bool *is_empty);
/* Languages of numbers or strings that may be ALL_VALUES; `all` is what that means for a difference. */
regex values_both(struct schema *schema, regex left, regex right);
regex values_minus(struct schema *schema, regex left, regex right, regex all);
/* Whether a key is in a language of contents. */
bool object_has_key(struct schema *schema, regex keys, uint32_t name);
/* The cell of a key; NULL: the key is forbidden. */
const struct cell *object_cell(struct schema *schema, const struct object *object, uint32_t name);
/* Joins objects; *is_dead where no value is in both. */
int object_intersect(struct schema *schema, const struct object *left, const struct object *right, struct object *made,
                     bool *is_dead);

/* ---- what spots need ---- */

/* The set of these spots, which differ. */
set_id schema_add_set(struct schema *schema, const spot_id *spots, uint32_t count);
/* Whether a need is being worked on. */
bool *schema_open_flag(struct schema *schema, struct need need);

/* The shape of a spot; NEEDS until it is made. */
int schema_spot_shape(struct schema *schema, spot_id spot, const struct shape **shape);
/* The shape of all spots of a set together; NEEDS. */
int schema_set_shape(struct schema *schema, set_id set, const struct shape **shape);
/* As shape_is_empty. */
int schema_set_is_empty(struct schema *schema, set_id set, bool *is_empty);
/* Makes the shape of a spot from what its place says; NEEDS. */
int schema_make_shape(struct schema *schema, spot_id spot, struct shape *shape);
/* The spot of a schema, which may be true or false. */
spot_id schema_spot_of(struct schema *schema, const json_t *value);
set_id schema_set_of(struct schema *schema, const json_t *value);

/* ---- numbers ---- */

/* Numbers at least (or at most) a bound, which is a JSON number; `is_strict`: not the bound itself. */
regex number_bound(struct schema *schema, const json_t *bound, bool is_least, bool is_strict);
/* Multiples of a step; STATUS_NOT_FOUND, without a text, for one that is not supported. */
int number_multiples(struct schema *schema, const json_t *step, regex *language);
/* The spellings of one number. */
regex number_constant(struct schema *schema, const json_t *value, enum spelling *spelling);

/* ---- rules ---- */

/* Makes the shape of a set, with all that it needs. */
int schema_settle(struct schema *schema, set_id set, const struct shape **shape);
/* The node of a set's values; the rules that it calls are defined. */
int schema_rules(struct schema *schema, set_id set, rule_node *node);

/* ---- formats ---- */

/* The contents of strings of a format. STATUS_NOT_FOUND, without a text: it is not enforced. */
int format_read(struct grammar_reading *reading, const char *name, regex *language);
