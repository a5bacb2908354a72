#include "support/test.h"

#include "base/base.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

void test_ok(int status) {
    if (status)
        fail_msg("status %d: %s", status, status_text());
}

void test_fails(int status, int expected, const char *part) {
    if (status != expected)
        fail_msg("status %d, expected %d (%s)", status, expected, status_text());
    if (!strstr(status_text(), part))
        fail_msg("'%s' is not in the error '%s'", part, status_text());
}

enum { DIRECTORIES_MOST = 128 };
static char *directories[DIRECTORIES_MOST];
static int directory_count;

static void remove_directories(void) {
    for (int i = 0; i < directory_count; i++) {
        file_remove_tree(directories[i]);
        free(directories[i]);
    }
}

char *test_directory(void) {
    char outer[] = "/tmp/cambium-test-XXXXXX", name[64];
    assert_non_null(mkdtemp(outer));
    assert_true(directory_count < DIRECTORIES_MOST);
    if (directory_count == 0)
        atexit(remove_directories);
    directories[directory_count++] = strdup(outer);
    snprintf(name, sizeof name, "%s/in", outer); /* what stands beside it is no other test's either */
    assert_int_equal(mkdir(name, 0700), 0);
    return strdup(name);
}

double test_max_error(const float *a, const double *b, size_t n) {
    double error = 0, scale = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(a[i]))
            return INFINITY;
        error = fmax(error, fabs((double)a[i] - b[i]));
        scale = fmax(scale, fabs(b[i]));
    }
    return scale > 0 ? error / scale : error;
}

void test_tell_skip(const char *test, const char *reason) {
    fprintf(stderr, "skipped: %s.%s: %s\n", program_invocation_short_name, test, reason);
}

static void end_now(int signal_number) {
    static const char text[] = "the test hangs\n";
    (void)signal_number;
    if (write(2, text, sizeof text - 1) < 0)
        _exit(2);
    _exit(1);
}

void test_ends_within(unsigned seconds) {
    signal(SIGALRM, end_now);
    alarm(seconds);
}

bool test_is_long(void) {
    const char *value = getenv("CAMBIUM_TEST_LONG");
    return value && strcmp(value, "") && strcmp(value, "0");
}

const char *test_device(void) {
    const char *name = getenv("CAMBIUM_TEST_DEVICE");
    return name && *name ? name : "cpu";
}
