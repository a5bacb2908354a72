/* A small text and a small run over it. */
#pragma once

#include "train/plan.h"
#include "train/train.h"

#include "data/data.h"
#include "support/device.h"
#include "support/test.h"
#include "support/tiny_model.h"

enum { VOCAB = 50, S = 24 };
static const int32_t EOD = 0;

static inline char *write_text(void) {
    char *directory = test_directory(), *prefix;
    assert_true(asprintf(&prefix, "%s/text", directory) > 0);
    struct indexed_writer writer;
    test_ok(indexed_writer_open(&writer, prefix, TOKEN_U16, VOCAB));
    for (uint32_t d = 0; d < 50; d++) {
        int32_t tokens[40], count = 8 + (int32_t)(philox(3, d, 0, 0, (uint32_t)RNG_TEST << 24).word[0] % 30);
        for (int32_t i = 0; i < count; i++)
            tokens[i] = 1 + (int32_t)((d * 7 + (uint32_t)i) % (VOCAB - 1));
        tokens[count] = EOD;
        test_ok(indexed_writer_add_sequence(&writer, tokens, count + 1));
        test_ok(indexed_writer_end_document(&writer));
    }
    test_ok(indexed_writer_commit(&writer));
    free(directory);
    return prefix;
}

static inline struct train_run make_run(const char **prefix, int precision, int64_t micro_batch_size) {
    struct train_run run = {.ends = {.count = 1, .eos = {EOD}}};
    run.config = (struct run_config){
        .device = test_device(),
        .model = tiny_model(
            &(const struct tiny_model){.layers = 2, .hidden = 32, .heads = 2, .vocab = VOCAB, .init_std = 0.02}),
        .data = {.data_path = {.items = prefix, .count = 1}, .seq_length = S, .seed = 1234, .split = "80,20,0"},
        .train = {.train_iters = 20,
                  .micro_batch_size = micro_batch_size,
                  .global_batch_size = 6,
                  .seed = 1,
                  .eval_interval = 5,
                  .eval_iters = 2,
                  .precision = precision},
        .optim =
            {.lr = 1e-2, .weight_decay = 0.1, .clip_grad = 1, .adam_beta1 = 0.9, .adam_beta2 = 0.99, .adam_eps = 1e-8},
        .parallel = {.tensor_model_parallel_size = 1,
                     .pipeline_model_parallel_size = 1,
                     .virtual_pipeline_model_parallel_size = 1,
                     .context_parallel_size = 1,
                     .expert_model_parallel_size = 1},
        .log = {.log_interval = 1},
    };
    run.config.model.hidden_dropout = run.config.model.attention_dropout = 0.1;
    run.config.model.embedding_dropout = -1;
    test_ok(run_config_resolve(&run.config));
    return run;
}

/* Opens the trainer of a run on a rank, calls `use` with it, and closes it. A failure ends the run of all ranks. */
static inline int use_trainer(const struct train_run *run, struct comm *world,
                              int (*use)(struct comm *world, struct trainer *trainer, void *context), void *context) {
    struct trainer *trainer;
    log_quiet(true);
    int status = trainer_open(run, world, &trainer);
    if (!status)
        status = use(world, trainer, context);
    if (status)
        comm_abort(world, status_text());
    trainer_close(trainer);
    return status;
}
