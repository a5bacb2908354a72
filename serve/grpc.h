/* gRPC over an exchange of HTTP/2 (the protocol's PROTOCOL-HTTP2 document).
 *
 * A method is a row: its name, the descriptors of its messages, which side streams, and what happens. This room's part
 * is all that methods have in common: framing, unpacking under a quota, gzip, deadlines, sizes, statuses. What a
 * method does stands in grpc_generate.c, grpc_tokens.c, grpc_control.c, grpc_health.c and grpc_reflection.c; grpc_begin
 * (route.h) finds it, and grpc_fail is for what is refused before. The loop's thread. */
#ifndef CAMBIUM_SERVE_GRPC_H
#define CAMBIUM_SERVE_GRPC_H

#include "request.h"
#include "server.h"

#include <protobuf-c/protobuf-c.h>

enum { GRPC_MAX_MESSAGE = 4 << 20 /* bytes of one of ours: clients take no larger one unless they are told to */ };

struct grpc_call;
struct route_reader;

struct grpc_method {
    const char *name; /* "Generate" */
    const ProtobufCMessageDescriptor *request;
    bool takes_many, gives_many; /* messages */
    /* Bytes of a message that the loop reads itself; NULL: ROUTE_SHORT_BYTES. */
    size_t (*short_bytes)(const struct server *server);
    /* A method that needs nothing but the model, instead of what stands below: packs the answer, or *error. Any thread.
     */
    bool (*answer)(const struct route_reader *reader, const ProtobufCMessage *message, struct strbuf *packed,
                   struct error *error);
    /* A message has come: the one where there is one, and it lives until on_close; else each, until this returns. It
     * may end the call, at once or later. */
    void (*on_message)(struct grpc_call *call, const ProtobufCMessage *message);
    /* Where it takes many: there are no more. */
    void (*on_end)(struct grpc_call *call);
    /* The client reads again. */
    void (*on_room)(struct grpc_call *call);
    /* Once, where grpc_context is set: nobody listens any more, and the call is freed behind it. Never inside a
     * function of this header. Any of them but on_message, or `answer`, may be NULL. */
    void (*on_close)(struct grpc_call *call);
};

struct grpc_service {
    const char *name; /* "cambium.v1.Cambium" */
    bool is_control;  /* on the control listener alone */
    const struct grpc_method *methods;
    size_t method_count;
};

/* The server's services. */
const struct grpc_service *const *grpc_services(size_t *count);
/* The exchange becomes a call of one of these services, or is refused. Of its server it needs base and options. */
void grpc_start(struct exchange *exchange, const struct grpc_service *const *services, size_t count);

/* ---- for methods ---- */

struct exchange *grpc_exchange(const struct grpc_call *call);
/* What the method keeps of it, from on_message on. */
void grpc_set_context(struct grpc_call *call, void *context);
void *grpc_context(const struct grpc_call *call);
/* When the client gives it up, seconds of the monotonic clock; 0: never. */
double grpc_deadline(const struct grpc_call *call);
/* Whether it has an end: messages and statuses do nothing any more. */
bool grpc_is_finished(const struct grpc_call *call);
/* Whether more of the answer waits for its reader than may; on_room comes. */
bool grpc_is_full(const struct grpc_call *call);
/* Begins the answer, with fields of the method's own; grpc_send does it where nobody has. */
void grpc_begin_answer(struct grpc_call *call, const struct field *fields, size_t count);
/* Sends a message. One that is too large ends the call. */
void grpc_send(struct grpc_call *call, const ProtobufCMessage *message);
/* Ends the call; `error` NULL: all is well. */
void grpc_finish(struct grpc_call *call, const struct error *error);
/* The same with any status, text and trailers. */
void grpc_finish_with(struct grpc_call *call, int status, const char *text, const struct field *trailers, size_t count);
/* grpc_send of the only message, and the end. */
void grpc_answer(struct grpc_call *call, const ProtobufCMessage *message);
/* The same of a message that grpc_pack has packed. */
void grpc_answer_packed(struct grpc_call *call, const struct strbuf *packed);
/* Any thread. Appends a message as it goes out; false, with *error, where it is larger than clients take. */
bool grpc_pack(const ProtobufCMessage *message, struct strbuf *packed, struct error *error);
/* Ends the call for lack of memory. */
void grpc_finish_memory(struct grpc_call *call);

/* ---- parts of it, for tests ---- */

enum { GRPC_MAX_TIMEOUT_DIGITS = 8 };
/* Seconds of a grpc-timeout; false where it is none. */
bool grpc_read_timeout(const char *text, double *seconds);
/* Appends a text as grpc-message has it: percent-encoded, characters that are none repaired, 4 KiB at most. */
void grpc_add_message(struct strbuf *out, const char *text);

#endif
