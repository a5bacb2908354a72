/* A product of matrices in the machine's memory, as the stand-in for cuBLASLt computes it. Matrices are by rows. */
#pragma once

#include "cuda/machine.h"

enum product_type { PRODUCT_FP32, PRODUCT_BF16, PRODUCT_E4M3, PRODUCT_E5M2 };

struct product_matrix {
    uint64_t address;
    enum product_type type;
    int64_t rows, columns, stride; /* as they lie in memory */
};

/* C = epilogue(alpha * scales * op(A) op(B) + beta * added + bias). Sums are in fp32. Bias, aux
 * and what is added have C's type, which is fp32 or bf16. Two flags make it less exact, as the library is on a GPU. */
struct product {
    struct product_matrix a, b, c, added; /* added may be C */
    bool a_transposed, b_transposed;
    bool is_tf32;              /* A and B are rounded to TF32 */
    bool rounds_pieces;        /* long sums are made in pieces, each of which is rounded to C's type */
    bool rounds_product;       /* the product is rounded to C's type before the epilogue */
    int order;                 /* the k where a sum begins; those before it are added last */
    uint64_t a_scale, b_scale; /* addresses of a float, or 0: 1 */
    float alpha, beta;
    uint64_t bias, aux; /* addresses, or 0 */
    int64_t aux_stride;
    bool is_gelu;  /* the tanh GELU, of sums that are not rounded; aux, if any, gets them rounded */
    bool is_dgelu; /* the product with its gradient at aux */
    float gelu_error;
    double milliseconds;                 /* that it claims to take */
    uint64_t workspace, workspace_bytes; /* overwritten */
};

/* Runs a struct product. What it reads and nobody has written is a NaN; a place outside every allocation is a fault. */
void product_run(struct machine *machine, void *product);
