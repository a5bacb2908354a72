/* Streams, copies and events of a GPU. Only the waits, and closing a stream, block the host. */
#include "cuda/cuda-internal.h"

static const struct cuda_driver *driver_of(const struct stream *stream) {
    return &cuda(stream->device)->driver;
}

/* ---- streams ---- */

/* Numbers of priorities are the lower, the more urgent. */
static int create(struct device *device, bool is_urgent, struct CUstream_st **handle) {
    const struct cuda_driver *driver = &cuda(device)->driver;
    int least = 0, greatest = 0;
    int status = cuda_enter(device);
    THEN(status, cuda_check(device, driver->priorities(&least, &greatest), "reading the priorities of streams"));
    return status ? status
                  : cuda_check(device,
                               driver->stream_create(handle, CUDA_STREAM_NON_BLOCKING, is_urgent ? greatest : least),
                               "opening a stream");
}

static int open_stream(struct device *device, bool is_urgent, struct stream **stream) {
    struct cuda_stream *own = calloc(1, sizeof *own);
    *stream = NULL;
    TRY(status_allocated(own));
    own->stream.device = device;
    int status = create(device, is_urgent, &own->handle);
    if (status)
        free(own);
    else
        *stream = &own->stream;
    return status;
}

int cuda_stream_open(struct device *device, struct stream **stream) {
    return open_stream(device, false, stream);
}

int cuda_stream_open_urgent(struct device *device, struct stream **stream) {
    return open_stream(device, true, stream);
}

void cuda_stream_close(struct stream *stream) {
    struct recording *recording = NULL;
    if (((struct cuda_stream *)stream)->is_recording && !cuda_record_end(stream, &recording))
        recording_close(recording);
    if (!cuda_enter(stream->device))
        cuda_check(stream->device, driver_of(stream)->stream_destroy(cuda_stream(stream)), "closing a stream");
    free(stream);
}

int cuda_stream_wait(struct stream *stream) {
    int status = cuda_check_not_recording(stream, "a wait for");
    THEN(status, cuda_enter(stream->device));
    return status ? status
                  : cuda_check(stream->device, driver_of(stream)->stream_synchronize(cuda_stream(stream)),
                               "work on the device");
}

/* ---- copies ---- */

static int copy_run(struct stream *stream, enum copy_kind kind, void *to, const void *from, size_t bytes) {
    const struct cuda_driver *driver = driver_of(stream);
    struct CUstream_st *handle = cuda_stream(stream);
    unsigned result = kind == COPY_TO_DEVICE ? driver->copy_to_device(cuda_address(to), from, bytes, handle)
                      : kind == COPY_TO_HOST
                          ? driver->copy_to_host(to, cuda_address(from), bytes, handle)
                          : driver->copy_on_device(cuda_address(to), cuda_address(from), bytes, handle);
    return cuda_check(stream->device, result, "a copy");
}

static int copy_block(struct stream *stream, const struct copy_call *copy) {
    struct cuda_copy_2d block = {.from_pitch = copy->from_stride,
                                 .to_pitch = copy->to_stride,
                                 .from_kind = copy->kind == COPY_TO_DEVICE ? CUDA_MEMORY_HOST : CUDA_MEMORY_DEVICE,
                                 .to_kind = copy->kind == COPY_TO_HOST ? CUDA_MEMORY_HOST : CUDA_MEMORY_DEVICE,
                                 .bytes = copy->bytes,
                                 .rows = copy->rows};
    if (copy->kind == COPY_TO_DEVICE)
        block.from_host = copy->from;
    else
        block.from_device = cuda_address(copy->from);
    if (copy->kind == COPY_TO_HOST)
        block.to_host = copy->to;
    else
        block.to_device = cuda_address(copy->to);
    return cuda_check(stream->device, driver_of(stream)->copy_rows((const void *)&block, cuda_stream(stream)),
                      "a copy");
}

/* Returns true if the driver copies rows at this distance in one call. */
static bool is_pitch(const struct cuda_device *device, const struct copy_call *copy, size_t stride) {
    return stride >= copy->bytes && stride <= (size_t)device->max_pitch;
}

