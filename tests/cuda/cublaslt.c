/* libcublasLt.so.13 for tests: the calls of cuBLASLt that the program makes. A product runs on its stream, as far as
 * the stand-in for the driver runs that.
 *
 * In bf16 it is as inexact as the library on an NVIDIA H200 (cuBLASLt 13.1, 2026-11-26). Partial sums are rounded to
 * D's type where the preference allows it. Where rows are not whole accesses of 16 bytes, a product is rounded before a
 * GELU, and before a bias if partial sums are allowed. Before GELU's gradient it is always rounded.
 *
 * It refuses what the library's documentation refuses: leading dimensions, alignments below those that the algorithm
 * was found for, and pairs of an epilogue and types. A refusal goes to standard error in words. An algorithm serves
 * only the form that it was found for, and the first one that is proposed only those rows of C. It overwrites its
 * workspace. Each algorithm that is proposed for a form adds in another order.
 *
 * If the environment variable CAMBIUM_CUDA_ALGORITHMS is "rows", the order also follows the number of rows of the
 * program's C, its type and the epilogue, as the library's choice may. If it is a number, the first one adds in this
 * order, else in the order of k. CAMBIUM_CUDA_FASTEST is the number of the order that is the fastest: by the clock of
 * events, others take a second more for each number between.
 *
 * CAMBIUM_CUDA_LIBRARY is its version: 131000 has batch invariance.
 *
 * The environment variable CAMBIUM_CUDA_GELU_ERROR is a relative error of its GELU and of the gradient, which the
 * rounding to bf16 hides: "0.001". */
#include "cuda/library.h"
#include "cuda/product.h"

#include "cuda/cublaslt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DECLARE(member, result, name, parameters) __attribute__((visibility("default"))) result name parameters;
CUBLASLT_FUNCTIONS(DECLARE)

enum {
    VERSION = 130100,
    ALIGNMENT = 16,
    WORKSPACE_ALIGNMENT = 256,
    AUX_STEP = 8,
    WORKSPACE_USED = 4096,
    ALL_REDUCTIONS = 7,
    PROPOSALS = 8
};

struct cublasLtContext {
    int unused;
};
struct cublaslt_layout {
    uint32_t type;
    uint64_t rows, columns;
    int64_t stride;
};
struct cublaslt_operation {
    int32_t compute_type;
    unsigned scale_type;
    int32_t a, b;
    uint32_t epilogue;
    const void *bias, *aux, *a_scale, *b_scale;
    int64_t aux_stride;
    int8_t is_fast;
    uint32_t invariance;
    int32_t multiprocessors; /* that the product runs on; 0: all */
};
struct cublaslt_preference {
    uint64_t workspace;
    uint32_t reductions;   /* how partial sums may be added; the default is every way */
    uint32_t alignment[4]; /* of A, B, C, D */
};

/* The contents of an algorithm: the product that it was found for. */
struct found {
    uint64_t form; /* a hash */
    uint64_t workspace;
    uint64_t size;       /* a hash of D's columns and stride; 0: any */
    uint8_t order;       /* of sums */
    bool rounds_pieces;  /* partial sums are rounded to D's type */
    bool rounds_product; /* the product is rounded to D's type before the epilogue */
    uint32_t alignment[4];
};

size_t cublasLtGetVersion(void) {
    const char *text = getenv("CAMBIUM_CUDA_LIBRARY");
    return text ? strtoul(text, NULL, 10) : VERSION;
}

const char *cublasLtGetStatusString(unsigned status) {
    return status == CUBLASLT_NO_MEMORY       ? "CUBLAS_STATUS_ALLOC_FAILED"
           : status == CUBLASLT_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
           : status == CUBLASLT_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                              : "unknown status";
}

/* ---- descriptors ---- */

static unsigned make(void **object, size_t bytes) {
    *object = calloc(1, bytes);
    return *object ? CUBLASLT_SUCCESS : CUBLASLT_NO_MEMORY;
}

unsigned cublasLtCreate(struct cublasLtContext **context) {
    return make((void **)context, sizeof **context);
}

unsigned cublasLtDestroy(struct cublasLtContext *context) {
    free(context);
    return CUBLASLT_SUCCESS;
}

