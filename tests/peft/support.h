/* A small frozen base with a stack on it, on one rank or on several of a grid. The trained parameters have values that
 * are neutral nowhere, and are the same under every layout. */
#pragma once

#include "model/support.h"
#include "peft/peft.h"
#include "support/passes.h"

/* The lists of a configuration. */
#define LIST(...)                                                                                                      \
    { (const char *[]){__VA_ARGS__}, sizeof((const char *[]){__VA_ARGS__}) / sizeof(const char *) }
#define EVERYTHING LIST("c_attn", "c_proj", "c_fc")

enum { TUNED_T = 8, TUNED_SAMPLES = 3, TUNED_ROWS = TUNED_T * TUNED_SAMPLES, TUNED_VOCAB = TEST_VOCAB };

struct tuned_options {
    const struct peft_config *adapters;
    int count;
    struct model_recompute recompute;
    bool has_dropout; /* the base's, and the pass's */
    enum dtype dtype;
    struct model_fp8_options fp8;
    const struct model_config *base;    /* NULL: tuned_base */
    const struct storage *storage;      /* of the base; NULL: whole */
    int (*fill)(void *context, int id); /* gives a storage with needs_fill its values, in place of draws */
    void *fill_context;
    int chunk_count; /* of the stage; 0: all layers in one */
    struct model_chunk chunks[2];
};

struct tuned {
    struct rank *rank;
    struct peft *peft;
    struct base *base;
    struct training_runner *model;
    struct param_store *store;
};

static inline struct model_config tuned_base(bool has_dropout) {
    struct model_config config = test_config(2, TUNED_T);
    config.hidden_dropout = config.embedding_dropout = has_dropout ? 0.1 : 0;
    config.attention_dropout = has_dropout ? 0.2 : 0;
    return config;
}

static inline float tuned_draw(int id, int64_t element) {
    return (float)rng_unit(philox(11, (uint32_t)element, (uint32_t)id, 0, 0).word[0]) - 0.5f;
}

/* Adds draws to every value of an fp32 store; keyed by the elements of the whole parameters. */
static inline int tuned_shake(struct param_store *store, struct stream *stream, float size) {
    struct test_values all = test_values(store, stream);
    for (int id = 0; id < store->map.table->count; id++) {
        struct param_rect rects[PARAM_MAX_SLICES];
        int count = param_part_rects(&store->map.part, store->map.table, id, rects);
        float *values = all.weights + store->map.places[id].offset;
        for (int r = 0; r < count; r++)
            for (int64_t y = 0; y < rects[r].rows; y++)
                for (int64_t x = 0; x < rects[r].columns; x++)
                    values[(rects[r].local_row + y) * rects[r].columns + x] +=
                        size *
                        tuned_draw(id, (rects[r].row + y) * store->map.table->rows[id].shape[1] + rects[r].column + x);
    }
    return test_values_put(&all, stream);
}

/* On a fresh rank. */
static inline int tuned_open(struct tuned *t, const struct tuned_options *o, struct rank *rank) {
    struct model_options options = {.base.config = o->base ? *o->base : tuned_base(o->has_dropout),
                                    .base.dtype = o->dtype,
                                    .train.recompute = o->recompute,
                                    .train.fp8 = o->fp8,
                                    .base.chunk_count = o->chunk_count,
                                    .base.chunks = {o->chunks[0], o->chunks[1]},
                                    .train.stashes = o->chunk_count,
                                    .base.storage = o->storage,
                                    .max_rows = TUNED_ROWS};
    struct peft_options stack = {.adapters = o->adapters, .count = o->count, .model = &options, .trains = true};
    *t = (struct tuned){.rank = rank};
    int status = peft_open(&stack, rank, &t->peft);
    if (status)
        return status;
    t->store = peft_store(t->peft);
    options.hooks = peft_hooks(t->peft);
    status = test_open_training(&options, rank, NULL, &t->base, &t->model);
    if (!status)
        status = peft_allocate(t->peft);
    if (!status)
        status = o->fill ? base_fill(t->base, (struct param_fill){.fill = o->fill, .context = o->fill_context})
                         : base_initialise(t->base, 77);
    if (!status && o->dtype == DTYPE_F32 && !o->fill)
        status = tuned_shake(base_store(t->base), rank->exec.stream, 0.1f);
    if (!status)
        peft_set_base(t->peft, base_store(t->base));
    return status ? status : peft_initialise(t->peft, 5);
}

static inline void tuned_close(struct tuned *t) {
    test_close_training(&t->base, &t->model);
    peft_close(t->peft);
}

static inline struct model_batch tuned_batch(void) {
    return test_batch(TUNED_SAMPLES, TUNED_T, TUNED_VOCAB, 0, NULL);
}

/* A pass over the batch, with what peft_begin computed before. */
static inline int tuned_pass(struct tuned *t, bool has_dropout, double *loss) {
    struct model_batch batch = tuned_batch();
    struct model_pass pass = {.is_first_micro_batch = true, .is_last_micro_batch = true, .has_dropout = has_dropout};
    int status = test_train_step(t->model, &batch, &pass);
    return status ? status : model_loss(t->model, loss);
}

/* The loss of one batch, and gradients in the store, those of all tensor ranks together. */
static inline int tuned_run(struct tuned *t, bool has_dropout, double *loss) {
    int status = peft_begin(t->peft);
    if (!status)
        status = tuned_pass(t, has_dropout, loss);
    if (!status)
        status = peft_end(t->peft);
    for (int i = 0; i < t->store->map.table->count && !status; i++)
        if (t->store->map.table->rows[i].sums_over_tensor && param_trains(t->store, i))
            status = rank_sum(t->rank, RANK_TENSOR, param_gradient(t->store, i), param_local_elements(t->store, i),
                              DTYPE_F32);
    return status;
}
