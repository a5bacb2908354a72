/* The search: it lists what trying everything would list, and counts every layout. */
#include "support/test.h"
#include "support/tiny_model.h"

#include "planner/run_file.h"
#include "planner/search.h"
#include "planner/sizes.h"
#include "train/plan.h"

#include <math.h>

static const char *const keys[] = {
    "model.num_layers=4",        "model.hidden_size=64", "model.num_attention_heads=4", "model.vocab_size=512",
    "train.global_batch_size=8", "data.seq_length=64",   "train.precision=bf16",
};
enum { KEYS = sizeof keys / sizeof *keys };

struct planned {
    struct cluster cluster;
    struct run_file file;
    struct search search;
};

static void open_plan_on(struct planned *p, const char *cluster, int top) {
    test_ok(cluster_open(cluster, &p->cluster));
    /* Floors that are all of a layer's time would make every layout a tie. */
    p->cluster.achieved[CLUSTER_LAYER_FORWARD].value = p->cluster.achieved[CLUSTER_LAYER_BACKWARD].value = 1e-6;
    test_ok(run_file_read(NULL, keys, KEYS, &p->file));
    p->search = (struct search){
        .cluster = &p->cluster, .base = p->file.run, .space = SEARCH_ALL, .memory_share = 0.92, .top = top};
}

static void open_plan(struct planned *p, int top) {
    open_plan_on(p, "a100-80gb", top);
}

/* Leaves few layouts, to save time. */
static void fix_micro_batch(struct planned *p) {
    static const char *const fixed[] = {"train.micro_batch_size"};
    p->search.base.train.micro_batch_size = 2;
    p->search.fixed = fixed;
    p->search.fixed_count = 1;
}

static void close_plan(struct planned *p) {
    run_file_close(&p->file);
    cluster_close(&p->cluster);
}

static void counts_are_complete(const struct search_counts *c) {
    assert_int_equal(c->all, c->refused + c->no_memory + c->slower + c->listed);
}

static void few_rows_are_the_best_of_many(void **state) {
    (void)state;
    struct planned p;
    struct search_result few, many;
    open_plan(&p, 8);
    test_ok(search_run(&p.search, 4, &few));
    p.search.top = 4000;
    test_ok(search_run(&p.search, 4, &many)); /* nothing is slower than enough rows: every layout is planned */
    counts_are_complete(&few.counts);
    counts_are_complete(&many.counts);
    assert_int_equal(few.counts.all, many.counts.all);
    assert_int_equal(few.counts.listed, 8);
    assert_int_equal(many.counts.slower, 0);
    assert_true(many.counts.listed > 100);
    double slowest = 0;
    for (int i = 0; i < 8; i++)
        slowest = fmax(slowest, few.rows[i].step.seconds);
    int faster = 0;
    for (int64_t i = 0; i < many.counts.listed; i++)
        faster += many.rows[i].step.seconds < slowest * (1 - 1e-12);
    assert_true(faster <= 8);
    int partial = 0;
    for (int64_t i = 0; i < many.counts.listed; i++)
        partial += many.rows[i].run.config.parallel.num_microbatches_with_partial_activation_checkpoints > 0;
    assert_true(partial > 0);
    search_free(&few);
    search_free(&many);
    close_plan(&p);
}

static void memory_decides_and_is_that_of_the_plan(void **state) {
    (void)state;
    struct planned p;
    struct search_result result, none;
    open_plan(&p, 4);
    fix_micro_batch(&p);
    test_ok(search_run(&p.search, 4, &result));
    const struct search_row *row = &result.rows[0];
    size_t most = 0;
    for (int stage = 0; stage < row->grid.pipeline; stage++) {
        struct train_plan plan;
        test_ok(
            train_plan_rank(&row->run, 4, stage * row->grid.tensor * row->grid.data, p.cluster.device, &plan, NULL));
        size_t bytes = train_plan_bytes(&plan).device;
        most = bytes > most ? bytes : most;
    }
    assert_int_equal(row->memory.device, most);
    p.cluster.memory.value = (double)most / 100;
    test_ok(search_run(&p.search, 4, &none));
    counts_are_complete(&none.counts);
    assert_int_equal(none.counts.listed, 0);
    assert_true(none.has_nearest);
    assert_true((double)none.nearest.memory.device > p.cluster.memory.value);
    search_free(&result);
    search_free(&none);
    close_plan(&p);
}

