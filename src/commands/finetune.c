/* cambium finetune: trains a few parameters on a frozen model, or the whole model, on rows with answers. */
#include "finetune.h"
#include "commands.h"
#include "infer/tuner.h"
#include "model_arguments.h"
#include "training.h"

#include "data/tuning.h"
#include "jobs/receipts.h"
#include "jobs/serving_gap.h"

static const char *const truncations[] = {"right", "left", NULL};

struct options {
    const char *config, *model, *output, *init_adapter;
    int receipts, load_in;
    struct config_list peft, data, valid_data, adapters;
    int64_t ranks; /* 0: not given */
    struct training_target target;
    bool is_dry_run;
    struct finetune_sections sections;
};

#define OPTION(name, field, meta, text) ROW_PATH(name, AT(field), meta, text)
#define AT(field)                       offsetof(struct options, field)
static const struct config_row rows[] = {
    OPTION("model", model, "PATH", "the model directory, GGUF file, or directory of checkpoints; it is not changed"),
    ROW_LIST("peft", AT(peft), "METHOD...",
             "several are trained together, each in its own directory; full trains all weights of the model"),
    /* after the methods' names */
    ROW_PATHS("data", AT(data), "FILE.jsonl...",
              "rows to train on; several files may have weights: weight, file, weight, file, ..."),
    OPTION("output", output, "DIR",
           "directory for the adapter, for that of the best validation (best/), and for checkpoints; with --peft full "
           "the checkpoints are models"),
    ROW_PATHS("valid-data", AT(valid_data), "FILE.jsonl...", "rows for validation"),
    TRAINING_DRY_RUN_ROWS(AT(is_dry_run), AT(target)),
    TRAINING_CONFIG_ROW(AT(config)),
    ROW_PATHS("adapter", AT(adapters), "DIR...",
              "adapters on the model, which stay frozen below what trains; with train.skip_train: those to validate"),
    OPTION("init-adapter", init_adapter, "DIR",
           "start from the values and the configuration of an adapter or a stack, instead of keys of peft"),
    TRAINING_RANKS_ROW(AT(ranks)),
    LOAD_IN_ROW(AT(load_in)),
    RECEIPTS_ROW(AT(receipts)),
};

/* The rows, with the names of the methods in the help of --peft, and the help of optim.lr. */
struct named_rows {
    struct config_row rows[sizeof rows / sizeof *rows];
    char peft_help[STACK_NAMES_BYTES + 80], lr_help[STACK_NAMES_BYTES + 160];
};
static void name_rows(struct named_rows *named) {
    char names[STACK_NAMES_BYTES], rates[STACK_NAMES_BYTES];
    struct config_row *row = named->rows;
    stack_names(names);
    stack_rates(rates);
    memcpy(named->rows, rows, sizeof rows);
    while (strcmp(row->path, "peft") != 0)
        row++;
    snprintf(named->peft_help, sizeof named->peft_help, "%s; %s", names, row->help);
    snprintf(named->lr_help, sizeof named->lr_help,
             "highest learning rate; when not given, that of the method, or the lowest of several methods': %s", rates);
    row->help = named->peft_help;
}

#define TUNING(field) offsetof(struct finetune_sections, tuning.field)
/* A key of the section `data` that pretrain lacks. */
static const struct config_row answers_row =
    ROW_CHOICE("data.answers", TUNING(answers), "all", chat_answers_names,
               "answers of a row's messages to train on; a template that changes earlier ones needs last");
static const struct config_row tuning_rows[] = {
    ROW_CHOICE("loss", TUNING(loss), "sft", loss_names,
               "what to train: sft: the answers; dpo or orpo: to prefer the better of two answers; kto: to prefer "
               "wanted answers to others, which have labels"),
    ROW_FLOAT("tuning.beta", TUNING(options.beta), "0.1", 1e-6, 1e6,
              "of dpo, orpo and kto: how much differences of log-probabilities count"),
    ROW_FLOAT("tuning.label_smoothing", TUNING(options.label_smoothing), "0", 0, 0.5,
              "of dpo: the share of rows whose answers are in the wrong order"),
    ROW_FLOAT("tuning.sft_weight", TUNING(options.sft_weight), "0", 0, 1e6,
              "of dpo: adds this factor times the mean loss of the better answer's tokens"),
    ROW_INT("tuning.epochs", TUNING(epochs), "1", 1, 1e6,
            "number of times to train on every row, when train.train_iters is not given"),
    ROW_BOOL("tuning.packing", TUNING(packing), "false", "put several rows into a sample; none attends to another"),
    CHAT_TEMPLATE_ROW("tuning.template", TUNING(template), "messages and instructions",
                      "as the tokenizer's own template"),
    SPECIAL_TOKENS_ROW("tuning.special_tokens", TUNING(special_tokens), "rows without a template"),
    ROW_BOOL("tuning.train_on_prompt", TUNING(train_on_prompt), "false",
             "compute the loss on the whole text, not only on answers"),
    ROW_CHOICE("tuning.truncation_side", TUNING(truncation_side), "right", truncations,
               "side on which rows that are too long are cut"),
    TEMPLATE_TIMEOUT_ROW("tuning.template_timeout", TUNING(template_timeout)),
};
enum { TUNING_ROWS = sizeof tuning_rows / sizeof *tuning_rows };

