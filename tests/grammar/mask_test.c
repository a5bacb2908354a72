/* Masks and texts of random grammars, against definitions. A matcher of spans tells which texts a grammar has. A mask
 * has exactly the tokens that grammar_accept takes. What is allowed can be completed. */
#include "grammar/grammar.h"

#include "support/test.h"

enum { NODES = 40, RULES = 4, LONGEST = 5, IDS = 300 };

/* ---- random grammars ---- */

struct node {
    int kind; /* 0 text, 1 class a-b, 2 join, 3 either, 4 repeat, 5 call */
    char text[3];
    int left, right, least, most;
};
struct random {
    uint64_t state;
    struct node nodes[NODES];
    int count;
    int roots[RULES];
    char source[4096];
};

static unsigned draw(struct random *random, unsigned below) {
    random->state = random->state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(random->state >> 33) % below;
}

static int make_node(struct random *random, int depth) {
    struct node node = {.kind = depth && random->count < NODES - 10 ? (int)draw(random, 6) : (int)draw(random, 2) * 5};
    size_t length = 0;
    if (node.kind == 0)
        for (unsigned n = draw(random, 3); length < n; length++)
            node.text[length] = (char)('a' + draw(random, 3));
    if (node.kind == 2 || node.kind == 3) {
        node.left = make_node(random, depth - 1);
        node.right = make_node(random, depth - 1);
    } else if (node.kind == 4) {
        node.left = make_node(random, depth - 1);
        node.least = (int)draw(random, 3);
        node.most = draw(random, 2) ? node.least + (int)draw(random, 3) : -1;
        if (!node.most)
            node.most = 1;
    } else if (node.kind == 5) {
        node.left = (int)draw(random, RULES);
    }
    random->nodes[random->count] = node;
    return random->count++;
}

static void write_node(struct random *random, int at) {
    const struct node *node = &random->nodes[at];
    char *end = random->source + strlen(random->source);
    switch (node->kind) {
    case 0:
        sprintf(end, "\"%s\"", node->text);
        break;
    case 1:
        strcpy(end, "[ab]");
        break;
    case 5:
        sprintf(end, "%s%d", node->left ? "r" : "root", node->left);
        if (!node->left)
            strcpy(end, "root");
        break;
    default:
        strcat(end, "(");
        write_node(random, node->left);
        strcat(random->source, node->kind == 3 ? " | " : " ");
        if (node->kind != 4)
            write_node(random, node->right);
        strcat(random->source, ")");
        end = random->source + strlen(random->source);
        if (node->kind == 4 && node->most < 0)
            sprintf(end, "{%d,}", node->least);
        else if (node->kind == 4)
            sprintf(end, "{%d,%d}", node->least, node->most);
    }
}

static void make_grammar(struct random *random, unsigned seed) {
    *random = (struct random){.state = seed};
    draw(random, 2);
    for (int rule = 0; rule < RULES; rule++)
        random->roots[rule] = make_node(random, 3);
    for (int rule = 0; rule < RULES; rule++) {
        char *end = random->source + strlen(random->source);
        if (rule)
            sprintf(end, "r%d ::= ", rule);
        else
            strcpy(end, "root ::= ");
        write_node(random, random->roots[rule]);
        strcat(random->source, "\n");
    }
}

/* Spans of a text that nodes derive, by definition: the least fixed point. */
static bool spans[NODES][LONGEST + 1][LONGEST + 1];

static bool repeats(const struct node *node, int from, int to) {
    bool at_times[LONGEST + 1][LONGEST + 2] = {{0}};
    at_times[0][0] = true; /* rounds that take something; empty ones only fill up the minimum */
    for (int end = 1; end <= to - from; end++)
        for (int start = 0; start < end; start++)
            for (int times = 0; times <= start && spans[node->left][from + start][from + end]; times++)
                at_times[end][times + 1] |= at_times[start][times];
    for (int times = 0; times <= to - from; times++)
        if (at_times[to - from][times] && (node->most < 0 || times <= node->most) &&
            (times >= node->least || spans[node->left][from][from]))
            return true;
    return false;
}

