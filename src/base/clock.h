/* Time. */
#pragma once

/* Monotonic seconds since an arbitrary start. */
double clock_seconds(void);
/* Seconds since 1970, for event files and logs. */
double clock_wall_seconds(void);
