/* Every direction of conversion, each with a small source. Sources are recorded directories; a GGUF file is made of one
 * of them. */
#pragma once

#include "convert/convert.h"

#include "support/test.h"

static const struct direction {
    const char *from; /* in TEST_DATA; NULL: the GGUF file */
    enum convert_target to;
    const char *config; /* in TEST_DATA; NULL: the source's */
} directions[] = {
    {"ckpt/golden/dcp/model", CONVERT_MODEL, "model/golden/llama_biases_linear/config.json"},
    {"ckpt/golden/megatron/llama_4", CONVERT_MODEL, NULL},
    {NULL, CONVERT_MODEL, NULL},
    {"ckpt/golden/dcp/model", CONVERT_TENSORS, NULL},
    {"model/golden/qwen3", CONVERT_DCP, NULL},
    {"model/golden/d64_untied", CONVERT_MEGATRON, NULL},
    {"commands/golden/tiny/model", CONVERT_GGUF, NULL},
};
enum { DIRECTIONS = sizeof directions / sizeof *directions };

/* The directory of outputs, which holds nothing else; the output itself; and the GGUF file, which is elsewhere. */
static struct { char root[200], output[256], gguf[256]; } places;

/* Converts in one direction. */
static int convert_once(const struct direction *direction) {
    char from[512], config[512];
    bool has_files = direction->to == CONVERT_DCP || direction->to == CONVERT_MEGATRON;
    snprintf(from, sizeof from, TEST_DATA "/%s", direction->from ? direction->from : "");
    snprintf(config, sizeof config, TEST_DATA "/%s", direction->config ? direction->config : "");
    return convert(&(struct convert_request){.from = direction->from ? from : places.gguf,
                                             .to = direction->to,
                                             .output = places.output,
                                             .config = direction->config ? config : NULL,
                                             .files = has_files ? 2 : 1,
                                             .tensor = 1});
}

/* Makes the directory and the GGUF file. */
static int make_places(void **state) {
    char *root = test_directory(), *other = test_directory();
    (void)state;
    snprintf(places.root, sizeof places.root, "%s", root);
    snprintf(places.output, sizeof places.output, "%s/output", root);
    snprintf(places.gguf, sizeof places.gguf, "%s/m.gguf", other);
    free(root);
    free(other);
    test_ok(convert_once(&directions[DIRECTIONS - 1]));
    assert_int_equal(rename(places.output, places.gguf), 0);
    return 0;
}

/* Removes the output, a file or a directory. */
static void remove_output(void) {
    if (file_is_directory(places.output))
        test_ok(file_remove_tree(places.output));
    else
        assert_int_equal(remove(places.output), 0);
}
