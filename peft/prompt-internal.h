/* Shared by prompt tuning and p-tuning: a table of virtual tokens. Outside training, both are just that. */
#pragma once

#include "method-internal.h"

struct prompt {
    int64_t tokens;
    bool is_here; /* this stage has the embedding */
    int table_id; /* the table's row among the parameters */
};

/* prompt_open checks the number of tokens (STATUS_USAGE). prompt_add_table adds the table's row (STATUS_MEMORY). */
int prompt_open(struct peft_adapter *adapter, struct prompt *prompt);
int prompt_add_table(struct peft_adapter *adapter, struct prompt *prompt);
/* Lends and takes back the rows of the table and their gradients. */
void prompt_borrow(const struct peft_adapter *adapter, const struct prompt *prompt, struct hook_virtual *rows);
void prompt_return(const struct peft_adapter *adapter, const struct prompt *prompt);
/* Sets the initial rows from the base's token table, unless the parameter table draws them. */
int prompt_initialise(struct peft_adapter *adapter, const struct prompt *prompt, uint64_t seed);
/* Puts the table of virtual tokens into an image. */
int prompt_put_image(struct image_maker *maker, const struct prompt *prompt);
/* Makes the adapter continue as prompt tuning. */
void prompt_take(struct peft_config *config);
