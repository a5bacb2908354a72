/* Asks of tuning runs, from the loop's thread to an engine and back: turns, cancelling, refusals, publication. */
#include "driver-internal.h"

#include "infer/adapters.h"
#include "infer/score.h"
#include "pretrained/pretrained.h"
#include "support/test.h"

#include <semaphore.h>

enum { V = 61, LENGTH = 12, BATCH = 2, MEMORY = 16 << 20 };
static const char *const base = TEST_DATA "/peft/golden/base";

/* ---- rows ---- */

static int read_rows(const struct train_source *source, struct gpt_batch *batch, const struct train_samples *samples) {
    (void)source;
    batch->rows = LENGTH;
    batch->padding = 0;
    batch->segments = 1;
    batch->segment_start[0] = 0;
    batch->segment_start[1] = LENGTH;
    for (int i = 0; i < LENGTH; i++) {
        batch->tokens[i] = (int32_t)((samples->first * 13 + i * 7) % V);
        batch->labels[i] = (int32_t)((samples->first * 13 + i * 7 + 7) % V);
        batch->loss_mask[i] = 1;
        batch->positions[i] = i;
        batch->sample[i] = (uint32_t)samples->first;
        batch->token[i] = (uint32_t)i;
    }
    return STATUS_OK;
}
static const struct train_source source = {.read = read_rows};

static int read_nothing(const struct train_source *unused, struct gpt_batch *batch,
                        const struct train_samples *samples) {
    (void)unused;
    (void)batch;
    (void)samples;
    return status_fail(STATUS_INVALID, "there is no row");
}
static const struct train_source nothing = {.read = read_nothing};

/* ---- the play: rounds of asks; when all of a round have ended, the next one is passed. The driver has a thread ----
 */

enum { RUNS = 2, MOST = 4, ROUNDS = 7 };
static struct {
    struct driver *driver;
    struct run_config config;
    struct tuning_ask asks[MOST];
    int round, waiting;
    struct tuning_run *runs[RUNS];
    struct tuning_snapshot snapshots[RUNS];
    sem_t ended;
} play;

static const struct peft_config adapter = {.type = PEFT_LORA, .r = 2, .lora_alpha = 4},
                                large = {.type = PEFT_LORA, .r = 40000, .lora_alpha = 4};
static struct peft_texts texts;
static json_t *described;

static struct tuning_ask ask_open(const struct peft_config *config, int64_t weight) {
    return (struct tuning_ask){.kind = TUNING_OPEN,
                               .open = {.config = &play.config,
                                        .adapters = config,
                                        .adapter_count = 1,
                                        .texts = texts.items,
                                        .text_count = texts.count,
                                        .weight = weight}};
}

static struct tuning_ask ask_pass(int run, const struct train_source *rows) {
    return (struct tuning_ask){
        .kind = TUNING_PASS, .run = play.runs[run], .pass = {.source = rows, .first = 4, .batches = 2}};
}

static struct tuning_ask ask_update(int run) {
    return (struct tuning_ask){.kind = TUNING_UPDATE,
                               .run = play.runs[run],
                               .update = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .clip = 1}};
}

static struct tuning_ask ask_publish(void) {
    struct tuning_ask ask = {.kind = TUNING_PUBLISH,
                             .publish = {.kind = CHANGE_LOAD, .name = "tuned", .in_place = true, .is_pinned = true}};
    struct tuning_snapshot *snapshot = &play.snapshots[play.round % RUNS];
    ask.publish.files = snapshot->files[0];
    snapshot->files[0] = (struct adapter_files){0};
    return ask;
}

static void ended(struct loop_note *note);

static void pass_round(void) {
    struct tuning_ask *asks = play.asks;
    memset(asks, 0, sizeof play.asks);
    switch (play.round) {
    case 0:
        asks[0] = ask_open(&adapter, 1), asks[1] = ask_open(&adapter, 3), asks[2] = ask_open(&large, 1);
        play.waiting = 3;
        break;
    case 1:
        asks[0] = ask_pass(0, &source), asks[1] = ask_update(0), asks[2] = ask_pass(1, &source),
        asks[3] = ask_update(1);
        play.waiting = 4;
        break;
    case 2:
        asks[0] = ask_pass(0, &source), asks[1] = ask_pass(1, &nothing);
        atomic_store(&asks[0].is_unwanted, true);
        play.waiting = 2;
        break;
    case 3:
        for (int i = 0; i < RUNS; i++)
            asks[i] = (struct tuning_ask){
                .kind = TUNING_SNAPSHOT, .run = play.runs[i], .snapshot = {.wants_state = true, .base = described}};
        play.waiting = RUNS;
        break;
    case 4:
    case 5:
        asks[0] = ask_publish();
        play.waiting = 1;
        break;
    case 6:
        for (int i = 0; i < RUNS; i++)
            asks[i] = (struct tuning_ask){.kind = TUNING_CLOSE, .run = play.runs[i]};
        play.waiting = RUNS;
        break;
    }
    for (int i = 0; i < play.waiting; i++) {
        asks[i].note.run = ended;
        driver_tune(play.driver, &asks[i]);
    }
    for (int i = 0; i < play.waiting; i++)
        sem_wait(&play.ended);
}

