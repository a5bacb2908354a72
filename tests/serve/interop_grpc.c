/* grpc.testing.TestService for interop_server.c, by the server's own gRPC: what the interop clients of other languages
 * call. UnimplementedCall is not here, as it must not be. */
#include "interop_server.h"

#include "serve/grpc.h"

#include "interop_grpc.pb-c.h"

#include <stdlib.h>
#include <string.h>

/* ---- what all methods do ---- */

enum { LARGEST_PAYLOAD = 1 << 20 };

/* A payload of zeros; NULL when none is requested. */
static uint8_t *payload_fill(Grpc__Testing__Payload *payload, int32_t size) {
    grpc__testing__payload__init(payload);
    payload->body.len = size > 0 && size <= LARGEST_PAYLOAD ? (size_t)size : 0;
    payload->body.data = calloc(payload->body.len + 1, 1);
    return payload->body.data;
}

static void begin(struct grpc_call *call) {
    const char *value = exchange_field(grpc_exchange(call), "x-grpc-test-echo-initial");
    struct field field = field_of("x-grpc-test-echo-initial", value ? value : "");
    grpc_begin_answer(call, &field, value ? 1 : 0);
}

static void finish(struct grpc_call *call, const Grpc__Testing__EchoStatus *status) {
    const char *value = exchange_field(grpc_exchange(call), "x-grpc-test-echo-trailing-bin");
    struct field field = field_of("x-grpc-test-echo-trailing-bin", value ? value : "");
    while (field.value_length && field.value[field.value_length - 1] == '=')
        field.value_length--; /* binary values go out without padding */
    grpc_finish_with(call, status ? status->code : 0, status ? status->message : "", &field, value ? 1 : 0);
}

/* ---- one message, one answer ---- */

static void empty_call(struct grpc_call *call, const ProtobufCMessage *message) {
    Grpc__Testing__Empty answer = GRPC__TESTING__EMPTY__INIT;
    (void)message;
    grpc_answer(call, &answer.base);
}

static void unary_call(struct grpc_call *call, const ProtobufCMessage *message) {
    const Grpc__Testing__SimpleRequest *asked = (const Grpc__Testing__SimpleRequest *)message;
    Grpc__Testing__SimpleResponse answer = GRPC__TESTING__SIMPLE_RESPONSE__INIT;
    Grpc__Testing__Payload payload;
    uint8_t *bytes = payload_fill(&payload, asked->response_size);
    answer.payload = &payload;
    begin(call);
    if (!bytes)
        grpc_finish_memory(call);
    else if (!asked->response_status || !asked->response_status->code)
        grpc_send(call, &answer.base);
    finish(call, asked->response_status);
    free(bytes);
}

/* ---- streams ---- */

/* Sends answers as long as they are read; the number of the first that is not sent. */
static size_t send_from(struct grpc_call *call, const Grpc__Testing__StreamingOutputCallRequest *asked, size_t at) {
    for (; at < asked->n_response_parameters && !grpc_is_full(call); at++) {
        Grpc__Testing__StreamingOutputCallResponse answer = GRPC__TESTING__STREAMING_OUTPUT_CALL_RESPONSE__INIT;
        Grpc__Testing__Payload payload;
        uint8_t *bytes = payload_fill(&payload, asked->response_parameters[at]->size);
        answer.payload = &payload;
        if (bytes)
            grpc_send(call, &answer.base);
        else
            grpc_finish_memory(call);
        free(bytes);
    }
    return at;
}

struct output {
    const Grpc__Testing__StreamingOutputCallRequest *asked;
    size_t sent;
};

static void output_on(struct grpc_call *call) {
    struct output *output = grpc_context(call);
    output->sent = send_from(call, output->asked, output->sent);
    if (output->sent == output->asked->n_response_parameters)
        finish(call, output->asked->response_status);
}

static void output_begin(struct grpc_call *call, const ProtobufCMessage *message) {
    struct output *output = calloc(1, sizeof *output);
    if (!output) {
        grpc_finish_memory(call);
        return;
    }
    output->asked = (const Grpc__Testing__StreamingOutputCallRequest *)message;
    grpc_set_context(call, output);
    begin(call);
    output_on(call);
}

static void context_free(struct grpc_call *call) {
    free(grpc_context(call));
}

static void input_add(struct grpc_call *call, const ProtobufCMessage *message) {
    const Grpc__Testing__StreamingInputCallRequest *asked = (const Grpc__Testing__StreamingInputCallRequest *)message;
    int32_t *sum = grpc_context(call);
    if (!sum)
        grpc_set_context(call, sum = calloc(1, sizeof *sum));
    if (sum && asked->payload)
        *sum += (int32_t)asked->payload->body.len;
}

static void input_end(struct grpc_call *call) {
    const int32_t *sum = grpc_context(call);
    Grpc__Testing__StreamingInputCallResponse answer = GRPC__TESTING__STREAMING_INPUT_CALL_RESPONSE__INIT;
    answer.aggregated_payload_size = sum ? *sum : 0;
    begin(call);
    grpc_send(call, &answer.base);
    finish(call, NULL);
}

static void duplex_answer(struct grpc_call *call, const ProtobufCMessage *message) {
    const Grpc__Testing__StreamingOutputCallRequest *asked = (const Grpc__Testing__StreamingOutputCallRequest *)message;
    begin(call);
    send_from(call, asked, 0);
    if (asked->response_status && asked->response_status->code)
        finish(call, asked->response_status);
}

static void duplex_end(struct grpc_call *call) {
    begin(call);
    finish(call, NULL);
}

/* ---- the table ---- */

static const struct grpc_method methods[] = {
    {.name = "EmptyCall", .request = &grpc__testing__empty__descriptor, .on_message = empty_call},
    {.name = "UnaryCall", .request = &grpc__testing__simple_request__descriptor, .on_message = unary_call},
    {.name = "StreamingOutputCall",
     .request = &grpc__testing__streaming_output_call_request__descriptor,
     .gives_many = true,
     .on_message = output_begin,
     .on_room = output_on,
     .on_close = context_free},
    {.name = "StreamingInputCall",
     .request = &grpc__testing__streaming_input_call_request__descriptor,
     .takes_many = true,
     .on_message = input_add,
     .on_end = input_end,
     .on_close = context_free},
    {.name = "FullDuplexCall",
     .request = &grpc__testing__streaming_output_call_request__descriptor,
     .takes_many = true,
     .gives_many = true,
     .on_message = duplex_answer,
     .on_end = duplex_end},
};
static const struct grpc_service service = {
    .name = "grpc.testing.TestService", .methods = methods, .method_count = sizeof methods / sizeof *methods};
static const struct grpc_service *const services[] = {&service};

static bool grpc_claims(const struct exchange *exchange) {
    const char *type = exchange_field(exchange, "content-type");
    return type && !strncmp(type, "application/grpc", 16);
}

static void test_service_begin(struct exchange *exchange) {
    grpc_start(exchange, services, 1);
}

const struct interop_service interop_grpc = {grpc_claims, test_service_begin};
