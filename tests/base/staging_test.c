/* Staged output appears whole. The output of a killed writer is removed or completed. Anything that is not ours
 * stays. */

#include "root.h"

#include "base/base.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define BOX   ".cambium-0123456789abcdef"
#define OTHER ".cambium-fedcba9876543210"

/* Makes the directories above, too. */
static void put(const char *name, const char *text) {
    char parent[PATH_MAX];
    test_ok(file_parent(at(name), parent, sizeof parent));
    test_ok(file_make_directories(parent));
    test_ok(file_write_atomic(at(name), text, strlen(text)));
}

static void assert_file(const char *name, const char *text) {
    struct strbuf content = STRBUF_INIT;
    test_ok(file_read(at(name), 1 << 20, &content));
    assert_string_equal(strbuf_text(&content), text);
    strbuf_free(&content);
}

/* Checks the names in the root (or in a directory of it), each followed by a space. */
static void assert_names(const char *directory, const char *expected) {
    char **names, all[4096] = "";
    size_t count;
    test_ok(file_list(at(directory), &names, &count));
    for (size_t i = 0; i < count; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s ", names[i]);
    file_list_free(names, count);
    assert_string_equal(all, expected);
}

static void put_mark(const char *box, const char *name, const char *kind, const char *target) {
    char path[256], text[1024];
    snprintf(path, sizeof path, "%s/mark", box);
    snprintf(text, sizeof text, "cambium staging %s %s\n%s\n", name, kind, target);
    put(path, text);
}

/* A whole directory with one file. */
static void publish(const char *target, const char *text) {
    struct staging staging;
    char path[PATH_MAX];
    test_ok(staging_begin(&staging, at(target)));
    test_ok(file_join(path, sizeof path, staging.directory, "file"));
    test_ok(file_write_atomic(path, text, strlen(text)));
    test_ok(staging_commit(&staging));
    staging_abort(&staging);
}

/* ---- directories ---- */

static void a_directory_appears_and_is_replaced(void **state) {
    (void)state;
    publish("a/b", "one");
    assert_file("a/b/file", "one");
    put("a/b/older", "x");
    publish("a/b/", "two");
    assert_file("a/b/file", "two");
    assert_names("a/b", "file ");
    assert_int_equal(symlink("b", at("a/link")), 0);
    publish("a/link", "three"); /* through the link, which stays one */
    assert_file("a/b/file", "three");
    char link[8];
    assert_int_equal(readlink(at("a/link"), link, sizeof link), 1);
    publish("a/b/.", "four");
    assert_file("a/b/file", "four");
    assert_names("a", "b link ");
    struct staging staging;
    test_ok(staging_begin(&staging, at("a/b")));
    staging_abort(&staging);
    staging_abort(&staging);
    assert_file("a/b/file", "four");
    assert_names("a", "b link ");
    test_ok(staging_remove(at("a/b")));
    assert_names("a", "link ");
    test_fails(staging_begin(&staging, at("a/none/..")), STATUS_INVALID, "not a name");
}

static void what_has_no_mark_of_ours_stays(void **state) {
    (void)state;
    put("x.old-20240101/file", "a backup");
    put("x.tmp-7/file", "notes");
    put("y.old-1/file", "a backup of what is gone");
    put(BOX "/file", "no mark");
    put(OTHER "/mark", "cambium staging " OTHER " directory\nx"); /* cut short */
    put(OTHER "/new/file", "x");
    put_mark(".cambium-0000000000000001", BOX, "directory", "x");                       /* a copy of another box */
    put_mark(".cambium-000000000000002", ".cambium-000000000000002", "directory", "x"); /* a digit less */
    put_mark(".cambium-0000000000000003", ".cambium-0000000000000003", "directory", "../x");
    put_mark("elsewhere/" BOX, BOX, "directory", "x");
    put("elsewhere/" BOX "/new/file", "x");
    assert_int_equal(symlink("elsewhere/" BOX, at(".cambium-0000000000000004")), 0);
    assert_int_equal(symlink(at("elsewhere/" BOX "/mark"), at(BOX "/mark")), 0);
    publish("x", "one");
    publish("x", "two");
    assert_names("", ".cambium-0000000000000001 .cambium-0000000000000003 .cambium-0000000000000004 "
                     ".cambium-000000000000002 " BOX " " OTHER " elsewhere x x.old-20240101 x.tmp-7 y.old-1 ");
    assert_file("x.old-20240101/file", "a backup");
    assert_file(BOX "/file", "no mark");
    assert_file(OTHER "/new/file", "x");
    assert_file("elsewhere/" BOX "/new/file", "x");
}

static void what_dead_writers_left_goes_and_what_live_ones_build_stays(void **state) {
    (void)state;
    struct staging live;
    test_ok(staging_begin(&live, at("live")));
    put_mark(BOX, BOX, "directory", "dead");
    put(BOX "/new/deep/file", "x");
    put(OTHER "/mark", "");                                          /* killed before the mark had its words */
    test_ok(file_make_directories(at(".cambium-0000000000000001"))); /* and before it was there */
    test_ok(staging_clean(root));
    char **names;
    size_t count;
    test_ok(file_list(root, &names, &count));
    assert_int_equal(count, 1);
    assert_non_null(strstr(live.box, names[0]));
    file_list_free(names, count);
    assert_true(file_is_directory(live.directory));
    test_ok(staging_commit(&live));
    assert_names("", "live ");
    assert_names("live", "");
}

/* A writer killed between the two renames of a file system that cannot exchange names. */
static void a_displaced_directory_is_found_and_put_back(void **state) {
    (void)state;
    char path[PATH_MAX], target[NAME_MAX + 1];
    put_mark(BOX, BOX, "directory", "x\ny");
    put(BOX "/old/file", "old");
    put(BOX "/new/file", "new");
    assert_false(staging_displaced(root, "x", path, target));
    assert_true(staging_displaced(root, BOX, path, target));
    assert_string_equal(target, "x\ny");
    assert_string_equal(path, at(BOX "/old"));
    test_ok(staging_clean(root));
    assert_names("", "x\ny ");
    assert_file("x\ny/file", "old");
    put_mark(BOX, BOX, "directory", "x\ny");
    put(BOX "/old/file", "older"); /* the new one has come: only rubbish */
    test_ok(staging_clean(root));
    assert_names("", "x\ny ");
    assert_file("x\ny/file", "old");
}

/* ---- files of one generation ---- */

static const char *const names[] = {"key", "values", "notes", NULL};
static const struct staging_files files = {"test", "key", names};

static void publish_files(const char *const *entries, int count) {
    struct staging staging;
    char path[PATH_MAX], parent[PATH_MAX];
    test_ok(staging_begin_files(&staging, root, &files));
    for (int i = 0; i < count; i++) {
        test_ok(file_join(path, sizeof path, staging.directory, entries[i]));
        test_ok(file_parent(path, parent, sizeof parent));
        test_ok(file_make_directories(parent));
        test_ok(file_write_atomic(path, "fresh", 5));
    }
    test_ok(staging_commit(&staging));
}

static void files_come_among_others(void **state) {
    (void)state;
    put("values", "older");
    put("notes", "older");
    put("other", "other");
    put("part/notes", "older");
    put("rest/notes", "not beside a key");
    publish_files((const char *[]){"key", "values", "part/key", "part/values", "rest/file"}, 5);
    assert_names("", "key other part rest values ");
    assert_names("part", "key values ");
    assert_names("rest", "file notes ");
    assert_file("values", "fresh");
    assert_file("other", "other");
    struct stat info;
    assert_int_equal(stat(at("key"), &info), 0);
    assert_int_equal(info.st_nlink, 1);
}

static bool is_ready(const char *in, const struct staging_files *kind, const char *name, char path[PATH_MAX]) {
    bool is_there;
    test_ok(staging_is_ready(in, kind, name, path, &is_there));
    return is_there;
}

static void a_generation_that_is_ready_counts_and_is_put_in_place(void **state) {
    (void)state;
    char path[PATH_MAX];
    put("key", "old");
    put("values", "old");
    put("notes", "old");
    put_mark(BOX, BOX, "test", ".");
    put(BOX "/new/key", "new");
    assert_false(is_ready(root, &files, NULL, path));
    assert_int_equal(rename(at(BOX "/new"), at(BOX "/ready")), 0);
    put(BOX "/ready/values", "new");
    assert_int_equal(link(at(BOX "/ready/values"), at(BOX "/link")), 0); /* a kill in the middle of a file */
    assert_true(is_ready(root, &files, "values", path));
    assert_false(is_ready(root, &files, "notes", path));
    assert_false(is_ready(root, &(struct staging_files){"other", "key", names}, NULL, path));
    assert_true(is_ready(root, &files, NULL, path));
    assert_string_equal(path, at(BOX "/ready"));
    test_ok(staging_clean(root)); /* not what nobody knows how to place */
    assert_file("values", "old");
    int lock = open(at(BOX "/mark"), O_RDONLY);
    assert_int_equal(flock(lock, LOCK_EX | LOCK_NB), 0);
    test_ok(staging_finish(root, &files)); /* its writer lives, and does it */
    assert_file("values", "old");
    close(lock);
    assert_int_equal(link(at(BOX "/ready/values"), at("again")), 0);
    assert_int_equal(rename(at("again"), at("values")), 0); /* it had come that far */
    test_ok(staging_finish(root, &files));
    assert_names("", "key values ");
    assert_file("key", "new");
    assert_file("values", "new");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_directory_appears_and_is_replaced, open_root),
        cmocka_unit_test_setup(what_has_no_mark_of_ours_stays, open_root),
        cmocka_unit_test_setup(what_dead_writers_left_goes_and_what_live_ones_build_stays, open_root),
        cmocka_unit_test_setup(a_displaced_directory_is_found_and_put_back, open_root),
        cmocka_unit_test_setup(files_come_among_others, open_root),
        cmocka_unit_test_setup(a_generation_that_is_ready_counts_and_is_put_in_place, open_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
