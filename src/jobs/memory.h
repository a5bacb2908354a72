/* The memory of a job: planned, fitted to what this host has, checked before it is allocated, and logged at the end. */
#pragma once

#include "infer/engine.h"
#include "parallel/site.h"

/* Phrases for `help`. */
#define JOB_MEMORY_SIZES "--kv-cache-memory, --max-model-len, --adapter-memory or --precision"
#define JOB_MEMORY_RANKS "tensor or pipeline ranks on more hosts"

/* The memory of a rank. The caller sets the first members; job_memory_plan sets the others, but for `site`. */
struct job_memory {
    const char *help;                        /* what would make the plan smaller, for the error */
    size_t beside;                           /* bytes that this rank takes beside the engine and the program */
    bool cache_is_given, adapters_are_given; /* these sizes were asked for, so they do not shrink */
    struct rank_site site;
    struct engine_plan plan;
    size_t program; /* of the process; 0 at ranks other than its first */
    size_t planned; /* of all ranks of this host */
};

/* Plans the engine of `options` on this rank. On the CPU, a cache and a room for adapters that nobody asked for shrink
 * to what the host and its control groups have: the options then have their sizes. All ranks call it together. Errors
 * of engine_plan_make and of collectives. */
int job_memory_plan(struct comm *world, struct engine_options *options, struct job_memory *memory);
/* Refuses a plan beyond this host's memory, on all ranks. STATUS_MEMORY. */
int job_memory_check(struct comm *world, const struct job_memory *memory);
/* Takes the plan of an engine that was opened without one, on a device with its own memory; only the host's part
 * counts. All ranks call it together. The errors of collectives. */
int job_memory_take(struct comm *world, const struct engine *engine, struct job_memory *memory);
/* Logs the peak beside the plan; see rank_site_tell_memory. */
int job_memory_tell(struct comm *world, const struct job_memory *memory);
