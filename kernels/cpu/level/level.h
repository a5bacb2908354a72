/* The operations at one instruction-set level. Every file of this folder is compiled once per level, and LEVEL(name)
 * gives each copy its own name. The function of an operation is LEVEL(cpu_OPERATION); table.c collects them in a table.
 * Loops are plain C for the compiler to vectorise. A file that needs intrinsics takes them from simd.h, which each
 * level has in its folder. */
#pragma once

#include "cpu/cpu-internal.h"

#define LEVEL_JOIN_(a, b) a##_##b
#define LEVEL_JOIN(a, b)  LEVEL_JOIN_(a, b)
#define LEVEL(name)       LEVEL_JOIN(name, KERNEL_LEVEL)
#define LEVEL_TEXT_(name) #name
#define LEVEL_TEXT(name)  LEVEL_TEXT_(name)

/* ---- members of struct ops, with their shapes, ownership and errors: see ops.h ---- */

size_t LEVEL(cpu_packed_bytes)(struct device *device, const struct matrix_view *plain);
#define LEVEL_WORKSPACE(op, type) size_t LEVEL(cpu_##op##_workspace)(struct device * device, const struct type *a)
#define LEVEL_OP(op, type)        int LEVEL(cpu_##op)(const struct exec *exec, const struct type *a)
#define LEVEL_PROTOTYPES(op, type, workspace, ...)                                                                     \
    LEVEL_OP(op, type);                                                                                                \
    OPS_WITH_##workspace(LEVEL_WORKSPACE, op, type);
OPS(LEVEL_PROTOTYPES)
#undef LEVEL_PROTOTYPES

/* ---- parts of operations ---- */

/* The bf16 result of an operation. x may be to->y. */
struct fp8_result {
    int64_t rows, cols;
    const void *x; /* [rows, cols] */
    const struct fp8_output *to;
};
/* Casts it to FP8, if the operation's call wants that. */
int LEVEL(cpu_fp8_result)(const struct exec *exec, const struct fp8_result *a);
