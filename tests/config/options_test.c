/* config: the command line. What is given is what the struct holds; what is wrong is named with what was expected. */
#include "options.h"

static void refuses(const char *const *words, const char *part) {
    struct options options;
    struct config *config;
    test_fails(parse(&options, &config, false, words), STATUS_USAGE, part);
    assert_null(config);
}

static void every_form_of_a_value_is_read(void **state) {
    (void)state;
    struct options o;
    struct config *config;
    test_ok(parse(&o, &config, true,
                  WORDS("--output=a=b", "--vocab-size", "300", "--share", "-1e-3", "--kind=plain", "--dry-run", "x",
                        "--input", "one file", "two,too", "--loud=false", "--input=three", "--", "--y")));
    assert_string_equal(o.output, "a=b");
    assert_int_equal(o.vocab_size, 300);
    assert_true(o.share == -1e-3);
    assert_int_equal(o.kind, 0);
    assert_true(o.dry_run);
    assert_false(o.is_loud);
    assert_int_equal(o.input.count, 3);
    assert_string_equal(o.input.items[0], "one file");
    assert_string_equal(o.input.items[1], "two,too");
    assert_string_equal(o.input.items[2], "three");
    assert_int_equal(o.words.count, 2);
    assert_string_equal(o.words.items[0], "x");
    assert_string_equal(o.words.items[1], "--y");
    assert_true(config_is_given(config, "share"));
    assert_false(config_is_given(config, "config"));
    assert_false(config_is_given(config, "optim.lr"));
    config_free(config);
}

static void what_is_not_given_has_its_default(void **state) {
    (void)state;
    struct options o;
    struct config *config;
    test_ok(parse(&o, &config, true, WORDS("--output", "-")));
    assert_string_equal(o.output, "-");
    assert_null(o.config);
    assert_false(o.dry_run);
    assert_true(o.is_loud);
    assert_int_equal(o.input.count + o.words.count, 0);
    assert_int_equal(o.vocab_size, 8192);
    assert_true(o.share == 0.5);
    assert_int_equal(o.kind, 1);
    assert_true(o.run.model.hidden_dropout == 0.1);
    assert_string_equal(o.run.data.split, "969, 30, 1");
    config_free(config);
}

static void the_last_flag_counts_and_lists_split_as_promised(void **state) {
    (void)state;
    struct options o;
    struct config *config;
    test_ok(parse(&o, &config, false,
                  WORDS("--output", "a", "--output", "b", "--data.data_path=0.3 P1,0.7 P2", "--dry-run", "false",
                        "--tokenizer", "t", "--input=[a b, 'c, d']")));
    assert_string_equal(o.output, "b");
    assert_false(o.dry_run);
    assert_string_equal(o.run.tokenizer.path, "t");
    assert_int_equal(o.run.data.data_path.count, 4);
    assert_string_equal(o.run.data.data_path.items[3], "P2");
    assert_int_equal(o.input.count, 2);
    assert_string_equal(o.input.items[0], "a b");
    assert_string_equal(o.input.items[1], "c, d");
    config_free(config);
    test_ok(parse(&o, &config, false, WORDS("--output", "a", "--data.data_path", "0.3", "my prefix", "0.7", "P2")));
    assert_int_equal(o.run.data.data_path.count, 4);
    assert_string_equal(o.run.data.data_path.items[1], "my prefix");
    config_free(config);
}

