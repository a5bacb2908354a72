/* Plans as JSON, for programs. The caller owns the values (json_decref); functions that make JSON stand between
 * json_begin and json_end (base/json.h). */
#ifndef CAMBIUM_PLANNER_REPORT_H
#define CAMBIUM_PLANNER_REPORT_H

#include "planner/walk.h"

#include "base/json.h"

/* Makes {makespan, idle: [stages], steps: [{stage, kind, chunk, micro_batch, start, end}]}. Idle is the makespan less
 * the time in which the stage computes. */
json_t *report_walk(const struct walk *walk);

#endif