size_t finetune_tuning_rows(struct config_row *all) {
    for (size_t i = 0; i < TUNING_ROWS && all; i++)
        all[i] = tuning_rows[i];
    if (all)
        all[TUNING_ROWS] = answers_row;
    return TUNING_ROWS + 1;
}

/* Sections in the order of --help, by use. */
static const char *const section_order[] = {"loss",
                                            "tuning",
                                            "peft",
                                            "optim",
                                            "data",
                                            "train",
                                            "device",
                                            "collectives",
                                            "gemm-algorithms",
                                            "batch-invariant",
                                            "tokenizer",
                                            "parallel",
                                            "checkpoint",
                                            "log"};
static const struct config_absent absent[] = {
    {"model", "the model is that of --model"},
    {"data.data_path", "--data names the rows"},
    {"data.split", "--data and --valid-data are whole files"},
    {"data.data_cache_path", "rows have no index maps"},
    {"data.eod_mask_loss", "the end-of-text of an answer is trained"},
    {"data.reset_position_ids", "each row has its own positions"},
    {"data.reset_attention_mask", "no row attends to another"},
    {"checkpoint.save", "--output names the directory"},
};
enum { ABSENT = sizeof absent / sizeof *absent };

/* Returns the help of a key whose default is another one than pretrain's; NULL for other keys. */
static const char *own_help(const struct named_rows *named, const char *path) {
    if (!strcmp(path, "optim.lr"))
        return named->lr_help;
    if (!strcmp(path, "data.seq_length"))
        return "maximum number of tokens in a row, virtual tokens included; longer rows are cut; when not given, those "
               "of the "
               "longest row, at most the model's positions";
    if (!strcmp(path, "train.train_iters"))
        return "iterations (updates of the weights) of the whole run; those of tuning.epochs when not given";
    return NULL;
}

/* Adds those of `from` [count] that belong to the section and that finetune has. Returns their number. */
static size_t add_section(struct config_row *to, const struct named_rows *named, const char *section,
                          const struct config_row *from, size_t count) {
    size_t length = strlen(section), added = 0;
    for (size_t i = 0; i < count; i++) {
        const char *path = from[i].path, *help = own_help(named, path);
        if (strcspn(path, ".") != length || strncmp(path, section, length) || config_absence(absent, ABSENT, path))
            continue;
        to[added] = from[i];
        if (help)
            to[added].help = help;
        added++;
    }
    return added;
}

/* Rows of all sections; the caller frees them. */
static struct config_row *section_rows(const struct named_rows *named, size_t *count) {
    size_t of_peft = stack_rows(NULL, 0), most = run_row_count + 1 + of_peft + TUNING_ROWS;
    struct config_row *all = malloc(most * sizeof *all), *peft = malloc(of_peft * sizeof *peft);
    *count = 0;
    if (all && peft) {
        stack_rows(peft, offsetof(struct finetune_sections, peft));
        for (size_t i = 0; i < sizeof section_order / sizeof *section_order; i++) {
            *count += add_section(all + *count, named, section_order[i], tuning_rows, TUNING_ROWS);
            *count += add_section(all + *count, named, section_order[i], peft, of_peft);
            *count += add_section(all + *count, named, section_order[i], run_rows, run_row_count);
            *count += add_section(all + *count, named, section_order[i], &answers_row, 1);
        }
    }
    bool is_complete = all && peft;
    free(peft);
    if (!is_complete)
        free(all);
    return is_complete ? all : NULL;
}

