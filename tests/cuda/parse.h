/* Between parse.c, which reads directives and operands, and decode.c, which makes instructions of them. */
#pragma once

#include "cuda/ptx.h"

enum { PARSE_WORD = 160, PARSE_ELEMENTS = 8, PARSE_ARGUMENTS = 8 };

enum token { TOKEN_END, TOKEN_WORD, TOKEN_NUMBER, TOKEN_TEXT, TOKEN_MARK };

/* The text of a module as tokens, one ahead. */
struct lexer {
    const char *at, *end;
    uint32_t line;
    enum token token;
    char word[PARSE_WORD]; /* of words, numbers as written, and the one character of a mark */
};

void lexer_next(struct lexer *lexer);
/* Goes over spaces and comments. */
void lexer_skip_space(struct lexer *lexer);
bool lexer_is(const struct lexer *lexer, const char *word);
/* The bits of a number as written: 12, -3, 0x1F, 0f3F800000, 0d3FF0000000000000, 1.5. Returns false for other words. */
bool lexer_number(const char *word, uint64_t *bits, bool *is_real);

/* The text's name of a register: `name` alone, or with the numbers below `count` after it. */
struct register_name {
    char name[PARSE_WORD];
    uint32_t count; /* 0: the name alone */
    uint32_t at, stride;
    uint16_t slot;
    uint8_t bytes;
    int scope;
};

struct label {
    char name[PARSE_WORD];
    uint32_t hash;   /* of the name: a kernel has hundreds */
    uint32_t target; /* of a label; the instruction to mend, of a use */
    uint32_t line;
    int scope;
};

struct shared_name {
    char name[PARSE_WORD];
    uint32_t at, align, bytes;
    bool is_extern, is_local;
};

#define LIST(type)                                                                                                     \
    struct {                                                                                                           \
        type *items;                                                                                                   \
        size_t count, room;                                                                                            \
    }

struct parser {
    struct lexer lexer;
    struct ptx_module *module;
    ptx_place *place;
    void *context;
    char *message;
    bool failed;
    struct ptx_kernel *kernel; /* being read */
    LIST(struct register_name) registers;
    LIST(struct label) labels;
    LIST(struct label) uses;
    LIST(struct shared_name) shared;
    LIST(struct instruction) code;
    LIST(struct operand) operands;
    LIST(struct ptx_constant) constants;
    int scope;
    bool places_extern; /* code uses memory after the static part */
};

enum argument_kind {
    ARGUMENT_REGISTER,
    ARGUMENT_CONSTANT,
    ARGUMENT_MEMORY,
    ARGUMENT_VECTOR,
    ARGUMENT_LABEL,
    ARGUMENT_SINK
};

struct argument {
    enum argument_kind kind;
    struct operand operand; /* of a register, and of the register in an address */
    uint64_t bits;          /* of a constant; the displacement of an address */
    bool is_real, is_single, has_register;
    struct argument *elements; /* of a vector, in the statement's store */
    int count;
};

/* One instruction as written. */
struct statement {
    char opcode[PARSE_WORD];
    char *parts[16]; /* the opcode between its points */
    int part_count;
    char parted[PARSE_WORD];
    char label[PARSE_WORD]; /* of a branch */
    struct argument arguments[PARSE_ARGUMENTS], store[32];
    int argument_count, stored;
    struct operand guard;
    bool is_guarded;
    uint32_t line;
};

void parse_fail(struct parser *parser, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Room for one more item of a list; returns its address, or NULL (which is a failure of the parser). */
void *parse_grow(struct parser *parser, void **items, size_t *count, size_t *room, size_t size);
#define PARSE_ADD(parser, list)                                                                                        \
    parse_grow(parser, (void **)&(list).items, &(list).count, &(list).room, sizeof *(list).items)

/* ".u32" or "u32" as a type; false for other words. */
bool parse_type(const char *word, struct ptx_type *type);
/* A register with a constant value of some bytes. */
struct operand parse_constant(struct parser *parser, uint64_t value, uint8_t bytes);
/* A register in the kernel's file, `bytes` a lane, 0 for a predicate. */
struct operand parse_place(struct parser *parser, uint8_t bytes);
/* A label of this scope, or the use of one. */
struct label parse_label(const struct parser *parser, const char *name, uint32_t target);
/* Reads the arguments of an instruction up to its semicolon. */
void parse_arguments(struct parser *parser, struct statement *statement);
/* Reads the body of a kernel after its brace. */
void parse_body(struct parser *parser);
/* Reads a variable in shared, constant, global or local memory after the word of its space. */
void parse_variable(struct parser *parser, enum ptx_space space, bool is_extern);

/* Appends the instruction that a statement says. */
void decode_statement(struct parser *parser, struct statement *statement);
