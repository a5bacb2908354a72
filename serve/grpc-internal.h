/* Shared by the files of gRPC's services. */
#pragma once

#include "call.h"
#include "grpc.h"

#include "cambium.pb-c.h"

extern const struct grpc_service grpc_cambium, grpc_control, grpc_health, grpc_reflection, grpc_reflection_alpha;

/* Make a call from a request (grpc_ask.c). NULL: it was refused, and the call of gRPC has ended. */
struct call *grpc_ask_generate(struct grpc_call *call, const Cambium__V1__GenerateRequest *asked);
struct call *grpc_ask_score(struct grpc_call *call, const Cambium__V1__ScoreRequest *asked);

/* Methods of grpc_cambium that do not need the engine (grpc_tokens.c). */
bool grpc_tokenize(const struct route_reader *reader, const ProtobufCMessage *message, struct strbuf *packed,
                   struct error *error);
bool grpc_detokenize(const struct route_reader *reader, const ProtobufCMessage *message, struct strbuf *packed,
                     struct error *error);
void grpc_server_info(struct grpc_call *call, const ProtobufCMessage *message);

/* Tokens with their log-probabilities in the form of a message (grpc_tokens.c); ends with grpc_token_list_free. */
struct grpc_token_list {
    Cambium__V1__TokenLogprob *tokens, **token_list;
    Cambium__V1__TopLogprob *tops, **top_list;
    size_t count;
};
/* The tokens' first_top counts in `tops`. STATUS_MEMORY. */
int grpc_token_list_fill(struct grpc_token_list *list, const struct call_token *tokens, int64_t count,
                         const struct call_top *tops);
void grpc_token_list_free(struct grpc_token_list *list);

/* Arbitrary bytes as a string of a message. Invalid UTF-8 is repaired. A NUL is kept, at which protobuf-c would cut the
 * string. It must live as long as the message. */
struct grpc_text {
    struct strbuf text;
    ProtobufCMessageUnknownField field;
};
/* Sets `member`, the message's field `number`. STATUS_MEMORY. */
int grpc_text_set(struct grpc_text *text, ProtobufCMessage *message, char **member, uint32_t number, const void *bytes,
                  size_t length);
void grpc_text_free(struct grpc_text *text);
