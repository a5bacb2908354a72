/* In builds that count loans, a weight that stays on loan ends the program, with its name. Each mistake is made in a
 * process of its own. */
#include "support/test.h"
#include "tensor/tensor.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MESSAGE_BYTES = 512 };

static const struct param row = {.name = "layers.0.norm1.weight",
                                 .dims = 1,
                                 .shape = {16, 1},
                                 .slice_count = 1,
                                 .slices = {{.rows = 16, .file_rows = 16}}};

struct scene {
    struct device *device;
    struct param row;
    struct param_table table;
    struct param_store store;
};

static void open_scene(struct scene *scene) {
    *scene = (struct scene){.row = row};
    scene->table = (struct param_table){.rows = &scene->row, .count = 1};
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &scene->device));
    struct param_store_options options = {.table = &scene->table, .device = scene->device, .dtype = DTYPE_F32};
    test_ok(param_store_sketch(&scene->store, &options));
    test_ok(param_store_open(&scene->store, NULL));
}

static void close_scene(struct scene *scene) {
    param_store_close(&scene->store);
    device_close(scene->device);
}

/* Checks that the use ends its process with `message`; NULL: that it does not end it. */
static void ends(void (*use)(struct scene *scene), const char *message) {
    struct scene scene;
    char said[MESSAGE_BYTES] = "";
    int output[2], status;
    assert_int_equal(pipe(output), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL); /* a sanitizer's handler would report it */
        dup2(output[1], STDERR_FILENO);
        open_scene(&scene);
        use(&scene);
        close_scene(&scene);
        _exit(0);
    }
    close(output[1]);
    for (ssize_t got, length = 0; (got = read(output[0], said + length, MESSAGE_BYTES - 1 - (size_t)length)) > 0;)
        length += got;
    close(output[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (message && (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT || !strstr(said, message)))
        fail_msg("status %d, said: %s", status, said);
    if (!message && status)
        fail_msg("status %d, said: %s", status, said);
}

static void borrow_and_return(struct scene *scene) {
    param_borrow(&scene->store, 0);
    param_borrow_linear(&scene->store, 0);
    param_return(&scene->store, 0);
    param_return(&scene->store, 0);
    param_borrow_to_write(&scene->store, 0);
    param_return(&scene->store, 0);
    param_check_returned(&scene->store, "all of it");
}

static void keep(struct scene *scene) {
    param_borrow(&scene->store, 0);
}

static void keep_over_a_pass(struct scene *scene) {
    param_borrow(&scene->store, 0);
    param_check_returned(&scene->store, "a forward");
}

static void return_twice(struct scene *scene) {
    param_borrow(&scene->store, 0);
    param_return(&scene->store, 0);
    param_return(&scene->store, 0);
}

static void write_what_is_read(struct scene *scene) {
    param_borrow(&scene->store, 0);
    param_borrow_to_write(&scene->store, 0);
}

static void read_what_is_written(struct scene *scene) {
    param_borrow_to_write(&scene->store, 0);
    param_borrow(&scene->store, 0);
}

static void read_what_travels(struct scene *scene) {
    param_set_travelling(&scene->store, 0, 16, true);
    param_borrow(&scene->store, 0);
}

static void read_what_has_arrived(struct scene *scene) {
    param_set_travelling(&scene->store, 0, 16, true);
    param_set_travelling(&scene->store, 0, 16, false);
    param_borrow(&scene->store, 0);
    param_return(&scene->store, 0);
}

static void read_what_is_absent(struct scene *scene) {
    param_set_absent(&scene->store, 0, true);
    param_borrow(&scene->store, 0);
}

static void read_what_is_present_again(struct scene *scene) {
    param_set_absent(&scene->store, 0, true);
    param_set_absent(&scene->store, 0, false);
    param_borrow(&scene->store, 0);
    param_return(&scene->store, 0);
}

static void reshard_what_is_read(struct scene *scene) {
    param_borrow(&scene->store, 0);
    param_set_absent(&scene->store, 0, true);
}

static void what_is_given_back_may_be_lent_again(void **state) {
    (void)state;
    ends(borrow_and_return, NULL);
}

static void a_loan_that_stays_out_ends_the_program(void **state) {
    (void)state;
    ends(keep, "weight 'layers.0.norm1.weight' is still on loan after its store was closed");
    ends(keep_over_a_pass, "weight 'layers.0.norm1.weight' is still on loan after a forward");
}

static void so_does_one_that_is_given_back_twice(void **state) {
    (void)state;
    ends(return_twice, "weight 'layers.0.norm1.weight' is given back and was not borrowed");
}

static void who_writes_is_alone(void **state) {
    (void)state;
    ends(write_what_is_read, "weight 'layers.0.norm1.weight' is borrowed to be written while it is on loan");
    ends(read_what_is_written, "weight 'layers.0.norm1.weight' is borrowed while it is being written");
}

static void nobody_borrows_what_is_absent(void **state) {
    (void)state;
    ends(read_what_is_absent, "weight 'layers.0.norm1.weight' is borrowed while this rank has only a share of it");
    ends(reshard_what_is_read, "weight 'layers.0.norm1.weight' is on loan while its unit is resharded");
    ends(read_what_is_present_again, NULL);
}

static void nobody_borrows_what_travels(void **state) {
    (void)state;
    ends(read_what_travels, "weight 'layers.0.norm1.weight' is borrowed before it has arrived from other ranks");
    ends(read_what_has_arrived, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_given_back_may_be_lent_again),
        cmocka_unit_test(a_loan_that_stays_out_ends_the_program),
        cmocka_unit_test(so_does_one_that_is_given_back_twice),
        cmocka_unit_test(who_writes_is_alone),
        cmocka_unit_test(nobody_borrows_what_travels),
        cmocka_unit_test(nobody_borrows_what_is_absent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
