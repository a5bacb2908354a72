#include "support/failing.h"

#include "base/base.h"
#include "support/test.h"

long failing_try_all(int (*use)(void *context), void *context, long limit) {
    failing_start(0);
    test_ok(use(context));
    long count = failing_stop(), step = test_is_long() || count <= limit ? 1 : count / limit;
    assert_true(count > 0);
    uint32_t seed = (uint32_t)count;
    long through = 0;
    for (long n = 1; n <= count; n += 1 + (long)(philox(seed, (uint32_t)n, 0, 0, (uint32_t)RNG_TEST << 24).word[0] %
                                                 (uint32_t)(2 * step - 1))) {
        failing_start(n);
        int status = use(context);
        failing_stop();
        through += !status;
        if (!status && getenv("CAMBIUM_FAIL_TRACE"))
            print_message("allocation %ld was not needed\n", n);
        if (status && status != STATUS_MEMORY)
            fail_msg("allocation %ld of %ld: status %d (%s)", n, count, status, status_text());
        if (status && !strstr(status_text(), "memory") && !strstr(status_text(), "cannot allocate"))
            fail_msg("allocation %ld of %ld: '%s' does not speak of memory", n, count, status_text());
    }
    return through;
}
