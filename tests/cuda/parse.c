/* Directives and operands of PTX. */
#include "cuda/parse.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void parse_fail(struct parser *parser, const char *format, ...) {
    if (!parser->failed) {
        int length = snprintf(parser->message, PTX_MESSAGE, "%s:%u: ", parser->module->name, parser->lexer.line);
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(parser->message + length, (size_t)(PTX_MESSAGE - length), format, arguments);
        va_end(arguments);
        parser->failed = true;
    }
    parser->lexer.at = parser->lexer.end; /* whoever reads on finds the end */
    parser->lexer.token = TOKEN_END;
}

void *parse_grow(struct parser *parser, void **items, size_t *count, size_t *room, size_t size) {
    if (*count == *room) {
        size_t more = *room ? 2 * *room : 32;
        void *grown = realloc(*items, more * size);
        if (!grown) {
            parse_fail(parser, "out of memory");
            return NULL;
        }
        *items = grown, *room = more;
    }
    void *item = (char *)*items + (*count)++ * size;
    memset(item, 0, size);
    return item;
}

bool parse_type(const char *word, struct ptx_type *type) {
    static const struct {
        const char *name;
        struct ptx_type type;
    } types[] = {
        {"pred", {CLASS_PREDICATE, 0, false}}, {"b8", {CLASS_BITS, 1, false}},      {"b16", {CLASS_BITS, 2, false}},
        {"b32", {CLASS_BITS, 4, false}},       {"b64", {CLASS_BITS, 8, false}},     {"u8", {CLASS_UNSIGNED, 1, false}},
        {"u16", {CLASS_UNSIGNED, 2, false}},   {"u32", {CLASS_UNSIGNED, 4, false}}, {"u64", {CLASS_UNSIGNED, 8, false}},
        {"s8", {CLASS_SIGNED, 1, false}},      {"s16", {CLASS_SIGNED, 2, false}},   {"s32", {CLASS_SIGNED, 4, false}},
        {"s64", {CLASS_SIGNED, 8, false}},     {"f16", {CLASS_FLOAT, 2, false}},    {"f32", {CLASS_FLOAT, 4, false}},
        {"f64", {CLASS_FLOAT, 8, false}},      {"bf16", {CLASS_BFLOAT, 2, false}},  {"bf16x2", {CLASS_BFLOAT, 4, true}},
        {"f16x2", {CLASS_FLOAT, 4, true}},     {"tf32", {CLASS_FLOAT, 4, false}},
    };
    word += word[0] == '.';
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(types[i].name, word) == 0) {
            *type = types[i].type;
            return true;
        }
    }
    return false;
}

/* Goes over a mark that must come next. */
static void expect(struct parser *parser, const char *word) {
    if (!lexer_is(&parser->lexer, word)) {
        parse_fail(parser, "'%s' is expected, and not '%s'", word, parser->lexer.word);
    }
    lexer_next(&parser->lexer);
}

static bool take(struct parser *parser, const char *word) {
    if (!lexer_is(&parser->lexer, word)) {
        return false;
    }
    lexer_next(&parser->lexer);
    return true;
}

static uint64_t take_number(struct parser *parser) {
    uint64_t bits = 0;
    bool is_real;
    if (parser->lexer.token != TOKEN_NUMBER || !lexer_number(parser->lexer.word, &bits, &is_real)) {
        parse_fail(parser, "'%s' is no number", parser->lexer.word);
    }
    lexer_next(&parser->lexer);
    return bits;
}

/* ---- registers ---- */

struct operand parse_place(struct parser *parser, uint8_t bytes) {
    struct ptx_kernel *kernel = parser->kernel;
    uint32_t size = bytes ? bytes * LANES : 4;
    uint32_t at = bytes ? (kernel->register_bytes + 63) / 64 * 64 : kernel->register_bytes;
    kernel->register_bytes = at + size;
    if (kernel->slots == UINT16_MAX) {
        parse_fail(parser, "a kernel with more than %u registers", UINT16_MAX);
    }
    return (struct operand){.at = at, .slot = (uint16_t)kernel->slots++, .bytes = bytes};
}

