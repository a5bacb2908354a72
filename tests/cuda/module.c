/* A PTX module: variables, parameters, and kernels, whose bodies are decoded later. */
#include "cuda/parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_VARIABLE_BYTES = 1 << 26 };

/* The number of the lexer's word; 0 and a failure where it is none. */
static uint64_t number(struct parser *parser) {
    uint64_t bits = 0;
    bool is_real;
    if (!lexer_number(parser->lexer.word, &bits, &is_real)) {
        parse_fail(parser, "'%s' is no number", parser->lexer.word);
    }
    lexer_next(&parser->lexer);
    return bits;
}

static bool take(struct parser *parser, const char *word) {
    bool is = lexer_is(&parser->lexer, word);
    if (is) {
        lexer_next(&parser->lexer);
    }
    return is;
}

struct declared {
    char name[PARSE_WORD];
    struct ptx_type type;
    uint64_t align, bytes;
};

/* .align N .type name[N][N], without what comes after it. */
static struct declared declaration(struct parser *parser) {
    struct declared declared = {.align = 0};
    while (!parser->failed && parser->lexer.word[0] == '.') {
        if (take(parser, ".align")) {
            declared.align = number(parser);
        } else if (take(parser, ".ptr") || take(parser, ".global") || take(parser, ".attribute")) {
            continue;
        } else if (parse_type(parser->lexer.word, &declared.type)) {
            lexer_next(&parser->lexer);
        } else {
            parse_fail(parser, "'%s' in a declaration is not known", parser->lexer.word);
        }
    }
    declared.align = declared.align ? declared.align : declared.type.bytes;
    declared.bytes = declared.type.bytes;
    snprintf(declared.name, sizeof declared.name, "%s", parser->lexer.word);
    lexer_next(&parser->lexer);
    while (take(parser, "[")) {
        declared.bytes *= lexer_is(&parser->lexer, "]") ? 0 : number(parser);
        take(parser, "]");
    }
    if (declared.type.bytes == 0 || declared.bytes > MOST_VARIABLE_BYTES) {
        parse_fail(parser, "%s has no size that is known", declared.name);
    }
    return declared;
}

/* = {1, 2, ...}, nested as deep as the array is, or one value. */
static void initial_values(struct parser *parser, const struct declared *declared, uint8_t *values) {
    uint64_t at = 0;
    int depth = 0;
    do {
        if (take(parser, "{")) {
            depth++;
        } else if (take(parser, "}")) {
            depth--;
        } else if (!take(parser, ",")) {
            uint64_t bits = number(parser);
            if (at + declared->type.bytes > declared->bytes) {
                parse_fail(parser, "%s has too many values", declared->name);
                return;
            }
            memcpy(values + at, &bits, declared->type.bytes);
            at += declared->type.bytes;
        }
    } while (depth > 0 && !parser->failed);
}

static void parse_stored(struct parser *parser, const struct declared *declared) {
    struct ptx_variable *variable = calloc(1, sizeof *variable);
    uint8_t *values = calloc(1, declared->bytes ? declared->bytes : 1);
    char *name = strdup(declared->name);
    if (!variable || !values || !name) {
        free(variable), free(values), free(name);
        parse_fail(parser, "out of memory");
        return;
    }
    *variable = (struct ptx_variable){
        .name = name, .bytes = (uint32_t)declared->bytes, .values = values, .next = parser->module->variables};
    parser->module->variables = variable;
    if (take(parser, "=")) {
        initial_values(parser, declared, values);
    }
    if (!parser->failed && parser->place(parser->context, variable)) {
        parse_fail(parser, "no device memory for %s", declared->name);
    }
}

