/* Formats of strings that are enforced, as patterns. Sources: RFC 3339 for dates, times and durations, 5321 for mail,
 * 1123 for hosts, 3986 for URIs, 4291 for IPv6, 6901 for pointers. 29 February is allowed in each year. */
#include "schema-internal.h"

#define DATE                                                                                                           \
    "\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|[12]\\d))"
#define HOUR      "(?:[01]\\d|2[0-3])"
#define FRACTION  "(?:\\.\\d+)?"
#define TIME      "(?:" HOUR ":[0-5]\\d:[0-5]\\d" FRACTION "(?:[Zz]|[+-]" HOUR ":[0-5]\\d)|23:59:60" FRACTION "[Zz])"
#define CLOCK     "T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S)"
#define LABEL     "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HOST      LABEL "(?:\\." LABEL ")*"
#define OCTET     "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4      OCTET "(?:\\." OCTET "){3}"
#define GROUP     "[0-9A-Fa-f]{1,4}"
#define LAST_PAIR "(?:" GROUP ":" GROUP "|" IPV4 ")"
#define UP_TO(n)  "(?:" GROUP "(?::" GROUP "){0," #n "})?::"
#define IPV6                                                                                                           \
    "(?:(?:" GROUP ":){6}" LAST_PAIR "|::(?:" GROUP ":){5}" LAST_PAIR "|(?:" GROUP ")?::(?:" GROUP ":){4}" LAST_PAIR   \
    "|" UP_TO(1) "(?:" GROUP ":){3}" LAST_PAIR "|" UP_TO(2) "(?:" GROUP ":){2}" LAST_PAIR "|" UP_TO(3) GROUP           \
        ":" LAST_PAIR "|" UP_TO(4) LAST_PAIR "|" UP_TO(5) GROUP "|" UP_TO(6) ")"
#define ATOM    "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define MAILBOX "(?:" ATOM "(?:\\." ATOM ")*|\"(?:[ !#-\\[\\]-~]|\\\\[ -~])*\")"
#define PERCENT "%[0-9A-Fa-f]{2}"
#define PLAIN   "-A-Za-z0-9._~!$&'()*+,;="
#define SEGMENT "(?:[" PLAIN ":@]|" PERCENT ")"
#define PATH    "(?:/" SEGMENT "*)*"
#define AUTHORITY                                                                                                      \
    "(?:(?:[" PLAIN ":]|" PERCENT ")*@)?(?:\\[(?:" IPV6 "|[Vv][0-9A-Fa-f]+\\.[" PLAIN ":]+)\\]|(?:[" PLAIN             \
    "]|" PERCENT ")*)(?::\\d*)?"
#define ABSOLUTE "//" AUTHORITY PATH "|/(?:" SEGMENT "+" PATH ")?"
#define TAIL     "(?:\\?(?:" SEGMENT "|[/?])*)?(?:#(?:" SEGMENT "|[/?])*)?"
#define URI      "[A-Za-z][A-Za-z0-9+.-]*:(?:" ABSOLUTE "|" SEGMENT "+" PATH "|)" TAIL

static const struct {
    const char *name, *pattern;
    int32_t longest; /* characters; 0: any number */
} FORMATS[] = {
    {"date", DATE, 0},
    {"date-time", DATE "[Tt]" TIME, 0},
    {"duration", "P(?:\\d+W|(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)(?:" CLOCK ")?|" CLOCK ")", 0},
    {"email", MAILBOX "@(?:" HOST "|\\[(?:" IPV4 "|IPv6:" IPV6 ")\\])", 0},
    {"hostname", HOST, 253},
    {"ipv4", IPV4, 0},
    {"ipv6", IPV6, 0},
    {"json-pointer", "(?:/(?:[^~/]|~[01])*)*", 0},
    {"time", TIME, 0},
    {"uri", URI, 0},
    {"uri-reference", "(?:" URI "|(?:" ABSOLUTE "|(?:[" PLAIN "@]|" PERCENT ")+" PATH "|)" TAIL ")", 0},
    {"uuid", "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", 0},
};

int format_read(struct grammar_reading *reading, const char *name, regex *language) {
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++) {
        if (strcmp(FORMATS[i].name, name))
            continue;
        struct regexes *regexes = rules_regexes(reading->rules);
        int status = pattern_read(FORMATS[i].pattern, strlen(FORMATS[i].pattern), false, true, reading, language);
        if (!status && FORMATS[i].longest)
            *language =
                regex_both(regexes, *language, regex_repeat(regexes, spell_any(regexes, true), 1, FORMATS[i].longest));
        return status;
    }
    return STATUS_NOT_FOUND;
}
