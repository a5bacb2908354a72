/* Saves beside the training: what is saved is the moment of the beginning, it appears when the ranks agree that all
 * have written, and whole or not at all. */
#include "tiny_gpt2.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LARGE_ROWS = 3000, LARGE_COLUMNS = 1000 /* 12 MB an array: several chunks */ };

/* A training, and a saver of it. */
struct saving {
    struct tiny_training training;
    char *root;
    struct ckpt_saver *saver;
    int trial;
};

static struct ckpt_save describe(const struct saving *s) {
    struct ckpt_save save = tiny_training_save(&s->training, s->root);
    save.keep_last = 2;
    return save;
}

static void set_all(struct saving *s, int value) {
    for (int a = 0; a < TINY_ARRAYS; a++)
        memset(s->training.values[a].memory, value + a, (size_t)s->training.values[a].elements * sizeof(float));
}

static void open_saving(struct saving *s, bool is_large) {
    struct param_table table = {.capacity = 1};
    *s = (struct saving){.root = test_directory()};
    if (is_large) {
        table.rows = calloc(1, sizeof *table.rows);
        tiny_add(&table, "weight", 2, LARGE_ROWS, LARGE_COLUMNS, "x.weight", true);
    } else {
        table = tiny_table(true);
    }
    tiny_training_open(&s->training, table);
    struct ckpt_save save = describe(s);
    set_all(s, 0);
    test_ok(ckpt_saver_open(&save, true, &s->saver));
}

static void close_saving(struct saving *s) {
    ckpt_saver_close(s->saver);
    tiny_training_close(&s->training);
    free(s->root);
}

/* Whether every value of a checkpoint is what set_all(value) made it. */
static void check_saved(const struct saving *s, int64_t iteration, int value) {
    char name[32], *directory;
    struct ckpt_tensors *tensors;
    struct tiny_array read[TINY_ARRAYS];
    struct ckpt_array arrays[TINY_ARRAYS];
    snprintf(name, sizeof name, "iter_%07lld", (long long)iteration);
    directory = tiny_path(s->root, name);
    for (int a = 0; a < TINY_ARRAYS; a++) {
        read[a] = tiny_array(&s->training.table, DTYPE_F32);
        arrays[a] = tiny_as_array(&read[a], s->training.arrays[a].prefix);
    }
    test_ok(ckpt_open_model(directory, &tensors));
    test_ok(ckpt_read(tensors, &s->training.table, arrays, 1));
    ckpt_close(tensors);
    test_ok(ckpt_open_optimizer(directory, &tensors));
    test_ok(ckpt_read(tensors, &s->training.table, arrays + 1, TINY_ARRAYS - 1));
    ckpt_close(tensors);
    for (int a = 0; a < TINY_ARRAYS; a++) {
        for (size_t i = 0; i < (size_t)read[a].elements * sizeof(float); i++)
            if (read[a].memory[i] != (char)(value + a))
                fail_msg("array %d, byte %zu of iteration %lld", a, i, (long long)iteration);
        free(read[a].memory);
    }
    free(directory);
}

static void assert_names(const char *root, const char *expected) {
    char **names;
    size_t count;
    struct strbuf text = STRBUF_INIT;
    test_ok(file_list(root, &names, &count));
    for (size_t i = 0; i < count; i++)
        if (!file_is_drawn_name(names[i]))
            strbuf_format(&text, "%s ", names[i]);
    assert_string_equal(strbuf_text(&text), expected);
    strbuf_free(&text);
    file_list_free(names, count);
}

static void await(const struct saving *s, enum ckpt_progress progress) {
    while (ckpt_saver_progress(s->saver) != progress)
        usleep(1000);
}

static void a_checkpoint_appears_when_all_have_agreed(void **state) {
    (void)state;
    struct saving s;
    bool is_saved;
    open_saving(&s, false);
    assert_int_equal(ckpt_saver_progress(s.saver), CKPT_IDLE);
    set_all(&s, 10);
    test_ok(ckpt_saver_begin(s.saver, 7, "{}\n"));
    set_all(&s, 20); /* the training continues */
    await(&s, CKPT_WRITTEN);
    test_ok(ckpt_saver_advance(s.saver, CKPT_WRITING, &is_saved)); /* another rank is not as far */
    usleep(20000);
    assert_int_equal(ckpt_saver_progress(s.saver), CKPT_WRITTEN);
    assert_names(s.root, "");
    test_ok(ckpt_saver_advance(s.saver, CKPT_WRITTEN, &is_saved));
    assert_false(is_saved);
    await(&s, CKPT_PUBLISHED);
    test_ok(ckpt_saver_advance(s.saver, CKPT_PUBLISHED, &is_saved));
    assert_true(is_saved);
    assert_int_equal(ckpt_saver_progress(s.saver), CKPT_IDLE);
    assert_names(s.root, "iter_0000007 ");
    check_saved(&s, 7, 10);
    close_saving(&s);
}

/* The close waits for whatever has begun: had that been the last part, the checkpoint would be there. */
static void what_not_all_have_written_does_not_appear(void **state) {
    (void)state;
    struct saving s;
    bool is_saved;
    open_saving(&s, false);
    test_ok(ckpt_saver_begin(s.saver, 7, "{}\n"));
    await(&s, CKPT_WRITTEN);
    test_ok(ckpt_saver_advance(s.saver, CKPT_WRITING, &is_saved)); /* another rank is not as far */
    ckpt_saver_close(s.saver);
    s.saver = NULL;
    assert_names(s.root, "");
    close_saving(&s);
}

