/* Serving: plans of engines, and their steps in seconds. */
#include "planner/serve.h"

#include <math.h>

enum { MOST_BATCH = 256 };

/* The stack of 2022 computes all prompts of a batch in one step. */
static bool is_2022(const struct cluster *cluster) {
    return cluster->serve == CLUSTER_SERVES_FASTERTRANSFORMER_2022;
}

/* ---- work ---- */

/* Returns the maximum number of rows of a step. A batch's further tokens take one step. */
static int64_t step_rows(const struct serve_layout *layout, const struct cluster *cluster) {
    int64_t rows = layout->step_rows ? layout->step_rows : SERVE_STEP_ROWS;
    return is_2022(cluster) ? layout->batch * layout->input_len : rows > layout->batch ? rows : layout->batch;
}

static struct engine_options options_of(const struct model_config *model, const struct serve_layout *layout,
                                        const struct cluster *cluster) {
    int64_t texts = layout->input_len + layout->output_len;
    return (struct engine_options){
        .random = model,
        .encoded = layout->encoded,
        .grid = {layout->tensor, 1, 1, 1, layout->pipeline},
        .load_in = layout->load_in,
        .precision = layout->precision,
        .device = cluster->kind,
        .threads = 1,
        .max_rows = step_rows(layout, cluster),
        .max_logit_rows = layout->batch,
        .max_sequences = layout->batch,
        .max_positions = texts,
        .cache_tokens = layout->batch * (texts + 16),
    };
}

/* Finds the memory of the adapters at a rank: an image of each. They are of the first method, which is the default. */
static int plan_adapters(const struct serve_layout *layout, int number, struct engine_options *options,
                         struct serve_work *work) {
    const struct peft_config adapter = {
        .r = layout->adapter_rank, .lora_alpha = (double)layout->adapter_rank, .loraplus_lr_ratio = 1};
    size_t bytes = 0;
    options->adapter_memory = 0;
    int status = layout->adapters ? engine_plan_image(options, number, &adapter, &bytes) : STATUS_OK;
    options->adapter_memory = bytes * (size_t)layout->adapters;
    work->image_bytes = fmax(work->image_bytes, (double)bytes);
    return status;
}

int serve_work_make(const struct model_config *model, const struct serve_layout *layout, const struct cluster *cluster,
                    struct serve_work *work) {
    struct engine_options options = options_of(model, layout, cluster);
    double texts = (double)(layout->input_len + layout->output_len);
    int64_t rows = layout->batch * layout->input_len, most = options.max_rows, steps = (rows + most - 1) / most;
    const struct model_step_shape shapes[] = {
        {.rows = (rows + steps - 1) / steps,
         .logit_rows = (layout->batch + steps - 1) / steps,
         .seen = (double)(layout->input_len + 1) / 2},
        {.rows = layout->batch, .logit_rows = layout->batch, .seen = texts - (double)layout->output_len / 2},
    };
    int status = STATUS_OK;
    *work = (struct serve_work){.layout = *layout,
                                .prompt_steps = (double)steps,
                                .layers = (double)model->num_layers / layout->pipeline,
                                .dtype = precision_dtype(layout->precision)};
    for (int end = 0; end < (layout->pipeline > 1 ? 2 : 1) && !status; end++) {
        struct engine_plan plan;
        struct work_list lists[2] = {{0}, {0}};
        int number = end * (layout->pipeline - 1) * layout->tensor;
        status = plan_adapters(layout, number, &options, work);
        THEN(status, engine_plan_work(&options, number, shapes, 2, &plan, lists));
        work->prompts[end] = lists[0];
        work->token[end] = lists[1];
        if (!status && engine_plan_device_bytes(&plan) > engine_plan_device_bytes(&work->plan))
            work->plan = plan;
    }
    if (status)
        serve_work_free(work);
    return status;
}