unsigned cublasLtMatmulDescCreate(struct cublaslt_operation **operation, unsigned compute_type, unsigned scale_type) {
    unsigned status = make((void **)operation, sizeof **operation);
    if (!status) {
        **operation = (struct cublaslt_operation){.compute_type = (int32_t)compute_type,
                                                  .scale_type = scale_type,
                                                  .epilogue = CUBLASLT_NO_EPILOGUE,
                                                  .invariance = CUBLASLT_INVARIANCE_UNSET};
    }
    return status;
}

unsigned cublasLtMatmulDescDestroy(struct cublaslt_operation *operation) {
    free(operation);
    return CUBLASLT_SUCCESS;
}

unsigned cublasLtMatrixLayoutCreate(struct cublaslt_layout **layout, unsigned type, uint64_t rows, uint64_t columns,
                                    int64_t stride) {
    unsigned status = make((void **)layout, sizeof **layout);
    if (!status) {
        **layout = (struct cublaslt_layout){.type = type, .rows = rows, .columns = columns, .stride = stride};
    }
    return status;
}

unsigned cublasLtMatrixLayoutDestroy(struct cublaslt_layout *layout) {
    free(layout);
    return CUBLASLT_SUCCESS;
}

unsigned cublasLtMatmulPreferenceCreate(struct cublaslt_preference **preference) {
    unsigned status = make((void **)preference, sizeof **preference);
    if (!status) {
        (*preference)->reductions = ALL_REDUCTIONS;
    }
    for (int i = 0; !status && i < 4; i++) {
        (*preference)->alignment[i] = WORKSPACE_ALIGNMENT; /* the library's default */
    }
    return status;
}

unsigned cublasLtMatmulPreferenceDestroy(struct cublaslt_preference *preference) {
    free(preference);
    return CUBLASLT_SUCCESS;
}

/* Sets `field` if the value has its size. */
static unsigned set(void *field, size_t field_bytes, const void *value, size_t bytes) {
    if (!field || !value || bytes != field_bytes) {
        return CUBLASLT_INVALID_VALUE;
    }
    memcpy(field, value, bytes);
    return CUBLASLT_SUCCESS;
}

unsigned cublasLtMatrixLayoutSetAttribute(struct cublaslt_layout *layout, unsigned attribute, const void *value,
                                          size_t bytes) {
    switch (attribute) {
    case CUBLASLT_LAYOUT_TYPE:
        return set(&layout->type, sizeof layout->type, value, bytes);
    case CUBLASLT_LAYOUT_ROWS:
        return set(&layout->rows, sizeof layout->rows, value, bytes);
    case CUBLASLT_LAYOUT_COLUMNS:
        return set(&layout->columns, sizeof layout->columns, value, bytes);
    case CUBLASLT_LAYOUT_STRIDE:
        return set(&layout->stride, sizeof layout->stride, value, bytes);
    default:
        return CUBLASLT_INVALID_VALUE;
    }
}

unsigned cublasLtMatmulDescSetAttribute(struct cublaslt_operation *operation, unsigned attribute, const void *value,
                                        size_t bytes) {
    switch (attribute) {
    case CUBLASLT_OPERATION_COMPUTE:
        return set(&operation->compute_type, sizeof operation->compute_type, value, bytes);
    case CUBLASLT_OPERATION_A:
        return set(&operation->a, sizeof operation->a, value, bytes);
    case CUBLASLT_OPERATION_B:
        return set(&operation->b, sizeof operation->b, value, bytes);
    case CUBLASLT_OPERATION_EPILOGUE:
        return set(&operation->epilogue, sizeof operation->epilogue, value, bytes);
    case CUBLASLT_OPERATION_BIAS:
        return set(&operation->bias, sizeof operation->bias, value, bytes);
    case CUBLASLT_OPERATION_AUX:
        return set(&operation->aux, sizeof operation->aux, value, bytes);
    case CUBLASLT_OPERATION_AUX_STRIDE:
        return set(&operation->aux_stride, sizeof operation->aux_stride, value, bytes);
    case CUBLASLT_OPERATION_A_SCALE:
        return set(&operation->a_scale, sizeof operation->a_scale, value, bytes);
    case CUBLASLT_OPERATION_B_SCALE:
        return set(&operation->b_scale, sizeof operation->b_scale, value, bytes);
    case CUBLASLT_OPERATION_MULTIPROCESSORS:
        return set(&operation->multiprocessors, sizeof operation->multiprocessors, value, bytes);
    case CUBLASLT_OPERATION_FAST:
        return set(&operation->is_fast, sizeof operation->is_fast, value, bytes);
    case CUBLASLT_OPERATION_INVARIANCE:
        return cublasLtGetVersion() < CUBLASLT_HAS_INVARIANCE
                   ? CUBLASLT_INVALID_VALUE
                   : set(&operation->invariance, sizeof operation->invariance, value, bytes);
    default:
        return CUBLASLT_INVALID_VALUE;
    }
}