static bool derives(const struct random *random, int at, const char *text, int from, int to) {
    const struct node *node = &random->nodes[at];
    switch (node->kind) {
    case 0:
        return to - from == (int)strlen(node->text) && !memcmp(text + from, node->text, (size_t)(to - from));
    case 1:
        return to - from == 1 && (text[from] == 'a' || text[from] == 'b');
    case 2:
        for (int middle = from; middle <= to; middle++)
            if (spans[node->left][from][middle] && spans[node->right][middle][to])
                return true;
        return false;
    case 3:
        return spans[node->left][from][to] || spans[node->right][from][to];
    case 4:
        return repeats(node, from, to);
    default:
        return spans[random->roots[node->left]][from][to];
    }
}

static bool is_text(const struct random *random, const char *text) {
    int length = (int)strlen(text);
    memset(spans, 0, sizeof spans);
    for (bool has_changed = true; has_changed;) {
        has_changed = false;
        for (int at = 0; at < random->count; at++)
            for (int from = 0; from <= length; from++)
                for (int to = from; to <= length; to++)
                    if (!spans[at][from][to] && derives(random, at, text, from, to))
                        has_changed = spans[at][from][to] = true;
    }
    return spans[random->roots[0]][0][length];
}

/* ---- vocabularies ---- */

enum { END = 256, SPECIAL = 257 };

static struct grammar_vocabulary *make_vocabulary(struct random *random, const char *letters) {
    static char bytes[IDS][24];
    struct grammar_token tokens[IDS] = {{0}};
    struct grammar_vocabulary *vocabulary;
    for (int id = 0; id < IDS; id++) {
        size_t length = 1;
        bytes[id][0] = (char)id;
        if (id == END || id == SPECIAL)
            memcpy(bytes[id], "aa", length = 2);
        else if (id > SPECIAL) /* duplicates and ids without bytes among them */
            for (length = draw(random, draw(random, 8) ? 5 : 20), bytes[id][0] = 0; bytes[id][0] == 0 && length;)
                for (size_t i = 0; i < length; i++)
                    bytes[id][i] = letters[draw(random, (unsigned)strlen(letters))];
        tokens[id] = (struct grammar_token){bytes[id], length, id == END || id == SPECIAL};
    }
    const int32_t ends[] = {END};
    test_ok(grammar_vocabulary_open(tokens, IDS, ends, 1, &vocabulary));
    return vocabulary;
}

static struct grammar *compile(enum grammar_kind kind, const char *text, const struct grammar_vocabulary *vocabulary,
                               size_t bytes) {
    struct grammar_source source = {.kind = kind, .text = text, .length = strlen(text), .is_compact = true};
    struct grammar_limits limits = {.seconds = 60, .bytes = bytes};
    struct grammar_report report = {0};
    struct grammar *grammar = NULL;
    int status = grammar_compile(&source, vocabulary, &limits, &report, &grammar);
    if (status && !strstr(strbuf_text(&report.message), "no text") && !strstr(strbuf_text(&report.message), "finite"))
        fail_msg("%s: %s", text, strbuf_text(&report.message));
    grammar_report_free(&report);
    return grammar;
}

static bool has_id(const uint32_t *mask, int id) {
    return mask[id / 32] >> id % 32 & 1;
}

