/* The files and directories that are synced against a power cut, and their order. A call of fsync is noted before it is
 * made, and fails on command. */
#include "root.h"

#include "base/base.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *watched; /* NULL: nothing is noted */
static char
    synced[4096]; /* the names after the root, each with a space; '!' before those synced after `watched` came */
static const char *failing; /* the ending of a name whose sync fails */

int fsync(int descriptor) {
    char link[64], path[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = watched ? readlink(link, path, sizeof path - 1) : -1;
    size_t before = strlen(root);
    if (length >= (ssize_t)before && !strncmp(path, root, before)) {
        const char *name = path + before, *drawn = strstr(name, "/.cambium-");
        char shown[256];
        path[length] = 0;
        snprintf(shown, sizeof shown, "%.*s%s", drawn ? (int)(drawn - name) : 200, name,
                 drawn ? strchr(drawn + 1, '/') ? strchr(drawn + 1, '/') : "/drawn" : "");
        size_t used = strlen(synced), rest = failing ? strlen(failing) : 0;
        snprintf(synced + used, sizeof synced - used, "%s%s ", file_exists(watched) ? "!" : "", *shown ? shown : "/");
        if (failing && strlen(shown) >= rest && !strcmp(shown + strlen(shown) - rest, failing)) {
            errno = EIO;
            return -1;
        }
    }
    return (int)syscall(SYS_fsync, descriptor);
}

static int open_watched(void **state) {
    watched = failing = NULL;
    synced[0] = 0;
    return open_root(state);
}

static void watch(const char *path) {
    static char kept[PATH_MAX];
    snprintf(kept, sizeof kept, "%s", path);
    watched = kept;
    synced[0] = 0;
}

static void assert_file(const char *name, const char *text) {
    struct strbuf content = STRBUF_INIT;
    test_ok(file_read(at(name), 1 << 20, &content));
    assert_string_equal(strbuf_text(&content), text);
    strbuf_free(&content);
}

static void a_file_is_synced_before_it_has_its_name_and_the_name_afterwards(void **state) {
    (void)state;
    watch(at("file"));
    test_ok(file_write_atomic(at("file"), "text", 4));
    assert_string_equal(synced, "/drawn !/ ");
}

static void a_file_that_cannot_be_synced_does_not_replace_the_one_before(void **state) {
    (void)state;
    test_ok(file_write_atomic(at("file"), "before", 6));
    watch(at("file"));
    failing = "drawn";
    assert_int_equal(file_write_atomic(at("file"), "text", 4), STATUS_IO);
    assert_file("file", "before");
}

static void each_new_directory_is_synced_in_its_parent(void **state) {
    (void)state;
    watch(at("a/b/c"));
    test_ok(file_make_directories(at("a/b/c")));
    assert_string_equal(synced, "/ /a !/a/b ");
    watch(at("a/b/c"));
    test_ok(file_make_directories(at("a/b/c")));
    assert_string_equal(synced, "");
}

static void a_directory_is_synced_before_it_appears_and_its_name_afterwards(void **state) {
    (void)state;
    struct staging staging;
    test_ok(staging_begin(&staging, at("target")));
    char path[PATH_MAX];
    test_ok(file_join(path, sizeof path, staging.directory, "deep"));
    test_ok(file_make_directories(path));
    watch(at("target"));
    test_ok(staging_commit(&staging));
    assert_true(!strncmp(synced, "/new/deep /new !/ ", 18));
}

static const char *const names[] = {"key", "values", NULL};
static const struct staging_files files = {"test", "key", names};

/* Writes one generation of files. Returns the status of its commit. */
static int publish_files(const char *text) {
    struct staging staging;
    char path[PATH_MAX];
    test_ok(staging_begin_files(&staging, root, &files));
    for (int i = 0; names[i]; i++) {
        test_ok(file_join(path, sizeof path, staging.directory, names[i]));
        test_ok(file_write_atomic(path, text, strlen(text)));
    }
    watch(at("none"));
    int status = staging_commit(&staging);
    staging_abort(&staging);
    return status;
}

/* The sync after the rename to `ready` fails: the generation counts already, so its box is kept for the next writer. */
static void files_that_were_made_ready_are_kept_after_a_failure(void **state) {
    (void)state;
    test_ok(publish_files("old"));
    failing = "drawn";
    assert_int_equal(publish_files("new"), STATUS_IO);
    failing = NULL;
    bool is_there;
    char path[PATH_MAX];
    test_ok(staging_is_ready(root, &files, NULL, path, &is_there));
    assert_true(is_there);
    test_ok(staging_finish(root, &files));
    assert_file("key", "new");
    assert_file("values", "new");
}

static void what_a_link_leads_to_is_not_removed_with_it(void **state) {
    (void)state;
    test_ok(file_make_directories(at("kept")));
    test_ok(file_make_directories(at("gone")));
    test_ok(file_write_atomic(at("kept/file"), "text", 4));
    assert_int_equal(symlink(at("kept"), at("gone/link")), 0);
    test_ok(file_remove_tree(at("gone")));
    assert_file("kept/file", "text");
    assert_false(file_exists(at("gone")));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_file_is_synced_before_it_has_its_name_and_the_name_afterwards, open_watched),
        cmocka_unit_test_setup(a_file_that_cannot_be_synced_does_not_replace_the_one_before, open_watched),
        cmocka_unit_test_setup(each_new_directory_is_synced_in_its_parent, open_watched),
        cmocka_unit_test_setup(a_directory_is_synced_before_it_appears_and_its_name_afterwards, open_watched),
        cmocka_unit_test_setup(files_that_were_made_ready_are_kept_after_a_failure, open_watched),
        cmocka_unit_test_setup(what_a_link_leads_to_is_not_removed_with_it, open_watched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