/* Finds what would fit where nothing does; returns the number of devices of it. */
static int find_fit(const struct search *search, struct search_result *result) {
    test_ok(search_find_fit(search, result));
    assert_true((double)result->fit.memory.device <= search->cluster->memory.value * search->memory_share);
    return result->fit_ranks;
}

/* The nearest layout takes the least memory of all: nothing that is listed with more memory takes less. */
static void the_nearest_layout_takes_least(void **state) {
    (void)state;
    struct planned p;
    struct search_result all, none;
    open_plan(&p, 4000);
    test_ok(search_run(&p.search, 4, &all));
    assert_int_equal(all.counts.slower + all.counts.no_memory, 0);
    size_t least = SIZE_MAX;
    for (int64_t i = 0; i < all.counts.listed; i++)
        least = all.rows[i].memory.device < least ? all.rows[i].memory.device : least;
    for (double share = 0.9; share > 0.01; share *= 0.3) {
        p.cluster.memory.value = share * (double)least;
        test_ok(search_run(&p.search, 4, &none));
        assert_int_equal(none.counts.listed, 0);
        assert_true(none.has_nearest && none.nearest.step.seconds > 0);
        assert_int_equal(none.nearest.memory.device, least);
        search_free(&none);
    }
    search_free(&all);
    close_plan(&p);
}

/* The obstacles add up to the refused layouts, and the numbers that work are the nearest with a layout. */
static void refused_layouts_have_reasons_and_numbers_that_work(void **state) {
    (void)state;
    struct planned p;
    struct search_result result, other;
    open_plan(&p, 1);
    p.search.base.train.global_batch_size = 32;
    test_ok(search_run(&p.search, 88, &result)); /* eleven divides neither batch nor heads nor layers */
    counts_are_complete(&result.counts);
    assert_true(result.counts.all > 0 && result.counts.refused == result.counts.all);
    int64_t refused = 0;
    bool has_batch = false;
    for (int i = 0; i < SEARCH_REFUSALS && result.counts.refusals[i].name; i++) {
        refused += result.counts.refusals[i].count;
        has_batch |= !strcmp(result.counts.refusals[i].name, "train.global_batch_size");
    }
    assert_int_equal(refused, result.counts.refused);
    assert_true(has_batch);
    test_ok(search_find_fit(&p.search, &result));
    assert_in_range(result.works[0], 8, 80);
    assert_in_range(result.works[1], 96, 512);
    assert_int_equal(result.fit_ranks, result.works[1]);
    for (int ranks = result.works[0]; ranks <= result.works[1]; ranks += 8) {
        bool is_end = ranks == result.works[0] || ranks == result.works[1];
        test_ok(search_run(&p.search, ranks, &other));
        assert_int_equal(other.counts.listed, is_end);
        search_free(&other);
    }
    search_free(&result);
    close_plan(&p);
}

/* Plans memory as for the CPU, whose workspaces are as small as these models. */
static void use_cpu(struct cluster *cluster) {
    const struct device_facts facts = {.kind = device_name_at(0), .threads = 1};
    device_close(cluster->device);
    test_ok(device_sketch(&facts, &cluster->device));
}

/* First the fixed keys give way, and then there are more devices, twice as many at a time and no more than it takes. */
static void what_would_fit_is_found(void **state) {
    (void)state;
    struct planned p;
    struct search_result result, all;
    int seen = 0;
    open_plan(&p, 1);
    use_cpu(&p.cluster);
    fix_micro_batch(&p);
    p.cluster.memory.value = 1e5;
    test_ok(search_run(&p.search, 4, &result));
    double most = (double)result.nearest.memory.device / p.search.memory_share;
    search_free(&result);
    for (double share = 1; share > 0.3; share *= seen & 4 ? 0.9 : 0.97) {
        p.search.fixed_count = 1;
        p.cluster.memory.value = share * most;
        test_ok(search_run(&p.search, 4, &result));
        if (!result.counts.listed) {
            int ranks = find_fit(&p.search, &result), fewest = 4;
            p.search.fixed_count = 0;
            test_ok(search_run(&p.search, fewest, &all));
            if (!all.counts.listed)
                assert_int_equal(find_fit(&p.search, &all), ranks);
            while (!all.counts.listed && fewest < 1024) {
                search_free(&all);
                test_ok(search_run(&p.search, fewest *= 2, &all));
            }
            assert_int_equal(ranks, fewest);
            search_free(&all);
            seen |= ranks;
        }
        search_free(&result);
    }
    assert_int_equal(seen & (4 | 8), 4 | 8);
    close_plan(&p);
}