/* The mask is what grammar_accept takes; the counts are the mask's. */
static void check_mask(struct grammar_state *state, const char *about) {
    uint32_t mask[(IDS + 31) / 32];
    struct grammar_allowed allowed;
    size_t count = 0;
    test_ok(grammar_mask(state, 60, mask, &allowed));
    for (int id = 0; id < IDS; id++) {
        struct grammar_state copy = {0};
        test_ok(grammar_copy(state, &copy));
        bool is_taken = grammar_accept(&copy, id, NULL) == STATUS_OK;
        if (is_taken != has_id(mask, id))
            fail_msg("%s: token %d: mask %d, accept %d", about, id, has_id(mask, id), is_taken);
        if (id == END)
            assert_int_equal(is_taken, grammar_is_complete(state));
        count += is_taken;
        grammar_end(&copy);
    }
    assert_int_equal(allowed.count, count);
    if (count == 1)
        assert_true(has_id(mask, allowed.only));
    else
        assert_int_equal(allowed.only, -1);
}

/* Searches the automaton's places for one that completes the text, in breadth, or in depth with the first letters
 * first. Other bytes come last: they complete characters and escapes. */
static bool finds_end(const struct grammar_state *state, const char *letters, bool is_deep) {
    enum { STATES = 4000 };
    struct grammar_state *reached = calloc(STATES, sizeof *reached);
    size_t *open = calloc(STATES, sizeof *open), count = 0, first = 0, last = 0;
    unsigned char bytes[256];
    size_t known = strlen(letters), all = known;
    bool is_found = false;
    assert_true(reached && open);
    memcpy(bytes, letters, known);
    for (unsigned byte = 1; byte < 256 && is_deep; byte++)
        if (!memchr(letters, (int)byte, known))
            bytes[all++] = (unsigned char)byte;
    test_ok(grammar_copy(state, &reached[count++]));
    for (open[last++] = 0; first < last && !is_found;) {
        size_t at = is_deep ? open[--last] : open[first++];
        is_found = grammar_is_complete(&reached[at]);
        for (size_t i = all; i-- > 0 && count < STATES && !is_found;) {
            struct grammar_state next;
            test_ok(grammar_copy(&reached[at], &next));
            bool is_new = grammar_accept(&next, bytes[i], NULL) == STATUS_OK;
            for (size_t k = 0; k < count && is_new; k++)
                is_new = reached[k].place != next.place;
            if (is_new) {
                open[last++] = count;
                reached[count++] = next;
            } else {
                grammar_end(&next);
            }
        }
    }
    while (count)
        grammar_end(&reached[--count]);
    free(reached);
    free(open);
    return is_found;
}

/* Some continuation completes the text. */
static void check_alive(const struct grammar_state *state, const char *about, const char *letters, bool is_deep) {
    if (!finds_end(state, letters, is_deep))
        fail_msg("%s: no continuation completes the text", about);
}

static bool next_text(char *text) {
    for (int i = 0; i < LONGEST; i++) {
        if (!text[i])
            return text[i] = 'a', true;
        if (text[i] < 'c')
            return text[i]++, true;
        text[i] = 'a';
    }
    return false;
}

/* Takes the bytes of a text; false when one is forbidden. */
static bool take(struct grammar_state *state, const char *text) {
    bool is_allowed = true;
    for (; *text && is_allowed; text++)
        is_allowed = grammar_accept(state, (unsigned char)*text, NULL) == STATUS_OK;
    return is_allowed;
}

static void random_grammars_have_the_texts_of_their_definition(void **unused) {
    enum { ALIVE = 120 };
    unsigned compiled = 0, all = test_is_long() ? 3000 : ALIVE;
    (void)unused;
    for (unsigned seed = 0; seed < all; seed++) {
        struct random random;
        make_grammar(&random, seed);
        struct grammar_vocabulary *vocabulary = make_vocabulary(&random, "abc");
        struct grammar *grammar = compile(GRAMMAR_GBNF, random.source, vocabulary, (size_t)1 << 24);
        char text[LONGEST + 2] = "";
        compiled += grammar != NULL; /* else refused: one of its rules derives nothing */
        do {
            if (!grammar)
                break;
            struct grammar_state state = {0};
            test_ok(grammar_begin(grammar, &state));
            bool is_prefix = take(&state, text), is_found = is_prefix && grammar_is_complete(&state);
            if (is_found != is_text(&random, text))
                fail_msg("seed %u, text '%s' is %d\n%s", seed, text, !is_found, random.source);
            if (is_prefix && strlen(text) < 4) {
                check_mask(&state, random.source);
                if (seed < ALIVE) /* ends of others are too far for a search */
                    check_alive(&state, random.source, "abc", false);
            }
            grammar_end(&state);
        } while (next_text(text));
        grammar_release(grammar);
        grammar_vocabulary_close(vocabulary);
    }
    assert_true(compiled > all / 3);
}

