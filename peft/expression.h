/* Expressions of Python's re, by which PEFT names modules. They come with adapters from elsewhere: what one match may
 * take, in steps and memory, has a limit, and beyond it the expression is refused. */
#ifndef CAMBIUM_PEFT_EXPRESSION_H
#define CAMBIUM_PEFT_EXPRESSION_H

#include <stdbool.h>
#include <stddef.h>

struct peft_expression;

/* Compiles `text` once for all its matches; a key of a pattern (rank_pattern) stands behind a prefix, as PEFT has it.
 * `what` names the option in errors, and outlives the expression. Fails with STATUS_USAGE where Python's re would not
 * read it, or where it would mean something else here. */
int peft_expression_open(const char *what, const char *text, bool is_key, struct peft_expression **expression);
/* Of so many expressions (at least 1) that are matched with the same paths, this is one: together they may take little
 * more than one alone. */
void peft_expression_share(struct peft_expression *expression, size_t sharers);
void peft_expression_close(struct peft_expression *expression);

/* Whether the expression matches the whole path, as re.fullmatch. Fails with STATUS_USAGE beyond the limits. */
int peft_expression_match(const struct peft_expression *expression, const char *path, bool *is_match);

#endif
