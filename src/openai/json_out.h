/* Answers as JSON, written directly into a growing string, without a tree for each token. */
#pragma once

#include "base/strbuf.h"

#include <stddef.h>
#include <stdint.h>

/* Writes any bytes as a string; invalid UTF-8 becomes U+FFFD. */
void json_out_string(struct strbuf *out, const void *bytes, size_t length);
/* The same for a text that ends with a zero byte. */
void json_out_text(struct strbuf *out, const char *text);
/* Nine digits restore every float. The same number always gives the same digits, because readers compare a token's
 * log-probability with the largest of its place. A number that is not finite becomes null. */
void json_out_float(struct strbuf *out, float value);
void json_out_integer(struct strbuf *out, int64_t value);