static void sizes_are_bytes_or_counts_of_a_unit(void **state) {
    (void)state;
    static const struct {
        const char *text, *back;
        int64_t bytes;
    } sizes[] = {{"--room=1024", "1K", 1024},
                 {"--room=1025", "1025", 1025},
                 {"--room=3K", "3K", 3072},
                 {"--room=5M", "5M", 5LL << 20},
                 {"--room=7G", "7G", 7LL << 30},
                 {"--room=2T", "2T", 2LL << 40},
                 {"--room=2048M", "2G", 2048LL << 20},
                 {"--dry-run", "1536M", 1536LL << 20},
                 {"--room=3KiB", "3K", 3072},
                 {"--room=5MiB", "5M", 5LL << 20},
                 {"--room=7GiB", "7G", 7LL << 30},
                 {"--room=2TiB", "2T", 2LL << 40},
                 {"--room=3KB", "3000", 3000},
                 {"--room=5MB", "5000000", 5000000},
                 {"--room=7GB", "7000000000", 7000000000},
                 {"--room=2TB", "1953125000K", 2000000000000},
                 {"--room=3k", "3K", 3072},
                 {"--room=5mib", "5M", 5LL << 20},
                 {"--room=7gb", "7000000000", 7000000000},
                 {"--room=3kB", "3000", 3000}};
    struct config_command command = make_command(false);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct options o;
        struct config *config;
        char text[32];
        size_t row = 0;
        test_ok(parse(&o, &config, false, WORDS("--output", "a", sizes[i].text)));
        assert_int_equal(o.room, sizes[i].bytes);
        while (strcmp(command.rows[row].path, "room") != 0)
            row++;
        config_value_text(&command.rows[row], &o.room, text, sizeof text);
        assert_string_equal(text, sizes[i].back);
        config_free(config);
    }
    static const char *const wrong[] = {"--room=",     "--room=K",   "--room=1B",  "--room=1KiBB", "--room=1PB",
                                        "--room=1.5G", "--room=-1G", "--room=1 G", "--room=0x1G",  "--room=1KBi",
                                        "--room=MB",   "--room=1iB", "--room=1M "};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        refuses(WORDS(wrong[i]), "is not a size");
    refuses(WORDS("--room=1023"), "1023 is out of range: expected 1024 to");
    refuses(WORDS("--room=8388608T"), "8388608T does not fit into 64 bits");
    refuses(WORDS("--room=9223373TB"), "9223373TB does not fit into 64 bits");
    refuses(WORDS("--room=99999999999999999999"), "does not fit into 64 bits");
}

