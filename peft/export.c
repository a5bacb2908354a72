/* The adapter as others read it: without what only training needs. */
#include "method-internal.h"

#include "ckpt/ckpt.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char peft_file[] = "adapter_model.safetensors", hub_file[] = "adapter.safetensors";

/* A stack of the same adapters that does not train, with the values of `peft`. */
static int fold(struct peft *peft, struct peft **folded) {
    struct peft_config *configs = calloc((size_t)peft->count, sizeof *configs);
    if (!configs)
        return status_fail(STATUS_MEMORY, "out of memory");
    for (int i = 0; i < peft->count; i++) {
        configs[i] = peft->adapters[i].config;
        configs[i].is_whole = false;
    }
    struct peft_options options = {.adapters = configs, .count = peft->count, .model = &peft->kept};
    int status = peft_begin(peft); /* encoders as the last update left them */
    if (!status)
        status = peft_open(&options, peft->rank, folded);
    if (!status)
        status = peft_allocate(*folded);
    if (!status)
        status = peft_fold(peft, *folded);
    free(configs);
    return status;
}

static int write_directory(struct peft *folded, const char *directory, const char *config_text) {
    struct rank *rank = folded->rank;
    struct rank_grid first = rank->place;
    first.data = 0;
    struct ckpt_flat flat = {.store = &folded->store,
                             .stream = rank->exec.stream,
                             .memory = folded->store.weights,
                             .dtype = folded->dtype,
                             .is_copy = rank->data->rank > 0,
                             .copy_of = rank_grid_rank(&rank->grid, &first),
                             .leaves_copies = true};
    struct ckpt_array weights = ckpt_flat_array(&flat, "", false);
    return ckpt_write_model(directory, &(const struct ckpt_model){.kind = CKPT_ADAPTER,
                                                                  .table = &folded->table,
                                                                  .weights = &weights,
                                                                  .config_text = config_text,
                                                                  .world = rank->world});
}

/* Each file by a rename; the first rank's work. What an adapter of the other kind left there goes. */
static int move_files(const char *from, const char *to, bool is_hub) {
    const char *const files[][2] = {{peft_file, is_hub ? hub_file : peft_file},
                                    {"adapter_config.json", "adapter_config.json"}};
    char source[PATH_MAX], target[PATH_MAX];
    int status = file_join(target, sizeof target, to, is_hub ? peft_file : hub_file);
    if (!status)
        status = file_remove_tree(target);
    for (size_t i = 0; i < sizeof files / sizeof *files && !status; i++) {
        status = file_join(source, sizeof source, from, files[i][0]);
        if (!status)
            status = file_join(target, sizeof target, to, files[i][1]);
        if (!status && rename(source, target))
            status = status_fail_errno("cannot rename %s to %s", source, target);
    }
    if (!status && rmdir(from))
        status = status_fail_errno("cannot remove %s", from);
    return status;
}

int peft_export(struct peft *peft, const char *directory, const char *config_text) {
    char staging[PATH_MAX];
    struct peft *folded = NULL;
    int status = file_join(staging, sizeof staging, directory, ".adapter");
    if (!status)
        status = fold(peft, &folded);
    if (!status)
        status = write_directory(folded, staging, config_text);
    if (!status && peft->rank->world->rank == 0)
        status = move_files(staging, directory, peft->adapters[0].config.type == PEFT_ADAPTER);
    peft_close(folded);
    return comm_agree(peft->rank->world, status);
}
