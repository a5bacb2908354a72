/* Structural tags in both forms: what they allow, and what is refused with its place. */
#include "texts.h"

static const struct texts_case cases[] = {
    {"{\"type\": \"structural_tag\", \"structures\": [{\"begin\": \"<f=x>\", \"schema\": {\"type\": \"object\", "
     "\"properties\": {\"a\": {\"type\": \"integer\"}}, \"required\": [\"a\"], \"additionalProperties\": false}, "
     "\"end\": \"</f>\"}, {\"begin\": \"<f=y>\", \"schema\": {\"type\": \"null\"}, \"end\": \"</f>\"}], \"triggers\": "
     "[\"<f=\"]}",
     {"", "hi < <f ok", "a<f=x>{\"a\": 1}</f> b <f=y>null</f>", "<<f=y>null</f>"},
     {"<f=", "<f=z>", "a<f=x>{}</f>", "x<f=y>null", "\1"}},
    {"{\"structures\": [{\"begin\": \"aab\", \"schema\": {\"type\": \"null\"}, \"end\": \".\"}], \"triggers\": "
     "[\"aa\"]}",
     {"baabnull.", "a", "", "aabnull.a"},
     {"aaabnull.", "aa", "aaab"}},
    {"{\"structures\": [{\"begin\": \"<tool>\", \"schema\": {\"type\": \"null\"}, \"end\": \"</tool>\"}], "
     "\"triggers\": [\"<tool>\"]}",
     {"a\1null\2b\1null\2", "<tool", "</tool>"},
     {"<tool>null</tool>", "\1null</tool>", "\2", "\1"}},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"const_string\", \"value\": \"abc\"}}", {"abc"}, {"ab"}},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"sequence\", \"elements\": [{\"type\": \"const_string\", "
     "\"value\": \"<\"}, {\"type\": \"regex\", \"pattern\": \"[0-9]+\"}, {\"type\": \"json_schema\", \"json_schema\": "
     "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}, \"required\": [\"a\"], "
     "\"additionalProperties\": false}}]}}",
     {"<12{\"a\":1}"},
     {"<{\"a\":1}"}},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"or\", \"elements\": [{\"type\": \"const_string\", "
     "\"value\": \"a\"}, {\"type\": \"grammar\", \"grammar\": \"root ::= \\\"b\\\"+\"}]}}",
     {"a", "bb"},
     {"ab"}},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"tag\", \"begin\": \"<t>\", \"content\": {\"type\": "
     "\"any_text\"}, \"end\": \"</t>\"}}",
     {"<t></t>",
      "<t>x<\xc3"
      "\xa9"
      "</t>",
      "<t></t</t>"},
     {"<t></t></t>", "<t>", "</t>"}},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"tag\", \"begin\": \"<\", \"content\": {\"type\": "
     "\"any_text\"}, \"end\": \"aa\"}}",
     {"<aa", "<baa"},
     {"<aaa", "<baaa"}},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"tag\", \"begin\": \"<\", \"content\": {\"type\": "
     "\"any_text\", \"excludes\": [\"no\"]}, \"end\": [\"\\n>\", \">\"]}}",
     {"<>", "<\n>", "<\n\n>", "<a>"},
     {"<no>", "<>>", "<a"}},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"sequence\", \"elements\": [{\"type\": \"tag\", "
     "\"begin\": \"<think>\", \"content\": {\"type\": \"any_text\"}, \"end\": \"</think>\"}, {\"type\": "
     "\"any_text\"}]}}",
     {"<think>a</think>b", "<think></think>"},
     {"<think>a"}},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"triggered_tags\", \"triggers\": [\"<t\"], \"tags\": "
     "[{\"type\": \"tag\", \"begin\": \"<t1>\", \"content\": {\"type\": \"const_string\", \"value\": \"x\"}, \"end\": "
     "\"</t>\"}, {\"type\": \"tag\", \"begin\": \"<t2>\", \"content\": {\"type\": \"const_string\", \"value\": \"y\"}, "
     "\"end\": \"</t>\"}]}}",
     {"", "a", "a<t1>x</t>b<t2>y</t>c"},
     {"<t3", "<t1>y</t>"}},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"triggered_tags\", \"triggers\": [\"<t\"], \"tags\": "
     "[{\"type\": \"tag\", \"begin\": \"<t1>\", \"content\": {\"type\": \"const_string\", \"value\": \"x\"}, \"end\": "
     "\"</t>\"}], \"at_least_one\": true, \"stop_after_first\": true}}",
     {"<t1>x</t>", "a<t1>x</t>"},
     {"", "a", "<t1>x</t>b"}},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"triggered_tags\", \"triggers\": [\"<t\"], \"tags\": "
     "[{\"type\": \"tag\", \"begin\": \"<t1>\", \"content\": {\"type\": \"const_string\", \"value\": \"x\"}, \"end\": "
     "\"</t>\"}], \"excludes\": [\"bad\"], \"at_least_one\": true}}",
     {"ba<t1>x</t>c"},
     {"", "bad<t1>x</t>", "<t1>x</t>bad"}},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"tag\", \"begin\": \"[\", \"content\": {\"type\": "
     "\"triggered_tags\", \"triggers\": [\"<t\"], \"tags\": [{\"type\": \"tag\", \"begin\": \"<t1>\", \"content\": "
     "{\"type\": \"const_string\", \"value\": \"x\"}, \"end\": \"</t>\"}]}, \"end\": \"]\"}}",
     {"[]", "[a<t1>x</t>b]", "[<t1>x</t>]"},
     {"[a", "[a]b"}},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"tags_with_separator\", \"tags\": [{\"type\": \"tag\", "
     "\"begin\": \"<1>\", \"content\": {\"type\": \"const_string\", \"value\": \"x\"}, \"end\": \">\"}, {\"type\": "
     "\"tag\", \"begin\": \"<2>\", \"content\": {\"type\": \"const_string\", \"value\": \"y\"}, \"end\": \">\"}], "
     "\"separator\": \",\"}}",
     {"", "<1>x>", "<1>x>,<2>y>"},
     {"<1>x><2>y>", ","}},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"tags_with_separator\", \"tags\": [{\"type\": \"tag\", "
     "\"begin\": \"<1>\", \"content\": {\"type\": \"const_string\", \"value\": \"x\"}, \"end\": \">\"}], "
     "\"separator\": \",\", \"at_least_one\": true, \"stop_after_first\": true}}",
     {"<1>x>"},
     {"", "<1>x>,<1>x>"}},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"repeat\", \"min\": 1, \"max\": 2, \"content\": "
     "{\"type\": \"const_string\", \"value\": \"a\"}}}",
     {"a", "aa"},
     {"", "aaa"}},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"sequence\", \"elements\": [{\"type\": \"optional\", "
     "\"content\": {\"type\": \"const_string\", \"value\": \"a\"}}, {\"type\": \"plus\", \"content\": {\"type\": "
     "\"const_string\", \"value\": \"b\"}}, {\"type\": \"star\", \"content\": {\"type\": \"const_string\", \"value\": "
     "\"c\"}}]}}",
     {"ab", "bcc", "bb"},
     {"a", ""}},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"tag\", \"begin\": \"<\", \"content\": {\"type\": "
     "\"optional\", \"content\": {\"type\": \"any_text\"}}, \"end\": \">\"}}",
     {"<>", "<a>"},
     {"<a>>"}},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"tag\", \"begin\": \"<\", \"content\": {\"type\": "
     "\"const_string\", \"value\": \"a\"}, \"end\": \"\"}}",
     {"<a"},
     {"<"}},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"tag\", \"begin\": \"<tool>\", \"content\": {\"type\": "
     "\"const_string\", \"value\": \"x\"}, \"end\": \"</tool>\"}}",
     {"\1x\2"},
     {"<tool>x</tool>", "\1x</tool>"}},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"qwen_xml_parameter\", \"json_schema\": {\"type\": "
     "\"object\", \"properties\": {\"s\": {\"type\": \"string\"}, \"n\": {\"type\": \"integer\"}, \"o\": {\"enum\": "
     "[\"a\", \"b\"]}}, \"required\": [\"s\", \"n\"]}}}",
     {"<parameter=s>\na \"b\"\n\n</parameter>\n<parameter=n>\n12\n</parameter>\n",
      "<parameter=s>\n\n</parameter>\n<parameter=n>\n1\n</parameter>\n<parameter=o>\na\n</parameter>\n"},
     {"<parameter=s>\na\n</parameter>\n", "<parameter=n>\n1\n</parameter>\n<parameter=s>\na\n</parameter>\n",
      "<parameter=s>\na\n</parameter>\n<parameter=n>\nx\n</parameter>\n", "<parameter=x>\n1\n</parameter>\n"}},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"json_schema\", \"style\": \"qwen_xml\", \"json_schema\": "
     "{\"properties\": {\"a\": {\"anyOf\": [{\"type\": \"string\", \"maxLength\": 2}, {\"type\": \"null\"}]}}}}}",
     {"", "<parameter=a>\nxy\n</parameter>\n"},
     {"<parameter=a>\nxyz\n</parameter>\n"}},
};

