/* Which methods a run of finetune trains together, and what each of them is: from the section `peft`, or from an
 * adapter's directory. */
#ifndef CAMBIUM_COMMANDS_STACK_H
#define CAMBIUM_COMMANDS_STACK_H

#include "config/config.h"
#include "peft/peft.h"

/* The section `peft`. A key is of every method that has it; one with a method's name ("peft.ia3.target_modules") of
 * that method alone. */
struct stack_options {
    struct config_list types; /* peft.type */
    struct peft_config all, own[PEFT_TYPE_COUNT];
};
/* Its rows, within a struct stack_options at `offset`; without an array only their number. */
size_t stack_rows(struct config_row *rows, size_t offset);
/* "lora, ..., ptuning or prefix" */
enum { STACK_NAMES_BYTES = 256 };
void stack_names(char out[STACK_NAMES_BYTES]);

/* In the order of the methods' names, in which a stack's directory is read. */
struct stack {
    struct peft_config configs[PEFT_MAX_STACK];
    int count;
    struct peft_files *init; /* of the directory that it starts from, or NULL */
};
/* `methods` (--peft) goes before peft.type. The strings stay the caller's. */
int stack_choose(struct stack *stack, const struct config_list *methods, const struct stack_options *options,
                 const struct config *given);
/* Takes the adapter or the stack of a directory instead, on the base `model`. Keys of peft that say what an adapter is
 * are refused. */
int stack_take(struct stack *stack, const struct config_list *methods, const struct stack_options *options,
               const struct config *given, const char *directory, const char *model);
/* Adapters of several directories, each with the values of its files, in their order; any number of a method. */
int stack_apply(struct stack *stack, const struct config_list *directories, const struct config *given,
                const char *model);
/* Takes the keys that none of its methods has out of an array of rows. */
void stack_drop_rows(const struct stack *stack, struct config_row *rows, size_t *count);
void stack_free(struct stack *stack);

#endif
