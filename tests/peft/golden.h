/* Golden vectors of adapters (tests/peft/golden/README.md): results of peft, or for bottlenecks of a plain model, in
 * fp64.
 *
 * A case is opened by its directory's name, preceded by the family's name unless that is GPT-2 (tests/peft/families).
 * It gives its configuration and its batch. For each parameter of a stack's table it gives the values before training,
 * the gradient, and the values after the steps. Anything that a case lacks fails the test. */
#pragma once

#include "ckpt/ckpt.h"
#include "peft/peft.h"

struct golden_batch; /* the arrays of model_batch */

struct golden {
    const char *name;
    char base[512], directory[512];
    struct model_config model;
    struct peft_config config;  /* strings are the case's */
    int64_t virtual_tokens;     /* rows of each sample before its tokens */
    int64_t samples, rows;      /* of the batch, virtual tokens counted */
    struct golden_batch *batch; /* of all samples */
    struct optimizer_numbers {  /* of the steps */
        int64_t steps;
        double lr, beta1, beta2, epsilon, weight_decay;
    } optimizer;
    struct safetensors *adapter, *encoder, *expected; /* encoder: NULL when there is none */
    struct golden_texts *texts;
};

void golden_open(struct golden *golden, const char *name);
void golden_close(struct golden *golden);

/* Returns all samples (sample -1), or one of them; the loss of all is the sum of theirs. Virtual tokens have ids after
 * the vocabulary. */
struct model_batch golden_batch(const struct golden *golden, int64_t sample);

/* The values of a tensor of the expected ones ("logits", "losses"): the caller frees them. */
double *golden_expected(const struct golden *golden, const char *name, int64_t *count);

/* A parameter's values, in the parameter's own shape and orientation: the caller frees them. */
enum golden_kind { GOLDEN_START, GOLDEN_GRADIENT, GOLDEN_AFTER };
double *golden_param(const struct golden *golden, const struct param *row, enum golden_kind kind);
/* Fails unless each tensor that trains in the case is in the table. */
void golden_covers(const struct golden *golden, const struct param_table *table);

/* The names of all cases on GPT-2, from the directory; base is none. To be freed by golden_free_cases. */
size_t golden_cases(char ***names);
/* The same of the other families: "llama/lora". */
size_t golden_family_cases(char ***names);
void golden_free_cases(char **names, size_t count);
