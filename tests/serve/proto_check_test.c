/* Messages of protobuf from anybody: what is refused, with which field, and what memory a message may take. */
#include "support/test.h"

#include "serve/proto_check.h"

#include "base/strbuf.h"

#include "cambium.pb-c.h"

static const ProtobufCMessageDescriptor *const generate = &cambium__v1__generate_request__descriptor;

static enum proto_result check(const ProtobufCMessageDescriptor *descriptor, const char *bytes, size_t length,
                               struct proto_fault *fault) {
    ProtobufCMessage *message;
    /* A block of exactly this size: a sanitizer sees a read past its end. */
    unsigned char *copy = malloc(length ? length : 1);
    assert_non_null(copy);
    memcpy(copy, bytes, length);
    enum proto_result result = proto_unpack(descriptor, copy, length, &message, fault);
    assert_int_equal(!result, message != NULL);
    proto_free(message);
    free(copy);
    return result;
}
#define CHECK(descriptor, text, fault) check(descriptor, text, sizeof(text) - 1, fault)

static void a_right_message_is_unpacked(void **state) {
    Cambium__V1__GenerateRequest asked = CAMBIUM__V1__GENERATE_REQUEST__INIT;
    Cambium__V1__Sampling sampling = CAMBIUM__V1__SAMPLING__INIT;
    Cambium__V1__LogitBias bias = CAMBIUM__V1__LOGIT_BIAS__INIT, *biases[] = {&bias};
    char *stops[] = {"\xe2\x82\xac", ""};
    unsigned char packed[256];
    struct proto_fault fault;
    ProtobufCMessage *message;
    (void)state;
    asked.model = "a";
    asked.n_stop = 2;
    asked.stop = stops;
    asked.sampling = &sampling;
    sampling._temperature_case = CAMBIUM__V1__SAMPLING___TEMPERATURE_TEMPERATURE;
    sampling.n_logit_bias = 1;
    sampling.logit_bias = biases;
    bias.id = 7;
    bias.bias = -1.5f;
    size_t length = cambium__v1__generate_request__pack(&asked, packed);
    assert_int_equal(proto_unpack(generate, packed, length, &message, &fault), PROTO_OK);
    const Cambium__V1__GenerateRequest *got = (const Cambium__V1__GenerateRequest *)message;
    assert_string_equal(got->stop[0], "\xe2\x82\xac");
    assert_string_equal(got->stop[1], "");
    assert_true(got->sampling->_temperature_case && got->sampling->temperature == 0);
    assert_true(got->sampling->logit_bias[0]->bias == -1.5f);
    proto_free(message);
    assert_int_equal(proto_unpack(generate, NULL, 0, &message, &fault), PROTO_OK);
    proto_free(message);
}

static void strings_are_utf8_without_nul(void **state) {
    static const struct {
        const char *bytes;
        size_t length;
    } bad[] = {{"\x0a\x01\xff", 3},
               {"\x0a\x02\xc0\x80", 4},
               {"\x0a\x03\xed\xa0\x80", 5},
               {"\x0a\x02\xe2\x82", 4},
               {"\x0a\x04\xf4\x90\x80\x80", 6},
               {"\x0a\x08tenantA\0", 10},
               {"\x0a\x01\0", 3},
               {"\x0a\x01"
                "a"
                "\x0a\x01\xff",
                6}};
    struct proto_fault fault;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(check(generate, bad[i].bytes, bad[i].length, &fault), PROTO_TEXT);
        assert_string_equal(fault.field, "model");
        assert_true(*fault.text);
    }
}

static void a_field_is_named_with_those_around_it(void **state) {
    struct proto_fault fault;
    (void)state;
    assert_int_equal(CHECK(&cambium__v1__generate_response__descriptor, "\x0a\x05\x22\x03\x0a\x01\xff", &fault),
                     PROTO_TEXT);
    assert_string_equal(fault.field, "started.adapters.name");
    assert_int_equal(CHECK(generate, "\x2a\x02\x0a\x00", &fault), PROTO_MALFORMED);
    assert_string_equal(fault.field, "sampling.temperature");
}