unsigned cublasLtMatmulPreferenceSetAttribute(struct cublaslt_preference *preference, unsigned attribute,
                                              const void *value, size_t bytes) {
    if (attribute == CUBLASLT_MOST_WORKSPACE) {
        return set(&preference->workspace, sizeof preference->workspace, value, bytes);
    }
    if (attribute == CUBLASLT_REDUCTIONS) {
        return set(&preference->reductions, sizeof preference->reductions, value, bytes);
    }
    bool is_alignment = attribute >= CUBLASLT_ALIGNMENT_A && attribute <= CUBLASLT_ALIGNMENT_D;
    uint32_t *field = is_alignment ? &preference->alignment[attribute - CUBLASLT_ALIGNMENT_A] : NULL;
    return set(field, sizeof *field, value, bytes);
}

/* ---- what is refused ---- */

static bool has_bias(const struct cublaslt_operation *operation) {
    return operation->epilogue & CUBLASLT_BIAS;
}

static bool has_aux(const struct cublaslt_operation *operation) {
    return operation->epilogue & 128;
}

/* One product's descriptors. C and D have one layout, as the program has them. */
struct description {
    const struct cublaslt_operation *operation;
    const struct cublaslt_layout *a, *b, *c, *d;
};

static uint64_t rows_of(const struct cublaslt_layout *layout, int32_t transposed) {
    return transposed ? layout->columns : layout->rows;
}

static uint64_t columns_of(const struct cublaslt_layout *layout, int32_t transposed) {
    return transposed ? layout->rows : layout->columns;
}

/* Returns why sizes or strides do not fit, or NULL. */
static const char *refuse_shapes(const struct description *p) {
    const struct cublaslt_layout *all[] = {p->a, p->b, p->c, p->d};
    for (int i = 0; i < 4; i++) {
        if (all[i]->rows == 0 || all[i]->columns == 0) {
            return "a matrix is empty";
        }
        if (all[i]->stride < (int64_t)all[i]->rows) {
            return "a leading dimension is below its matrix's rows";
        }
    }
    int32_t a = p->operation->a, b = p->operation->b;
    if (rows_of(p->a, a) != p->d->rows || columns_of(p->b, b) != p->d->columns ||
        columns_of(p->a, a) != rows_of(p->b, b)) {
        return "the sizes of the matrices do not agree";
    }
    if (has_aux(p->operation) &&
        (p->operation->aux_stride % AUX_STEP || p->operation->aux_stride < (int64_t)p->d->rows)) {
        return "aux's leading dimension is not divisible by 8, or below D's rows";
    }
    return NULL;
}

static bool is_fp8(const struct cublaslt_layout *layout) {
    return layout->type == CUBLASLT_E4M3 || layout->type == CUBLASLT_E5M2;
}

/* Returns why a product of FP8 matrices is none of the library's, or NULL. */
static const char *refuse_fp8(const struct description *p) {
    uint64_t d_bytes = p->d->type == CUBLASLT_BF16 ? 2 : 4;
    if (!is_fp8(p->a) || !is_fp8(p->b) || (p->a->type == CUBLASLT_E5M2 && p->b->type == CUBLASLT_E5M2)) {
        return "A and B are FP8, and not both E5M2";
    }
    if (p->operation->a != CUBLASLT_TRANSPOSED || p->operation->b != CUBLASLT_PLAIN) {
        return "in FP8, A alone is transposed";
    }
    if (p->a->stride % ALIGNMENT || p->b->stride % ALIGNMENT || p->a->rows % ALIGNMENT ||
        (uint64_t)p->d->stride * d_bytes % ALIGNMENT || p->d->rows * d_bytes % ALIGNMENT) {
        return "in FP8, rows begin at 16 bytes, and so do their ends";
    }
    return NULL;
}

