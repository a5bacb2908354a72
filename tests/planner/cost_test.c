/* The cost model: layers, embedding and head make up the work of whole stages, and each cause of time has its effect.
 */
#include "support/test.h"

#include "planner/cost.h"

#include "parallel/rank.h"
#include "planner/run_file.h"
#include "train/plan.h"

#include <math.h>

enum { MOST_KEYS = 16 };

struct planned {
    struct cluster cluster;
    struct run_file file;
    struct train_run run;
    struct cost_work work;
};

/* Reads a run of 8 layers with these further keys. */
static void read_run(struct planned *p, const char *cluster, const char *const *keys) {
    const char *all[MOST_KEYS] = {"model.num_layers=8",       "model.hidden_size=64", "model.num_attention_heads=4",
                                  "model.vocab_size=512",     "data.seq_length=64",   "train.precision=bf16",
                                  "train.global_batch_size=8"};
    size_t count = 7;
    for (; *keys; keys++)
        all[count++] = *keys;
    test_ok(cluster_open(cluster, &p->cluster));
    test_ok(run_file_read(NULL, all, count, &p->file));
    test_ok(run_file_resolve(&p->file.run, &p->run));
}

static void open_run(struct planned *p, const char *const *keys) {
    read_run(p, "a100-80gb", keys);
    test_ok(cost_work_make(&p->run, &p->cluster, &p->work));
}

static void close_run(struct planned *p) {
    cost_work_free(&p->work);
    run_file_close(&p->file);
    cluster_close(&p->cluster);
}

static double seconds_of(struct planned *p, int ranks) {
    struct cost_step step;
    test_ok(cost_step(&p->run, ranks, &p->work, &p->cluster, &step, NULL));
    return step.seconds;
}

static const char *const layouts[][MOST_KEYS] = {
    {NULL},
    {"parallel.tensor_model_parallel_size=2", NULL},
    {"parallel.tensor_model_parallel_size=4", "parallel.sequence_parallel=true", "train.micro_batch_size=2", NULL},
    {"parallel.pipeline_model_parallel_size=2", NULL},
    {"parallel.pipeline_model_parallel_size=4", "parallel.virtual_pipeline_model_parallel_size=2", NULL},
    {"parallel.pipeline_model_parallel_size=2", "parallel.decoder_last_pipeline_num_layers=2", NULL},
    {"parallel.recompute_granularity=selective", "parallel.recompute_modules=[layernorm, mlp_act]", NULL},
    {"model.swiglu=true", "model.untie_embeddings_and_output_weights=true", "model.num_query_groups=2",
     "model.position_embedding_type=rope", "model.normalization=RMSNorm", "model.add_bias_linear=false",
     "model.hidden_dropout=0", "model.attention_dropout=0", NULL},
    {"train.precision=fp32", "parallel.pipeline_model_parallel_size=2", NULL},
};

/* With free memory, messages and floors, a step takes the FLOPs of its busiest stage. */
static void units_make_up_the_work_of_whole_stages(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        struct planned p;
        struct cost_step step;
        struct train_plan plan;
        struct work_list list = {0};
        open_run(&p, layouts[i]);
        p.cluster.memory_bandwidth.value = p.cluster.node_bandwidth.value = 1e30;
        p.cluster.network_bandwidth.value = 1e30;
        p.cluster.node_latency.value = p.cluster.network_latency.value = 0;
        p.cluster.achieved[CLUSTER_SMALL_DIMENSION].value = p.cluster.achieved[CLUSTER_STEP].value = 0;
        p.cluster.achieved[CLUSTER_LAYER_FORWARD].value = p.cluster.achieved[CLUSTER_LAYER_BACKWARD].value = 0;
        p.cluster.achieved[CLUSTER_ATTENTION].value = p.cluster.achieved[CLUSTER_ATTENTION_DROPOUT].value = 1;
        int tensor = (int)p.run.config.parallel.tensor_model_parallel_size;
        int ranks = tensor * (int)p.run.config.parallel.pipeline_model_parallel_size;
        test_ok(cost_step(&p.run, ranks, &p.work, &p.cluster, &step, NULL));
        test_ok(train_plan_rank(&p.run, ranks, step.stage * tensor, p.cluster.device, &plan, &list));
        double flops = work_sum(&list, WORK_FORWARD).flops + work_sum(&list, WORK_BACKWARD).flops;
        double micro_batches = (double)(8 / p.run.config.train.micro_batch_size);
        bool is_bf16 = p.run.config.train.precision == PRECISION_BF16;
        double peak = is_bf16 ? p.cluster.peak_bf16.value : p.cluster.peak_fp32.value;
        double expected = flops * micro_batches / (peak * p.cluster.achieved[CLUSTER_PRODUCTS].value);
        assert_true(fabs(step.work.products / expected - 1) < 1e-9);
        work_free(&list);
        close_run(&p);
    }
}

