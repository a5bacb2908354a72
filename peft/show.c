/* The lines of `adapter show`. */
#include "format-internal.h"

void show_list(struct strbuf *text, const char *what, const struct config_list *list, const char *const *defaults) {
    if (!list->count && !defaults)
        return;
    strbuf_format(text, "%s: ", what);
    for (size_t i = 0; i < list->count; i++)
        strbuf_format(text, "%s%s", i ? ", " : "", list->items[i]);
    for (size_t i = 0; !list->count && defaults[i]; i++)
        strbuf_format(text, "%s%s", i ? ", " : "", defaults[i]);
    strbuf_add_char(text, '\n');
}

void show_tokens(const struct peft_config *config, const struct model_family *base, struct strbuf *text) {
    (void)base;
    strbuf_format(text, "\nnum_virtual_tokens: %lld\n", (long long)config->num_virtual_tokens);
}

int peft_show(const struct peft_config *config, const struct model_family *base, struct strbuf *text) {
    const struct peft_method *method = peft_method(config->type);
    strbuf_format(text, "method: %s", method->title);
    method->format->show(config, base, text);
    return strbuf_status(text);
}
