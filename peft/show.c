/* The lines of `adapter show`. */
#include "format-internal.h"

const char show_default[] = "PEFT's default for the base";

void show_list(struct strbuf *text, const char *what, const struct config_list *list, const char *otherwise) {
    if (!list->count && !otherwise)
        return;
    strbuf_format(text, "%s: ", what);
    for (size_t i = 0; i < list->count; i++)
        strbuf_format(text, "%s%s", i ? ", " : "", list->items[i]);
    if (!list->count)
        strbuf_add_text(text, otherwise);
    strbuf_add_char(text, '\n');
}

void show_tokens(const struct peft_config *config, struct strbuf *text) {
    strbuf_format(text, "\nnum_virtual_tokens: %lld\n", (long long)config->num_virtual_tokens);
}

int peft_show(const struct peft_config *config, struct strbuf *text) {
    const struct peft_method *method = peft_method(config->type);
    strbuf_format(text, "method: %s", method->title);
    method->format->show(config, text);
    return strbuf_status(text);
}
