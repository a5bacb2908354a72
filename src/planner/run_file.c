/* Run files, by the table of rows of config/. */
#include "planner/run_file.h"

#include "pretrained/pretrained.h"

static const struct config_row rows[] = {
    ROW_TEXT("config", offsetof(struct run_file, config), NULL, "a run file"),
};

static struct config_command describe(void) {
    return (struct config_command){.name = "plan",
                                   .rows = rows,
                                   .row_count = 1,
                                   .section_rows = run_rows,
                                   .section_row_count = run_row_count,
                                   .section_offset = offsetof(struct run_file, run),
                                   .config_flag = "config"};
}

int run_file_read(const char *path, const char *const *keys, size_t count, struct run_file *file) {
    const struct config_command command = describe();
    char **words = calloc(count + 2, sizeof *words);
    int argc = 0, status = words ? STATUS_OK : STATUS_MEMORY;
    bool is_answered;
    *file = (struct run_file){0};
    THEN(status, path && asprintf(&words[argc++], "--config=%s", path) < 0 ? STATUS_MEMORY : STATUS_OK);
    for (size_t i = 0; i < count && !status; i++)
        if (asprintf(&words[argc++], "--%s", keys[i]) < 0)
            status = STATUS_MEMORY;
    if (status)
        status_fail(status, "out of memory");
    else
        status = config_parse(&command, argc, words, file, &file->parsed, &is_answered);
    for (int i = 0; words && i < argc; i++)
        free(words[i]);
    free(words);
    return status;
}

void run_file_close(struct run_file *file) {
    config_free(file->parsed);
    *file = (struct run_file){0};
}

int run_file_take_model(const char *directory, struct run_config *run) {
    struct pretrained opened;
    int status = pretrained_open_config(directory, &opened);
    if (!status)
        run_config_take_model(run, &opened.config);
    pretrained_close(&opened);
    return status;
}

int run_file_resolve(const struct run_config *config, struct train_run *run) {
    *run = (struct train_run){.config = *config};
    struct run_config *c = &run->config;
    c->checkpoint.save = c->checkpoint.load = NULL;
    c->checkpoint.save_interval = 0;
    if (!c->train.train_iters)
        c->train.train_iters = 1;
    if (c->optim.lr < 0)
        c->optim.lr = c->optim.min_lr;
    int status = run_config_resolve(c);
    return status ? status : model_family_choose(&c->model);
}

int run_file_write(const struct run_config *config, struct strbuf *out) {
    const struct config_command command = describe();
    struct run_file file = {.run = *config};
    return config_dump_text(&command, &file, out);
}
