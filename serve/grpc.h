/* gRPC over an exchange of HTTP/2 (the protocol's PROTOCOL-HTTP2 document).
 *
 * A method is a row: its name, the descriptor of its request, which sides stream, and its functions. The common part of
 * all methods is in grpc.c: framing, unpacking under a quota, gzip, deadlines, sizes, statuses.
 *
 * The files grpc_generate.c, grpc_tokens.c, grpc_control.c, grpc_health.c and grpc_reflection.c have the methods. The
 * router finds them through grpc_begin (route.h), and uses grpc_fail for requests that it refuses. The loop's
 * thread. */
#pragma once

#include "request.h"
#include "server.h"

#include <protobuf-c/protobuf-c.h>

enum { GRPC_MAX_MESSAGE = 4 << 20 /* limit of bytes of a sent message: the default limit of clients */ };

struct grpc_call;
struct route_reader;

struct grpc_method {
    const char *name; /* "Generate" */
    const ProtobufCMessageDescriptor *request;
    bool takes_many, gives_many; /* messages */
    /* Returns the longest message, in bytes, that the loop reads itself; NULL: ROUTE_SHORT_BYTES. */
    size_t (*short_bytes)(const struct server *server);
    /* For a method that needs only the model; replaces the functions below. Packs the answer, or sets *error. Any
     * thread. */
    bool (*answer)(const struct route_reader *reader, const ProtobufCMessage *message, struct strbuf *packed,
                   struct error *error);
    /* A message has arrived. A single message lives until on_close; one of many lives until this returns. The function
     * may end the call, now or later. */
    void (*on_message)(struct grpc_call *call, const ProtobufCMessage *message);
    /* For methods that take many messages: no more will come. */
    void (*on_end)(struct grpc_call *call);
    /* The client reads again, after grpc_is_full was true. */
    void (*on_room)(struct grpc_call *call);
    /* Called once if grpc_context is set, before the call is freed: nobody reads the answer any more. Never called
     * inside a function of this header. All functions except on_message, or `answer`, may be NULL. */
    void (*on_close)(struct grpc_call *call);
};

struct grpc_service {
    const char *name; /* "cambium.v1.Cambium" */
    bool is_control;  /* only on the control listener */
    const struct grpc_method *methods;
    size_t method_count;
};

/* Returns the server's services. */
const struct grpc_service *const *grpc_services(size_t *count);
/* Makes the exchange a call of one of these services, or refuses it. Uses only base and options of its server. */
void grpc_start(struct exchange *exchange, const struct grpc_service *const *services, size_t count);

/* ---- for methods ---- */

/* Returns the exchange of a call. */
struct exchange *grpc_exchange(const struct grpc_call *call);
/* The method's data for a call, set in on_message or later. */
void grpc_set_context(struct grpc_call *call, void *context);
void *grpc_context(const struct grpc_call *call);
/* Returns the monotonic time at which the client gives up; 0: never. */
double grpc_deadline(const struct grpc_call *call);
/* True after the call has ended: messages and statuses then have no effect. */
bool grpc_is_finished(const struct grpc_call *call);
/* True when more of the answer waits for its reader than the limit; on_room follows. */
bool grpc_is_full(const struct grpc_call *call);
/* Begins the answer with these fields. grpc_send begins it without fields if needed. */
void grpc_begin_answer(struct grpc_call *call, const struct field *fields, size_t count);
/* Sends a message. A message that is too large ends the call with an error. */
void grpc_send(struct grpc_call *call, const ProtobufCMessage *message);
/* Ends the call, successfully when `error` is NULL. */
void grpc_finish(struct grpc_call *call, const struct error *error);
/* Ends the call with any status, text and trailers. */
void grpc_finish_with(struct grpc_call *call, int status, const char *text, const struct field *trailers, size_t count);
/* Sends the only message and ends the call. */
void grpc_answer(struct grpc_call *call, const ProtobufCMessage *message);
/* The same for a message packed by grpc_pack. */
void grpc_answer_packed(struct grpc_call *call, const struct strbuf *packed);
/* Appends a message in the form in which it is sent. Returns false with *error when it is larger than clients accept,
 * or without memory. Any thread. */
bool grpc_pack(const ProtobufCMessage *message, struct strbuf *packed, struct error *error);
/* Ends the call for lack of memory. */
void grpc_finish_memory(struct grpc_call *call);

/* ---- parts of it, for tests ---- */

enum { GRPC_MAX_TIMEOUT_DIGITS = 8 };
/* Reads a grpc-timeout in seconds; returns false if it is not valid. */
bool grpc_read_timeout(const char *text, double *seconds);
/* Appends a text in the form of grpc-message: percent-encoded, invalid characters repaired, at most 4 KiB. */
void grpc_add_message(struct strbuf *out, const char *text);