static void a_choice_may_have_a_value_when_it_stands_bare(void **state) {
    (void)state;
    struct options o;
    struct config *config;
    static const struct {
        const char *words[3]; /* NULL-terminated */
        int who;
        bool dry_run;
    } cases[] = {
        {{"--dry-run"}, 0, true},
        {{"--who"}, 1, false},
        {{"--who", "--dry-run"}, 1, true},
        {{"--who", "open"}, 2, false},
        {{"--who=open", "--who=shut"}, 0, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *words[4] = {"--output=a"};
        memcpy(words + 1, cases[i].words, sizeof cases[i].words);
        test_ok(parse(&o, &config, false, words));
        assert_int_equal(o.who, cases[i].who);
        assert_int_equal(o.dry_run, cases[i].dry_run);
        config_free(config);
    }
    refuses(WORDS("--output=a", "--who", "opne"), "unexpected word 'opne'");
    refuses(WORDS("--output=a", "--who=opne"), "'opne' is none of shut, key, open (did you mean open?)");
}

static void wrong_options_are_named_with_the_nearest(void **state) {
    (void)state;
    refuses(WORDS("--outptu", "a"), "unknown option --outptu (did you mean --output?)");
    refuses(WORDS("--lr=1"), "unknown option --lr (did you mean --optim.lr?)");
    refuses(WORDS("--train.lr=1"), "did you mean --optim.lr?");
    refuses(WORDS("--model.num-layers=1"), "did you mean --model.num_layers?");
    refuses(WORDS("--lou"), "did you mean --loud?");
    refuses(WORDS("--o"), "did you mean --output?");
    refuses(WORDS("--optim.l"), "did you mean --optim.lr?"); /* the first of those that begin so */
    refuses(WORDS("--init_m"), "did you mean --model.init_method_std?");
    refuses(WORDS("--vers"), "did you mean --version?");
    refuses(WORDS("--version=1"), "option --version takes no value");
    refuses(WORDS("--hlep"), "unknown option --hlep (did you mean --help?)");
    refuses(WORDS("--qqqqqqqqqq=1"), "unknown option --qqqqqqqqqq; 'cambium try --help' lists them");
    refuses(WORDS("-o", "a"), "unknown option -o");
    refuses(WORDS("word"), "unexpected word 'word'");
    refuses(WORDS("--dry-run"), "--output is required (where to write)");
}

static void names_of_other_programs_give_ours(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"--learning-rate=1", "unknown option --learning-rate (did you mean --optim.lr?)"},
        {"--Learning_Rate=1", "(did you mean --optim.lr?)"},
        {"--train.learning_rate=1", "(did you mean --optim.lr?)"},
        {"learning_rate=1", "unexpected word 'learning_rate=1' (did you mean --optim.lr?)"},
        {"optim.lr=1", "unexpected word 'optim.lr=1' (did you mean --optim.lr?)"},
        {"-o", "unknown option -o (did you mean --output?)"},
        {"--save", "(did you mean --output?)"}, /* the first one that the command has */
        {"--gradient-accumulation-steps=2", "train.global_batch_size / (micro_batch_size x data ranks)"},
        {"--use-flash-attn", "unknown option --use-flash-attn: it is not needed"},
        {"--no-enable-bf16", "(did you mean --train.precision=bf16?)"}, /* without the words of a switch */
        {"--vocab_size", "(did you mean --vocab-size?)"},
        {"--max-loras=2", "unknown option --max-loras: it is for other commands ("},
        {"--learning", "unknown option --learning; "},
        {"--ouptutt=a", "(did you mean --output?)"}, /* two mistakes; three are too many */
        {"--oouptutt=a", "unknown option --oouptutt; "},
        {"--lod", "(did you mean --loud?)"},
        {"--lo_d_x", "unknown option --lo_d_x; "},
        {"word", "unexpected word 'word' (did you mean --config word?)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuses(WORDS(cases[i][0]), cases[i][1]);
    refuses(WORDS("--input", "a", "-o", "b"), "unknown option -o (did you mean --output?)"); /* and no item of a list */
    refuses(WORDS("--config=", "word"), "unexpected word 'word' (did you mean --output word?)");
    refuses(WORDS("--config=", "--output=a", "word"), "unexpected word 'word'; ");
}

static void names_of_other_programs_in_a_file_give_ours(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"learning_rate: 1\n", "unknown section 'learning_rate' (did you mean optim.lr?)"},
        {"train: {learning_rate: 1}\n", "run.yaml:1:9: unknown key 'train.learning_rate' (did you mean optim.lr?)"},
        {"bf16: true\n", "unknown section 'bf16' (did you mean train.precision=bf16?)"},
        {"output_dir: a\n", "unknown section 'output_dir' (did you mean --output?)"},
        {"train:\n  gradient_accumulation_steps: 1\n",
         "run.yaml:2:3: unknown key 'train.gradient_accumulation_steps': it is train.global_batch_size / "},
        {"trian: {lr: 1}\n", "unknown section 'trian' (did you mean train?)"},
        {"somewhere: {lr: 1}\n", "unknown section 'somewhere'"},
    };
    char *directory = test_directory(), path[256];
    snprintf(path, sizeof path, "%s/run.yaml", directory);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_ok(file_write_atomic(path, cases[i][0], strlen(cases[i][0])));
        refuses(WORDS("--config", path, "--output=a"), cases[i][1]);
    }
    assert_null(strstr(status_text(), "did you mean"));
    free(directory);
}

static void wrong_values_say_what_was_expected(void **state) {
    (void)state;
    refuses(WORDS("--output"), "option --output needs a value");
    refuses(WORDS("--output", "--dry-run"), "--output=VALUE");
    refuses(WORDS("--input", "--dry-run"), "option --input needs a value");
    refuses(WORDS("--vocab-size=256"), "option --vocab-size: 256 is out of range: expected 257 to 1000000");
    refuses(WORDS("--vocab-size=1e6"), "'1e6' is not an integer");
    refuses(WORDS("--vocab-size=300 "), "'300 ' is not an integer");
    refuses(WORDS("--vocab-size="), "'' is not an integer");
    refuses(WORDS("--vocab-size=0300"), "leading zero");
    refuses(WORDS("--vocab-size=99999999999999999999"), "does not fit into 64 bits");
    refuses(WORDS("--share=0x1p3"), "'0x1p3' is not a number");
    refuses(WORDS("--share=nan"), "'nan' is not a number");
    refuses(WORDS("--share=1e999"), "1e999 is too large");
    refuses(WORDS("--share=1.0.0"), "'1.0.0' is not a number");
    refuses(WORDS("--share="), "'' is not a number");
    refuses(WORDS("--kind=pakced"), "'pakced' is none of plain, packed (did you mean packed?)");
    refuses(WORDS("--dry-run=yes"), "'yes' is not a truth value here: write true");
    refuses(WORDS("--dry-run=Off"), "write false");
    refuses(WORDS("--input=[a, [b]]"), "a list within the list");
}

