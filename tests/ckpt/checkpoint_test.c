/* Training checkpoints: a directory is whole or absent, whatever happens to its writer; the newest is found; nothing of
 * the others is lost. */
#include "tiny_gpt2.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* A trainer's data: weights and two moments, and a third array for a bf16 run. */
struct trainer {
    struct param_table table;
    struct tiny_array weights, moments[3];
    struct ckpt_array weight_array, moment_arrays[3];
};

static void trainer_open(struct trainer *t, enum dtype dtype) {
    static const char *const prefixes[3] = {"exp_avg.", "exp_avg_sq.", "master."};
    t->table = tiny_table(true);
    t->weights = tiny_array(&t->table, dtype);
    t->weight_array = tiny_as_array(&t->weights, "");
    for (int i = 0; i < 3; i++) {
        t->moments[i] = tiny_array(&t->table, DTYPE_F32);
        t->moment_arrays[i] = tiny_as_array(&t->moments[i], prefixes[i]);
        t->moment_arrays[i].only_trainable = true;
    }
}

static void trainer_close(struct trainer *t) {
    for (int i = 0; i < 3; i++)
        free(t->moments[i].memory);
    free(t->weights.memory);
    free(t->table.rows);
}

/* The state after `iteration`: every number follows from it. */
static uint32_t word_of(int64_t iteration, int array, int64_t i) {
    return philox((uint64_t)iteration, (uint32_t)i, (uint32_t)array, 0, (uint32_t)RNG_TEST << 24).word[0];
}

static void fill(struct tiny_array *a, int array, int64_t iteration) {
    size_t width = dtype_bytes(a->dtype);
    for (int64_t i = 0; i < a->elements; i++) {
        uint32_t word = word_of(iteration, array, i);
        memcpy(a->memory + (size_t)i * width, &word, width);
    }
}

static bool is_of(const struct tiny_array *a, int array, int64_t iteration) {
    size_t width = dtype_bytes(a->dtype);
    for (int64_t i = 0; i < a->elements; i++) {
        uint32_t word = word_of(iteration, array, i);
        if (memcmp(a->memory + (size_t)i * width, &word, width))
            return false;
    }
    return true;
}

static void trainer_fill(struct trainer *t, int64_t iteration) {
    fill(&t->weights, 0, iteration);
    for (int i = 0; i < 3; i++)
        fill(&t->moments[i], i + 1, iteration);
}

static int trainer_save_among(struct trainer *t, const char *root, int64_t iteration, int64_t keep_last,
                              int64_t ours_until) {
    char state[64];
    snprintf(state, sizeof state, "{\"iteration\": %lld}\n", (long long)iteration);
    struct ckpt_save save = {
        .root = root,
        .iteration = iteration,
        .model = {.table = &t->table, .weights = &t->weight_array, .config_text = "{\"model_type\": \"gpt2\"}\n"},
        .optimizer = t->moment_arrays,
        .optimizer_count = 3,
        .state_text = state,
        .keep_last = keep_last,
        .ours_until = ours_until,
    };
    trainer_fill(t, iteration);
    return ckpt_save(&save);
}

static int trainer_save(struct trainer *t, const char *root, int64_t iteration, int64_t keep_last) {
    return trainer_save_among(t, root, iteration, keep_last, INT64_MAX);
}

/* Loads what stands in `directory`; it must be the whole state after `iteration`. */
static void check_checkpoint(struct trainer *t, const char *directory, int64_t iteration) {
    struct ckpt_tensors *tensors;
    char expected[64];
    trainer_fill(t, -1);
    test_ok(ckpt_open_model(directory, &tensors));
    test_ok(ckpt_read(tensors, &t->table, &t->weight_array, 1));
    ckpt_close(tensors);
    test_ok(ckpt_open_optimizer(directory, &tensors));
    test_ok(ckpt_read(tensors, &t->table, t->moment_arrays, 3));
    assert_true(ckpt_has_prefix(tensors, "master."));
    assert_false(ckpt_has_prefix(tensors, "other."));
    ckpt_close(tensors);
    assert_true(is_of(&t->weights, 0, iteration));
    for (int i = 0; i < 3; i++)
        assert_true(is_of(&t->moments[i], i + 1, iteration));
    struct strbuf text = STRBUF_INIT;
    test_ok(ckpt_read_state(directory, &text));
    snprintf(expected, sizeof expected, "{\n  \"iteration\": %lld,\n  \"files\"", (long long)iteration);
    assert_int_equal(strncmp(strbuf_text(&text), expected, strlen(expected)), 0);
    test_ok(ckpt_check_state(directory));
    test_ok(ckpt_check_iteration(directory, iteration));
    strbuf_clear(&text);
    test_ok(ckpt_read_config(directory, &text));
    assert_string_equal(strbuf_text(&text), "{\"model_type\": \"gpt2\"}\n");
    strbuf_free(&text);
}

