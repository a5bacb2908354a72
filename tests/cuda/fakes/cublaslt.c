/* A cuBLASLt that computes nothing. FAKE_DRIVER in the environment names the fault that it shows. */
#include "cuda/cublaslt.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { REFUSED = 13 };

static bool shows(const char *fault) {
    const char *name = getenv("FAKE_DRIVER");
    return name && !strcmp(name, fault);
}

#define DECLARE(member, result, name, parameters) result name parameters;
CUBLASLT_FUNCTIONS(DECLARE)

size_t cublasLtGetVersion(void) {
    return shows("library version") ? 111103 : 130100;
}
const char *cublasLtGetStatusString(unsigned status) {
    return status == REFUSED ? "a fault of the library" : "unknown";
}

/* Every object is one byte. */
static unsigned make(void *object) {
    void *byte = malloc(1);
    memcpy(object, &byte, sizeof byte);
    return byte ? CUBLASLT_SUCCESS : CUBLASLT_NO_MEMORY;
}
unsigned cublasLtCreate(struct cublasLtContext **context) {
    return shows("library") ? REFUSED : make(context);
}
unsigned cublasLtMatmulDescCreate(struct cublaslt_operation **operation, unsigned compute_type, unsigned scale_type) {
    return compute_type == CUBLASLT_COMPUTE_FP32 && scale_type == CUBLASLT_FP32 ? make(operation) : REFUSED;
}
unsigned cublasLtMatrixLayoutCreate(struct cublaslt_layout **layout, unsigned type, uint64_t rows, uint64_t columns,
                                    int64_t stride) {
    return type == CUBLASLT_FP32 && rows && columns && stride ? make(layout) : REFUSED;
}
unsigned cublasLtMatmulPreferenceCreate(struct cublaslt_preference **preference) {
    return shows("preference") ? REFUSED : make(preference);
}
#define DESTROY(name, type)                                                                                            \
    unsigned name(struct type *object) {                                                                               \
        free(object);                                                                                                  \
        return object ? CUBLASLT_SUCCESS : REFUSED;                                                                    \
    }
DESTROY(cublasLtDestroy, cublasLtContext)
DESTROY(cublasLtMatmulDescDestroy, cublaslt_operation)
DESTROY(cublasLtMatrixLayoutDestroy, cublaslt_layout)
DESTROY(cublasLtMatmulPreferenceDestroy, cublaslt_preference)
#define SET(name, type)                                                                                                \
    unsigned name(struct type *object, unsigned attribute, const void *value, size_t bytes) {                          \
        (void)attribute;                                                                                               \
        return object && value && bytes ? CUBLASLT_SUCCESS : REFUSED;                                                  \
    }
SET(cublasLtMatmulDescSetAttribute, cublaslt_operation)
SET(cublasLtMatrixLayoutSetAttribute, cublaslt_layout)
SET(cublasLtMatmulPreferenceSetAttribute, cublaslt_preference)

unsigned cublasLtMatmulAlgoGetHeuristic(struct cublasLtContext *context, struct cublaslt_operation *operation,
                                        struct cublaslt_layout *a, struct cublaslt_layout *b, struct cublaslt_layout *c,
                                        struct cublaslt_layout *d, struct cublaslt_preference *preference, int most,
                                        struct cublaslt_result *results, int *count) {
    *results = (struct cublaslt_result){.state = CUBLASLT_SUCCESS};
    *count = shows("no algorithm") ? 0 : 1;
    return context && operation && a && b && c && d && preference && most == 1 ? CUBLASLT_SUCCESS : REFUSED;
}

unsigned cublasLtMatmulAlgoCheck(struct cublasLtContext *context, struct cublaslt_operation *operation,
                                 struct cublaslt_layout *a, struct cublaslt_layout *b, struct cublaslt_layout *c,
                                 struct cublaslt_layout *d, const struct cublaslt_algorithm *algorithm,
                                 struct cublaslt_result *result) {
    return context && operation && a && b && c && d && algorithm && result ? CUBLASLT_SUCCESS : REFUSED;
}

#ifndef FAKE_LACKS_MULTIPLY
unsigned cublasLtMatmul(struct cublasLtContext *context, struct cublaslt_operation *operation, const void *alpha,
                        const void *a, struct cublaslt_layout *a_layout, const void *b,
                        struct cublaslt_layout *b_layout, const void *beta, const void *c,
                        struct cublaslt_layout *c_layout, void *d, struct cublaslt_layout *d_layout,
                        const struct cublaslt_algorithm *algorithm, void *workspace, size_t workspace_bytes,
                        struct CUstream_st *stream) {
    bool is_right = context && operation && alpha && a && a_layout && b && b_layout && beta && c && c_layout && d &&
                    d_layout && algorithm && workspace && workspace_bytes && stream;
    return is_right && !shows("multiply") ? CUBLASLT_SUCCESS : REFUSED;
}
#endif
