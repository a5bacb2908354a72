/* The ends of the model: embedding {rows, cols, vocabulary, positions, virtual tokens, ids after them} and
 * cross-entropy {rows, vocabulary, stride}. */
#include "op_cases.h"

#include <math.h>
#include <stdlib.h>

static struct op_tensor tensor(const char *name, enum op_role role, enum dtype type, int64_t rows, int64_t cols) {
    return (struct op_tensor){.name = name, .role = role, .type = type, .rows = rows, .cols = cols};
}

/* ---- embedding ---- */

enum { TOKENS, POSITIONS, TOKEN_TABLE, POSITION_TABLE, X, DX, DTOKEN, DPOSITION, VIRTUAL, DVIRTUAL };
enum { NO_POSITIONS = 1, TOKENS_FROZEN = 2, NOT_MINE = 4 }; /* NOT_MINE: the virtual table is another rank's */

static void fill_positions(const struct op_run *run, struct op_tensor *t) {
    for (int64_t i = 0; i < t->cols; i++)
        t->value[i] = (double)(i % run->shape[3]);
}

static void embedding_setup(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t rows = run->shape[0], cols = run->shape[1];
    t[TOKENS] = tensor("tokens", OP_IN, DTYPE_I32, 1, rows);
    t[TOKENS].spread = (double)(run->shape[2] + run->shape[4] + run->shape[5]);
    t[POSITIONS] = tensor("positions", OP_IN, DTYPE_I32, 1, rows);
    t[POSITIONS].fill = fill_positions;
    t[TOKEN_TABLE] = tensor("token_table", OP_IN, run->type, run->shape[2], cols);
    if (!(run->variant & NO_POSITIONS))
        t[POSITION_TABLE] = tensor("position_table", OP_IN, run->type, run->shape[3], cols);
    if (run->shape[4])
        t[VIRTUAL] = tensor("virtual table", OP_IN, run->type, run->shape[4], cols);
    t[X] = tensor("x", OP_OUT, run->type, rows, cols);
}

static void embedding_backward_setup(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    embedding_setup(run);
    t[X].role = 0;
    t[DX] = tensor("dx", OP_IN, run->type, run->shape[0], run->shape[1]);
    if (!(run->variant & TOKENS_FROZEN))
        t[DTOKEN] = tensor("dtoken_table", OP_ADDED, DTYPE_F32, run->shape[2], run->shape[1]);
    t[DTOKEN].gradient_of = 1 + TOKEN_TABLE;
    t[DTOKEN].bound = op_bound(run->shape[0]);
    if (!(run->variant & NO_POSITIONS))
        t[DPOSITION] = tensor("dposition_table", OP_ADDED, DTYPE_F32, run->shape[3], run->shape[1]);
    t[DPOSITION].gradient_of = 1 + POSITION_TABLE;
    t[DPOSITION].bound = op_bound(run->shape[0]);
    if (run->shape[4])
        t[DVIRTUAL] = tensor("dvirtual_table", OP_ADDED, DTYPE_F32, run->shape[4], run->shape[1]);
    t[DVIRTUAL].gradient_of = 1 + VIRTUAL;
    t[DVIRTUAL].bound = op_bound(run->shape[0]);
}

static struct embedding embedding_arguments(const struct op_run *run) {
    const struct op_tensor *t = run->tensor;
    return (struct embedding){
        .rows = run->shape[0],
        .cols = run->shape[1],
        .type = run->type,
        .tokens = t[TOKENS].data,
        .positions = t[POSITIONS].data,
        .token_table = matrix_plain(run->type, t[TOKEN_TABLE].data, run->shape[2], run->shape[1]),
        .position_table = t[POSITION_TABLE].data,
        .x = t[X].data,
        .dx = t[DX].data,
        .dtoken_table = t[DTOKEN].data,
        .dposition_table = t[DPOSITION].data,
        .first_virtual = run->shape[2],
        .virtual_tokens = run->shape[4],
        .virtual_table = run->variant & NOT_MINE ? NULL : t[VIRTUAL].data,
        .dvirtual_table = t[DVIRTUAL].data,
    };
}

static int embedding_forward_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct embedding a = embedding_arguments(run);
    return ops->embedding_forward(exec, &a);
}

static int embedding_backward_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct embedding a = embedding_arguments(run);
    return ops->embedding_backward(exec, &a);
}

static size_t embedding_workspace(const struct op_run *run, const struct ops *ops, struct device *device) {
    struct embedding a = embedding_arguments(run);
    return ops->embedding_backward_workspace(device, &a);
}

