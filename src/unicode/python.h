/* Strings as Python's str has them: white space, lengths in characters, capitals. Texts are UTF-8; a byte that is not
 * part of a valid character counts as one character. */
#pragma once

#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the character at `at`, which lies before `end`, and its length in bytes. */
uint32_t python_character(const char *at, const char *end, size_t *bytes);
/* str.isspace(), and the \s of regular expressions, for the character at `at`; also returns its length. */
bool python_is_space(const char *at, const char *end, size_t *bytes);
/* len() of a text. */
size_t python_length(const char *text, size_t length);
/* Returns the bytes of white space at the end of a text. */
size_t python_space_after(const char *text, size_t length);
/* str.strip(): moves *text and *length past the white space at both ends. */
void python_strip(const char **text, size_t *length);
/* True when the capital sigma at byte `at` becomes a final one in lower case: a letter comes before it and none after.
 * Characters that have no say in this, such as accents and apostrophes, are passed over. */
bool python_sigma_is_final(const char *text, size_t length, size_t at);
/* Appends str.capitalize(): the first character in title case, all others in lower case. */
void python_capitalize(const char *text, size_t length, struct strbuf *out);
