/* JSON's text as terms: white space, strings and numbers, and how texts of a constraint are spelled in it. */
#pragma once

#include "regex-internal.h"

/* One character of the ranges, as itself or as json.dumps with ensure_ascii=False spells it within quotation marks. */
regex spell_characters(struct regexes *regexes, const struct regex_range *ranges, size_t count, bool is_json);
/* Any character but U+0000, so spelled. */
regex spell_any(struct regexes *regexes, bool is_json);
/* A text of UTF-8, so spelled. */
regex spell_text(struct regexes *regexes, const char *text, size_t length, bool is_json);

/* Appends the characters as json.dumps with ensure_ascii=False spells them, without quotation marks. */
void spell_bytes(struct strbuf *out, const char *text, size_t length);

/* White space between the tokens of a value: nothing, one space, or one or two line ends with bounded indents. */
regex spell_space(struct regexes *regexes, bool is_compact);
/* A whole string with its quotation marks, in every spelling. */
regex spell_free_string(struct regexes *regexes);
/* Any number. `spell_plain_number` has those without an exponent; one with `is_integer` has no point either. */
regex spell_number(struct regexes *regexes);
regex spell_plain_number(struct regexes *regexes, bool is_integer);
