/* Claims the directory that a run writes to. The first rank does so before anything is read or computed, and keeps
 * checkpoint.save locked until the trainer closes. Its checkpoints up to the one that the run resumes from belong to
 * the run; others are neither replaced nor pruned. */
#include "train-internal.h"

#include <sys/stat.h>
#include <unistd.h>

static bool is_same_directory(const char *a, const char *b) {
    struct stat x, y;
    return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

int64_t train_ours_until(const struct train_run *run) {
    char parent[PATH_MAX];
    bool is_ours = *run->checkpoint && run->config.checkpoint.save &&
                   !file_join(parent, sizeof parent, run->checkpoint, "..") &&
                   is_same_directory(parent, run->config.checkpoint.save);
    return is_ours ? run->iteration : -1;
}

bool train_resumes(const struct train_run *run) {
    const struct run_config *config = &run->config;
    return *run->checkpoint || (config->checkpoint.load && config->checkpoint.save &&
                                is_same_directory(config->checkpoint.load, config->checkpoint.save));
}

/* Checks now that the directory can be written, not only at the first save. */
static int check_writable(const char *directory) {
    char path[PATH_MAX];
    TRY(file_join(path, sizeof path, directory, ".writable-XXXXXX"));
    return mkdtemp(path) && !rmdir(path) ? STATUS_OK : status_fail_errno("cannot write to %s", directory);
}

/* Checks that no other run has saved a checkpoint between the reading of the newest one and the lock. */
static int check_newest(const struct train_run *run) {
    const char *load = run->config.checkpoint.load;
    char newest[PATH_MAX] = "";
    int status = load ? ckpt_resolve_checkpoint(load, newest, sizeof newest) : STATUS_OK;
    if (status && status != STATUS_NOT_FOUND)
        return status;
    if (load && !status && strcmp(newest, run->checkpoint))
        return status_fail(STATUS_INVALID, "%s has appeared while this run started: start it again", newest);
    return STATUS_OK;
}

/* Returns the iteration after which the run ends, if nothing else ends it. */
static int64_t last_iteration(const struct train_run *run) {
    int64_t last = run->config.train.train_iters, interval = run->config.train.exit_interval;
    int64_t exit = interval > 0 ? (run->iteration / interval + 1) * interval : last;
    return exit < last ? exit : last;
}

static int check_others(const struct train_run *run, const int64_t *others, size_t count) {
    const char *save = run->config.checkpoint.save;
    int64_t last = last_iteration(run), interval = run->config.checkpoint.save_interval;
    for (size_t i = 0; i < count; i++)
        if (others[i] > run->iteration && others[i] <= last &&
            (others[i] == last || (interval > 0 && others[i] % interval == 0)))
            return status_fail(STATUS_INVALID,
                               "%s/iter_%07lld is already there, and this run would write it: resume from it "
                               "(checkpoint.load), remove it, or name another directory",
                               save, (long long)others[i]);
    if (count && *run->checkpoint)
        log_warning("%s/iter_%07lld is already there and this run does not resume from it", save,
                    (long long)others[count - 1]);
    return STATUS_OK;
}

static int claim(struct trainer *trainer) {
    const struct train_run *run = &trainer->run;
    const char *save = run->config.checkpoint.save;
    int64_t *others = NULL;
    size_t count = 0;
    trainer->made_save = !file_exists(save);
    int status = file_make_directories(save);
    THEN(status, lock_open_directory(save, &trainer->save_lock));
    THEN(status, check_writable(save));
    THEN(status, ckpt_list_above(save, train_ours_until(run), &others, &count));
    THEN_IF(status, count, check_newest(run));
    THEN(status, check_others(run, others, count));
    free(others);
    return status;
}

int train_claim(struct trainer *trainer) {
    const struct run_config *run = &trainer->run.config;
    int status = STATUS_OK;
    if (trainer->world->rank == 0 && run->checkpoint.save && !run->train.skip_train)
        status = claim(trainer);
    if (!status && trainer->world->rank == 0 && *trainer->run.checkpoint) {
        status = ckpt_check_state(trainer->run.checkpoint);
        status = status ? status_wrap(status, "checkpoint.load") : STATUS_OK;
    }
    if (status)
        train_unclaim(trainer);
    return status;
}

void train_unclaim(struct trainer *trainer) {
    if (trainer->save_lock < 0)
        return;
    if (trainer->made_save)
        rmdir(trainer->run.config.checkpoint.save); /* removes it only if it is empty */
    close(trainer->save_lock);
    trainer->save_lock = -1;
}