/* Devices that share processors are faster while fewer work: a file of 4 devices with 2 processors. */
static void a_stage_that_waits_leaves_its_processor_to_others(void **state) {
    (void)state;
    static const char *const keys[] = {"parallel.pipeline_model_parallel_size=4", NULL};
    static const char *const none[] = {NULL};
    struct planned p, alone;
    struct cost_step step;
    struct walk walk;
    open_run(&p, keys);
    open_run(&alone, none);
    p.cluster.per_node = p.cluster.processors = alone.cluster.per_node = alone.cluster.processors = 4;
    double plain = seconds_of(&p, 4), one = seconds_of(&alone, 1), all = seconds_of(&alone, 4);
    p.cluster.processors = alone.cluster.processors = 2;
    assert_true(seconds_of(&p, 4) < plain);
    assert_true(seconds_of(&alone, 1) < one);
    assert_true(seconds_of(&alone, 4) == all);
    double least;
    test_ok(cost_least(&p.run, 4, &p.work, &p.cluster, &least));
    test_ok(cost_step(&p.run, 4, &p.work, &p.cluster, &step, &walk));
    assert_true(least > 0 && least <= step.seconds);
    double parts = step.work.products + step.work.other + step.work.tensor + step.work.floor + step.stages +
                   step.bubble + step.gradients + step.optimizer;
    assert_true(fabs(parts / step.seconds - 1) < 1e-9);
    walk_free(&walk);
    close_run(&p);
    close_run(&alone);
}

/* Each constant and each speed makes a step slower, or leaves it as it is where it has no part. */
static void every_cause_has_its_effect(void **state) {
    (void)state;
    static const char *const keys[] = {"parallel.tensor_model_parallel_size=2",
                                       "parallel.pipeline_model_parallel_size=2", NULL};
    struct planned p;
    open_run(&p, keys);
    p.cluster.achieved[CLUSTER_LAYER_FORWARD].value = p.cluster.achieved[CLUSTER_LAYER_BACKWARD].value = 1e-9;
    p.cluster.per_node = 2; /* stages are on two nodes */
    double plain = seconds_of(&p, 4);
    double *const values[] = {&p.cluster.peak_bf16.value,
                              &p.cluster.memory_bandwidth.value,
                              &p.cluster.node_bandwidth.value,
                              &p.cluster.network_bandwidth.value,
                              &p.cluster.achieved[CLUSTER_PRODUCTS].value,
                              &p.cluster.achieved[CLUSTER_OTHER].value,
                              &p.cluster.achieved[CLUSTER_NETWORK].value,
                              &p.cluster.achieved[CLUSTER_TENSOR_HIDDEN].value};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        double value = *values[i];
        *values[i] = value / 2;
        assert_true(seconds_of(&p, 4) > plain);
        *values[i] = value;
    }
    double *const times[] = {&p.cluster.node_latency.value, &p.cluster.network_latency.value,
                             &p.cluster.achieved[CLUSTER_STEP].value,
                             &p.cluster.achieved[CLUSTER_SMALL_DIMENSION].value};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        double value = *times[i];
        *times[i] = 2 * value;
        assert_true(seconds_of(&p, 4) > plain);
        *times[i] = value;
    }
    p.cluster.achieved[CLUSTER_LAYER_BACKWARD].value = 1;
    assert_true(seconds_of(&p, 4) > 8 * 4); /* 8 micro batches through 4 layers of a stage */
    close_run(&p);
}