/* Returns the table of row i's token, `tokens` or `virtuals` of run->tensor, and *entry in it; -1: the id is past
 * both. */
static int table_of(const struct op_run *run, int64_t i, int tokens, int virtuals, int64_t *entry) {
    *entry = (int64_t)run->tensor[TOKENS].value[i];
    if (*entry < run->shape[2])
        return tokens;
    *entry -= run->shape[2];
    return *entry < run->shape[4] ? virtuals : -1;
}

static double embedded(const struct op_run *run, int64_t i, int64_t j) {
    const struct op_tensor *t = run->tensor;
    int64_t cols = run->shape[1], entry;
    int table = table_of(run, i, TOKEN_TABLE, VIRTUAL, &entry);
    if (table < 0 || (table == VIRTUAL && (run->variant & NOT_MINE)))
        return 0;
    double x = t[table].value[entry * cols + j];
    return t[POSITION_TABLE].role ? x + t[POSITION_TABLE].value[(int64_t)t[POSITIONS].value[i] * cols + j] : x;
}

static void embedding_forward_reference(struct op_run *run) {
    int64_t cols = run->shape[1];
    for (int64_t i = 0; i < run->shape[0] * cols; i++)
        run->tensor[X].expected[i] = embedded(run, i / cols, i % cols);
}

static void embedding_backward_reference(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t cols = run->shape[1];
    for (int64_t i = 0; i < run->shape[0]; i++)
        for (int64_t j = 0; j < cols; j++) {
            double dx = t[DX].value[i * cols + j];
            int64_t entry;
            int table = table_of(run, i, DTOKEN, DVIRTUAL, &entry);
            if (table >= 0 && t[table].role)
                t[table].expected[entry * cols + j] += dx;
            if (t[DPOSITION].role)
                t[DPOSITION].expected[(int64_t)t[POSITIONS].value[i] * cols + j] += dx;
        }
}

static double embedding_loss(const struct op_run *run) {
    int64_t cols = run->shape[1];
    double loss = 0;
    for (int64_t i = 0; i < run->shape[0] * cols; i++)
        loss += embedded(run, i / cols, i % cols) * run->tensor[DX].value[i];
    return loss;
}

static void embedding_forward_cost(const struct op_run *run, double *flops, double *bytes) {
    *flops = 0;
    *bytes = 3.0 * (double)(run->shape[0] * run->shape[1]) * (double)dtype_bytes(run->type);
}

static void embedding_backward_cost(const struct op_run *run, double *flops, double *bytes) {
    *flops = 0;
    *bytes = (double)(run->shape[0] * run->shape[1]) * (16.0 + (double)dtype_bytes(run->type));
}

static const struct op_kind embedding_forward = {.name = "embedding_forward",
                                                 .setup = embedding_setup,
                                                 .call = embedding_forward_call,
                                                 .reference = embedding_forward_reference,
                                                 .cost = embedding_forward_cost};
static const struct op_kind embedding_backward = {.name = "embedding_backward",
                                                  .setup = embedding_backward_setup,
                                                  .workspace = embedding_workspace,
                                                  .call = embedding_backward_call,
                                                  .reference = embedding_backward_reference,
                                                  .loss = embedding_loss,
                                                  .cost = embedding_backward_cost};

/* ---- cross-entropy ---- */

enum { LOGITS, LABELS, LOSS, LSE, DLOSS, GREEDY };
enum { NO_LSE = 1, FAR_FROM_ZERO = 2, TIED = 4 }; /* TIED: several logits of a row are its largest; greedy flags */

static double log_sum_exp(const struct op_run *run, int64_t i) {
    int64_t vocab = run->shape[1];
    const double *x = run->tensor[LOGITS].value + i * run->tensor[LOGITS].cols;
    double largest = -INFINITY, sum = 0;
    for (int64_t j = 0; j < vocab; j++)
        largest = fmax(largest, x[j]);
    for (int64_t j = 0; j < vocab; j++)
        sum += exp(x[j] - largest);
    return largest + log(sum);
}

/* Every third row counts nothing. */
static void fill_dloss(const struct op_run *run, struct op_tensor *t) {
    (void)run;
    for (int64_t i = 0; i < t->cols; i++)
        t->value[i] = i % 3 == 1 ? 0 : 0.25 + 0.125 * (double)(i % 5);
}

static void fill_lse(const struct op_run *run, struct op_tensor *t) {
    for (int64_t i = 0; i < t->cols; i++)
        t->value[i] = run->is_benchmark ? 12 : log_sum_exp(run, i);
}

