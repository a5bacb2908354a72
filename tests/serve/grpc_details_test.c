/* The details of a failed gRPC call: read back as clients do, and never more than they accept. */
#include "serve/fake_exchange.h"

#include "openai/error.h"
#include "serve/grpc.h"
#include "serve/grpc_details.h"
#include "serve/route.h"

#include "google/rpc/error_details.pb-c.h"
#include "google/rpc/status.pb-c.h"

static struct serve_options options;
static struct server server = {.options = &options};
static struct fake fake;

/* ---- a client ---- */

/* The value of a field of the answer; NULL: there is none. */
static char *field_value(const char *name) {
    const char *at = strbuf_text(&fake.head);
    for (size_t length = strlen(name); *at; at = strchr(at, '\n') + 1)
        if (!strncmp(at, name, length) && !strncmp(at + length, ": ", 2)) {
            at += length + 2;
            return strndup(at, (size_t)(strchr(at, '\n') - at));
        }
    return NULL;
}

static int digit_of(char c) {
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

/* The status of the details; NULL: the answer has none. */
static Google__Rpc__Status *read_details(void) {
    char *value = field_value("grpc-status-details-bin");
    struct strbuf bytes = STRBUF_INIT;
    unsigned group = 0;
    int bits = 0;
    if (!value)
        return NULL;
    assert_int_not_equal(strlen(value) % 4, 1);
    for (const char *at = value; *at; at++) {
        assert_true(digit_of(*at) >= 0); /* no padding */
        group = (group << 6 | (unsigned)digit_of(*at)) & 0xffff;
        bits += 6;
        if (bits >= 8)
            strbuf_add_char(&bytes, (char)(group >> (bits -= 8) & 0xff));
    }
    assert_int_equal(group & ((1u << bits) - 1), 0);
    Google__Rpc__Status *status = google__rpc__status__unpack(NULL, bytes.length, (const uint8_t *)strbuf_text(&bytes));
    assert_non_null(status);
    strbuf_free(&bytes);
    free(value);
    return status;
}

/* The detail of a type, unpacked; NULL: there is none. */
static void *find_detail(const Google__Rpc__Status *status, const ProtobufCMessageDescriptor *type) {
    char url[128];
    snprintf(url, sizeof url, "type.googleapis.com/%s", type->name);
    for (size_t i = 0; i < status->n_details; i++)
        if (!strcmp(status->details[i]->type_url, url)) {
            void *message =
                protobuf_c_message_unpack(type, NULL, status->details[i]->value.len, status->details[i]->value.data);
            assert_non_null(message);
            return message;
        }
    return NULL;
}

static void free_detail(void *message) {
    if (message)
        protobuf_c_message_free_unpacked(message, NULL);
}

static void fail_call(const struct error *error) {
    fake_open(&fake, &server, LISTENER_DATA, "POST", "/");
    memset(fake.request.id, 'x', REQUEST_ID_BYTES - 1);
    grpc_fail(&fake.exchange, error);
    assert_int_equal(fake.ended, 1);
}

/* ---- promises ---- */

/* Each case of the table, with all that an error can have and with nothing. */
static void programs_read_what_went_wrong(void **state) {
    (void)state;
    for (int which = ERROR_ARGUMENT; which < ERROR_COUNT; which++)
        for (int is_full = 0; is_full < 2; is_full++) {
            const struct error_row *row = error_row((enum error_case)which);
            struct error error;
            error_set(&error, (enum error_case)which, is_full ? "max_tokens" : NULL, "too\nmany\xe2");
            error.retry_after_ms = is_full ? 2345 : 0;
            fail_call(&error);
            Google__Rpc__Status *status = read_details();
            assert_non_null(status);
            assert_int_equal(status->code, row->grpc);
            /* As grpc-message says it: clients compare the two. */
            assert_string_equal(status->message, is_full ? "max_tokens: too?many?" : "too?many?");
            Google__Rpc__ErrorInfo *info = find_detail(status, &google__rpc__error_info__descriptor);
            Google__Rpc__RetryInfo *retry = find_detail(status, &google__rpc__retry_info__descriptor);
            Google__Rpc__BadRequest *bad = find_detail(status, &google__rpc__bad_request__descriptor);
            assert_int_equal(!info, !row->code);
            assert_int_equal(!retry, !is_full);
            assert_int_equal(!bad, !is_full);
            assert_int_equal(status->n_details, !!info + !!retry + !!bad);
            if (info) {
                assert_int_equal(strcasecmp(info->reason, row->code), 0);
                assert_null(strpbrk(info->reason, "abcdefghijklmnopqrstuvwxyz"));
                assert_string_equal(info->domain, "cambium");
                assert_int_equal(info->n_metadata, 1);
                assert_string_equal(info->metadata[0]->key, "type");
                assert_string_equal(info->metadata[0]->value, row->type);
            }
            if (is_full) {
                assert_int_equal(retry->retry_delay->seconds, 2);
                assert_int_equal(retry->retry_delay->nanos, 345000000);
                assert_int_equal(bad->n_field_violations, 1);
                assert_string_equal(bad->field_violations[0]->field, "max_tokens");
                assert_string_equal(bad->field_violations[0]->description, "too?many?");
            }
            free_detail(info);
            free_detail(retry);
            free_detail(bad);
            google__rpc__status__free_unpacked(status, NULL);
            fake_close(&fake);
        }
}

/* Returns the size of the fields as clients count it: name, value and 32. */
static size_t size_of_fields(void) {
    size_t size = 0;
    for (const char *at = strbuf_text(&fake.head); *at; at = strchr(at, '\n') + 1)
        size += (size_t)(strchr(at, '\n') - at) - 2 + 32;
    return size;
}

static void details_make_room_for_the_message(void **state) {
    static const char *const letters[] = {"a", "\xe2\x98\xba", "\xff"};
    (void)state;
    for (size_t letter = 0; letter < 3; letter++) {
        size_t last = 3, without = 0;
        for (size_t length = 1; length * strlen(letters[letter]) < sizeof(((struct error *)0)->text); length++) {
            struct strbuf text = STRBUF_INIT, wanted = STRBUF_INIT;
            struct error error;
            for (size_t i = 0; i < length; i++)
                strbuf_add_text(&text, letters[letter]);
            error_set(&error, ERROR_OVERLOADED, "p", "a text");
            snprintf(error.text, sizeof error.text, "%s", strbuf_text(&text)); /* as it is */
            strbuf_clear(&text);
            strbuf_format(&text, "p: %s", error.text);
            grpc_add_message(&wanted, strbuf_text(&text));
            fail_call(&error);
            assert_true(size_of_fields() < 8192 - 256); /* what the transport adds */
            char *message = field_value("grpc-message");
            assert_string_equal(message, strbuf_text(&wanted));
            free(message);
            Google__Rpc__Status *status = read_details();
            size_t count = status ? status->n_details : 0;
            assert_true(count <= last); /* the last goes first */
            last = count;
            without += count < 3;
            if (status)
                google__rpc__status__free_unpacked(status, NULL);
            fake_close(&fake);
            strbuf_free(&text);
            strbuf_free(&wanted);
        }
        assert_int_equal(without > 0, letter == 2); /* valid text leaves room for all */
    }
}

/* One detail after the other as there is room, and nothing in too little. */
static void details_stay_within_their_room(void **state) {
    size_t last = 0, steps = 0;
    struct error error;
    (void)state;
    error_set(&error, ERROR_OVERLOADED, "text", "come back later");
    for (size_t room = 0; room < 1024; room++) {
        struct strbuf value = STRBUF_INIT;
        grpc_add_details(&value, &error, "come back later", room);
        assert_true(value.length <= room && value.length >= last);
        steps += value.length > last;
        last = value.length;
        strbuf_free(&value);
    }
    assert_int_equal(steps, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs_read_what_went_wrong),
        cmocka_unit_test(details_make_room_for_the_message),
        cmocka_unit_test(details_stay_within_their_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
