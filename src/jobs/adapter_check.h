/* Checks the adapters in --adapter-root on a separate thread while the command works. One line of the log names those
 * that will be refused. The check reads configurations and headers, never values. */
#pragma once

#include "adapter_names.h"

struct adapter_check;

/* Starts checking the adapters of the root; one rank of the run calls this. Returns NULL when there is no root, or no
 * memory or thread for the check: each adapter is then checked when it is first requested. */
struct adapter_check *adapter_check_begin(const struct adapter_names *names, const struct adapters *adapters);
/* Waits until the check is complete and frees it; call this before the engine closes. NULL is allowed. */
void adapter_check_end(struct adapter_check *check);
