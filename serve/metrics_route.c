/* GET /metrics. */
#include "jobs.h"
#include "metrics.h"
#include "registry.h"
#include "route.h"

#include "base/base.h"

/* Appends the name to a list. */
static void add_name(struct strbuf *list, const char *name) {
    strbuf_format(list, "%s%s", list->length ? "," : "", name);
}

/* Lists the adapters in memory; the caller frees the list. NULL: no memory. */
static struct metrics_loaded *find_loaded(const struct server *server, size_t *count) {
    struct registry_adapter adapter;
    int known = 0;
    while (registry_at(server, known, &adapter))
        known++;
    struct metrics_loaded *loaded = calloc((size_t)known + 1, sizeof *loaded);
    *count = 0;
    for (int i = 0; loaded && i < known && registry_at(server, i, &adapter); i++)
        if (adapter.is_resident)
            loaded[(*count)++] = (struct metrics_loaded){.name = adapter.name, .is_pinned = adapter.is_pinned};
    return loaded;
}

void metrics_get(struct exchange *exchange) {
    struct server *server = exchange->request->server;
    struct strbuf text = STRBUF_INIT, running = STRBUF_INIT, waiting = STRBUF_INIT;
    struct registry_adapter adapter;
    struct metrics_adapters adapters = {0};
    server_count(server);
    for (int i = 0; registry_at(server, i, &adapter); i++) {
        if (adapter.running)
            add_name(&running, adapter.name);
        if (adapter.waiting)
            add_name(&waiting, adapter.name);
    }
    struct metrics_loaded *loaded = find_loaded(server, &adapters.loaded_count);
    adapters.loaded = loaded;
    adapters.running = strbuf_text(&running);
    adapters.waiting = strbuf_text(&waiting);
    metrics_add_text(server->metrics, &adapters, clock_wall_seconds(), &text);
    jobs_add_metrics(server->jobs, &text);
    if (!loaded || text.failed || running.failed || waiting.failed) {
        route_fail(exchange, AN_ERROR(ERROR_INTERNAL, NULL, "out of memory"));
    } else {
        exchange_answer(exchange, 200, "text/plain; version=0.0.4; charset=utf-8", text.data, text.length);
    }
    free(loaded);
    strbuf_free(&waiting);
    strbuf_free(&running);
    strbuf_free(&text);
}
