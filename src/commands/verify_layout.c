/* cambium verify layout: a run's layout computes the gradients of one rank. */
#include "finetune.h"
#include "infer/tuner.h"
#include "launch.h"
#include "training.h"
#include "verify.h"

#include "base/smaller.h"
#include "planner/run_file.h"
#include "train/verify.h"

struct options {
    const char *config, *model;
    struct config_list peft;
    int64_t ranks, steps;
    bool is_full_size;
    struct finetune_sections sections;
};

#define AT(field) offsetof(struct options, field)
static const struct config_row rows[] = {
    TRAINING_CONFIG_ROW(AT(config)),
    ROW_PATH("model", AT(model), "PATH",
             "take the model's shape from the config.json of a model directory, or from a GGUF file"),
    ROW_LIST("peft", AT(peft), "METHOD...", "train these adapters on the frozen model, as finetune does"),
    RANKS_ROW(AT(ranks), "ranks of the layout, as threads of this process, at most 64; 1 when not given, and under "
                         "mpirun or srun theirs"),
    ROW_INT("steps", AT(steps), "2", 1, 1000, "steps to compare before the run is saved and resumed"),
    ROW_BOOL("full-size", AT(is_full_size), "false", "do not shrink the model and its batch"),
};

/* The longest tensors of adapters in a shrunk run. */
enum { SMALL_RANK = 8, SMALL_VIRTUAL_TOKENS = 4, SMALL_ENCODER = 24, ANY_VOCABULARY = 50257 };

struct proving {
    struct options *options;
    struct verify_layout job;
    struct stack stack;
    struct tuner_adapters adapters;
    struct tuner tuner;
    struct peft_texts texts;
    char directory[PATH_MAX];
};

static struct config_row *section_rows(size_t *count) {
    size_t of_peft = stack_rows(NULL, 0), of_tuning = finetune_tuning_rows(NULL);
    *count = run_row_count + of_peft + of_tuning;
    struct config_row *all = malloc(*count * sizeof *all);
    if (!all)
        return NULL;
    memcpy(all, run_rows, run_row_count * sizeof *all);
    stack_rows(all + run_row_count, offsetof(struct finetune_sections, peft));
    finetune_tuning_rows(all + run_row_count + of_peft);
    return all;
}

static void shrink_adapter(struct peft_config *config) {
    config->r = smaller(config->r, SMALL_RANK);
    config->bottleneck = smaller(config->bottleneck, SMALL_RANK);
    config->num_virtual_tokens = smaller(config->num_virtual_tokens, SMALL_VIRTUAL_TOKENS);
    config->encoder_hidden_size = smaller(config->encoder_hidden_size, SMALL_ENCODER);
}

/* Chooses the adapters, if the run has any. Their values are initial ones. */
static int choose_adapters(struct proving *p, const struct config *given) {
    struct options *o = p->options;
    if (!o->peft.count && !config_is_given(given, "peft.type") && !stack_find_given(given, true))
        return STATUS_OK;
    TRY(stack_choose(&p->stack, &o->peft, &o->sections.peft, given));
    for (int i = 0; i < p->stack.count; i++) {
        struct peft_config *config = &p->stack.configs[i];
        if (!o->is_full_size)
            shrink_adapter(config);
        config->prompt_tuning_init = PEFT_INIT_RANDOM; /* a text needs the model's tokenizer */
        config->prompt_tuning_init_text = NULL;
        p->job.virtual_tokens += peft_config_virtual_tokens(config);
        p->job.first_position += peft_config_prefix_tokens(config);
    }
    return STATUS_OK;
}

static int make_tuner(struct proving *p) {
    const struct peft_notes notes = {0};
    if (!p->stack.count)
        return STATUS_OK;
    p->adapters = (struct tuner_adapters){.configs = p->stack.configs, .count = p->stack.count};
    p->tuner = tuner_of_adapters(&p->adapters);
    TRY(peft_texts_make(p->stack.configs, p->stack.count, &p->job.run.config.model, "", &notes, &p->texts));
    p->tuner.texts = p->texts.items;
    p->tuner.text_count = p->texts.count;
    p->job.run.tuner = &p->tuner;
    return STATUS_OK;
}

