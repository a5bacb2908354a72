/* Any bytes as a message. They are refused with a line, or unpacked within the quota into a message whose strings are
 * whole, so that packing gives a correct message too. The first byte chooses the kind of message. */
#include "serve/proto_check.h"

#include "base/base.h"

#include "cambium.pb-c.h"
#include "grpc/reflection/v1/reflection.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const ProtobufCMessageDescriptor *const kinds[] = {
    &cambium__v1__generate_request__descriptor,     &cambium__v1__generate_response__descriptor,
    &cambium__v1__score_request__descriptor,        &cambium__v1__generate_once_response__descriptor,
    &cambium__v1__load_adapter_request__descriptor, &grpc__reflection__v1__server_reflection_request__descriptor,
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void check(bool is_right, const char *what) {
    if (is_right)
        return;
    fprintf(stderr, "protobuf_fuzz: %s\n", what);
    abort();
}

static void check_again(const ProtobufCMessageDescriptor *kind, const ProtobufCMessage *message) {
    struct proto_fault fault;
    size_t length = protobuf_c_message_get_packed_size(message);
    unsigned char *packed = malloc(length + 1);
    if (!packed)
        return;
    protobuf_c_message_pack(message, packed);
    check(proto_check(kind, packed, length, &fault) == PROTO_OK, "what was unpacked is not right when it is packed");
    free(packed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct proto_fault fault;
    ProtobufCMessage *message;
    if (!size)
        return 0;
    const ProtobufCMessageDescriptor *kind = kinds[data[0] % KINDS];
    enum proto_result result = proto_unpack(kind, data + 1, size - 1, &message, &fault);
    check(!result == (message != NULL), "a message without success, or success without a message");
    check(!result || result == PROTO_MEMORY || *fault.text, "refused without a text");
    check(result != PROTO_TEXT || *fault.field, "a text of no field");
    if (message)
        check_again(kind, message);
    proto_free(message);
    return 0;
}