static void flags_go_over_the_file(void **state) {
    (void)state;
    char *directory = test_directory(), path[256];
    snprintf(path, sizeof path, "%s/run.yaml", directory);
    const char text[] = "optim: {lr: 1e-3, min_lr: 1e-4}\ndata:\n  data_path: [a, b]\n";
    test_ok(file_write_atomic(path, text, strlen(text)));
    struct options o;
    struct config *config;
    test_ok(parse(&o, &config, false,
                  WORDS("--optim.lr=2e-3", "--output", "a", "--data.data_path", "c", "--config", path)));
    assert_true(o.run.optim.lr == 2e-3);
    assert_true(o.run.optim.min_lr == 1e-4);
    assert_int_equal(o.run.data.data_path.count, 1);
    assert_string_equal(o.run.data.data_path.items[0], "c");
    assert_true(config_is_given(config, "optim.min_lr"));
    config_free(config);
    test_fails(parse(&o, &config, false, WORDS("--output", "a", "--config", "/nowhere/a.yaml")), STATUS_NOT_FOUND,
               "/nowhere/a.yaml");
    free(directory);
}

static void an_empty_path_is_not_given(void **state) {
    (void)state;
    char *directory = test_directory(), path[256];
    snprintf(path, sizeof path, "%s/run.yaml", directory);
    const char text[] = "tokenizer: t\ncheckpoint: {save: s, load: \"\"}\ndata: {data_path: [a, b]}\n";
    test_ok(file_write_atomic(path, text, strlen(text)));
    struct options o;
    struct config *config;
    test_ok(parse(&o, &config, false,
                  WORDS("--config", path, "--output", "a", "--checkpoint.save=", "--tokenizer=", "--data.data_path=")));
    assert_null(o.run.checkpoint.save);
    assert_null(o.run.checkpoint.load);
    assert_null(o.run.tokenizer.path);
    assert_int_equal(o.run.data.data_path.count, 0);
    assert_false(config_is_given(config, "checkpoint.save"));
    assert_false(config_is_given(config, "checkpoint.load"));
    config_free(config);
    test_ok(parse(&o, &config, false, WORDS("--config=", "--output=", "--output=a")));
    assert_string_equal(o.output, "a");
    config_free(config);
    refuses(WORDS("--output", "a", "--output="), "--output is required (where to write)");
    refuses(WORDS("--input", "a", ""), "option --input: an empty path");
    refuses(WORDS("--input="), "option --input: an empty path");
    test_ok(file_write_atomic(path, "data:\n  data_path: [a,\n   '']\n", 30));
    refuses(WORDS("--config", path), "run.yaml:3:4: data.data_path: an empty path");
    free(directory);
}

