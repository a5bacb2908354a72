/* Messages of protobuf from anybody, looked at before protobuf-c unpacks them, and unpacked within a quota.
 *
 * protobuf-c does not look at the characters of a string, cuts it at a NUL without a word, and makes an allocation of
 * every unknown field, so that a megabyte can become sixty. Here a message is walked by its descriptor first: field
 * numbers, wire types, lengths, nesting, number of parts, and UTF-8 without NUL in every string. Any thread. */
#ifndef CAMBIUM_SERVE_PROTO_CHECK_H
#define CAMBIUM_SERVE_PROTO_CHECK_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PROTO_MAX_DEPTH = 8,         /* messages in one another */
    PROTO_MAX_PARTS = 16384,     /* strings, messages and unknown fields of a message, all together */
    PROTO_BYTES_A_BYTE = 32,     /* of memory, at most, for each byte of a message, */
    PROTO_LEAST_BYTES = 1 << 16, /* beside these, */
    PROTO_MOST_BYTES = 1 << 26   /* and no more than this */
};

enum proto_result {
    PROTO_OK,
    PROTO_MALFORMED, /* no message of this kind */
    PROTO_TEXT,      /* a string is no UTF-8, or has a NUL */
    PROTO_TOO_MUCH,  /* more parts, or more memory, than a message may have */
    PROTO_MEMORY
};

struct proto_fault {
    char field[64]; /* "sampling.logit_bias"; "" where it is no known field */
    char text[128]; /* one line */
};

/* Walks the bytes as a message of `descriptor`. `fault` is set where the result is not PROTO_OK. */
enum proto_result proto_check(const ProtobufCMessageDescriptor *descriptor, const unsigned char *bytes, size_t length,
                              struct proto_fault *fault);
/* proto_check, and then the message, for proto_free; NULL where the result is not PROTO_OK. */
enum proto_result proto_unpack(const ProtobufCMessageDescriptor *descriptor, const unsigned char *bytes, size_t length,
                               ProtobufCMessage **message, struct proto_fault *fault);
/* NULL is allowed. */
void proto_free(ProtobufCMessage *message);

/* A field of a message on the wire, for who reads one without a descriptor. */
struct proto_field {
    uint32_t number;
    unsigned wire;              /* 0 varint, 1 eight bytes, 2 with a length, 5 four bytes */
    uint64_t value;             /* of a varint */
    const unsigned char *bytes; /* [length] of the others */
    size_t length;
};
/* Reads the field at *at and moves it on. PROTO_MALFORMED where there is none. */
enum proto_result proto_read_field(const unsigned char **at, const unsigned char *end, struct proto_field *field);

#endif