static void check_snapshots(void) {
    const struct peft_bytes *a = &play.snapshots[0].files[0].bytes, *b = &play.snapshots[1].files[0].bytes;
    assert_int_equal(a->length, b->length);
    assert_memory_equal(a->data, b->data, a->length);
    assert_true(play.snapshots[0].state_bytes > 0);
}

static void assert_fine(const struct tuning_ask *ask) {
    if (ask->error.which)
        fail_msg("round %d: %s", play.round, ask->error.text);
}

static void check_round(void) {
    const struct tuning_ask *asks = play.asks;
    switch (play.round) {
    case 0:
        for (int i = 0; i < RUNS; i++) {
            assert_fine(&asks[i]);
            assert_non_null(play.runs[i] = asks[i].run);
        }
        assert_int_equal(asks[2].error.which, ERROR_ARGUMENT);
        assert_non_null(strstr(asks[2].error.text, "--tuning-memory"));
        assert_true(asks[2].open.bytes > MEMORY);
        return;
    case 1:
        for (int i = 0; i < 4; i++) {
            assert_fine(&asks[i]);
            assert_true(asks[i].spent.slices > 1 && asks[i].spent.seconds > 0);
        }
        assert_true(asks[0].pass.result.loss > 0);
        assert_int_equal(asks[0].pass.result.labels, 2 * BATCH * LENGTH);
        assert_true(asks[1].update.result.grad_norm > 0);
        return;
    case 2:
        assert_int_equal(asks[0].error.which, ERROR_CANCELLED);
        assert_int_equal(asks[1].error.which, ERROR_ARGUMENT);
        assert_string_equal(asks[1].error.text, "there is no row");
        return;
    case 3:
        for (int i = 0; i < RUNS; i++)
            play.snapshots[i] = asks[i].snapshot;
        check_snapshots();
        return;
    case 4:
    case 5:
        assert_fine(&asks[0]);
        assert_true(asks[0].publish.generation > 0);
        return;
    }
}

static void ended(struct loop_note *note) {
    (void)note;
    sem_post(&play.ended);
}

static void *run(void *driver) {
    test_ok(driver_run(driver));
    return NULL;
}

static void forget_list(struct server *server, struct driver_adapters *list) {
    (void)server;
    free(list);
}

static void fill_config(void) {
    struct pretrained files;
    test_ok(pretrained_read_config(base, &files));
    play.config = (struct run_config){
        .model = files.config,
        .data = {.seq_length = LENGTH, .seed = 1},
        .train = {.train_iters = 1, .micro_batch_size = 1, .global_batch_size = BATCH, .seed = 7},
        .parallel = {1, 1, 1, 1, 1},
    };
    pretrained_close(&files);
    test_ok(run_config_resolve(&play.config));
    test_ok(receipt_describe_base(base, &described));
    test_ok(peft_texts_make(&adapter, 1, &play.config.model, base, &(const struct peft_notes){0}, &texts));
}

static void runs_take_turns_and_are_published(void **state) {
    (void)state;
    const struct serve_options options = {.prefill_stretch = 1, .tuning_share = 0.1, .tuning_slice = 1e-6};
    struct server server = {.options = &options};
    const struct engine_options of_engine = {.model = base,
                                             .precision = PRECISION_FP32,
                                             .threads = 1,
                                             .max_rows = 128,
                                             .max_logit_rows = 128,
                                             .max_sequences = 4,
                                             .adapter_memory = 1 << 20,
                                             .tuning_memory = MEMORY};
    struct driver_options driver = {.server = &server, .on_adapters = forget_list};
    memset(&play, 0, sizeof play);
    fill_config();
    test_ok(engine_open(&of_engine, &driver.engine));
    test_ok(score_tokens(driver.engine, (int32_t[]){0, 0}, 2, (float[2]){0})); /* as the server does */
    test_ok(adapters_open(driver.engine, &driver.adapters));
    test_ok(loop_open(&driver.loop));
    test_ok(driver_open(&driver, &play.driver));
    test_ok(loop_start(driver.loop));
    pthread_t thread;
    test_ok(sem_init(&play.ended, 0, 0));
    test_ok(pthread_create(&thread, NULL, run, play.driver));
    for (; play.round < ROUNDS; play.round++) {
        pass_round();
        check_round();
    }
    driver_end(play.driver);
    test_ok(pthread_join(thread, NULL));
    loop_stop(driver.loop);
    struct adapter_view view;
    assert_true(adapters_find(driver.adapters, "tuned", &view));
    assert_int_equal(view.state, ADAPTER_RESIDENT);
    assert_true(view.is_pinned);
    assert_int_equal(view.receipt.word, RECEIPT_EXACT);
    assert_int_equal(tuning_bytes(driver.engine), 0);
    driver_close(play.driver);
    loop_close(driver.loop);
    adapters_close(driver.adapters);
    engine_close(driver.engine);
    for (int i = 0; i < RUNS; i++) {
        adapter_files_free(&play.snapshots[i].files[0]);
        free(play.snapshots[i].state);
    }
    peft_texts_free(&texts);
    json_decref(described);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(runs_take_turns_and_are_published)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
