/* Generate, GenerateOnce and Score over calls whose updates this test makes up, and changes of adapters that outlive
 * who asked for them. */
#include "serve/grpc_asking.h"

/* ---- reading answers ---- */

struct answers {
    struct strbuf messages[UPDATE_ROOM];
    size_t count;
};

static void answers_read(struct answers *answers) {
    struct grpc_frames frames;
    const unsigned char *bytes = (const unsigned char *)strbuf_text(&fake.body);
    size_t length = fake.body.length;
    *answers = (struct answers){0};
    grpc_frames_begin(&frames, 1 << 20, false);
    while (length) {
        assert_int_equal(grpc_frames_take(&frames, &bytes, &length), GRPC_FRAME_WHOLE);
        assert_true(answers->count < UPDATE_ROOM);
        answers->messages[answers->count++] = frames.message;
        frames.message = STRBUF_INIT;
        grpc_frames_next(&frames);
    }
    grpc_frames_free(&frames);
}
static void answers_free(struct answers *answers) {
    for (size_t i = 0; i < answers->count; i++)
        strbuf_free(&answers->messages[i]);
}
static Cambium__V1__GenerateResponse *event_at(const struct answers *answers, size_t n) {
    assert_true(n < answers->count);
    const struct strbuf *bytes = &answers->messages[n];
    Cambium__V1__GenerateResponse *event =
        cambium__v1__generate_response__unpack(NULL, bytes->length, (const uint8_t *)strbuf_text(bytes));
    assert_non_null(event);
    return event;
}
static void event_free_(Cambium__V1__GenerateResponse *event) {
    cambium__v1__generate_response__free_unpacked(event, NULL);
}
static void expect_events(const char *kinds) {
    struct answers answers;
    char found[UPDATE_ROOM + 1] = "";
    answers_read(&answers);
    for (size_t i = 0; i < answers.count; i++) {
        Cambium__V1__GenerateResponse *event = event_at(&answers, i);
        found[i] = "-sof"[event->event_case];
        event_free_(event);
    }
    assert_string_equal(found, kinds);
    answers_free(&answers);
}

static const char stream_path[] = "/cambium.v1.Cambium/Generate", once_path[] = "/cambium.v1.Cambium/GenerateOnce";

/* ---- promises ---- */

static void started_waits_for_the_prompt(void **state) {
    struct answers answers;
    (void)state;
    ask_generate(stream_path, 1, true, NULL);
    begin_update();
    update.is_accepted = true;
    starts[update.start_count++] = (struct call_start){.cached = 0};
    tell();
    assert_int_equal(fake.begun, 1); /* the head goes out at once, */
    expect_events("");               /* Started does not */
    add_piece(-1, "", 0, 1);
    tell();
    add_piece(-1, "", 0, 2);
    add_piece(-1, "", 0, 3);
    add_piece(0, "a", 1, 4);
    tell();
    add_end(0);
    tell_done(ERROR_NONE);
    expect_events("sof");
    answers_read(&answers);
    Cambium__V1__GenerateResponse *event = event_at(&answers, 0);
    assert_int_equal(event->started->n_prompt_logprobs, 3);
    assert_int_equal(event->started->prompt_logprobs[2]->id, 3);
    assert_int_equal(event->started->prompt_logprobs[0]->_logprob_case, 0);
    assert_true(event->started->prompt_logprobs[1]->_logprob_case);
    assert_int_equal(event->started->prompt_logprobs[2]->top[0]->id, 9);
    event_free_(event);
    answers_free(&answers);
    assert_true(has_ended(0));
    fake_close(&fake);
    assert_int_equal(fake_freed, 1);
}

static void a_text_with_a_nul_is_whole(void **state) {
    struct answers answers;
    (void)state;
    ask_generate(stream_path, 1, false, NULL);
    begin_update();
    starts[update.start_count++] = (struct call_start){.cached = 0};
    add_piece(0, "a\0b\xff", 4, 4);
    tell();
    answers_read(&answers);
    assert_int_equal(answers.count, 2);
    /* Field 2 of the output, a string of six bytes. */
    assert_non_null(memmem(answers.messages[1].data, answers.messages[1].length,
                           "\x12\x06"
                           "a\0b\xef\xbf\xbd",
                           8));
    answers_free(&answers);
    fake_close(&fake);
    assert_int_equal(fake_freed, 1);
}

static void a_slow_reader_pauses_its_call(void **state) {
    (void)state;
    ask_generate(stream_path, 1, false, NULL);
    fake_paused = 0;
    begin_update();
    add_piece(0, "a", 1, 4);
    tell();
    assert_int_equal(fake_paused, 0);
    fake.pending = (size_t)fake_options.limits.stream_output_bytes + 1;
    add_piece(0, "a", 1, 4);
    tell();
    assert_int_equal(fake_paused, 1);
    fake.exchange.handler->on_room(&fake.exchange);
    assert_int_equal(fake_paused, 0);
    fake_close(&fake); /* it leaves */
    assert_int_equal(fake_freed, 1);
}