void serve_work_free(struct serve_work *work) {
    for (int end = 0; end < 2; end++) {
        work_free(&work->prompts[end]);
        work_free(&work->token[end]);
    }
}

/* ---- seconds ---- */

/* Returns the seconds in which bytes are read and multiplied with. */
static double both_seconds(double moved, double products, const struct cluster *cluster) {
    double seen = fmax(1 - cluster->achieved[CLUSTER_SERVE_HIDDEN].value, 0);
    return fmax(moved, products) + seen * fmin(moved, products);
}

static bool attends(const struct work_item *item) {
    if (item->op == OP_COUNT)
        return false;
    switch (op_facts[item->op].cost) {
    case OP_ATTENDS:
    case OP_ATTENDS_PAGES:
        return true;
    case OP_MOVES:
    case OP_MULTIPLIES:
        return false;
    }
    return false;
}

/* `together` rows read the same pages at once, as those of a prompt do. */
static double operation_seconds(const struct work_item *item, const struct cluster *cluster, int precision,
                                double together) {
    const struct op_work *w = &item->work;
    bool is_attention = attends(item); /* its shape is rows, heads, and size of a head */
    double least = INFINITY, share = cluster->achieved[CLUSTER_SERVE_MEMORY].value, bytes = w->bytes;
    if (is_attention) { /* caches that keep the weights from step to step have no place for the pages */
        share = fmin(share, 1);
        bytes += w->lasting / together - w->lasting;
    }
    for (int i = is_attention ? 2 : 1; i < 3; i++) /* few rows make a product wait for memory, which is counted */
        least = w->shape[i] > 0 && (double)w->shape[i] < least ? (double)w->shape[i] : least;
    double half = cluster->achieved[CLUSTER_SERVE_SMALL_DIMENSION].value;
    double peak = is_attention ? cluster_paged_attention_peak(cluster, precision) : cluster_peak(cluster, precision);
    double rate = peak * cluster->achieved[CLUSTER_SERVE_PRODUCTS].value;
    double products = w->flops > 0 ? w->flops * (1 + half / least) / rate : 0;
    return both_seconds(bytes / (cluster->memory_bandwidth.value * share), products, cluster);
}

static double sum_seconds(const struct work_item *item, const struct cluster *cluster) {
    double passes = item->message == WORK_ALL_REDUCE ? 2 : 1, ranks = item->ranks;
    bool is_within = item->ranks <= cluster->per_node;
    double bandwidth = is_within ? cluster->node_bandwidth.value : cluster->network_bandwidth.value;
    return cluster->achieved[CLUSTER_SERVE_SUM].value + cluster->achieved[CLUSTER_SERVE_SUM_RANK].value * (ranks - 2) +
           passes * (ranks - 1) / ranks * item->work.bytes / bandwidth;
}

/* Returns the seconds in which a step of `rows` rows reads its adapters and multiplies with them. */
static double adapter_seconds(const struct serve_work *work, const struct cluster *cluster, double rows) {
    double used = fmin((double)work->layout.adapters, (double)work->layout.batch);
    double flops = 2 * rows * work->image_bytes / (double)dtype_bytes(work->dtype);
    double half = cluster->achieved[CLUSTER_SERVE_SMALL_DIMENSION].value, least = (double)work->layout.adapter_rank;
    if (used == 0)
        return 0;
    return both_seconds(
        used * work->image_bytes / (cluster->memory_bandwidth.value * cluster->achieved[CLUSTER_SERVE_MEMORY].value),
        flops * (1 + half / least) /
            (cluster_peak(cluster, work->layout.precision) * cluster->achieved[CLUSTER_SERVE_PRODUCTS].value),
        cluster);
}

/* The rows of a step. */
struct step_rows {
    double count, together; /* together: of those that read the same pages, for one reading of them */
};

