/* Opens a trained model on ranks. */
#include "model.h"

#include "infer/receipt.h"

#include "base/beginning.h"
#include "base/utf8.h"
#include "pretrained/pretrained.h"

#include <unistd.h>

char *job_last_part(const char *path) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t start = end;
    while (start > 0 && path[start - 1] != '/')
        start--;
    return strndup(path + start, end - start);
}

int job_model_names(const struct job_model *job, const char **directory_name, struct config_list *names) {
    *directory_name = NULL;
    *names = job->names;
    if (names->count)
        return STATUS_OK;
    *directory_name = job_last_part(job->model);
    *names = (struct config_list){.items = directory_name, .count = 1};
    return status_allocated(*directory_name);
}

int job_model_plan(const struct job_model *job, struct comm *world, bool is_asked, struct engine_options *options,
                   struct job_memory *memory) {
    struct rank_site *site = &memory->site;
    int status = STATUS_OK;
    *site = (struct rank_site){.threads = (int)job->threads, .is_first_on_host = true, .is_first_in_process = true};
    if (world->size > 1) {
        status = rank_site_find(world, (int)job->threads, site);
        options->world = world;
        options->grid = job->grid;
    }
    options->model = job->model;
    options->adapters = job->adapters.items;
    options->adapter_count = job->adapters.count;
    options->first_layers = job->first_layers;
    options->last_layers = job->last_layers;
    options->load_in = job->load_in;
    options->precision = job->precision - 1;
    options->has_no_graphs = job->cuda_graphs == 1;
    options->receipts = job->receipts;
    options->is_batch_invariant = job->batch_invariant == 1;
    options->device = job->device;
    options->collectives = job->collectives;
    options->gemm_algorithms = job->gemm_algorithms;
    options->device_number = rank_site_device(site, job->device);
    options->device_sharers = rank_site_sharers(site, job->device);
    options->threads = site->threads;
    options->max_positions = job->max_model_len;
    if (status || (!is_asked && !device_uses_host_memory(job->device)))
        return status;
    return job_memory_plan(world, options, memory);
}

int job_model_open(const struct job_model *job, struct comm *world, struct engine_options options,
                   struct job_memory *memory, struct engine **engine) {
    *engine = NULL;
    int status = job_model_plan(job, world, false, &options, memory);
    THEN(status, job_memory_check(world, memory));
    if (!status && options.receipts == RECEIPTS_OFF)
        log_warning(JOB_RECEIPTS_OFF);
    THEN(status, engine_open(&options, engine));
    THEN(status, engine_replay_opened(*engine));
    THEN_IF(status, !device_uses_host_memory(job->device), job_memory_take(world, *engine, memory));
    return status;
}

int job_size_for_texts(const struct job_model *job, struct engine_options *options) {
    enum { STEP_ROWS = 256, SEQUENCES = 32 };
    struct pretrained model;
    int status = pretrained_open_config(job->model, &model);
    int64_t positions = job->max_model_len ? job->max_model_len : model_positions(&model.config);
    options->max_rows = options->max_logit_rows = STEP_ROWS;
    options->max_sequences = SEQUENCES;
    options->cache_tokens = 2 * positions + SEQUENCES * KV_PAGE_TOKENS;
    pretrained_close(&model);
    return status;
}

int job_chat_template(const char *option, const char *const *directories, size_t count, const char *tokenizer,
                      struct chat_template **template) {
    struct tokenizer_files files;
    int status = chat_template_open_option(option, template);
    for (size_t i = 0; i < count && !status && !*template; i++)
        status = peft_chat_template(directories[i], template);
    if (status || *template)
        return status;
    status = pretrained_read_tokenizer(tokenizer, &files);
    THEN(status, chat_template_of_tokenizer(&files, template));
    tokenizer_files_free(&files);
    return status;
}

int job_template_of(const struct job_model *job, const char *option, const char *tokenizer,
                    struct chat_template **template) {
    char **found;
    size_t count;
    int status = peft_find(job->adapters.items, job->adapters.count, &found, &count);
    THEN(status, job_chat_template(option, (const char *const *)found, count, tokenizer, template));
    file_list_free(found, count);
    return status;
}

