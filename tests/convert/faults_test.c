/* A conversion that is killed, or that finds the disk full, leaves no output, in each direction; the next one finds
 * room and leaves nothing else. A limit on the size of files stands for both: its signal kills, or is ignored. */
#include "directions.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* Bytes of a file: the fault comes within a text, a list or header, or the numbers. The mark of an unfinished output is
 * smaller than all of them, and each direction writes a larger file. */
static const rlim_t limits[] = {500, 4000, 16000};
enum { LIMITS = sizeof limits / sizeof *limits, SAW_FULL_DISK = 7 };

/* Converts in a process that may not write larger files; returns how it ended. */
static int convert_limited(const struct direction *direction, rlim_t limit, void (*on_signal)(int)) {
    int ended;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){limit, limit});
        signal(SIGXFSZ, on_signal);
        _exit(convert_once(direction) == STATUS_IO ? SAW_FULL_DISK : 0);
    }
    assert_int_equal(waitpid(child, &ended, 0), child);
    return ended;
}

static size_t count_files(void) {
    char **names;
    size_t count;
    test_ok(file_list(places.root, &names, &count));
    file_list_free(names, count);
    return count;
}

static void a_full_disk_leaves_nothing(void **state) {
    (void)state;
    for (int i = 0; i < DIRECTIONS; i++)
        for (int k = 0; k < LIMITS; k++) {
            int ended = convert_limited(&directions[i], limits[k], SIG_IGN);
            if (!WIFEXITED(ended) || WEXITSTATUS(ended) != SAW_FULL_DISK || count_files())
                fail_msg("direction %d, limit %d: ended with %x, %zu files", i, k, (unsigned)ended, count_files());
        }
}

static void a_kill_leaves_no_output_and_the_next_one_sweeps(void **state) {
    (void)state;
    for (int i = 0; i < DIRECTIONS; i++)
        for (int k = 0; k < LIMITS; k++) {
            int ended = convert_limited(&directions[i], limits[k], SIG_DFL);
            if (!WIFSIGNALED(ended) || WTERMSIG(ended) != SIGXFSZ || file_exists(places.output))
                fail_msg("direction %d, limit %d: ended with %x", i, k, (unsigned)ended);
            test_ok(convert_once(&directions[i]));
            if (count_files() != 1)
                fail_msg("direction %d, limit %d: %zu files", i, k, count_files());
            remove_output();
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_disk_leaves_nothing),
        cmocka_unit_test(a_kill_leaves_no_output_and_the_next_one_sweeps),
    };
    log_quiet(true);
    return cmocka_run_group_tests(tests, make_places, NULL);
}