/* Returns why an epilogue or a pair of types is none of the library's, or NULL. */
static const char *refuse_types(const struct description *p) {
    static const uint32_t epilogues[] = {CUBLASLT_NO_EPILOGUE, CUBLASLT_BIAS,          CUBLASLT_GELU, CUBLASLT_GELU_AUX,
                                         CUBLASLT_GELU_BIAS,   CUBLASLT_GELU_AUX_BIAS, CUBLASLT_DGELU};
    bool is_epilogue = false, has_fp8 = is_fp8(p->a) || is_fp8(p->b), is_bf16 = p->a->type == CUBLASLT_BF16;
    for (size_t i = 0; i < sizeof epilogues / sizeof *epilogues; i++) {
        is_epilogue = is_epilogue || p->operation->epilogue == epilogues[i];
    }
    bool is_tf32 = p->operation->compute_type == CUBLASLT_COMPUTE_TF32;
    if ((p->operation->compute_type != CUBLASLT_COMPUTE_FP32 && !is_tf32) ||
        p->operation->scale_type != CUBLASLT_FP32) {
        return "sums are fp32";
    }
    if (is_tf32 && p->a->type != CUBLASLT_FP32) {
        return "TF32 is for matrices of fp32";
    }
    if (!has_fp8 && (p->operation->a_scale || p->operation->b_scale || p->operation->is_fast)) {
        return "scales and fast sums are for FP8";
    }
    if (!has_fp8 && (p->a->type != p->b->type || (p->a->type != CUBLASLT_FP32 && !is_bf16))) {
        return "A and B are fp32 or bf16, or FP8";
    }
    if (p->c->type != p->d->type ||
        (p->d->type != CUBLASLT_FP32 && !((is_bf16 || has_fp8) && p->d->type == CUBLASLT_BF16))) {
        return "C and D are fp32, or bf16 as A and B";
    }
    if (!is_epilogue) {
        return "the epilogue is unknown";
    }
    if (p->operation->epilogue >= CUBLASLT_GELU && p->d->type != CUBLASLT_BF16) {
        return "a GELU's D is bf16";
    }
    return has_fp8 ? refuse_fp8(p) : NULL;
}

static bool is_aligned(const void *address, uint32_t bytes) {
    return (uintptr_t)address % bytes == 0;
}

/* Returns why the vectors of an epilogue cannot be used, or NULL. */
static const char *refuse_vectors(const struct description *p) {
    const struct cublaslt_operation *operation = p->operation;
    if (has_bias(operation) && (!operation->bias || !is_aligned(operation->bias, ALIGNMENT))) {
        return "the bias is missing, or not aligned to 16 bytes";
    }
    if (has_aux(operation) && (!operation->aux || !is_aligned(operation->aux, ALIGNMENT))) {
        return "aux is missing, or not aligned to 16 bytes";
    }
    if (!is_aligned(operation->a_scale, ALIGNMENT) || !is_aligned(operation->b_scale, ALIGNMENT)) {
        return "a scale is not aligned to 16 bytes";
    }
    return NULL;
}

static uint64_t hash(uint64_t before, uint64_t value) {
    return (before ^ value) * 1099511628211u;
}

/* Hashes everything but the columns and the stride of D. */
static uint64_t hash_of(const struct description *p) {
    const struct cublaslt_layout *all[] = {p->a, p->b, p->c, p->d};
    bool has_columns[] = {true, p->operation->b, false, false}, has_rows[] = {true, !p->operation->b, true, true};
    uint64_t sum = hash(hash(hash(1469598103934665603u, (uint64_t)p->operation->a), (uint64_t)p->operation->b),
                        p->operation->epilogue);
    sum = hash(hash(sum, (uint64_t)p->operation->compute_type), (uint64_t)p->operation->is_fast);
    sum = hash(sum, (uint64_t)p->operation->multiprocessors);
    for (int i = 0; i < 4; i++) {
        sum = hash(hash(sum, all[i]->type), i < 2 ? (uint64_t)all[i]->stride : 0);
        sum = hash(hash(sum, has_rows[i] ? all[i]->rows : 0), has_columns[i] ? all[i]->columns : 0);
    }
    return has_aux(p->operation) ? hash(sum, (uint64_t)p->operation->aux_stride) : sum;
}

static uint64_t size_of(const struct description *p) {
    return hash(hash(1469598103934665603u, p->d->columns), (uint64_t)p->d->stride);
}

static unsigned refuse(const char *why, unsigned status) {
    fprintf(stderr, "cuBLASLt stand-in: %s\n", why);
    return status;
}

/* Refuses a description that no call may have. */
static unsigned check(const struct description *p) {
    const char *why = refuse_shapes(p);
    why = why ? why : refuse_vectors(p);
    if (why) {
        return refuse(why, CUBLASLT_INVALID_VALUE);
    }
    why = refuse_types(p);
    return why ? refuse(why, CUBLASLT_NOT_SUPPORTED) : CUBLASLT_SUCCESS;
}