struct operand parse_constant(struct parser *parser, uint64_t value, uint8_t bytes) {
    value = bytes == 8 ? value : value & ((1ull << 8 * bytes) - 1);
    for (size_t i = 0; i < parser->constants.count; i++) {
        const struct ptx_constant *known = &parser->constants.items[i];
        if (known->value == value && known->bytes == bytes) {
            return (struct operand){.at = known->at, .slot = SLOT_CONSTANT, .bytes = bytes};
        }
    }
    struct ptx_constant *constant = PARSE_ADD(parser, parser->constants);
    if (!constant) {
        return (struct operand){0};
    }
    *constant = (struct ptx_constant){.value = value, .at = parse_place(parser, bytes).at, .bytes = bytes};
    return (struct operand){.at = constant->at, .slot = SLOT_CONSTANT, .bytes = bytes};
}

/* .reg .type name<count>, name, ...; */
static void parse_registers(struct parser *parser) {
    struct ptx_type type;
    if (!parse_type(parser->lexer.word, &type) || type.bytes == 1) {
        parse_fail(parser, "registers of type %s are not known", parser->lexer.word);
    }
    do {
        lexer_next(&parser->lexer);
        struct register_name *name = PARSE_ADD(parser, parser->registers);
        if (!name) {
            return;
        }
        snprintf(name->name, sizeof name->name, "%s", parser->lexer.word);
        lexer_next(&parser->lexer);
        name->bytes = type.bytes;
        name->scope = parser->scope;
        if (take(parser, "<")) {
            name->count = (uint32_t)take_number(parser);
            expect(parser, ">");
        }
        struct operand first = parse_place(parser, type.bytes);
        name->at = first.at, name->slot = first.slot;
        name->stride = type.bytes ? type.bytes * LANES : 4;
        for (uint32_t i = 1; i < name->count && !parser->failed; i++) {
            struct operand next = parse_place(parser, type.bytes);
            name->stride = next.at - first.at;
            first.at = next.at;
        }
    } while (lexer_is(&parser->lexer, ","));
    expect(parser, ";");
}

static bool find_register(const struct parser *parser, const char *word, struct operand *operand) {
    for (size_t i = parser->registers.count; i-- > 0;) {
        const struct register_name *name = &parser->registers.items[i];
        size_t length = strlen(name->name);
        if (strncmp(name->name, word, length) != 0) {
            continue;
        }
        uint32_t number = 0;
        if (name->count > 0) {
            char *end;
            number = (uint32_t)strtoul(word + length, &end, 10);
            if (end == word + length || *end || number >= name->count) {
                continue;
            }
        } else if (word[length]) {
            continue;
        }
        *operand = (struct operand){
            .at = name->at + number * name->stride, .slot = (uint16_t)(name->slot + number), .bytes = name->bytes};
        return true;
    }
    return false;
}

static bool find_special(struct parser *parser, const char *word, struct operand *operand) {
    static const char *const names[SPECIAL_COUNT] = {"%tid.x",    "%tid.y",    "%tid.z",   "%ntid.x",  "%ntid.y",
                                                     "%ntid.z",   "%ctaid.x",  "%ctaid.y", "%ctaid.z", "%nctaid.x",
                                                     "%nctaid.y", "%nctaid.z", "%laneid",  "%warpid"};
    for (int i = 0; i < SPECIAL_COUNT; i++) {
        if (strcmp(names[i], word) == 0) {
            if (parser->kernel->special[i] == UINT32_MAX) {
                parser->kernel->special[i] = parse_place(parser, 4).at;
            }
            *operand = (struct operand){.at = parser->kernel->special[i], .slot = SLOT_CONSTANT, .bytes = 4};
            return true;
        }
    }
    return false;
}

/* ---- names with an address ---- */

static bool find_param(const struct parser *parser, const char *word, uint64_t *address) {
    for (size_t i = 0; i < parser->kernel->param_count; i++) {
        if (strcmp(parser->kernel->params[i].name, word) == 0) {
            *address = parser->kernel->params[i].at;
            return true;
        }
    }
    return false;
}

static bool find_shared(struct parser *parser, const char *word, uint64_t *address) {
    struct ptx_kernel *kernel = parser->kernel;
    for (size_t i = 0; i < parser->shared.count; i++) {
        struct shared_name *name = &parser->shared.items[i];
        if (strcmp(name->name, word) != 0) {
            continue;
        }
        if (name->is_extern) {
            parser->places_extern = true;
            kernel->shared_bytes = (kernel->shared_bytes + 15) / 16 * 16;
            *address = kernel->shared_bytes;
            return true;
        }
        if (name->at == UINT32_MAX) { /* the module's: this kernel uses it first */
            uint32_t *end = name->is_local ? &kernel->local_bytes : &kernel->shared_bytes;
            if (parser->places_extern && !name->is_local) {
                parse_fail(parser, "%s is used after memory whose size the launch sets", word);
            }
            name->at = (*end + name->align - 1) / name->align * name->align;
            *end = name->at + name->bytes;
        }
        *address = name->at;
        return true;
    }
    return false;
}

