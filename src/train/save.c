/* Checkpoints of a run. */
#include "save-internal.h"

#include <stdlib.h>

int train_first_copy(const struct trainer *trainer) {
    struct rank_grid first = trainer->rank.place;
    first.data = 0;
    return rank_grid_rank(&trainer->rank.grid, &first);
}

int trainer_save(struct trainer *trainer) {
    struct param_store *store = model_store(trainer->model);
    const struct run_config *run = &trainer->run.config;
    struct ckpt_flat flat = {.store = store,
                             .stream = trainer->rank.exec.stream,
                             .memory = store->weights,
                             .dtype = store->dtype,
                             .leaves = store->part.is_copy,
                             .is_copy = trainer->rank.data->rank > 0,
                             .copy_of = train_first_copy(trainer),
                             .leaves_copies = true};
    struct ckpt_array weights = ckpt_flat_array(&flat, "", false);
    struct optimizer_arrays *arrays;
    const struct ckpt_array *optimizer;
    char *config_text = NULL, *state_text = NULL;
    int status = optimizer_arrays_open(trainer, &arrays, &optimizer);
    if (!status)
        status = gpt2_write_config(&run->model, store->dtype, trainer->run.eos_id, &config_text);
    if (!status)
        status = train_state_write(trainer, &state_text);
    struct ckpt_save save = {
        .root = run->checkpoint.save,
        .iteration = trainer->iteration,
        .model = {.table = store->table,
                  .weights = &weights,
                  .config_text = config_text,
                  .tokenizer_directory = trainer->run.tokenizer_directory,
                  .world = trainer->world},
        .optimizer = optimizer,
        .optimizer_count = store->dtype == DTYPE_F32 ? 2 : 3,
        .state_text = state_text,
        .keep_last = run->checkpoint.keep_last,
    };
    if (!status)
        status = ckpt_save(&save);
    optimizer_arrays_close(arrays);
    free(config_text);
    free(state_text);
    return status;
}
