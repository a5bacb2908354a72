/* Uploads arrays of the host in one copy to the device. */
#include "parallel/upload.h"

int upload_open(struct upload *upload, struct device *device, size_t bytes) {
    int status = STATUS_OK;
    *upload = (struct upload){.device = device, .bytes = bytes};
    for (int i = 0; i < UPLOAD_TURNS && !status; i++) {
        status = device_host_alloc(device, bytes, &upload->host[i]);
        THEN(status, event_open(device, &upload->has_arrived[i]));
    }
    return status ? status_wrap(status, "batches") : STATUS_OK;
}

void upload_close(struct upload *upload) {
    for (int i = 0; i < UPLOAD_TURNS; i++) {
        event_close(upload->has_arrived[i]);
        device_host_free(upload->device, upload->host[i]);
    }
}

int upload_begin(struct upload *upload, void *block) {
    upload->turn = (upload->turn + 1) % UPLOAD_TURNS;
    upload->block = block;
    upload->arena = arena_over(upload->host[upload->turn], upload->bytes);
    return event_wait(upload->has_arrived[upload->turn]);
}

void *upload_take(struct upload *upload, size_t bytes) {
    return arena_take(&upload->arena, bytes);
}

void *upload_place(const struct upload *upload, const void *taken) {
    return upload->block + ((const char *)taken - (const char *)upload->host[upload->turn]);
}

void *upload_add(struct upload *upload, const void *from, size_t bytes) {
    void *taken = upload_take(upload, bytes);
    memcpy(taken, from, bytes);
    return upload_place(upload, taken);
}

int upload_end(struct upload *upload, struct stream *stream) {
    int status = stream_copy_to_device(stream, upload->block, upload->host[upload->turn], upload->arena.used);
    return status ? status : event_record(upload->has_arrived[upload->turn], stream);
}