static void tags_allow_what_they_say(void **state) {
    (void)state;
    texts_check(GRAMMAR_TAG, cases, sizeof cases / sizeof *cases);
}

static const struct texts_refusal refusals[] = {
    {"[]", "$: expected an object", GRAMMAR_INVALID},
    {"{\"type\": \"x\", \"format\": {}}", "$.type: expected \"structural_tag\"", GRAMMAR_INVALID},
    {"{\"type\": \"structural_tag\"}", "$: a structural tag needs \"format\"", GRAMMAR_INVALID},
    {"{", "line 1, column 1: string or '}' expected near end of file", GRAMMAR_INVALID},
    {"{\"type\": \"structural_tag\", \"format\": {}}", "$.format.type: expected a text", GRAMMAR_INVALID},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"nope\"}}", "$.format.type: no format is named \"nope\"",
     GRAMMAR_INVALID},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"token\", \"token\": 1}}",
     "$.format.type: \"token\" is not supported", GRAMMAR_UNSUPPORTED},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"tag\", \"begin\": \"a\", \"content\": {\"type\": "
     "\"any_text\"}}}",
     "$.format: a tag needs \"end\"", GRAMMAR_INVALID},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"const_string\", \"value\": 1}}",
     "$.format.value: expected a text", GRAMMAR_INVALID},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"const_string\", \"value\": \"a\", \"x\": 1}}",
     "$.format.x: no key of a const_string", GRAMMAR_UNSUPPORTED},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"sequence\", \"elements\": []}}",
     "$.format.elements: expected a list that is not empty", GRAMMAR_INVALID},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"sequence\", \"elements\": [{\"type\": \"regex\", "
     "\"pattern\": \"(\"}]}}",
     "$.format.elements[0].pattern: a ( without ) at column 2 of the pattern", GRAMMAR_INVALID},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"grammar\", \"grammar\": \"root ::= x\"}}",
     "$.format.grammar: line 1, column 10: no rule is named x", GRAMMAR_INVALID},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"triggered_tags\", \"triggers\": [\"<t\"], \"tags\": "
     "[{\"type\": \"tag\", \"begin\": \"x\", \"content\": {\"type\": \"const_string\", \"value\": \"x\"}, \"end\": "
     "\"y\"}]}}",
     "$.format.tags[0].begin: no trigger is the beginning of this text", GRAMMAR_INVALID},
    {"{\"structures\": [1], \"triggers\": [\"<f\"]}", "$.structures[0]: a structure needs \"begin\"", GRAMMAR_INVALID},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"repeat\", \"min\": 3, \"max\": 1, \"content\": "
     "{\"type\": \"any_text\"}}}",
     "$.format.min: more than max", GRAMMAR_INVALID},
    {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": "
     "{\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": "
     "\"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", "
     "\"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", "
     "\"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", "
     "\"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", "
     "\"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", "
     "\"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", "
     "\"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", "
     "\"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", "
     "\"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", "
     "\"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", "
     "\"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", "
     "\"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", "
     "\"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", "
     "\"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", "
     "\"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", "
     "\"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", "
     "\"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", "
     "\"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", "
     "\"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", "
     "\"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", "
     "\"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", \"content\": {\"type\": \"star\", "
     "\"content\": {\"type\": \"star\", \"content\": {\"type\": "
     "\"any_text\"}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}",
     "$.format.content.content.content.content.content.content.content.content.content.content.content.content.content."
     "content.content.content.content.content.content...: more than 64 nested formats",
     GRAMMAR_TOO_LARGE},
};

