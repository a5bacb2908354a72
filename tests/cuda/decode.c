/* Instructions of PTX: an opcode and its operands become one struct instruction. */
#include "cuda/handlers.h"
#include "cuda/lanes.h"
#include "cuda/parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool has(const struct statement *statement, const char *part) {
    for (int i = 1; i < statement->part_count; i++) {
        if (strcmp(statement->parts[i], part) == 0) {
            return true;
        }
    }
    return false;
}

/* The last part of the opcode that is a type. */
static struct ptx_type type_of(const struct statement *statement) {
    struct ptx_type type = {0}, found = {0};
    for (int i = 1; i < statement->part_count; i++) {
        found = parse_type(statement->parts[i], &type) ? type : found;
    }
    return found;
}

static void unknown(struct parser *parser, const struct statement *statement) {
    parser->lexer.line = statement->line;
    parse_fail(parser, "instruction %s is not known", statement->opcode);
}

/* ---- operands ---- */

static void add_operand(struct parser *parser, struct operand operand) {
    struct operand *added = PARSE_ADD(parser, parser->operands);
    if (added) {
        *added = operand;
    }
}

/* The bits of a constant as a type of some bytes: "1.5" is a double in the text. */
static uint64_t bits_as(const struct argument *argument, struct ptx_type type) {
    if (!argument->is_real || type.bytes == 8) {
        return argument->bits;
    }
    double value;
    memcpy(&value, &argument->bits, sizeof value);
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    return bits;
}

/* A source of `bytes` a lane; a constant becomes a register that every warp starts with. */
static void add_source(struct parser *parser, const struct argument *argument, uint8_t bytes) {
    if (argument->kind == ARGUMENT_CONSTANT) {
        uint64_t bits = bits_as(argument, (struct ptx_type){.bytes = bytes});
        add_operand(parser, parse_constant(parser, bits, bytes));
        return;
    }
    if (argument->kind != ARGUMENT_REGISTER || argument->operand.bytes != bytes) {
        parse_fail(parser, "an operand is no register of %d bytes", bytes);
        return;
    }
    add_operand(parser, argument->operand);
}

/* A source whose register may hold more bytes than the type. */
static void add_roomy(struct parser *parser, const struct argument *argument, uint8_t bytes) {
    bool is_register = argument->kind == ARGUMENT_REGISTER && argument->operand.bytes >= bytes;
    add_source(parser, argument, is_register ? argument->operand.bytes : bytes);
}

static void add_destination(struct parser *parser, const struct argument *argument, uint8_t bytes) {
    if (argument->kind == ARGUMENT_SINK) {
        add_operand(parser, parse_place(parser, bytes));
        return;
    }
    if (argument->kind != ARGUMENT_REGISTER || argument->operand.slot == SLOT_CONSTANT ||
        argument->operand.bytes != bytes) {
        parse_fail(parser, "a destination is no register of %d bytes", bytes);
        return;
    }
    add_operand(parser, argument->operand);
}

static void add_roomy_destination(struct parser *parser, const struct argument *argument, uint8_t bytes) {
    bool roomy = argument->kind == ARGUMENT_REGISTER && argument->operand.bytes >= bytes;
    add_destination(parser, argument, roomy ? argument->operand.bytes : bytes);
}

/* The register of an address; a constant 0 where there is none. Its displacement goes to the instruction. */
static void add_address(struct parser *parser, const struct argument *argument, struct instruction *made) {
    if (argument->kind != ARGUMENT_MEMORY) {
        parse_fail(parser, "an operand is no address");
        return;
    }
    made->displacement = (int64_t)argument->bits;
    add_operand(parser, argument->has_register ? argument->operand : parse_constant(parser, 0, 8));
}

/* ---- families of opcodes ---- */

typedef void decode(struct parser *parser, struct statement *statement, struct instruction *made);

