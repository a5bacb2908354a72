/* Adapters below --adapter-root, checked on a thread of its own while the command works: one line names those that will
 * be refused. The check reads configurations and headers, never values. */
#ifndef CAMBIUM_JOBS_ADAPTER_CHECK_H
#define CAMBIUM_JOBS_ADAPTER_CHECK_H

#include "adapter_names.h"

struct adapter_check;

/* Begins to check the adapters that are known by the root, on one rank of the run. NULL where there is no root, or no
 * memory or thread for it: each adapter is then checked when it is first named. */
struct adapter_check *adapter_check_begin(const struct adapter_names *names, const struct adapters *adapters);
/* Waits for the rest of the check. Before the engine closes; NULL is allowed. */
void adapter_check_end(struct adapter_check *check);

#endif
