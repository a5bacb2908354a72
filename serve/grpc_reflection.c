/* Server reflection: describes the services to clients without .proto files. v1 and v1alpha have the same messages.
 *
 * The build stores the descriptors of all files in one set (google.protobuf.FileDescriptorSet); its entries are sent
 * unchanged. The set is small: names are found by walking it. */
#include "grpc-internal.h"

#include "grpc/reflection/v1/reflection.pb-c.h"
#include "proto_check.h"

typedef Grpc__Reflection__V1__ServerReflectionRequest reflection_request;

/* ---- the set ---- */

static const unsigned char descriptors[] = {
#include "services.bin.inc"
};

struct span {
    const unsigned char *bytes;
    size_t length;
};

static bool next_field(struct span *rest, struct proto_field *field) {
    const unsigned char *at = rest->bytes, *end = at + rest->length;
    if (at == end || proto_read_field(&at, end, field))
        return false;
    *rest = (struct span){.bytes = at, .length = (size_t)(end - at)};
    return true;
}

static struct span span_of(const struct proto_field *field) {
    return (struct span){.bytes = field->bytes, .length = field->length};
}

/* Finds the first field with a number; names and packages are such fields. */
static struct span find(struct span message, uint32_t number) {
    struct proto_field field;
    while (next_field(&message, &field))
        if (field.number == number && field.wire == 2)
            return span_of(&field);
    return (struct span){.bytes = (const unsigned char *)"", .length = 0};
}

/* Takes the name at the front of a path, and the dot after it. */
static bool take_name(const char **path, struct span name) {
    if (strncmp(*path, (const char *)name.bytes, name.length) || !name.length)
        return false;
    const char *behind = *path + name.length;
    if (*behind && *behind != '.')
        return false;
    *path = *behind ? behind + 1 : behind;
    return true;
}

/* Field numbers in descriptor.proto. */
enum {
    FILE_NAME = 1,
    FILE_PACKAGE = 2,
    FILE_MESSAGE = 4,
    FILE_ENUM = 5,
    FILE_SERVICE = 6,
    MESSAGE_FIELD = 2,
    MESSAGE_NESTED = 3,
    MESSAGE_ENUM = 4,
    SERVICE_METHOD = 2
};

/* True when `path` is inside this message, service or enum, with whose name it begins. */
static bool has_inside(struct span entry, uint32_t number, bool is_message, const char *path, int depth) {
    struct proto_field field;
    if (!take_name(&path, find(entry, 1)))
        return false;
    if (!*path)
        return true;
    while (depth > 0 && next_field(&entry, &field)) {
        bool is_inner =
            is_message ? field.number == MESSAGE_FIELD || field.number == MESSAGE_NESTED || field.number == MESSAGE_ENUM
                       : number == FILE_SERVICE && field.number == SERVICE_METHOD;
        if (is_inner && field.wire == 2 &&
            has_inside(span_of(&field), 0, is_message && field.number == MESSAGE_NESTED, path, depth - 1))
            return true;
    }
    return false;
}

static bool file_has(struct span file, const char *symbol) {
    struct proto_field field;
    enum { MAX_NESTING = 8 };
    if (!take_name(&symbol, find(file, FILE_PACKAGE)))
        return false;
    while (next_field(&file, &field))
        if ((field.number == FILE_MESSAGE || field.number == FILE_ENUM || field.number == FILE_SERVICE) &&
            has_inside(span_of(&field), field.number, field.number == FILE_MESSAGE, symbol, MAX_NESTING))
            return true;
    return false;
}

/* Finds the descriptor of the file with this name, or with this symbol. */
static bool find_file(const char *name, const char *symbol, struct span *file) {
    struct span rest = {.bytes = descriptors, .length = sizeof descriptors};
    struct proto_field field;
    while (next_field(&rest, &field)) {
        *file = span_of(&field);
        struct span found = find(*file, FILE_NAME);
        if (name ? strlen(name) == found.length && !memcmp(name, found.bytes, found.length) : file_has(*file, symbol))
            return true;
    }
    return false;
}

/* ---- answers ---- */

struct answer {
    Grpc__Reflection__V1__ServerReflectionResponse message;
    Grpc__Reflection__V1__FileDescriptorResponse file;
    ProtobufCBinaryData bytes;
    Grpc__Reflection__V1__ListServiceResponse list;
    Grpc__Reflection__V1__ErrorResponse error;
    Grpc__Reflection__V1__ExtensionNumberResponse extensions;
};

