/* The learning rates of a run, from its keys. */
#include "train/stepper.h"

struct schedule stepper_schedule(const struct run_config *run) {
    static const enum schedule_decay decays[] = {
        [LR_CONSTANT] = SCHEDULE_CONSTANT, [LR_LINEAR] = SCHEDULE_LINEAR,
        [LR_COSINE] = SCHEDULE_COSINE,     [LR_INVERSE_SQUARE_ROOT] = SCHEDULE_INVERSE_SQUARE_ROOT,
        [LR_WSD] = SCHEDULE_WSD,
    };
    static const enum schedule_wsd wsd_decays[] = {
        [LR_WSD_LINEAR] = SCHEDULE_WSD_LINEAR,
        [LR_WSD_COSINE] = SCHEDULE_WSD_COSINE,
        [LR_WSD_EXPONENTIAL] = SCHEDULE_WSD_EXPONENTIAL,
        [LR_WSD_MINUS_SQRT] = SCHEDULE_WSD_MINUS_SQRT,
    };
    return (struct schedule){
        .decay = decays[run->optim.lr_decay_style],
        .wsd_decay = wsd_decays[run->optim.lr_wsd_decay_style],
        .lr = run->optim.lr,
        .min_lr = run->optim.min_lr,
        .warmup_init = run->optim.lr_warmup_init,
        .warmup_iters = run->optim.lr_warmup_iters,
        .decay_iters = run->optim.lr_decay_iters,
        .wsd_decay_iters = run->optim.lr_wsd_decay_iters,
        .global_batch_size = run->train.global_batch_size,
    };
}
