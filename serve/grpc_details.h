/* Machine-readable details of a failed call: the field grpc-status-details-bin, a google.rpc.Status in base64. It
 * contains ErrorInfo, RetryInfo and BadRequest, as far as the error has their data. */
#pragma once

#include <stddef.h>

struct error;
struct strbuf;

/* Appends the field's value. `message` is the text of grpc-message in UTF-8; clients compare the two. When `room` bytes
 * are too few, the last details are dropped, then the whole field. */
void grpc_add_details(struct strbuf *out, const struct error *error, const char *message, size_t room);
