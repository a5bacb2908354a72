/* The options of a trained model: its ranks and its facts. */
#include "model_arguments.h"

#include "parallel/layout.h"
#include "pretrained/pretrained.h"

int adapter_memory_check(struct adapter_names *names, const struct config *config) {
    names->memory_is_given = config_is_given(config, "adapter-memory");
    if (names->memory_is_given && !adapter_names_are_given(names))
        return status_fail(STATUS_USAGE, "--adapter-memory is for --adapter NAME=DIR and --adapter-root");
    return STATUS_OK;
}

int model_grid(struct job_model *arguments, const struct launch *launch, bool takes_data) {
    struct rank_grid *grid = &arguments->grid;
    int ranks, status = launch_ranks(launch, arguments->ranks, &ranks);
    *grid = (struct rank_grid){
        .tensor = (int)arguments->tensor, .context = 1, .expert = 1, .data = 1, .pipeline = (int)arguments->pipeline};
    THEN(status, rank_grid_fill(grid, ranks));
    THEN(status, device_find(arguments->device));
    TRY(status);
    log_info("loading %s", arguments->model);
    struct engine_options options = {.model = arguments->model,
                                     .grid = *grid,
                                     .first_layers = arguments->first_layers,
                                     .last_layers = arguments->last_layers};
    bool is_one = ranks == 1 && !options.first_layers && !options.last_layers;
    return is_one ? STATUS_OK : engine_check(&options, takes_data);
}

static int adapter_facts(const struct config_list *directories, struct facts *facts) {
    struct peft_files *files = NULL;
    int status =
        directories->count ? peft_files_open(directories->items, directories->count, false, &files) : STATUS_OK;
    for (int i = 0; !status && files && i < peft_files_count(files); i++)
        status = ckpt_adapter_facts(peft_files_directory(files, i), facts);
    peft_files_close(files);
    return status;
}

int model_facts(void *job_model, struct facts *facts) {
    const struct job_model *arguments = job_model;
    char directory[PATH_MAX];
    int status = ckpt_resolve_model(arguments->model, directory, sizeof directory);
    THEN(status, pretrained_facts(directory, facts));
    THEN(status, adapter_facts(&arguments->adapters, facts));
    const char *tokenizer = arguments->tokenizer ? arguments->tokenizer : directory;
    struct tokenizer_files files = {0};
    THEN(status, pretrained_read_tokenizer(tokenizer, &files));
    THEN(status, tokenizer_files_facts(&files, facts));
    tokenizer_files_free(&files);
    return status;
}
