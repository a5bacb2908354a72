/* Any text as config.json. It is refused in one line, or gives a model that is written and read back unchanged. The
 * model can also be read as the family that its keys fit. */
#include "model/family.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool is_right, const char *what) {
    if (is_right)
        return;
    fprintf(stderr, "model_config_fuzz: %s (%s)\n", what, status_text());
    abort();
}

struct read {
    struct model_config config;
    struct model_text_ends ends;
    enum dtype dtype;
};

static int read_text(const char *text, struct read *out) {
    memset(out, 0, sizeof *out);
    return model_read_config(text, "file", &out->config, &out->dtype, &out->ends);
}

/* Fifteen digits of a number are written. */
static bool is_near(double a, double b) {
    return a == b || (a - b < 1e-12 * a && b - a < 1e-12 * a);
}

static void check_written(const struct read *first) {
    struct read again;
    char *one = NULL, *other = NULL;
    check(!model_write_config(&first->config, DTYPE_F32, &first->ends, &one), "not written");
    check(!read_text(one, &again), "what was written does not read");
    check(!model_write_config(&again.config, DTYPE_F32, &again.ends, &other), "not written again");
    check(!strcmp(one, other), "reads back as something else");
    check(again.config.window == first->config.window &&
              !memcmp(again.config.full_layers, first->config.full_layers, sizeof again.config.full_layers),
          "other windows");
    check(is_near(first->config.rotary.base, again.config.rotary.base) &&
              is_near(first->config.rotary.factor, again.config.rotary.factor) &&
              is_near(first->config.rotary.yarn_factor, again.config.rotary.yarn_factor),
          "another rotation");
    free(one);
    free(other);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct read first;
    char *text = malloc(size + 1);
    check(text, "no memory");
    memcpy(text, data, size);
    text[size] = 0;
    status_fail(STATUS_OK, "%s", "");
    if (read_text(text, &first)) {
        check(*status_text() && !strchr(status_text(), '\n'), "refused without one line that says why");
    } else {
        struct read other = first;
        check_written(&first);
        check(!model_family_choose(&other.config), "no family fits its own model");
        check_written(&other);
        model_read_generation_config(text, "file", &first.config, &first.ends);
    }
    free(text);
    return 0;
}
