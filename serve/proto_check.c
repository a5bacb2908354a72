/* A walk over the bytes along the descriptor, and an allocator with a quota. */
#include "proto_check.h"

#include "base/utf8.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the wire ---- */

static bool read_varint(const unsigned char **at, const unsigned char *end, uint64_t *value) {
    *value = 0;
    for (unsigned shift = 0; shift < 70 && *at < end; shift += 7) {
        unsigned char byte = *(*at)++;
        if (shift < 64)
            *value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return true;
    }
    return false;
}

static bool read_bytes(const unsigned char **at, const unsigned char *end, uint64_t length, struct proto_field *field) {
    if (length > (uint64_t)(end - *at))
        return false;
    field->bytes = *at;
    field->length = (size_t)length;
    *at += length;
    return true;
}

enum proto_result proto_read_field(const unsigned char **at, const unsigned char *end, struct proto_field *field) {
    uint64_t tag, length;
    bool is_right = read_varint(at, end, &tag) && tag >> 3 && tag <= UINT32_MAX;
    *field = (struct proto_field){.number = (uint32_t)(tag >> 3), .wire = tag & 7};
    if (!is_right)
        return PROTO_MALFORMED;
    switch (field->wire) {
    case 0:
        is_right = read_varint(at, end, &field->value);
        break;
    case 1:
        is_right = read_bytes(at, end, 8, field);
        break;
    case 2:
        is_right = read_varint(at, end, &length) && read_bytes(at, end, length, field);
        break;
    case 5:
        is_right = read_bytes(at, end, 4, field);
        break;
    default: /* groups, unused for twenty years */
        is_right = false;
    }
    return is_right ? PROTO_OK : PROTO_MALFORMED;
}

/* ---- the walk ---- */

struct walk {
    struct proto_fault *fault;
    size_t parts;
    const char *names[PROTO_MAX_DEPTH]; /* of the fields around this place */
    int depth;
};

static enum proto_result fail(const struct walk *walk, enum proto_result result, const ProtobufCFieldDescriptor *row,
                              const char *text) {
    char *field = walk->fault->field;
    size_t room = sizeof walk->fault->field, length = 0;
    *field = 0;
    for (int i = 0; i <= walk->depth; i++) {
        const char *name = i < walk->depth ? walk->names[i] : row ? row->name : NULL;
        if (name && length < room)
            length += (size_t)snprintf(field + length, room - length, "%s%s", length ? "." : "", name);
    }
    snprintf(walk->fault->text, sizeof walk->fault->text, "%s", text);
    return result;
}

static unsigned wire_of(ProtobufCType type) {
    switch (type) {
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
        return 5;
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 1;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
        return 2;
    default:
        return 0;
    }
}

static bool packed_is_right(unsigned wire, const struct proto_field *field) {
    const unsigned char *at = field->bytes, *end = at + field->length;
    uint64_t value;
    if (wire)
        return field->length % (wire == 1 ? 8 : 4) == 0;
    while (at < end)
        if (!read_varint(&at, end, &value))
            return false;
    return true;
}

static enum proto_result walk_message(struct walk *walk, const ProtobufCMessageDescriptor *descriptor,
                                      const unsigned char *at, const unsigned char *end);

static enum proto_result walk_field(struct walk *walk, const ProtobufCFieldDescriptor *row,
                                    const struct proto_field *field) {
    bool is_part = !row || wire_of(row->type) == 2;
    if (is_part && ++walk->parts > PROTO_MAX_PARTS)
        return fail(walk, PROTO_TOO_MUCH, row, "the message has too many parts");
    if (!row)
        return PROTO_OK;
    unsigned wire = wire_of(row->type);
    if (wire != 2 && field->wire == 2 && row->label == PROTOBUF_C_LABEL_REPEATED)
        return packed_is_right(wire, field) ? PROTO_OK : fail(walk, PROTO_MALFORMED, row, "a list breaks off");
    if (field->wire != wire)
        return fail(walk, PROTO_MALFORMED, row, "of another type than the field has");
    if (row->type == PROTOBUF_C_TYPE_MESSAGE && walk->depth + 1 >= PROTO_MAX_DEPTH)
        return fail(walk, PROTO_TOO_MUCH, row, "messages in one another are too deep");
    if (row->type == PROTOBUF_C_TYPE_MESSAGE) {
        walk->names[walk->depth++] = row->name;
        enum proto_result result = walk_message(walk, row->descriptor, field->bytes, field->bytes + field->length);
        walk->depth--;
        return result;
    }
    if (row->type != PROTOBUF_C_TYPE_STRING)
        return PROTO_OK;
    if (utf8_valid_length(field->bytes, field->length) != field->length)
        return fail(walk, PROTO_TEXT, row, "the text is not UTF-8");
    return field->length && memchr(field->bytes, 0, field->length) ? fail(walk, PROTO_TEXT, row, "the text has a NUL")
                                                                   : PROTO_OK;
}

