/* config: the YAML file and the rows of a run. */
#include "resolve.h"

#include <math.h>

static void refuses(const char *text, const char *part) {
    struct options options;
    struct config *config;
    test_fails(read_text(&options, &config, text), STATUS_USAGE, part);
    assert_null(config);
}

static void sections_keys_and_lists_are_read(void **state) {
    (void)state;
    struct options o;
    struct config *config;
    test_ok(
        read_text(&o, &config,
                  "# a run\ntokenizer: /some/dir\nmodel:\n  num_layers: 3\n  'hidden_dropout': 0\n  activation: gelu\n"
                  "data:\n  data_path:\n    - 0.3\n    - my prefix\n    - 0.7\n    - \"b\"\n  split: 90,10,0\n"
                  "train:\n  precision: bf16\nlog: {measure_ceiling: true}\n"));
    assert_string_equal(o.run.tokenizer.path, "/some/dir");
    assert_int_equal(o.run.model.num_layers, 3);
    assert_true(o.run.model.hidden_dropout == 0);
    assert_int_equal(o.run.model.activation, ACTIVATION_GELU_EXACT);
    assert_int_equal(o.run.data.data_path.count, 4);
    assert_string_equal(o.run.data.data_path.items[1], "my prefix");
    assert_string_equal(o.run.data.split, "90,10,0");
    assert_int_equal(o.run.train.precision, PRECISION_BF16);
    assert_true(o.run.log.measure_ceiling);
    assert_true(config_is_given(config, "model.hidden_dropout"));
    assert_false(config_is_given(config, "model.attention_dropout"));
    config_free(config);
    test_ok(read_text(&o, &config, "data:\n  data_path: 0.3 a 0.7 b\n"));
    assert_int_equal(o.run.data.data_path.count, 4);
    config_free(config);
    test_ok(read_text(&o, &config, "data:\n  data_path: 'my prefix'\n"));
    assert_int_equal(o.run.data.data_path.count, 1);
    config_free(config);
    test_ok(read_text(&o, &config, "# nothing\n"));
    config_free(config);
}

static void what_is_not_plain_data_is_refused_with_its_place(void **state) {
    (void)state;
    refuses("model: &m\n  num_layers: 1\n", "run.yaml:1:8: anchor &m");
    refuses("tokenizer: &a b\ncheckpoint:\n  save: *a\n", "anchor &a");
    refuses("checkpoint:\n  save: *a\n", "run.yaml:2:9: alias *a");
    refuses("model:\n  num_layers: !!int 3\n", "tag tag:yaml.org,2002:int");
    refuses("model:\n  <<: {num_layers: 1}\n", "unknown key 'model.<<'");
    refuses("model:\n  num_layers: 1\n---\nmodel:\n  num_layers: 2\n", "run.yaml:3:1: a second document");
    refuses("model:\n  num_layers:\n", "run.yaml:2:14: model.num_layers: no value (null)");
    refuses("tokenizer: ~\n", "tokenizer: no value (null)");
    refuses("tokenizer: NULL\n", "tokenizer: no value (null)");
    refuses("- model\n", "run.yaml:1:1: expected sections ('model:', 'train:', ...), found a list");
    refuses("model\n", "found a single value");
    refuses("model: [1]\n", "section model: expected 'key: value' lines, found a list");
    refuses("model: 3\n", "found a single value");
    refuses("[a]: 3\n", "a key must be a name");
    refuses("model:\n  num_layers: {a: 1}\n", "model.num_layers: expected a single value, found a mapping");
    refuses("model:\n  num_layers: [1]\n", "found a list");
    refuses("data:\n  data_path: [[a]]\n", "a list within the list");
    refuses("tokenizer: \"a\\0b\"\n", "tokenizer: a zero byte");
    refuses("model:\n\tnum_layers: 1\n", "run.yaml:2:1");
    refuses("model: {num_layers: 1\n", "run.yaml:2:1");
    refuses("%TAG ! tag:a,2000:\n---\nmodel: {num_layers: 1}\n", "%TAG");
    struct options o;
    struct config *config;
    test_fails(read_bytes(&o, &config, "a: \xff\n", 6), STATUS_USAGE, "byte 3");
}

