/* A fresh directory for each test of files, and the paths of names in it. */
#pragma once

#include "support/test.h"

#include <limits.h>

static char root[200];

/* A setup of cmocka. */
static int open_root(void **state) {
    (void)state;
    char *directory = test_directory();
    snprintf(root, sizeof root, "%s", directory);
    free(directory);
    return 0;
}

/* Returns root/name, valid for seven further calls. */
static const char *at(const char *name) {
    static char paths[8][PATH_MAX];
    static int next;
    char *path = paths[next++ % 8];
    assert_in_range(snprintf(path, PATH_MAX, "%s/%s", root, name), 1, PATH_MAX - 1);
    return path;
}
