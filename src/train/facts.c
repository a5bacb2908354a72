/* The facts, besides the keys, that must be the same on all ranks of a run. */
#include "train-internal.h"

#include "pretrained/pretrained.h"

static int add_data(const struct train_run *run, struct facts *facts) {
    static const char *const dataset[] = {".idx", ".bin", NULL}, *const rows[] = {"", NULL};
    if (!run->tuning)
        return data_facts("data.data_path", &run->config.data.data_path, dataset, facts);
    int status = data_facts("--data", &run->tuning->train, rows, facts);
    return status ? status : data_facts("--valid-data", &run->tuning->valid, rows, facts);
}

int train_facts(const struct train_run *run, struct facts *facts) {
    char iteration[32];
    snprintf(iteration, sizeof iteration, "%lld", (long long)run->iteration);
    int status = facts_add(facts, "checkpoint.load must be one directory that all hosts see",
                           "the iteration to resume from", iteration, NULL);
    THEN_IF(status, run->tokenizer, tokenizer_files_facts(run->tokenizer, facts));
    THEN_IF(status, *run->model_directory, pretrained_facts(run->model_directory, facts));
    THEN_IF(status, *run->checkpoint, ckpt_checkpoint_facts(run->checkpoint, facts));
    return status ? status : add_data(run, facts);
}
