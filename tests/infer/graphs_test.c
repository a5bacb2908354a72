/* Recorded decode steps: each gives the bits of the same step without a record. Texts join and leave, prompts run in
 * between, pages are used again, and stacks of adapters are swapped. A record has hooks at more places than a step
 * needs, so a device whose products are not batch-invariant may round elsewhere. */
#include "infer/images.h"
#include "infer/sequences.h"
#include "infer/slots.h"
#include "stacks.h"

#include <string.h>

enum { TEXTS = 11, STANDIN_TEXTS = 3, SLOTS = 4, CHANGES = 3, TOP = 3, TEXT_TOKENS = 30 };

/* They take turns in the slots. Slot 0 is the base. */
static const struct stack stacks[] = {
    {{"lora"}, 1, 0, 0},
    {{"ia3_inputs"}, 1, 0, 0},
    {{"adapter_par_bn"}, 1, 0, 0},
    {{"dora_all_linear"}, 1, 0, 0},
    {{"prefix", "lora:300"}, 2, 5, 5},
    {{"prompt"}, 1, 0, 5},
    {{"lora_head"}, 1, 0, 0},
    {{"rslora", "ia3"}, 2, 0, 0},
    {{"adapter_seq_bn", "dora"}, 2, 0, 0},
    {{"ia3"}, 1, 0, 0},
    {{"lora_all_linear", "lora", "ia3_attention"}, 3, 0, 0},
    {{"lora_patterns"}, 1, 0, 0},
    {{"adapter_double_seq_bn", "adapter_par_bn"}, 2, 0, 0},
    {{"lora", "ia3", "lora_head", "lora_all_linear"}, 4, 0, 0},
    {{"adapter_double_seq_bn"}, 1, 0, 0},
    {{"prompt", "lora", "ia3", "adapter_seq_bn"}, 4, 0, 5},
    {{"adapter_pre_norm"}, 1, 0, 0},
    {{"adapter_par_bn", "adapter_pre_norm", "lora"}, 3, 0, 0},
};
enum { STACKS = sizeof stacks / sizeof *stacks, EVERY_STACK = 150 /* steps that see each */ };

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
    int slot[SLOTS][2], image[SLOTS][2][PARTS], users[SLOTS];
    int stack[SLOTS]; /* the number of the slot's stack; -1: the base */
    struct directories directories[STACKS];
    uint32_t schedule, draws, loaded;
    int texts;
    int64_t decoded; /* steps of decoding alone */
    struct sampling sampling[TEXTS];
    struct sample_change changes[TEXTS][CHANGES];
};

static uint32_t draw(struct scene *s, uint32_t choices) {
    return philox(s->schedule, s->draws++, 0, 0, (uint32_t)RNG_TEST << 24).word[0] % choices;
}

/* ---- slots ---- */

static void load(struct scene *s, int slot) {
    int number = s->stack[slot] = (int)(s->loaded++ % STACKS);
    for (size_t i = 0; i < stacks[number].count; i++) {
        struct peft_bytes bytes;
        test_ok(peft_bytes_read(s->directories[number].name[i], ENGINE_ADAPTER_BYTES, &bytes));
        for (int e = 0; e < 2; e++) {
            s->image[slot][e][i] = engine_image_load(s->engine[e], &bytes);
            assert_true(s->image[slot][e][i] >= 0);
        }
        peft_bytes_free(&bytes);
    }
    for (int e = 0; e < 2; e++)
        test_ok(engine_slot_open(s->engine[e], s->image[slot][e], (int)stacks[number].count, &s->slot[slot][e]));
}

