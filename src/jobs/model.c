/* Opens a trained model on ranks. */
#include "model.h"

#include "parallel/site.h"

#include <stdlib.h>
#include <string.h>

int job_model_names(const struct job_model *job, const char **directory_name, struct config_list *names) {
    const char *model = job->model;
    size_t end = strlen(model);
    *directory_name = NULL;
    *names = job->names;
    if (names->count)
        return STATUS_OK;
    while (end > 1 && model[end - 1] == '/')
        end--;
    size_t start = end;
    while (start > 0 && model[start - 1] != '/')
        start--;
    *directory_name = strndup(model + start, end - start);
    *names = (struct config_list){.items = directory_name, .count = 1};
    return *directory_name ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
}

int job_model_open(const struct job_model *job, struct comm *world, struct engine_options options,
                   struct engine **engine) {
    struct rank_site site = {.threads = (int)job->threads};
    int status = STATUS_OK;
    *engine = NULL;
    if (world->size > 1) {
        status = rank_site_find(world, (int)job->threads, &site);
        options.world = world;
        options.grid = job->grid;
    }
    options.model = job->model;
    options.adapters = job->adapters.items;
    options.adapter_count = job->adapters.count;
    options.first_layers = job->first_layers;
    options.last_layers = job->last_layers;
    options.precision = job->precision - 1;
    options.device = job->device;
    options.device_number = rank_site_device(&site, job->device);
    options.device_sharers = rank_site_sharers(&site, job->device);
    options.threads = site.threads;
    options.max_positions = job->max_model_len;
    return status ? status : engine_open(&options, engine);
}

int job_share_ids(struct comm *world, struct token_buffer *ids) {
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
