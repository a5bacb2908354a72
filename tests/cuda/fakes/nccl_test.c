/* Collectives over the stand-in for NCCL, with ranks as threads that each have a card. tests/comm/mpi_ranks.c has the
 * same body for processes. */
#include "comm/cases.h"
#include "support/test.h"

#include <stdlib.h>

/* ---- every call ---- */

static int run_on_own_card(struct comm *world, void *context) {
    struct device_cases cases = {.open_channel = comm_nccl_open};
    (void)context;
    int status = device_open("cuda", world->rank, 1, &cases.device);
    if (!status)
        status = cases_on_device(world, &cases);
    if (status)
        comm_abort(world, status_text()); /* before the device goes */
    device_close(cases.device);
    return status;
}

static void every_call_moves_from_card_to_card(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++)
        test_ok(comm_local_run(ranks, run_on_own_card, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_moves_from_card_to_card),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
