/* The Control service: adapters, and the end of service. Only on the control listener. */
#include "grpc-internal.h"

#include "registry.h"

/* ---- an adapter as a message ---- */

enum { MAX_METHODS = 16 };
struct adapter {
    Cambium__V1__Adapter message;
    char methods[128], *method_list[MAX_METHODS];
};

static void adapter_fill(struct adapter *adapter, const struct registry_adapter *from) {
    Cambium__V1__Adapter *message = &adapter->message;
    char *rest = adapter->methods, *method;
    cambium__v1__adapter__init(message);
    snprintf(adapter->methods, sizeof adapter->methods, "%s", from->methods);
    while (message->n_methods < MAX_METHODS && rest && *rest && (method = strsep(&rest, ",")))
        adapter->method_list[message->n_methods++] = method;
    message->methods = adapter->method_list;
    message->name = (char *)from->name;
    message->generation = from->generation;
    message->digest = (char *)from->digest;
    message->parameters = (uint64_t)from->parameters;
    message->bytes = (uint64_t)from->bytes;
    message->virtual_tokens = (uint32_t)from->virtual_tokens;
    message->state = (char *)from->state;
    message->pinned = from->is_pinned;
    message->running = (uint32_t)from->running;
    message->waiting = (uint32_t)from->waiting;
    message->receipt = (char *)from->receipt;
    message->receipt_gap = from->receipt_gap;
}

/* ---- changes ---- */

/* A change outlives its call when the client leaves first: a change that has begun is completed. */
struct change {
    struct grpc_call *call; /* NULL: nobody waits */
    enum registry_change_kind kind;
};

static void change_done(void *context, const struct error *error, const struct registry_adapter *adapter) {
    struct change *change = context;
    if (change->call)
        grpc_set_context(change->call, NULL);
    if (change->call && error->which) {
        grpc_finish(change->call, error);
    } else if (change->call && change->kind == REGISTRY_UNLOAD) {
        Cambium__V1__UnloadAdapterResponse answer = CAMBIUM__V1__UNLOAD_ADAPTER_RESPONSE__INIT;
        grpc_answer(change->call, &answer.base);
    } else if (change->call) {
        struct adapter answer = {0};
        adapter_fill(&answer, adapter);
        grpc_answer(change->call, &answer.message.base);
    }
    free(change);
}

static void change_close(struct grpc_call *call) {
    struct change *change = grpc_context(call);
    change->call = NULL;
}

static void start(struct grpc_call *call, struct registry_change what) {
    if (!registry_name_is_valid(what.name)) {
        grpc_finish(call,
                    AN_ERROR(ERROR_ARGUMENT, "name",
                             "expected 1 to 64 letters, digits, dots, hyphens and underlines, and no dot in front"));
        return;
    }
    struct change *change = calloc(1, sizeof *change);
    if (!change) {
        grpc_finish_memory(call);
        return;
    }
    *change = (struct change){.call = call, .kind = what.kind};
    grpc_set_context(call, change);
    what.on_done = change_done;
    what.context = change;
    registry_start(grpc_exchange(call)->request->server, &what);
}

static void load(struct grpc_call *call, const ProtobufCMessage *message) {
    const Cambium__V1__LoadAdapterRequest *asked = (const Cambium__V1__LoadAdapterRequest *)message;
    start(call, (struct registry_change){
                    .kind = REGISTRY_LOAD, .name = asked->name, .path = asked->path, .is_pinned = asked->pinned});
}

static void replace(struct grpc_call *call, const ProtobufCMessage *message) {
    const Cambium__V1__ReplaceAdapterRequest *asked = (const Cambium__V1__ReplaceAdapterRequest *)message;
    start(call, (struct registry_change){.kind = REGISTRY_REPLACE,
                                         .name = asked->name,
                                         .path = asked->path,
                                         .if_generation = asked->if_generation});
}

static void unload(struct grpc_call *call, const ProtobufCMessage *message) {
    const Cambium__V1__UnloadAdapterRequest *asked = (const Cambium__V1__UnloadAdapterRequest *)message;
    start(call, (struct registry_change){.kind = REGISTRY_UNLOAD, .name = asked->name});
}

/* ---- ListAdapters ---- */

static void list(struct grpc_call *call, const ProtobufCMessage *message) {
    const struct server *server = grpc_exchange(call)->request->server;
    Cambium__V1__ListAdaptersResponse answer = CAMBIUM__V1__LIST_ADAPTERS_RESPONSE__INIT;
    struct registry_adapter adapter;
    size_t count = 0;
    while (registry_at(server, (int)count, &adapter))
        count++;
    struct adapter *adapters = calloc(count + 1, sizeof *adapters);
    Cambium__V1__Adapter **adapter_list = calloc(count + 1, sizeof(Cambium__V1__Adapter *));
    if (!adapters || !adapter_list) {
        grpc_finish_memory(call);
    } else {
        for (size_t i = 0; i < count && registry_at(server, (int)i, &adapter); i++) {
            adapter_fill(&adapters[i], &adapter);
            adapter_list[answer.n_adapters++] = &adapters[i].message;
        }
        answer.adapters = adapter_list;
        grpc_answer(call, &answer.base);
    }
    free(adapter_list);
    free(adapters);
}

/* ---- Drain ---- */

static void drain(struct grpc_call *call, const ProtobufCMessage *message) {
    const Cambium__V1__DrainRequest *asked = (const Cambium__V1__DrainRequest *)message;
    Cambium__V1__DrainResponse answer = CAMBIUM__V1__DRAIN_RESPONSE__INIT;
    grpc_answer(call, &answer.base);
    server_drain(grpc_exchange(call)->request->server, asked->_delay_s_case ? (double)asked->delay_s : -1,
                 asked->_timeout_s_case ? (double)asked->timeout_s : -1);
}

static const struct grpc_method methods[] = {
    {.name = "LoadAdapter",
     .request = &cambium__v1__load_adapter_request__descriptor,
     .on_message = load,
     .on_close = change_close},
    {.name = "ReplaceAdapter",
     .request = &cambium__v1__replace_adapter_request__descriptor,
     .on_message = replace,
     .on_close = change_close},
    {.name = "UnloadAdapter",
     .request = &cambium__v1__unload_adapter_request__descriptor,
     .on_message = unload,
     .on_close = change_close},
    {.name = "ListAdapters", .request = &cambium__v1__list_adapters_request__descriptor, .on_message = list},
    {.name = "Drain", .request = &cambium__v1__drain_request__descriptor, .on_message = drain},
};
const struct grpc_service grpc_control = {.name = "cambium.v1.Control",
                                          .is_control = true,
                                          .methods = methods,
                                          .method_count = sizeof methods / sizeof *methods};
