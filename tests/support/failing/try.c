#include "support/failing.h"

#include "base/base.h"
#include "support/test.h"

/* Threads are memory, too. */
static bool speaks_of_memory(const char *text) {
    return strstr(text, "memory") || strstr(text, "cannot allocate") || strstr(text, "cannot start");
}

static size_t open_files(void) {
    char **names;
    size_t count;
    test_ok(file_list("/proc/self/fd", &names, &count));
    file_list_free(names, count);
    return count;
}

long failing_try_all(int (*use)(void *context), void *context, long limit) {
    failing_start(0);
    test_ok(use(context));
    long count = failing_stop(), step = test_is_long() || count <= limit ? 1 : count / limit;
    assert_true(count > 0);
    uint32_t seed = (uint32_t)count;
    size_t files = open_files();
    long through = 0, mapped = failing_mapped();
    for (long n = 1; n <= count; n += 1 + (long)(philox(seed, (uint32_t)n, 0, 0, (uint32_t)RNG_TEST << 24).word[0] %
                                                 (uint32_t)(2 * step - 1))) {
        failing_start(n);
        int status = use(context);
        bool has_failed = failing_stop() >= n, is_through = has_failed && !status;
        through += is_through;
        if (is_through && getenv("CAMBIUM_FAIL_TRACE"))
            print_message("allocation %ld was not needed\n", n);
        if (status && status != STATUS_MEMORY)
            fail_msg("allocation %ld of %ld: status %d (%s)", n, count, status, status_text());
        if (status && !speaks_of_memory(status_text()))
            fail_msg("allocation %ld of %ld: '%s' does not speak of memory", n, count, status_text());
        if (open_files() != files || failing_mapped() != mapped)
            fail_msg("allocation %ld of %ld: %zu more files are open and %ld more bytes mapped (%s)", n, count,
                     open_files() - files, failing_mapped() - mapped, status_text());
    }
    return through;
}
