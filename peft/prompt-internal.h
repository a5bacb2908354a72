/* Between prompt tuning and p-tuning: a table of virtual tokens, which where nothing trains is what both are. */
#ifndef CAMBIUM_PEFT_PROMPT_INTERNAL_H
#define CAMBIUM_PEFT_PROMPT_INTERNAL_H

#include "method-internal.h"

struct prompt {
    int64_t tokens;
    bool is_here; /* this stage has the embedding */
    int table_id; /* the table's row of the parameters */
};

/* Checks the number of tokens. */
int prompt_open(struct peft_adapter *adapter, struct prompt *prompt);
int prompt_add_table(struct peft_adapter *adapter, struct prompt *prompt);
/* The rows of the table, on loan, and their gradients. */
void prompt_borrow(const struct peft_adapter *adapter, const struct prompt *prompt, struct hook_virtual *rows);
void prompt_return(const struct peft_adapter *adapter, const struct prompt *prompt);
/* Rows of the base's token table, unless they are as the table of parameters draws them. */
int prompt_initialise(struct peft_adapter *adapter, const struct prompt *prompt, uint64_t seed);
/* The table of virtual tokens into an image. */
int prompt_put_image(struct image_maker *maker, const struct prompt *prompt);
/* The adapter goes on as prompt tuning. */
void prompt_take(struct peft_config *config);

#endif
