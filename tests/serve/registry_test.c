/* The identity of a directory whose adapter was unloaded: of the directory, whatever changes in it. */
#include "registry-internal.h"

#include "support/test.h"

#include <sys/stat.h>

static struct statx directory(bool has_birth) {
    return (struct statx){.stx_mask = STATX_BASIC_STATS | (has_birth ? STATX_BTIME : 0),
                          .stx_dev_major = 8,
                          .stx_dev_minor = 1,
                          .stx_ino = 77,
                          .stx_btime = {.tv_sec = has_birth ? 1000 : 0},
                          .stx_ctime = {.tv_sec = 2000},
                          .stx_mtime = {.tv_sec = 2000}};
}

static void a_change_in_a_directory_does_not_bring_it_back(void **state) {
    (void)state;
    for (int has_birth = 0; has_birth < 2; has_birth++) {
        struct statx before = directory(has_birth), after = before;
        after.stx_ctime.tv_sec = after.stx_mtime.tv_sec = 3000; /* a file was added */
        after.stx_nlink = 5;
        after.stx_mode = 0755;
        assert_true(registry_identity(&before) == registry_identity(&after));
    }
}

static void another_directory_is_another(void **state) {
    (void)state;
    for (int has_birth = 0; has_birth < 2; has_birth++) {
        struct statx first = directory(has_birth), other = first;
        other.stx_ino++;
        assert_true(registry_identity(&first) != registry_identity(&other));
        other = first;
        other.stx_dev_minor++;
        assert_true(registry_identity(&first) != registry_identity(&other));
    }
    struct statx first = directory(true), reborn = first;
    reborn.stx_btime.tv_nsec++; /* with the inode of the one that was removed */
    assert_true(registry_identity(&first) != registry_identity(&reborn));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_change_in_a_directory_does_not_bring_it_back),
                                       cmocka_unit_test(another_directory_is_another)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