static const struct lanes_row *row_of(const struct statement *statement) {
    char key[PARSE_WORD] = "";
    for (int i = 0; i < statement->part_count; i++) {
        const char *part = statement->parts[i];
        if (strcmp(part, "rn") == 0 || strcmp(part, "ftz") == 0 || strcmp(part, "sat") == 0) {
            continue;
        }
        part = strcmp(part, "full") == 0 ? "approx" : part;
        snprintf(key + strlen(key), sizeof key - strlen(key), "%s%s", i ? "." : "", part);
    }
    return lanes_find(key);
}

/* Everything with a row in the table of lanes. */
static void decode_lanes(struct parser *parser, struct statement *statement, struct instruction *made) {
    made->flush = has(statement, "ftz"), made->clamp = has(statement, "sat");
    const struct lanes_row *row = row_of(statement);
    int sources = row ? (row->source[0] > 0) + (row->source[1] > 0) + (row->source[2] > 0) : 0;
    if (!row || statement->argument_count != 1 + sources) {
        unknown(parser, statement);
        return;
    }
    made->run = run_lanes, made->lanes = row->run;
    made->destinations = 1, made->sources = (uint8_t)sources;
    made->type = type_of(statement);
    add_destination(parser, &statement->arguments[0], row->destination);
    for (int i = 0; i < sources; i++) {
        add_source(parser, &statement->arguments[1 + i], row->source[i]);
    }
}

static void decode_setp(struct parser *parser, struct statement *statement, struct instruction *made) {
    static const char *const joins[] = {"", "and", "or", "xor"};
    made->run = run_compare;
    made->type = type_of(statement);
    made->compare = statement->part_count > 2 ? lanes_compare_find(statement->parts[1], made->type) : NULL;
    made->flush = has(statement, "ftz");
    for (uint8_t i = JOIN_AND; i <= JOIN_XOR; i++) {
        made->mode = has(statement, joins[i]) ? i : made->mode;
    }
    int joined = made->mode != JOIN_NONE, outputs = statement->argument_count - 2 - joined;
    if (!made->compare || outputs < 1 || outputs > 2) {
        unknown(parser, statement);
        return;
    }
    made->destinations = 2, made->sources = (uint8_t)(2 + joined);
    const struct argument none = {.kind = ARGUMENT_SINK}, *at = statement->arguments;
    add_destination(parser, at++, 0);
    add_destination(parser, outputs == 2 ? at++ : &none, 0);
    add_source(parser, at++, made->type.bytes);
    add_source(parser, at++, made->type.bytes);
    if (joined) {
        add_source(parser, at, 0);
    }
}

static void decode_selp(struct parser *parser, struct statement *statement, struct instruction *made) {
    made->run = run_select;
    made->type = type_of(statement);
    made->destinations = 1, made->sources = 3;
    add_destination(parser, &statement->arguments[0], made->type.bytes);
    add_source(parser, &statement->arguments[1], made->type.bytes);
    add_source(parser, &statement->arguments[2], made->type.bytes);
    add_source(parser, &statement->arguments[3], 0);
}

static void decode_predicates(struct parser *parser, struct statement *statement, struct instruction *made) {
    static const char *const names[] = {"mov", "not", "and", "or", "xor"};
    made->run = run_logic;
    for (uint8_t i = 0; i < sizeof names / sizeof *names; i++) {
        made->mode = strcmp(statement->parts[0], names[i]) == 0 ? i : made->mode;
    }
    made->destinations = 1, made->sources = (uint8_t)(statement->argument_count - 1);
    for (int i = 0; i < statement->argument_count; i++) {
        struct argument *argument = &statement->arguments[i];
        if (argument->kind == ARGUMENT_CONSTANT) { /* a mask of all lanes or of none */
            struct operand constant = parse_constant(parser, argument->bits ? UINT32_MAX : 0, 4);
            add_operand(parser, (struct operand){.at = constant.at, .slot = SLOT_CONSTANT});
        } else {
            add_source(parser, argument, 0);
        }
    }
}

