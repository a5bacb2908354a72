/* The layers of a pipeline stage and chunk, by Megatron-LM's rules. The first and last stage may have their own
 * numbers. All other stages share the remaining layers equally, and a stage's chunks share its layers equally. Instead,
 * the embedding or the loss may count as a layer, so that the first or the last chunk has one less. A split that does
 * not divide is refused with the nearest values that work, for each number on its own. */
#include "parallel/layout.h"

#define MOST_LAYERS (INT64_MAX - 2) /* so that both ends can be added */

/* Returns the ends that count as layers. One stage has them all in any case. */
static int64_t counted_ends(const struct pipeline_split *split) {
    return split->stages > 1 ? split->counts_embedding + split->counts_loss : 0;
}

/* Returns the layers and counted ends of a stage, all chunks together; only for splits that fit. */
static int64_t stage_layers(const struct pipeline_split *split, int64_t stage) {
    if (stage == 0 && split->first)
        return split->first;
    if (stage == split->stages - 1 && split->last)
        return split->last;
    int64_t others = split->stages - !!split->first - !!split->last;
    return (split->layers + counted_ends(split) - split->first - split->last) / others;
}

bool pipeline_split_fits(const struct pipeline_split *split) {
    int64_t p = split->stages, v = split->chunks, first = split->first, last = split->last;
    bool counts = split->counts_embedding || split->counts_loss;
    if (split->layers < 1 || split->layers > MOST_LAYERS || p < 1 || v < 1 || first < 0 || first > split->layers ||
        last < 0 || last > split->layers || p > (split->layers + counted_ends(split)) / v ||
        (counts && (first || last)))
        return false;
    if (p == 1)
        return v == 1 && !first && !last;
    int64_t others = p - !!first - !!last, rest = split->layers + counted_ends(split) - first - last;
    if (first % v || last % v || rest < 0)
        return false;
    return others ? rest > 0 && rest % (others * v) == 0 : rest == 0;
}

/* Adds "KEY a or b": the nearest values of one number, below and above, with which the split fits. */
static void add_nearest(struct strbuf *text, const struct pipeline_split *split, const char *key, size_t field) {
    enum { FARTHEST = 65536 };
    struct pipeline_split other = *split;
    int64_t *value = (int64_t *)((char *)&other + field), asked = *value, found[2];
    int count = 0;
    if (asked > INT64_MAX - FARTHEST)
        return;
    for (int sign = -1; sign <= 1; sign += 2)
        for (int64_t distance = 1; distance <= FARTHEST; distance++) {
            *value = asked + sign * distance;
            if (*value < 1)
                break;
            if (pipeline_split_fits(&other)) {
                found[count++] = *value;
                break;
            }
        }
    if (!count)
        return;
    strbuf_format(text, "%s %s %lld", text->length ? "," : "", key, (long long)found[0]);
    if (count == 2)
        strbuf_format(text, " or %lld", (long long)found[1]);
}

/* Adds the first stage's number of layers that is nearest to an equal share. */
static void add_uneven(struct strbuf *text, const struct pipeline_split *split) {
    struct pipeline_split other = *split;
    other.first = split->layers / split->stages;
    if (pipeline_split_fits(&other))
        strbuf_format(text, "%s parallel.decoder_first_pipeline_num_layers %lld", text->length ? "," : "",
                      (long long)other.first);
    else
        add_nearest(text, &other, "parallel.decoder_first_pipeline_num_layers", offsetof(struct pipeline_split, first));
}

static void add_alternatives(struct strbuf *text, const struct pipeline_split *split) {
    const struct {
        const char *key;
        size_t field;
        bool is_given;
    } numbers[] = {
        {"parallel.decoder_first_pipeline_num_layers", offsetof(struct pipeline_split, first), split->first > 0},
        {"parallel.decoder_last_pipeline_num_layers", offsetof(struct pipeline_split, last), split->last > 0},
        {"parallel.pipeline_model_parallel_size", offsetof(struct pipeline_split, stages), true},
        {"parallel.virtual_pipeline_model_parallel_size", offsetof(struct pipeline_split, chunks), split->chunks > 1},
        {"model.num_layers", offsetof(struct pipeline_split, layers), true},
    };
    if (!split->first && !counted_ends(split) && split->stages > 1 && split->stages <= split->layers)
        add_uneven(text, split);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].is_given)
            add_nearest(text, split, numbers[i].key, numbers[i].field);
}

int pipeline_split_check(const struct pipeline_split *split) {
    if (pipeline_split_fits(split))
        return STATUS_OK;
    struct strbuf numbers = STRBUF_INIT, nearest = STRBUF_INIT;
    strbuf_format(&numbers, "model.num_layers %lld cannot be spread over parallel.pipeline_model_parallel_size %lld",
                  (long long)split->layers, (long long)split->stages);
    if (split->chunks != 1)
        strbuf_format(&numbers, " x parallel.virtual_pipeline_model_parallel_size %lld", (long long)split->chunks);
    if (split->first)
        strbuf_format(&numbers, ", parallel.decoder_first_pipeline_num_layers %lld", (long long)split->first);
    if (split->last)
        strbuf_format(&numbers, ", parallel.decoder_last_pipeline_num_layers %lld", (long long)split->last);
    for (int end = 0; end < 2; end++)
        if (end ? split->counts_loss : split->counts_embedding)
            strbuf_format(&numbers, ", parallel.account_for_%s_in_pipeline_split%s", end ? "loss" : "embedding",
                          split->first || split->last ? " (with which no stage has its own number)" : "");
    if (split->stages == 1 && (split->chunks > 1 || split->first || split->last))
        strbuf_add_text(&numbers, " (one stage has no chunks, and all layers)");
    add_alternatives(&nearest, split);
    int status = strbuf_status(&numbers);
    THEN(status, strbuf_status(&nearest));
    THEN(status, status_fail(STATUS_USAGE, "%s%s%s", strbuf_text(&numbers),
                             nearest.length ? "; nearest that work:" : "", strbuf_text(&nearest)));
    strbuf_free(&numbers);
    strbuf_free(&nearest);
    return status;
}

int pipeline_layers(const struct pipeline_split *split, int64_t stage, int64_t chunk, int64_t *first, int64_t *count) {
    TRY(pipeline_split_check(split));
    if (stage < 0 || stage >= split->stages || chunk < 0 || chunk >= split->chunks)
        return status_fail(STATUS_USAGE, "chunk %lld of stage %lld: there are %lld stages with %lld chunks each",
                           (long long)chunk, (long long)stage, (long long)split->stages, (long long)split->chunks);
    bool counts_embedding = split->counts_embedding && split->stages > 1;
    bool is_first = stage == 0 && chunk == 0, is_last = stage == split->stages - 1 && chunk == split->chunks - 1;
    *count = stage_layers(split, stage) / split->chunks;
    *first = chunk * ((split->layers + counted_ends(split)) / split->chunks);
    for (int64_t before = 0; before < stage; before++)
        *first += stage_layers(split, before) / split->chunks;
    *first -= counts_embedding && !is_first;
    *count -= (counts_embedding && is_first) + (split->counts_loss && split->stages > 1 && is_last);
    return STATUS_OK;
}
