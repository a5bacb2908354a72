/* The decisions after validations: which weights were the best, and whether the run continues. All ranks decide by the
 * first rank's loss, so they agree. */
#include "train-internal.h"

#include <math.h>

static const char best_name[] = "best";

bool train_keeps_best(const struct train_run *run) {
    return run->tuning && run->config.checkpoint.save;
}

static int keep_best(struct trainer *trainer) {
    char directory[PATH_MAX];
    int status = file_join(directory, sizeof directory, trainer->run.config.checkpoint.save, best_name);
    THEN(status, trainer_export(trainer, directory, false));
    return status ? status_wrap(status, "the best weights were not kept") : STATUS_OK;
}

int train_validate(struct trainer *trainer, struct validation_record *record, bool *is_done, bool *is_better) {
    struct train_progress *progress = &trainer->progress;
    *is_better = false;
    int status = trainer_evaluate(trainer, record, is_done);
    if (status || !*is_done)
        return status;
    double loss = record->valid_loss;
    *is_better = isfinite(loss) && (!progress->has_best || loss < progress->best_loss);
    progress->validated = trainer->iteration;
    progress->bad = *is_better ? 0 : progress->bad + 1;
    if (!*is_better)
        return STATUS_OK;
    progress->has_best = true;
    progress->best_loss = loss;
    return train_keeps_best(&trainer->run) ? keep_best(trainer) : STATUS_OK;
}

bool train_owes_validation(const struct trainer *trainer) {
    int64_t interval = trainer->run.config.train.eval_interval;
    return *trainer->run.checkpoint && trainer->iteration > 0 && interval > 0 && trainer->iteration % interval == 0 &&
           trainer->progress.validated != trainer->iteration;
}

bool train_is_stopped_early(const struct trainer *trainer) {
    int64_t patience = trainer->run.config.train.early_stop;
    return patience > 0 && trainer->progress.bad >= patience;
}
