/* The constraint that keeps calls of tools valid, as a structural tag, and the place of constraints after reasoning. */
#pragma once

#include "tools.h"

struct call_grammar {
    const struct tool_format *format;
    const struct openai_tools *tools;
    enum chat_thought thought;
};
/* Makes the constraint of an answer that may have calls or reasoning. It is calls, if they are required; else text, or
 * what the request's own constraint allows, or calls. It begins after the reasoning. *made is a copy of `given`, which
 * may be none, where nothing changes; and where it is no JSON though it should be, which is refused when it is
 * compiled. STATUS_MEMORY. */
int call_grammar_make(const struct call_grammar *grammar, const struct ask_constraint *given,
                      struct ask_constraint *made);