static struct config_command describe(const struct named_rows *named, const struct config_row *sections, size_t count) {
    return (struct config_command){
        .name = "finetune",
        .synopsis = "cambium finetune --model PATH --peft METHOD... --data FILE.jsonl --output DIR "
                    "[OPTIONS] [--section.key=value ...] [--dry-run [--cluster NAME|FILE --nodes N|--devices N]]",
        .description =
            "Trains a small set of parameters on a frozen model, and writes an adapter that Hugging Face's PEFT reads. "
            "--peft full trains all weights instead, and writes models. "
            "Rows are JSON lines: {\"prompt\", \"completion\"}, {\"input\", \"output\"}, {\"messages\"}, "
            "{\"instruction\", \"input\", \"output\"} or {\"text\"}. Rows with an answer train only on the answer. "
            "Rows of two answers are {\"prompt\", \"chosen\", \"rejected\"}, or {\"input\", \"preferred_output\", "
            "\"non_preferred_output\"}; with --loss kto rows are {\"prompt\", \"completion\", \"label\"}.",
        .examples = "  cambium finetune --model model --peft lora --data rows.jsonl --output adapter\n"
                    "  cambium finetune --model model --peft ia3 --data rows.jsonl --output adapter \\\n"
                    "      --optim.lr=5e-3 --train.train_iters=200 --train.global_batch_size=8\n"
                    "  cambium finetune --model model --peft lora ia3 --data rows.jsonl --output stack \\\n"
                    "      --optim.lr=1e-3 --tuning.epochs=3 --valid-data valid.jsonl --train.eval_interval=50 \\\n"
                    "      --train.early_stop=3\n"
                    "  cambium finetune --model model --peft lora --loss dpo --data pairs.jsonl --output preferring\n"
                    "  cambium finetune --model model --peft full --data rows.jsonl --output tuned\n"
                    "  cambium finetune --model model --adapter adapter --valid-data valid.jsonl --train.skip_train\n",
        .rows = named->rows,
        .row_count = sizeof rows / sizeof *rows,
        .section_rows = sections,
        .section_row_count = count,
        .section_offset = AT(sections),
        .absent = absent,
        .absent_count = ABSENT,
        .config_flag = "config",
    };
}

/* ---- keys of a loss ---- */

/* Keys that only some losses have. */
enum loss_user { USED_BY_ANSWERS, USED_BY_DPO, USED_BY_SFT };
static const struct loss_key {
    const char *path;
    enum loss_user user;
} loss_keys[] = {{"tuning.beta", USED_BY_ANSWERS},
                 {"tuning.label_smoothing", USED_BY_DPO},
                 {"tuning.sft_weight", USED_BY_DPO},
                 {"tuning.train_on_prompt", USED_BY_SFT},
                 {"data.answers", USED_BY_SFT}};
enum { LOSS_KEYS = sizeof loss_keys / sizeof *loss_keys };

static bool has_key(const struct loss *loss, const struct loss_key *key) {
    if (key->user == USED_BY_DPO)
        return !strcmp(loss->name, "dpo");
    return (key->user == USED_BY_ANSWERS) == (loss->run != NULL);
}

/* Removes the keys that the loss does not have. */
static void drop_loss_rows(const struct options *options, struct config_row *all, size_t *count) {
    for (size_t k = 0; k < LOSS_KEYS; k++)
        for (size_t i = 0; i < *count && !has_key(&loss_table[options->sections.tuning.loss], &loss_keys[k]); i++)
            if (!strcmp(all[i].path, loss_keys[k].path)) {
                memmove(&all[i], &all[i + 1], (*count - i - 1) * sizeof *all);
                --*count;
            }
}

/* ---- run files for other commands ---- */

int finetune_write_run_file(const struct run_config *run, const struct stack *stack, const struct stack_options *peft,
                            struct strbuf *out) {
    struct named_rows named;
    struct options values = {0};
    struct config *defaults = NULL;
    size_t count;
    bool is_answered;
    name_rows(&named);
    struct config_row *sections = section_rows(&named, &count);
    TRY(status_allocated(sections));
    const struct config_command all = describe(&named, sections, count);
    int status = config_parse(&all, 0, NULL, &values, &defaults, &is_answered);
    values.sections.run = *run;
    values.sections.run.checkpoint.save = NULL;
    values.sections.peft = *peft;
    if (run->train.train_iters)
        values.sections.tuning.epochs = 0; /* the iterations decide */
    if (!status) {
        stack_drop_rows(stack, sections, &count);
        drop_loss_rows(&values, sections, &count);
        const struct config_command command = describe(&named, sections, count);
        status = config_dump_text(&command, &values, out);
    }
    free(sections);
    config_free(defaults);
    return status;
}

/* ---- the tuner ---- */

struct tuning {
    struct options *options;
    struct config_row *sections; /* [section_count] rows of the YAML file's sections */
    size_t section_count;
    int ranks;
    struct cluster cluster; /* opened if it was given */
    bool fits_rows;         /* data.seq_length follows from the rows */
    struct train_run run;
    struct tuner_adapters adapters;
    struct tuner tuner;
    struct tuning_options rows;
    size_t row_bytes;               /* memory of the rows */
    size_t reference_bytes;         /* of what the reference model says of them */
    struct chat_template *template; /* renders the rows; NULL: they need none */
    struct tokenizer *tokenizer;
    struct token_buffer prompt_text; /* initial text of virtual tokens */
    struct stack stack;
    struct peft_texts texts; /* the files besides the values */
    struct receipts_maker receipts;
};