static void decode_mov(struct parser *parser, struct statement *statement, struct instruction *made) {
    struct argument *to = &statement->arguments[0], *from = &statement->arguments[1];
    struct ptx_type type = type_of(statement);
    if (type.class == CLASS_PREDICATE) {
        decode_predicates(parser, statement, made);
    } else if (statement->argument_count == 2 && to->kind == ARGUMENT_VECTOR) {
        made->run = run_unpack;
        made->destinations = (uint8_t)to->count, made->sources = 1;
        for (int i = 0; i < to->count; i++) {
            add_destination(parser, &to->elements[i], (uint8_t)(type.bytes / to->count));
        }
        add_source(parser, from, type.bytes);
    } else if (statement->argument_count == 2 && from->kind == ARGUMENT_VECTOR) {
        made->run = run_pack;
        made->destinations = 1, made->sources = (uint8_t)from->count;
        add_destination(parser, to, type.bytes);
        for (int i = 0; i < from->count; i++) {
            add_source(parser, &from->elements[i], (uint8_t)(type.bytes / from->count));
        }
    } else {
        decode_lanes(parser, statement, made);
    }
}

static void decode_logic(struct parser *parser, struct statement *statement, struct instruction *made) {
    if (type_of(statement).class == CLASS_PREDICATE) {
        decode_predicates(parser, statement, made);
    } else {
        decode_lanes(parser, statement, made);
    }
}

/* True for a conversion with a row in the table of lanes whose registers hold just their types. */
static bool converts_lanes(const struct statement *statement) {
    const struct argument *to = &statement->arguments[0], *from = &statement->arguments[1];
    const struct lanes_row *row = row_of(statement);
    return row && to->kind == ARGUMENT_REGISTER && to->operand.bytes == row->destination &&
           from->kind == ARGUMENT_REGISTER && from->operand.bytes == row->source[0] &&
           (type_of(statement).class == CLASS_FLOAT || !has(statement, "sat"));
}

