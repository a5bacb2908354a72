/* Whichever allocation of a call of gRPC fails, its client gets either an error about memory or its answer, and nothing
 * remains. */
#include "serve/grpc_asking.h"

#include "support/failing.h"

/* Calls `use` again and again, with its first, second, ... allocation failing, until it needs no more. */
static void try_all(void (*use)(void)) {
    long most = 0, reported = 0;
    for (long n = 0; n <= most; n++) {
        begin_update();
        failing_start(n);
        use();
        long count = failing_stop();
        most = count > most ? count : most;
        if (!n)
            assert_true(has_ended(0));
        else if (fake.begun && !has_ended(0) && !has_ended(8))
            fail_msg("allocation %ld: %s%s", n, strbuf_text(&fake.head), strbuf_text(&fake.trailers));
        reported += has_ended(8);
        fake_close(&fake);
        assert_null(fake_call);
    }
    assert_true(most > 2 && reported > 1);
}

/* The fakes have what they need. */
static void ask_and_tell(const char *path, bool wants_prompt) {
    failing_pause(true);
    ask_generate(path, 2, wants_prompt, NULL);
    failing_pause(false);
    update.is_accepted = true;
    starts[update.start_count++] = (struct call_start){.cached = 0};
    tell();
    for (int32_t id = 1; id <= 3 && wants_prompt; id++)
        add_piece(-1, "", 0, id);
    add_piece(0, "a\0b", 3, 4);
    add_piece(1, "\xff", 1, 4);
    tell();
    add_end(0);
    add_end(1);
    tell_done(ERROR_NONE);
}

static void stream_whole_texts(void) {
    ask_and_tell("/cambium.v1.Cambium/Generate", true);
}
static void answer_whole(void) {
    ask_and_tell("/cambium.v1.Cambium/GenerateOnce", true);
}
static void send_to_control(const char *path, const ProtobufCMessage *message) {
    failing_pause(true);
    ask_open(LISTENER_CONTROL, path, "1H");
    failing_pause(false);
    ask_send(message);
}
static void list_adapters(void) {
    Cambium__V1__ListAdaptersRequest asked = CAMBIUM__V1__LIST_ADAPTERS_REQUEST__INIT;
    send_to_control("/cambium.v1.Control/ListAdapters", &asked.base);
}
static void load_adapter(void) {
    Cambium__V1__LoadAdapterRequest asked = CAMBIUM__V1__LOAD_ADAPTER_REQUEST__INIT;
    struct registry_adapter adapter;
    struct error none = {0};
    asked.name = "new";
    fake_change.on_done = NULL;
    send_to_control("/cambium.v1.Control/LoadAdapter", &asked.base);
    assert_true(registry_find(&server, "lora", &adapter));
    if (fake_change.on_done)
        fake_change.on_done(fake_change.context, &none, &adapter);
}

static void allocations_of_calls_fail(void **state) {
    (void)state;
    try_all(stream_whole_texts);
    try_all(answer_whole);
    try_all(list_adapters);
    try_all(load_adapter);
}

/* A refusal keeps its status whatever it has no memory for, and loses its details first of all. */
static void a_refusal_without_memory_has_its_status(void **state) {
    struct error error;
    long most = 0;
    (void)state;
    error_set(&error, ERROR_CONTEXT_LENGTH, "text", "too long");
    for (long n = 0; n <= most; n++) {
        ask_open(LISTENER_DATA, "/", NULL);
        failing_start(n);
        grpc_fail(&fake.exchange, &error);
        long count = failing_stop();
        most = count > most ? count : most;
        assert_true(has_ended(11));
        assert_true(n || strstr(strbuf_text(&fake.head), "grpc-status-details-bin: "));
        fake_close(&fake);
    }
    assert_true(most > 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(allocations_of_calls_fail),
                                       cmocka_unit_test(a_refusal_without_memory_has_its_status)};
    test_ok(strbuf_reserve(&update.text, 4096));
    int failed = cmocka_run_group_tests(tests, start, stop);
    strbuf_free(&update.text);
    return failed;
}
