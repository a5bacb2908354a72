/* Requests that take no steps of the engine: health over gRPC, compared with another server's plain answers, and
 * idling. */
#include "serve.h"

#include <arpa/inet.h>
#include <time.h>
#include <unistd.h>

enum { HEALTH_ROUNDS = 5, NO_PROGRAM = 127, TRIES = 500 };

/* ---- health ---- */

/* Finds a port that was free a moment ago. */
static int find_port(int *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_bound = fd >= 0 && !bind(fd, (struct sockaddr *)&address, length) &&
                    !getsockname(fd, (struct sockaddr *)&address, &length);
    int status = is_bound ? STATUS_OK : status_fail_errno("cannot find a free port");
    *port = ntohs(address.sin_port);
    if (fd >= 0)
        close(fd);
    return status;
}

static bool is_there(int port) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_open = fd >= 0 && !connect(fd, (struct sockaddr *)&address, sizeof address);
    if (fd >= 0)
        close(fd);
    return is_open;
}

/* Measures answers per second with h2load; *is_absent: it is not installed. All answers must be correct. */
static int load(const struct serve_bench *bench, const char *url, const char *message, double *rate, bool *is_absent) {
    char count[32], data[PATH_MAX + 8];
    snprintf(count, sizeof count, "-n%lld", (long long)bench->requests);
    snprintf(data, sizeof data, "-d%s", message ? message : "");
    const char *const get[] = {"h2load", "-c4", "-m16", count, url, NULL};
    const char *const check[] = {"h2load",         "-c4", "-m16", count, data, "-Hcontent-type: application/grpc",
                                 "-Hte: trailers", url,   NULL};
    struct program *program;
    long long total = 0, done = 0, good = 0;
    TRY(program_start(message ? check : get, &program));
    *rate = 0;
    for (const char *line; (line = program_line(program));) {
        const char *comma = strchr(line, ',');
        if (!strncmp(line, "finished in", 11) && comma)
            *rate = strtod(comma + 1, NULL);
        sscanf(line, "requests: %lld total, %*d started, %lld done, %lld succeeded", &total, &done, &good);
    }
    int ending = program_end(program, false);
    *is_absent = ending == NO_PROGRAM;
    program_close(program);
    if (*is_absent)
        return STATUS_OK;
    return ending || *rate <= 0 || good != total || !total
               ? status_fail(STATUS_IO, "h2load: %lld of %lld answers were good at %s", good, total, url)
               : STATUS_OK;
}

struct health {
    char measured[CLIENT_HOST_BYTES + 64], other[64];
    char message[PATH_MAX]; /* the file of an empty request */
    bool is_absent;
};

static int run_health(struct serve_bench *bench, struct health *health) {
    struct engine_pairs pairs = {0};
    struct bench_series measured = {0};
    int status = STATUS_OK;
    for (int i = 0; i <= HEALTH_ROUNDS && !status && !health->is_absent; i++) {
        double rate, other = 0;
        status = load(bench, health->measured, health->message, &rate, &health->is_absent);
        THEN(status, !health->is_absent ? load(bench, health->other, NULL, &other, &health->is_absent) : STATUS_OK);
        if (i && !status && !health->is_absent) /* the first is a warm-up */
            status = engine_pairs_add(&bench->engine, &pairs, 1 / rate, 1 / other);
        if (i && !status && !health->is_absent)
            status = bench_series_add(&measured, rate);
    }
    json_t *figure = engine_pairs_figure(&bench->engine, &pairs, true, 0);
    if (figure && measured.count) {
        json_object_set(bench->found, "calls_over_nghttpd", json_object_get(figure, "ratio"));
        json_object_set(bench->found, "quartiles", json_object_get(figure, "quartiles"));
        json_object_set_new(bench->found, "calls_per_s", json_real(bench_median(measured.values, measured.count)));
    }
    json_decref(figure);
    bench_series_free(&measured);
    return status;
}

int serve_scenario_health(struct serve_bench *bench) {
    static const char nothing[5] = {0}; /* the prefix of a message without bytes */
    struct health health = {0};
    char empty[PATH_MAX], text[16];
    int port;
    int status = file_join(health.message, sizeof health.message, bench->engine.directory, "message");
    THEN(status, file_write_atomic(health.message, nothing, sizeof nothing));
    THEN(status, file_join(empty, sizeof empty, bench->engine.directory, "empty"));
    THEN(status, file_write_atomic(empty, "", 0));
    THEN(status, find_port(&port));
    TRY(status);
    snprintf(text, sizeof text, "%d", port);
    snprintf(health.other, sizeof health.other, "http://127.0.0.1:%d/empty", port);
    client_url(bench->client[0], "/grpc.health.v1.Health/Check", health.measured, sizeof health.measured);
    struct program *program;
    const char *const words[] = {"nghttpd", "--no-tls", "-a", "127.0.0.1", "-d", bench->engine.directory, text, NULL};
    TRY(program_start(words, &program));
    /* Waits for a program that does not report when it listens. */
    for (int i = 0; i < TRIES && !is_there(port); i++)
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    bool is_absent = !is_there(port) && program_end(program, true) == NO_PROGRAM;
    if (!is_absent)
        status = run_health(bench, &health);
    if (is_absent || health.is_absent)
        json_object_set_new(bench->found, "absent", json_string(is_absent ? "nghttpd" : "h2load"));
    program_close(program);
    return status;
}

/* ---- nothing ---- */

int serve_scenario_idle(struct serve_bench *bench) {
    int ranks = bench->ranks;
    double *before = calloc((size_t)ranks, sizeof *before), *after = calloc((size_t)ranks, sizeof *after), unused;
    struct timespec second = {.tv_sec = 1},
                    rest = {.tv_sec = (time_t)bench->options->seconds,
                            .tv_nsec = (long)(1e9 * (bench->options->seconds - (time_t)bench->options->seconds))};
    json_t *shares = json_array();
    int status = status_allocated(before && after);
    if (!status) /* it has worked before it idles */
        status = serve_first_token(
            bench, &(struct serve_ask){.client = bench->client[0], .in = bench->in, .out = bench->out}, &unused);
    nanosleep(&second, NULL);
    int id = program_id(bench->program[0]);
    double start = clock_seconds();
    THEN(status, program_read_ranks(id, before, ranks));
    nanosleep(&rest, NULL);
    double seconds = clock_seconds() - start;
    THEN(status, program_read_ranks(id, after, ranks));
    for (int r = 0; r < ranks && !status; r++)
        json_array_append_new(shares, json_real((after[r] - before[r]) / seconds));
    json_object_set_new(bench->found, "idle_cpu_share", shares);
    free(before);
    free(after);
    return status;
}
