/* Any text as adapter_config.json: it is refused in one line, or gives a configuration that is written and reads back
 * as the same. */
#include "peft/peft.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool is_right, const char *what) {
    if (is_right)
        return;
    fprintf(stderr, "adapter_config_fuzz: %s (%s)\n", what, status_text());
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const struct model_config base = {.num_layers = 3, .hidden_size = 24};
    struct peft_config config, again;
    char *text = malloc(size + 1), *one = NULL, *other = NULL;
    check(text, "no memory");
    memcpy(text, data, size);
    text[size] = 0;
    log_quiet(true); /* unknown keys */
    status_fail(STATUS_OK, "%s", "");
    if (peft_read_config(text, "file", &config))
        check(!config.memory && *status_text() && !strchr(status_text(), '\n'),
              "refused without one line that says why");
    else if (!peft_write_config(&config, &base, "base", &one)) {
        check(!peft_read_config(one, "written", &again), "what was written does not read");
        check(!peft_write_config(&again, &base, "base", &other), "not written again");
        check(again.type == config.type && !strcmp(one, other), "reads back as something else");
        peft_config_free(&again);
    }
    peft_config_free(&config);
    free(text);
    free(one);
    free(other);
    return 0;
}