void parse_variable(struct parser *parser, enum ptx_space space, bool is_extern) {
    struct declared declared = declaration(parser);
    if (space == SPACE_GLOBAL) {
        parse_stored(parser, &declared);
    } else {
        struct shared_name *name = PARSE_ADD(parser, parser->shared);
        if (name) {
            memcpy(name->name, declared.name, sizeof name->name);
            name->at = UINT32_MAX;
            name->align = declared.align ? (uint32_t)declared.align : 1;
            name->bytes = (uint32_t)declared.bytes;
            name->is_extern = is_extern;
            name->is_local = space == SPACE_LOCAL;
        }
    }
    if (!take(parser, ";")) {
        parse_fail(parser, "'%s' after %s", parser->lexer.word, declared.name);
    }
}

/* ---- kernels ---- */

static void parse_params(struct parser *parser) {
    struct ptx_kernel *kernel = parser->kernel;
    while (!parser->failed && !take(parser, ")")) {
        take(parser, ",");
        if (!take(parser, ".param")) {
            parse_fail(parser, "'%s' among parameters", parser->lexer.word);
            return;
        }
        struct declared declared = declaration(parser);
        struct ptx_param *more = realloc(kernel->params, (kernel->param_count + 1) * sizeof *more);
        char *name = strdup(declared.name);
        if (more) {
            kernel->params = more;
        }
        if (!more || !name || declared.align == 0) {
            free(name);
            parse_fail(parser, "parameter %s cannot be held", declared.name);
            return;
        }
        uint32_t align = (uint32_t)declared.align, at = (kernel->param_bytes + align - 1) / align * align;
        kernel->params[kernel->param_count++] =
            (struct ptx_param){.name = name, .at = at, .bytes = (uint32_t)declared.bytes};
        kernel->param_bytes = at + (uint32_t)declared.bytes;
    }
}

/* The parser's lists become the kernel's. Operands have moved while they grew, so they were kept by index. */
static void finish_kernel(struct parser *parser) {
    struct ptx_kernel *kernel = parser->kernel;
    kernel->code = parser->code.items, kernel->count = parser->code.count;
    kernel->operands = parser->operands.items;
    kernel->constants = parser->constants.items, kernel->constant_count = parser->constants.count;
    for (size_t i = 0; i < kernel->count; i++) {
        kernel->code[i].operands = kernel->operands + (size_t)kernel->code[i].operands;
    }
    kernel->register_bytes = (kernel->register_bytes + 63) / 64 * 64;
}

/* Goes over a body, whose first brace is the lexer's word. */
static void skip_body(struct lexer *lexer) {
    for (int depth = 1; depth > 0 && lexer->at < lexer->end;) {
        const char *at = lexer->at;
        if (*at == '/') {
            lexer_skip_space(lexer); /* a comment may have braces */
        }
        if (lexer->at == at) {
            depth += (*at == '{') - (*at == '}');
            lexer->line += *at == '\n';
            lexer->at++;
        }
    }
}

static void parse_kernel(struct parser *parser) {
    struct ptx_kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel) {
        parse_fail(parser, "out of memory");
        return;
    }
    kernel->next = parser->module->kernels;
    parser->module->kernels = kernel;
    parser->kernel = kernel;
    kernel->slots = 1; /* after SLOT_CONSTANT */
    memset(kernel->special, 0xFF, sizeof kernel->special);
    kernel->name = strdup(parser->lexer.word);
    lexer_next(&parser->lexer);
    if (take(parser, "(")) {
        parse_params(parser);
    }
    while (!parser->failed && !lexer_is(&parser->lexer, "{")) { /* .maxntid 256, 1, 1 and the like are hints */
        if (parser->lexer.token == TOKEN_END) {
            parse_fail(parser, "the text ends before a kernel's body");
        }
        lexer_next(&parser->lexer);
    }
    kernel->body = parser->lexer.at;
    kernel->body_line = parser->lexer.line;
    skip_body(&parser->lexer);
    lexer_next(&parser->lexer);
    parser->kernel = NULL;
}

