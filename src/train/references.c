/* The reference model's log-probabilities of rows that come again. Each data rank computes those of its samples, and
 * all ranks exchange them, so they know the same rows and agree when a forward is not needed. */
#include "train-internal.h"

#include <math.h>

size_t references_bytes(const struct loss *loss, const struct tuning_data *data, enum data_split split,
                        int64_t samples) {
    bool has_again = split == SPLIT_TRAIN ? samples > tuning_data_epoch(data, split) : samples > 0;
    if (!loss || !loss->has_reference || !has_again)
        return 0;
    return (size_t)(tuning_data_rows(data, split) * tuning_texts(loss->form)) * sizeof(double);
}

int references_open(struct train_source *source, const struct loss *loss, int64_t samples) {
    for (int split = SPLIT_TRAIN; source->rows && split <= SPLIT_VALID; split++) {
        size_t bytes = references_bytes(loss, source->rows, (enum data_split)split, samples);
        double *values = source->references[split] = bytes ? malloc(bytes) : NULL;
        TRY(status_allocated(values || !bytes));
        for (size_t i = 0; i < bytes / sizeof *values; i++)
            values[i] = NAN;
    }
    return STATUS_OK;
}

void references_close(struct train_source *source) {
    for (int split = 0; split < SPLIT_COUNT; split++)
        free(source->references[split]);
}

enum { EXCHANGED = 256 };
/* Values of a global batch on their way to all ranks. */
struct exchange {
    int64_t count;
    double values[EXCHANGED], *kept[EXCHANGED];
};

/* Sums them: only one rank of a group has a value that is not 0. */
static int flush(struct stepper *stepper, struct exchange *exchange) {
    TRY(stepper_sum(stepper, exchange->values, exchange->count));
    for (int64_t i = 0; i < exchange->count; i++)
        *exchange->kept[i] = exchange->values[i];
    exchange->count = 0;
    return STATUS_OK;
}

/* Visits each text of a global batch in the order of its samples. `kept`: its place among the rows; `here`: its segment
 * on this rank, or NULL. */
static int visit(struct stepper *stepper, const struct train_samples *samples,
                 int (*text)(struct stepper *stepper, void *context, double *kept, double *here), void *context) {
    const struct train_source *source = stepper->source;
    const struct comm *group = stepper->rank->data;
    int64_t size = stepper->config->train.micro_batch_size, texts = tuning_texts(stepper->loss->form);
    for (int64_t i = 0; i < stepper->micro_count * group->size; i++) {
        int64_t m = i / group->size, first = gpt_batch_first(samples->first, m, size, i % group->size, group->size);
        double *here = i % group->size == group->rank ? stepper_references(stepper, m) : NULL;
        for (int64_t k = first; k < first + size; k++) {
            const uint32_t *packed;
            int64_t row, rows = tuning_data_sample(source->rows, samples->split, k, &packed, &row);
            for (int64_t t = 0; t < rows * texts; t++, here += here != NULL)
                TRY(text(stepper, context,
                         source->references[samples->split] + (packed ? packed[t / texts] : row) * texts + t % texts,
                         here));
        }
    }
    return STATUS_OK;
}

static int count_unknown(struct stepper *stepper, void *context, double *kept, double *here) {
    *(int64_t *)context += isnan(*kept);
    return STATUS_OK;
}

static int take(struct stepper *stepper, void *context, double *kept, double *here) {
    if (here)
        *here = *kept;
    return STATUS_OK;
}

static int give(struct stepper *stepper, void *context, double *kept, double *here) {
    struct exchange *exchange = context;
    bool has_head = stepper->rank->place.pipeline + 1 == stepper->rank->grid.pipeline;
    exchange->values[exchange->count] = here && has_head ? *here : 0;
    exchange->kept[exchange->count++] = kept;
    return exchange->count == EXCHANGED ? flush(stepper, exchange) : STATUS_OK;
}

int references_find(struct stepper *stepper, const struct train_samples *samples, bool *are_known) {
    int64_t unknown = 0;
    *are_known = false;
    if (!stepper->source->references[samples->split])
        return STATUS_OK;
    TRY(visit(stepper, samples, count_unknown, &unknown));
    *are_known = !unknown;
    return unknown ? STATUS_OK : visit(stepper, samples, take, NULL);
}

int references_keep(struct stepper *stepper, const struct train_samples *samples) {
    struct exchange exchange = {0};
    if (!stepper->source->references[samples->split])
        return STATUS_OK;
    int status = visit(stepper, samples, give, &exchange);
    return status || !exchange.count ? status : flush(stepper, &exchange);
}
