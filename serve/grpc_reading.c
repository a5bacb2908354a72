/* Unpacks the bytes of a message, on a worker or on the loop. */
#include "grpc_reading.h"

#include "gunzip.h"
#include "proto_check.h"
#include "route.h"

static bool read_message(struct grpc_reading *reading) {
    struct proto_fault fault;
    enum gunzip unpacked = reading->is_packed ? gunzip_replace(&reading->bytes, reading->limit) : GUNZIP_WHOLE;
    if (unpacked == GUNZIP_TOO_LARGE)
        return error_set(&reading->error, ERROR_BODY_SIZE, NULL, "a message may have %llu bytes",
                         (unsigned long long)reading->limit);
    if (unpacked == GUNZIP_BAD)
        return error_set(&reading->error, ERROR_INTERNAL, NULL, "a message is not gzip");
    if (unpacked == GUNZIP_MEMORY)
        return error_set(&reading->error, ERROR_OVERLOADED, NULL, "out of memory");
    enum proto_result result =
        proto_unpack(reading->method->request, (const unsigned char *)strbuf_text(&reading->bytes),
                     reading->bytes.length, &reading->message, &fault);
    if (result != PROTO_OK) {
        enum error_case which = result == PROTO_TEXT       ? ERROR_ARGUMENT
                                : result == PROTO_TOO_MUCH ? ERROR_BODY_SIZE
                                                           : ERROR_INTERNAL;
        if (result == PROTO_MEMORY)
            error_set(&reading->error, ERROR_OVERLOADED, NULL, "out of memory");
        else
            error_set(&reading->error, which, fault.field, "%s", fault.text);
    }
    return result == PROTO_OK;
}

static void read_all(struct grpc_reading *reading, struct tokenizer_encoder *encoder) {
    const struct route_reader reader = {.server = reading->server, .encoder = encoder};
    const struct grpc_method *method = reading->method;
    if (read_message(reading) && method->answer) {
        method->answer(&reader, reading->message, &reading->answer, &reading->error);
        proto_free(reading->message);
        reading->message = NULL;
    }
    strbuf_free(&reading->bytes);
}

static void free_reading(struct worker_job *job) {
    struct grpc_reading *reading = (struct grpc_reading *)job;
    proto_free(reading->message);
    strbuf_free(&reading->answer);
    strbuf_free(&reading->bytes);
    free(reading);
}

static void work(struct worker_job *job) {
    struct grpc_reading *reading = (struct grpc_reading *)job;
    read_all(reading, reading->server->worker_encoder);
}

static void done(struct worker_job *job) {
    struct grpc_reading *reading = (struct grpc_reading *)job;
    struct worker *worker = reading->server->worker;
    reading->on_done(reading->context, reading);
    reading->job.work = free_reading;
    if (reading->message)
        worker_drop(worker, &reading->job);
    else
        free_reading(&reading->job);
}

struct grpc_reading *grpc_reading_new(const struct grpc_reading *asked) {
    struct grpc_reading *reading = malloc(sizeof *reading);
    if (reading) {
        *reading = *asked;
        return reading;
    }
    struct strbuf bytes = asked->bytes;
    strbuf_free(&bytes);
    return NULL;
}

void grpc_reading_start(struct grpc_reading *reading) {
    struct server *server = reading->server;
    size_t (*of)(const struct server *) = reading->method->short_bytes;
    size_t most = reading->is_packed ? 0 : of ? of(server) : ROUTE_SHORT_BYTES;
    reading->job = (struct worker_job){.work = work, .done = done, .owner = reading->owner};
    if (server->worker && reading->bytes.length > most) {
        if (worker_add(server->worker, &reading->job))
            return;
        error_set(&reading->error, ERROR_OVERLOADED, NULL, "too many long messages wait to be read");
        done(&reading->job);
    } else {
        grpc_reading_now(reading);
    }
}

void grpc_reading_now(struct grpc_reading *reading) {
    read_all(reading, reading->server->encoder);
    done(&reading->job);
}