/* Rows with padding that holds anything. */
static void fill_logits(const struct op_run *run, struct op_tensor *t) {
    for (int64_t i = 0; i < t->rows; i++)
        for (int64_t j = 0; j < t->cols; j++) {
            uint32_t word = philox(3, (uint32_t)j, (uint32_t)i, 0, (uint32_t)RNG_TEST << 24).word[0];
            double offset = run->variant & FAR_FROM_ZERO ? 800 : 0;
            t->value[i * t->cols + j] = j < run->shape[1] ? offset + 16 * rng_unit(word) - 8 : NAN;
        }
}

static void fill_tied_logits(const struct op_run *run, struct op_tensor *t) {
    (void)run;
    for (int64_t i = 0; i < t->rows * t->cols; i++)
        t->value[i] = (double)(philox(3, (uint32_t)i, 0, 0, (uint32_t)RNG_TEST << 24).word[0] % 8);
}

/* Returns the first of a row's largest logits at or after `from`; -1: there is none. */
static int64_t find_largest(const struct op_run *run, int64_t row, int64_t from) {
    int64_t vocab = run->shape[1];
    const double *x = run->tensor[LOGITS].value + row * run->tensor[LOGITS].cols;
    double largest = -INFINITY;
    for (int64_t j = 0; j < vocab; j++)
        largest = fmax(largest, x[j]);
    while (from < vocab && x[from] != largest)
        from++;
    return from < vocab ? from : -1;
}

/* The first of the largest logits, the second, and another one. */
static void fill_tied_labels(const struct op_run *run, struct op_tensor *t) {
    for (int64_t i = 0; i < t->cols; i++) {
        int64_t first = find_largest(run, i, 0), second = find_largest(run, i, first + 1);
        t->value[i] = (double)(i % 3 == 0 || second < 0 ? first : i % 3 == 1 ? second : first / 2);
    }
}

static void entropy_inputs(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t rows = run->shape[0];
    t[LABELS] = tensor("labels", OP_IN, DTYPE_I32, 1, rows);
    t[LABELS].spread = (double)run->shape[1];
    if (run->variant & TIED)
        t[LABELS].fill = fill_tied_labels;
}

static void entropy_forward_setup(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t rows = run->shape[0];
    entropy_inputs(run);
    t[LOGITS] = tensor("logits", OP_IN, run->type, rows, run->shape[1]);
    t[LOGITS].stride = run->shape[2];
    t[LOGITS].spread = 4;
    t[LOGITS].center = run->variant & FAR_FROM_ZERO ? -500 : 0;
    t[LOSS] = tensor("loss", OP_OUT, DTYPE_F32, 1, rows);
    t[LOSS].bound = op_bound(4);
    t[LSE] = tensor("lse", OP_OUT, DTYPE_F32, 1, rows);
    t[LSE].bound = op_bound(4);
    if (!(run->variant & TIED))
        return;
    t[LOGITS].fill = fill_tied_logits;
    t[GREEDY] = tensor("greedy", OP_OUT, DTYPE_I32, 1, rows);
}

static void entropy_in_place(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    entropy_inputs(run);
    t[LOGITS] = tensor("logits", OP_INOUT, run->type, run->shape[0], run->shape[2]);
    t[LOGITS].fill = fill_logits;
    /* Steps of finite differences are shares of the value: useless far from zero. */
    t[LOGITS].gradient_of = run->variant & FAR_FROM_ZERO ? 0 : 1 + LOGITS;
    t[DLOSS] = tensor("dloss", OP_IN, DTYPE_F32, 1, run->shape[0]);
    t[DLOSS].fill = fill_dloss;
}

/* An exponential of x - lse carries the rounding of lse. */
static void entropy_backward_setup(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    entropy_in_place(run);
    t[LOGITS].bound = op_bound(run->variant & FAR_FROM_ZERO ? 800 * 800 : 400);
    t[LSE] = tensor("lse", OP_IN, DTYPE_F32, 1, run->shape[0]);
    t[LSE].fill = fill_lse;
}

static void entropy_fused_setup(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    entropy_in_place(run);
    t[LOGITS].bound = op_bound(8);
    t[LOSS] = tensor("loss", OP_OUT, DTYPE_F32, 1, run->shape[0]);
    t[LOSS].bound = op_bound(4);
    if (!(run->variant & NO_LSE))
        t[LSE] = tensor("lse", OP_OUT, DTYPE_F32, 1, run->shape[0]);
    t[LSE].bound = op_bound(4);
}

