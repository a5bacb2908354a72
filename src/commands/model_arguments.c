/* Running a trained model on ranks. */
#include "model_arguments.h"

#include "ckpt/ckpt.h"
#include "parallel/layout.h"
#include "parallel/site.h"
#include "peft/peft.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

int model_names(const struct model_arguments *arguments, const char **own, struct config_list *names) {
    const char *model = arguments->model;
    size_t end = strlen(model);
    *own = NULL;
    *names = arguments->names;
    if (names->count)
        return STATUS_OK;
    while (end > 1 && model[end - 1] == '/')
        end--;
    size_t start = end;
    while (start > 0 && model[start - 1] != '/')
        start--;
    *own = strndup(model + start, end - start);
    *names = (struct config_list){.items = own, .count = 1};
    return *own ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
}

int model_grid(const struct model_arguments *arguments, const struct launch *launch, bool takes_data,
               struct rank_grid *grid) {
    int ranks, status = launch_ranks(launch, arguments->ranks, &ranks);
    *grid = (struct rank_grid){
        .tensor = (int)arguments->tensor, .context = 1, .expert = 1, .data = 1, .pipeline = (int)arguments->pipeline};
    if (!status)
        status = rank_grid_fill(grid, ranks);
    if (status)
        return status;
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

int model_facts(const struct model_arguments *arguments, const struct launch *launch,
                const struct config_command *command, const void *values, bool is_help, struct facts *facts) {
    char directory[PATH_MAX];
    int status = launch_facts(launch, command, values, is_help, facts);
    if (status || is_help || !launch->world)
        return status;
    status = ckpt_resolve_model(arguments->model, directory, sizeof directory);
    if (!status)
        status = ckpt_model_facts(directory, facts);
    if (!status)
        status = adapter_facts(&arguments->adapters, facts);
    const char *tokenizer = arguments->tokenizer ? arguments->tokenizer : directory;
    struct tokenizer_files files = {0};
    if (!status)
        status = tokenizer_files_read(tokenizer, &files);
    if (!status)
        status = tokenizer_files_facts(&files, facts);
    tokenizer_files_free(&files);
    return status;
}

int model_engine_open(const struct model_arguments *arguments, struct comm *world, const struct rank_grid *grid,
                      struct engine_options options, struct engine **engine) {
    struct rank_site site = {.threads = (int)arguments->threads};
    int status = STATUS_OK;
    *engine = NULL;
    if (world->size > 1) {
        status = rank_site_find(world, (int)arguments->threads, &site);
        options.world = world;
        options.grid = *grid;
    }
    options.model = arguments->model;
    options.adapters = arguments->adapters.items;
    options.adapter_count = arguments->adapters.count;
    options.first_layers = arguments->first_layers;
    options.last_layers = arguments->last_layers;
    options.precision = arguments->precision - 1;
    options.device = arguments->device;
    options.threads = site.threads;
    options.max_positions = arguments->max_model_len;
    return status ? status : engine_open(&options, engine);
}

int model_share_ids(struct comm *world, struct token_buffer *ids) {
    int64_t count = (int64_t)ids->count;
    struct comm_data length = {.send = &count, .receive = &count, .count = 1, .dtype = DTYPE_I64};
    int status = comm_broadcast(world, &length, 0);
    if (!status && world->rank > 0)
        ids->count = 0;
    for (int64_t i = 0; i < count && world->rank > 0 && !status; i++)
        status = token_buffer_add(ids, 0);
    if (status || count == 0)
        return status;
    struct comm_data data = {.send = ids->ids, .receive = ids->ids, .count = count, .dtype = DTYPE_I32};
    return comm_broadcast(world, &data, 0);
}
