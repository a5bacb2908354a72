/* Whichever allocation of this room fails, the failure is reported, and only boxes remain, which the next writer
 * removes. */
#include "root.h"

#include "base/base.h"
#include "base/json.h"
#include "support/failing.h"

#include <malloc.h>
#include <unistd.h>

enum { MANY = 100 };

/* ---- what lives in memory ---- */

static int collect_facts(void *context) {
    struct facts facts = FACTS_INIT;
    char name[32];
    (void)context;
    int status = facts_add_file(&facts, "file", at("file"));
    for (int i = 0; i < MANY && !status; i++) {
        snprintf(name, sizeof name, "fact.%d", i);
        status = facts_add(&facts, FACT_CONFIGURATION, name, "shown", i % 2 ? "compared" : NULL);
    }
    facts_free(&facts);
    return status;
}

static void facts_are_collected(void **state) {
    (void)state;
    test_ok(file_write_atomic(at("file"), "text", 4));
    assert_int_equal(failing_try_all(collect_facts, NULL, 500), 0);
}

static int write_json(char **text) {
    json_begin();
    json_t *list = json_array(), *root_object = json_object();
    for (int i = 0; i < MANY; i++)
        json_array_append_new(list, json_pack("{s:i, s:s}", "number", i, "text", "a text that is long enough to grow"));
    json_object_set_new(root_object, "list", list);
    return json_end(root_object, JSON_INDENT(2), text);
}

static int write_and_read_json(void *context) {
    char *text;
    json_t *read = NULL;
    json_error_t error;
    (void)context;
    int status = write_json(&text);
    if (!status)
        status = json_read(text, strlen(text), JSON_REJECT_DUPLICATES, &read, &error);
    if (!status)
        assert_int_equal(json_array_size(json_object_get(read, "list")), MANY);
    free(text);
    json_decref(read);
    return status;
}

static void json_is_written_and_read(void **state) {
    (void)state;
    assert_int_equal(failing_try_all(write_and_read_json, NULL, 300), 0);
}

/* A parse that is left in the middle gives back what it has taken. The second round finds caches filled by the first;
 * a block lost by each of its calls would come to megabytes. */
static void a_parse_without_memory_keeps_none(void **state) {
    (void)state;
    failing_try_all(write_and_read_json, NULL, 300);
    size_t before = mallinfo2().uordblks;
    failing_try_all(write_and_read_json, NULL, 300);
    assert_true(mallinfo2().uordblks < before + (64 << 10));
}

/* Texts and numbers of every length about where jansson's buffer grows: what is lost of them then must not be looked
 * for. */
static int read_lengths(void *context) {
    static const char *const formats[] = {"{\"%0*d\": 1}", "[1%0*d.5, 2]"};
    char text[80];
    json_t *read;
    json_error_t error;
    int status = STATUS_OK;
    (void)context;
    for (int length = 5; length < 40 && !status; length++)
        for (size_t f = 0; f < sizeof formats / sizeof *formats && !status; f++) {
            int n = snprintf(text, sizeof text, formats[f], length, 0);
            status = json_read(text, (size_t)n, 0, &read, &error);
            json_decref(read);
        }
    return status;
}

static void json_of_any_length_is_read(void **state) {
    (void)state;
    assert_int_equal(failing_try_all(read_lengths, NULL, 1000), 0);
}

/* ---- files ---- */

static bool is_none(const char *name) {
    (void)name;
    return false;
}

static int read_back(const char *path) {
    struct strbuf text = STRBUF_INIT;
    int status = file_read(path, 100, &text);
    if (!status)
        assert_string_equal(strbuf_text(&text), "whole");
    strbuf_free(&text);
    return status;
}