/* A measured speed decides the time of its phase, and of no other. */
static void measured_speeds_take_the_place_of_constants(void **state) {
    (void)state;
    struct planned p;
    struct cost_step plain, slow;
    open_run(&p, layouts[0]);
    p.cluster.achieved[CLUSTER_LAYER_FORWARD].value = p.cluster.achieved[CLUSTER_LAYER_BACKWARD].value = 0;
    const int phases[] = {PHASE_GEMM, PHASE_ATTENTION, PHASE_NORM, PHASE_LOSS, PHASE_OPTIMIZER, PHASE_REST};
    const int count = sizeof phases / sizeof *phases;
    for (int i = 0; i < count; i++)
        test_ok(cluster_add_speed(
            &p.cluster, &(const struct cluster_speed){DTYPE_BF16, phases[i], {64, 64, 64}, i < 2 ? 1e12 : 1e10}));
    test_ok(cost_step(&p.run, 1, &p.work, &p.cluster, &plain, NULL));
    for (int i = 0; i < count; i++) {
        p.cluster.speeds[i].value /= 2;
        test_ok(cost_step(&p.run, 1, &p.work, &p.cluster, &slow, NULL));
        p.cluster.speeds[i].value *= 2;
        bool is_product = phases[i] <= PHASE_ATTENTION, is_optimizer = phases[i] == PHASE_OPTIMIZER;
        assert_true((slow.work.products > plain.work.products) == is_product);
        assert_true((slow.work.other > plain.work.other) == (!is_product && !is_optimizer));
        assert_true((slow.optimizer > plain.optimizer) == (is_optimizer || phases[i] == PHASE_REST));
        assert_true(slow.seconds > plain.seconds);
    }
    p.cluster.achieved[CLUSTER_PRODUCTS].value /= 2; /* constants have no part any more */
    p.cluster.achieved[CLUSTER_OTHER].value /= 2;
    assert_true(seconds_of(&p, 1) == plain.seconds);
    close_run(&p);
}

/* If nothing hides sums, they take as long as without overlap. */
static void computation_hides_a_share_of_sums(void **state) {
    (void)state;
    struct planned p;
    struct cost_step hidden, half, none, without;
    open_run(&p, layouts[0]);
    struct config_quantity *share = &p.cluster.achieved[CLUSTER_SUMS_HIDDEN];
    p.run.config.parallel.overlap_grad_reduce = true;
    test_ok(cost_step(&p.run, 2, &p.work, &p.cluster, &hidden, NULL));
    share->value = 0.5;
    test_ok(cost_step(&p.run, 2, &p.work, &p.cluster, &half, NULL));
    share->value = 0;
    test_ok(cost_step(&p.run, 2, &p.work, &p.cluster, &none, NULL));
    p.run.config.parallel.overlap_grad_reduce = false;
    test_ok(cost_step(&p.run, 2, &p.work, &p.cluster, &without, NULL));
    assert_true(hidden.gradients < half.gradients && half.gradients < none.gradients);
    assert_true(fabs(half.gradients / ((hidden.gradients + none.gradients) / 2) - 1) < 1e-9);
    assert_true(fabs(none.gradients / without.gradients - 1) < 1e-9);
    close_run(&p);
}

/* A ring of data ranks between nodes has the link of each member that a node has, up to the speed within it. NCCL does
 * so; the stack of 2022 is fitted with one. */
static void a_ring_between_nodes_has_its_members_links(void **state) {
    (void)state;
    struct planned p;
    struct cost_step step;
    double seconds[4];
    open_run(&p, layouts[0]);
    p.cluster.achieved[CLUSTER_SUMS_HIDDEN].value = 0;
    p.cluster.network_latency.value = 0;
    for (int i = 0; i < 4; i++) {
        const double within[] = {1e30, 1e30, 3 * p.cluster.network_bandwidth.value, 1e30};
        p.cluster.per_node = i ? 4 : 1;
        p.cluster.processors = p.cluster.per_node;
        p.cluster.node_bandwidth.value = within[i];
        p.cluster.achieved[CLUSTER_NETWORK].value = 1;
        p.cluster.train = i == 3 ? CLUSTER_TRAINS_MEGATRON_2022 : CLUSTER_TRAINS_CAMBIUM;
        test_ok(cost_step(&p.run, 8, &p.work, &p.cluster, &step, NULL));
        seconds[i] = step.gradients;
    }
    assert_true(seconds[0] > 0 && fabs(seconds[1] / (seconds[0] / 4) - 1) < 1e-9);
    assert_true(fabs(seconds[2] / (seconds[0] / 3) - 1) < 1e-9);
    assert_true(fabs(seconds[3] / seconds[0] - 1) < 1e-9);
    close_run(&p);
}

