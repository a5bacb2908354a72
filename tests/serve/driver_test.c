/* The driver's thread and its list of commands, with an engine and calls that the test plays: all in one thread, in an
 * order that the test says. The functions here stand for those of driver_call.c, driver_change.c, loop.c and the
 * engine. */
#include "call_engine.h"
#include "driver-internal.h"

#include "support/test.h"

#include "base/base.h"
#include "infer/adapters.h"
#include "infer/images.h"
#include "infer/sequences.h"

#include <stdlib.h>

enum { CALLS = 4 };

/* The script of a test, and its outcome. */
static struct {
    struct call_shared *calls[CALLS]; /* NULL: freed */
    int round, ending;                /* ending: the call that ends in the first round */
    bool withdraws;                   /* the loop tries to take back a call that the driver is about to begin */
    char done[64];                    /* the commands that the engine got, a word each: "s0 c1" */
} play;

static int number_of(const struct call_shared *shared) {
    for (int i = 0; i < CALLS; i++)
        if (shared == play.calls[i])
            return i;
    fail_msg("the engine gets a command for a call that is freed");
    return -1;
}

static void end(struct driver *driver, struct call_engine *self) {
    self->is_ended = self->making->is_done = true;
    driver->calls--;
    driver_note(driver, self);
}

/* A client disconnects while its last update is on the way. Its memory may be reused then. */
static void free_call(struct call_shared *shared) {
    int number = number_of(shared);
    free(shared->engine->making);
    free(shared->published);
    memset(shared->engine, 0x5a, sizeof *shared->engine);
    free(shared->engine);
    memset(shared, 0x5a, sizeof *shared);
    free(shared);
    play.calls[number] = NULL;
}

/* ---- driver_call.c ---- */

void driver_do(struct driver *driver, struct call_engine *self, unsigned commands) {
    size_t length = strlen(play.done);
    snprintf(play.done + length, sizeof play.done - length, "%s%c%d", length ? " " : "",
             commands & CALL_SUBMIT ? 's' : 'c', number_of(self->shared));
    driver->calls += (commands & CALL_SUBMIT) != 0;
    for (int i = number_of(self->shared) + 1; play.withdraws && i < CALLS - 1; i++)
        assert_false(driver_withdraw(driver, play.calls[i]));
    play.withdraws = false;
}

void driver_retry(struct driver *driver) {
    (void)driver;
}

void driver_note(struct driver *driver, struct call_engine *self) {
    self->is_changed = true;
    self->next_changed = driver->changed;
    driver->changed = self;
}

/* Stands between taking commands and publishing. */
void driver_settle(struct driver *driver) {
    if (play.round++ == 0) {
        end(driver, play.calls[play.ending]->engine);
        for (int i = 0; i < CALLS - 1; i++)
            if (play.calls[i])
                driver_tell(driver, play.calls[i], CALL_CANCEL);
        return;
    }
    for (int i = 0; i < CALLS; i++)
        if (play.calls[i])
            end(driver, play.calls[i]->engine);
    driver_end(driver);
}

void driver_fail_all(struct driver *driver) {
    (void)driver;
}

/* ---- driver_change.c ---- */

bool driver_continue(struct driver *driver) {
    (void)driver;
    return false;
}

void driver_take_names(struct driver *driver, struct driver_name *names) {
    (void)driver;
    (void)names;
}
void driver_publish_adapters(struct driver *driver) {
    (void)driver;
}

/* ---- driver_tuning.c ---- */

bool driver_tune_on(struct driver *driver, bool has_stepped, bool must_end) {
    (void)driver;
    (void)has_stepped;
    (void)must_end;
    return false;
}

/* ---- loop.c: the loop is as fast as can be ---- */

void loop_post_all(struct loop *loop, struct loop_note *first, struct loop_note **last) {
    (void)loop;
    (void)last;
    for (struct loop_note *note = first, *next; note; note = next) {
        next = note->next;
        note->run(note);
    }
}

static void take(struct loop_note *note) {
    struct call_shared *shared = (struct call_shared *)((char *)note - offsetof(struct call_shared, note));
    struct driver *driver = shared->driver;
    bool is_first_round = play.round == 1;
    struct call_update *update = driver_take_update(driver, shared, NULL);
    assert_true(update->is_done);
    driver_tell(driver, shared, CALL_PAUSE); /* before it looks at the update */
    free_call(shared);
    free(update);
    if (is_first_round)
        driver_tell(driver, play.calls[CALLS - 1], CALL_SUBMIT);
}

/* ---- the engine ---- */

int engine_open_scheduler(struct engine *engine, const struct scheduler_options *options, struct scheduler **out) {
    (void)engine;
    (void)options;
    *out = NULL;
    return STATUS_OK;
}

void scheduler_close(struct scheduler *scheduler) {
    (void)scheduler;
}

int scheduler_step(struct scheduler *scheduler) {
    (void)scheduler;
    return 1;
}