/* The output would replace an adapter on which it stands. */
static int check_frozen(const char *output, const struct peft_files *frozen) {
    char place[PATH_MAX], adapter[PATH_MAX];
    size_t length = realpath(output, place) ? strlen(place) : 0; /* 0: it is new */
    for (int i = 0; length && frozen && i < peft_files_count(frozen); i++)
        if (realpath(peft_files_directory(frozen, i), adapter) && !strncmp(place, adapter, length) &&
            (!adapter[length] || adapter[length] == '/'))
            return status_fail(STATUS_USAGE,
                               "--output %s has the adapter %s, which stays frozen: name another directory", output,
                               adapter);
    return STATUS_OK;
}

/* Refuses to write into the base or into another model's directory. With --peft full the output has checkpoints that
 * are models; whose they are is checked when the run is prepared. */
static int check_output(const struct options *options, const struct stack *stack) {
    char found[PATH_MAX], path[PATH_MAX];
    if (stack->is_full) {
        int status = ckpt_check_beside(options->output);
        return status ? status_wrap(status, "--output") : STATUS_OK;
    }
    const char *place = ckpt_resolve_model(options->output, found, sizeof found) ? options->output : found;
    if (!file_join(path, sizeof path, place, "config.json") && file_exists(path))
        return status_fail(STATUS_USAGE, "--output %s holds a model: the adapter needs another directory",
                           options->output);
    TRY(check_frozen(options->output, stack->frozen));
    return peft_check_output(options->output, stack->configs, stack->count);
}

static int check_given(const struct options *options) {
    bool skips = options->sections.run.train.skip_train;
    const struct {
        const char *name;
        bool is_given, is_needed, is_idle;
    } words[] = {{"--model", options->model, true, false},
                 {"--data", options->data.count > 0, !skips, skips},
                 {"--valid-data", options->valid_data.count > 0, skips, false},
                 {"--output", options->output, !skips, skips},
                 {"--init-adapter", options->init_adapter, false, skips},
                 {"--peft", options->peft.count > 0, false, skips}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (words[i].is_needed && !words[i].is_given)
            return status_fail(STATUS_USAGE, "finetune: %s is not given", words[i].name);
        if (words[i].is_idle && words[i].is_given)
            return status_fail(STATUS_USAGE, "%s is for training, which train.skip_train leaves out", words[i].name);
    }
    if (options->load_in && stack_lists_full(&options->peft))
        return status_fail(STATUS_USAGE, "--load-in is for a frozen base, and --peft full trains all weights");
    if (options->init_adapter && stack_lists_full(&options->peft))
        return status_fail(STATUS_USAGE, "--init-adapter does nothing with --peft full");
    if (options->adapters.count && stack_lists_full(&options->peft))
        return status_fail(
            STATUS_USAGE, "--adapter stays frozen, and --peft full trains the model below it: 'cambium merge' writes a "
                          "model with the adapter");
    return STATUS_OK;
}

/* Refuses keys that do nothing with the loss, and a loss that the run cannot have. */
static int check_loss(const struct options *options, const struct config *given) {
    const struct loss *loss = &loss_table[options->sections.tuning.loss];
    for (size_t i = 0; i < LOSS_KEYS; i++)
        if (!has_key(loss, &loss_keys[i]) && config_is_given(given, loss_keys[i].path))
            return status_fail(STATUS_USAGE, "%s does nothing with --loss %s", loss_keys[i].path, loss->name);
    if (loss->has_reference && stack_lists_full(&options->peft))
        return status_fail(STATUS_USAGE,
                           "--loss %s compares with the model before training, and --peft full changes it: an adapter "
                           "or --loss orpo does not",
                           loss->name);
    if (loss->has_shift && options->sections.run.train.global_batch_size == 1)
        return status_fail(STATUS_USAGE,
                           "--loss %s compares the rows of a batch: train.global_batch_size 1, expected at least 2",
                           loss->name);
    return STATUS_OK;
}

/* Refuses keys that do nothing together with others. */
static int check_idle(const struct options *options, const struct config *given, bool by_epochs) {
    bool has_validations = options->valid_data.count > 0;
    if (!by_epochs && config_is_given(given, "tuning.epochs"))
        return status_fail(STATUS_USAGE, "tuning.epochs does nothing with %s",
                           options->sections.run.train.skip_train ? "train.skip_train" : "train.train_iters");
    if (options->sections.run.train.eval_interval && !has_validations)
        return status_fail(STATUS_USAGE, "train.eval_interval does nothing without --valid-data");
    if (!options->sections.run.train.skip_train && has_validations && !options->sections.run.train.eval_interval)
        return status_fail(STATUS_USAGE, "--valid-data does nothing without train.eval_interval");
    return STATUS_OK;
}

