/* cambium adapter show: what an adapter is. */
#include "commands.h"
#include "launch.h"

#include "base/base.h"
#include "config/config.h"
#include "peft/peft.h"

#include <string.h>

struct options {
    struct config_list directories;
};

static const struct config_command command = {
    .name = "adapter show",
    .synopsis = "cambium adapter show DIR...",
    .description =
        "Prints for each adapter its method, what it changes, its parameters, and its base model. Names tensors that "
        "are transposed, have a wrong length or are not finite.",
    .examples = "  cambium adapter show out/lora\n",
    .takes_words = true,
    .words_offset = offsetof(struct options, directories),
};

static int print_adapter(const struct peft_files *files, int index) {
    const struct peft_config *config = &peft_files_configs(files)[index];
    const struct ckpt_tensors *tensors = peft_files_tensors(files, index);
    struct strbuf text = STRBUF_INIT;
    struct peft_notes notes;
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
    if (*notes.chat_template)
        printf("chat template: %s\n", notes.chat_template);
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
    if (!status && (fflush(stdout) || ferror(stdout)))
        status = status_fail_errno("cannot write to standard output");
    peft_files_close(files);
    return status;
}

int command_adapter(int argc, char **argv) {
    bool is_show = argc && !strcmp(argv[0], "show");
    if (argc == 0 || (!is_show && argv[0][0] != '-'))
        return command_exit_status(status_fail(STATUS_USAGE, "unknown command 'adapter%s%s' (expected '%s')",
                                               argc ? " " : "", argc ? argv[0] : "", command.synopsis));
    return command_run(&command, argc - is_show, argv + is_show, &(struct options){0}, show);
}
