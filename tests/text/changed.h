/* A golden tokenizer whose tokenizer.json a test has changed. */
#pragma once

#include "support/test.h"
#include "text/text.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

/* Writes `root`, which it releases, as tokenizer.json of a new directory, and opens that. tokenizer_close ends it. */
static inline struct tokenizer *open_changed(json_t *root) {
    char *directory = test_directory(), path[256];
    struct tokenizer *tokenizer;
    snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    test_ok(tokenizer_open(directory, &tokenizer));
    free(directory);
    return tokenizer;
}