static void parse_module(struct parser *parser) {
    bool is_extern = false;
    lexer_next(&parser->lexer);
    while (!parser->failed && parser->lexer.token != TOKEN_END) {
        if (take(parser, ".version") || take(parser, ".target") || take(parser, ".address_size")) {
            lexer_next(&parser->lexer);
            while (take(parser, ",")) {
                lexer_next(&parser->lexer);
            }
        } else if (take(parser, ".extern")) {
            is_extern = true;
            continue;
        } else if (take(parser, ".visible") || take(parser, ".weak")) {
            continue;
        } else if (take(parser, ".entry")) {
            parse_kernel(parser);
        } else if (take(parser, ".shared")) {
            parse_variable(parser, SPACE_SHARED, is_extern);
        } else if (take(parser, ".global") || take(parser, ".const")) {
            parse_variable(parser, SPACE_GLOBAL, is_extern);
        } else if (take(parser, ".file")) {
            lexer_next(&parser->lexer);
            lexer_next(&parser->lexer);
        } else {
            parse_fail(parser, "'%s' in a module is not known", parser->lexer.word);
        }
        is_extern = false;
    }
}

int ptx_open(const char *name, const char *text, size_t length, ptx_place *place, void *context,
             struct ptx_module **out, char *message) {
    struct ptx_module *module = calloc(1, sizeof *module);
    if (!module || !(module->name = strdup(name)) || !(module->text = malloc(length + 1))) {
        ptx_close(module);
        snprintf(message, PTX_MESSAGE, "out of memory");
        return -1;
    }
    memcpy(module->text, text, length);
    module->end = module->text + length;
    struct parser parser = {.lexer = {.at = module->text, .end = module->end, .line = 1},
                            .module = module,
                            .place = place,
                            .context = context,
                            .message = message};
    parse_module(&parser);
    module->shared = parser.shared.items, module->shared_count = parser.shared.count;
    if (parser.failed) {
        ptx_close(module);
        return -1;
    }
    *out = module;
    return 0;
}

int ptx_decode(struct ptx_module *module, struct ptx_kernel *kernel, char *message) {
    if (!kernel->body) {
        return 0;
    }
    if (kernel->has_failed) {
        snprintf(message, PTX_MESSAGE, "%s: %s could not be decoded", module->name, kernel->name);
        return -1;
    }
    struct parser parser = {.lexer = {.at = kernel->body, .end = module->end, .line = kernel->body_line},
                            .module = module,
                            .message = message,
                            .kernel = kernel};
    for (size_t i = 0; i < module->shared_count; i++) {
        struct shared_name *name = PARSE_ADD(&parser, parser.shared);
        if (name) {
            *name = module->shared[i];
        }
    }
    lexer_next(&parser.lexer);
    parse_body(&parser);
    if (!parser.failed) { /* a kernel may end without ret */
        struct statement end = {.opcode = "exit", .line = parser.lexer.line};
        decode_statement(&parser, &end);
    }
    finish_kernel(&parser);
    kernel->has_failed = parser.failed;
    kernel->body = parser.failed ? kernel->body : NULL;
    free(parser.registers.items);
    free(parser.labels.items);
    free(parser.uses.items);
    free(parser.shared.items);
    return parser.failed ? -1 : 0;
}

void ptx_close(struct ptx_module *module) {
    if (!module) {
        return;
    }
    while (module->kernels) {
        struct ptx_kernel *kernel = module->kernels;
        module->kernels = kernel->next;
        for (size_t i = 0; i < kernel->param_count; i++) {
            free(kernel->params[i].name);
        }
        for (size_t i = 0; i < kernel->count; i++) {
            free((char *)kernel->code[i].opcode);
        }
        free(kernel->params), free(kernel->constants), free(kernel->code), free(kernel->operands), free(kernel->name);
        free(kernel);
    }
    while (module->variables) {
        struct ptx_variable *variable = module->variables;
        module->variables = variable->next;
        free(variable->name), free(variable->values);
        free(variable);
    }
    free(module->shared), free(module->text), free(module->name);
    free(module);
}

struct ptx_kernel *ptx_kernel_find(const struct ptx_module *module, const char *name) {
    for (struct ptx_kernel *kernel = module->kernels; kernel; kernel = kernel->next) {
        if (strcmp(kernel->name, name) == 0) {
            return kernel;
        }
    }
    return NULL;
}
