/* Whichever allocation of an engine or of its adapters fails, the failure is reported and nothing remains. */
#include "stacks.h"

#include "infer/generate.h"
#include "infer/grammars.h"
#include "infer/score.h"
#include "infer/slots.h"
#include "infer/writer.h"
#include "support/failing.h"

static int use_engine(struct engine *engine) {
    static const int32_t prompt[] = {3, 1, 4};
    struct ask ask;
    ask_begin(&ask);
    ask.max_tokens = 4;
    ask.choices = 2;
    struct generate_options options = {
        .prompt = prompt, .prompt_length = 3, .slot = engine_opened_slot(engine), .ask = &ask};
    struct generated texts[2] = {0};
    float logprobs[3];
    int status = generate(engine, NULL, &options, texts);
    for (int i = 0; i < 2; i++)
        generated_free(&texts[i]);
    return status ? status : score_tokens(engine, prompt, 3, logprobs);
}

static int open_and_use(void *context) {
    struct engine *engine = NULL;
    int status = engine_open(context, &engine);
    if (!status)
        status = use_engine(engine);
    engine_close(engine);
    return status;
}

static void an_engine_opens_and_closes(void **state) {
    static const struct stack stacks[] = {
        {{""}, 0, 0, 0},
        {{"lora_patterns"}, 1, 0, 0},
        {{"prompt", "ptuning_lstm", "prefix", "ia3"}, 4, 5, 10},
        {{"dora_all_linear", "adapter_double_seq_bn", "prefix_projection"}, 3, 5, 0},
    };
    (void)state;
    for (size_t s = 0; s < sizeof stacks / sizeof *stacks; s++) {
        struct directories directories;
        find_stack(&stacks[s], &directories);
        struct engine_options options = {.device = test_device(),
                                         .model = base_directory(),
                                         .adapters = (const char *const *)directories.name,
                                         .adapter_count = stacks[s].count,
                                         .threads = 1,
                                         .max_rows = 8,
                                         .max_logit_rows = 8,
                                         .max_sequences = 3};
        assert_int_equal(failing_try_all(open_and_use, &options, 150), 0);
        forget_stack(&stacks[s], &directories);
    }
}

static int write_text(void *context) {
    static const struct writer_string strings[] = {{"stop", 4}, {"tops", 4}};
    struct writer_stops *stops;
    struct writer writer;
    struct strbuf out = STRBUF_INIT;
    (void)context;
    int status = writer_stops_open(strings, 2, &stops);
    writer_begin(&writer, stops);
    for (int i = 0; i < 40 && !status; i++)
        status = writer_add(&writer, "a text to", 9, &out);
    if (!status)
        status = writer_end(&writer, &out);
    assert_true(status || out.length == 360);
    strbuf_free(&out);
    writer_free(&writer);
    writer_stops_close(stops);
    return status;
}

static void a_text_is_written(void **state) {
    (void)state;
    assert_int_equal(failing_try_all(write_text, NULL, 20), 0);
}

enum { IDS = 27 };

/* A store that opens, compiles, follows a text and closes. */
static int use_store(void *context) {
    struct grammars *grammars = NULL;
    static const char text[] = "[\"cat\", \"dog\"]";
    static const int32_t end = IDS - 1;
    struct grammar_token tokens[IDS] = {{0}};
    char letters[IDS];
    for (int i = 0; i < IDS - 1; i++) {
        letters[i] = (char)('a' + i);
        tokens[i] = (struct grammar_token){.bytes = letters + i, .length = 1};
    }
    struct grammar_vocabulary *vocabulary = NULL;
    struct grammar_order order = {.source = {.kind = GRAMMAR_CHOICE, .text = text, .length = sizeof text - 1}};
    struct scheduler_options scheduler = {0};
    struct constraint *constraint = NULL;
    int32_t forced;
    (void)context;
    int status = grammar_vocabulary_open(tokens, IDS, &end, 1, &vocabulary);
    THEN(status, grammars_open(&(struct grammars_options){.threads = 1, .seconds = 10, .memory = 1 << 24}, &grammars));
    if (status) {
        grammar_vocabulary_close(vocabulary);
        return status;
    }
    grammars_schedule(grammars, vocabulary, &scheduler);
    order.vocabulary = vocabulary;
    if (!grammars_begin(grammars, &order))
        grammars_end(grammars, &order, true);
    status = grammars_verdict(&order);
    const struct constraint_options options = {.grammar = order.grammar, .words = scheduler.mask_words, .vocab = IDS};
    THEN(status, constraint_open(scheduler.constraints, &options, &constraint));
    enum constraint_next next = constraint ? constraint_find(constraint, 1e9, &forced) : CONSTRAINT_UNKNOWN;
    if (!status && next == CONSTRAINT_FAILED)
        status = status_no_memory();
    constraint_close(constraint);
    grammar_release(order.grammar);
    grammar_report_free(&order.report);
    grammars_close(grammars);
    grammar_vocabulary_close(vocabulary);
    return status;
}

static void a_constraint_is_compiled_and_followed(void **state) {
    (void)state;
    assert_int_equal(failing_try_all(use_store, NULL, 400), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_engine_opens_and_closes),
        cmocka_unit_test(a_constraint_is_compiled_and_followed),
        cmocka_unit_test(a_text_is_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
