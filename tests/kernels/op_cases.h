/* The op cases: one table of operations at given shapes that serves three uses.
 *
 * - comparison: the operation against a naive fp64 reference, at every instruction-set level of the machine
 * - gradients: each gradient that an operation writes, against finite differences of an fp64 forward
 * - benchmark: `cambium bench ops`, with seconds, FLOP/s and bytes/s of the same call
 *
 * A family (a file NAME_cases.c, listed in op_families.c) is an array of cases. A case names its kind, data type and
 * shape; a kind says which tensors the operation has, how it is called and what it should give. The harness makes the
 * tensors. Inputs come from the counter-based generator, rounded to their type, and outputs are poisoned. NaN stands
 * before, after and in the gaps between rows, so that reading outside spoils a result and writing outside is noticed.
 * Inputs must come back unchanged. It knows no test library: failures are a status and one line of text. */
#pragma once

#include "kernels/ops.h"

enum { OP_TENSORS = 24, OP_SHAPE = 10, OP_HOST = 80 };

enum op_role {
    OP_IN = 1, /* read */
    OP_OUT,    /* written whole */
    OP_ADDED,  /* the operation adds to what is there; `expected` is what it adds, the harness puts the rest in front */
    OP_INOUT,  /* read and overwritten: `value` before, `expected` after */
};

struct op_run;

struct op_tensor {
    /* Set by the kind's setup; a tensor whose role is 0 is absent and its `data` stays NULL. */
    const char *name;
    enum op_role role;
    enum dtype type; /* fp32, bf16, fp64, int32, int8, or int64 with a fill */
    int64_t rows, cols;
    int64_t stride; /* elements from row to row; 0: cols */
    double center;  /* filled with normal numbers of this mean (0) */
    double spread;  /* and this deviation (0: 1); int32 and int8: uniform in [center, center + spread) */
    /* Or writes value[] itself; sees the values of the tensors of lower index (statistics that must fit an input). */
    void (*fill)(const struct op_run *run, struct op_tensor *tensor);
    double bound;    /* largest error over the tensor's largest entry, besides one rounding to `type`; 0: OP_EXACT's */
    int gradient_of; /* 1 + the index of the tensor whose gradient this is; 0: none */

    /* Made by the harness. */
    void *data;           /* on the device: what the operation gets */
    double *value;        /* [rows * cols] what `data` holds before the call, exactly */
    double *expected;     /* [rows * cols] written by the reference, for all but OP_IN */
    void *block;          /* the memory around `data` */
    unsigned char *image; /* what `block` holds before the call */
    size_t image_bytes;
};

/* Bounds from the arithmetic: a chain of `terms` fp32 roundings wanders like a random walk; four deviations of it. */
double op_bound(int64_t terms);

struct op_run {
    const struct op_case *op_case;
    const int64_t *shape; /* the case's */
    enum dtype type;      /* the case's */
    int variant;          /* the case's */
    const char *backend;  /* "cpu", "cuda", ...: for an output whose form is the backend's */
    struct op_tensor tensor[OP_TENSORS];
    int64_t host[OP_HOST]; /* of the setup, for what the reference wants at hand (segment bounds) */
    void *state;           /* from the kind's prepare, or NULL */
    bool is_benchmark;     /* nothing will be compared: a fill may take what is quick instead of what is consistent */
};

