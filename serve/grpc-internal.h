/* What the files of gRPC's services share. */
#ifndef CAMBIUM_SERVE_GRPC_INTERNAL_H
#define CAMBIUM_SERVE_GRPC_INTERNAL_H

#include "call.h"
#include "grpc.h"

#include "cambium.pb-c.h"

extern const struct grpc_service grpc_cambium, grpc_control, grpc_health, grpc_reflection, grpc_reflection_alpha;

/* What a request asks becomes a call (grpc_ask.c); NULL: it was refused, and the call of gRPC has its end. */
struct call *grpc_ask_generate(struct grpc_call *call, const Cambium__V1__GenerateRequest *asked);
struct call *grpc_ask_score(struct grpc_call *call, const Cambium__V1__ScoreRequest *asked);

/* Generate, GenerateOnce, Score (grpc_generate.c). */
void grpc_generate(struct grpc_call *call, const ProtobufCMessage *message);
void grpc_generate_once(struct grpc_call *call, const ProtobufCMessage *message);
void grpc_score(struct grpc_call *call, const ProtobufCMessage *message);
void grpc_generate_room(struct grpc_call *call);
void grpc_generate_close(struct grpc_call *call);

/* Methods of grpc_cambium that do without the engine (grpc_tokens.c). */
bool grpc_tokenize(const struct route_reader *reader, const ProtobufCMessage *message, struct strbuf *packed,
                   struct error *error);
bool grpc_detokenize(const struct route_reader *reader, const ProtobufCMessage *message, struct strbuf *packed,
                     struct error *error);
void grpc_server_info(struct grpc_call *call, const ProtobufCMessage *message);

/* Tokens with their log-probabilities as a message has them (grpc_tokens.c); ends with grpc_token_list_free. */
struct grpc_token_list {
    Cambium__V1__TokenLogprob *tokens, **token_list;
    Cambium__V1__TopLogprob *tops, **top_list;
    size_t count;
};
/* `tops` is what the tokens' first_top counts from. STATUS_MEMORY. */
int grpc_token_list_fill(struct grpc_token_list *list, const struct call_token *tokens, int64_t count,
                         const struct call_top *tops);
void grpc_token_list_free(struct grpc_token_list *list);

/* Any bytes as the string of a message: repaired where they are no UTF-8, and whole where they have a NUL, at which
 * protobuf-c would cut them. Lives as long as the message is used. */
struct grpc_text {
    struct strbuf text;
    ProtobufCMessageUnknownField field;
};
/* `member` is the message's for field `number`. STATUS_MEMORY. */
int grpc_text_set(struct grpc_text *text, ProtobufCMessage *message, char **member, uint32_t number, const void *bytes,
                  size_t length);
void grpc_text_free(struct grpc_text *text);

#endif
