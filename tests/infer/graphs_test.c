/* Recorded decode steps: each gives the bits of the same step without a record. Texts join and leave, prompts run in
 * between, pages are used again, and adapters are swapped. */
#include "infer/images.h"
#include "infer/sequences.h"
#include "infer/slots.h"
#include "stacks.h"

#include <string.h>

enum { TEXTS = 11, SLOTS = 4, CHANGES = 3, TOP = 3, TEXT_TOKENS = 30 };

/* The methods of the golden adapters, which take turns in the slots. Slot 0 is the base. */
static const char *const adapters[] = {"lora",           "ia3_inputs",      "adapter_par_bn", "dora_all_linear",
                                       "prefix",         "prompt",          "rslora",         "ia3",
                                       "adapter_seq_bn", "lora_all_linear", "lora_patterns"};
enum { ADAPTERS = sizeof adapters / sizeof *adapters };

struct text {
    bool is_open;
    int sequence[2], slot;
    int64_t prompt, virtual_tokens; /* tokens; of the sequence so far: */
    int64_t length;
};

/* Two engines that get the same calls. The second one has no records. */
struct scene {
    struct engine *engine[2];
    struct text text[TEXTS];
    int slot[SLOTS][2], image[SLOTS][2], users[SLOTS];
    uint32_t schedule, draws, loaded;
    struct sampling sampling[TEXTS];
    struct sample_change changes[TEXTS][CHANGES];
};

static uint32_t draw(struct scene *s, uint32_t choices) {
    return philox(s->schedule, s->draws++, 0, 0, (uint32_t)RNG_TEST << 24).word[0] % choices;
}

/* ---- slots ---- */

static void load(struct scene *s, int slot) {
    char path[512];
    const char *directory = path;
    struct peft_bytes bytes;
    snprintf(path, sizeof path, TEST_DATA "/peft/%s/%s", stacks_root, adapters[s->loaded++ % ADAPTERS]);
    test_ok(peft_bytes_read(directory, ENGINE_ADAPTER_BYTES, &bytes));
    for (int e = 0; e < 2; e++) {
        s->image[slot][e] = engine_image_load(s->engine[e], &bytes);
        assert_true(s->image[slot][e] >= 0);
        test_ok(engine_slot_open(s->engine[e], &s->image[slot][e], 1, &s->slot[slot][e]));
    }
    peft_bytes_free(&bytes);
}

/* Another adapter takes the place of one that no text uses. */
static void swap(struct scene *s, int slot) {
    for (int e = 0; e < 2; e++) {
        engine_slot_close(s->engine[e], s->slot[slot][e]);
        test_ok(engine_image_drop(s->engine[e], s->image[slot][e]));
    }
    load(s, slot);
}

/* ---- texts ---- */

static void close_text(struct scene *s, struct text *text) {
    for (int e = 0; e < 2; e++)
        engine_sequence_close(s->engine[e], text->sequence[e]);
    s->users[text->slot]--;
    text->is_open = false;
}

/* Beginnings are often equal, so pages are found again. */
static void open_text(struct scene *s, int number) {
    struct text *text = &s->text[number];
    int32_t tokens[TEXT_TOKENS];
    int64_t cached[2];
    *text = (struct text){.is_open = true, .slot = (int)draw(s, SLOTS), .prompt = 1 + draw(s, 12)};
    for (int64_t i = 0; i < text->prompt; i++)
        tokens[i] = token_at(number % 3, i);
    for (int e = 0; e < 2; e++) {
        struct sequence_beginning beginning = {.slot = s->slot[text->slot][e], .tokens = tokens, .count = text->prompt};
        text->sequence[e] = engine_sequence_open(s->engine[e], &beginning, &cached[e]);
        assert_true(text->sequence[e] >= 0);
    }
    assert_int_equal(cached[0], cached[1]);
    text->virtual_tokens = engine_slot_virtual_tokens(s->engine[0], s->slot[text->slot][0]);
    text->length = cached[0];
    s->users[text->slot]++;
    s->sampling[number] = (struct sampling){.temperature = draw(s, 3) ? 0.9 : 0,
                                            .top_p = draw(s, 2) ? 1 : 0.8,
                                            .min_p = draw(s, 3) ? 0 : 0.05,
                                            .top_k = draw(s, 2) ? 0 : 5,
                                            .repetition_penalty = 1.2,
                                            .seed = draw(s, 1000)};
    for (int i = 0; i < CHANGES; i++)
        s->changes[number][i] = (struct sample_change){.id = 7 * i + (int32_t)draw(s, 7), .count = 1, .bias = 1.5f};
}