int cuda_copy(struct stream *stream, const struct copy_call *copy) {
    ((struct cuda_stream *)stream)->is_followed = false;
    const struct cuda_device *device = cuda(stream->device);
    int status = cuda_enter(stream->device);
    if (!status && (copy->rows == 1 || (copy->to_stride == copy->bytes && copy->from_stride == copy->bytes)))
        return copy_run(stream, copy->kind, copy->to, copy->from, copy->rows * copy->bytes);
    if (!status && is_pitch(device, copy, copy->to_stride) && is_pitch(device, copy, copy->from_stride))
        return copy_block(stream, copy);
    for (size_t i = 0; i < copy->rows && !status; i++)
        status = copy_run(stream, copy->kind, (char *)copy->to + i * copy->to_stride,
                          (const char *)copy->from + i * copy->from_stride, copy->bytes);
    return status;
}

int cuda_zero(struct stream *stream, void *memory, size_t bytes) {
    ((struct cuda_stream *)stream)->is_followed = false;
    int status = cuda_enter(stream->device);
    return status ? status
                  : cuda_check(stream->device,
                               driver_of(stream)->fill_bytes(cuda_address(memory), 0, bytes, cuda_stream(stream)),
                               "zeroing memory");
}

/* The kernel takes 16 bytes in one access, as those of fp32 do. */
int cuda_reduce(struct stream *stream, const struct reduce_call *call) {
    int64_t bytes = call->count * (int64_t)dtype_bytes(call->dtype);
    return cuda_launch_elements(&(const struct exec){.stream = stream}, CUDA_reduce, DTYPE_F32, (bytes + 3) / 4, call);
}

/* ---- events ---- */

struct cuda_event {
    struct event event;
    struct CUevent_st *handle;
};

static struct CUevent_st *handle_of(const struct event *event) {
    return ((const struct cuda_event *)(const void *)event)->handle;
}

int cuda_event_open(struct device *device, struct event **event) {
    struct cuda_event *own = calloc(1, sizeof *own);
    *event = NULL;
    TRY(status_allocated(own));
    own->event.device = device;
    int status = cuda_enter(device);
    THEN(status, cuda_check(device, cuda(device)->driver.event_create(&own->handle, 0), "opening an event"));
    if (status)
        free(own);
    else
        *event = &own->event;
    return status;
}

void cuda_event_close(struct event *event) {
    struct device *device = event->device;
    if (!cuda_enter(device))
        cuda_check(device, cuda(device)->driver.event_destroy(handle_of(event)), "closing an event");
    free(event);
}

int cuda_event_record(struct event *event, struct stream *stream) {
    int status = cuda_enter(stream->device);
    return status ? status
                  : cuda_check(stream->device, driver_of(stream)->event_record(handle_of(event), cuda_stream(stream)),
                               "recording an event");
}

/* For an event that was never recorded, the driver returns at once. */
int cuda_event_wait(struct event *event) {
    int status = cuda_enter(event->device);
    return status ? status
                  : cuda_check(event->device, cuda(event->device)->driver.event_synchronize(handle_of(event)),
                               "work on the device");
}

int cuda_event_seconds(const struct event *from, const struct event *to, double *seconds) {
    struct device *device = from->device;
    float milliseconds = 0;
    int status = cuda_enter(device);
    if (!status)
        status =
            cuda_check(device, cuda(device)->driver.event_milliseconds(&milliseconds, handle_of(from), handle_of(to)),
                       "reading the time of an event");
    *seconds = (double)milliseconds / 1e3;
    return status;
}

int cuda_stream_wait_event(struct stream *stream, struct event *event) {
    ((struct cuda_stream *)stream)->is_followed = false;
    int status = cuda_enter(stream->device);
    return status ? status
                  : cuda_check(stream->device,
                               driver_of(stream)->stream_wait_event(cuda_stream(stream), handle_of(event), 0),
                               "waiting for an event");
}