/* Each strategy lowers the bound, which stays below the plan. Shares of gradients are summed more often. */
static void every_sharding_strategy_is_planned(void **state) {
    (void)state;
    struct planned p;
    double least[SHARDING_OPTIM_GRADS_PARAMS + 1];
    struct cost_step steps[SHARDING_OPTIM_GRADS_PARAMS + 1];
    open_plan(&p, 4);
    p.search.base.parallel.overlap_grad_reduce = p.search.base.parallel.overlap_param_gather = false;
    for (int sharding = SHARDING_NONE; sharding <= SHARDING_OPTIM_GRADS_PARAMS; sharding++) {
        struct run_config config = p.search.base;
        struct train_run run;
        struct cost_work work;
        struct rank_grid grid;
        struct pipeline_shape shape;
        struct plan_memory memory;
        config.parallel.data_parallel_sharding_strategy = sharding;
        config.train.micro_batch_size = 1;
        test_ok(run_file_resolve(&config, &run));
        test_ok(cost_work_make(&run, &p.cluster, &work));
        test_ok(train_plan_grid(&run, 4, &grid, &shape));
        assert_int_equal(grid.data, 4);
        test_ok(memory_find(&run, 4, &work, &p.cluster, 0, &memory));
        least[sharding] = memory_least(&run, &grid, &shape, &work);
        assert_true(least[sharding] > 0 && least[sharding] <= (double)memory.device);
        assert_true(sharding == SHARDING_NONE || least[sharding] < least[sharding - 1]);
        test_ok(cost_step(&run, 4, &work, &p.cluster, &steps[sharding], NULL));
        cost_work_free(&work);
    }
    assert_true(steps[SHARDING_OPTIM_GRADS].gradients > steps[SHARDING_OPTIM].gradients);
    assert_true(steps[SHARDING_OPTIM_GRADS_PARAMS].gradients > steps[SHARDING_OPTIM_GRADS].gradients);
    close_plan(&p);
}

/* Returns the row of the same layout with another precision or sharding; NULL: none is listed. */
static const struct search_row *find_twin(const struct search_result *result, const struct search_row *row,
                                          int precision, enum sharding sharding) {
    for (int64_t i = 0; i < result->counts.listed; i++) {
        const struct search_row *other = &result->rows[i];
        struct run_config wanted = row->run.config;
        const struct run_config *c = &other->run.config;
        if (!memcmp(&other->grid, &row->grid, sizeof row->grid) && other->shape.chunks == row->shape.chunks &&
            c->train.precision == precision && run_sharding(c) == sharding &&
            c->parallel.sequence_parallel == wanted.parallel.sequence_parallel &&
            c->parallel.recompute_granularity == wanted.parallel.recompute_granularity &&
            c->parallel.recompute_method == wanted.parallel.recompute_method &&
            c->parallel.recompute_num_layers == wanted.parallel.recompute_num_layers &&
            c->parallel.num_microbatches_with_partial_activation_checkpoints ==
                wanted.parallel.num_microbatches_with_partial_activation_checkpoints &&
            c->parallel.recompute_modules.count == wanted.parallel.recompute_modules.count &&
            (!c->parallel.recompute_modules.count ||
             c->parallel.recompute_modules.items[0] == wanted.parallel.recompute_modules.items[0]))
            return other;
    }
    return NULL;
}

static int count_savings(const struct search_result *result, enum search_feature feature) {
    int count = 0;
    for (int64_t i = 0; i < result->counts.listed; i++) {
        const struct search_row *row = &result->rows[i];
        const struct search_saving *saved = &row->saved[feature];
        const struct run_config *c = &row->run.config;
        bool has = feature == SEARCH_FP8 ? c->train.precision == PRECISION_FP8
                                         : run_sharding(c) == SHARDING_OPTIM_GRADS_PARAMS;
        assert_true(saved->is_known == has);
        if (!has)
            continue;
        const struct search_row *twin = feature == SEARCH_FP8
                                            ? find_twin(result, row, PRECISION_BF16, run_sharding(c))
                                            : find_twin(result, row, c->train.precision, SHARDING_NONE);
        assert_non_null(twin);
        assert_true(saved->seconds == twin->step.seconds - row->step.seconds);
        assert_true(saved->bytes == (double)twin->memory.device - (double)row->memory.device);
        count++;
    }
    return count;
}