static void check_latest(struct trainer *t, const char *root, int64_t iteration) {
    char latest[4096];
    int64_t found;
    test_ok(ckpt_latest(root, latest, sizeof latest, &found));
    assert_int_equal(found, iteration);
    check_checkpoint(t, latest, iteration);
}

/* The names in a directory, each followed by a space. */
static char *names_in(const char *directory) {
    char **names;
    size_t count;
    struct strbuf text = STRBUF_INIT;
    test_ok(file_list(directory, &names, &count));
    for (size_t i = 0; i < count; i++)
        strbuf_format(&text, "%s ", names[i]);
    file_list_free(names, count);
    strbuf_add_text(&text, "");
    return text.data ? text.data : strdup("");
}

static void assert_names(const char *directory, const char *expected) {
    char *names = names_in(directory);
    assert_string_equal(names, expected);
    free(names);
}

static void a_checkpoint_comes_back_to_the_bit(void **state) {
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct trainer t;
        char *root = test_directory(), *save = tiny_path(root, "a/b/save");
        trainer_open(&t, bf16 ? DTYPE_BF16 : DTYPE_F32);
        test_ok(trainer_save(&t, save, 100, 0));
        assert_names(save, "iter_0000100 ");
        char *directory = tiny_path(save, "iter_0000100");
        assert_names(directory, "config.json model.safetensors optimizer.safetensors trainer_state.json ");
        check_latest(&t, save, 100);
        free(directory);
        free(save);
        free(root);
        trainer_close(&t);
    }
}

static void frozen_parameters_have_no_optimizer_state(void **state) {
    (void)state;
    struct trainer t;
    char *root = test_directory();
    trainer_open(&t, DTYPE_F32);
    t.table.rows[0].is_trainable = false;
    test_ok(trainer_save(&t, root, 5, 0));
    char *directory = tiny_path(root, "iter_0000005");
    struct ckpt_tensors *tensors;
    test_ok(ckpt_open_optimizer(directory, &tensors));
    assert_false(ckpt_has_prefix(tensors, "exp_avg.transformer.wte"));
    assert_true(ckpt_has_prefix(tensors, "exp_avg.transformer.wpe"));
    test_ok(ckpt_read(tensors, &t.table, t.moment_arrays, 3));
    t.table.rows[0].is_trainable = true;
    test_fails(ckpt_read(tensors, &t.table, t.moment_arrays, 3), STATUS_INVALID,
               "missing tensors: exp_avg.transformer.wte.weight, exp_avg_sq.transformer.wte.weight");
    ckpt_close(tensors);
    free(directory);
    free(root);
    trainer_close(&t);
}

static void checkpoints_of_others_are_neither_replaced_nor_pruned(void **state) {
    (void)state;
    struct trainer t;
    char *root = test_directory();
    trainer_open(&t, DTYPE_F32);
    for (int64_t i = 1; i <= 5; i++)
        test_ok(trainer_save(&t, root, i, 0));
    test_ok(trainer_save_among(&t, root, 6, 2, 3)); /* resumes from the third */
    assert_names(root, "iter_0000003 iter_0000004 iter_0000005 iter_0000006 ");
    test_fails(trainer_save_among(&t, root, 5, 1, 3), STATUS_INVALID,
               "iter_0000005 was not saved: it is already there");
    assert_names(root, "iter_0000003 iter_0000004 iter_0000005 iter_0000006 ");
    test_ok(trainer_save_among(&t, root, 7, 1, -1)); /* starts afresh */
    assert_names(root, "iter_0000003 iter_0000004 iter_0000005 iter_0000006 iter_0000007 ");
    free(root);
    trainer_close(&t);
}

