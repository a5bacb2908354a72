/* Recordings of late: copies of queue entries, which each replay queues. */
#include "late/late-internal.h"

#include <stdlib.h>

static struct late_recording *late_recording(const struct recording *recording) {
    return (struct late_recording *)(uintptr_t)recording;
}

int late_record_begin(struct stream *stream) {
    struct late_stream *own = late_stream(stream);
    if (own->recording)
        return status_fail(STATUS_INVALID, "the stream is already being recorded");
    struct late_recording *recording = calloc(1, sizeof *recording);
    if (!recording)
        return status_fail(STATUS_MEMORY, "out of memory");
    recording->recording.device = stream->device;
    own->recording = recording;
    return STATUS_OK;
}

int late_record_end(struct stream *stream, struct recording **recording) {
    struct late_stream *own = late_stream(stream);
    *recording = own->recording ? &own->recording->recording : NULL;
    own->recording = NULL;
    return *recording ? STATUS_OK : status_fail(STATUS_INVALID, "the stream is not being recorded");
}

int late_replay(struct stream *stream, const struct recording *recording) {
    const struct late_list *list = &late_recording(recording)->list;
    struct late_device *device = late(stream->device);
    int status =
        late_stream(stream)->recording ? status_fail(STATUS_INVALID, "a replay on a stream that is being recorded") : 0;
    pthread_mutex_lock(&device->lock);
    device->counts.replays += !status;
    pthread_mutex_unlock(&device->lock);
    for (size_t i = 0; i < list->count && !status; i++)
        status = late_queue_entry(late_stream(stream), &list->entries[i]);
    return status;
}
