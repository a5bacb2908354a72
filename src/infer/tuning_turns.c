/* When a run may work: serving comes first. */
#include "infer/tuning.h"

/* Sets the seconds of the next slice; false: there is no time for it now. */
static bool has_time(struct tuning_turns *turns, const struct slice *slice, bool has_stepped, double *seconds) {
    double spare = scheduler_spare(turns->scheduler);
    double needs = slice_cost_rate(&turns->cost, slice->next) * slice->next_work;
    *seconds = spare;
    if (!has_stepped || spare <= 0) {
        turns->credit = 0;
        return spare > 0;
    }
    double most = needs > spare ? needs : spare, credit = turns->credit + spare;
    *seconds = turns->credit = credit < most ? credit : most;
    return credit > 0 && turns->credit >= needs;
}

int tuning_turn(struct tuning_turns *turns, struct tuning_run *run, bool has_stepped, struct tuning_spent *spent,
                bool *has_run, bool *is_done) {
    const struct slice *slice = tuning_slice(run);
    struct slice_limit limit;
    *is_done = false;
    *has_run = has_time(turns, slice, has_stepped, &limit.seconds);
    if (!*has_run)
        return STATUS_OK;
    for (int k = 0; k < SLICE_KINDS; k++)
        limit.rate[k] = slice_cost_rate(&turns->cost, (enum slice_kind)k);
    double began = clock_seconds();
    int status = tuning_continue(run, &limit, is_done);
    double took = clock_seconds() - began;
    slice_cost_learn(&turns->cost, slice);
    tuning_charge(run, took);
    turns->credit -= took;
    spent->slices++;
    spent->seconds += took;
    return status;
}
