/* A training plan as one page, which needs no other file and no network. It reads well on a phone, on paper and in dark
 * mode. Every figure is there as text, too. */
#ifndef CAMBIUM_PLANNER_PAGE_H
#define CAMBIUM_PLANNER_PAGE_H

#include "planner/report.h"

#include "base/base.h"

/* Adds the page. `walk` is the schedule of the best row of the first search. STATUS_MEMORY. */
int page_training(const struct report_training *report, const struct walk *walk, struct strbuf *out);

#endif
