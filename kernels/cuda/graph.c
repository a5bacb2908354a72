/* Recordings as the driver's graphs: a stream's work is captured, and each replay is one launch. */
#include "cuda/cuda-internal.h"

struct cuda_recording {
    struct recording recording;
    struct CUgraphExec_st *instance;
};

static struct cuda_stream *own_stream(struct stream *stream) {
    return (struct cuda_stream *)stream;
}

int cuda_check_not_recording(const struct stream *stream, const char *what) {
    return ((const struct cuda_stream *)(const void *)stream)->is_recording
               ? status_fail(STATUS_INVALID, "%s a stream that is being recorded", what)
               : STATUS_OK;
}

/* Only the calling thread may not allocate or wait meanwhile: other ranks of the process continue. */
int cuda_record_begin(struct stream *stream) {
    int status = cuda_check_not_recording(stream, "a recording of");
    THEN(status, cuda_enter(stream->device));
    THEN(status, cuda_check(stream->device,
                            cuda(stream->device)->driver.capture_begin(cuda_stream(stream), CUDA_CAPTURE_THREAD_LOCAL),
                            "recording"));
    own_stream(stream)->is_recording |= !status;
    return status;
}

/* Makes a recording that can be replayed. The captured graph is not needed afterwards. */
static int instantiate(struct device *device, struct CUgraph_st *graph, struct recording **out) {
    const struct cuda_driver *driver = &cuda(device)->driver;
    struct cuda_recording *own = calloc(1, sizeof *own);
    int status = status_allocated(own);
    THEN(status, cuda_check(device, driver->graph_instantiate(&own->instance, graph, 0), "recording"));
    int destroyed = cuda_check(device, driver->graph_destroy(graph), "recording");
    status = status ? status : destroyed;
    if (status) {
        free(own);
        return status;
    }
    own->recording.device = device;
    *out = &own->recording;
    return STATUS_OK;
}

int cuda_record_end(struct stream *stream, struct recording **recording) {
    struct device *device = stream->device;
    struct CUgraph_st *graph = NULL;
    *recording = NULL;
    if (!own_stream(stream)->is_recording)
        return status_fail(STATUS_INVALID, "the stream is not being recorded");
    own_stream(stream)->is_recording = false;
    int status = cuda_enter(device);
    THEN(status, cuda_check(device, cuda(device)->driver.capture_end(cuda_stream(stream), &graph), "recording"));
    return status ? status : instantiate(device, graph, recording);
}

int cuda_replay(struct stream *stream, const struct recording *recording) {
    const struct cuda_recording *own = (const void *)recording;
    int status = cuda_check_not_recording(stream, "a replay on");
    THEN(status, cuda_enter(stream->device));
    return status
               ? status
               : cuda_check(stream->device,
                            cuda(stream->device)->driver.graph_launch(own->instance, cuda_stream(stream)), "a replay");
}

void cuda_recording_close(struct recording *recording) {
    struct device *device = recording->device;
    if (!cuda_enter(device))
        cuda_check(device, cuda(device)->driver.instance_destroy(((struct cuda_recording *)recording)->instance),
                   "closing a recording");
    free(recording);
}
