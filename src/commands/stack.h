/* The stack of methods that finetune trains together, and their configurations. They come from the section `peft` or
 * from an adapter's directory. "full" takes the place of a method: all weights of the model train. */
#pragma once

#include "config/config.h"
#include "peft/peft.h"

/* The section `peft`. A key applies to every method that has it; a key with a method's name ("peft.ia3.target_modules")
 * applies to that method only. */
struct stack_options {
    struct config_list types;                       /* peft.type */
    struct peft_config all, alone[PEFT_TYPE_COUNT]; /* keys for all methods, and for one */
};
/* Writes the section's rows for a struct stack_options at `offset`, and returns their number. `rows` may be NULL. */
size_t stack_rows(struct config_row *rows, size_t offset);
enum { STACK_NAMES_BYTES = 256 };
/* Writes the names of all methods: "lora, ..., prefix or full". */
void stack_names(char out[STACK_NAMES_BYTES]);
/* Writes the default learning rate of each method: "0.0002 for lora, ...". */
void stack_rates(char out[STACK_NAMES_BYTES]);

/* A stack, in the order of the methods' names, in which its directory is read. */
struct stack {
    struct peft_config configs[PEFT_MAX_STACK];
    int count;
    bool is_full;              /* the model's weights train; count is 0 */
    struct peft_files *init;   /* files with the initial values, or NULL */
    struct peft_files *frozen; /* adapters below it that do not train, or NULL */
};
/* True when a list of methods names "full". */
bool stack_lists_full(const struct config_list *methods);
/* Makes a stack from the options; `methods` (--peft) overrides peft.type. `given`: the keys that were given. The stack
 * uses the caller's strings. STATUS_USAGE, STATUS_MEMORY. */
int stack_choose(struct stack *stack, const struct config_list *methods, const struct stack_options *options,
                 const struct config *given);
/* Returns the path of the first key of peft, other than peft.type, that was given; NULL: none was. `with_run_keys`:
 * keys of a run, which define no adapter, count as well. */
const char *stack_find_given(const struct config *given, bool with_run_keys);
/* The base of a stack: a model, and an index into load_in_names. */
struct stack_base {
    const char *model;
    int load_in;
};
/* Makes a stack from the adapter or the stack in a directory, for the base. Keys of peft that define an adapter
 * are refused. STATUS_USAGE, and errors of reading the files. */
int stack_take(struct stack *stack, const struct config_list *methods, const struct stack_options *options,
               const struct config *given, const char *directory, const struct stack_base *base);
/* Makes a stack of the adapters in several directories, in that order, with their values; a method may occur several
 * times. STATUS_USAGE, and errors of reading the files. */
int stack_apply(struct stack *stack, const struct config_list *directories, const struct config *given,
                const struct stack_base *base);
/* Puts frozen adapters below a stack that trains. STATUS_USAGE, and errors of reading the files. */
int stack_freeze(struct stack *stack, const struct config_list *directories, const struct stack_base *base);
/* Returns the learning rate when none is given, and sets *title to what has it. */
double stack_default_lr(const struct stack *stack, const char **title);
/* Removes keys that no method of the stack has from an array of rows. */
void stack_drop_rows(const struct stack *stack, struct config_row *rows, size_t *count);
void stack_free(struct stack *stack);
