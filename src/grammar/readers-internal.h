/* Readers of constraints: each builds rules from a text. A refusal is in the report, and the reader returns its status.
 */
#pragma once

#include "grammar/grammar.h"
#include "rules-internal.h"

/* The inputs of a reader. */
struct grammar_reading {
    const struct grammar_source *source;
    const struct grammar_vocabulary *vocabulary; /* for tags that name special tokens; may be NULL in tests */
    struct rules *rules;
    struct grammar_report *report;
    /* The settings of the part that is being read. Its field is in the report. */
    bool is_compact, is_closed, is_lenient;
};
/* Refuses: sets the report and the error text, and returns STATUS_INVALID or STATUS_UNSUPPORTED. */
int grammar_refuse(struct grammar_report *report, enum grammar_refusal refusal, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Names something in `ignored`, after the field. STATUS_MEMORY. */
int grammar_ignore(struct grammar_report *report, const char *text);

/* Returns the language of a pattern over decoded text, as UTF-8 bytes. `is_search`: it may match anywhere in the text
 * (a schema's pattern), else the whole text. `spelled`: characters are spelled as in JSON strings with
 * ensure_ascii=False (section 4 of the facts: complements are taken before the spelling). */
int pattern_read(const char *pattern, size_t length, bool is_search, bool is_json, struct grammar_reading *reading,
                 regex *language);
/* Each returns the node of the whole constraint. */
int schema_read(struct grammar_reading *reading, rule_node *node); /* of the source's text */
int schema_read_value(struct grammar_reading *reading, const json_t *schema, const char *place, rule_node *node);
int schema_read_object(struct grammar_reading *reading, rule_node *node); /* any JSON object */
int gbnf_read(struct grammar_reading *reading, rule_node *node);
int tag_read(struct grammar_reading *reading, rule_node *node);
/* Parts that tags and formats of calls use, of texts that are no whole source. */
int gbnf_read_text(struct grammar_reading *reading, const char *text, size_t length, const char *place,
                   rule_node *node);
/* The arguments of a call in Qwen's XML: <parameter=KEY>\nVALUE\n</parameter>\n for each property of the schema, a text
 * as it is, anything else as JSON. */
int parameters_read(struct grammar_reading *reading, const json_t *schema, const char *place, rule_node *node);
/* Finds the longest special token whose text begins at `text`, and its bytes; -1: there is none. The vocabulary may be
 * NULL. */
int32_t grammar_vocabulary_special(const struct grammar_vocabulary *vocabulary, const char *text, size_t length,
                                   size_t *bytes);
