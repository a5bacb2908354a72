/* cambium adapter show: what an adapter is. cambium adapter receipt: proves one that has no receipt from then on. */
#include "commands.h"
#include "model_arguments.h"

#include "base/base.h"
#include "config/run.h"
#include "infer/receipt.h"
#include "jobs/receipts.h"
#include "peft/peft.h"

struct options {
    struct config_list directories;
};

static const struct config_command command = {
    .name = "adapter show",
    .synopsis = "cambium adapter show DIR...",
    .description =
        "Prints for each adapter its method, what it changes, its parameters, its base model, and its receipt. Names "
        "tensors that are transposed, have a wrong length, are not finite, or are not those of the receipt.",
    .examples = "  cambium adapter show out/lora\n",
    .takes_words = true,
    .words_offset = offsetof(struct options, directories),
};

static int print_adapter(const struct peft_files *files, int index) {
    const struct peft_config *config = &peft_files_configs(files)[index];
    const struct ckpt_tensors *tensors = peft_files_tensors(files, index);
    struct strbuf text = STRBUF_INIT;
    struct peft_notes notes;
    struct receipt receipt;
    bool has_receipt;
    int status = peft_files_notes(files, index, &notes);
    THEN(status, peft_show(config, &text));
    if (status) {
        strbuf_free(&text);
        return status;
    }
    printf("%sadapter: %s\n", index ? "\n" : "", peft_files_directory(files, index));
    fputs(strbuf_text(&text), stdout);
    strbuf_free(&text);
    printf("parameters: %lld in %zu tensor%s, %s\n", (long long)ckpt_elements(tensors), ckpt_count(tensors),
           ckpt_count(tensors) == 1 ? "" : "s", dtype_name(ckpt_dtype(tensors)));
    printf("base: %s\n", config->base_name ? config->base_name : "not recorded");
    printf("base digest: %s\n", *notes.base_digest ? notes.base_digest : "not recorded");
    if (*notes.quantization.method) {
        char bits[PEFT_QUANTIZATION_BYTES];
        peft_quantization_text(&notes.quantization, bits);
        printf("base quantization: %s\n", bits);
    }
    if (*notes.chat_template)
        printf("chat template: %s\n", notes.chat_template);
    TRY(receipt_check_file(files, index, &has_receipt, &receipt));
    if (has_receipt)
        printf("receipt: of cambium %s, in %s on %s (%s), %lld tensor rank%s; the adapter has its digests\n",
               receipt.version, receipt.run.precision, receipt.run.device, receipt.run.level,
               (long long)receipt.run.tensor_parallel, receipt.run.tensor_parallel == 1 ? "" : "s");
    else
        printf("receipt: none\n");
    return STATUS_OK;
}

static int show(const void *values, const struct config *given) {
    const struct options *options = values;
    struct peft_files *files = NULL;
    if (!options->directories.count)
        return status_fail(STATUS_USAGE, "adapter show: no directory is given");
    TRY(peft_files_open(options->directories.items, options->directories.count, false, &files));
    int status = STATUS_OK;
    for (int i = 0; !status && i < peft_files_count(files); i++) {
        status = peft_check_shapes(files, i);
        THEN(status, ckpt_check_finite(peft_files_tensors(files, i)));
    }
    for (int i = 0; !status && i < peft_files_count(files); i++)
        status = print_adapter(files, i);
    THEN_IF(status, (fflush(stdout) || ferror(stdout)), status_fail_errno("cannot write to standard output"));
    peft_files_close(files);
    return status;
}

/* ---- receipts ---- */

struct receipt_command {
    struct job_model base; /* first, for model_facts */
    struct config_list directories;
    struct receipts_job job;
};

#define AT(field) offsetof(struct receipt_command, field)
static const struct config_row receipt_rows[] = {
    MODEL_ROW(AT(base)),
    MODEL_DEVICE_ROW(AT(base)),
    MODEL_COMPUTE_ROWS(AT(base)),
    MODEL_RANKS_ROW(AT(base)),
    MODEL_LAYOUT_ROW(AT(base), tensor, "tensor_model_parallel_size", "1", 1, "ranks that share each layer"),
};

static const struct config_command receipt_command = {
    .name = "adapter receipt",
    .synopsis = "cambium adapter receipt DIR... --model PATH [OPTIONS]",
    .description = "Writes " PEFT_RECEIPT_FILE " into directories of adapters that have none: digests of the base and "
                   "of the adapter, and golden log-probabilities, which are compared at each load from then on. "
                   "Receipts are never overwritten.",
    .examples = "  cambium adapter receipt adapters/from-peft --model model\n",
    .rows = receipt_rows,
    .row_count = sizeof receipt_rows / sizeof *receipt_rows,
    .takes_words = true,
    .words_offset = AT(directories),
};

static int prepare_receipts(const struct launch *launch, const struct config *config, void *context) {
    struct receipt_command *c = context;
    (void)config;
    if (!c->directories.count)
        return status_fail(STATUS_USAGE, "adapter receipt: no directory is given");
    c->base.pipeline = 1;
    c->job.model = &c->base;
    TRY(peft_find(c->directories.items, c->directories.count, &c->job.directories, &c->job.count));
    for (size_t i = 0; i < c->job.count; i++)
        if (receipt_is_in(c->job.directories[i]))
            return status_fail(STATUS_INVALID, "%s has a receipt: it is not overwritten", c->job.directories[i]);
    return model_grid(&c->base, launch, false);
}

static int write_receipts(struct launch *launch, void *context) {
    struct receipt_command *c = context;
    return launch_run(launch, rank_grid_size(&c->base.grid), receipts_job_run, &c->job);
}

static void close_receipts(void *context) {
    struct receipt_command *c = context;
    if (c->job.directories)
        file_list_free(c->job.directories, c->job.count);
}

static int receipt(int argc, char **argv) {
    struct receipt_command values = {0};
    const struct launch_steps steps = {.command = &receipt_command,
                                       .values = &values,
                                       .watches = true,
                                       .prepare = prepare_receipts,
                                       .add_facts = model_facts,
                                       .run = write_receipts,
                                       .close = close_receipts};
    return launch_command(&steps, argc, argv, &values);
}

int command_adapter(int argc, char **argv) {
    bool is_show = argc && !strcmp(argv[0], "show");
    if (argc && !strcmp(argv[0], "receipt"))
        return receipt(argc - 1, argv + 1);
    if (argc == 0 || (!is_show && argv[0][0] != '-'))
        return command_exit_status(status_fail(STATUS_USAGE,
                                               "unknown command 'adapter%s%s' (expected 'show' or "
                                               "'receipt')",
                                               argc ? " " : "", argc ? argv[0] : ""));
    return command_run(&command, argc - is_show, argv + is_show, &(struct options){0}, show);
}