static void wrong_keys_and_values_are_named_with_line_and_column(void **state) {
    (void)state;
    refuses("modle:\n  num_layers: 1\n", "run.yaml:1:1: unknown section 'modle' (did you mean model?)");
    refuses("toknizer: a\n", "did you mean tokenizer?");
    refuses("lr: 1\n", "did you mean optim.lr?");
    refuses("model:\n  num_layer: 1\n", "run.yaml:2:3: unknown key 'model.num_layer' (did you mean model.num_layers?)");
    refuses("train:\n  lr: 1\n", "unknown key 'train.lr' (did you mean optim.lr?)");
    refuses("config: a\n", "unknown section 'config'");
    refuses("model:\n  num_layers: 0\n", "run.yaml:2:15: model.num_layers: 0 is out of range: expected 1 to 10000");
    refuses("model:\n  num_layers: 1.0\n", "'1.0' is not an integer");
    refuses("optim:\n  lr: .inf\n", "'.inf' is not a number");
    refuses("train:\n  precision: fp23\n", "'fp23' is none of fp32, bf16, tf32, fp8 (did you mean fp32?)");
    refuses("data:\n  eod_mask_loss: yes\n", "'yes' is not a truth value here: write true");
    refuses("data:\n  eod_mask_loss: off\n", "write false");
    refuses("model:\n  num_layers: 1\n  num_layers: 2\n",
            "run.yaml:3:3: model.num_layers is given twice, first on line 2");
    refuses("model:\n  num_layers: 1\ntrain: {seed: 1}\nmodel:\n  hidden_size: 2\n",
            "run.yaml:4:1: section model is given twice, first on line 1");
}

static void hostile_files_end_early(void **state) {
    (void)state;
    enum { SIZE = 200000 };
    char *text = malloc(SIZE + (1 << 20));
    memset(text, '[', SIZE);
    struct options o;
    struct config *config;
    test_fails(read_bytes(&o, &config, text, SIZE), STATUS_USAGE, "expected sections");
    memcpy(text, "a: ", 3);
    test_fails(read_bytes(&o, &config, text, SIZE), STATUS_USAGE, "unknown section 'a'");
    memcpy(text, "data: {data_path: ", 18);
    test_fails(read_bytes(&o, &config, text, SIZE), STATUS_USAGE, "a list within the list");
    memset(text, 'k', SIZE);
    memcpy(text + SIZE, ": 1\n", 4);
    test_fails(read_bytes(&o, &config, text, SIZE + 4), STATUS_USAGE, "run.yaml:1:1");
    memset(text, '#', SIZE + (1 << 20));
    test_fails(read_bytes(&o, &config, text, SIZE + (1 << 20)), STATUS_INVALID, "more than the 1048576 allowed");
    size_t length = (size_t)sprintf(text, "data: {data_path: [");
    for (int i = 0; i < 200000; i++) /* each item costs the same, however many there are */
        length += (size_t)sprintf(text + length, "a,");
    length += (size_t)sprintf(text + length, "]}");
    test_ok(read_bytes(&o, &config, text, length));
    assert_int_equal(o.run.data.data_path.count, 200000);
    config_free(config);
    free(text);
}

static void what_follows_from_other_keys_is_filled(void **state) {
    (void)state;
    struct options o;
    test_ok(resolve(&o, ""));
    assert_int_equal(o.run.model.ffn_hidden_size, 256);
    assert_int_equal(o.run.model.num_query_groups, 4);
    assert_int_equal(o.run.model.max_position_embeddings, 32);
    assert_true(o.run.model.embedding_dropout == 0.1);
    assert_int_equal(o.run.train.global_batch_size, 1);
    assert_int_equal(o.run.optim.lr_decay_iters, 10);
    assert_true(o.run.optim.clip_grad == 1.0);
    assert_int_equal(o.run.optim.lr_decay_style, LR_LINEAR);
    test_ok(resolve(&o, "--train.micro_batch_size=3 --model.embedding_dropout=0 --optim.lr=0 --optim.clip_grad=0"));
    assert_int_equal(o.run.train.global_batch_size, 3);
    assert_true(o.run.model.embedding_dropout == 0);
}