static bool find_name(struct parser *parser, const char *word, uint64_t *address) {
    for (const struct ptx_variable *at = parser->module->variables; at; at = at->next) {
        if (strcmp(at->name, word) == 0) {
            *address = at->address;
            return true;
        }
    }
    return find_param(parser, word, address) || find_shared(parser, word, address);
}

/* ---- arguments ---- */

static void parse_argument(struct parser *parser, struct statement *statement, struct argument *argument);

/* [register + number], [name + number], [number] */
static void parse_address(struct parser *parser, struct argument *argument) {
    struct lexer *lexer = &parser->lexer;
    argument->kind = ARGUMENT_MEMORY;
    if (find_register(parser, lexer->word, &argument->operand)) {
        argument->has_register = true;
        lexer_next(lexer);
    } else if (lexer->token == TOKEN_NUMBER) {
        argument->bits = take_number(parser);
    } else if (find_name(parser, lexer->word, &argument->bits)) {
        lexer_next(lexer);
    } else {
        parse_fail(parser, "'%s' is not known", lexer->word);
    }
    if (take(parser, "+")) {
        argument->bits += take_number(parser);
    }
    expect(parser, "]");
}

static void parse_vector(struct parser *parser, struct statement *statement, struct argument *argument) {
    argument->kind = ARGUMENT_VECTOR;
    argument->elements = &statement->store[statement->stored];
    do {
        if (argument->count == PARSE_ELEMENTS || statement->stored == 32) {
            parse_fail(parser, "a vector of more than %d", PARSE_ELEMENTS);
            return;
        }
        statement->stored++;
        parse_argument(parser, statement, &argument->elements[argument->count++]);
    } while (take(parser, ","));
    expect(parser, "}");
}

static void parse_argument(struct parser *parser, struct statement *statement, struct argument *argument) {
    struct lexer *lexer = &parser->lexer;
    *argument = (struct argument){0};
    if (take(parser, "[")) {
        parse_address(parser, argument);
        return;
    }
    if (take(parser, "{")) {
        parse_vector(parser, statement, argument);
        return;
    }
    bool negated = take(parser, "!");
    bool negative = take(parser, "-");
    if (find_register(parser, lexer->word, &argument->operand) ||
        find_special(parser, lexer->word, &argument->operand)) {
        argument->kind = ARGUMENT_REGISTER;
        argument->operand.negated = negated;
    } else if (lexer->token == TOKEN_NUMBER && lexer_number(lexer->word, &argument->bits, &argument->is_real)) {
        argument->kind = ARGUMENT_CONSTANT;
        argument->bits = negative ? 0 - argument->bits : argument->bits;
    } else if (lexer_is(lexer, "_")) {
        argument->kind = ARGUMENT_SINK;
    } else if (lexer->token == TOKEN_WORD && lexer->word[0] == '%') {
        parse_fail(parser, "register %s is not known", lexer->word);
    } else if (find_name(parser, lexer->word, &argument->bits)) {
        argument->kind = ARGUMENT_CONSTANT;
        lexer_next(lexer);
        argument->bits += take(parser, "+") ? take_number(parser) : 0;
        return;
    } else {
        argument->kind = ARGUMENT_LABEL;
        snprintf(statement->label, sizeof statement->label, "%s", lexer->word);
    }
    lexer_next(lexer);
}

void parse_arguments(struct parser *parser, struct statement *statement) {
    while (!parser->failed && !lexer_is(&parser->lexer, ";")) {
        if (statement->argument_count == PARSE_ARGUMENTS) {
            parse_fail(parser, "more than %d operands", PARSE_ARGUMENTS);
            return;
        }
        parse_argument(parser, statement, &statement->arguments[statement->argument_count++]);
        if (!take(parser, ",") && !take(parser, "|") && !lexer_is(&parser->lexer, ";")) {
            parse_fail(parser, "'%s' after an operand", parser->lexer.word);
        }
    }
    expect(parser, ";");
}

