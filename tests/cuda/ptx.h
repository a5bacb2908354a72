/* PTX as the interpreter runs it: kernels of compact instructions, each decoded from its text before it first runs.
 *
 * The code in tests/cuda/ is a libcuda.so.1 that executes the PTX of fat binaries on the CPU. It is for tests alone and
 * never shipped. Calls of the driver API arrive in driver.c, which names what the environment sets. Work is queued in
 * driver_stream.c and runs late. The PTX is found by fatbin.c, and parse.c and decode.c read it into the structs of
 * this header. A kernel is run by launch.c, block after block, and warp.c executes its instructions. They are in
 * lanes.h, access.c, collective.c and matrix.c. Wrong accesses are found by memory.c, global.c and shared.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LANES = 32, PTX_MESSAGE = 512, PTX_MOST_OPERANDS = 16 };

struct warp;
struct instruction;

/* The outcome of one instruction for the lanes that run it. */
enum step {
    STEP_NEXT,  /* the next instruction follows */
    STEP_JUMP,  /* the handler has moved the warp itself */
    STEP_WAIT,  /* the warp waits at a barrier, and has moved to the instruction after it */
    STEP_MEET,  /* lanes of the warp are missing: run those first, then this instruction again */
    STEP_FAULT, /* the launch fails; the machine has the message */
};

typedef enum step instruction_run(struct warp *warp, const struct instruction *instruction, uint32_t mask);

/* All 32 lanes of an arithmetic instruction: destination, then up to three sources, as arrays of 32. */
typedef void lanes_run(void *d, const void *a, const void *b, const void *c);
/* All 32 lanes of a comparison, as a mask. */
typedef uint32_t lanes_compare(const void *a, const void *b);

/* A register: its place in a warp's register file in bytes, and its number, by which it is known as set. */
struct operand {
    uint32_t at;
    uint16_t slot; /* SLOT_CONSTANT where it is a constant */
    uint8_t bytes; /* of one lane; 0 is a predicate: one mask */
    bool negated;  /* of predicates */
};

enum { SLOT_CONSTANT = 0 };

enum ptx_space { SPACE_GENERIC, SPACE_PARAM, SPACE_GLOBAL, SPACE_SHARED, SPACE_LOCAL };

/* How the bits of a value are read. */
enum ptx_class { CLASS_BITS, CLASS_SIGNED, CLASS_UNSIGNED, CLASS_FLOAT, CLASS_BFLOAT, CLASS_PREDICATE };

struct ptx_type {
    uint8_t class, bytes; /* bytes of one element: 4 for bf16x2 */
    bool packed;          /* two of half the size */
};

struct instruction {
    instruction_run *run;
    union {
        lanes_run *lanes;
        lanes_compare *compare;
        int64_t displacement; /* of addresses, in bytes */
    };
    const struct operand *operands; /* destinations, then sources */
    uint8_t destinations, sources;
    uint8_t space, vector; /* of loads and stores: 1, 2 or 4 elements */
    struct ptx_type type, from;
    uint8_t mode;       /* what the handler says: the kind of shuffle, of atomic, of rounding, of joining a predicate */
    bool flush, clamp;  /* .ftz and .sat */
    uint16_t guard;     /* 0, or 1 + the operand's index after the sources */
    uint32_t target;    /* of branches */
    uint32_t line;      /* of the text */
    const char *opcode; /* as written */
};

/* A value that each warp starts with in a register. */
struct ptx_constant {
    uint64_t value;
    uint32_t at;
    uint8_t bytes;
};

/* The registers that a warp's place decides. */
enum ptx_special {
    SPECIAL_TID_X,
    SPECIAL_TID_Y,
    SPECIAL_TID_Z,
    SPECIAL_NTID_X,
    SPECIAL_NTID_Y,
    SPECIAL_NTID_Z,
    SPECIAL_CTAID_X,
    SPECIAL_CTAID_Y,
    SPECIAL_CTAID_Z,
    SPECIAL_NCTAID_X,
    SPECIAL_NCTAID_Y,
    SPECIAL_NCTAID_Z,
    SPECIAL_LANEID,
    SPECIAL_WARPID,
    SPECIAL_COUNT,
};

struct ptx_param {
    char *name;
    uint32_t at, bytes;
};

struct ptx_kernel {
    char *name;
    const char *body; /* in the module's text; NULL once it is decoded */
    uint32_t body_line;
    bool has_failed; /* to decode */
    struct ptx_param *params;
    size_t param_count;
    uint32_t param_bytes, shared_bytes, local_bytes, register_bytes, slots;
    uint32_t special[SPECIAL_COUNT]; /* places in the register file, UINT32_MAX where it is not read */
    struct ptx_constant *constants;
    size_t constant_count;
    struct instruction *code;
    size_t count;
    struct operand *operands;
    struct ptx_kernel *next;
};

/* A variable of the module in global or constant memory. */
struct ptx_variable {
    char *name;
    uint32_t bytes;
    uint8_t *values;  /* bytes long; zero where the text gives none */
    uint64_t address; /* set by the loader before kernels are decoded */
    struct ptx_variable *next;
};

struct shared_name;

struct ptx_module {
    struct ptx_kernel *kernels;
    struct ptx_variable *variables;
    char *name; /* for messages */
    char *text; /* a copy, up to `end` */
    const char *end;
    struct shared_name *shared; /* names of shared memory outside kernels */
    size_t shared_count;
};

/* Gives a module's variable its place: called once for each, before the kernels' code is decoded. Returns 0 or -1. */
typedef int ptx_place(void *context, struct ptx_variable *variable);

/* Reads a module, but no kernel's body. `length` bytes of text, which need no end and are copied; `name` names it in
 * messages. The caller closes the result with ptx_close(). Returns 0, or -1 with a message of PTX_MESSAGE bytes that
 * names the line. */
int ptx_open(const char *name, const char *text, size_t length, ptx_place *place, void *context,
             struct ptx_module **out, char *message);
/* Decodes the body of one of the module's kernels, which must come before its code and its bytes are used; nothing if
 * it has been decoded. Returns as ptx_open(). */
int ptx_decode(struct ptx_module *module, struct ptx_kernel *kernel, char *message);
/* Frees a module; NULL is allowed. */
void ptx_close(struct ptx_module *module);
/* The kernel of a name, or NULL. */
struct ptx_kernel *ptx_kernel_find(const struct ptx_module *module, const char *name);