/* ---- tokens that split characters; schemas ---- */

static const struct {
    enum grammar_kind kind;
    const char *text, *letters;
} written[] = {
    {GRAMMAR_REGEX, "[\\u00e9-\\u0fff\\u{1F600}-\\u{1F64F}x]{2,30}y", "yx\xc3\xa9\xf0\x9f\x98\x80\xe0\xa4\x85"},
    {GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":20},\"b\":{\"type\":\"integer\"}}}",
     "\"}]:1aebx0,lsn{[fltru\\"},
    {GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"propertyNames\":{\"enum\":[\"a\",\"ab\",\"b\"]},\"minProperties\":2,"
     "\"additionalProperties\":{\"type\":\"boolean\"}}",
     "\"}:abtrue,fls{"},
    {GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"array\",\"minItems\":3,\"maxItems\":1000000000,\"items\":{\"enum\":[1,12,null,\"a\"]}}",
     "],1ul\"an2["},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"maxItems\":40}", "],["},
    {GRAMMAR_GBNF, "root ::= root root | \"a\" | \"(\" root \")\" | x\nx ::= | \"b\" x", ")ab("},
    {GRAMMAR_GBNF, "root ::= ((([abc]*)*)* \"d\"){30,2000}", "dabc"},
    {GRAMMAR_GBNF, "root ::= \"a\" root | (\"b\"? \"c\"?){0,2000}", "abc"},
};

static void masks_are_exact_on_random_ways(void **unused) {
    (void)unused;
    for (size_t i = 0; i < sizeof written / sizeof *written; i++)
        for (unsigned seed = 0; seed < (test_is_long() ? 40u : 4u); seed++) {
            struct random random = {.state = seed};
            struct grammar_vocabulary *vocabulary = make_vocabulary(&random, written[i].letters);
            struct grammar *grammar = compile(written[i].kind, written[i].text, vocabulary, (size_t)1 << 24);
            assert_non_null(grammar);
            struct grammar_state state = {0};
            test_ok(grammar_begin(grammar, &state));
            for (int step = 0; step < 25 && !state.is_over; step++) {
                check_mask(&state, written[i].text);
                /* One of the allowed ids, tokens of several bytes twice as often. */
                int id = -1;
                unsigned weight = 0;
                for (int other = 0; other < IDS; other++) {
                    struct grammar_state copy;
                    test_ok(grammar_copy(&state, &copy));
                    unsigned own = grammar_accept(&copy, other, NULL) ? 0 : other == END ? 0 : other < END ? 1 : 2;
                    weight += own;
                    if (own && draw(&random, weight) < own)
                        id = other;
                    grammar_end(&copy);
                }
                if (id < 0)
                    break;
                test_ok(grammar_accept(&state, id, NULL));
            }
            check_alive(&state, written[i].text, written[i].letters, true);
            grammar_end(&state);
            grammar_release(grammar);
            grammar_vocabulary_close(vocabulary);
        }
}