/* Chooses the methods to train, or the adapters to evaluate. */
static int choose_stack(const struct options *options, const struct config *given, struct stack *stack) {
    const struct stack_options *keys = &options->sections.peft;
    bool only_evaluates = options->sections.run.train.skip_train;
    const struct stack_base base = {options->model, options->load_in};
    if (only_evaluates)
        return stack_apply(stack, &options->adapters, given, &base);
    int status = options->init_adapter ? stack_take(stack, &options->peft, keys, given, options->init_adapter, &base)
                                       : stack_choose(stack, &options->peft, keys, given);
    return status ? status : stack_freeze(stack, &options->adapters, &base);
}

/* Sets the learning rate that the methods have when none is given, and prints it. */
static void choose_lr(struct options *options, const struct stack *stack) {
    const char *title;
    if (options->sections.run.optim.lr >= 0 || options->sections.run.train.skip_train)
        return;
    options->sections.run.optim.lr = stack_default_lr(stack, &title);
    log_info("optim.lr is %g, the default of %s", options->sections.run.optim.lr, title);
}

static void describe_rows(struct tuning *tuning, const struct options *options) {
    const struct run_config *run = &tuning->run.config;
    const struct stack *stack = &tuning->stack;
    int frozen = stack->frozen ? peft_files_count(stack->frozen) : 0;
    int64_t before = 0, positions = 0;
    for (int i = 0; i < frozen + stack->count; i++) {
        const struct peft_config *config =
            i < frozen ? &peft_files_configs(stack->frozen)[i] : &stack->configs[i - frozen];
        before += peft_config_virtual_tokens(config);
        positions += peft_config_prefix_tokens(config);
    }
    tuning->rows = (struct tuning_options){
        .train = options->data,
        .valid = options->valid_data,
        .tokenizer = tuning->tokenizer,
        .tokenizer_files = tuning->run.tokenizer,
        .form = loss_table[options->sections.tuning.loss].form,
        .template = options->sections.tuning.template,
        .template_timeout = options->sections.tuning.template_timeout,
        .answers = (enum chat_answers)options->sections.tuning.answers,
        .special_tokens = (enum special_tokens)options->sections.tuning.special_tokens,
        .config_eos = model_first_eos(&tuning->run.ends),
        .ends = tuning->run.ends.eos,
        .end_count = tuning->run.ends.count,
        .vocab_size = run->model.vocab_size,
        .fits_rows = tuning->fits_rows,
        .seq_length = tuning->fits_rows ? model_positions(&run->model) : run->data.seq_length,
        .virtual_tokens = before,
        .first_position = positions,
        .row_multiple = run->parallel.sequence_parallel ? run->parallel.tensor_model_parallel_size : 1,
        .has_few_sizes = true, /* products are prepared for a number of rows */
        .truncation = (enum tuning_truncation)options->sections.tuning.truncation_side,
        .is_whole_text = options->sections.tuning.train_on_prompt,
        .is_packed = options->sections.tuning.packing,
        .seed = run->data.seed,
        .samples = run->train.train_iters * run->train.global_batch_size,
    };
}

static int encode_prompt_text(struct tuning *tuning, const char *text) {
    struct tokenizer_encoder *encoder = NULL;
    struct peft_config *peft;
    if (!text)
        return STATUS_OK;
    TRY(peft_find_text_start(tuning->stack.configs, tuning->stack.count, &peft));
    int status = tokenizer_encoder_new(tuning->tokenizer, &encoder);
    THEN(status, tokenizer_encode(encoder, text, strlen(text), TOKENIZER_ADD_SPECIAL, &tuning->prompt_text));
    tokenizer_encoder_free(encoder);
    peft->prompt_tuning_init_ids = tuning->prompt_text.ids;
    peft->prompt_tuning_init_count = (int64_t)tuning->prompt_text.count;
    return status;
}

enum { MANY_ITERATIONS = 1000000000 };