static void equal_states_give_equal_files(void **state) {
    (void)state;
    struct trainer t;
    char *a = test_directory(), *b = test_directory();
    trainer_open(&t, DTYPE_BF16);
    test_ok(trainer_save(&t, a, 3, 0));
    test_ok(trainer_save(&t, b, 3, 0));
    assert_same_files(a, b, "iter_0000003/model.safetensors");
    assert_same_files(a, b, "iter_0000003/optimizer.safetensors");
    free(a);
    free(b);
    trainer_close(&t);
}

static void the_last_n_are_kept_and_the_new_one_always(void **state) {
    (void)state;
    struct trainer t;
    char *root = test_directory();
    trainer_open(&t, DTYPE_F32);
    for (int64_t i = 8; i <= 12; i++)
        test_ok(trainer_save(&t, root, i * 1000000, 3)); /* 10000000 sorts before 8000000 as text */
    assert_names(root, "iter_10000000 iter_11000000 iter_12000000 ");
    check_latest(&t, root, 12000000);
    test_ok(trainer_save(&t, root, 5, 1)); /* gone back to an earlier iteration */
    assert_names(root, "iter_0000005 ");
    test_ok(trainer_save(&t, root, 6, 0));
    assert_names(root, "iter_0000005 iter_0000006 ");
    tiny_write(root, "iter_notes.txt", "x", 1); /* not ours */
    test_ok(trainer_save(&t, root, 7, 1));
    assert_names(root, "iter_0000007 iter_notes.txt ");
    free(root);
    trainer_close(&t);
}

static void an_iteration_saved_again_replaces_itself(void **state) {
    (void)state;
    struct trainer t;
    char *root = test_directory(), *directory = tiny_path(root, "iter_0000009");
    trainer_open(&t, DTYPE_F32);
    test_ok(trainer_save(&t, root, 9, 2));
    tiny_write(directory, "model-00001-of-00002.safetensors", "x", 1); /* no file of the old one may stay */
    test_ok(trainer_save(&t, root, 9, 2));
    assert_names(root, "iter_0000009 ");
    assert_names(directory, "config.json model.safetensors optimizer.safetensors trainer_state.json ");
    check_latest(&t, root, 9);
    free(directory);
    free(root);
    trainer_close(&t);
}

static void paths_mean_themselves_or_the_newest_in_them(void **state) {
    (void)state;
    struct trainer t;
    char *root = test_directory(), *none = tiny_path(root, "none"), *first = tiny_path(root, "iter_0000001"), out[4096];
    trainer_open(&t, DTYPE_F32);
    test_fails(ckpt_resolve_model(none, out, sizeof out), STATUS_NOT_FOUND, "none");
    test_fails(ckpt_resolve_checkpoint(none, out, sizeof out), STATUS_NOT_FOUND, "none");
    test_fails(ckpt_resolve_model(root, out, sizeof out), STATUS_NOT_FOUND,
               "holds neither config.json nor a checkpoint");
    test_fails(ckpt_resolve_checkpoint(root, out, sizeof out), STATUS_NOT_FOUND, "holds no checkpoint (iter_*)");
    test_ok(trainer_save(&t, root, 1, 0));
    test_ok(trainer_save(&t, root, 2, 0));
    test_ok(ckpt_resolve_model(root, out, sizeof out));
    assert_non_null(strstr(out, "/iter_0000002"));
    test_ok(ckpt_resolve_checkpoint(root, out, sizeof out));
    assert_non_null(strstr(out, "/iter_0000002"));
    test_ok(ckpt_resolve_model(first, out, sizeof out));
    assert_string_equal(out, first);
    test_ok(ckpt_resolve_checkpoint(first, out, sizeof out));
    assert_string_equal(out, first);
    test_fails(ckpt_resolve_model(root, out, 10), STATUS_INVALID, "path too long");
    char *file = tiny_path(first, "trainer_state.json");
    assert_int_equal(unlink(file), 0);
    test_ok(ckpt_resolve_model(first, out, sizeof out)); /* now a plain model directory */
    test_fails(ckpt_resolve_checkpoint(first, out, sizeof out), STATUS_INVALID, "without training state");
    test_fails(ckpt_resolve_model(file, out, sizeof out), STATUS_NOT_FOUND, "trainer_state.json");
    free(file);
    file = tiny_path(first, "config.json");
    test_fails(ckpt_resolve_model(file, out, sizeof out), STATUS_INVALID, "is not a directory");
    free(file);
    free(first);
    free(none);
    free(root);
    trainer_close(&t);
}