static void help_is_complete_and_fits_the_screen(void **state) {
    (void)state;
    struct config_command command = make_command(false);
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    test_ok(config_help(&command, NULL, out));
    fclose(out);
    for (size_t i = 0; i < command.row_count + command.section_row_count; i++) {
        const struct config_row *row = i < command.row_count ? &rows[i] : &run_rows[i - command.row_count];
        char flag[128];
        snprintf(flag, sizeof flag, "--%s", row->path);
        if (!strstr(text, flag))
            fail_msg("%s is not in the help", flag);
    }
    assert_non_null(strstr(text, "--kind NAME"));
    assert_non_null(strstr(text, "(one of plain, packed; default packed)"));
    assert_non_null(strstr(text, "--loud=false"));
    assert_non_null(strstr(text, "--who [NAME]"));
    assert_non_null(strstr(text, "(257 to 1000000; default 8192)"));
    assert_non_null(strstr(text, "(required)"));
    assert_non_null(strstr(text, "\nA SIZE is bytes, or a number with a unit: K, M, G, T or KiB"));
    assert_non_null(strstr(text, "examples:\n  cambium try --output a\n"));
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
        size_t length = strcspn(line, "\n");
        if (length > 100 || (length && line[length - 1] == ' '))
            fail_msg("a line of %zu columns or with a blank at its end: %.*s", length, (int)length, line);
    }
    free(text);
}

static void help_of_a_section_has_its_rows_alone(void **state) {
    (void)state;
    struct config_command command = make_command(false);
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    test_ok(config_help(&command, "optim", out));
    fclose(out);
    assert_memory_equal(text, "optim:\n  --optim.lr X", 20);
    for (size_t i = 0; i < command.section_row_count; i++) {
        char flag[128];
        snprintf(flag, sizeof flag, "  --%s ", run_rows[i].path);
        assert_int_equal(strstr(text, flag) != NULL, !strncmp(run_rows[i].path, "optim.", 6));
    }
    assert_null(strstr(text, "usage:"));
    assert_null(strstr(text, "A SIZE is bytes"));
    free(text);
    test_fails(config_help(&command, "opt", stdout), STATUS_USAGE,
               "'cambium try' has no such section: expected model, ");
    refuses(WORDS("--help=output"), "has no such section");
}

static void an_absent_key_is_refused_with_its_reason(void **state) {
    (void)state;
    static const struct config_absent absent[] = {{"model", "it has one"}, {"data.split", "files are whole"}};
    assert_string_equal(config_absence(absent, 2, "model"), "it has one");
    assert_string_equal(config_absence(absent, 2, "model.num_layers"), "it has one");
    assert_string_equal(config_absence(absent, 2, "data.split"), "files are whole");
    assert_null(config_absence(absent, 2, "models"));
    assert_null(config_absence(absent, 2, "data"));
    assert_null(config_absence(absent, 0, "model"));
}

static void the_nearest_name_is_near(void **state) {
    (void)state;
    const char *const names[] = {"generate", "score", "pretrain"};
    assert_string_equal(config_nearest("genrate", names, 3), "generate");
    assert_string_equal(config_nearest("socre", names, 3), "score");
    assert_string_equal(config_nearest("pre", names, 3), "pretrain");
    assert_string_equal(config_nearest("sc", (const char *const[]){"sca", "sb", "score"}, 3), "sca");
    assert_null(config_nearest("xyzzy", names, 3));
    assert_null(config_nearest("", names, 3));
    assert_null(config_nearest("score", names, 0));
    char word[400];
    memset(word, 'a', sizeof word - 1);
    word[sizeof word - 1] = 0;
    assert_null(config_nearest(word, names, 3));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_of_a_value_is_read),
        cmocka_unit_test(what_is_not_given_has_its_default),
        cmocka_unit_test(the_last_flag_counts_and_lists_split_as_promised),
        cmocka_unit_test(sizes_are_bytes_or_counts_of_a_unit),
        cmocka_unit_test(a_choice_may_have_a_value_when_it_stands_bare),
        cmocka_unit_test(wrong_options_are_named_with_the_nearest),
        cmocka_unit_test(names_of_other_programs_give_ours),
        cmocka_unit_test(names_of_other_programs_in_a_file_give_ours),
        cmocka_unit_test(wrong_values_say_what_was_expected),
        cmocka_unit_test(flags_go_over_the_file),
        cmocka_unit_test(an_empty_path_is_not_given),
        cmocka_unit_test(help_is_complete_and_fits_the_screen),
        cmocka_unit_test(help_of_a_section_has_its_rows_alone),
        cmocka_unit_test(an_absent_key_is_refused_with_its_reason),
        cmocka_unit_test(the_nearest_name_is_near),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