/* Reads the rows to find their template, their memory, the length of the longest, and the iterations of the epochs. */
static int survey_rows(struct options *options, struct tuning *tuning, bool by_epochs) {
    struct tuning_data *data;
    describe_rows(tuning, options);
    tuning->rows.samples = 0;
    tuning->rows.epochs = by_epochs ? options->sections.tuning.epochs : 1;
    TRY(tuning_data_open(&tuning->rows, &data));
    int64_t samples = tuning_data_length(data, SPLIT_TRAIN), batch = tuning->run.config.train.global_batch_size;
    int64_t iterations = by_epochs ? (samples + batch - 1) / batch : tuning->run.config.train.train_iters;
    chat_template_close(tuning->template);
    tuning->template = chat_template_keep(tuning_data_template(data));
    tuning->row_bytes = tuning_data_bytes(data, iterations * batch);
    for (int split = SPLIT_TRAIN; split <= SPLIT_VALID; split++)
        tuning->reference_bytes += references_bytes(&loss_table[options->sections.tuning.loss], data,
                                                    (enum data_split)split, iterations * batch);
    if (tuning->fits_rows) {
        options->sections.run.data.seq_length = tuning_data_seq_length(data);
        log_info("data.seq_length is %lld, the length of the longest row%s",
                 (long long)options->sections.run.data.seq_length,
                 tuning->rows.virtual_tokens + tuning->rows.first_position ? " with its virtual tokens" : "");
    }
    tuning_data_close(data);
    if (by_epochs)
        options->sections.run.train.train_iters = iterations;
    if (!by_epochs && !tuning->fits_rows)
        return STATUS_OK;
    train_run_free(&tuning->run);
    return train_prepare_tuning(&tuning->run, &options->sections.run, options->model);
}

/* Records a template of the rows that is not the tokenizer's own among its files, which each saved model receives. */
static int keep_template(struct tuning *tuning) {
    struct tokenizer_files *files = tuning->run.tokenizer;
    struct strbuf *text = &files->texts[TOKENIZER_TEMPLATE];
    struct chat_template *own = NULL;
    if (!tuning->template)
        return STATUS_OK;
    int status = chat_template_of_tokenizer(files, &own);
    bool is_known = own && chat_template_is_same(own, tuning->template);
    chat_template_close(own);
    if (status || is_known)
        return status;
    strbuf_clear(text);
    strbuf_add_text(text, strbuf_text(chat_template_text(tuning->template)));
    files->is_there[TOKENIZER_TEMPLATE] = true;
    return strbuf_status(text);
}

/* Makes the files besides the values: configurations, the base's digest, the chat template. */
static int make_texts(struct tuning *tuning) {
    struct peft_notes notes = {0};
    if (tuning->stack.is_full)
        return keep_template(tuning);
    int status = peft_note_base(tuning->run.model_directory, tuning->options->load_in, &notes);
    if (tuning->template) {
        snprintf(notes.chat_template, sizeof notes.chat_template, "%s", chat_template_name(tuning->template));
        notes.jinja = strbuf_text(chat_template_text(tuning->template));
    }
    THEN(status, peft_texts_make(tuning->stack.configs, tuning->stack.count, &tuning->run.config.model,
                                 tuning->run.model_directory, &notes, &tuning->texts));
    return status;
}

/* `files` may be NULL. */
static int add_adapter_facts(const struct peft_files *files, struct facts *facts) {
    int status = STATUS_OK;
    for (int i = 0; files && i < peft_files_count(files) && !status; i++)
        status = ckpt_adapter_facts(peft_files_directory(files, i), facts);
    return status;
}

/* Describes the adapters that train. */
static void set_tuner(struct tuning *tuning, const struct options *options) {
    tuning->run.load_in = options->load_in;
    tuning->adapters =
        (struct tuner_adapters){.configs = tuning->stack.configs,
                                .count = tuning->stack.count,
                                .files = options->sections.run.train.skip_train ? tuning->stack.init : NULL,
                                .init = tuning->stack.init,
                                .frozen = tuning->stack.frozen,
                                .model = tuning->run.model_directory};
    tuning->tuner = tuner_of_adapters(&tuning->adapters);
    tuning->tuner.texts = tuning->texts.items;
    tuning->tuner.text_count = tuning->texts.count;
    tuning->tuner.init_directory = options->init_adapter;
    if (tuning->stack.frozen)
        tuning->tuner.frozen = options->adapters;
    tuning->receipts =
        (struct receipts_maker){.run = &tuning->run, .configs = tuning->stack.configs, .count = tuning->stack.count};
    if (!options->sections.run.train.skip_train)
        tuning->tuner.seal = receipts_seal(&tuning->receipts);
    tuning->run.tuner = &tuning->tuner;
}

/* By the digest a resumed run knows other adapters. */
static int digest_frozen(struct tuning *tuning) {
    struct facts facts = FACTS_INIT;
    uint64_t digest = 0;
    int status = add_adapter_facts(tuning->stack.frozen, &facts);
    for (size_t i = 0; i < facts.count; i++)
        digest = digest * 31 + facts.items[i].digest;
    snprintf(tuning->run.frozen_digest, sizeof tuning->run.frozen_digest, "%016llx", (unsigned long long)digest);
    facts_free(&facts);
    return status;
}

static void set_loss(struct tuning *tuning, const struct options *options) {
    tuning->run.loss = &loss_table[options->sections.tuning.loss];
    tuning->run.loss_options = options->sections.tuning.options;
}

