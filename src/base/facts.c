#include "facts.h"

#include "digest.h"
#include "status.h"
#include "strbuf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void facts_free(struct facts *facts) {
    for (size_t i = 0; i < facts->count; i++) {
        free(facts->items[i].name);
        free(facts->items[i].shown);
    }
    free(facts->items);
    *facts = FACTS_INIT;
}

static int make_room(struct facts *facts) {
    if (facts->count < facts->capacity)
        return STATUS_OK;
    size_t capacity = facts->capacity ? 2 * facts->capacity : 64;
    struct fact *items = realloc(facts->items, capacity * sizeof *items);
    TRY(status_allocated(items));
    facts->items = items;
    facts->capacity = capacity;
    return STATUS_OK;
}

int facts_add(struct facts *facts, const char *because, const char *name, const char *shown, const char *compared) {
    TRY(make_room(facts));
    compared = compared ? compared : shown;
    struct fact fact = {.name = strdup(name), .shown = strdup(shown), .because = because};
    if (!fact.name || !fact.shown) {
        free(fact.name);
        free(fact.shown);
        return status_no_memory();
    }
    fact.digest = digest_bytes(DIGEST_START, name, strlen(name) + 1);
    fact.digest = digest_bytes(fact.digest, compared, strlen(compared));
    facts->items[facts->count++] = fact;
    return STATUS_OK;
}

int facts_add_digest(struct facts *facts, const char *name, const char *shown, uint64_t digest) {
    struct strbuf text = STRBUF_INIT;
    char compared[32];
    snprintf(compared, sizeof compared, "%016" PRIx64, digest);
    strbuf_format(&text, "%s (digest %s)", shown, compared);
    int status = strbuf_status(&text);
    THEN(status, facts_add(facts, FACT_FILES, name, strbuf_text(&text), compared));
    strbuf_free(&text);
    return status;
}

int facts_add_file(struct facts *facts, const char *name, const char *path) {
    int64_t bytes;
    uint64_t digest;
    TRY(digest_file(path, &bytes, &digest));
    struct strbuf text = STRBUF_INIT;
    strbuf_format(&text, "%s of %" PRId64 " bytes", path, bytes);
    int status = strbuf_status(&text);
    THEN(status, facts_add_digest(facts, name, strbuf_text(&text), digest));
    strbuf_free(&text);
    return status;
}