/* Returns the seconds of a stage's step. */
static double stage_seconds(const struct work_list *list, const struct serve_work *work, const struct cluster *cluster,
                            struct step_rows rows) {
    double operations = adapter_seconds(work, cluster, rows.count), sums = 0;
    for (int i = 0; i < list->count; i++) {
        const struct work_item *item = &list->items[i];
        if (item->group == RANK_ALONE)
            operations += (double)item->count * operation_seconds(item, cluster, work->layout.precision, rows.together);
        else if (item->ranks > 1 && item->group != RANK_PIPELINE)
            sums += (double)item->count * sum_seconds(item, cluster);
    }
    double floor = work->layers * cluster->achieved[CLUSTER_SERVE_LAYER].value;
    /* The stack of 2022 launches layers while others run; in a recorded step, kernels wait for each other. */
    return (is_2022(cluster) ? fmax(operations, floor) : operations + floor) + sums;
}

/* Returns the seconds of a step in all stages; stages between the first and the last take the less of both. */
static double step_seconds(const struct work_list lists[2], const struct serve_work *work,
                           const struct cluster *cluster, struct step_rows rows, double *slowest) {
    int stages = work->layout.pipeline;
    double step = cluster->achieved[CLUSTER_SERVE_STEP].value + rows.count * cluster->achieved[CLUSTER_SERVE_ROW].value;
    double first = stage_seconds(&lists[0], work, cluster, rows);
    *slowest = first + step;
    if (stages == 1)
        return first + step;
    double last = stage_seconds(&lists[1], work, cluster, rows);
    bool is_within = stages * work->layout.tensor <= cluster->per_node;
    double columns = (double)lists[0].items[0].work.shape[1]; /* of the embedding */
    double message = rows.count * columns * (double)dtype_bytes(work->dtype) /
                         (is_within ? cluster->node_bandwidth.value : cluster->network_bandwidth.value) +
                     (is_within ? cluster->node_latency.value : cluster->network_latency.value);
    *slowest = fmax(first, last) + step;
    return first + last + (stages - 2) * fmin(first, last) + (stages - 1) * message + step;
}

void serve_times_find(const struct serve_work *work, const struct cluster *cluster, struct serve_times *times) {
    const struct serve_layout *layout = &work->layout;
    double slowest_prompts, slowest_token, tokens = (double)layout->output_len;
    double batch = (double)layout->batch, prompt = (double)layout->input_len, steps = work->prompt_steps;
    /* Stages work on as many batches as there are stages. The rows of a step of a prompt read its pages once for all,
     * so that a page is read once for each step after it. The stack of 2022 has one batch, whose rows read for
     * themselves. */
    double rows = batch * prompt / steps, together = (prompt + 1) / (prompt / fmin(rows, prompt) + 1);
    struct step_rows prompts = {rows, is_2022(cluster) ? 1 : together}, further = {batch, 1};
    times->prompts = step_seconds(work->prompts, work, cluster, prompts, &slowest_prompts);
    times->prompts += (steps - 1) * slowest_prompts;
    times->token = step_seconds(work->token, work, cluster, further, &slowest_token);
    times->latency = times->prompts + (tokens - 1) * times->token;
    times->tokens_per_s =
        batch * tokens / (is_2022(cluster) ? times->latency : steps * slowest_prompts + (tokens - 1) * slowest_token);
}

/* ---- the search ---- */

/* True if the layout is one of NVIDIA's tool: whole nodes where there are stages. */
static bool is_of_tool(const struct serve_search *s, const struct serve_layout *l) {
    return s->model->num_attention_heads % l->tensor == 0 && s->model->num_layers % l->pipeline == 0 &&
           (l->pipeline == 1 || l->tensor >= s->cluster->per_node);
}

static bool is_possible(const struct serve_search *s, const struct serve_layout *l) {
    const struct model_config *m = s->model;
    int64_t groups = m->num_query_groups;
    return m->num_attention_heads % l->tensor == 0 && (groups % l->tensor == 0 || l->tensor % groups == 0) &&
           m->ffn_hidden_size % l->tensor == 0 && m->num_layers % l->pipeline == 0 && (!s->is_tool || is_of_tool(s, l));
}