static void decode_cvt(struct parser *parser, struct statement *statement, struct instruction *made) {
    static const struct {
        const char *name;
        uint8_t mode; /* enum rounding; 4 rounds to whole numbers */
    } roundings[] = {{"rn", 0}, {"rz", 1}, {"rm", 2}, {"rp", 3}, {"rni", 4}, {"rzi", 5}, {"rmi", 6}, {"rpi", 7}};
    static const char *const known[] = {"ftz", "sat", "rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "rna"};
    int types = 0;
    if (converts_lanes(statement)) {
        decode_lanes(parser, statement, made);
        return;
    }
    for (int i = 1; i < statement->part_count; i++) {
        struct ptx_type type;
        bool is_known = parse_type(statement->parts[i], &type);
        if (is_known) {
            made->type = types++ ? made->type : type;
            made->from = type;
        }
        for (size_t j = 0; j < sizeof known / sizeof *known; j++) {
            is_known |= strcmp(known[j], statement->parts[i]) == 0;
        }
        for (size_t j = 0; j < sizeof roundings / sizeof *roundings; j++) {
            made->mode = strcmp(roundings[j].name, statement->parts[i]) == 0 ? roundings[j].mode : made->mode;
        }
        types = is_known ? types : 9;
    }
    made->flush = has(statement, "ftz"), made->clamp = has(statement, "sat");
    bool to_tf32 = has(statement, "tf32");
    if (types != 2 || made->from.packed || (to_tf32 && !has(statement, "rna"))) {
        unknown(parser, statement);
        return;
    }
    made->destinations = 1, made->sources = made->type.packed ? 2 : 1;
    made->run = made->type.packed ? run_pair : run_convert;
    made->space = to_tf32; /* rounds to 10 bits, ties away from zero */
    add_roomy_destination(parser, &statement->arguments[0], made->type.bytes);
    for (int i = 0; i < made->sources; i++) {
        add_roomy(parser, &statement->arguments[1 + i], made->from.bytes);
    }
}

static void decode_lop3(struct parser *parser, struct statement *statement, struct instruction *made) {
    made->run = run_lop3;
    made->destinations = 1, made->sources = 3;
    if (statement->argument_count != 5 || statement->arguments[4].kind != ARGUMENT_CONSTANT) {
        unknown(parser, statement);
        return;
    }
    made->displacement = (int64_t)statement->arguments[4].bits;
    add_destination(parser, &statement->arguments[0], 4);
    for (int i = 1; i < 4; i++) {
        add_source(parser, &statement->arguments[i], 4);
    }
}

static void decode_bfi(struct parser *parser, struct statement *statement, struct instruction *made) {
    made->run = run_insert;
    made->type = type_of(statement);
    made->destinations = 1, made->sources = 4;
    if (statement->argument_count != 5 || made->type.bytes < 4) {
        unknown(parser, statement);
        return;
    }
    add_destination(parser, &statement->arguments[0], made->type.bytes);
    for (int i = 1; i < 5; i++) {
        add_source(parser, &statement->arguments[i], i < 3 ? made->type.bytes : 4);
    }
}

static uint8_t space_of(const struct statement *statement) {
    return has(statement, "global") || has(statement, "const")         ? SPACE_GLOBAL
           : has(statement, "shared") || has(statement, "shared::cta") ? SPACE_SHARED
           : has(statement, "local")                                   ? SPACE_LOCAL
           : has(statement, "param")                                   ? SPACE_PARAM
                                                                       : SPACE_GENERIC;
}

static void decode_cvta(struct parser *parser, struct statement *statement, struct instruction *made) {
    made->run = run_window;
    made->mode = !has(statement, "to");
    made->space = space_of(statement);
    if (made->space == SPACE_PARAM) {
        unknown(parser, statement);
        return;
    }
    made->destinations = 1, made->sources = 1;
    add_destination(parser, &statement->arguments[0], 8);
    add_source(parser, &statement->arguments[1], 8);
}

/* ---- memory ---- */

static void add_elements(struct parser *parser, const struct argument *argument, struct instruction *made,
                         bool is_load) {
    const struct argument *elements = argument->kind == ARGUMENT_VECTOR ? argument->elements : argument;
    int count = argument->kind == ARGUMENT_VECTOR ? argument->count : 1;
    if (count != made->vector) {
        parse_fail(parser, "%d elements where %d are moved", count, made->vector);
    }
    for (int i = 0; i < count; i++) {
        if (is_load) {
            add_roomy_destination(parser, &elements[i], made->type.bytes);
        } else {
            add_roomy(parser, &elements[i], made->type.bytes);
        }
    }
}

static void decode_access(struct parser *parser, struct statement *statement, struct instruction *made) {
    bool is_load = statement->parts[0][0] == 'l';
    made->space = space_of(statement);
    made->type = type_of(statement);
    made->vector = has(statement, "v4") ? 4 : has(statement, "v2") ? 2 : 1;
    bool is_param = made->space == SPACE_PARAM;
    if (made->type.bytes == 0 || statement->argument_count != 2 || (is_param && !is_load)) {
        unknown(parser, statement);
        return;
    }
    const struct argument *address = &statement->arguments[!!is_load], *values = &statement->arguments[!is_load];
    made->run = is_param ? run_load_param : is_load ? run_load : run_store;
    made->destinations = is_load ? made->vector : 0;
    made->sources = is_load ? 1 : (uint8_t)(1 + made->vector);
    if (is_load) {
        add_elements(parser, values, made, true);
    }
    add_address(parser, address, made);
    if (!is_load) {
        add_elements(parser, values, made, false);
    }
}

static int place_of(const char *const *names, int count, const struct statement *statement) {
    for (int i = 0; i < count; i++) {
        if (has(statement, names[i])) {
            return i;
        }
    }
    return -1;
}

static const char *const atomics[] = {"add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"};

static void decode_atomic(struct parser *parser, struct statement *statement, struct instruction *made) {
    int operation = place_of(atomics, 10, statement);
    bool answers = strcmp(statement->parts[0], "atom") == 0;
    int inputs = operation == ATOMIC_CAS ? 2 : 1;
    made->type = type_of(statement);
    bool is_float_add = made->type.class == CLASS_FLOAT && operation == ATOMIC_ADD && made->type.bytes >= 4;
    bool is_type_known =
        made->type.bytes >= 4 && !made->type.packed && (made->type.class != CLASS_FLOAT || is_float_add);
    if (operation < 0 || !is_type_known || statement->argument_count != answers + 1 + inputs) {
        unknown(parser, statement);
        return;
    }
    made->run = run_atomic, made->mode = (uint8_t)operation;
    made->space = space_of(statement);
    made->destinations = 1, made->sources = (uint8_t)(1 + inputs);
    const struct argument none = {.kind = ARGUMENT_SINK}, *at = statement->arguments;
    add_destination(parser, answers ? at++ : &none, made->type.bytes);
    add_address(parser, at++, made);
    for (int i = 0; i < inputs; i++) {
        add_source(parser, at++, made->type.bytes);
    }
}

static void decode_cp(struct parser *parser, struct statement *statement, struct instruction *made) {
    if (!has(statement, "async") || has(statement, "bulk") || has(statement, "mbarrier")) {
        unknown(parser, statement);
    } else if (has(statement, "commit_group")) {
        made->run = run_copy_commit;
    } else if (has(statement, "wait_group") || has(statement, "wait_all")) {
        made->run = run_copy_wait;
        made->displacement = has(statement, "wait_all") ? -1 : (int64_t)statement->arguments[0].bits;
    } else if (statement->argument_count < 3 || statement->arguments[2].kind != ARGUMENT_CONSTANT ||
               (statement->arguments[2].bits != 4 && statement->arguments[2].bits != 8 &&
                statement->arguments[2].bits != 16)) {
        unknown(parser, statement);
    } else {
        made->run = run_copy_async;
        made->vector = (uint8_t)statement->arguments[2].bits;
        made->sources = 3;
        struct instruction from = {0};
        add_address(parser, &statement->arguments[0], made);
        add_address(parser, &statement->arguments[1], &from);
        if (from.displacement || made->displacement) {
            parse_fail(parser, "%s with a displacement is not known", statement->opcode);
        }
        const struct argument *taken = &statement->arguments[statement->argument_count > 3 ? 3 : 2];
        add_source(parser, taken, 4);
    }
}

/* ---- control, collectives, products ---- */

static void decode_bra(struct parser *parser, struct statement *statement, struct instruction *made) {
    made->run = run_branch;
    if (statement->argument_count != 1 || statement->arguments[0].kind != ARGUMENT_LABEL) {
        unknown(parser, statement);
        return;
    }
    struct label *use = PARSE_ADD(parser, parser->uses);
    if (use) {
        *use = parse_label(parser, statement->label, (uint32_t)parser->code.count - 1);
        use->line = statement->line;
    }
}

static void decode_exit(struct parser *parser, struct statement *statement, struct instruction *made) {
    (void)parser;
    made->run = strcmp(statement->parts[0], "trap") == 0 ? run_trap : run_exit;
}

static void decode_nothing(struct parser *parser, struct statement *statement, struct instruction *made) {
    (void)parser, (void)statement;
    made->run = run_nothing;
}

static void decode_fence(struct parser *parser, struct statement *statement, struct instruction *made) {
    (void)parser, (void)statement;
    made->run = run_fence;
}

static void decode_bar(struct parser *parser, struct statement *statement, struct instruction *made) {
    if (!has(statement, "sync") || statement->argument_count < 1 || statement->argument_count > 2) {
        unknown(parser, statement);
        return;
    }
    const struct argument all = {.kind = ARGUMENT_CONSTANT};
    made->run = has(statement, "warp") ? run_warp_barrier : run_barrier;
    made->sources = 2;
    add_source(parser, &statement->arguments[0], 4);
    add_source(parser, statement->argument_count == 2 ? &statement->arguments[1] : &all, 4);
}

static void decode_shfl(struct parser *parser, struct statement *statement, struct instruction *made) {
    static const char *const kinds[] = {"up", "down", "bfly", "idx"};
    int kind = place_of(kinds, 4, statement), outputs = statement->argument_count - 4;
    if (kind < 0 || !has(statement, "sync") || outputs < 1 || outputs > 2) {
        unknown(parser, statement);
        return;
    }
    made->run = run_shuffle, made->mode = (uint8_t)kind;
    made->destinations = 2, made->sources = 4;
    const struct argument none = {.kind = ARGUMENT_SINK}, *at = statement->arguments;
    add_destination(parser, at++, 4);
    add_destination(parser, outputs == 2 ? at++ : &none, 0);
    for (int i = 0; i < 4; i++) {
        add_source(parser, at++, 4);
    }
}

static void decode_vote(struct parser *parser, struct statement *statement, struct instruction *made) {
    static const char *const kinds[] = {"ballot", "any", "all", "uni"};
    int kind = place_of(kinds, 4, statement);
    if (kind < 0 || !has(statement, "sync") || statement->argument_count != 3) {
        unknown(parser, statement);
        return;
    }
    made->run = run_vote, made->mode = (uint8_t)kind;
    made->destinations = 1, made->sources = 2;
    add_destination(parser, &statement->arguments[0], kind == VOTE_BALLOT ? 4 : 0);
    add_source(parser, &statement->arguments[1], 0);
    add_source(parser, &statement->arguments[2], 4);
}

static void decode_redux(struct parser *parser, struct statement *statement, struct instruction *made) {
    int operation = place_of(atomics, 6, statement);
    made->type = type_of(statement);
    if (operation < 0 || made->type.bytes != 4 || made->type.class == CLASS_FLOAT || statement->argument_count != 3) {
        unknown(parser, statement);
        return;
    }
    made->run = run_reduce, made->mode = (uint8_t)operation;
    made->destinations = 1, made->sources = 2;
    add_destination(parser, &statement->arguments[0], 4);
    add_source(parser, &statement->arguments[1], 4);
    add_source(parser, &statement->arguments[2], 4);
}

static void decode_activemask(struct parser *parser, struct statement *statement, struct instruction *made) {
    made->run = run_active;
    made->destinations = 1;
    add_destination(parser, &statement->arguments[0], 4);
}

static void decode_ldmatrix(struct parser *parser, struct statement *statement, struct instruction *made) {
    int count = has(statement, "x4") ? 4 : has(statement, "x2") ? 2 : has(statement, "x1") ? 1 : 0;
    const struct argument *to = &statement->arguments[0];
    if (!count || !has(statement, "m8n8") || !has(statement, "b16") || space_of(statement) != SPACE_SHARED ||
        statement->argument_count != 2) {
        unknown(parser, statement);
        return;
    }
    made->run = run_load_matrix, made->mode = has(statement, "trans");
    made->vector = (uint8_t)count, made->type = (struct ptx_type){.class = CLASS_BITS, .bytes = 4};
    made->space = SPACE_SHARED;
    made->destinations = (uint8_t)count, made->sources = 1;
    add_elements(parser, to, made, true);
    add_address(parser, &statement->arguments[1], made);
}

static void decode_mma(struct parser *parser, struct statement *statement, struct instruction *made) {
    static const struct {
        const char *suffix;
        uint8_t product, a, b;
    } products[] = {{"m16n8k16.row.col.f32.bf16.bf16.f32", PRODUCT_BF16_K16, 4, 2},
                    {"m16n8k8.row.col.f32.bf16.bf16.f32", PRODUCT_BF16_K8, 2, 1},
                    {"m16n8k8.row.col.f32.tf32.tf32.f32", PRODUCT_TF32_K8, 4, 2},
                    {"m16n8k4.row.col.f32.tf32.tf32.f32", PRODUCT_TF32_K4, 2, 1},
                    {"m16n8k16.row.col.f32.f16.f16.f32", PRODUCT_F16_K16, 4, 2}};
    static const char prefix[] = "mma.sync.aligned.";
    for (size_t i = 0; i < sizeof products / sizeof *products && statement->argument_count == 4; i++) {
        if (strncmp(statement->opcode, prefix, sizeof prefix - 1) ||
            strcmp(statement->opcode + sizeof prefix - 1, products[i].suffix)) {
            continue;
        }
        made->run = run_product, made->mode = products[i].product;
        made->destinations = 4, made->sources = (uint8_t)(products[i].a + products[i].b + 4);
        made->type = (struct ptx_type){.class = CLASS_FLOAT, .bytes = 4};
        const uint8_t counts[] = {4, products[i].a, products[i].b, 4};
        for (int j = 0; j < 4; j++) {
            made->vector = counts[j];
            add_elements(parser, &statement->arguments[j], made, j == 0);
        }
        return;
    }
    unknown(parser, statement);
}

static const struct {
    const char *name;
    decode *decode;
} families[] = {
    {"setp", decode_setp},
    {"selp", decode_selp},
    {"mov", decode_mov},
    {"and", decode_logic},
    {"or", decode_logic},
    {"xor", decode_logic},
    {"not", decode_logic},
    {"cvt", decode_cvt},
    {"lop3", decode_lop3},
    {"bfi", decode_bfi},
    {"cvta", decode_cvta},
    {"ld", decode_access},
    {"ldu", decode_access},
    {"st", decode_access},
    {"atom", decode_atomic},
    {"red", decode_atomic},
    {"cp", decode_cp},
    {"bra", decode_bra},
    {"ret", decode_exit},
    {"exit", decode_exit},
    {"trap", decode_exit},
    {"membar", decode_fence},
    {"fence", decode_fence},
    {"bar", decode_bar},
    {"barrier", decode_bar},
    {"shfl", decode_shfl},
    {"vote", decode_vote},
    {"redux", decode_redux},
    {"activemask", decode_activemask},
    {"ldmatrix", decode_ldmatrix},
    {"mma", decode_mma},
    {"prefetch", decode_nothing},
    {"nanosleep", decode_nothing},
};

static void split(struct statement *statement) {
    memcpy(statement->parted, statement->opcode, sizeof statement->parted);
    char *rest = statement->parted, *part;
    while (statement->part_count < 16 && (part = strsep(&rest, "."))) {
        statement->parts[statement->part_count++] = part;
    }
}

void decode_statement(struct parser *parser, struct statement *statement) {
    split(statement);
    struct instruction *added = PARSE_ADD(parser, parser->code);
    if (!added) {
        return;
    }
    struct instruction made = {.line = statement->line, .opcode = strdup(statement->opcode)};
    added->opcode = made.opcode;
    size_t first = parser->operands.count, code = parser->code.count - 1;
    decode *found = decode_lanes;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (strcmp(families[i].name, statement->parts[0]) == 0) {
            found = families[i].decode;
            break;
        }
    }
    found(parser, statement, &made);
    if (statement->is_guarded) {
        made.guard = (uint16_t)(1 + parser->operands.count - first);
        add_operand(parser, statement->guard);
    }
    made.operands = (const struct operand *)first; /* an index until finish_kernel() */
    parser->code.items[code] = made;
}
