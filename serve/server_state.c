/* The server's state for requests: readiness, counts, and the drain. */
#include "server-internal.h"

#include "jobs.h"
#include "log.h"
#include "otlp.h"
#include "registry.h"
#include "tinker.h"

bool server_is_ready(const struct server *server) {
    return server->is_ready && !server->is_leaving && !server->has_failed &&
           server->core->still * SERVER_TICK_SECONDS < server->options->rank_timeout;
}

void server_count(struct server *server) {
    struct driver_stats stats;
    struct metrics_steps steps;
    if (!server->driver)
        return;
    metrics_tell_loop(server->metrics, loop_turns(server->loop));
    driver_take_steps(server->driver, &steps);
    metrics_add_steps(server->metrics, &steps);
    driver_read_stats(server->driver, &stats);
    if (server->otlp) {
        uint64_t sent, dropped;
        otlp_counts(server->otlp, &sent, &dropped);
        metrics_tell_spans(server->metrics, sent, dropped);
    }
    if (server->grammars) {
        struct grammars_figures figures;
        grammars_read(server->grammars, &figures);
        metrics_tell_constraints(server->metrics, &figures, stats.scheduler.late_masks);
    }
    struct metrics_engine engine = {.running = stats.scheduler.running,
                                    .waiting = stats.scheduler.waiting + stats.deferred,
                                    .deferred = stats.deferred,
                                    .pages_held = stats.pages - stats.pages_free,
                                    .preemptions = stats.scheduler.preemptions,
                                    .adapter_bytes = (int64_t)stats.adapter_bytes};
    memcpy(engine.receipts, stats.receipts, sizeof engine.receipts);
    metrics_tell_engine(server->metrics, &engine);
}

/* Nothing runs any more: the driver may end. */
void server_end_if_idle(struct server *server) {
    if (server->is_draining && server->driver && !server->core->calls && !registry_changes(server) &&
        jobs_are_idle(server->jobs) && tinker_is_idle(server->tinker))
        driver_end(server->driver);
}

ON_EVENT(server_give_up) {
    struct server *server = context;
    log_event(server, LOG_WARNING, "drain", "%lld requests did not end in time", (long long)server->core->calls);
    call_stop_all(server);
    if (server->jobs)
        jobs_stop(server->jobs, true);
}

static struct timeval time_of(double seconds) {
    return (struct timeval){.tv_sec = (time_t)seconds,
                            .tv_usec = (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)};
}

static void begin_drain(struct server *server) {
    struct server_core *core = server->core;
    struct timeval time = time_of(core->drain_timeout);
    server->is_draining = true;
    if (server->jobs)
        jobs_stop(server->jobs, false);
    if (server->tinker)
        tinker_stop(server->tinker);
    core->drain_deadline = clock_seconds() + core->drain_timeout;
    transport_drain(server->transport);
    log_event(server, LOG_INFO, "drain", "no more requests are taken; %lld run or wait, and have %g s",
              (long long)core->calls, core->drain_timeout);
    event_del(core->delay_timer);
    event_add(core->drain_timer, &time);
    server_end_if_idle(server);
}

ON_EVENT(server_on_delay_over) {
    struct server *server = context;
    if (!server->is_draining)
        begin_drain(server);
}

/* Nobody was sent here before the server was ready, and nobody is served after a failure: in both cases nothing
 * waits. */
void server_drain(struct server *server, double delay, double timeout) {
    struct server_core *core = server->core;
    bool has_clients = server->is_ready && !server->has_failed;
    double now = clock_seconds(), seconds = timeout < 0 ? server->options->drain_timeout : timeout;
    double wait = !has_clients ? 0 : delay < 0 ? server->options->drain_delay : delay;
    struct timeval time = time_of(seconds);
    if (server->is_draining && now + seconds < core->drain_deadline) {
        core->drain_deadline = now + seconds;
        event_add(core->drain_timer, &time);
    }
    if (server->is_draining)
        return;
    bool is_first = !server->is_leaving;
    core->drain_timeout = is_first || seconds < core->drain_timeout ? seconds : core->drain_timeout;
    core->delay_end = is_first || now + wait < core->delay_end ? now + wait : core->delay_end;
    server->is_leaving = true;
    if (core->delay_end <= now) {
        begin_drain(server);
        return;
    }
    time = time_of(core->delay_end - now);
    event_add(core->delay_timer, &time);
    transport_leave(server->transport);
    if (is_first)
        log_event(server, LOG_INFO, "leave", "not ready any more; requests are still taken for %g s", wait);
}