/* Sets the text's next row. Rows of its prompt want no logits, except the last one. */
static struct engine_row next_row(struct scene *s, int number, int engine) {
    struct text *text = &s->text[number];
    int64_t place = text->length - text->virtual_tokens;
    struct engine_row row = {.token = place < 0 ? ENGINE_VIRTUAL_TOKEN : token_at(number % 3, place),
                             .sequence = text->sequence[engine],
                             .wants_logits = place + 1 >= text->prompt,
                             .label = -1};
    if (!row.wants_logits)
        return row;
    row.sampling = &s->sampling[number];
    row.changes = s->changes[number];
    row.change_count = number % 2 ? CHANGES : 0;
    row.top_count = number % 4 == 1 ? TOP : 0;
    return row;
}

static bool is_decoding(const struct text *text) {
    return text->length - text->virtual_tokens + 1 >= text->prompt;
}

/* ---- steps ---- */

/* Chooses rows: the next one of most texts, or a few of a prompt's. */
static int choose_rows(struct scene *s, struct engine_row rows[2][ROWS]) {
    int count = 0;
    bool runs_prompts = draw(s, 4) == 0, is_base_alone = draw(s, 3) == 0;
    for (int t = 0; t < TEXTS; t++) {
        struct text *text = &s->text[t];
        bool has_turn =
            text->is_open && (is_decoding(text) ? draw(s, 8) > 0 : runs_prompts) && !(is_base_alone && text->slot > 0);
        for (int i = 0; has_turn && i < 6; i++) {
            for (int e = 0; e < 2; e++)
                rows[e][count] = next_row(s, t, e);
            has_turn = !is_decoding(text);
            text->length++;
            count++;
        }
    }
    return count;
}

static void check_results(const struct engine_row *rows, int count, struct engine_result results[2][ROWS]) {
    for (int i = 0; i < count; i++) {
        const struct engine_result *one = &results[0][i], *other = &results[1][i];
        if (!rows[i].wants_logits)
            continue;
        assert_int_equal(one->token, other->token);
        assert_memory_equal(&one->logprob, &other->logprob, sizeof one->logprob);
        for (int k = 0; k < rows[i].top_count; k++) {
            assert_int_equal(one->top_token[k], other->top_token[k]);
            assert_memory_equal(&one->top_logprob[k], &other->top_logprob[k], sizeof *one->top_logprob);
        }
    }
}

static void change_texts(struct scene *s) {
    for (int t = 0; t < TEXTS; t++) {
        struct text *text = &s->text[t];
        if (text->is_open && (text->length >= TEXT_TOKENS || draw(s, 40) == 0))
            close_text(s, text);
        else if (!text->is_open && draw(s, 3) == 0)
            open_text(s, t);
    }
    for (int slot = 1; slot < SLOTS; slot++)
        if (s->users[slot] == 0 && draw(s, 4) == 0)
            swap(s, slot);
}

static void run_step(struct scene *s) {
    struct engine_row rows[2][ROWS];
    struct engine_result results[2][ROWS];
    change_texts(s);
    int count = choose_rows(s, rows);
    for (int e = 0; e < 2 && count; e++)
        test_ok(engine_step(s->engine[e], rows[e], count, results[e]));
    check_results(rows[0], count, results);
}

static const char *recording_device(void) {
    return test_device() && !strncmp(test_device(), "cuda", 4) ? test_device() : "late";
}

static void run_schedule(uint32_t schedule, int precision, int steps) {
    struct scene s = {.schedule = schedule, .slot = {{-1, -1}}};
    for (int e = 0; e < 2; e++) {
        struct engine_options options = {.device = recording_device(),
                                         .model = base_directory(),
                                         .precision = precision,
                                         .threads = 1,
                                         .max_rows = ROWS,
                                         .max_logit_rows = ROWS,
                                         .max_sequences = TEXTS,
                                         .cache_tokens = TEXTS * 40,
                                         .adapter_memory = 4 << 20,
                                         .has_no_graphs = e == 1};
        test_ok(engine_open(&options, &s.engine[e]));
    }
    for (int slot = 1; slot < SLOTS; slot++)
        load(&s, slot);
    for (int i = 0; i < steps; i++)
        run_step(&s);
    struct engine_graphs graphs = engine_graphs(s.engine[0]);
    assert_int_equal(graphs.count, 2 * 5); /* of 1, 2, 4, 8 and 11 rows, with adapters and without */
    assert_true(graphs.replays.steps > steps / 8);
    assert_int_equal(engine_graphs(s.engine[1]).replays.steps, 0);
    for (int e = 0; e < 2; e++)
        engine_close(s.engine[e]);
}

static void a_recorded_step_has_the_bits_of_the_same_step_without_a_record(void **state) {
    (void)state;
    bool is_long = test_is_long();
    for (uint32_t schedule = 0; schedule < (is_long ? 5 : 2); schedule++)
        run_schedule(schedule, schedule % 2 ? PRECISION_BF16 : PRECISION_FP32, is_long ? 400 : 60);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_recorded_step_has_the_bits_of_the_same_step_without_a_record),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