/* Describes the resolved run. */
static void set_run(struct tuning *tuning, struct options *options) {
    describe_rows(tuning, options);
    if (!tuning->stack.is_full)
        set_tuner(tuning, options);
    tuning->run.tuning = &tuning->rows;
    tuning->run.tuning_bytes = tuning->row_bytes;
    tuning->run.reference_bytes = tuning->reference_bytes;
    options->sections.run = tuning->run.config; /* resolved */
    options->sections.tuning.epochs = 0;        /* not given: the resolved run has iterations */
}

/* Prepares a plan for another machine, without rows and weights. */
static int prepare_elsewhere(const struct config *given, struct tuning *tuning) {
    struct options *options = tuning->options;
    int64_t iterations = options->sections.run.train.train_iters;
    if (!options->model)
        return status_fail(STATUS_USAGE, "finetune: --model is not given");
    if (options->sections.run.data.seq_length == 0)
        return status_fail(STATUS_USAGE, "with --cluster no rows are read: give --data.seq_length=N");
    int status = choose_stack(options, given, &tuning->stack);
    if (!status)
        choose_lr(options, &tuning->stack);
    options->sections.run.checkpoint.save = options->output;
    THEN(status, training_prepare_elsewhere(&options->target, &options->sections.run, options->model, &tuning->run,
                                            &tuning->cluster, &tuning->ranks));
    TRY(status);
    set_loss(tuning, options);
    if (!tuning->stack.is_full)
        set_tuner(tuning, options);
    options->sections.run = tuning->run.config; /* resolved, but no rows decide its iterations */
    options->sections.run.train.train_iters = iterations;
    if (iterations)
        options->sections.tuning.epochs = 0;
    return STATUS_OK;
}

static int prepare(const struct launch *launch, const struct config *given, void *context) {
    struct tuning *tuning = context;
    struct options *options = tuning->options;
    int status = training_check_target(&options->target, options->is_dry_run);
    if (!status && options->target.cluster)
        return prepare_elsewhere(given, tuning);
    bool skips = options->sections.run.train.skip_train;
    bool by_epochs = options->sections.run.train.train_iters == 0 && !skips;
    THEN(status, launch_ranks(launch, options->ranks, &tuning->ranks));
    if (by_epochs)
        options->sections.run.train.train_iters = MANY_ITERATIONS;
    tuning->fits_rows = options->sections.run.data.seq_length == 0;
    THEN(status, check_given(options));
    THEN_IF(status, !options->is_dry_run, device_find(options->sections.run.device));
    THEN(status, check_idle(options, given, by_epochs));
    THEN(status, check_loss(options, given));
    if (!status)
        log_info("loading %s", options->model);
    THEN(status, choose_stack(options, given, &tuning->stack));
    if (!status)
        choose_lr(options, &tuning->stack);
    THEN_IF(status, !skips, check_output(options, &tuning->stack));
    options->sections.run.checkpoint.save = options->output;
    THEN(status, train_prepare_tuning(&tuning->run, &options->sections.run, options->model));
    if (!status && tuning->run.is_quantised && tuning->stack.is_full)
        status = status_fail(STATUS_USAGE,
                             "%s is quantised, and --peft full trains all weights: 'cambium convert --to model' writes "
                             "a plain model",
                             options->model);
    if (!status && !tuning->run.tokenizer)
        status = status_fail(STATUS_USAGE, "%s has no tokenizer, and tokenizer is not given", options->model);
    THEN(status, tokenizer_open_files(tuning->run.tokenizer, &tuning->tokenizer));
    THEN(status, survey_rows(options, tuning, by_epochs));
    THEN(status, encode_prompt_text(tuning, options->sections.peft.all.prompt_tuning_init_text));
    if (!status)
        set_loss(tuning, options);
    THEN_IF(status, tuning->stack.frozen, digest_frozen(tuning));
    THEN(status, train_resume_tuning(&tuning->run, tuning->stack.is_full));
    THEN_IF(status, !skips, make_texts(tuning));
    if (!status)
        set_run(tuning, options);
    return status;
}

/* Adds facts about the files that the run names. */
static int add_facts(void *context, struct facts *facts) {
    const struct tuning *tuning = context;
    int status = add_adapter_facts(tuning->stack.init, facts);
    THEN(status, add_adapter_facts(tuning->stack.frozen, facts));
    return status ? status : train_facts(&tuning->run, facts);
}

/* ---- the run ---- */

static int export(struct trainer *trainer, const struct train_run *run) {
    const char *output = run->config.checkpoint.save;
    if (!output || trainer_iteration(trainer) == 0) /* stopped before it was trained */
        return STATUS_OK;
    int status = trainer_export(trainer, output, true);
    if (!status)
        log_info("the %s is in %s%s", run->tuner ? "adapter" : "model", output,
                 run->tuner && run->tuner->frozen.count ? "; it applies after the adapters below it" : "");
    return status;
}

