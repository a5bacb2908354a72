/* Context-free rules whose terminals are regular expressions. Readers (of schemas, GBNF, tags) build them; the
 * automaton (automaton-internal.h) follows them. Nodes are trees; recursion goes through rules only.
 *
 * As with regular expressions, a failure stays: constructors then return RULE_NOTHING, and rules_status is asked once.
 */
#pragma once

#include "regex-internal.h"

typedef uint32_t rule_node;
typedef uint32_t rule_id;
enum { RULE_NOTHING = 0 /* no text */, RULE_EMPTY = 1 /* the empty text */ };

struct rules;
int rules_open(size_t bytes, double deadline, struct rules **rules);
/* NULL is allowed. */
void rules_close(struct rules *rules);
int rules_status(const struct rules *rules);
/* The set of terms of the terminals; it lives as long as the rules. */
struct regexes *rules_regexes(struct rules *rules);

/* Terminals match whole texts of a language, in every way that the rest allows (no longest match). */
rule_node rule_terminal(struct rules *rules, regex one);
/* A terminal whose text occurs once within the innermost rule_scope around it: keys of an object. */
rule_node rule_unique(struct rules *rules, regex one);
/* Texts of rule_unique inside of it, but not inside of a scope in it, differ from each other. */
rule_node rule_scope(struct rules *rules, rule_node inner);
rule_node rule_join(struct rules *rules, rule_node left, rule_node right);
rule_node rule_either(struct rules *rules, rule_node left, rule_node right);
/* Counted, not copied; the upper bound may be REGEX_ENDLESS. */
rule_node rule_repeat(struct rules *rules, rule_node one, int32_t least, int32_t most);
/* The text of one special token: its id is allowed there, and no other spelling of it. */
rule_node rule_special(struct rules *rules, int32_t id);

/* A new rule without a body, which may be called before it is defined, once. */
rule_id rule_declare(struct rules *rules);
void rule_define(struct rules *rules, rule_id rule, rule_node body);
rule_node rule_call(struct rules *rules, rule_id rule);

/* True when the rule derives no finite text. Every called rule is defined. */
bool rule_is_nothing(struct rules *rules, rule_id rule);
/* Names the rule with which texts begin; drops what derives nothing. The rules do not change any more. */
void rules_finish(struct rules *rules, rule_id root);