/* Returns true if the columns of all matrices and their strides are whole accesses. */
static bool has_accesses(const struct description *p) {
    const struct cublaslt_layout *all[] = {p->a, p->b, p->d};
    uint64_t bytes = 0;
    for (int i = 0; i < 3; i++) {
        bytes |= (all[i]->rows | (uint64_t)all[i]->stride) * (all[i]->type == CUBLASLT_BF16 ? 2 : 4);
    }
    return bytes % ALIGNMENT == 0;
}

/* Returns the order of the first algorithm that is proposed. */
static int first_order(const struct description *p) {
    const char *text = getenv("CAMBIUM_CUDA_ALGORITHMS");
    if (p->operation->invariance != CUBLASLT_INVARIANCE_UNSET) {
        return 1;
    }
    int order = (p->d->type == CUBLASLT_FP32 ? 20 : 0) + (p->operation->epilogue == CUBLASLT_NO_EPILOGUE ? 0 : 10);
    for (uint64_t rows = 1; rows < p->d->columns; rows *= 2) {
        order++;
    }
    return !text ? 0 : !strcmp(text, "rows") ? order : atoi(text);
}

unsigned cublasLtMatmulAlgoGetHeuristic(struct cublasLtContext *context, struct cublaslt_operation *operation,
                                        struct cublaslt_layout *a, struct cublaslt_layout *b, struct cublaslt_layout *c,
                                        struct cublaslt_layout *d, struct cublaslt_preference *preference, int most,
                                        struct cublaslt_result *results, int *count) {
    const struct description p = {operation, a, b, c, d};
    struct found found;
    memset(&found, 0, sizeof found); /* it may be written to a file */
    found.form = hash_of(&p);
    unsigned status = context && most > 0 ? check(&p) : CUBLASLT_INVALID_VALUE;
    *count = 0;
    if (status) {
        return status;
    }
    found.workspace = preference->workspace < WORKSPACE_USED ? 0 : WORKSPACE_USED;
    found.rounds_pieces = preference->reductions & ~(uint32_t)CUBLASLT_REDUCE_IN_FP32;
    found.rounds_product = operation->epilogue == CUBLASLT_DGELU ||
                           (!has_accesses(&p) && (preference->reductions || operation->epilogue >= CUBLASLT_GELU));
    memcpy(found.alignment, preference->alignment, sizeof found.alignment);
    for (; *count < most && *count < PROPOSALS; ++*count) {
        found.size = *count ? 0 : size_of(&p);
        found.order = (uint8_t)(first_order(&p) + *count);
        results[*count] = (struct cublaslt_result){.workspace_bytes = found.workspace, .waves = 1};
        memcpy(&results[*count].algorithm, &found, sizeof found);
    }
    return CUBLASLT_SUCCESS;
}

/* Returns why the algorithm is not for this product, or NULL. */
static const char *refuse_algorithm(const struct description *p, const struct found *found) {
    return found->form != hash_of(p)                  ? "the algorithm was found for another product"
           : found->size && found->size != size_of(p) ? "the algorithm was found for another number of rows"
                                                      : NULL;
}

/* A refusal is an answer here, so that nothing is printed. */
unsigned cublasLtMatmulAlgoCheck(struct cublasLtContext *context, struct cublaslt_operation *operation,
                                 struct cublaslt_layout *a, struct cublaslt_layout *b, struct cublaslt_layout *c,
                                 struct cublaslt_layout *d, const struct cublaslt_algorithm *algorithm,
                                 struct cublaslt_result *result) {
    const struct description p = {operation, a, b, c, d};
    struct found found;
    memcpy(&found, algorithm, sizeof found);
    unsigned status = context ? check(&p) : CUBLASLT_INVALID_VALUE;
    result->workspace_bytes = found.workspace;
    return status || !refuse_algorithm(&p, &found) ? status : CUBLASLT_INVALID_VALUE;
}

/* ---- products ---- */

static float gelu_error(void) {
    const char *text = getenv("CAMBIUM_CUDA_GELU_ERROR");
    return text ? strtof(text, NULL) : 0;
}

static double delay_of(int order) {
    const char *text = getenv("CAMBIUM_CUDA_FASTEST");
    return text ? 1e3 * abs(order - atoi(text)) : 0;
}