void scheduler_read_stats(const struct scheduler *scheduler, struct scheduler_stats *stats) {
    (void)scheduler;
    *stats = (struct scheduler_stats){0};
}

double scheduler_next_deadline(const struct scheduler *scheduler) {
    (void)scheduler;
    return 0;
}

int64_t engine_pages(const struct engine *engine) {
    (void)engine;
    return 0;
}

int64_t engine_pages_available(const struct engine *engine) {
    (void)engine;
    return 0;
}

const uint64_t *adapters_receipts(const struct adapters *adapters) {
    static const uint64_t none[RECEIPT_WORDS];
    return none;
}

size_t tuning_bytes(const struct engine *engine) {
    (void)engine;
    return 0;
}

size_t engine_adapter_bytes(const struct engine *engine) {
    (void)engine;
    return 0;
}

/* ---- what is promised ---- */

static struct call_shared *new_call(struct driver *driver) {
    struct call_shared *shared = calloc(1, sizeof *shared);
    struct call_engine *engine = calloc(1, sizeof *engine);
    assert_true(shared && engine);
    *shared = (struct call_shared){.driver = driver, .engine = engine, .note.run = take};
    engine->shared = shared;
    engine->making = calloc(1, sizeof *engine->making);
    shared->published = calloc(1, sizeof *shared->published);
    assert_true(engine->making && shared->published);
    return shared;
}

/* Three calls get further commands while one of them ends; a fourth follows. */
static void commands_after_the_end_of_a_call_are_forgotten(void **state) {
    static const char *const expected[] = {"s0 s1 s2 c1 c2 s3", "s0 s1 s2 c0 c2 s3", "s0 s1 s2 c0 c1 s3"};
    static const struct serve_options options = {.prefill_stretch = 1};
    struct server server = {.options = &options};
    (void)state;
    for (int ending = 0; ending < CALLS - 1; ending++) {
        struct driver *driver;
        test_ok(driver_open(&(struct driver_options){.server = &server}, &driver));
        memset(&play, 0, sizeof play);
        play.ending = ending;
        play.withdraws = true;
        for (int i = 0; i < CALLS; i++)
            play.calls[i] = new_call(driver);
        for (int i = 0; i < CALLS - 1; i++)
            driver_tell(driver, play.calls[i], CALL_SUBMIT);
        test_ok(driver_run(driver));
        assert_string_equal(play.done, expected[ending]);
        for (int i = 0; i < CALLS; i++)
            assert_null(play.calls[i]);
        driver_close(driver);
    }
}

/* A call that its client gave up before the driver took it never reaches the engine; one that it took must be
 * cancelled. */
static void a_call_that_was_taken_back_never_begins(void **state) {
    static const struct serve_options options = {.prefill_stretch = 1};
    struct server server = {.options = &options};
    (void)state;
    for (int taken = 0; taken < CALLS - 1; taken++) {
        struct driver *driver;
        char expected[16];
        test_ok(driver_open(&(struct driver_options){.server = &server}, &driver));
        memset(&play, 0, sizeof play);
        play.ending = taken ? 0 : 1;
        for (int i = 0; i < CALLS; i++)
            play.calls[i] = new_call(driver);
        for (int i = 0; i < CALLS - 1; i++)
            driver_tell(driver, play.calls[i], CALL_SUBMIT | (i == taken ? (unsigned)CALL_STOP : 0));
        assert_true(driver_withdraw(driver, play.calls[taken]));
        assert_false(driver_withdraw(driver, play.calls[taken]));
        driver_tell(driver, play.calls[taken], CALL_CANCEL); /* too late, and forgotten */
        struct call_shared *unwanted = play.calls[taken];
        play.calls[taken] = NULL;
        test_ok(driver_run(driver));
        snprintf(expected, sizeof expected, "s%d s%d c%d s3", taken ? 0 : 1, taken == 2 ? 1 : 2, taken == 2 ? 1 : 2);
        assert_string_equal(play.done, expected);
        play.calls[taken] = unwanted;
        free_call(unwanted);
        driver_close(driver);
    }
}

/* A call that the driver has taken must be cancelled. */
static void a_call_that_has_begun_is_not_taken_back(void **state) {
    static const struct serve_options options = {.prefill_stretch = 1};
    struct server server = {.options = &options};
    struct driver *driver;
    (void)state;
    test_ok(driver_open(&(struct driver_options){.server = &server}, &driver));
    memset(&play, 0, sizeof play);
    play.calls[0] = new_call(driver);
    assert_false(driver_withdraw(driver, play.calls[0])); /* not submitted yet */
    driver_tell(driver, play.calls[0], CALL_CANCEL);      /* a command for a call that the engine has */
    assert_false(driver_withdraw(driver, play.calls[0]));
    free_call(play.calls[0]);
    driver_close(driver);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(commands_after_the_end_of_a_call_are_forgotten),
                                       cmocka_unit_test(a_call_that_was_taken_back_never_begins),
                                       cmocka_unit_test(a_call_that_has_begun_is_not_taken_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
