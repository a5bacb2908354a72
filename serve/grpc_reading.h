/* Reads a complete message of gRPC: unpacks gzip and protobuf, and answers if only the model is needed. A short message
 * is read at once, a long one by the worker, so that no client's bytes hold up the loop. A reading has its own copy of
 * everything; its call may end meanwhile. */
#pragma once

#include "grpc.h"
#include "loop.h"

struct grpc_reading {
    struct worker_job job;
    struct server *server;
    const struct grpc_method *method;
    struct strbuf bytes;
    bool is_packed;
    uint64_t limit; /* bytes of the unpacked message */
    uint64_t owner; /* for taking turns at the worker */
    /* Called once in the loop's thread, possibly inside grpc_reading_start. */
    void (*on_done)(void *context, struct grpc_reading *reading);
    void *context; /* NULL: nobody waits any more; the loop's */
    /* The result, one of these: */
    struct error error;        /* which: not ERROR_NONE */
    ProtobufCMessage *message; /* owned by the receiver, which sets it to NULL; for proto_free */
    struct strbuf answer;      /* for a method with `answer` */
};

/* Takes over the bytes. The caller sets the fields above the result. NULL: no memory; the bytes are freed. */
struct grpc_reading *grpc_reading_new(const struct grpc_reading *reading);
/* Starts reading; the reading is freed after on_done. */
void grpc_reading_start(struct grpc_reading *reading);
/* The same in this thread, whatever the length. */
void grpc_reading_now(struct grpc_reading *reading);
