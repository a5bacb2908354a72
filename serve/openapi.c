/* The answer of /openapi.json: a listener's routes as OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.0).
 *
 * Paths come from the table of routes. The bodies of the OpenAI API come from the tables of fields, so they are what
 * the server reads. All other schemas are in openapi.json, which the build embeds. Tests hold every answer and every
 * field against them. */
#include "openai.h"
#include "route-internal.h"

#include <ctype.h>

static const char schemas[] = {
#include "openapi.json.inc"
    0};

static const char version[] = CAMBIUM_VERSION;

/* ---- paths ---- */

static void add_operation(const struct openapi_route *route, struct strbuf *out) {
    const struct route_row *row = route->row;
    strbuf_add_char(out, '"');
    for (const char *at = row->method; *at; at++)
        strbuf_add_char(out, (char)tolower(*at));
    strbuf_format(out, "\":{\"summary\":\"%s\",\"security\":[%s],", row->summary,
                  route->needs_key ? "{\"key\":[]}" : "");
    if (row->flags & ROUTE_HAS_REST)
        strbuf_add_text(out, "\"parameters\":[{\"name\":\"name\",\"in\":\"path\",\"required\":true,"
                             "\"schema\":{\"type\":\"string\"}}],");
    if (row->body)
        strbuf_format(out,
                      "\"requestBody\":{\"required\":%s,\"content\":{\"%s\":{\"schema\":"
                      "{\"$ref\":\"#/components/schemas/%s\"}}}},",
                      row->flags & ROUTE_MAY_BE_EMPTY ? "false" : "true",
                      row->flags & ROUTE_IS_FORM ? "multipart/form-data" : "application/json", row->body);
    strbuf_add_text(out, "\"responses\":{\"200\":{\"description\":\"Success\",\"content\":{");
    if (strchr(row->answer, '/'))
        strbuf_format(out, "\"%s\":{\"schema\":{\"type\":\"string\"}}", row->answer);
    else
        strbuf_format(out, "\"application/json\":{\"schema\":{\"$ref\":\"#/components/schemas/%s\"}}", row->answer);
    if (row->flags & ROUTE_MAY_BE_STREAM)
        strbuf_format(out, ",\"text/event-stream\":{\"schema\":{\"$ref\":\"#/components/schemas/%sChunk\"}}",
                      row->answer);
    strbuf_format(out, "}},\"default\":{\"$ref\":\"#/components/responses/%s\"}}}",
                  row->flags & ROUTE_IS_MESSAGES ? "MessagesError" : "Error");
}

static void add_paths(const struct openapi_route *routes, size_t count, struct strbuf *out) {
    const char *last = NULL;
    for (size_t i = 0; i < count; i++) {
        const struct route_row *row = routes[i].row;
        if (last && !strcmp(last, row->path))
            strbuf_add_char(out, ',');
        else
            strbuf_format(out, "%s\"%s%s\":{", last ? "}," : "", row->path,
                          row->flags & ROUTE_HAS_REST ? "{name}" : "");
        add_operation(&routes[i], out);
        last = row->path;
    }
    strbuf_add_text(out, last ? "}" : "");
}

/* ---- all of it ---- */

void openapi_answer(struct exchange *exchange, const struct openapi_route *routes, size_t count) {
    int64_t vocab = exchange->request->server->model.vocab;
    struct strbuf out = STRBUF_INIT;
    strbuf_format(&out,
                  "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"Cambium\",\"version\":\"%s\"},"
                  "\"servers\":[{\"url\":\"/\"},{\"url\":\"/v1\"}],\"paths\":{",
                  version);
    add_paths(routes, count, &out);
    strbuf_add_text(&out, "},\"components\":{\"responses\":{\"Error\":{\"description\":\"Failure\",\"content\":"
                          "{\"application/json\":{\"schema\":{\"$ref\":\"#/components/schemas/Error\"}}}},"
                          "\"MessagesError\":{\"description\":\"Failure\",\"content\":"
                          "{\"application/json\":{\"schema\":{\"$ref\":\"#/components/schemas/MessagesError\"}}}}},"
                          "\"securitySchemes\":{\"key\":{\"type\":\"http\",\"scheme\":\"bearer\"}},"
                          "\"schemas\":{");
    for (size_t i = 0; openai_kinds[i]; i++) {
        strbuf_format(&out, "\"%s\":", openai_kinds[i]->schema);
        openai_add_schema(openai_kinds[i], vocab, &out);
        strbuf_add_char(&out, ',');
    }
    strbuf_add_text(&out, strchr(schemas, '{') + 1); /* the rest of the embedded object */
    strbuf_add_text(&out, "}}");
    route_answer_json(exchange, &out);
}
