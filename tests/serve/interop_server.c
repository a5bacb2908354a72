/* serve_interop_server [--port N] [--control WHERE] [--tls-cert F --tls-key F] [--limits.KEY VALUE]...
 *
 * Serves what the table below has; see interop_server.h. Says {"event":"ready","listen":"H:P"} on standard output.
 * SIGTERM drains: it ends when no connection is left. SIGINT ends it at once. SIGHUP reads the certificate again. */
#include "interop_server.h"

#include "base/base.h"
#include "serve/server.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct interop_service *const services[] = {
    &interop_grpc, &interop_plain, /* has everything that is left: the last */
};

static void route(void *router, struct exchange *exchange) {
    const struct exchange_head *head = &exchange->head;
    exchange->request->server = router;
    if (head->refusal) {
        exchange_answer(exchange, head->refusal, "text/plain", head->problem, strlen(head->problem));
        return;
    }
    for (size_t i = 0; i < sizeof services / sizeof *services; i++)
        if (services[i]->claims(exchange)) {
            services[i]->begin(exchange);
            return;
        }
}

static const struct transport_limits defaults = {
    .connections = 1024,
    .streams = 100,
    .header_bytes = 16384,
    .headers = 100,
    .body_bytes = 8 << 20,
    .gathered_bytes = 64 << 20,
    .stream_window = 256 << 10,
    .connection_window = 4 << 20,
    .output_bytes = 64 << 10,
    .stream_output_bytes = 256 << 10,
    .header_timeout = 10,
    .idle_timeout = 300,
    .write_timeout = 30,
    .glitches = 1000,
    .glitches_per_s = 100,
    .resets = 1000,
    .resets_per_s = 200,
    .requests_per_connection = 1000,
};

static bool limit_set(struct transport_limits *limits, const char *key, const char *value) {
    const struct {
        const char *key;
        int64_t *whole;
        double *seconds;
    } rows[] = {
        {"connections", &limits->connections, NULL},
        {"streams", &limits->streams, NULL},
        {"header_bytes", &limits->header_bytes, NULL},
        {"headers", &limits->headers, NULL},
        {"body_bytes", &limits->body_bytes, NULL},
        {"gathered_bytes", &limits->gathered_bytes, NULL},
        {"stream_window", &limits->stream_window, NULL},
        {"connection_window", &limits->connection_window, NULL},
        {"output_bytes", &limits->output_bytes, NULL},
        {"stream_output_bytes", &limits->stream_output_bytes, NULL},
        {"header_timeout", NULL, &limits->header_timeout},
        {"idle_timeout", NULL, &limits->idle_timeout},
        {"write_timeout", NULL, &limits->write_timeout},
        {"glitches", &limits->glitches, NULL},
        {"glitches_per_s", &limits->glitches_per_s, NULL},
        {"resets", &limits->resets, NULL},
        {"resets_per_s", &limits->resets_per_s, NULL},
        {"requests_per_connection", &limits->requests_per_connection, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(rows[i].key, key) != 0)
            continue;
        if (rows[i].whole)
            *rows[i].whole = atoll(value);
        else
            *rows[i].seconds = atof(value);
        return true;
    }
    return false;
}

struct program {
    struct transport_options options;
    struct server server;
    struct serve_options serve;
    struct transport *transport;
    const char *control;
    char listen[64];
};

static bool options_read(struct program *program, int argc, char **argv) {
    snprintf(program->listen, sizeof program->listen, "127.0.0.1:0");
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (!strcmp(name, "--port"))
            snprintf(program->listen, sizeof program->listen, "127.0.0.1:%s", value);
        else if (!strcmp(name, "--control"))
            program->control = value;
        else if (!strcmp(name, "--tls-cert"))
            program->options.tls_cert = value;
        else if (!strcmp(name, "--tls-key"))
            program->options.tls_key = value;
        else if (strncmp(name, "--limits.", 9) != 0 || !limit_set(&program->options.limits, name + 9, value))
            return false;
    }
    return argc % 2 == 1;
}

static void on_signal(evutil_socket_t number, short what, void *context) {
    struct program *program = context;
    (void)what;
    if (number == SIGTERM) {
        transport_drain(program->transport);
        program->server.is_draining = true;
    } else if (number == SIGINT) {
        event_base_loopbreak(program->options.base);
    } else if (transport_reload(program->transport)) {
        log_error("%s", status_text());
    } else {
        log_info("read again");
    }
}

static void on_check(evutil_socket_t fd, short what, void *context) {
    struct program *program = context;
    (void)fd;
    (void)what;
    if (program->server.is_draining && !transport_connections(program->transport, LISTENER_DATA))
        event_base_loopbreak(program->options.base);
}

static double thread_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void run_loop(struct event_base *base) {
    for (double before = thread_seconds(), now; !event_base_loop(base, EVLOOP_ONCE); before = now) {
        now = thread_seconds();
        interop_count_turn(now - before);
        if (event_base_got_break(base))
            return;
    }
}

static int serve(struct program *program) {
    int status = transport_open(&program->options, &program->transport);
    if (!status)
        status = transport_bind(program->transport, LISTENER_DATA, program->listen);
    if (!status && program->control)
        status = transport_bind(program->transport, LISTENER_CONTROL, program->control);
    if (!status)
        status = transport_accept(program->transport);
    if (status)
        return status;
    printf("{\"event\":\"ready\",\"listen\":\"%s\",\"control\":\"%s\"}\n",
           transport_address(program->transport, LISTENER_DATA),
           program->control ? transport_address(program->transport, LISTENER_CONTROL) : "none");
    fflush(stdout);
    run_loop(program->options.base);
    return 0;
}

static int watch(struct program *program) {
    const struct timeval period = {.tv_usec = 10000};
    struct event_base *base = event_base_new();
    if (!base)
        return status_fail(STATUS_MEMORY, "the loop: out of memory");
    struct event *term = evsignal_new(base, SIGTERM, on_signal, program);
    struct event *interrupt = evsignal_new(base, SIGINT, on_signal, program);
    struct event *hup = evsignal_new(base, SIGHUP, on_signal, program);
    struct event *check = event_new(base, -1, EV_PERSIST, on_check, program);
    int status = 0;
    program->options.base = program->server.base = base;
    if (!term || !interrupt || !hup || !check || event_add(term, NULL) || event_add(interrupt, NULL) ||
        event_add(hup, NULL) || event_add(check, &period))
        status = status_fail(STATUS_MEMORY, "the loop: out of memory");
    else
        status = serve(program);
    transport_close(program->transport);
    struct event *const events[] = {term, interrupt, hup, check};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i])
            event_free(events[i]);
    event_base_free(base);
    return status;
}

int main(int argc, char **argv) {
    struct program program = {.options.limits = defaults};
    if (!options_read(&program, argc, argv)) {
        fprintf(stderr, "usage: %s [--port N] [--control WHERE] [--tls-cert F --tls-key F] [--limits.KEY VALUE]...\n",
                argv[0]);
        return 2;
    }
    program.options.route = route;
    program.options.request_bytes = sizeof(struct request);
    program.options.refuse = request_refuse;
    program.options.router = &program.server;
    program.serve.limits = program.options.limits;
    program.server.options = &program.serve;
    program.server.gathered.limit = program.options.limits.gathered_bytes;
    program.options.gathered = &program.server.gathered;
    int status = watch(&program);
    if (status)
        log_error("%s", status_text());
    return status ? 1 : 0;
}
