/* An answer as items, for dialects: reasoning, texts and calls in their order. A new item begins where the kind of
 * events changes, so a stream and an answer that is sent whole have the same items. */
#include "openai.h"

#include "json_out.h"

#include "base/base.h"

void openai_items_begin(struct openai *request) {
    request->has_chunk = true;
    request->kind->dialect->begin(request);
}

static void close_item(struct openai *request) {
    if (request->is_item_open && request->out)
        request->kind->dialect->close(request, &request->items[request->item_count - 1]);
    request->is_item_open = false;
}

static int open_item(struct openai *request, enum call_event_kind kind, const struct call_event *event) {
    close_item(request);
    TRY(array_reserve(&request->items, &request->item_capacity, request->item_count + 1, sizeof *request->items));
    struct openai_item *item = &request->items[request->item_count++];
    *item = (struct openai_item){.kind = kind, .text = STRBUF_INIT, .name = event->name};
    if (kind == CALL_BEGINS)
        snprintf(item->id, sizeof item->id, "%s", event->id);
    request->is_item_open = true;
    if (request->out)
        request->kind->dialect->open(request, item);
    return STATUS_OK;
}

int openai_items_take(void *context, struct openai_choice *choice, const struct call_event *event) {
    struct openai *request = context;
    enum call_event_kind kind = event->kind == CALL_ARGUMENTS || event->kind == CALL_ENDS ? CALL_BEGINS : event->kind;
    const struct openai_item *last = request->is_item_open ? &request->items[request->item_count - 1] : NULL;
    bool begins = event->kind == CALL_BEGINS, is_hidden = kind == CALL_REASONING && request->hides_reasoning;
    if (is_hidden || (!begins && !event->length))
        return STATUS_OK;
    if (begins || !last || last->kind != kind)
        TRY(open_item(request, kind, event));
    struct openai_item *item = &request->items[request->item_count - 1];
    if (begins)
        return STATUS_OK;
    strbuf_add(&item->text, event->text, event->length);
    if (request->out)
        request->kind->dialect->add(request, item, event->text, event->length);
    return strbuf_status(&item->text);
}

void openai_items_end(struct openai *request) {
    if (!request->has_chunk)
        openai_items_begin(request);
    close_item(request);
    request->kind->dialect->end(request);
}

void openai_items_free(struct openai *request) {
    for (size_t i = 0; i < request->item_count; i++)
        strbuf_free(&request->items[i].text);
    free(request->items);
}

void openai_add_id(const struct openai *request, const char *prefix, const struct openai_item *item,
                   struct strbuf *out) {
    char id[OPENAI_ID_BYTES + 64];
    int length = snprintf(id, sizeof id, "%s_%s", prefix, request->id);
    if (item)
        snprintf(id + length, sizeof id - (size_t)length, "_%td", item - request->items);
    json_out_text(out, id);
}
