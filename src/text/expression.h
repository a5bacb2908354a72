/* Expressions of Python's re, which PEFT uses to name modules. They come with adapters from other people, so the steps
 * and the memory of one match are limited; an expression that exceeds a limit is refused. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct text_expression;

/* Compiles `text` once for all its matches. A key of a pattern (rank_pattern) matches after any prefix, as in PEFT.
 * `what` names the option or key in errors, and outlives the expression. STATUS_USAGE when Python's re would refuse the
 * text, or when it would mean something else here; STATUS_MEMORY. */
int text_expression_open(const char *what, const char *text, bool is_key, struct text_expression **expression);
/* Makes the expression share its limit with the other `sharers` - 1 that are matched with the same paths. Together they
 * may take little more than one by itself. */
void text_expression_share(struct text_expression *expression, size_t sharers);
void text_expression_close(struct text_expression *expression);

/* Sets *is_match when the expression matches the whole path, as re.fullmatch does. STATUS_USAGE when a limit is
 * exceeded. */
int text_expression_match(const struct text_expression *expression, const char *path, bool *is_match);