static void impossible_runs_are_refused_with_both_numbers(void **state) {
    (void)state;
    cannot_be("--model.hidden_size=65", "model.hidden_size 65 is not divisible by model.num_attention_heads 4");
    cannot_be("--model.num_query_groups=3", "model.num_attention_heads 4 is not divisible by model.num_query_groups 3");
    cannot_be("--model.kv_channels=131072 --model.num_attention_heads=9", "9 by model.kv_channels 131072");
    cannot_be("--model.swiglu=true --model.hidden_size=20", "model.ffn_hidden_size is not given, and 2/3 of 4 *");
    cannot_be("--model.swiglu=true --model.activation=gelu", "model.activation gelu with model.swiglu");
    cannot_be("--model.max_position_embeddings=16", "data.seq_length 32 is more than model.max_position_embeddings 16");
    cannot_be("--train.micro_batch_size=4 --train.global_batch_size=6",
              "train.global_batch_size 6 is not a multiple of train.micro_batch_size 4");
    cannot_be("--optim.min_lr=0.1", "optim.lr 0.001 is below optim.min_lr 0.1");
    cannot_be("--optim.lr_warmup_init=0.1", "optim.lr 0.001 is below optim.lr_warmup_init 0.1");
    cannot_be("--optim.lr_warmup_iters=10", "optim.lr_warmup_iters 10 is not below optim.lr_decay_iters 10");
    cannot_be("--optim.lr_decay_style=WSD", "WSD needs optim.lr_wsd_decay_iters");
    cannot_be("--optim.lr_decay_style=WSD --optim.lr_wsd_decay_iters=9 --optim.lr_warmup_iters=2",
              "optim.lr_wsd_decay_iters 9 is more than the 8 iterations");
    cannot_be("--optim.adam_beta2=1", "optim.adam_beta2 1: expected at least 0 and below 1");
    cannot_be("--model.hidden_dropout=1", "model.hidden_dropout 1: expected at least 0 and below 1");
    cannot_be("--checkpoint.save_interval=5", "checkpoint.save_interval 5 without checkpoint.save");
    cannot_be("--parallel.num_microbatches_with_partial_activation_checkpoints=2",
              "checkpoints 2: expected with parallel.recompute_granularity full and parallel.recompute_method block");
    cannot_be("--parallel.context_parallel_size=2", "parallel.context_parallel_size 2: this build has only 1");
    cannot_be("--parallel.recompute_modules=mlp", "parallel.recompute_modules mlp: expected core_attn, layernorm or");
}

static void what_a_run_needs_is_asked_for_by_name(void **state) {
    (void)state;
    struct options o;
    struct config *config; /* which owns the strings of the run */
    test_ok(read_text(&o, &config, SMALL));
    struct run_config run = o.run;
    run.model.num_layers = 0;
    test_fails(run_config_resolve(&run), STATUS_USAGE, "model.num_layers is not given");
    run = o.run;
    run.model.vocab_size = 0;
    test_fails(run_config_resolve(&run), STATUS_USAGE, "give tokenizer (a directory) or model.vocab_size");
    run = o.run;
    run.optim.lr = -1;
    test_fails(run_config_resolve(&run), STATUS_USAGE, "optim.lr is not given");
    run = o.run;
    run.train.train_iters = 0;
    test_fails(run_config_resolve(&run), STATUS_USAGE, "train.train_iters is not given");
    run = o.run;
    run.data.seq_length = run.model.max_position_embeddings = 0;
    test_fails(run_config_resolve(&run), STATUS_USAGE, "data.seq_length is not given");
    config_free(config);
}