static struct cross_entropy entropy_arguments(const struct op_run *run) {
    const struct op_tensor *t = run->tensor;
    return (struct cross_entropy){.rows = run->shape[0],
                                  .vocab = run->shape[1],
                                  .stride = run->shape[2],
                                  .type = run->type,
                                  .logits = t[LOGITS].data,
                                  .labels = t[LABELS].data,
                                  .loss = t[LOSS].data,
                                  .lse = t[LSE].data,
                                  .dloss = t[DLOSS].data,
                                  .is_greedy = t[GREEDY].data};
}

static int entropy_forward_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct cross_entropy a = entropy_arguments(run);
    return ops->cross_entropy_forward(exec, &a);
}

static int entropy_backward_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct cross_entropy a = entropy_arguments(run);
    return ops->cross_entropy_backward(exec, &a);
}

static int entropy_fused_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct cross_entropy a = entropy_arguments(run);
    return ops->cross_entropy_fused(exec, &a);
}

static void entropy_forward_reference(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    for (int64_t i = 0; i < run->shape[0]; i++) {
        double lse = log_sum_exp(run, i);
        t[LOSS].expected[i] = lse - t[LOGITS].value[i * t[LOGITS].cols + (int64_t)t[LABELS].value[i]];
        if (t[LSE].expected)
            t[LSE].expected[i] = lse;
        if (t[GREEDY].expected)
            t[GREEDY].expected[i] = (int64_t)t[LABELS].value[i] == find_largest(run, i, 0);
    }
}

static void entropy_backward_reference(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t stride = run->shape[2];
    for (int64_t i = 0; i < run->shape[0]; i++) {
        double lse = log_sum_exp(run, i);
        for (int64_t j = 0; j < run->shape[1]; j++)
            t[LOGITS].expected[i * stride + j] =
                (exp(t[LOGITS].value[i * stride + j] - lse) - (j == (int64_t)t[LABELS].value[i])) * t[DLOSS].value[i];
    }
}

static void entropy_fused_reference(struct op_run *run) {
    entropy_forward_reference(run);
    entropy_backward_reference(run);
}

static double entropy_loss(const struct op_run *run) {
    const struct op_tensor *t = run->tensor;
    double loss = 0;
    for (int64_t i = 0; i < run->shape[0]; i++)
        loss += t[DLOSS].value[i] *
                (log_sum_exp(run, i) - t[LOGITS].value[i * t[LOGITS].cols + (int64_t)t[LABELS].value[i]]);
    return loss;
}

static void entropy_forward_cost(const struct op_run *run, double *flops, double *bytes) {
    *flops = 0;
    *bytes = (double)(run->shape[0] * run->shape[1]) * (double)dtype_bytes(run->type);
}

static void entropy_in_place_cost(const struct op_run *run, double *flops, double *bytes) {
    entropy_forward_cost(run, flops, bytes);
    *bytes *= 2;
}

static const struct op_kind entropy_forward = {.name = "cross_entropy_forward",
                                               .setup = entropy_forward_setup,
                                               .call = entropy_forward_call,
                                               .reference = entropy_forward_reference,
                                               .cost = entropy_forward_cost};
static const struct op_kind entropy_backward = {.name = "cross_entropy_backward",
                                                .setup = entropy_backward_setup,
                                                .call = entropy_backward_call,
                                                .reference = entropy_backward_reference,
                                                .loss = entropy_loss,
                                                .cost = entropy_in_place_cost};
static const struct op_kind entropy_fused = {.name = "cross_entropy_fused",
                                             .setup = entropy_fused_setup,
                                             .call = entropy_fused_call,
                                             .reference = entropy_fused_reference,
                                             .loss = entropy_loss,
                                             .cost = entropy_in_place_cost};

/* clang-format off */
#define BOTH_TYPES(kind, note, use, variant, ...) \
    {&kind, note, use, DTYPE_F32, variant, {__VA_ARGS__}}, {&kind, note, use, DTYPE_BF16, variant, {__VA_ARGS__}}
/* clang-format on */