static int prepare(const struct launch *launch, const struct config *given, void *context) {
    struct proving *p = context;
    struct options *o = p->options;
    TRY(launch_ranks(launch, o->ranks, &p->job.ranks));
    TRY(choose_adapters(p, given));
    if (o->model)
        TRY(run_file_take_model(o->model, &o->sections.run));
    if (!o->sections.run.model.vocab_size) /* a run takes it from its tokenizer */
        o->sections.run.model.vocab_size = ANY_VOCABULARY;
    TRY(run_file_resolve(&o->sections.run, &p->job.run));
    p->job.steps = (int)o->steps;
    TRY(verify_shrink(&p->job, o->is_full_size));
    return make_tuner(p);
}

/* Makes the directory of the checkpoints, which all processes use. */
static int make_directory(const struct launch *launch, struct proving *p) {
    const char *parent = getenv("TMPDIR");
    int status = STATUS_OK;
    snprintf(p->directory, sizeof p->directory, "%s/cambium-verify-XXXXXX", parent && *parent ? parent : "/tmp");
    if (launch->is_first && !mkdtemp(p->directory)) {
        status = status_fail_errno("cannot make a directory %s", p->directory);
        p->directory[0] = 0;
    }
    if (!launch->world)
        return status;
    struct comm_data data = {
        .send = p->directory, .receive = p->directory, .count = sizeof p->directory, .dtype = DTYPE_U8};
    TRY(comm_agree(launch->world, status));
    return comm_broadcast(launch->world, &data, 0);
}

static int run(struct launch *launch, void *context) {
    struct proving *p = context;
    TRY(make_directory(launch, p));
    p->job.directory = p->directory;
    int status = launch_run(launch, p->job.ranks, verify_layout_run, &p->job);
    verify_layout_close(&p->job);
    int removed = launch->is_first ? file_remove_tree(p->directory) : STATUS_OK;
    return status ? status : removed;
}

static void close_all(void *context) {
    struct proving *p = context;
    peft_texts_free(&p->texts);
    stack_free(&p->stack);
}

int verify_layout_command(int argc, char **argv) {
    struct options options = {0};
    struct proving p = {.options = &options, .job.is_equal = true};
    size_t count;
    struct config_row *sections = section_rows(&count);
    if (!sections)
        return command_exit_status(status_no_memory());
    const struct config_command command = {
        .name = "verify layout",
        .synopsis = "cambium verify layout --config FILE.yaml [--section.key=value ...] [--ranks N] [OPTIONS]",
        .description =
            "Proves on ranks of this machine's CPU that a run's layout computes the gradients of one rank. The model "
            "is shrunk, never the layout; texts are random, and no dataset is opened. Outputs, losses, gradients, "
            "weights and moments are compared in fp32 after each step, then again after the run was resumed in another "
            "layout. FILE.yaml is that of pretrain or finetune. Prints a JSON line for each kind of check, then a "
            "summary with the first difference. Exits with 0 if all is equal, else with 1.",
        .examples =
            "  cambium verify layout --config run.yaml --ranks 8\n"
            "  cambium verify layout --config run.yaml --ranks 4 --parallel.tensor_model_parallel_size=2\n"
            "  cambium verify layout --model model --peft lora --ranks 2 --parallel.tensor_model_parallel_size=2\n"
            "  mpirun -n 8 cambium verify layout --config run.yaml\n",
        .rows = rows,
        .row_count = sizeof rows / sizeof *rows,
        .section_rows = sections,
        .section_row_count = count,
        .section_offset = AT(sections),
        .config_flag = "config",
    };
    const struct launch_steps steps = {
        .command = &command, .values = &options, .watches = true, .prepare = prepare, .run = run, .close = close_all};
    stop_watch_begin();
    int exit_status = launch_command(&steps, argc, argv, &p);
    stop_watch_end();
    free(sections);
    return exit_status ? exit_status : !p.job.is_equal;
}
