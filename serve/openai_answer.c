/* Sends answers that are one text of JSON. A long one is built on a worker and sent in slices, as the client reads it,
 * so that the loop spends little time on it at once. */
#include "openai.h"

#include "base/base.h"

void openai_answer_room(struct openai_exchange *self) {
    struct exchange *exchange = self->exchange;
    size_t most = (size_t)self->server->options->limits.stream_output_bytes;
    while (!self->is_building && self->sent < self->answer.length && exchange_pending(exchange) <= most) {
        size_t remaining = self->answer.length - self->sent, slice = remaining < most + 1 ? remaining : most + 1;
        if (exchange_write(exchange, self->answer.data + self->sent, slice))
            return; /* on_close follows */
        self->sent += slice;
        if (slice == remaining) {
            exchange_end(exchange, NULL, 0);
            return;
        }
    }
}

static void on_built(struct loop_note *note) {
    struct openai_exchange *self = (struct openai_exchange *)((char *)note - offsetof(struct openai_exchange, built));
    self->is_building = false;
    if (self->exchange) {
        struct field type = field_of("content-type", "application/json");
        if (self->answer.failed) {
            route_answer_json(self->exchange, &self->answer);
        } else if (!exchange_begin(self->exchange, 200, &type, 1, (int64_t)self->answer.length)) {
            self->is_long = true;
            openai_answer_room(self);
        }
    } else
        openai_exchange_free(self, ERROR_NONE);
}

static void build_on_worker(struct worker_job *job) {
    struct openai_exchange *self = (struct openai_exchange *)((char *)job - offsetof(struct openai_exchange, building));
    struct loop *loop = self->server->loop;
    openai_build(&self->request, &self->answer);
    loop_post(loop, &self->built);
}

static void answer(struct openai_exchange *self) {
    struct worker *worker = self->server->worker;
    if (worker && openai_known_bytes(&self->request) > ROUTE_SHORT_BYTES) {
        self->is_building = true;
        self->built.run = on_built;
        self->building.work = build_on_worker;
        worker_drop(worker, &self->building);
        return;
    }
    openai_build(&self->request, &self->answer);
    route_answer_json(self->exchange, &self->answer);
}

void openai_answer_update(struct openai_exchange *self, const struct call_update *update) {
    openai_take_all(&self->request, update);
    if (!update->is_done)
        return;
    self->has_answered = true;
    if (self->error.which)
        route_fail(self->exchange, &self->error);
    else
        answer(self);
}
