/* Plans as pictures: the timeline of all stages as SVG, and as Chrome's trace events. Texts are complete files. */
#pragma once

#include "planner/walk.h"

#include "base/base.h"

/* Adds an SVG image in which each stage is a row and each step a bar with a title. STATUS_MEMORY. */
int picture_timeline(const struct walk *walk, struct strbuf *out);
/* Adds JSON of Chrome's trace events, in microseconds; a stage is a thread. STATUS_MEMORY. */
int picture_trace(const struct walk *walk, struct strbuf *out);