static int add_row(const struct serve_search *s, const struct serve_layout *layout, struct serve_result *result) {
    struct serve_work work;
    int status = serve_work_make(s->model, layout, s->cluster, &work);
    if (status == STATUS_USAGE) {
        result->refused++;
        return STATUS_OK;
    }
    TRY(status);
    struct serve_row row = {.layout = *layout, .plan = work.plan, .image_bytes = (size_t)work.image_bytes};
    serve_times_find(&work, s->cluster, &row.times);
    serve_work_free(&work);
    size_t bytes = engine_plan_device_bytes(&row.plan);
    if ((double)bytes > s->memory_share * s->cluster->memory.value) {
        if (!result->no_memory++ || bytes < engine_plan_device_bytes(&result->smallest.plan))
            result->smallest = row;
        return STATUS_OK;
    }
    row.per_device = row.times.tokens_per_s / (double)layout->output_len / (layout->tensor * layout->pipeline);
    row.is_allowed =
        (s->max_latency == 0 || row.times.latency <= s->max_latency) && row.times.tokens_per_s >= s->min_tokens_per_s;
    struct serve_row *rows = realloc(result->rows, (size_t)(result->count + 1) * sizeof *rows);
    TRY(status_allocated(rows));
    result->rows = rows;
    rows[result->count++] = row;
    return STATUS_OK;
}

static int by_latency(const void *a, const void *b) {
    const struct serve_row *x = a, *y = b;
    return x->times.latency < y->times.latency ? -1 : x->times.latency > y->times.latency;
}

/* Returns how far a row is from the limits, as a factor. */
static double miss_of(const struct serve_search *s, const struct serve_row *row) {
    double latency = s->max_latency > 0 ? row->times.latency / s->max_latency : 1;
    double tokens = s->min_tokens_per_s > 0 ? s->min_tokens_per_s / row->times.tokens_per_s : 1;
    return fmax(latency, 1) * fmax(tokens, 1);
}

static void choose(const struct serve_search *s, struct serve_result *result) {
    double most = 0;
    result->best = result->nearest = -1;
    for (int i = 0; i < result->count; i++) {
        struct serve_row *row = &result->rows[i];
        row->is_pareto = row->per_device > most;
        most = fmax(most, row->per_device);
        if (row->is_allowed && (result->best < 0 || row->per_device > result->rows[result->best].per_device))
            result->best = i;
        if (result->nearest < 0 || miss_of(s, row) < miss_of(s, &result->rows[result->nearest]))
            result->nearest = i;
    }
}

int serve_search_run(const struct serve_search *s, struct serve_result *result) {
    int status = STATUS_OK;
    *result = (struct serve_result){.cluster = s->cluster, .best = -1, .nearest = -1};
    for (int tensor = 1; tensor <= s->devices && tensor <= s->cluster->per_node; tensor++)
        for (int stages = 1; tensor * stages <= s->devices; stages++)
            for (int64_t batch = s->batch ? s->batch : 1; batch <= (s->batch ? s->batch : MOST_BATCH) && !status;
                 batch *= 2) {
                struct serve_layout layout = {tensor,        stages,       batch,           s->input_len,
                                              s->output_len, s->adapters,  s->adapter_rank, s->load_in,
                                              s->precision,  s->step_rows, s->encoded};
                bool is_asked = (!s->tensor || tensor == s->tensor) && (!s->pipeline || stages == s->pipeline);
                if (is_asked && is_possible(s, &layout))
                    status = add_row(s, &layout, result);
                else
                    result->refused += is_asked;
            }
    if (result->count)
        qsort(result->rows, (size_t)result->count, sizeof *result->rows, by_latency);
    choose(s, result);
    return status;
}
