/* Checks protobuf messages from anybody before protobuf-c unpacks them, and unpacks them within a quota.
 *
 * protobuf-c does not check the characters of a string, silently cuts it at a NUL, and allocates memory for every
 * unknown field: one megabyte can become sixty. Therefore a message is first walked by its descriptor. The walk checks
 * field numbers, wire types, lengths, nesting, the number of parts, and that every string is UTF-8 without NUL. Any
 * thread. */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PROTO_MAX_DEPTH = 8,         /* nested messages */
    PROTO_MAX_PARTS = 16384,     /* strings, messages and unknown fields of a message together */
    PROTO_BYTES_A_BYTE = 32,     /* of memory, at most, per byte of a message, */
    PROTO_LEAST_BYTES = 1 << 16, /* in addition to these, */
    PROTO_MOST_BYTES = 1 << 26   /* but never more than this */
};

enum proto_result {
    PROTO_OK,
    PROTO_MALFORMED, /* not a message of this kind */
    PROTO_TEXT,      /* a string that is not UTF-8, or has a NUL */
    PROTO_TOO_MUCH,  /* more parts, or more memory, than a message may have */
    PROTO_MEMORY
};

struct proto_fault {
    char field[64]; /* "sampling.logit_bias"; "" when it is not a known field */
    char text[128]; /* one line */
};

/* Walks the bytes as a message of `descriptor`. Sets `fault` unless the result is PROTO_OK. */
enum proto_result proto_check(const ProtobufCMessageDescriptor *descriptor, const unsigned char *bytes, size_t length,
                              struct proto_fault *fault);
/* Does proto_check, then unpacks the message; free it with proto_free. *message is NULL unless the result is
 * PROTO_OK. */
enum proto_result proto_unpack(const ProtobufCMessageDescriptor *descriptor, const unsigned char *bytes, size_t length,
                               ProtobufCMessage **message, struct proto_fault *fault);
/* NULL is allowed. */
void proto_free(ProtobufCMessage *message);

/* A field of a message on the wire, for reading without a descriptor. */
struct proto_field {
    uint32_t number;
    unsigned wire;              /* 0 varint, 1 eight bytes, 2 with a length, 5 four bytes */
    uint64_t value;             /* of a varint */
    const unsigned char *bytes; /* [length], for the other wire types */
    size_t length;
};
/* Reads the field at *at and advances *at. PROTO_MALFORMED when there is none. */
enum proto_result proto_read_field(const unsigned char **at, const unsigned char *end, struct proto_field *field);