static void half_a_directory_is_passed_over(void **state) {
    (void)state;
    struct trainer t;
    char *root = test_directory(), *file = tiny_path(root, "iter_0000004/optimizer.safetensors");
    trainer_open(&t, DTYPE_F32);
    test_ok(trainer_save(&t, root, 3, 0));
    test_ok(trainer_save(&t, root, 4, 0));
    char *half = tiny_path(root, "iter_0000005"), *odd = tiny_path(root, "iter_5"),
         *temporary = tiny_path(root, ".cambium-0123456789abcdef");
    test_ok(file_make_directories(half));
    test_ok(file_make_directories(odd));
    test_ok(file_make_directories(temporary));
    check_latest(&t, root, 4);
    assert_int_equal(truncate(file, 500), 0); /* damage is reported, not passed over */
    struct ckpt_tensors *tensors;
    char latest[4096];
    test_ok(ckpt_latest(root, latest, sizeof latest, NULL));
    test_fails(ckpt_open_optimizer(latest, &tensors), STATUS_INVALID, "optimizer.safetensors: header of");
    free(half);
    free(odd);
    free(temporary);
    free(file);
    free(root);
    trainer_close(&t);
}

static void only_damaged_checkpoints_are_an_error(void **state) {
    (void)state;
    static const char *const needed[] = {"config.json", "model.safetensors", "trainer_state.json"};
    struct trainer t;
    trainer_open(&t, DTYPE_F32);
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        char *root = test_directory(), *first = tiny_path(root, "iter_0000003"), *file = tiny_path(first, needed[i]),
             latest[4096];
        test_ok(trainer_save(&t, root, 3, 0));
        assert_int_equal(unlink(file), 0);
        test_fails(ckpt_latest(root, latest, sizeof latest, NULL), STATUS_INVALID,
                   "iter_0000003 is not a whole checkpoint");
        test_fails(ckpt_resolve_checkpoint(root, latest, sizeof latest), STATUS_INVALID, "to start afresh");
        test_ok(trainer_save(&t, root, 2, 0)); /* an older one that is whole serves */
        check_latest(&t, root, 2);
        free(file);
        free(first);
        free(root);
    }
    trainer_close(&t);
}

/* A box as a writer leaves it that is killed while it saves `target`. */
static char *leave_box(const char *root, const char *name, const char *target) {
    char *box = tiny_path(root, name), *new = tiny_path(box, "new"), *mark;
    test_ok(file_make_directories(new));
    assert_true(asprintf(&mark, "cambium staging %s directory\n%s\n", name, target) > 0);
    tiny_write(box, "mark", mark, strlen(mark));
    tiny_write(new, "model.safetensors", "x", 1);
    free(mark);
    free(new);
    return box;
}

static void leftovers_of_dead_writers_go_and_what_is_not_ours_stays(void **state) {
    (void)state;
    struct trainer t;
    char *root = test_directory(), *live = leave_box(root, ".cambium-00000000000000aa", "iter_0000009");
    char *mark = tiny_path(live, "mark"), *backup = tiny_path(root, "iter_0000007.tmp-123");
    char *gone = tiny_path(root, "iter_0000008.old-1");
    trainer_open(&t, DTYPE_F32);
    test_ok(file_make_directories(backup));
    test_ok(file_make_directories(gone));
    free(leave_box(root, ".cambium-00000000000000bb", "iter_0000007"));
    int lock = open(mark, O_RDWR);
    assert_int_equal(flock(lock, LOCK_EX | LOCK_NB), 0);
    test_ok(trainer_save(&t, root, 9, 0));
    assert_names(root, ".cambium-00000000000000aa iter_0000007.tmp-123 iter_0000008.old-1 iter_0000009 ");
    close(lock);
    test_ok(trainer_save(&t, root, 10, 1));
    assert_names(root, "iter_0000007.tmp-123 iter_0000008.old-1 iter_0000010 ");
    free(mark);
    free(gone);
    free(live);
    free(backup);
    free(root);
    trainer_close(&t);
}