static void fill_error(struct answer *answer, int code, const char *text) {
    answer->message.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE;
    answer->message.error_response = &answer->error;
    answer->error.error_code = code;
    answer->error.error_message = (char *)text;
}

static void fill_file(struct answer *answer, const char *name, const char *symbol) {
    struct span file;
    if (!find_file(name, symbol, &file)) {
        fill_error(answer, error_row(ERROR_MODEL_NOT_FOUND)->grpc,
                   name ? "there is no such file" : "there is no such symbol");
        return;
    }
    answer->message.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE;
    answer->message.file_descriptor_response = &answer->file;
    answer->bytes = (ProtobufCBinaryData){.data = (uint8_t *)file.bytes, .len = file.length};
    answer->file.n_file_descriptor_proto = 1;
    answer->file.file_descriptor_proto = &answer->bytes;
}

static void fill_extensions(struct answer *answer, const char *type) {
    struct span file;
    if (!find_file(NULL, type, &file)) {
        fill_error(answer, error_row(ERROR_MODEL_NOT_FOUND)->grpc, "there is no such type");
        return;
    }
    answer->message.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ALL_EXTENSION_NUMBERS_RESPONSE;
    answer->message.all_extension_numbers_response = &answer->extensions;
    answer->extensions.base_type_name = (char *)type; /* without numbers: proto3 has no extensions */
}

enum { MAX_SERVICES = 16 };

/* Lists the services of the listener. */
static void fill_list(const struct grpc_call *call, struct answer *answer, Grpc__Reflection__V1__ServiceResponse *names,
                      Grpc__Reflection__V1__ServiceResponse **name_list) {
    size_t count;
    const struct grpc_service *const *services = grpc_services(&count);
    for (size_t i = 0; i < count && answer->list.n_service < MAX_SERVICES; i++) {
        size_t at = answer->list.n_service;
        if (services[i]->is_control && grpc_exchange(call)->head.listener != LISTENER_CONTROL)
            continue;
        grpc__reflection__v1__service_response__init(&names[at]);
        names[at].name = (char *)services[i]->name;
        name_list[answer->list.n_service++] = &names[at];
    }
    answer->message.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE;
    answer->message.list_services_response = &answer->list;
    answer->list.service = name_list;
}

/* A symbol that is not found is an answer; the stream continues. */
static void on_message(struct grpc_call *call, const ProtobufCMessage *message) {
    const reflection_request *asked = (const reflection_request *)message;
    Grpc__Reflection__V1__ServiceResponse names[MAX_SERVICES], *name_list[MAX_SERVICES];
    struct answer answer = {
        .message = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT,
        .file = GRPC__REFLECTION__V1__FILE_DESCRIPTOR_RESPONSE__INIT,
        .list = GRPC__REFLECTION__V1__LIST_SERVICE_RESPONSE__INIT,
        .error = GRPC__REFLECTION__V1__ERROR_RESPONSE__INIT,
        .extensions = GRPC__REFLECTION__V1__EXTENSION_NUMBER_RESPONSE__INIT,
    };
    answer.message.valid_host = asked->host;
    answer.message.original_request = (reflection_request *)asked;
    switch (asked->message_request_case) {
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME:
        fill_file(&answer, asked->file_by_filename, NULL);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL:
        fill_file(&answer, NULL, asked->file_containing_symbol);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_EXTENSION:
        fill_error(&answer, error_row(ERROR_MODEL_NOT_FOUND)->grpc, "there are no extensions");
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_ALL_EXTENSION_NUMBERS_OF_TYPE:
        fill_extensions(&answer, asked->all_extension_numbers_of_type);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES:
        fill_list(call, &answer, names, name_list);
        break;
    default:
        fill_error(&answer, error_row(ERROR_ARGUMENT)->grpc, "expected one of the requests");
    }
    grpc_send(call, &answer.message.base);
}

static void on_end(struct grpc_call *call) {
    grpc_finish(call, NULL);
}

static const struct grpc_method methods[] = {
    {.name = "ServerReflectionInfo",
     .request = &grpc__reflection__v1__server_reflection_request__descriptor,
     .takes_many = true,
     .gives_many = true,
     .on_message = on_message,
     .on_end = on_end},
};
const struct grpc_service grpc_reflection = {
    .name = "grpc.reflection.v1.ServerReflection", .methods = methods, .method_count = 1};
const struct grpc_service grpc_reflection_alpha = {
    .name = "grpc.reflection.v1alpha.ServerReflection", .methods = methods, .method_count = 1};
