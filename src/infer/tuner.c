#include "infer/tuner.h"

static int open_stack(const void *description, const struct model_options *model, struct rank *rank,
                      struct tuner_part *part) {
    const struct tuner_adapters *adapters = description;
    struct peft_options options = {.adapters = adapters->configs,
                                   .count = adapters->count,
                                   .model = model,
                                   .directory = adapters->model,
                                   .trains = true};
    struct peft *peft;
    int status = peft_open(&options, rank, &peft);
    if (status && adapters->init)
        return peft_explain_base(status, adapters->init, adapters->model);
    if (!status)
        *part = (struct tuner_part){.self = peft,
                                    .hooks = peft_hooks(peft),
                                    .store = peft_store(peft),
                                    .state_table = peft_state_table(peft),
                                    .bytes = peft_device_bytes(peft)};
    return status;
}

static void close_stack(void *self) {
    peft_close(self);
}

static int start_stack(const void *description, void *self, struct base *base, uint64_t seed) {
    const struct tuner_adapters *adapters = description;
    int status = peft_allocate(self);
    peft_set_base(self, base_store(base));
    TRY(status);
    return adapters->files ? peft_load(self, adapters->files) : peft_initialise(self, seed);
}

static int begin_stack(void *self, int64_t sample) {
    return sample == TUNER_NO_DROPOUT ? peft_begin(self) : peft_begin_batch(self, sample);
}

static int end_stack(void *self) {
    return peft_end(self);
}

static int refresh_stack(void *self) {
    return peft_make_tables(self);
}

static int list_parts(void *self, const struct ckpt_array *values, struct ckpt_part parts[CKPT_MAX_PARTS], int *count) {
    return peft_parts(self, values, parts, count);
}

static int load_stack(void *self, const char *directory, const struct ckpt_array *values) {
    struct peft_files *files;
    int status = peft_files_open(&directory, 1, true, &files);
    THEN(status, peft_read(self, files, values));
    peft_files_close(files);
    return status;
}

static int export_stack(void *self, const struct tuner *tuner, const struct ckpt_array *values, const char *directory,
                        bool is_shared, void *seal) {
    struct peft_export export = {.values = values,
                                 .seal = tuner->seal.begin ? tuner->seal.write : NULL,
                                 .seal_context = seal,
                                 .texts = tuner->texts,
                                 .text_count = tuner->text_count,
                                 .directory = directory,
                                 .is_shared = is_shared};
    return peft_export(self, &export);
}

struct tuner tuner_of_adapters(const struct tuner_adapters *adapters) {
    return (struct tuner){.description = adapters,
                          .open = open_stack,
                          .close = close_stack,
                          .start = start_stack,
                          .begin = begin_stack,
                          .end = end_stack,
                          .refresh = refresh_stack,
                          .parts = list_parts,
                          .load = load_stack,
                          .export = export_stack};
}