/* A writer killed between the two renames of a file system without exchange. */
static void a_displaced_checkpoint_is_found_and_put_back(void **state) {
    (void)state;
    struct trainer t;
    char *root = test_directory(), *name = tiny_path(root, "iter_0000002");
    trainer_open(&t, DTYPE_F32);
    test_ok(trainer_save(&t, root, 1, 0));
    test_ok(trainer_save(&t, root, 2, 0));
    char *box = leave_box(root, ".cambium-00000000000000aa", "iter_0000002"), *old = tiny_path(box, "old");
    assert_int_equal(rename(name, old), 0);
    check_latest(&t, root, 2);
    test_ok(trainer_save(&t, root, 3, 0));
    assert_names(root, "iter_0000001 iter_0000002 iter_0000003 ");
    check_checkpoint(&t, name, 2);
    free(old);
    free(box);
    free(name);
    free(root);
    trainer_close(&t);
}

/* A child saves without end; it is killed at a random moment; the newest checkpoint must be whole, every time. */
static void kill_at_any_moment_leaves_the_last_whole_checkpoint(void **state) {
    (void)state;
    struct trainer t;
    char *root = test_directory(), latest[4096];
    int64_t saved = 1;
    trainer_open(&t, DTYPE_F32);
    double start = clock_seconds();
    test_ok(trainer_save(&t, root, 1, 2));
    double one_save = clock_seconds() - start; /* whatever the disk: a kill falls into one of the next few saves */
    for (uint32_t round = 0; round < (test_is_long() ? 300u : 20u); round++) {
        int64_t found;
        pid_t child = fork();
        if (child == 0) {
            for (int64_t i = saved + 1;; i++)
                if (trainer_save(&t, root, i, 2) || trainer_save(&t, root, i, 2)) /* the second replaces the first */
                    _exit(1);
        }
        usleep((useconds_t)(4e6 * one_save * rng_unit(philox(11, round, 0, 0, (uint32_t)RNG_TEST << 24).word[0])));
        assert_int_equal(kill(child, SIGKILL), 0);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        test_ok(ckpt_latest(root, latest, sizeof latest, &found));
        assert_true(found >= saved);
        saved = found;
        check_checkpoint(&t, latest, saved);
    }
    test_ok(trainer_save(&t, root, saved + 1, 1));
    char *names = names_in(root), expected[64];
    snprintf(expected, sizeof expected, "iter_%07lld ", (long long)saved + 1);
    assert_string_equal(names, expected);
    free(names);
    free(root);
    trainer_close(&t);
}