/* Checks the names in the root, each followed by a space. */
static void assert_names(const char *expected) {
    char **found, all[1024] = "";
    size_t count;
    test_ok(file_list(root, &found, &count));
    for (size_t i = 0; i < count; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s ", found[i]);
    file_list_free(found, count);
    assert_string_equal(all, expected);
}

static int find_files(const char *directory) {
    char **found, *other = NULL;
    size_t count;
    int status = file_list(directory, &found, &count);
    if (status)
        return status;
    file_list_free(found, count);
    status = file_find_other(directory, is_none, &other);
    free(other);
    return status;
}

static int use_files(void *context) {
    int directory, status = file_make_directories(at("a/b"));
    (void)context;
    if (!status)
        status = file_write_atomic(at("a/b/file"), "whole", 5);
    assert_true(status == 0 || !file_exists(at("a/b/file")));
    if (!status)
        status = file_copy(at("a/b/file"), at("a/copy"));
    if (!status)
        status = read_back(at("a/copy"));
    if (!status)
        status = find_files(at("many"));
    if (!status)
        status = lock_open_directory(at("a"), &directory);
    if (!status)
        close(directory);
    if (!status)
        status = file_remove_tree(at("a"));
    failing_pause(true);
    assert_false(status == 0 && file_exists(at("a")));
    test_ok(file_remove_tree(at("a")));
    assert_names("many ");
    failing_pause(false);
    return status;
}

static void files_are_written_whole(void **state) {
    char name[32];
    (void)state;
    for (int i = 0; i < MANY; i++) { /* more than a list has room for at first */
        snprintf(name, sizeof name, "many/%d", i);
        test_ok(file_make_directories(at(name)));
    }
    assert_int_equal(failing_try_all(use_files, NULL, 100), 0);
}

/* ---- what is staged ---- */

/* Whether it found memory to sweep a box away, a writer does not say: it warns, and the next one does it. */
enum { SWEPT = 30 };

static const char *const names[] = {"key", "values", "notes", NULL};
static const struct staging_files files = {"test", "key", names};

/* A box that a killed writer left, with a file of `text` in its directory `inside`. */
static void leave_box(int number, const char *kind, const char *target, const char *inside, const char *text) {
    char name[FILE_DRAWN_BYTES], path[300], mark[200];
    snprintf(name, sizeof name, ".cambium-%016d", number);
    snprintf(path, sizeof path, "%s/%s/%s", root, name, inside);
    test_ok(file_make_directories(path));
    snprintf(path, sizeof path, "%s/%s/%s/key", root, name, inside);
    test_ok(file_write_atomic(path, text, strlen(text)));
    snprintf(path, sizeof path, "%s/%s/mark", root, name);
    snprintf(mark, sizeof mark, "cambium staging %s %s\n%s\n", name, kind, target);
    test_ok(file_write_atomic(path, mark, strlen(mark)));
}

static int put(const struct staging *staging, const char *name) {
    char path[300];
    int status = file_join(path, sizeof path, staging->directory, name);
    return status ? status : file_write_atomic(path, "whole", 5);
}

static int stage_directory(const char *target) {
    struct staging staging;
    int status = staging_begin(&staging, target);
    if (!status)
        status = put(&staging, "file");
    if (!status)
        status = staging_commit(&staging);
    staging_abort(&staging);
    return status;
}

/* Over an earlier one and over what killed writers left. */
static int replace_directory(void *context) {
    (void)context;
    failing_pause(true);
    test_ok(file_write_atomic(at("real/file"), "older", 5));
    leave_box(1, "directory", "killed", "new", "half");
    leave_box(2, "directory", "back", "old", "whole");
    failing_pause(false);
    int status = stage_directory(at("link"));
    failing_pause(true);
    struct strbuf text = STRBUF_INIT;
    test_ok(file_read(at("real/file"), 100, &text));
    assert_string_equal(strbuf_text(&text), status ? "older" : "whole");
    strbuf_free(&text);
    test_ok(staging_clean(root));
    test_ok(read_back(at("back/key")));
    test_ok(file_remove_tree(at("back")));
    assert_names("link real ");
    failing_pause(false);
    return status;
}

static void a_directory_is_staged_whole(void **state) {
    (void)state;
    test_ok(file_make_directories(at("real")));
    assert_int_equal(symlink("real", at("link")), 0);
    assert_in_range(failing_try_all(replace_directory, NULL, 200), 0, SWEPT);
}

static int stage_files(const char *directory) {
    struct staging staging;
    int status = staging_begin_files(&staging, directory, &files);
    if (!status)
        status = put(&staging, "key");
    if (!status)
        status = put(&staging, "values");
    if (!status)
        status = staging_commit(&staging);
    staging_abort(&staging);
    return status;
}

/* A generation that waits is put in place before the new one is begun; what waits counts for readers. */
static int replace_files(void *context) {
    char path[PATH_MAX];
    bool is_there;
    failing_pause(true);
    test_ok(file_write_atomic(at("notes"), "older", 5));
    leave_box(1, "test", ".", "ready", "whole");
    failing_pause(false);
    int status = staging_is_ready(root, &files, "key", path, &is_there);
    if (!status)
        assert_true(is_there);
    if (!status)
        status = stage_files(context);
    failing_pause(true);
    test_ok(staging_finish(root, &files)); /* as the next writer does, or reader */
    test_ok(staging_clean(root));
    test_ok(read_back(at("key")));
    assert_names(file_exists(at("values")) ? "key values " : "key ");
    assert_true(status || file_exists(at("values")));
    test_ok(file_remove_tree(at("key")));
    test_ok(file_remove_tree(at("values")));
    failing_pause(false);
    return status;
}

static void files_are_staged_together(void **state) {
    (void)state;
    assert_in_range(failing_try_all(replace_files, root, 200), 0, SWEPT);
}

static int remove_directory(void *context) {
    (void)context;
    failing_pause(true);
    test_ok(file_make_directories(at("gone")));
    test_ok(file_write_atomic(at("gone/file"), "whole", 5));
    failing_pause(false);
    int status = staging_remove(at("gone"));
    failing_pause(true);
    if (status)
        test_ok(read_back(at("gone/file")));
    test_ok(staging_clean(root));
    assert_names(status ? "gone " : "");
    failing_pause(false);
    return status;
}

static void a_directory_is_removed_at_once(void **state) {
    (void)state;
    assert_in_range(failing_try_all(remove_directory, NULL, 200), 0, SWEPT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(facts_are_collected, open_root),
        cmocka_unit_test(json_is_written_and_read),
        cmocka_unit_test(a_parse_without_memory_keeps_none),
        cmocka_unit_test(json_of_any_length_is_read),
        cmocka_unit_test_setup(files_are_written_whole, open_root),
        cmocka_unit_test_setup(a_directory_is_staged_whole, open_root),
        cmocka_unit_test_setup(files_are_staged_together, open_root),
        cmocka_unit_test_setup(a_directory_is_removed_at_once, open_root),
    };
    log_quiet(true);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