static const struct op_case cases[] = {
    BOTH_TYPES(embedding_forward, NULL, OP_TEST, 0, 9, 48, 30, 16),
    BOTH_TYPES(embedding_forward, "odd, no positions", OP_TEST, NO_POSITIONS, 13, 37, 30, 16),
    BOTH_TYPES(embedding_forward, "no rows", OP_TEST, 0, 0, 37, 30, 16),
    BOTH_TYPES(embedding_forward, "parallel", OP_TEST, 0, 64, 384, 100, 32),
    BOTH_TYPES(embedding_backward, NULL, OP_TEST, 0, 9, 48, 30, 16),
    BOTH_TYPES(embedding_backward, "odd, many of a token", OP_TEST, 0, 200, 37, 3, 16),
    BOTH_TYPES(embedding_backward, "no positions", OP_TEST, NO_POSITIONS, 9, 37, 30, 16),
    BOTH_TYPES(embedding_backward, "frozen tokens", OP_TEST, TOKENS_FROZEN, 9, 37, 30, 16),
    BOTH_TYPES(embedding_backward, "no rows", OP_TEST, 0, 0, 37, 30, 16),
    BOTH_TYPES(embedding_backward, "parallel", OP_TEST, 0, 100, 331, 40, 32),
    BOTH_TYPES(embedding_forward, "virtual tokens", OP_TEST, 0, 60, 48, 10, 16, 5, 3),
    BOTH_TYPES(embedding_forward, "virtual tokens of another rank", OP_TEST, NOT_MINE, 60, 37, 10, 16, 5, 3),
    BOTH_TYPES(embedding_backward, "virtual tokens", OP_TEST, 0, 60, 48, 10, 16, 5),
    BOTH_TYPES(embedding_backward, "virtual tokens, ids after them", OP_TEST, NO_POSITIONS | TOKENS_FROZEN, 60, 48, 10,
               16, 5, 3),
    BOTH_TYPES(embedding_backward, "virtual tokens, frozen others", OP_TEST, TOKENS_FROZEN, 200, 331, 3, 16, 5),
    BOTH_TYPES(embedding_forward, "gpt2", OP_BENCH, 0, 1024, 768, 50257, 1024),
    BOTH_TYPES(embedding_backward, "gpt2", OP_BENCH, 0, 1024, 768, 50257, 1024),
    BOTH_TYPES(entropy_forward, NULL, OP_TEST, 0, 5, 64, 64),
    BOTH_TYPES(entropy_forward, "odd, padded", OP_TEST, 0, 7, 77, 90),
    BOTH_TYPES(entropy_forward, "one class", OP_TEST, 0, 3, 1, 2),
    BOTH_TYPES(entropy_forward, "no rows", OP_TEST, 0, 0, 77, 90),
    BOTH_TYPES(entropy_forward, "chunks", OP_TEST, 0, 9, 5003, 5008),
    BOTH_TYPES(entropy_forward, "far from zero", OP_TEST, FAR_FROM_ZERO, 5, 500, 512),
    BOTH_TYPES(entropy_forward, "greedy flags", OP_TEST, TIED, 9, 77, 90),
    BOTH_TYPES(entropy_forward, "greedy flags, chunks", OP_TEST, TIED, 6, 5003, 5008),
    BOTH_TYPES(entropy_backward, NULL, OP_TEST, 0, 5, 64, 64),
    BOTH_TYPES(entropy_backward, "odd, padded", OP_TEST, 0, 7, 77, 90),
    BOTH_TYPES(entropy_backward, "no rows", OP_TEST, 0, 0, 77, 90),
    BOTH_TYPES(entropy_backward, "parallel", OP_TEST, 0, 9, 5003, 5008),
    {&entropy_backward, "far from zero", OP_TEST, DTYPE_F32, FAR_FROM_ZERO, {5, 500, 512}},
    BOTH_TYPES(entropy_fused, NULL, OP_TEST, 0, 5, 64, 64),
    BOTH_TYPES(entropy_fused, "odd, padded, no lse", OP_TEST, NO_LSE, 7, 77, 90),
    BOTH_TYPES(entropy_fused, "one class", OP_TEST, 0, 3, 1, 2),
    BOTH_TYPES(entropy_fused, "no rows", OP_TEST, 0, 0, 77, 90),
    BOTH_TYPES(entropy_fused, "chunks", OP_TEST, 0, 9, 5003, 5008),
    BOTH_TYPES(entropy_fused, "far from zero", OP_TEST, FAR_FROM_ZERO, 5, 500, 512),
    BOTH_TYPES(entropy_forward, "gpt2", OP_BENCH, 0, 256, 50257, 50304),
    BOTH_TYPES(entropy_fused, "gpt2", OP_BENCH, 0, 256, 50257, 50304),
    {&entropy_fused, "gpt2's vocabulary", OP_LONG, DTYPE_F32, 0, {4, 50257, 50304}},
    {&entropy_fused, "a vocabulary of 262144", OP_LONG, DTYPE_BF16, 0, {2, 262144, 262144}},
};

const struct op_family ends_family = {"ends", cases, sizeof cases / sizeof *cases};