/* ---- bodies ---- */

/* The hash is Fowler, Noll and Vo's. */
struct label parse_label(const struct parser *parser, const char *name, uint32_t target) {
    struct label label = {.hash = 2166136261u, .target = target, .scope = parser->scope};
    for (const char *at = name; *at; at++) {
        label.hash = (label.hash ^ (unsigned char)*at) * 16777619u;
    }
    snprintf(label.name, sizeof label.name, "%s", name);
    return label;
}

static void end_scope(struct parser *parser) {
    for (size_t i = 0; i < parser->uses.count;) {
        struct label *use = &parser->uses.items[i];
        const struct label *found = NULL;
        for (size_t j = 0; j < parser->labels.count && use->scope == parser->scope; j++) {
            const struct label *label = &parser->labels.items[j];
            bool is_same = label->scope == parser->scope && label->hash == use->hash;
            found = is_same && strcmp(label->name, use->name) == 0 ? label : found;
        }
        if (found) {
            parser->code.items[use->target].target = found->target;
            *use = parser->uses.items[--parser->uses.count];
            continue;
        }
        if (use->scope == parser->scope && parser->scope == 1) {
            parse_fail(parser, "label %s of line %u is nowhere", use->name, use->line);
            return;
        }
        use->scope -= use->scope == parser->scope;
        i++;
    }
    for (size_t i = 0; i < parser->labels.count; i++) {
        if (parser->labels.items[i].scope == parser->scope) {
            parser->labels.items[i] = parser->labels.items[--parser->labels.count];
            i--;
        }
    }
    while (parser->registers.count && parser->registers.items[parser->registers.count - 1].scope == parser->scope) {
        parser->registers.count--;
    }
    parser->scope--;
}

/* @p opcode arguments; */
static void parse_statement(struct parser *parser) {
    struct statement statement = {.line = parser->lexer.line};
    if (take(parser, "@")) {
        bool negated = take(parser, "!");
        statement.is_guarded = true;
        if (!find_register(parser, parser->lexer.word, &statement.guard) || statement.guard.bytes) {
            parse_fail(parser, "'%s' is no predicate", parser->lexer.word);
        }
        statement.guard.negated = negated;
        lexer_next(&parser->lexer);
    }
    snprintf(statement.opcode, sizeof statement.opcode, "%s", parser->lexer.word);
    lexer_next(&parser->lexer);
    if (!statement.is_guarded && take(parser, ":")) {
        struct label *label = PARSE_ADD(parser, parser->labels);
        if (label) {
            *label = parse_label(parser, statement.opcode, (uint32_t)parser->code.count);
        }
        return;
    }
    parse_arguments(parser, &statement);
    if (!parser->failed) {
        decode_statement(parser, &statement);
    }
}

static void skip_to(struct parser *parser, const char *word) {
    while (parser->lexer.token != TOKEN_END && !take(parser, word)) {
        lexer_next(&parser->lexer);
    }
}

/* .loc and .file are words up to the end of their line. */
static void skip_line(struct parser *parser) {
    uint32_t line = parser->lexer.line;
    while (parser->lexer.token != TOKEN_END && parser->lexer.line == line) {
        lexer_next(&parser->lexer);
    }
}

void parse_body(struct parser *parser) {
    parser->scope = 1;
    while (!parser->failed && parser->scope > 0) {
        if (take(parser, "{")) {
            parser->scope++;
        } else if (lexer_is(&parser->lexer, "}")) {
            end_scope(parser);
            lexer_next(&parser->lexer);
        } else if (take(parser, ".reg")) {
            parse_registers(parser);
        } else if (take(parser, ".shared")) {
            parse_variable(parser, SPACE_SHARED, false);
        } else if (take(parser, ".local")) {
            parse_variable(parser, SPACE_LOCAL, false);
        } else if (take(parser, ".pragma")) {
            skip_to(parser, ";");
        } else if (lexer_is(&parser->lexer, ".loc") || lexer_is(&parser->lexer, ".file")) {
            skip_line(parser);
        } else if (parser->lexer.token == TOKEN_END) {
            parse_fail(parser, "the text ends within a kernel");
        } else if (parser->lexer.word[0] == '.') {
            parse_fail(parser, "directive %s is not known", parser->lexer.word);
        } else {
            parse_statement(parser);
        }
    }
}