static void the_next_save_waits_and_old_ones_go(void **state) {
    (void)state;
    struct saving s;
    open_saving(&s, true);
    for (int i = 1; i <= 4; i++) {
        set_all(&s, 10 * i);
        test_ok(ckpt_saver_begin(s.saver, i, "{}\n"));
    }
    set_all(&s, 0);
    test_ok(ckpt_saver_wait(s.saver));
    assert_names(s.root, "iter_0000003 iter_0000004 ");
    check_saved(&s, 3, 30);
    check_saved(&s, 4, 40);
    close_saving(&s);
}

static void a_saver_that_is_closed_leaves_nothing(void **state) {
    (void)state;
    struct saving s;
    open_saving(&s, true);
    test_ok(ckpt_saver_begin(s.saver, 1, "{}\n"));
    ckpt_saver_close(s.saver);
    s.saver = NULL;
    char **names;
    size_t count;
    test_ok(file_list(s.root, &names, &count));
    assert_int_equal(count, 0);
    file_list_free(names, count);
    close_saving(&s);
}

/* In a child, since the limit and the death are the process's. */
static int in_child(struct saving *s, int (*function)(struct saving *s)) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        struct ckpt_save save = describe(s); /* a saver of its own: threads do not survive a fork */
        _exit(ckpt_saver_open(&save, true, &s->saver) ? 99 : function(s));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static int limited_get(void *context, const struct ckpt_block *block, void *values) {
    /* The files are there in full by now: only the thread's writes can fail. */
    struct rlimit limit = {.rlim_cur = 1 << 20, .rlim_max = RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    return tiny_get(context, block, values);
}

static int save_without_room(struct saving *s) {
    signal(SIGXFSZ, SIG_IGN);
    int status = ckpt_saver_begin(s->saver, 2, "{}\n"); /* may see it already */
    if (!status)
        status = ckpt_saver_wait(s->saver);
    int failures = (status != STATUS_IO) + 2 * !strstr(status_text(), "iter_0000002 was not saved: cannot write") +
                   4 * !strstr(status_text(), "File too large") + 8 * (ckpt_saver_progress(s->saver) != CKPT_IDLE);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY});
    s->training.arrays[0].get = tiny_get;
    return failures;
}

static void a_write_that_fails_later_fails_the_save(void **state) {
    (void)state;
    struct saving s;
    open_saving(&s, true);
    set_all(&s, 10);
    test_ok(ckpt_saver_begin(s.saver, 1, "{}\n"));
    test_ok(ckpt_saver_wait(s.saver));
    s.training.arrays[0].get = limited_get;
    assert_int_equal(in_child(&s, save_without_room), 0);
    char **names;
    size_t count;
    test_ok(file_list(s.root, &names, &count));
    assert_int_equal(count, 1);
    file_list_free(names, count);
    check_saved(&s, 1, 10);
    close_saving(&s);
}

static int save_and_die(struct saving *s) {
    set_all(s, 30);
    int status = ckpt_saver_begin(s->saver, 1 + s->trial % 2, "{}\n"); /* also in place of the one that is there */
    usleep((useconds_t)s->trial * 2000);
    kill(getpid(), SIGKILL); /* never agreed: it cannot have appeared */
    return status;
}

static void a_process_that_dies_leaves_the_last_whole_one(void **state) {
    (void)state;
    struct saving s;
    int64_t found;
    char latest[4096];
    open_saving(&s, true);
    set_all(&s, 10);
    test_ok(ckpt_saver_begin(s.saver, 1, "{}\n"));
    test_ok(ckpt_saver_wait(s.saver));
    for (s.trial = 0; s.trial < (test_is_long() ? 100 : 10); s.trial++) {
        assert_true(WIFSIGNALED(in_child(&s, save_and_die)));
        test_ok(ckpt_latest(s.root, latest, sizeof latest, &found));
        assert_int_equal(found, 1);
        check_saved(&s, 1, 10);
    }
    set_all(&s, 50);
    test_ok(ckpt_saver_begin(s.saver, 3, "{}\n")); /* and clears away what was left */
    test_ok(ckpt_saver_wait(s.saver));
    char **names;
    size_t count;
    test_ok(file_list(s.root, &names, &count));
    assert_int_equal(count, 2);
    file_list_free(names, count);
    check_saved(&s, 3, 50);
    close_saving(&s);
}

static void the_memory_is_what_was_planned(void **state) {
    (void)state;
    struct saving s;
    size_t foreground, whole, quarter = 0, part;
    open_saving(&s, true);
    struct ckpt_save save = describe(&s);
    size_t bytes = (size_t)TINY_ARRAYS * LARGE_ROWS * LARGE_COLUMNS * sizeof(float);
    test_ok(ckpt_saver_bytes(&save, false, 1, 0, &foreground));
    test_ok(ckpt_saver_bytes(&save, true, 1, 0, &whole));
    for (int r = 0; r < 4; r++) {
        test_ok(ckpt_saver_bytes(&save, true, 4, r, &part));
        quarter = part > quarter ? part : quarter;
    }
    assert_in_range(whole, bytes, bytes + bytes / 2);
    assert_in_range(quarter, bytes / 4, bytes / 2);
    assert_true(foreground < whole);
    close_saving(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_checkpoint_appears_when_all_have_agreed),
        cmocka_unit_test(what_not_all_have_written_does_not_appear),
        cmocka_unit_test(the_next_save_waits_and_old_ones_go),
        cmocka_unit_test(a_saver_that_is_closed_leaves_nothing),
        cmocka_unit_test(a_write_that_fails_later_fails_the_save),
        cmocka_unit_test(a_process_that_dies_leaves_the_last_whole_one),
        cmocka_unit_test(the_memory_is_what_was_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