static enum proto_result walk_message(struct walk *walk, const ProtobufCMessageDescriptor *descriptor,
                                      const unsigned char *at, const unsigned char *end) {
    while (at < end) {
        struct proto_field field;
        if (proto_read_field(&at, end, &field))
            return fail(walk, PROTO_MALFORMED, NULL, "the message breaks off, or has a field that cannot be");
        const ProtobufCFieldDescriptor *row = protobuf_c_message_descriptor_get_field(descriptor, field.number);
        enum proto_result result = walk_field(walk, row, &field);
        if (result)
            return result;
    }
    return PROTO_OK;
}

enum proto_result proto_check(const ProtobufCMessageDescriptor *descriptor, const unsigned char *bytes, size_t length,
                              struct proto_fault *fault) {
    struct walk walk = {.fault = fault};
    *fault = (struct proto_fault){0};
    return length ? walk_message(&walk, descriptor, bytes, bytes + length) : PROTO_OK;
}

/* ---- the quota ---- */

struct quota {
    size_t bytes, count; /* that remain */
    bool is_spent, has_no_memory;
};

static void *quota_alloc(void *context, size_t size) {
    struct quota *quota = context;
    enum { OVERHEAD = 16 }; /* malloc's bookkeeping */
    if (!quota->count || size > quota->bytes || size + OVERHEAD > quota->bytes) {
        quota->is_spent = true;
        return NULL;
    }
    quota->count--;
    quota->bytes -= size + OVERHEAD;
    void *memory = malloc(size ? size : 1);
    quota->has_no_memory |= !memory;
    return memory;
}

static void quota_free(void *context, void *memory) {
    free(memory);
}

/* Every part is an allocation, and so is every list. */
enum { MAX_ALLOCATIONS = 2 * PROTO_MAX_PARTS };

enum proto_result proto_unpack(const ProtobufCMessageDescriptor *descriptor, const unsigned char *bytes, size_t length,
                               ProtobufCMessage **message, struct proto_fault *fault) {
    *message = NULL;
    enum proto_result result = proto_check(descriptor, bytes, length, fault);
    if (result)
        return result;
    struct quota quota = {.bytes = PROTO_MOST_BYTES, .count = MAX_ALLOCATIONS};
    if (length < (PROTO_MOST_BYTES - PROTO_LEAST_BYTES) / PROTO_BYTES_A_BYTE)
        quota.bytes = length * PROTO_BYTES_A_BYTE + PROTO_LEAST_BYTES;
    ProtobufCAllocator allocator = {.alloc = quota_alloc, .free = quota_free, .allocator_data = &quota};
    /* The unpacker needs a pointer even when there is nothing to read. */
    *message = protobuf_c_message_unpack(descriptor, &allocator, length, bytes ? bytes : (const unsigned char *)"");
    if (*message)
        return PROTO_OK;
    if (quota.has_no_memory)
        return PROTO_MEMORY;
    snprintf(fault->text, sizeof fault->text, "%s",
             quota.is_spent ? "the message takes too much memory" : "the message cannot be read");
    return quota.is_spent ? PROTO_TOO_MUCH : PROTO_MALFORMED;
}

void proto_free(ProtobufCMessage *message) {
    struct quota quota = {0};
    ProtobufCAllocator allocator = {.alloc = quota_alloc, .free = quota_free, .allocator_data = &quota};
    if (message)
        protobuf_c_message_free_unpacked(message, &allocator);
}
