/* grpc.health.v1: Check, Watch and List, for clients without a key. Readiness also depends on the time, so Watch checks
 * it again and again. */
#include "grpc-internal.h"

#include "grpc/health/v1/health.pb-c.h"
#include "route.h"

enum { WATCH_MS = 250 };

/* True when `name` is a service here, or means the whole server. */
static bool is_known(const struct grpc_call *call, const char *name) {
    size_t count;
    const struct grpc_service *const *services = grpc_services(&count);
    bool is_control = grpc_exchange(call)->head.listener == LISTENER_CONTROL;
    for (size_t i = 0; i < count; i++)
        if (!strcmp(services[i]->name, name))
            return is_control || !services[i]->is_control;
    return !*name;
}

static Grpc__Health__V1__HealthCheckResponse__ServingStatus status_of(const struct grpc_call *call, const char *name) {
    if (!is_known(call, name))
        return GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN;
    return server_is_ready(grpc_exchange(call)->request->server)
               ? GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
               : GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING;
}

/* ---- Check ---- */

static void check(struct grpc_call *call, const ProtobufCMessage *message) {
    const Grpc__Health__V1__HealthCheckRequest *asked = (const Grpc__Health__V1__HealthCheckRequest *)message;
    Grpc__Health__V1__HealthCheckResponse answer = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    if (!is_known(call, asked->service)) {
        grpc_finish(call, AN_ERROR(ERROR_MODEL_NOT_FOUND, NULL, "there is no service '%.128s'", asked->service));
        return;
    }
    answer.status = status_of(call, asked->service);
    grpc_answer(call, &answer.base);
}

/* ---- Watch ---- */

struct watch {
    struct grpc_call *call;
    const char *service; /* the message's */
    Grpc__Health__V1__HealthCheckResponse__ServingStatus sent;
    struct event *timer;
};

static void tell(struct watch *watch) {
    Grpc__Health__V1__HealthCheckResponse answer = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    answer.status = watch->sent = status_of(watch->call, watch->service);
    grpc_send(watch->call, &answer.base);
}

static ON_EVENT(look) {
    struct watch *watch = context;
    if (watch->sent != status_of(watch->call, watch->service) && !grpc_is_full(watch->call))
        tell(watch);
}

static void watch_close(struct grpc_call *call) {
    struct watch *watch = grpc_context(call);
    event_free(watch->timer);
    free(watch);
}

static void watch_begin(struct grpc_call *call, const ProtobufCMessage *message) {
    static const struct timeval period = {.tv_usec = WATCH_MS * 1000};
    struct watch *watch = calloc(1, sizeof *watch);
    struct event *timer = event_new(grpc_exchange(call)->request->server->base, -1, EV_PERSIST, look, watch);
    if (!watch || !timer || event_add(timer, &period)) {
        if (timer)
            event_free(timer);
        free(watch);
        grpc_finish_memory(call);
        return;
    }
    *watch = (struct watch){
        .call = call, .service = ((const Grpc__Health__V1__HealthCheckRequest *)message)->service, .timer = timer};
    grpc_set_context(call, watch);
    route_forget(grpc_exchange(call));
    tell(watch);
}

/* ---- List ---- */

enum { MAX_SERVICES = 16 };

static void list(struct grpc_call *call, const ProtobufCMessage *message) {
    Grpc__Health__V1__HealthListResponse answer = GRPC__HEALTH__V1__HEALTH_LIST_RESPONSE__INIT;
    Grpc__Health__V1__HealthListResponse__StatusesEntry entries[MAX_SERVICES + 1], *entry_list[MAX_SERVICES + 1];
    Grpc__Health__V1__HealthCheckResponse statuses[MAX_SERVICES + 1];
    size_t count;
    const struct grpc_service *const *services = grpc_services(&count);
    for (size_t i = 0; i <= count && i <= MAX_SERVICES; i++) {
        const char *name = i ? services[i - 1]->name : "";
        size_t at = answer.n_statuses;
        if (!is_known(call, name))
            continue;
        grpc__health__v1__health_list_response__statuses_entry__init(&entries[at]);
        grpc__health__v1__health_check_response__init(&statuses[at]);
        statuses[at].status = status_of(call, name);
        entries[at].key = (char *)name;
        entries[at].value = &statuses[at];
        entry_list[answer.n_statuses++] = &entries[at];
    }
    answer.statuses = entry_list;
    grpc_answer(call, &answer.base);
}

static const struct grpc_method methods[] = {
    {.name = "Check", .request = &grpc__health__v1__health_check_request__descriptor, .on_message = check},
    {.name = "Watch",
     .request = &grpc__health__v1__health_check_request__descriptor,
     .gives_many = true,
     .on_message = watch_begin,
     .on_close = watch_close},
    {.name = "List", .request = &grpc__health__v1__health_list_request__descriptor, .on_message = list},
};
const struct grpc_service grpc_health = {
    .name = "grpc.health.v1.Health", .methods = methods, .method_count = sizeof methods / sizeof *methods};