/* Attention has shares of its own, and dropout takes a part of its speed. */
static void attention_and_its_dropout_have_their_speeds(void **state) {
    (void)state;
    static const char *const with[] = {"model.attention_dropout=0.1", NULL}, *const without[] = {
                                                                                 "model.attention_dropout=0", NULL};
    for (int drops = 0; drops < 2; drops++) {
        struct planned p;
        open_run(&p, drops ? with : without);
        p.cluster.memory_bandwidth.value = 1e30;
        p.cluster.achieved[CLUSTER_LAYER_FORWARD].value = p.cluster.achieved[CLUSTER_LAYER_BACKWARD].value = 0;
        double plain = seconds_of(&p, 1);
        p.cluster.achieved[CLUSTER_ATTENTION_DROPOUT].value /= 2;
        assert_true((seconds_of(&p, 1) > plain) == drops);
        p.cluster.achieved[CLUSTER_ATTENTION].value /= 2;
        assert_true(seconds_of(&p, 1) > plain);
        close_run(&p);
    }
}

static void tf32_speeds_up_products(void **state) {
    (void)state;
    static const char *const precisions[] = {"train.precision=fp32", "train.precision=tf32"};
    double seconds[2], without;
    for (int i = 0; i < 2; i++) {
        const char *const keys[] = {precisions[i], NULL};
        struct planned p;
        open_run(&p, keys);
        seconds[i] = seconds_of(&p, 1);
        p.cluster.peak_tf32 = p.cluster.peak_fp32;
        without = seconds_of(&p, 1);
        assert_true(without == seconds[0]);
        p.cluster.peak_tf32.value = 1e30;
        assert_true(seconds_of(&p, 1) > 0.01 * without); /* memory remains */
        p.cluster.peak_tf32.value = 0;
        cost_work_free(&p.work);
        int status = cost_work_make(&p.run, &p.cluster, &p.work);
        if (i)
            test_fails(status, STATUS_USAGE, "precision tf32: the cluster file has no device.peak_tf32");
        else
            test_ok(status);
        close_run(&p);
    }
    assert_true(seconds[1] < seconds[0]);
}

/* With free memory and free products in TF32, a step takes the FLOPs of attention that stays in fp32. */
static void attention_of_some_heads_is_in_tf32(void **state) {
    (void)state;
    static const struct {
        int size; /* of one of two heads */
        bool is_tf32;
    } heads[] = {{4, true}, {66, false}, {128, true}, {130, false}, {132, false}};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        char hidden[40];
        snprintf(hidden, sizeof hidden, "model.hidden_size=%d", 2 * heads[i].size);
        const char *const keys[] = {hidden, "model.num_attention_heads=2", "train.precision=tf32", NULL};
        struct planned p;
        struct cost_step step;
        struct train_plan plan;
        struct work_list list = {0};
        double flops = 0, all = 0;
        open_run(&p, keys);
        p.cluster.memory_bandwidth.value = p.cluster.peak_tf32.value = 1e30;
        p.cluster.achieved[CLUSTER_SMALL_DIMENSION].value = 0;
        p.cluster.achieved[CLUSTER_ATTENTION].value = p.cluster.achieved[CLUSTER_ATTENTION_DROPOUT].value = 1;
        test_ok(cost_step(&p.run, 1, &p.work, &p.cluster, &step, NULL));
        test_ok(train_plan_rank(&p.run, 1, 0, p.cluster.device, &plan, &list));
        for (int at = 0; at < list.count; at++) {
            const struct work_item *item = &list.items[at];
            bool is_step = item->part == WORK_FORWARD || item->part == WORK_BACKWARD;
            all += is_step ? (double)item->count * item->work.flops : 0;
            flops += is_step && item->phase == PHASE_ATTENTION ? (double)item->count * item->work.flops : 0;
        }
        double micro_batches = 8, rate = p.cluster.peak_fp32.value * p.cluster.achieved[CLUSTER_PRODUCTS].value;
        double expected = heads[i].is_tf32 ? 0 : flops * micro_batches / rate;
        assert_true(flops > 0 && fabs(step.work.products - expected) < 1e-9 * all * micro_batches / rate);
        work_free(&list);
        close_run(&p);
    }
}

