/* The tools of a request, and the choice among them, in the form of chat completions. Other forms are translated to it.
 */
#pragma once

#include "call_parser.h"
#include "error.h"
#include "model.h"

enum tool_choice {
    TOOLS_NONE,     /* nothing is read as a call */
    TOOLS_AUTO,     /* the model decides */
    TOOLS_REQUIRED, /* the answer is calls */
};
struct openai_tools {
    struct call_tool *items; /* [count] those that may be called; names and schemas belong to the list that was read */
    size_t count;
    const char *schema; /* the place of a tool's parameters in it, for messages */
    enum tool_choice choice;
    bool is_single; /* nothing follows the first call */
};

/* Reads `tools`, a list of {"type": "function", "function": {"name", "parameters", "strict"}}, `choice` (tool_choice)
 * and `parallel` (parallel_tool_calls). Each may be NULL. Call openai_tools_free in any case. Returns false with
 * *error, whose param names the field. */
bool openai_tools_read(struct openai_tools *tools, const json_t *list, const json_t *choice, const json_t *parallel,
                       struct error *error);
void openai_tools_free(struct openai_tools *tools);

/* Compares what a template writes for calls with the format that is used with it. `difference` receives one line with
 * both texts, or nothing. It renders at most twice, each for at most model->template_seconds. STATUS_MEMORY. */
int openai_tools_check(const struct openai_model *model, struct chat_template *template, struct strbuf *difference);
/* The same, and logs the difference as a warning. `whose`: the template's owner. NULL is no template. */
int openai_tools_warn(const struct openai_model *model, struct chat_template *template, const char *whose);