int job_read_input(struct strbuf *text) {
    char buffer[1 << 16];
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, stdin)) > 0;)
        strbuf_add(text, buffer, n);
    if (ferror(stdin))
        return status_fail_errno("cannot read standard input");
    if (text->length && text->data[text->length - 1] == '\n')
        text->data[--text->length] = 0;
    size_t mark = beginning_mark(strbuf_text(text), text->length);
    text->length -= mark;
    if (mark)
        memmove(text->data, text->data + mark, text->length + 1);
    int status = strbuf_status(text);
    return status ? status : beginning_check("standard input", strbuf_text(text), text->length, false);
}

static int print(FILE *stream, const char *bytes, size_t length) {
    if (fwrite(bytes, 1, length, stream) != length || fflush(stream))
        return status_fail_errno("cannot write to standard %s", stream == stdout ? "output" : "error");
    return STATUS_OK;
}

int job_print(const char *bytes, size_t length) {
    return print(stdout, bytes, length);
}

int job_print_text(FILE *stream, const char *bytes, size_t length) {
    const unsigned char *at = (const unsigned char *)bytes, *end = at + length;
    struct strbuf shown = STRBUF_INIT;
    if (!isatty(fileno(stream)) || comm_mpi_is_launched()) /* a terminal between mpirun and its ranks */
        return print(stream, bytes, length);
    for (size_t step; at < end; at += step) {
        uint32_t point = *at;
        step = *at < 0x80 ? 1 : utf8_decode(at, end, &point);
        if (!step) {
            step = utf8_bad_length(at, end);
            strbuf_add_text(&shown, "\xef\xbf\xbd");
        } else if ((point < ' ' && point != '\n' && point != '\t') || point == 0x7f)
            strbuf_format(&shown, "^%c", (char)(point ^ 0x40));
        else if (point > 0x7f && point < 0xa0)
            strbuf_format(&shown, "<U+%04X>", point);
        else
            strbuf_add(&shown, at, step);
    }
    int status = strbuf_status(&shown);
    THEN(status, job_print(strbuf_text(&shown), shown.length));
    strbuf_free(&shown);
    return status;
}

int job_share(struct comm *world, void *data, int64_t count, enum dtype dtype) {
    struct comm_data moved = {.send = data, .receive = data, .count = count, .dtype = dtype};
    return count ? comm_broadcast(world, &moved, 0) : STATUS_OK;
}

int job_share_ids(struct comm *world, struct token_buffer *ids) {
    int64_t count = (int64_t)ids->count;
    int status = job_share(world, &count, 1, DTYPE_I64);
    if (!status && world->rank > 0)
        ids->count = 0;
    for (int64_t i = 0; i < count && world->rank > 0 && !status; i++)
        status = token_buffer_add(ids, 0);
    return status ? status : job_share(world, ids->ids, count, DTYPE_I32);
}

int job_fewest(const int64_t *tokens, int leaders) {
    int fewest = 0;
    for (int r = 1; r < leaders; r++)
        fewest = tokens[r] < tokens[fewest] ? r : fewest;
    return fewest;
}

/* ---- what a run leaves ---- */

struct job_model job_model_of_run(const struct train_run *run, int tensor) {
    const struct run_config *c = &run->config;
    enum precision precision = c->train.precision == PRECISION_FP8 ? PRECISION_BF16 : c->train.precision;
    return (struct job_model){.model = run->tuner ? run->model_directory : c->checkpoint.save,
                              .device = c->device,
                              .collectives = c->collectives,
                              .gemm_algorithms = c->gemm_algorithms,
                              .batch_invariant = c->batch_invariant,
                              .threads = c->parallel.threads_per_rank,
                              .load_in = run->load_in,
                              .precision = precision + 1,
                              .grid = {.tensor = tensor, .context = 1, .expert = 1, .data = 1, .pipeline = 1}};
}

int job_on_tensor_ranks(struct comm *world, const struct train_run *run,
                        int (*work)(struct comm *ranks, const struct train_run *run, void *context), void *context) {
    int tensor = (int)run->config.parallel.tensor_model_parallel_size;
    struct comm *ranks = NULL;
    int *members = calloc((size_t)tensor, sizeof *members), status = status_allocated(members);
    for (int i = 0; members && i < tensor; i++)
        members[i] = i;
    status = comm_agree(world, status);
    THEN_IF(status, world->size > tensor, comm_subgroup(world, members, world->rank < tensor ? tensor : 0, &ranks));
    THEN_IF(status, world->rank < tensor, work(ranks ? ranks : world, run, context));
    comm_close(ranks);
    free(members);
    return status;
}