/* FP8 is for the products of linears. Its casts take time. */
static void fp8_speeds_up_linears_alone(void **state) {
    (void)state;
    static const char *const bf16[] = {"model.hidden_size=2048", "data.seq_length=1024", NULL};
    static const char *const fp8[] = {"model.hidden_size=2048", "data.seq_length=1024", "train.precision=fp8", NULL};
    struct planned p, plain;
    struct cost_step step;
    read_run(&p, "h100", fp8);
    test_ok(cost_work_make(&p.run, &p.cluster, &p.work));
    p.cluster.achieved[CLUSTER_LAYER_FORWARD].value = p.cluster.achieved[CLUSTER_LAYER_BACKWARD].value = 0;
    read_run(&plain, "h100", bf16);
    test_ok(cost_work_make(&plain.run, &plain.cluster, &plain.work));
    plain.cluster.achieved[CLUSTER_LAYER_FORWARD].value = plain.cluster.achieved[CLUSTER_LAYER_BACKWARD].value = 0;
    double without = seconds_of(&plain, 1), with = seconds_of(&p, 1);
    p.cluster.peak_fp8 = p.cluster.peak_bf16;
    double same = seconds_of(&p, 1);
    assert_true(same > without && with < same);
    p.cluster.peak_fp8.value = 1e30;
    p.cluster.memory_bandwidth.value = plain.cluster.memory_bandwidth.value = 1e30;
    test_ok(cost_step(&p.run, 1, &p.work, &p.cluster, &step, NULL));
    double products = step.work.products; /* of the head and of attention */
    test_ok(cost_step(&plain.run, 1, &plain.work, &plain.cluster, &step, NULL));
    assert_true(products > 0.01 * step.work.products && products < 0.9 * step.work.products);
    assert_true(p.work.weights[COST_LAYER] == plain.work.weights[COST_LAYER]); /* casts do not travel */
    p.cluster.peak_fp8.value = 0;
    cost_work_free(&p.work);
    test_fails(cost_work_make(&p.run, &p.cluster, &p.work), STATUS_USAGE,
               "precision fp8: the cluster file has no device.peak_fp8");
    close_run(&p);
    close_run(&plain);
}

static void a_bound_of_time_is_below_the_step(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        struct planned p;
        double least;
        open_run(&p, layouts[i]);
        int ranks = (int)(p.run.config.parallel.tensor_model_parallel_size *
                          p.run.config.parallel.pipeline_model_parallel_size);
        test_ok(cost_least(&p.run, ranks, &p.work, &p.cluster, &least));
        assert_true(least > 0 && least <= seconds_of(&p, ranks) * (1 + 1e-12));
        close_run(&p);
    }
}

/* dpo runs the reference model's forward before each batch, and kto two forwards more. */
static void references_add_their_forwards(void **state) {
    (void)state;
    static const char *const keys[] = {NULL};
    double flops[4];
    for (int i = 0; i < 4; i++) {
        struct planned p;
        open_run(&p, keys);
        struct train_plan plan;
        struct work_list list = {0};
        p.run.loss = &loss_table[i];
        test_ok(train_plan_rank(&p.run, 1, 0, p.cluster.device, &plan, &list));
        flops[i] = work_sum(&list, WORK_FORWARD).flops;
        work_free(&list);
        close_run(&p);
    }
    enum { SFT, DPO, ORPO, KTO };
    const double head = 2.0 * 64 * 64 * 512; /* of a row; the head of a pass that trains counts in its backward */
    assert_float_equal(flops[DPO], 2 * flops[ORPO] + 2 * head, 0);
    assert_float_equal(flops[KTO], 4 * flops[SFT] + 3 * head, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_make_up_the_work_of_whole_stages),
        cmocka_unit_test(a_stage_that_waits_leaves_its_processor_to_others),
        cmocka_unit_test(every_cause_has_its_effect),
        cmocka_unit_test(measured_speeds_take_the_place_of_constants),
        cmocka_unit_test(computation_hides_a_share_of_sums),
        cmocka_unit_test(a_ring_between_nodes_has_its_members_links),
        cmocka_unit_test(attention_and_its_dropout_have_their_speeds),
        cmocka_unit_test(tf32_speeds_up_products),
        cmocka_unit_test(attention_of_some_heads_is_in_tf32),
        cmocka_unit_test(fp8_speeds_up_linears_alone),
        cmocka_unit_test(a_bound_of_time_is_below_the_step),
        cmocka_unit_test(references_add_their_forwards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
