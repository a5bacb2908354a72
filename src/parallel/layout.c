/* Checks of layouts. Every rule says that one number is a multiple of another. The search for the nearest layouts that
 * work tries the same rules on each way to divide the ranks. */
#include "parallel/layout.h"

#include <math.h>

enum { MOST_RULES = 6, NEAREST_LAYOUTS = 3, FARTHEST_RANKS = 256 };

/* `value` must be a multiple of `divisor`; with `is_either`, the reverse is allowed, too. */
struct rule {
    const char *name;
    int64_t value;
    const char *divisor_name;
    int64_t divisor;
    bool is_either;
};

static bool is_kept(const struct rule *rule) {
    return rule->value % rule->divisor == 0 || (rule->is_either && rule->divisor % rule->value == 0);
}

static int rules_of(const struct parallel_layout *layout, struct rule rules[MOST_RULES]) {
    const char *tensor = "parallel.tensor_model_parallel_size";
    int64_t t = layout->grid.tensor;
    int count = 0;
    rules[count++] = (struct rule){"model.num_attention_heads", layout->heads, tensor, t, false};
    rules[count++] = (struct rule){"model.num_query_groups", layout->query_groups, tensor, t, true};
    rules[count++] = (struct rule){"model.ffn_hidden_size", layout->ffn_hidden, tensor, t, false};
    if (layout->vocab)
        rules[count++] = (struct rule){"the vocabulary's table of rows", layout->vocab, tensor, t, false};
    if (layout->sequence_parallel)
        rules[count++] = (struct rule){"data.seq_length (sequence_parallel)", layout->seq_length, tensor, t, false};
    if (layout->global_batch)
        rules[count++] = (struct rule){"train.global_batch_size", layout->global_batch,
                                       "train.micro_batch_size x data-parallel ranks",
                                       layout->micro_batch * layout->grid.data, false};
    return count;
}

static struct pipeline_split split_of(const struct parallel_layout *layout) {
    return (struct pipeline_split){.layers = layout->layers,
                                   .stages = layout->grid.pipeline,
                                   .chunks = layout->chunks,
                                   .first = layout->first,
                                   .last = layout->last,
                                   .counts_embedding = layout->counts_embedding,
                                   .counts_loss = layout->counts_loss};
}

const char *parallel_layout_obstacle(const struct parallel_layout *layout) {
    struct rule rules[MOST_RULES];
    int count = rules_of(layout, rules);
    for (int i = 0; i < count; i++)
        if (!is_kept(&rules[i]))
            return rules[i].name;
    struct pipeline_split split = split_of(layout);
    return !pipeline_split_fits(&split)                    ? "model.num_layers"
           : layout->is_one_model && layout->grid.data > 1 ? "data-parallel ranks"
                                                           : NULL;
}

struct candidate {
    struct rank_grid grid;
    double distance; /* in factors of 2 of the tensor and pipeline sizes */
};

/* Finds the nearest layouts of `ranks` ranks that work, nearest first; returns their number. */
static int nearest_layouts(const struct parallel_layout *layout, int ranks, struct candidate found[NEAREST_LAYOUTS]) {
    struct parallel_layout other = *layout;
    int fixed = layout->grid.context * layout->grid.expert, count = 0;
    if (ranks % fixed)
        return 0;
    for (int t = 1; t <= ranks / fixed; t++) {
        for (int p = 1; ranks / fixed % t == 0 && p <= ranks / fixed / t && p <= layout->layers; p++) {
            other.grid.tensor = t;
            other.grid.pipeline = p;
            other.grid.data = ranks / fixed / t / p;
            if (ranks / fixed / t % p || parallel_layout_obstacle(&other))
                continue;
            struct candidate new = {.grid = other.grid};
            new.distance = fabs(log2((double)t / layout->grid.tensor)) + fabs(log2((double)p / layout->grid.pipeline));
            int at = count < NEAREST_LAYOUTS ? count++ : NEAREST_LAYOUTS;
            for (; at > 0 && new.distance < found[at - 1].distance; at--)
                if (at < NEAREST_LAYOUTS)
                    found[at] = found[at - 1];
            if (at < NEAREST_LAYOUTS)
                found[at] = new;
        }
    }
    return count;
}

/* Adds "; of N ranks, these work: ...", N the number of ranks or the nearest that has a layout. */
static void add_nearest(struct strbuf *text, const struct parallel_layout *layout) {
    struct candidate found[NEAREST_LAYOUTS];
    int ranks = rank_grid_size(&layout->grid), count = nearest_layouts(layout, ranks, found);
    for (int distance = 1; !count && distance <= FARTHEST_RANKS; distance++)
        for (int sign = -1; !count && sign <= 1; sign += 2)
            if (rank_grid_size(&layout->grid) + sign * distance >= 1) {
                ranks = rank_grid_size(&layout->grid) + sign * distance;
                count = nearest_layouts(layout, ranks, found);
            }
    if (!count)
        return;
    strbuf_format(text, "; nearest that work%s %d ranks:",
                  ranks == rank_grid_size(&layout->grid) ? " with the same" : ", with", ranks);
    for (int i = 0; i < count; i++)
        strbuf_format(text, "%s tensor %d pipeline %d data %d", i ? "," : "", found[i].grid.tensor,
                      found[i].grid.pipeline, found[i].grid.data);
}

/* Adds the first rule that is broken, and the multiples around the value. */
static bool add_broken_rule(struct strbuf *text, const struct parallel_layout *layout) {
    struct rule rules[MOST_RULES];
    int count = rules_of(layout, rules);
    for (int i = 0; i < count; i++) {
        int64_t value = rules[i].value, divisor = rules[i].divisor, below = value - value % divisor;
        if (is_kept(&rules[i]))
            continue;
        strbuf_format(text, "%s %lld is not divisible by %s %lld%s", rules[i].name, (long long)value,
                      rules[i].divisor_name, (long long)divisor, rules[i].is_either ? ", nor that by it" : "");
        if (below)
            strbuf_format(text, " (%lld and %lld are)", (long long)below, (long long)(below + divisor));
        else
            strbuf_format(text, " (%lld is)", (long long)divisor);
        return true;
    }
    if (!layout->is_one_model || layout->grid.data == 1)
        return false;
    strbuf_format(text,
                  "%d ranks with parallel.tensor_model_parallel_size %d and parallel.pipeline_model_parallel_size %d "
                  "would be data parallel, and there is but one piece of work",
                  rank_grid_size(&layout->grid), layout->grid.tensor, layout->grid.pipeline);
    return true;
}

int parallel_layout_check(const struct parallel_layout *layout) {
    if (!parallel_layout_obstacle(layout))
        return STATUS_OK;
    struct strbuf text = STRBUF_INIT;
    if (!add_broken_rule(&text, layout)) {
        struct pipeline_split split = split_of(layout);
        int status = pipeline_split_check(&split);
        if (status != STATUS_USAGE)
            return status;
        strbuf_add_text(&text, status_text());
    }
    add_nearest(&text, layout);
    int status = strbuf_status(&text);
    THEN(status, status_fail(STATUS_USAGE, "%s", strbuf_text(&text)));
    strbuf_free(&text);
    return status;
}
