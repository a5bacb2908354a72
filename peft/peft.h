/* Parameter-efficient methods on a frozen base: what they add to the parameters, and the hooks that make it work.
 *
 * A stack is one or several adapters that train, or apply, together. It has a parameter table and a store of its own,
 * of the same kind as the model's; so gradient sums, the optimizer and checkpoints treat it as they treat a model. Its
 * rows carry the file names of Hugging Face's PEFT. The model knows of it only the hook table.
 *
 * Order of calls: peft_open (nothing is allocated on the device), model_open with peft_hooks, peft_allocate, the base's
 * values, peft_set_base, then initial values or files. While it trains: peft_begin before the forwards of a global
 * batch, peft_end behind its last backward. One thread; the stack outlives the model that has its hooks. */
#ifndef CAMBIUM_PEFT_PEFT_H
#define CAMBIUM_PEFT_PEFT_H

#include "model/model.h"
#include "peft/config.h"

struct peft;

struct peft_options {
    const struct peft_config *adapters;
    int count;
    const struct model_options *model; /* of the base: shape, type, layers of this stage */
    bool trains;
};

int peft_open(const struct peft_options *options, struct rank *rank, struct peft **peft);
void peft_close(struct peft *peft);
const struct hook_table *peft_hooks(const struct peft *peft);
struct param_store *peft_store(struct peft *peft);
/* Rows of each sample that stand before its tokens: virtual tokens, of all adapters together. */
int64_t peft_virtual_tokens(const struct peft *peft);

/* Keys and values that stand before each sample: its first row, virtual or not, is at this position. */
int64_t peft_prefix_tokens(const struct peft *peft);

/* Gives the store its memory. */
int peft_allocate(struct peft *peft);
/* Bytes on the device that peft_allocate takes beside the store. */
size_t peft_device_bytes(const struct peft *peft);
/* The weights of the base, loaded and plain, before peft_initialise: prompts start as rows of them, and DoRA measures
 * them at every peft_begin, not after they are packed. */
void peft_set_base(struct peft *peft, const struct param_store *weights);
/* Initial values, keyed by seed, name and element. All tensor ranks together. */
int peft_initialise(struct peft *peft, uint64_t seed);
/* Clears the gradients and computes what hooks use until the weights change again: before a global batch, before a
 * validation, and once where nothing trains. */
int peft_begin(struct peft *peft);
/* Gradients of what peft_begin computed. */
int peft_end(struct peft *peft);
/* Sets the parameters of `to`, a stack of the same adapters that does not train, on the same rank and allocated: those
 * of `from`, and in place of an encoder's the table that it made at the last peft_begin. What serving needs. */
int peft_fold(const struct peft *from, struct peft *to);

/* Writes adapter_config.json and adapter_model.safetensors into `directory`, which exists, as peft_fold gives them,
 * with the ranks of the stack's world together. The files take the place of older ones when all is written. */
int peft_export(struct peft *peft, const char *directory, const char *config_text);

#endif
