/* The run files of cambium finetune, for other commands; and runs prepared from its options, for a server. */
#pragma once

#include "stack.h"

#include "base/base.h"
#include "config/run.h"
#include "serve/jobs.h"
#include "train/loss.h"

/* The sections of a run file. Those that pretrain has too come first. */
struct finetune_sections {
    struct run_config run;
    struct stack_options peft;
    struct {
        const char *template;
        double template_timeout;
        int loss; /* index into loss_table */
        struct loss_options options;
        int answers, truncation_side, special_tokens;
        bool train_on_prompt, packing;
        int64_t epochs;
    } tuning;
};
/* Writes the rows of keys that concern rows to train on, and returns their number. `rows` may be NULL. */
size_t finetune_tuning_rows(struct config_row *rows);

/* Adds a run file of cambium finetune with its keys of a resolved `run` and of `peft`; others have their defaults. The
 * stack was chosen from `peft` and its types. STATUS_USAGE, STATUS_MEMORY. */
int finetune_write_run_file(const struct run_config *run, const struct stack *stack, const struct stack_options *peft,
                            struct strbuf *out);

/* Prepares what `cambium finetune` would run, without running it. */
extern const struct jobs_maker finetune_maker;
