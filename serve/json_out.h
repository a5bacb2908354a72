/* Answers as JSON, straight into a growing string: never a tree for each token. */
#ifndef CAMBIUM_SERVE_JSON_OUT_H
#define CAMBIUM_SERVE_JSON_OUT_H

#include "base/strbuf.h"

#include <stddef.h>
#include <stdint.h>

/* Any bytes as a string; what is no UTF-8 becomes U+FFFD. */
void json_out_string(struct strbuf *out, const void *bytes, size_t length);
/* The same of a text that ends with a zero byte. */
void json_out_text(struct strbuf *out, const char *text);
/* Nine digits give back every float, and the same digits stand wherever the number is told: readers compare the
 * log-probability of a token with the largest of its place. What is not finite is null. */
void json_out_float(struct strbuf *out, float value);
void json_out_integer(struct strbuf *out, int64_t value);

#endif