static void what_is_no_tag_is_refused_with_its_place(void **state) {
    (void)state;
    texts_check_refusals(GRAMMAR_TAG, refusals, sizeof refusals / sizeof *refusals);
}

#define PART(members) "{\"type\": \"part\", \"field\": \"tools\", \"place\": " members "}"
#define DROPPED       "\"json_schema\": {\"properties\": {\"a\": {\"pattern\": \"(?=a)\"}}}"
#define ROOT(format)  "{\"format\": " format "}"
#define BOTH(a, b)    ROOT("{\"type\": \"sequence\", \"elements\": [" a ", " b "]}")
#define CONST         "{\"type\": \"const_string\", \"value\": \"\"}"

/* A part's messages name the request's own field, and the place in it as it was written. */
static void parts_of_a_request_are_named_as_it_has_them(void **state) {
    static const struct {
        const char *constraint, *field, *message;
        const char *ignored;
    } parts[] = {
        {ROOT(PART("\"$[1].function.parameters\", " DROPPED)), "tools",
         "$[1].function.parameters.properties.a.pattern: a lookahead other than a negative one after ^ at column 2 of "
         "the pattern",
         NULL},
        {ROOT(PART("\"$[1].function.parameters\", \"is_lenient\": true, " DROPPED)), "f", NULL,
         "[\"tools: /1/function/parameters/properties/a/pattern\"]"},
        {BOTH(PART("\"$[0]\", \"is_lenient\": true, " DROPPED), PART("\"$[1]\", " DROPPED)), "tools",
         "$[1].properties.a.pattern: a lookahead other than a negative one after ^ at column 2 of the pattern",
         "[\"tools: /0/properties/a/pattern\"]"},
        {ROOT(PART("\"$\", \"tag\": {\"structures\": [{\"begin\": \"a\", \"schema\": 1, \"end\": \"b\"}], "
                   "\"triggers\": [\"a\"]}")),
         "tools", "$.structures[0].schema: expected a schema", NULL},
        {ROOT(PART("\"$\", \"tag\": " ROOT("{\"type\": \"x\"}"))), "tools", "$.format.type: no format is named \"x\"",
         NULL},
        {ROOT(PART("\"\", \"content\": {\"type\": \"regex\", \"pattern\": \"(a\"}")), "tools",
         "a ( without ) at column 3 of the pattern", NULL},
        {ROOT(PART("\"\", \"content\": {\"type\": \"grammar\", \"grammar\": \"root ::= a\"}")), "tools",
         "line 1, column 10: no rule is named a", NULL},
        {BOTH(PART("\"\", \"content\": " CONST), "{\"type\": \"x\"}"), "f",
         "$.format.elements[1].type: no format is named \"x\"", NULL},
        /* A request cannot write one itself. */
        {ROOT(PART("\"\", \"content\": " PART("\"\", \"content\": " CONST))), "tools", "no format is named \"part\"",
         NULL},
    };
    struct grammar_vocabulary *vocabulary = texts_vocabulary();
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const struct grammar_source source = {
            .field = "f", .kind = GRAMMAR_ANSWER, .text = parts[i].constraint, .length = strlen(parts[i].constraint)};
        struct grammar_report report = {0};
        struct grammar *grammar;
        int status = grammar_compile(&source, vocabulary, &(struct grammar_limits){10, 64 << 20}, &report, &grammar);
        assert_string_equal(strbuf_text(&report.message), parts[i].message ? parts[i].message : "");
        assert_string_equal(report.field, parts[i].field);
        assert_int_equal(status == STATUS_OK, !parts[i].message);
        char *ignored = report.ignored ? json_dumps(report.ignored, 0) : NULL;
        assert_string_equal(ignored ? ignored : "", parts[i].ignored ? parts[i].ignored : "");
        free(ignored);
        grammar_release(grammar);
        grammar_report_free(&report);
    }
    grammar_vocabulary_close(vocabulary);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tags_allow_what_they_say),
        cmocka_unit_test(what_is_no_tag_is_refused_with_its_place),
        cmocka_unit_test(parts_of_a_request_are_named_as_it_has_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
