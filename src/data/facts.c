/* Facts that ranks reading the same data must share. */
#include "data-internal.h"

static int add_files(const char *name, int64_t number, const char *path, const char *const *endings,
                     struct facts *facts) {
    int status = STATUS_OK;
    for (; *endings && !status; endings++) {
        struct strbuf called = STRBUF_INIT, file = STRBUF_INIT;
        strbuf_format(&called, "%s, path %lld%s%s", name, (long long)number, **endings ? ", " : "", *endings);
        strbuf_format(&file, "%s%s", path, *endings);
        status = strbuf_status(&called) ? strbuf_status(&called) : strbuf_status(&file);
        THEN(status, facts_add_file(facts, strbuf_text(&called), strbuf_text(&file)));
        strbuf_free(&called);
        strbuf_free(&file);
    }
    return status;
}

int data_facts(const char *name, const struct config_list *words, const char *const *endings, struct facts *facts) {
    const char **paths = NULL;
    double *weights = NULL;
    int64_t count = 0;
    int status = words->count ? blend_parse(words, &paths, &weights, &count) : STATUS_OK;
    for (int64_t i = 0; i < count && !status; i++) {
        char called[128], weight[32];
        snprintf(called, sizeof called, "%s, weight %lld", name, (long long)i + 1);
        snprintf(weight, sizeof weight, "%.17g", weights ? weights[i] : 1);
        if (weights)
            status = facts_add(facts, FACT_CONFIGURATION, called, weight, NULL);
        THEN(status, add_files(name, i + 1, paths[i], endings, facts));
    }
    free(paths);
    free(weights);
    return status;
}
