/* What a failed call tells programs beside its status: the field grpc-status-details-bin, a google.rpc.Status in
 * base64. Its details are ErrorInfo, RetryInfo and BadRequest, each where an error has what it tells. */
#ifndef CAMBIUM_SERVE_GRPC_DETAILS_H
#define CAMBIUM_SERVE_GRPC_DETAILS_H

#include <stddef.h>

struct error;
struct strbuf;

/* Appends the field's value. `message` is what grpc-message says, in UTF-8: clients compare the two. In more than
 * `room` bytes the last details are left out, then the field: nothing is appended. */
void grpc_add_details(struct strbuf *out, const struct error *error, const char *message, size_t room);

#endif