/* Saves where files may have `limit` bytes, in a child; its exit status counts what went wrong. */
static int save_in_child(struct trainer *t, const char *root, int64_t iteration, rlim_t limit, const char *part) {
    pid_t child = fork();
    if (child == 0) {
        struct rlimit bound = {.rlim_cur = limit, .rlim_max = limit};
        signal(SIGXFSZ, SIG_IGN);
        if (limit)
            setrlimit(RLIMIT_FSIZE, &bound);
        int status = trainer_save(t, root, iteration, 1);
        _exit((status != STATUS_IO) + 2 * !strstr(status_text(), part) + 4 * !strstr(status_text(), "was not saved"));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void a_failed_save_leaves_the_last_checkpoint_alone(void **state) {
    (void)state;
    struct trainer t;
    char *root = test_directory();
    trainer_open(&t, DTYPE_F32);
    test_ok(trainer_save(&t, root, 1, 1));
    assert_int_equal(save_in_child(&t, root, 2, 10, "mark: File too large"), 0);
    assert_int_equal(save_in_child(&t, root, 2, 200, "model.safetensors: File too large"), 0);
    assert_int_equal(save_in_child(&t, root, 2, 10000, "model.safetensors: File too large"), 0);
    assert_int_equal(save_in_child(&t, root, 2, 30000, "optimizer.safetensors: File too large"), 0);
    assert_int_equal(save_in_child(&t, root, 1, 30000, "optimizer.safetensors: File too large"), 0);
    assert_names(root, "iter_0000001 ");
    check_latest(&t, root, 1);
    free(root);
    trainer_close(&t);
}

static void a_full_disk_leaves_the_last_checkpoint_alone(void **state) {
    (void)state;
    struct trainer t;
    char *root = test_directory();
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", root, "tmpfs", 0, "size=128k")) {
        free(root);
        test_skip("mounts need the right to them; a_failed_save_leaves_the_last_checkpoint_alone stands in for it");
    }
    trainer_open(&t, DTYPE_F32);
    test_ok(trainer_save(&t, root, 1, 1));
    assert_int_equal(save_in_child(&t, root, 2, 0, "No space left on device"), 0);
    assert_names(root, "iter_0000001 ");
    check_latest(&t, root, 1);
    umount(root);
    free(root);
    trainer_close(&t);
}

static void tokenizer_files_travel_with_the_model(void **state) {
    (void)state;
    struct trainer t;
    char *tokenizer = test_directory(), *root = test_directory(), *directory = tiny_path(root, "m");
    trainer_open(&t, DTYPE_F32);
    tiny_write(tokenizer, "tokenizer.json", "{1}", 3);
    tiny_write(tokenizer, "vocab.json", "{2}", 3);
    tiny_write(tokenizer, "merges.txt", "{3}", 3);
    tiny_write(tokenizer, "generation_config.json", "{4}", 3);
    tiny_write(tokenizer, "added_tokens.json", "{7}", 3);
    tiny_write(tokenizer, "chat_template.jinja", "{8}", 3);
    tiny_write(tokenizer, "config.json", "{5}", 3);
    tiny_write(tokenizer, "secret.txt", "{6}", 3);
    struct tokenizer_files files;
    struct ckpt_model model = {.table = &t.table, .weights = &t.weight_array, .config_text = "{}", .tokenizer = &files};
    test_ok(tokenizer_files_read(tokenizer, &files));
    test_ok(ckpt_write_model(directory, &model));
    assert_names(directory, "added_tokens.json chat_template.jinja config.json generation_config.json merges.txt "
                            "model.safetensors tokenizer.json vocab.json ");
    assert_same_files(tokenizer, directory, "chat_template.jinja");
    tokenizer_files_free(&files);
    assert_same_files(tokenizer, directory, "tokenizer.json");
    assert_same_files(tokenizer, directory, "merges.txt");
    struct strbuf config = tiny_text(directory, "config.json");
    assert_string_equal(strbuf_text(&config), "{}");
    strbuf_free(&config);
    free(tokenizer);
    free(directory);
    free(root);
    trainer_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_checkpoint_comes_back_to_the_bit),
        cmocka_unit_test(frozen_parameters_have_no_optimizer_state),
        cmocka_unit_test(checkpoints_of_others_are_neither_replaced_nor_pruned),
        cmocka_unit_test(equal_states_give_equal_files),
        cmocka_unit_test(the_last_n_are_kept_and_the_new_one_always),
        cmocka_unit_test(an_iteration_saved_again_replaces_itself),
        cmocka_unit_test(paths_mean_themselves_or_the_newest_in_them),
        cmocka_unit_test(half_a_directory_is_passed_over),
        cmocka_unit_test(only_damaged_checkpoints_are_an_error),
        cmocka_unit_test(leftovers_of_dead_writers_go_and_what_is_not_ours_stays),
        cmocka_unit_test(a_displaced_checkpoint_is_found_and_put_back),
        cmocka_unit_test(kill_at_any_moment_leaves_the_last_whole_checkpoint),
        cmocka_unit_test(a_failed_save_leaves_the_last_checkpoint_alone),
        cmocka_unit_test(a_full_disk_leaves_the_last_checkpoint_alone),
        cmocka_unit_test(tokenizer_files_travel_with_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