static void the_dump_reads_back_to_the_same_run(void **state) {
    (void)state;
    struct options o, again;
    struct config *config, *config_again;
    test_ok(read_text(&o, &config, SMALL)); /* not resolved: what was not given stays away */
    char *unresolved = dump(&o);
    test_ok(read_text(&again, &config_again, unresolved));
    assert_false(config_is_given(config_again, "model.ffn_hidden_size"));
    config_free(config_again);
    o.run.tokenizer.path = "a: b #c\\\"\x01\n\xc3\xa9\xc2\x85\xc2\x90\xe2\x80\xa8\xef\xbb\xbf\xf0\x9f\x8c\xb1 'd'";
    o.run.checkpoint.save = "null";
    o.run.checkpoint.load = "- x";
    o.run.log.metrics_file = "~";
    o.run.data.split = "";
    const char *items[] = {"0.3", "true", "a, b", "[c]", "%d", "&e", " ", "...", "---"};
    o.run.data.data_path = (struct config_list){items, sizeof items / sizeof *items};
    o.run.optim.lr = 0.1 + 0.2;
    o.run.optim.min_lr = 1.0 / 3 * 1e-7;
    o.run.optim.adam_eps = nextafter(1e-8, 1);
    o.run.optim.clip_grad = 1e22;
    o.run.data.reset_position_ids = true;
    o.run.optim.lr_decay_style = LR_WSD;
    o.run.optim.lr_wsd_decay_iters = 2;
    test_ok(run_config_resolve(&o.run));
    char *first = dump(&o);
    test_ok(read_text(&again, &config_again, first));
    char *second = dump(&again);
    assert_string_equal(first, second);
    assert_string_equal(again.run.tokenizer.path, o.run.tokenizer.path);
    assert_string_equal(again.run.checkpoint.save, "null");
    assert_string_equal(again.run.checkpoint.load, "- x");
    assert_string_equal(again.run.data.split, "");
    assert_int_equal(again.run.data.data_path.count, sizeof items / sizeof *items);
    for (size_t i = 0; i < again.run.data.data_path.count; i++)
        assert_string_equal(again.run.data.data_path.items[i], items[i]);
    assert_true(again.run.optim.lr == o.run.optim.lr && again.run.optim.min_lr == o.run.optim.min_lr);
    assert_true(again.run.optim.adam_eps == o.run.optim.adam_eps && again.run.optim.clip_grad == o.run.optim.clip_grad);
    assert_int_equal(again.run.optim.lr_decay_style, LR_WSD);
    assert_true(again.run.data.reset_position_ids);
    free(unresolved);
    free(first);
    free(second);
    config_free(config);
    config_free(config_again);
}

static void the_rows_of_a_run_are_well_formed(void **state) {
    (void)state;
    for (size_t i = 0; i < run_row_count; i++) {
        const struct config_row *row = &run_rows[i];
        assert_non_null(row->help);
        if (row->type == CONFIG_CHOICE)
            assert_non_null(row->choices);
        for (size_t j = 0; j < i; j++) {
            if (!strcmp(row->path, run_rows[j].path) || row->offset == run_rows[j].offset)
                fail_msg("%s and %s", row->path, run_rows[j].path);
        }
        if (row->default_text && (row->type == CONFIG_INT || row->type == CONFIG_FLOAT)) {
            char *end;
            strtod(row->default_text, &end);
            assert_int_equal(*end, 0);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sections_keys_and_lists_are_read),
        cmocka_unit_test(what_is_not_plain_data_is_refused_with_its_place),
        cmocka_unit_test(wrong_keys_and_values_are_named_with_line_and_column),
        cmocka_unit_test(hostile_files_end_early),
        cmocka_unit_test(what_follows_from_other_keys_is_filled),
        cmocka_unit_test(impossible_runs_are_refused_with_both_numbers),
        cmocka_unit_test(what_a_run_needs_is_asked_for_by_name),
        cmocka_unit_test(the_dump_reads_back_to_the_same_run),
        cmocka_unit_test(the_rows_of_a_run_are_well_formed),
    };
    return cmocka_run_group_tests(tests, open_directory, forget_directory);
}