static enum product_type type_of(const struct cublaslt_layout *layout) {
    return layout->type == CUBLASLT_BF16   ? PRODUCT_BF16
           : layout->type == CUBLASLT_E4M3 ? PRODUCT_E4M3
           : layout->type == CUBLASLT_E5M2 ? PRODUCT_E5M2
                                           : PRODUCT_FP32;
}

static struct product_matrix matrix_of(const struct cublaslt_layout *layout, const void *data) {
    return (struct product_matrix){.address = (uintptr_t)data,
                                   .type = type_of(layout),
                                   .rows = (int64_t)layout->columns,
                                   .columns = (int64_t)layout->rows,
                                   .stride = layout->stride};
}

/* Returns why the algorithm cannot run with these addresses, or NULL. */
static const char *refuse_call(const struct description *p, const struct found *found, const void *const address[4],
                               const void *workspace, size_t workspace_bytes) {
    static const char *const unaligned[] = {
        "A is less aligned than its algorithm needs", "B is less aligned than its algorithm needs",
        "C is less aligned than its algorithm needs", "D is less aligned than its algorithm needs"};
    for (int i = 0; is_fp8(p->a) && i < 4; i++) {
        if (!is_aligned(address[i], ALIGNMENT)) {
            return "a matrix of an FP8 product is not aligned to 16 bytes";
        }
    }
    if (refuse_algorithm(p, found)) {
        return refuse_algorithm(p, found);
    }
    for (int i = 0; i < 4; i++) {
        if (!is_aligned(address[i], found->alignment[i])) {
            return unaligned[i];
        }
    }
    if (found->workspace > workspace_bytes || (found->workspace && !workspace) ||
        !is_aligned(workspace, WORKSPACE_ALIGNMENT)) {
        return "the workspace is too small, or not aligned to 256 bytes";
    }
    return NULL;
}

unsigned cublasLtMatmul(struct cublasLtContext *context, struct cublaslt_operation *operation, const void *alpha,
                        const void *a, struct cublaslt_layout *a_layout, const void *b,
                        struct cublaslt_layout *b_layout, const void *beta, const void *c,
                        struct cublaslt_layout *c_layout, void *d, struct cublaslt_layout *d_layout,
                        const struct cublaslt_algorithm *algorithm, void *workspace, size_t workspace_bytes,
                        struct CUstream_st *stream) {
    const struct description p = {operation, a_layout, b_layout, c_layout, d_layout};
    const void *const address[] = {a, b, c, d};
    struct found found;
    memcpy(&found, algorithm, sizeof found);
    unsigned status = context ? check(&p) : CUBLASLT_INVALID_VALUE;
    const char *why = status ? NULL : refuse_call(&p, &found, address, workspace, workspace_bytes);
    if (status || why) {
        return status ? status : refuse(why, CUBLASLT_INVALID_VALUE);
    }
    struct product *product = malloc(sizeof *product);
    if (!product) {
        return CUBLASLT_NO_MEMORY;
    }
    *product = (struct product){.a = matrix_of(b_layout, b),
                                .a_transposed = operation->b,
                                .b = matrix_of(a_layout, a),
                                .b_transposed = operation->a,
                                .a_scale = (uintptr_t)operation->b_scale,
                                .b_scale = (uintptr_t)operation->a_scale,
                                .is_tf32 = operation->compute_type == CUBLASLT_COMPUTE_TF32,
                                .rounds_pieces = found.rounds_pieces,
                                .rounds_product = found.rounds_product,
                                .order = found.order,
                                .milliseconds = delay_of(found.order),
                                .c = matrix_of(d_layout, d),
                                .added = matrix_of(c_layout, c),
                                .bias = has_bias(operation) ? (uintptr_t)operation->bias : 0,
                                .aux = has_aux(operation) ? (uintptr_t)operation->aux : 0,
                                .aux_stride = operation->aux_stride,
                                .is_gelu = operation->epilogue & CUBLASLT_GELU,
                                .is_dgelu = operation->epilogue == CUBLASLT_DGELU,
                                .gelu_error = gelu_error(),
                                .workspace = (uintptr_t)workspace,
                                .workspace_bytes = found.workspace};
    cuda_stand_in_trace(stream, "product", (unsigned long)operation->multiprocessors);
    memcpy(&product->alpha, alpha, sizeof product->alpha);
    memcpy(&product->beta, beta, sizeof product->beta);
    return cuda_stand_in_queue(stream, product_run, product) ? CUBLASLT_NO_MEMORY : CUBLASLT_SUCCESS;
}
