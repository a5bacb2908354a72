/* Whichever allocation of this room fails, the failure is reported and nothing remains. */
#include "options.h"

#include "support/failing.h"

static char yaml[256];

static int write_yaml(void **state) {
    static const char text[] =
        "# a run\n"
        "model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, vocab_size: 500}\n"
        "data:\n    seq_length: 32\n    data_path: 0.5 a 0.5 b\n    split: \"9,1,0\"\n"
        "train: {train_iters: 10}\noptim: {lr: 1e-3}\nparallel: {recompute_modules: [layernorm, mlp_act]}\n";
    char *directory = test_directory();
    (void)state;
    snprintf(yaml, sizeof yaml, "%s/run.yaml", directory);
    free(directory);
    return file_write_atomic(yaml, text, sizeof text - 1);
}

static int parse_and_tell(void *context) {
    const char *const *words = context;
    struct config_command command = make_command(true);
    struct options options = {0};
    struct config *config;
    struct facts facts = FACTS_INIT;
    int status = parse(&options, &config, true, words);
    if (!status)
        status = run_config_resolve(&options.run);
    if (!status)
        status = config_facts(&command, &options, &facts);
    facts_free(&facts);
    config_free(config);
    return status;
}

static void a_command_line_and_a_file_are_read(void **state) {
    (void)state;
    const char *const *words =
        WORDS("--config", yaml, "--output", "out", "--input", "a", "b", "c", "d", "e", "word", "--kind=plain",
              "--data.data_path=[\"c d\", e]", "--parallel.recompute_modules=mlp_act", "--train.train_iters=20");
    assert_int_equal(failing_try_all(parse_and_tell, (void *)words, 300), 0);
}

static int help(void *context) {
    struct config_command command = make_command(true);
    return config_help(&command, NULL, context);
}

static void the_help_is_printed(void **state) {
    FILE *out = fopen("/dev/null", "w");
    (void)state;
    assert_int_equal(failing_try_all(help, out, 100), 0);
    fclose(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_help_is_printed),
        cmocka_unit_test(a_command_line_and_a_file_are_read),
    };
    return cmocka_run_group_tests(tests, write_yaml, NULL);
}
