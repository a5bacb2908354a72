/* The list of this server's services. */
#include "grpc-internal.h"

#include "route.h"

static const struct grpc_service *const services[] = {
    &grpc_cambium, &grpc_control, &grpc_health, &grpc_reflection, &grpc_reflection_alpha,
};
enum { SERVICES = sizeof services / sizeof *services };

const struct grpc_service *const *grpc_services(size_t *count) {
    *count = SERVICES;
    return services;
}

void grpc_begin(struct exchange *exchange) {
    grpc_start(exchange, services, SERVICES);
}
