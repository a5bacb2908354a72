#include "halves.h"

int halves_open(struct halves *halves, struct stream *stream, size_t bytes) {
    *halves = (struct halves){.stream = stream, .bytes = bytes};
    if (!stream) {
        halves->memory = malloc(bytes);
        return status_allocated(halves->memory);
    }
    struct device *device = stream_device(stream);
    void *memory = NULL;
    int status = device_host_alloc(device, 2 * bytes, &memory);
    halves->memory = memory;
    for (int i = 0; i < 2 && !status; i++)
        status = event_open(device, &halves->copied[i]);
    return status;
}

int halves_next(struct halves *halves, char **half) {
    *half = halves->memory;
    if (!halves->stream)
        return STATUS_OK;
    halves->current = !halves->current;
    *half += halves->current ? halves->bytes : 0;
    return event_wait(halves->copied[halves->current]);
}

int halves_queued(struct halves *halves) {
    return halves->stream ? event_record(halves->copied[halves->current], halves->stream) : STATUS_OK;
}

int halves_close(struct halves *halves, int status) {
    if (!halves->stream) {
        free(halves->memory);
        return status;
    }
    int waited = stream_wait(halves->stream);
    for (int i = 0; i < 2; i++)
        event_close(halves->copied[i]);
    device_host_free(stream_device(halves->stream), halves->memory);
    return status ? status : waited;
}