/* Masks do not tell counters apart that are far from their bounds; grammar_accept does. Tokens have many rounds. */
static void counters_have_exact_masks_at_each_distance_from_their_bounds(void **unused) {
    static const struct {
        enum grammar_kind kind;
        const char *text, *letters, *of_tokens;
    } counted[] = {
        {GRAMMAR_GBNF, "root ::= (\"a\" x){30,70} \"b\"\nx ::= | \"c\" x", "ab", "aaaaaaaaaaaaaaaab"},
        {GRAMMAR_GBNF, "root ::= (\"a\" x){45,} \"b\"\nx ::= | \"c\" x", "ab", "aaaaaaaaaaaaaaaab"},
        {GRAMMAR_GBNF, "root ::= ((\"aa\" x){25,50} \"b\"){1,3}\nx ::= | \"c\" x", "ab", "aaaaaaaaaaaaaaaab"},
        {GRAMMAR_GBNF, "root ::= ((\"a\" x){1,3} \"b\"){24,36}\nx ::= | \"c\" x", "ba", "ab"},
        {GRAMMAR_REGEX, "a{30,70}|(ab){40}", "ab", "aaaaaaaaab"},
        {GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"minItems\":16,\"maxItems\":36,\"items\":{\"const\":1}}", "1,]",
         "1,"},
    };
    (void)unused;
    for (size_t i = 0; i < sizeof counted / sizeof *counted; i++) {
        struct random random = {.state = i};
        struct grammar_vocabulary *vocabulary = make_vocabulary(&random, counted[i].of_tokens);
        struct grammar *grammar = compile(counted[i].kind, counted[i].text, vocabulary, (size_t)1 << 24);
        struct grammar_state state = {0};
        int steps = 0;
        assert_non_null(grammar);
        test_ok(grammar_begin(grammar, &state));
        take(&state, "["); /* of an array */
        for (bool goes = true; goes; steps += goes) {
            const char *letter = counted[i].letters;
            check_mask(&state, counted[i].text);
            while (*letter && grammar_accept(&state, (unsigned char)*letter, NULL))
                letter++;
            goes = *letter && steps < 150;
        }
        assert_true(steps > 60);
        grammar_end(&state);
        grammar_release(grammar);
        grammar_vocabulary_close(vocabulary);
    }
}

/* The bytes of a grammar after this number of rounds of a text. */
static size_t bytes_after(const char *source, const char *round, int rounds) {
    struct random random = {.state = 1};
    struct grammar_vocabulary *vocabulary = make_vocabulary(&random, "ab[1,]");
    struct grammar *grammar = compile(GRAMMAR_GBNF, source, vocabulary, (size_t)1 << 26);
    struct grammar_state state = {0};
    assert_non_null(grammar);
    test_ok(grammar_begin(grammar, &state));
    for (int i = 0; i < rounds; i++) {
        uint32_t mask[(IDS + 31) / 32];
        struct grammar_allowed allowed;
        test_ok(grammar_mask(&state, 60, mask, &allowed));
        assert_true(take(&state, round));
    }
    size_t bytes = grammar_bytes(grammar);
    grammar_end(&state);
    grammar_release(grammar);
    grammar_vocabulary_close(vocabulary);
    return bytes;
}

/* Rounds have one mask, where they have a counter and where each is a call of a rule. So a round adds the places that
 * it goes through, which take 330 bytes here. With masks of its own it would add 720. */
static void rounds_share_their_masks(void **unused) {
    static const char *const sources[] = {"root ::= x*\nx ::= \"a\" y\ny ::= | \"b\" y",
                                          "root ::= x{0,4000}\nx ::= \"a\" y\ny ::= | \"b\" y",
                                          "root ::= (\"a\" y){2000,4000}\ny ::= | \"b\" y"};
    (void)unused;
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
        assert_in_range(bytes_after(sources[i], "a", 1000) - bytes_after(sources[i], "a", 200), 0, 800 * 450);
}