static void dump(const void *context) {
    const struct tuning *tuning = context;
    struct options *options = tuning->options;
    struct named_rows named;
    size_t count = tuning->section_count;
    name_rows(&named);
    stack_drop_rows(&tuning->stack, tuning->sections, &count);
    drop_loss_rows(options, tuning->sections, &count);
    const struct config_command command = describe(&named, tuning->sections, count);
    if (options->peft.count)
        options->sections.peft.types = options->peft;
    config_dump(&command, options, stdout);
}

/* Before the trainer is opened: the receipts of the adapters that it reads. */
static int before(struct comm *world, const struct train_run *run, const void *context) {
    const struct tuning *tuning = context;
    const struct job_model model = {.receipts = tuning->options->receipts};
    TRY(tuning->stack.init ? receipts_replay(world, run, &model, tuning->stack.init) : STATUS_OK);
    return tuning->stack.frozen ? receipts_replay(world, run, &model, tuning->stack.frozen) : STATUS_OK;
}

/* When the trainer is closed: receipts into the adapters, then the gap, which loads what was written. */
static int after(struct comm *world, const struct train_run *run, int64_t iteration, bool is_stopped) {
    TRY(receipts_add(world, run));
    return is_stopped ? STATUS_OK : serving_gap_add(world, run, iteration);
}

/* ---- runs for a server ---- */

static void close_all(void *context) {
    struct tuning *tuning = context;
    token_buffer_free(&tuning->prompt_text);
    tokenizer_close(tuning->tokenizer);
    chat_template_close(tuning->template);
    receipts_maker_close(&tuning->receipts);
    peft_texts_free(&tuning->texts);
    stack_free(&tuning->stack);
    cluster_close(&tuning->cluster);
    train_run_free(&tuning->run);
}

struct made {
    struct jobs_run shown; /* first */
    struct options options;
    struct tuning tuning;
    struct named_rows named;
    struct config *given;
};

static void free_made(struct jobs_run *shown) {
    struct made *made = (struct made *)shown;
    if (!made)
        return;
    close_all(&made->tuning);
    config_free(made->given);
    free(made->tuning.sections);
    free(made);
}

static int make(char **words, int count, struct jobs_run **run) {
    const struct launch launch = {.is_first = true};
    struct made *made = calloc(1, sizeof *made);
    bool is_answered = false;
    *run = NULL;
    TRY(status_allocated(made));
    name_rows(&made->named);
    made->tuning.options = &made->options;
    made->tuning.sections = section_rows(&made->named, &made->tuning.section_count);
    int status = status_allocated(made->tuning.sections);
    const struct config_command command = describe(&made->named, made->tuning.sections, made->tuning.section_count);
    log_quiet(true);
    THEN(status, config_parse(&command, count, words, &made->options, &made->given, &is_answered));
    THEN(status, prepare(&launch, made->given, &made->tuning));
    log_quiet(false);
    made->shown = (struct jobs_run){.run = &made->tuning.run,
                                    .adapters = made->tuning.stack.configs,
                                    .adapter_count = made->tuning.stack.count,
                                    .texts = made->tuning.texts.items,
                                    .text_count = made->tuning.texts.count,
                                    .init_directory = made->options.init_adapter};
    if (status)
        free_made(&made->shown);
    else
        *run = &made->shown;
    return status;
}

const struct jobs_maker finetune_maker = {.make = make, .free = free_made};

/* ---- the command ---- */

static int run(struct launch *launch, void *context) {
    const struct tuning *tuning = context;
    return training_launch(
        launch, &(const struct training){.run = &tuning->run,
                                         .ranks = tuning->ranks,
                                         .is_dry_run = tuning->options->is_dry_run,
                                         .cluster = tuning->options->target.cluster ? &tuning->cluster : NULL,
                                         .dump = dump,
                                         .context = tuning,
                                         .before = before,
                                         .finish = export,
                                         .after = after});
}

int command_finetune(int argc, char **argv) {
    struct options options = {0};
    struct tuning tuning = {.options = &options};
    struct named_rows named;
    name_rows(&named);
    tuning.sections = section_rows(&named, &tuning.section_count);
    if (!tuning.sections)
        return command_exit_status(status_no_memory());
    const struct config_command command = describe(&named, tuning.sections, tuning.section_count);
    const struct launch_steps steps = {.command = &command,
                                       .values = &options,
                                       .prepare = prepare,
                                       .add_facts = add_facts,
                                       .run = run,
                                       .close = close_all};
    stop_watch_begin();
    int exit_status = launch_command(&steps, argc, argv, &tuning);
    stop_watch_end();
    free(tuning.sections);
    return exit_status;
}
