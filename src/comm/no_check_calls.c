/* Builds that do not check leave differences between ranks' calls to the watch. */
#include "comm-internal.h"

int comm_check_calls(struct comm *comm, const struct comm_request *first) {
    return STATUS_OK;
}