/* Returns true for one layout with one time and memory, whatever outputs of norms and activations are recomputed. */
static bool are_same(const struct search_row *a, const struct search_row *b) {
    const struct run_config *x = &a->run.config, *y = &b->run.config;
    return a->step.seconds == b->step.seconds && a->memory.device == b->memory.device &&
           !memcmp(&a->grid, &b->grid, sizeof a->grid) && !memcmp(&a->shape, &b->shape, sizeof a->shape) &&
           x->train.precision == y->train.precision && run_sharding(x) == run_sharding(y) &&
           x->train.micro_batch_size == y->train.micro_batch_size &&
           x->parallel.sequence_parallel == y->parallel.sequence_parallel &&
           x->parallel.recompute_granularity != GRANULARITY_FULL &&
           y->parallel.recompute_granularity != GRANULARITY_FULL &&
           x->parallel.account_for_embedding_in_pipeline_split == y->parallel.account_for_embedding_in_pipeline_split &&
           x->parallel.account_for_loss_in_pipeline_split == y->parallel.account_for_loss_in_pipeline_split &&
           x->parallel.decoder_last_pipeline_num_layers == y->parallel.decoder_last_pipeline_num_layers;
}

/* FP8 and sharded weights are candidates like all others, and each row knows the same layout without them. */
static void also_adds_candidates_that_know_what_they_save(void **state) {
    (void)state;
    struct planned p;
    struct search_result plain, also;
    open_plan_on(&p, "h100", 2000);
    fix_micro_batch(&p);
    test_ok(search_run(&p.search, 4, &plain));
    p.search.also_fp8 = p.search.also_fsdp = true;
    test_ok(search_run(&p.search, 4, &also));
    counts_are_complete(&also.counts);
    assert_int_equal(also.counts.all, 2 * plain.counts.all);
    assert_int_equal(also.counts.no_memory + plain.counts.slower, 0);
    assert_true(also.counts.slower > 0); /* twins of FP8 rows that only recompute what FP8 does not keep */
    for (int64_t i = 0; i < also.counts.listed; i++)
        for (int64_t k = 0; k < i; k++)
            assert_false(are_same(&also.rows[i], &also.rows[k]));
    assert_true(count_savings(&also, SEARCH_FP8) > 10);
    assert_true(count_savings(&also, SEARCH_FSDP) > 10);
    search_free(&also);
    p.search.space = SEARCH_RUN; /* has no strategies of its own */
    test_ok(search_run(&p.search, 4, &also));
    assert_int_equal(also.counts.listed, 4);
    assert_int_equal(count_savings(&also, SEARCH_FP8), 2);
    assert_int_equal(count_savings(&also, SEARCH_FSDP), 2);
    search_free(&also);
    search_free(&plain);
    close_plan(&p);
}

static void fixed_keys_are_in_every_row(void **state) {
    (void)state;
    static const char *const fixed[] = {"parallel.tensor_model_parallel_size", "train.micro_batch_size"};
    struct planned p;
    struct search_result result;
    open_plan(&p, 50);
    p.search.base.parallel.tensor_model_parallel_size = 2;
    p.search.base.train.micro_batch_size = 2;
    p.search.fixed = fixed;
    p.search.fixed_count = 2;
    test_ok(search_run(&p.search, 4, &result));
    assert_true(result.counts.listed > 4);
    for (int64_t i = 0; i < result.counts.listed; i++) {
        assert_int_equal(result.rows[i].grid.tensor, 2);
        assert_int_equal(result.rows[i].run.config.train.micro_batch_size, 2);
    }
    search_free(&result);
    close_plan(&p);
}

static void a_row_is_a_run_file(void **state) {
    (void)state;
    struct planned p;
    struct search_result result;
    open_plan(&p, 4);
    fix_micro_batch(&p);
    test_ok(search_run(&p.search, 4, &result));
    for (int64_t i = 0; i < result.counts.listed; i++) {
        struct strbuf text = STRBUF_INIT;
        struct run_file again;
        struct train_run run;
        struct rank_grid grid;
        struct pipeline_shape shape;
        char *directory = test_directory(), path[4096];
        test_ok(run_file_write(&result.rows[i].run.config, &text));
        snprintf(path, sizeof path, "%s/run.yaml", directory);
        test_ok(file_write_atomic(path, strbuf_text(&text), text.length));
        test_ok(run_file_read(path, NULL, 0, &again));
        test_ok(run_file_resolve(&again.run, &run));
        test_ok(train_plan_grid(&run, 4, &grid, &shape));
        assert_memory_equal(&grid, &result.rows[i].grid, sizeof grid);
        assert_int_equal(run.config.parallel.recompute_granularity,
                         result.rows[i].run.config.parallel.recompute_granularity);
        run_file_close(&again);
        strbuf_free(&text);
        free(directory);
    }
    search_free(&result);
    close_plan(&p);
}

