/* The search for the fastest layouts of a training run that fit.
 *
 * Every layout of a space is counted: refused (it is impossible), without memory, slower than enough rows that fit, or
 * listed. Bounds of time and memory spare most layouts the walk and the plan; they decide nothing else. */
#pragma once

#include "planner/memory.h"

enum search_space { SEARCH_ALL, SEARCH_HP_TOOL, SEARCH_RUN };

struct search {
    const struct cluster *cluster;
    struct run_config base;    /* model, batch, precision, and the layout of SEARCH_RUN; as typed */
    const struct tuner *tuner; /* NULL: the model trains */
    enum search_space space;
    double billions;          /* for SEARCH_HP_TOOL: the size that chooses the grid */
    const char *const *fixed; /* [fixed_count] paths of keys whose value in `base` layouts must have */
    size_t fixed_count;
    /* Candidates besides those of the space: every layout in FP8, and every layout with sharded weights, which
     * SEARCH_ALL has by itself. Rows of them tell what that saves. */
    bool also_fp8, also_fsdp;
    double memory_share; /* of the device's memory */
    int top;
    int points; /* layouts to plan besides, whatever their time and memory, for a picture */
};

enum search_feature { SEARCH_FP8, SEARCH_FSDP, SEARCH_FEATURES };
/* Their names in --also. */
extern const char *const search_features[];
/* The same layout without a feature takes so much more. */
struct search_saving {
    bool is_known; /* the row has the feature, and without it the layout is possible */
    double seconds, bytes;
};
/* A layout that fits. */
struct search_row {
    struct train_run run;
    struct rank_grid grid;
    struct pipeline_shape shape;
    struct cost_step step;
    struct plan_memory memory;
    struct search_saving saved[SEARCH_FEATURES];
};
/* The time of a layout, and the bytes of a device that it takes; it may not fit. */
struct search_point {
    int tensor, pipeline;
    double seconds, bytes;
};
/* Refused layouts whose obstacle is this name: a key of the run, or a few words. */
struct search_refusal {
    const char *name;
    int64_t count;
};
enum { SEARCH_REFUSALS = 12 };
struct search_counts {
    int64_t all, refused, no_memory, slower, listed;
    struct search_refusal refusals[SEARCH_REFUSALS]; /* they add up to `refused`; no name after the last */
};
struct search_result {
    int ranks;
    struct search_row *rows; /* [counts.listed] the fastest first; near ties (1%) by less memory */
    struct search_counts counts;
    struct search_point *points; /* [point_count] evenly from all layouts that are not refused, the fastest first */
    int point_count;
    double seconds;   /* that the search took */
    bool has_nearest; /* nothing fits, and of all layouts this one takes the least memory */
    struct search_row nearest;
    int works[2]; /* every layout is refused: the nearest numbers of devices, below and above, that have one; 0: none */
    int fit_ranks; /* devices of `fit`; 0: none was found */
    struct search_row fit;
};

/* Searches on `ranks` devices. The caller frees *result with search_free, even after a failure. STATUS_USAGE for a base
 * that is impossible in every layout; STATUS_MEMORY. */
int search_run(const struct search *search, int ranks, struct search_result *result);
/* After a search in which nothing fits: finds the fastest layout of all on as few devices as fit, twice as many at a
 * time, and stores it in result->fit. If no layout divides the devices, it begins with the nearest number that has one.
 * STATUS_MEMORY. */
int search_find_fit(const struct search *search, struct search_result *result);
void search_free(struct search_result *result);
/* Returns a row's point. */
static inline struct search_point search_point_of(const struct search_row *row) {
    return (struct search_point){row->grid.tensor, row->grid.pipeline, row->step.seconds, (double)row->memory.device};
}