/* Memory stays within its limit however long texts are, and the answers do not change. */
static void memory_is_bounded(void **unused) {
    (void)unused;
    struct random random = {.state = 1};
    const char *schema = "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"array\",\"items\":{}}}";
    struct grammar_vocabulary *vocabulary = make_vocabulary(&random, "abc\":,[]");
    struct grammar *grammar = compile(GRAMMAR_JSON_SCHEMA, schema, vocabulary, (size_t)1 << 20);
    assert_non_null(grammar);
    for (int round = 0; round < (test_is_long() ? 2000 : 150); round++) {
        struct grammar_state state = {0};
        char text[80];
        test_ok(grammar_begin(grammar, &state));
        assert_true(take(&state, "{"));
        for (int key = 0; key < 8; key++) {
            snprintf(text, sizeof text, "%s\"k%d_%d\":[[1],\"%d", key ? "," : "", round, key, round * 7);
            assert_true(take(&state, text));
            uint32_t mask[(IDS + 31) / 32];
            struct grammar_allowed allowed;
            test_ok(grammar_mask(&state, 60, mask, &allowed));
            assert_true(has_id(mask, '"') && has_id(mask, 'z') && !has_id(mask, '\n'));
            assert_true(take(&state, "\"]"));
            /* A key that stands there already may not come again. */
            struct grammar_state copy;
            test_ok(grammar_copy(&state, &copy));
            snprintf(text, sizeof text, ",\"k%d_%d\"", round, key / 2);
            assert_false(take(&copy, text));
            grammar_end(&copy);
        }
        assert_true(take(&state, "}"));
        assert_true(grammar_is_complete(&state));
        grammar_end(&state);
        assert_true(grammar_bytes(grammar) < (size_t)3 << 19);
    }
    grammar_release(grammar);
    grammar_vocabulary_close(vocabulary);
}

/* Bytes of the shared masks before and after the masks within a string. */
static void follow_string(struct grammar_vocabulary *vocabulary, size_t *before, size_t *after) {
    static const char schema[] = "{\"properties\":{\"a\":{\"type\":\"string\"}},\"required\":[\"a\"]}";
    const struct grammar_source source = {.kind = GRAMMAR_JSON_SCHEMA, .text = schema, .length = sizeof schema - 1};
    const struct grammar_limits limits = {.seconds = 60, .bytes = 64 << 20};
    struct grammar_report report = {0};
    struct grammar_allowed allowed;
    struct grammar_state state;
    struct grammar *grammar;
    uint32_t mask[8];
    test_ok(grammar_compile(&source, vocabulary, &limits, &report, &grammar));
    test_ok(grammar_begin(grammar, &state));
    for (const char *at = "{\"a\":\""; *at; at++)
        test_ok(grammar_accept(&state, (unsigned char)*at, NULL));
    *before = grammar_vocabulary_shared_bytes(vocabulary);
    test_ok(grammar_mask(&state, 60, mask, &allowed));
    *after = grammar_vocabulary_shared_bytes(vocabulary);
    assert_true(allowed.count > 90);
    grammar_end(&state);
    grammar_release(grammar);
    grammar_report_free(&report);
}

static void a_prepared_vocabulary_has_the_masks_of_strings(void **unused) {
    struct grammar_token tokens[256];
    char bytes[256];
    (void)unused;
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        tokens[i] = (struct grammar_token){&bytes[i], 1, false};
    }
    for (int is_prepared = 0; is_prepared < 2; is_prepared++) {
        struct grammar_vocabulary *vocabulary;
        size_t before, after;
        test_ok(grammar_vocabulary_open(tokens, 256, NULL, 0, &vocabulary));
        if (is_prepared)
            test_ok(grammar_vocabulary_prepare(vocabulary));
        follow_string(vocabulary, &before, &after);
        assert_int_equal(before == after, is_prepared);
        grammar_vocabulary_close(vocabulary);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_grammars_have_the_texts_of_their_definition),
        cmocka_unit_test(masks_are_exact_on_random_ways),
        cmocka_unit_test(counters_have_exact_masks_at_each_distance_from_their_bounds),
        cmocka_unit_test(rounds_share_their_masks),
        cmocka_unit_test(memory_is_bounded),
        cmocka_unit_test(a_prepared_vocabulary_has_the_masks_of_strings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