static void sizes_have_the_shapes_of_the_tables(void **state) {
    (void)state;
    static const struct {
        double billions;
        int layers, hidden, heads, batch;
    } rows[] = {{0.126, 12, 768, 12, 256}, {5, 24, 4096, 32, 1440},    {20, 44, 6144, 48, 1440},
                {40, 48, 8192, 64, 1440},  {175, 96, 12288, 96, 1536}, {530, 106, 20480, 128, 1920}};
    struct size_shape shape;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        test_ok(size_shape(rows[i].billions, 51200, 2048, &shape));
        assert_int_equal(shape.layers, rows[i].layers);
        assert_int_equal(shape.hidden, rows[i].hidden);
        assert_int_equal(shape.heads, rows[i].heads);
        assert_int_equal(shape.global_batch, rows[i].batch);
    }
    for (double billions = 0.1; billions < 1100; billions *= 1.1) { /* every size has a shape near it */
        test_ok(size_shape(billions, 51200, 2048, &shape));
        assert_true(fabs(size_parameters(&shape, 51200, 2048) / billions - 1) < 0.1);
    }
    test_fails(size_shape(2000, 51200, 2048, &shape), STATUS_USAGE, "at most 1100");
    assert_true(fabs(size_rule_billions(5, 300e9, 160, 140e12) - 4.03) < 0.005);
    struct run_file file;
    double billions;
    test_ok(run_file_read(NULL, NULL, 0, &file));
    test_ok(size_take("126M", 2048, &file.run, &billions));
    assert_true(fabs(billions - 0.126) < 1e-12);
    assert_int_equal(file.run.model.num_layers, 12);
    test_fails(size_take("20", 2048, &file.run, &billions), STATUS_USAGE, "'20' is not a size");
    test_fails(size_take("llama-3.1-9b", 2048, &file.run, &billions), STATUS_USAGE,
               "or one of llama-3.1-8b, llama-3.1-70b, ");
    run_file_close(&file);
}

/* The numbers of elements in the published files. */
static void open_models_have_their_own_shapes(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t parameters, vocab, positions;
    } models[] = {
        {"llama-3.1-8b", 8030261248, 128256, 131072},     {"llama-3.1-70b", 70553706496, 128256, 131072},
        {"Llama-3.1-405B", 405853388800, 128256, 131072}, {"qwen3-0.6b", 596049920, 151936, 40960},
        {"qwen3-1.7b", 1720574976, 151936, 40960},        {"qwen3-4b", 4022468096, 151936, 40960},
        {"qwen3-8b", 8190735360, 151936, 40960},          {"Qwen3-14B", 14768307200, 151936, 40960},
        {"qwen3-32b", 32762123264, 151936, 40960},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct run_file file;
        struct train_run run;
        struct param_table table = {0};
        double billions;
        test_ok(run_file_read(NULL, NULL, 0, &file));
        test_ok(size_take(models[i].name, 4096, &file.run, &billions));
        test_ok(run_file_resolve(&file.run, &run));
        test_ok(model_describe(&run.config.model, &table));
        assert_int_equal(param_table_elements(&table, false), models[i].parameters);
        assert_int_equal(run.config.model.vocab_size, models[i].vocab);
        assert_int_equal(run.config.model.max_position_embeddings, models[i].positions);
        assert_int_equal(run.config.data.seq_length, 4096);
        assert_true(run.config.train.global_batch_size > 0 && run.config.optim.lr > 0);
        bool is_llama = models[i].vocab == 128256;
        assert_true(run.config.model.rotary.factor == (is_llama ? 8 : 0));
        assert_true(run.config.model.qk_layernorm == !is_llama && run.config.model.num_query_groups == 8);
        param_table_free(&table);
        run_file_close(&file);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_rows_are_the_best_of_many),
        cmocka_unit_test(memory_decides_and_is_that_of_the_plan),
        cmocka_unit_test(the_nearest_layout_takes_least),
        cmocka_unit_test(refused_layouts_have_reasons_and_numbers_that_work),
        cmocka_unit_test(what_would_fit_is_found),
        cmocka_unit_test(every_sharding_strategy_is_planned),
        cmocka_unit_test(also_adds_candidates_that_know_what_they_save),
        cmocka_unit_test(fixed_keys_are_in_every_row),
        cmocka_unit_test(a_row_is_a_run_file),
        cmocka_unit_test(sizes_have_the_shapes_of_the_tables),
        cmocka_unit_test(open_models_have_their_own_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