static void a_failure_is_the_end_of_what_has_begun(void **state) {
    (void)state;
    ask_generate(stream_path, 1, false, NULL);
    begin_update();
    add_piece(0, "a", 1, 4);
    tell();
    tell_done(ERROR_ENGINE_FAILED);
    expect_events("so");
    assert_true(has_ended(14));
    assert_int_equal(fake.request.error, ERROR_ENGINE_FAILED);
    assert_int_equal(fake_freed, 0);
    fake_close(&fake);
    assert_int_equal(fake_freed, 1);
    ask_generate(once_path, 1, false, NULL);
    begin_update();
    tell_done(ERROR_CONTEXT_LENGTH);
    assert_true(has_ended(11));
    assert_int_equal(fake.length, 0);
    assert_non_null(strstr(strbuf_text(&fake.head), "grpc-message: input: it went wrong\n"));
    fake_close(&fake);
}

static void a_deadline_frees_the_call(void **state) {
    (void)state;
    ask_generate(stream_path, 1, false, "1m");
    assert_true(fake_call->deadline > 0);
    begin_update();
    add_piece(0, "a", 1, 4);
    tell();
    event_base_loop(server.base, EVLOOP_ONCE);
    assert_int_equal(fake_freed, 1);
    assert_true(has_ended(4));
    fake.exchange.handler->on_room(&fake.exchange); /* nobody hears it any more */
    fake_close(&fake);
    assert_int_equal(fake_freed, 1);
}

static void an_answer_goes_out_whole(void **state) {
    struct answers answers;
    (void)state;
    ask_generate(once_path, 2, true, NULL);
    begin_update();
    for (int32_t id = 1; id <= 3; id++)
        add_piece(-1, "", 0, id);
    add_piece(1, "x", 1, 5);
    tell();
    assert_int_equal(fake.begun, 0);
    add_piece(0, "ab", 2, 4);
    add_piece(1, "y", 1, 6);
    add_end(1);
    tell();
    add_end(0);
    tell_done(ERROR_NONE);
    assert_true(has_ended(0));
    answers_read(&answers);
    assert_int_equal(answers.count, 1);
    Cambium__V1__GenerateOnceResponse *answer = cambium__v1__generate_once_response__unpack(
        NULL, answers.messages[0].length, (const uint8_t *)answers.messages[0].data);
    assert_non_null(answer);
    assert_int_equal(answer->started->n_prompt_logprobs, 3);
    assert_int_equal(answer->n_outputs, 2);
    assert_string_equal(answer->outputs[0]->text, "ab");
    assert_string_equal(answer->outputs[1]->text, "xy");
    assert_int_equal(answer->outputs[1]->token_ids[1], 6);
    assert_int_equal(answer->outputs[1]->logprobs[1]->top[0]->id, 9);
    assert_int_equal(answer->n_finished, 2);
    assert_int_equal(answer->finished[1]->completion_tokens, 2);
    cambium__v1__generate_once_response__free_unpacked(answer, NULL);
    answers_free(&answers);
    fake_close(&fake);
    assert_int_equal(fake_freed, 1);
}

static void what_no_message_can_hold_is_not_kept(void **state) {
    static char large[3 << 20];
    (void)state;
    memset(large, 'a', sizeof large);
    ask_generate(once_path, 1, false, NULL);
    begin_update();
    add_piece(0, large, sizeof large, 4);
    tell();
    assert_int_equal(fake.ended, 0);
    add_piece(0, large, sizeof large, 4);
    tell();
    assert_true(has_ended(8));
    assert_int_equal(fake.body.length, 0);
    assert_int_equal(fake_freed, 0); /* it is asked to free the call while the call reports its update */
    tell_done(ERROR_NONE);
    fake_close(&fake);
    assert_int_equal(fake_freed, 1);
}

static void a_change_outlives_who_asked(void **state) {
    Cambium__V1__LoadAdapterRequest asked = CAMBIUM__V1__LOAD_ADAPTER_REQUEST__INIT;
    struct registry_adapter adapter;
    struct error none = {0};
    (void)state;
    assert_true(registry_find(&server, "ia3", &adapter));
    asked.name = "new";
    asked.path = "dir";
    for (int leaves = 0; leaves < 2; leaves++) {
        ask_open(LISTENER_CONTROL, "/cambium.v1.Control/LoadAdapter", NULL);
        ask_send(&asked.base);
        assert_string_equal(fake_change_name, "new dir");
        if (leaves)
            fake_close(&fake);
        fake_change.on_done(fake_change.context, &none, &adapter);
        if (leaves)
            continue;
        assert_true(has_ended(0));
        Cambium__V1__Adapter *answer = cambium__v1__adapter__unpack(
            NULL, fake.body.length - GRPC_PREFIX_BYTES, (const uint8_t *)fake.body.data + GRPC_PREFIX_BYTES);
        assert_non_null(answer);
        assert_int_equal(answer->n_methods, 2);
        assert_string_equal(answer->methods[1], "lora");
        cambium__v1__adapter__free_unpacked(answer, NULL);
        fake_close(&fake);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(started_waits_for_the_prompt),
        cmocka_unit_test(a_text_with_a_nul_is_whole),
        cmocka_unit_test(a_slow_reader_pauses_its_call),
        cmocka_unit_test(a_failure_is_the_end_of_what_has_begun),
        cmocka_unit_test(a_deadline_frees_the_call),
        cmocka_unit_test(an_answer_goes_out_whole),
        cmocka_unit_test(what_no_message_can_hold_is_not_kept),
        cmocka_unit_test(a_change_outlives_who_asked),
    };
    int failed = cmocka_run_group_tests(tests, start, stop);
    strbuf_free(&update.text);
    return failed;
}
