/* The constraint that keeps calls of tools valid, as a structural tag, and the place of constraints after reasoning. */
#pragma once

#include "tools.h"

struct call_grammar {
    const struct tool_format *format;
    const struct openai_tools *tools;
    enum chat_thought thought;
};
/* Rewrites a request's constraint, which may be none, for answers that may have calls or reasoning: an answer is calls,
 * if they are required; else text, or what the constraint allows, or calls. It begins after the reasoning. A constraint
 * that is no JSON where it should be stays as it is, and is refused when it is compiled. STATUS_MEMORY. */
int call_grammar_apply(const struct call_grammar *grammar, struct ask_constraint *constraint);
