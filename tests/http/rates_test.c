/* Token buckets of clients: over time, for each client, in bounded memory. */
#include "support/test.h"

#include "http/rates.h"

static int take_all(struct rates *rates, uint64_t client, double now) {
    int taken = 0;
    while (rate_take(rates_find(rates, client, now)))
        taken++;
    return taken;
}

static void a_bucket_fills_with_time(void **state) {
    (void)state;
    static struct rates rates;
    rates = (struct rates){.burst = 10, .per_second = 2};
    assert_int_equal(take_all(&rates, 7, 100), 10);
    assert_int_equal(take_all(&rates, 7, 100.25), 0);
    assert_int_equal(take_all(&rates, 7, 103), 6);
    assert_int_equal(take_all(&rates, 7, 1000), 10);
}

static void clients_have_their_own(void **state) {
    (void)state;
    static struct rates rates;
    rates = (struct rates){.burst = 10, .per_second = 2};
    assert_int_equal(take_all(&rates, 7, 100), 10);
    assert_int_equal(take_all(&rates, 8, 100), 10);
    assert_int_equal(take_all(&rates, 0, 100), 10); /* an address of which nothing is known */
    assert_int_equal(take_all(&rates, 7, 100), 0);
}

/* A client that has spent its tokens is remembered, however many others come. */
static void crowds_do_not_wash_out_who_spends(void **state) {
    (void)state;
    static struct rates rates;
    rates = (struct rates){.burst = 10, .per_second = 0.001};
    for (uint64_t spender = 1; spender <= 4; spender++)
        assert_int_equal(take_all(&rates, spender, 100), 10);
    for (uint64_t other = 1000; other < 100000; other++)
        assert_true(rate_take(rates_find(&rates, other, 101)));
    for (uint64_t spender = 1; spender <= 4; spender++)
        assert_int_equal(take_all(&rates, spender, 102), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_bucket_fills_with_time),
                                       cmocka_unit_test(clients_have_their_own),
                                       cmocka_unit_test(crowds_do_not_wash_out_who_spends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
