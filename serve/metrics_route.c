/* GET /metrics. */
#include "metrics.h"
#include "registry.h"
#include "route.h"

#include "base/base.h"

/* Appends the name to those before it. */
static void add_name(struct strbuf *list, const char *name) {
    strbuf_format(list, "%s%s", list->length ? "," : "", name);
}

void metrics_get(struct exchange *exchange) {
    struct server *server = exchange->server;
    struct strbuf text = STRBUF_INIT, running = STRBUF_INIT, waiting = STRBUF_INIT;
    struct registry_adapter adapter;
    server_count(server);
    for (int i = 0; registry_at(server, i, &adapter); i++) {
        if (adapter.running)
            add_name(&running, adapter.name);
        if (adapter.waiting)
            add_name(&waiting, adapter.name);
    }
    metrics_add_text(server->metrics, strbuf_text(&running), strbuf_text(&waiting), clock_wall_seconds(), &text);
    if (text.failed || running.failed || waiting.failed) {
        struct error error;
        error_set(&error, ERROR_INTERNAL, NULL, "out of memory");
        route_fail(exchange, &error);
    } else {
        exchange_answer(exchange, 200, "text/plain; version=0.0.4; charset=utf-8", text.data, text.length);
    }
    strbuf_free(&waiting);
    strbuf_free(&running);
    strbuf_free(&text);
}
