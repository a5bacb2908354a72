#include "trainee.h"

static int open_stack(const void *description, const struct model_options *model, struct rank *rank,
                      struct trainee_part *part) {
    const struct trainee_adapters *adapters = description;
    struct peft_options options = {
        .adapters = adapters->configs, .count = adapters->count, .model = model, .trains = true};
    struct peft *peft;
    int status = peft_open(&options, rank, &peft);
    if (!status)
        *part = (struct trainee_part){
            .self = peft, .hooks = peft_hooks(peft), .store = peft_store(peft), .bytes = peft_device_bytes(peft)};
    return status;
}

static void close_stack(void *self) {
    peft_close(self);
}

static int start_stack(void *self, struct model *base, uint64_t seed) {
    int status = peft_allocate(self);
    peft_set_base(self, model_store(base));
    return status ? status : peft_initialise(self, seed);
}

static int begin_stack(void *self) {
    return peft_begin(self);
}

static int end_stack(void *self) {
    return peft_end(self);
}

struct trainee trainee_of_adapters(const struct trainee_adapters *adapters) {
    return (struct trainee){.description = adapters,
                            .open = open_stack,
                            .close = close_stack,
                            .start = start_stack,
                            .begin = begin_stack,
                            .end = end_stack};
}
