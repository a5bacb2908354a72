/* A message of gRPC that has come whole is read: unpacked from gzip and from protobuf, and answered where that needs
 * nothing but the model. A short one is read at once, a long one by the worker, so that nobody's bytes hold up the
 * loop. A reading has its own copy of everything: its call may go. */
#ifndef CAMBIUM_SERVE_GRPC_READING_H
#define CAMBIUM_SERVE_GRPC_READING_H

#include "grpc.h"
#include "loop.h"

struct grpc_reading {
    struct worker_job job;
    struct server *server;
    const struct grpc_method *method;
    struct strbuf bytes;
    bool is_packed;
    uint64_t limit; /* bytes of a message that is not packed any more */
    uint64_t owner; /* whose turn it is at the worker */
    /* Once, in the loop's thread, also inside grpc_reading_start. */
    void (*on_done)(void *context, struct grpc_reading *reading);
    void *context; /* NULL: nobody waits any more; the loop's */
    /* read: one of these */
    struct error error;        /* which: not ERROR_NONE */
    ProtobufCMessage *message; /* the receiver's, who sets it to NULL; for proto_free */
    struct strbuf answer;      /* of a method that has `answer` */
};

/* Takes the bytes over; what is set before stands above `read`. NULL: no memory, and the bytes are gone. */
struct grpc_reading *grpc_reading_new(const struct grpc_reading *reading);
/* The reading is freed after on_done. */
void grpc_reading_start(struct grpc_reading *reading);
/* The same in this thread, whatever its length. */
void grpc_reading_now(struct grpc_reading *reading);

#endif