struct op_kind {
    const char *name; /* "layernorm_forward" */
    /* Declares run->tensor[] for the run's shape, type and variant. */
    void (*setup)(struct op_run *run);
    /* Done once before many calls (packing a weight), and undone; usually absent. */
    int (*prepare)(struct op_run *run, const struct ops *ops, const struct exec *exec);
    void (*release)(struct op_run *run, struct device *device);
    size_t (*workspace)(const struct op_run *run, const struct ops *ops, struct device *device); /* NULL: none */
    /* Whether the backend has it; where not, the call must say STATUS_UNSUPPORTED. NULL: always. */
    bool (*supports)(const struct op_run *run, const struct ops *ops, struct device *device);
    /* Calls the operation. */
    int (*call)(const struct op_run *run, const struct ops *ops, const struct exec *exec);
    /* Writes `expected` of the outputs from `value` of the inputs, in fp64, in the plainest way. */
    void (*reference)(struct op_run *run);
    /* For gradients: sum over the forward's outputs of output * its incoming gradient, from `value`s, in fp64. */
    double (*loss)(const struct op_run *run);
    /* FLOPs and the bytes that must cross memory in one call; either may stay 0. */
    void (*cost)(const struct op_run *run, double *flops, double *bytes);
};

enum op_use {
    OP_TEST = 1,
    OP_BENCH = 2,
    OP_LONG = 4, /* tested in the long suite only */
    OP_TF32 = 8  /* the type is fp32, and products may round to TF32 */
};

struct op_case {
    const struct op_kind *kind;
    const char *note; /* what is special, for messages: "odd sizes", "gpt2 fc1"; or NULL */
    enum op_use use;
    enum dtype type;
    int variant; /* the kind's own: flags, epilogue, ... */
    int64_t shape[OP_SHAPE];
};

struct op_family {
    const char *name;
    const struct op_case *cases;
    int count;
};

/* The families (NAME_cases.c). */
extern const struct op_family gemm_family;
extern const struct op_family attention_family;
extern const struct op_family paged_family;
extern const struct op_family norm_family, pointwise_family, ends_family, optimizer_family, adapter_family, lstm_family,
    grouped_family, rotary_family, fp8_family, fp8_result_family, encoded_family;

/* Returns family `index`; NULL past the last. */
const struct op_family *op_family_at(int index);

/* On a backend, with each of its tables. Each returns the first failure, a line that names operation, shape, level,
 * threads, tensor and element. */
int op_check_reference(const struct op_family *family, const char *device, bool is_long);
/* Kinds with a loss: sampled elements of every tensor with gradient_of. */
int op_check_gradients(const struct op_family *family, const char *device, bool is_long);
/* The same bits for 1, 2 and 3 threads. On a GPU, where threads of the host compute nothing, in 6 calls (20 in the
 * long suite). The stand-in for a GPU runs each in another order of blocks and warps. */
int op_check_threads(const struct op_family *family, const char *device, bool is_long);
/* Checks the tested cases of all families that `chooses` takes, on one opened device: reference, gradients, and the
 * same bits in three calls. `report` gets the status of each, whose text is the thread's error; what it returns, if not
 * 0, ends the checks and is returned. Otherwise returns the failure of opening the device. */
int op_check_each(const char *device, bool (*chooses)(const struct op_case *op_case, const void *context),
                  int (*report)(const struct op_case *op_case, int status, void *context), void *context);

struct op_timing {
    bool is_missing; /* the device lacks the operation; nothing was measured */
    double seconds;  /* median of the calls */
    double best;
    double flops, bytes; /* of one call */
};

/* Measures a case's call for about `seconds`, on rotating copies of its tensors where they would stay in the caches. */
int op_measure(struct device *device, const struct op_case *op_case, double seconds, struct op_timing *timing);

/* "layernorm_forward bf16 7x768 (odd sizes)". */
void op_case_text(const struct op_case *op_case, char *text, size_t bytes);

/* For families that test more than the three checks: the tensors of one case on a device. */
int op_run_open(struct op_run *run, const struct op_case *op_case, struct device *device, struct stream *stream);
/* Puts every tensor back to what it was before a call. */
int op_run_reset(struct op_run *run, struct stream *stream);
/* Copies a tensor's elements back, compact, as doubles (the caller frees), after waiting for the stream. */
int op_run_read(const struct op_run *run, int index, struct stream *stream, double **values);
void op_run_close(struct op_run *run, struct device *device);