/* Another stack takes the place of one that no text uses. */
static void swap(struct scene *s, int slot) {
    for (int e = 0; e < 2; e++) {
        engine_slot_close(s->engine[e], s->slot[slot][e]);
        for (size_t i = 0; i < stacks[s->stack[slot]].count; i++)
            test_ok(engine_image_drop(s->engine[e], s->image[slot][e][i]));
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

/* Chooses rows: the next one of most texts, or a few of a prompt's. *is_decode: a record can run them. */
static int choose_rows(struct scene *s, struct engine_row rows[2][ROWS], bool *is_decode) {
    int count = 0;
    *is_decode = true;
    bool runs_prompts = draw(s, 4) == 0, is_base_alone = draw(s, 3) == 0;
    for (int t = 0; t < s->texts; t++) {
        struct text *text = &s->text[t];
        bool has_turn =
            text->is_open && (is_decoding(text) ? draw(s, 8) > 0 : runs_prompts) && !(is_base_alone && text->slot > 0);
        for (int i = 0; has_turn && i < 6; i++) {
            for (int e = 0; e < 2; e++)
                rows[e][count] = next_row(s, t, e);
            *is_decode &= rows[0][count].wants_logits;
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
    for (int t = 0; t < s->texts; t++) {
        struct text *text = &s->text[t];
        if (text->is_open && (text->length >= TEXT_TOKENS || draw(s, 10) == 0))
            close_text(s, text);
        else if (!text->is_open && draw(s, 3) == 0)
            open_text(s, t);
    }
    for (int slot = 1; slot < SLOTS; slot++)
        if (s->users[slot] == 0 && draw(s, 2) == 0)
            swap(s, slot);
}

static void run_step(struct scene *s) {
    struct engine_row rows[2][ROWS];
    struct engine_result results[2][ROWS];
    bool is_decode;
    change_texts(s);
    int count = choose_rows(s, rows, &is_decode);
    int64_t replays = engine_graphs(s->engine[0]).replays.steps;
    for (int e = 0; e < 2 && count; e++)
        test_ok(engine_step(s->engine[e], rows[e], count, results[e]));
    check_results(rows[0], count, results);
    s->decoded += count && is_decode;
    if (count && is_decode)
        assert_int_equal(engine_graphs(s->engine[0]).replays.steps, replays + 1);
}

static const char *recording_device(void) {
    return test_device() && !strncmp(test_device(), "cuda", 4) ? test_device() : "late";
}

static void run_schedule(uint32_t schedule, int precision, int steps, int texts) {
    struct scene s = {
        .schedule = schedule, .slot = {{-1, -1}}, .stack = {-1}, .texts = texts, .loaded = schedule * STACKS / 2};
    for (int i = 0; i < STACKS; i++)
        find_stack(&stacks[i], &s.directories[i]);
    for (int e = 0; e < 2; e++) {
        struct engine_options options = {.device = recording_device(),
                                         .model = base_directory(),
                                         .precision = precision,
                                         .threads = 1,
                                         .max_rows = ROWS,
                                         .max_logit_rows = ROWS,
                                         .max_sequences = texts,
                                         .cache_tokens = texts * 40,
                                         .adapter_memory = 4 << 20,
                                         .has_no_graphs = e == 1,
                                         .is_batch_invariant = true};
        test_ok(engine_open(&options, &s.engine[e]));
    }
    for (int slot = 1; slot < SLOTS; slot++)
        load(&s, slot);
    for (int i = 0; i < steps; i++)
        run_step(&s);
    struct engine_graphs graphs = engine_graphs(s.engine[0]);
    assert_int_equal(graphs.count, 6 * (texts == TEXTS ? 5 : 3)); /* of 1, 2, 4, 8 and 11 rows, or of 1, 2 and 3 */
    assert_true(s.decoded > steps / 8);
    assert_true(steps < EVERY_STACK || s.loaded - schedule * STACKS / 2 > STACKS); /* each of them was in a slot */
    assert_int_equal(engine_graphs(s.engine[1]).replays.steps, 0);
    for (int e = 0; e < 2; e++)
        engine_close(s.engine[e]);
    for (int i = 0; i < STACKS; i++)
        forget_stack(&stacks[i], &s.directories[i]);
}

static void a_recorded_step_has_the_bits_of_the_same_step_without_a_record(void **state) {
    (void)state;
    bool is_long = test_is_long(), is_late = !strcmp(recording_device(), "late");
    int steps = is_long ? 400 : is_late ? EVERY_STACK : 60; /* a GPU's stand-in takes its time */
    int texts = is_long || is_late ? TEXTS : STANDIN_TEXTS;
    for (uint32_t schedule = 0; schedule < (is_long ? 5 : 2); schedule++)
        run_schedule(schedule, schedule % 2 ? PRECISION_BF16 : PRECISION_FP32, steps, texts);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_recorded_step_has_the_bits_of_the_same_step_without_a_record),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
