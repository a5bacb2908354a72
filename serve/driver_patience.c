/* Limits how long completions may overtake a change of adapters. */
#include "driver-internal.h"

static const double patience_seconds = 0.5; /* how long completions may overtake an adapter that waits for memory */

bool driver_is_starving(const struct driver *driver) {
    double now = 0;
    for (const struct driver_change *change = STAILQ_FIRST(&driver->changes); change;
         change = STAILQ_NEXT(change, all)) {
        if (!change->is_aside)
            continue;
        now = now > 0 ? now : clock_seconds();
        if (now - change->since > patience_seconds)
            return true;
    }
    return false;
}