static void what_is_no_message_is_malformed(void **state) {
    static const struct {
        const char *bytes;
        size_t length;
    } bad[] = {{"\x0a", 1}, /* no length */
               {"\x0a\x05"
                "a",
                3}, /* broken off */
               {"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11},
               {"\x08\x01", 2}, /* a string as a number */
               {"\x32\x01"
                "a",
                3}, /* a number as a string */
               {"\x02\x01"
                "a",
                3},                                                      /* field 0 */
               {"\x0b\x0c", 2},                                          /* a group */
               {"\x38\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12}, /* 11 bytes of a varint */
               {"\x4a\x02\x01\xff", 4},                                  /* a list that breaks off */
               {"\xf8\xff\xff\xff\xff\x01\x01", 7}};                     /* a number of a field beyond 2^29 */
    struct proto_fault fault;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(check(generate, bad[i].bytes, bad[i].length, &fault), PROTO_MALFORMED);
}

static void lists_come_packed_and_not(void **state) {
    struct proto_fault fault;
    ProtobufCMessage *message;
    (void)state;
    assert_int_equal(proto_unpack(generate, (const unsigned char *)"\x4a\x02\x01\x02\x48\x03", 6, &message, &fault),
                     PROTO_OK);
    const Cambium__V1__GenerateRequest *got = (const Cambium__V1__GenerateRequest *)message;
    assert_int_equal(got->n_stop_token_ids, 3);
    assert_int_equal(got->stop_token_ids[2], 3);
    proto_free(message);
}

static void fill(struct strbuf *bytes, const char *piece, size_t length, size_t count) {
    strbuf_clear(bytes);
    for (size_t i = 0; i < count; i++)
        strbuf_add(bytes, piece, length);
    test_ok(strbuf_status(bytes));
}

static void parts_are_counted(void **state) {
    struct strbuf bytes = STRBUF_INIT;
    struct proto_fault fault;
    (void)state;
    fill(&bytes, "\xfa\x07\x09unknowns!", 12, PROTO_MAX_PARTS); /* unknown fields */
    assert_int_equal(check(generate, bytes.data, bytes.length, &fault), PROTO_OK);
    fill(&bytes, "\xfa\x07\x09unknowns!", 12, PROTO_MAX_PARTS + 1);
    assert_int_equal(check(generate, bytes.data, bytes.length, &fault), PROTO_TOO_MUCH);
    fill(&bytes, "\x42\x00", 2, PROTO_MAX_PARTS + 1); /* empty strings */
    assert_int_equal(check(generate, bytes.data, bytes.length, &fault), PROTO_TOO_MUCH);
    assert_string_equal(fault.field, "stop");
    strbuf_free(&bytes);
}

static void memory_is_bounded(void **state) {
    struct strbuf bytes = STRBUF_INIT;
    struct proto_fault fault;
    (void)state;
    fill(&bytes, "\x48\x01", 2, 2 << 20); /* ids one by one: protobuf-c takes 40 bytes and more for each */
    assert_int_equal(check(generate, bytes.data, bytes.length, &fault), PROTO_TOO_MUCH);
    fill(&bytes, "\x48\x01", 2, 1000);
    assert_int_equal(check(generate, bytes.data, bytes.length, &fault), PROTO_OK);
    strbuf_free(&bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_message_is_unpacked),
        cmocka_unit_test(strings_are_utf8_without_nul),
        cmocka_unit_test(a_field_is_named_with_those_around_it),
        cmocka_unit_test(what_is_no_message_is_malformed),
        cmocka_unit_test(lists_come_packed_and_not),
        cmocka_unit_test(parts_are_counted),
        cmocka_unit_test(memory_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
