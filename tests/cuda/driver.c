/* libcuda.so.1 for tests: the calls of NVIDIA's driver API that the program makes, on GPUs of the interpreter's.
 *
 * The environment decides, read when the GPUs are opened. CAMBIUM_CUDA_CARDS is their number, 1 when not given, and
 * CUDA_VISIBLE_DEVICES hides all but one. CAMBIUM_CUDA_SEED sets the order of streams, blocks and warps.
 * CAMBIUM_CUDA_REPORT names a file for the counts of calls and of each kernel, written at the end of the process.
 * CAMBIUM_CUDA_ORDER replaces the random order of streams: "urgent" runs the stream with the highest priority that is
 * ready, and "patient" the one with the lowest. CAMBIUM_CUDA_TRACE names a file, for a line of what a host asks for.
 * The line has the GPU, the stream's priority, and what. "wait" is a wait of the host. "edge 3" is the third time that
 * a stream waits for an event that has not come, and for work that it does not wait for already. CAMBIUM_CUDA_MEMORY is
 * a GPU's memory in MiB. A fault goes to standard error in words, and every later call on its GPU fails with its
 * number.
 *
 * CAMBIUM_CUDA_FAIL, read at each call, lists calls that fail: "alloc:3,launch:10,copy:2" is the third allocation of a
 * GPU, its tenth launch and its second copy since the variable was set. "bus:10": the GPU leaves the bus at its tenth
 * launch, and all later calls fail. "wait:2" plants a fault in the program: the second wait of the host that has to
 * wait returns at once. "event:1": a stream does not wait at edge 1. "launch:10@1" is about GPU 1 alone.
 *
 * A GPU is closed to the others: it knows neither their memory nor their streams. A thread calls with the context of
 * one GPU, as it does with NVIDIA's driver. */
#include "cuda/card.h"
#include "cuda/library.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MULTIPROCESSORS = 4, CARDS_MOST = 8, MOST_URGENT = -5 };

static struct card cards[CARDS_MOST];
static int card_count; /* 0: not opened yet */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local struct card *current; /* the thread's context */

static unsigned long setting(const char *name, unsigned long otherwise) {
    const char *text = getenv(name);
    return text ? strtoul(text, NULL, 10) : otherwise;
}

bool card_fails(struct card *card, enum call_kind kind) {
    static const char *const names[CALL_KINDS] = {"alloc:", "launch:", "copy:", "wait:", "event:", "bus:"};
    const char *at = getenv("CAMBIUM_CUDA_FAIL");
    if (!at) {
        memset(card->commanded, 0, sizeof card->commanded);
        return false;
    }
    unsigned long number = ++card->commanded[kind];
    size_t length = strlen(names[kind]);
    for (; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        char *end;
        if (strncmp(at, names[kind], length) == 0 && strtoul(at + length, &end, 10) == number &&
            (*end != '@' || atoi(end + 1) == card->slot)) {
            return true;
        }
    }
    return false;
}

static CUresult open_card(struct card *card, int slot) {
    pthread_mutex_init(&card->lock, NULL);
    card->slot = slot;
    if (machine_open(&card->machine, (uint64_t)setting("CAMBIUM_CUDA_MEMORY", 8192) << 20,
                     setting("CAMBIUM_CUDA_SEED", 1))) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    card->streams.machine = &card->machine;
    card->streams.lock = &card->lock;
    const char *order = getenv("CAMBIUM_CUDA_ORDER"), *trace = getenv("CAMBIUM_CUDA_TRACE");
    card->streams.order = !order ? ORDER_RANDOM : strcmp(order, "urgent") ? ORDER_PATIENT : ORDER_URGENT;
    card->streams.trace = trace ? open(trace, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : -1;
    card->streams.slot = slot;
    card->null_stream = stream_open(&card->streams);
    card->is_open = card->null_stream != NULL;
    return card->is_open ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult open_cards(void) {
    int count = (int)setting("CAMBIUM_CUDA_CARDS", 1);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int first = visible && *visible ? atoi(visible) : 0;
    CUresult result = count < 1 || count > CARDS_MOST || first < 0 || first >= count ? CUDA_ERROR_NO_DEVICE : 0;
    count = visible && *visible ? 1 : count;
    for (int i = 0; i < count && !result; i++) {
        result = open_card(&cards[i], first + i);
    }
    card_count = result ? 0 : count;
    return result;
}

_Thread_local int card_captures;

CUresult card_enter(struct card **card) {
    *card = current;
    if (!current) {
        return card_count ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_NOT_INITIALIZED;
    }
    pthread_mutex_lock(&current->lock);
    return current->error;
}

CUresult card_enter_outside(struct card **card) {
    CUresult result = card_enter(card);
    return result ? result : card_captures ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult card_leave(struct card *card, CUresult result) {
    if (card && card->machine.failed && !card->error) {
        const char *message = card->machine.message;
        card->error = strstr(message, "outside every allocation") ? CUDA_ERROR_ILLEGAL_ADDRESS
                      : strstr(message, "misaligned")             ? CUDA_ERROR_MISALIGNED_ADDRESS
                      : strstr(message, "left the bus")           ? CUDA_ERROR_UNKNOWN
                                                                  : CUDA_ERROR_LAUNCH_FAILED;
        fprintf(stderr, "cuda stand-in: %s\n", message);
        result = card->error;
    }
    if (card) {
        pthread_mutex_unlock(&card->lock);
    }
    return result;
}

/* One line with the calls of the driver; those of the kernels follow. */
static int write_calls(const struct card *card, const char *path) {
    FILE *file = fopen(path, "a");
    if (!file) {
        return -1;
    }
    fprintf(file,
            "{\"allocations\": %lu, \"uploads\": %lu, \"downloads\": %lu, \"waits\": %lu, "
            "\"graph_launches\": %lu, \"launches\": %lu}\n",
            card->allocations, card->uploads, card->downloads, card->waits, card->graph_launches, card->outside);
    return fclose(file) ? -1 : 0;
}

/* A process that ends may still have threads on a GPU. Then its memory stays. */
__attribute__((destructor)) static void close_cards(void) {
    const char *path = getenv("CAMBIUM_CUDA_REPORT");
    for (struct card *card = cards; card < cards + card_count; card++) {
        if (path && (write_calls(card, path) || counts_write(&card->machine, path))) {
            perror(path);
        }
        if (!card->contexts) {
            modules_forget(card);
            stream_close(&card->streams, card->null_stream);
            machine_close(&card->machine);
        }
    }
}

struct stream *card_stream(const struct card *card, CUstream name) {
    struct stream *stream = name ? (struct stream *)name : card->null_stream;
    return stream->streams == &card->streams ? stream : NULL;
}

/* ---- the driver and its GPUs ---- */

API CUresult cuInit(unsigned flags) {
    pthread_mutex_lock(&opening);
    CUresult result = flags ? CUDA_ERROR_INVALID_VALUE : card_count ? CUDA_SUCCESS : open_cards();
    pthread_mutex_unlock(&opening);
    return result;
}

static bool is_card(CUdevice device) {
    return device >= 0 && device < card_count;
}

API CUresult cuDriverGetVersion(int *version) {
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

API CUresult cuGetErrorName(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN";
    return CUDA_SUCCESS;
}

API CUresult cuGetErrorString(CUresult error, const char **text) {
    static const struct {
        CUresult error;
        const char *text;
    } texts[] = {{CUDA_SUCCESS, "no error"},
                 {CUDA_ERROR_INVALID_VALUE, "invalid argument"},
                 {CUDA_ERROR_OUT_OF_MEMORY, "out of memory"},
                 {CUDA_ERROR_NOT_INITIALIZED, "initialization error"},
                 {CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"},
                 {CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"},
                 {CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"},
                 {CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"},
                 {CUDA_ERROR_NOT_FOUND, "named symbol not found"},
                 {CUDA_ERROR_NOT_READY, "device not ready"},
                 {CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"},
                 {CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"},
                 {CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"},
                 {CUDA_ERROR_UNKNOWN, "unknown error"}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (texts[i].error == error) {
            *text = texts[i].text;
            return CUDA_SUCCESS;
        }
    }
    *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuDeviceGetCount(int *count) {
    *count = card_count;
    return card_count ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

API CUresult cuDeviceGet(CUdevice *device, int number) {
    *device = number;
    return is_card(number) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceGetName(char *name, int bytes, CUdevice device) {
    snprintf(name, (size_t)bytes, "PTX interpreter");
    return is_card(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceGetPCIBusId(char *id, int bytes, CUdevice device) {
    if (!is_card(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    snprintf(id, (size_t)bytes, "0000:%02X:00.0", 0x17 + cards[device].slot);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    *bytes = is_card(device) ? cards[device].machine.bytes : 0;
    return *bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    static const struct {
        CUdevice_attribute attribute;
        int value;
    } values[] = {{CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, LAUNCH_MOST_THREADS},
                  {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, PLAIN_SHARED},
                  {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, MOST_SHARED},
                  {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, MOST_SHARED + 1024},
                  {CU_DEVICE_ATTRIBUTE_MAX_PITCH, INT32_MAX},
                  {CU_DEVICE_ATTRIBUTE_WARP_SIZE, LANES},
                  {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, MULTIPROCESSORS},
                  {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CAPABILITY / 10},
                  {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, CAPABILITY % 10},
                  {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1}};
    for (size_t i = 0; is_card(device) && i < sizeof values / sizeof *values; i++) {
        if (values[i].attribute == attribute) {
            *value = values[i].value;
            return CUDA_SUCCESS;
        }
    }
    return is_card(device) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    if (!is_card(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    struct card *card = &cards[device];
    *context = (CUcontext)card;
    pthread_mutex_lock(&card->lock);
    card->contexts += !card->error;
    return card_leave(card, card->error);
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    if (!is_card(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    struct card *card = &cards[device];
    pthread_mutex_lock(&card->lock);
    card->contexts -= card->contexts > 0;
    bool is_last = !card->contexts;
    CUresult result = card_leave(card, card->error);
    if (is_last) {
        streams_end_helper(&card->streams);
    }
    return result;
}

API CUresult cuCtxSetCurrent(CUcontext context) {
    struct card *card = (struct card *)context;
    if (card && (card < cards || card >= cards + card_count)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    current = card;
    return card ? card->error : CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice(CUdevice *device) {
    *device = current ? (int)(current - cards) : 0;
    return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* ---- memory ---- */

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    struct card *card;
    CUresult result = card_enter(&card);
    *total = card ? card->machine.bytes : 0, *free_bytes = card ? card->machine.bytes - card->machine.used : 0;
    return card_leave(card, result);
}

API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    struct card *card;
    CUresult result = card_enter_outside(&card);
    if (!result) {
        card->allocations++;
        *address = card_fails(card, CALL_ALLOC) ? 0 : memory_alloc(&card->machine, bytes);
        result = bytes == 0 ? CUDA_ERROR_INVALID_VALUE : *address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    return card_leave(card, result);
}

API CUresult cuMemFree_v2(CUdeviceptr address) {
    struct card *card;
    CUresult result = card_enter_outside(&card);
    if (!result && address) {
        streams_run(&card->streams, NULL, NULL); /* as the driver does: nothing may still use it */
        result = memory_free(&card->machine, address) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
    return card_leave(card, result);
}

API CUresult cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
    struct card *card;
    CUresult result = card_enter_outside(&card);
    (void)flags;
    if (!result) {
        card->allocations++;
        *memory = card_fails(card, CALL_ALLOC) ? NULL : aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
        result = *memory ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    return card_leave(card, result);
}

API CUresult cuMemAllocHost_v2(void **memory, size_t bytes) {
    return cuMemHostAlloc(memory, bytes, 0);
}

API CUresult cuMemFreeHost(void *memory) {
    struct card *card;
    CUresult result = card_enter(&card);
    if (card) {
        streams_run(&card->streams, NULL, NULL);
    }
    free(memory);
    return card_leave(card, result);
}

static CUresult queue(CUstream stream, struct work *work) {
    struct card *card;
    CUresult result = card_enter(&card);
    struct stream *known = result ? NULL : card_stream(card, stream);
    if (!result && !known) {
        result = CUDA_ERROR_INVALID_HANDLE;
    }
    if (!result && work->kind <= WORK_SET && work->kind != WORK_LAUNCH) {
        work->fails = card_fails(card, CALL_COPY);
    }
    if (!result && !known->captured) {
        card->uploads += work->kind == WORK_WRITE;
        card->downloads += work->kind == WORK_READ;
    }
    if (!result && stream_queue(known, work)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return card_leave(card, result);
}

static struct work copy_of(enum work_kind kind, uint64_t to, uint64_t from, size_t bytes) {
    return (struct work){.kind = kind, .to = to, .from = from, .bytes = bytes, .rows = 1};
}

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    struct work work = copy_of(WORK_WRITE, to, (uintptr_t)from, bytes);
    return queue(stream, &work);
}

API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    struct work work = copy_of(WORK_READ, (uintptr_t)to, from, bytes);
    return queue(stream, &work);
}

API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    struct work work = copy_of(WORK_MOVE, to, from, bytes);
    return queue(stream, &work);
}

API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream) {
    bool to_host = copy->dstMemoryType == CU_MEMORYTYPE_HOST, from_host = copy->srcMemoryType == CU_MEMORYTYPE_HOST;
    if ((to_host && from_host) || copy->dstPitch < copy->WidthInBytes || copy->srcPitch < copy->WidthInBytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t to = to_host ? (uintptr_t)copy->dstHost : copy->dstDevice;
    uint64_t from = from_host ? (uintptr_t)copy->srcHost : copy->srcDevice;
    struct work work = copy_of(from_host ? WORK_WRITE
                               : to_host ? WORK_READ
                                         : WORK_MOVE,
                               to + copy->dstY * copy->dstPitch + copy->dstXInBytes,
                               from + copy->srcY * copy->srcPitch + copy->srcXInBytes, copy->WidthInBytes);
    work.rows = copy->Height, work.to_pitch = copy->dstPitch, work.from_pitch = copy->srcPitch;
    return queue(stream, &work);
}

API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
    struct work work = {.kind = WORK_SET, .to = to, .value = value, .bytes = bytes};
    return queue(stream, &work);
}

/* ---- streams and events ---- */

API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    struct card *card;
    CUresult result = card_enter(&card);
    *least = 0;
    *greatest = MOST_URGENT;
    return card_leave(card, result);
}

API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    struct card *card;
    CUresult result = card_enter(&card);
    (void)flags;
    if (!result) {
        struct stream *opened = stream_open(&card->streams);
        *stream = (CUstream)opened;
        result = opened ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!result) {
        ((struct stream *)*stream)->priority = priority > 0 ? 0 : priority < MOST_URGENT ? MOST_URGENT : priority;
    }
    return card_leave(card, result);
}

API CUresult cuStreamDestroy_v2(CUstream stream) {
    struct card *card;
    CUresult result = card_enter(&card);
    if (card && stream) {
        stream_close(&card->streams, (struct stream *)stream);
    }
    return card_leave(card, result);
}

/* A wait of the host. has_work: there is work to run before it ends. */
static void wait_for(struct card *card, bool has_work, const struct stream *until_empty,
                     const struct event *until_done) {
    card->waits += has_work;
    if (has_work) {
        streams_trace(&card->streams, 0, "wait", 0);
    }
    if (!has_work || !card_fails(card, CALL_WAIT)) {
        streams_run(&card->streams, until_empty, until_done);
    }
}

API CUresult cuStreamSynchronize(CUstream stream) {
    struct card *card;
    CUresult result = card_enter_outside(&card);
    const struct stream *known = result ? NULL : card_stream(card, stream);
    if (known) {
        wait_for(card, known->first, known, NULL);
    }
    result = result || known ? result : CUDA_ERROR_INVALID_HANDLE;
    return card_leave(card, result);
}

API CUresult cuCtxSynchronize(void) {
    struct card *card;
    CUresult result = card_enter(&card);
    if (!result) {
        streams_run(&card->streams, NULL, NULL);
    }
    return card_leave(card, result);
}

/* A stream that waits for an event of a capture takes part in it. */
static CUresult follow_capture(struct card *card, CUstream waiting, struct event *event) {
    struct stream *stream = card_stream(card, waiting);
    if (event->joins->captured != event->captured) {
        return CUDA_ERROR_CAPTURED_EVENT; /* the capture has ended */
    }
    if (!stream || (stream->captured && stream->captured != event->captured)) {
        return stream ? CUDA_ERROR_STREAM_CAPTURE_MERGE : CUDA_ERROR_INVALID_HANDLE;
    }
    if (stream->captured && event->joins != stream) {
        event->joins->is_joined = event->joins->queued == event->mark;
    }
    stream->is_joined &= stream->captured != NULL;
    stream->captured = event->captured;
    return CUDA_SUCCESS;
}

API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    struct event *waited = (struct event *)event;
    struct work work = {.kind = WORK_AWAIT, .event = waited, .ticket = waited->recorded};
    (void)flags;
    struct card *card;
    bool is_dropped = false;
    CUresult entered = card_enter(&card);
    if (!entered && waited->captured) {
        return card_leave(card, follow_capture(card, stream, waited));
    }
    if (!entered && card_stream(card, stream) && card_stream(card, stream)->captured) {
        return card_leave(card, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    }
    if (!entered && waited->done < waited->recorded && !stream_has_followed((struct stream *)stream, waited)) {
        is_dropped = card_fails(card, CALL_EVENT);
        streams_trace(&card->streams, ((struct stream *)stream)->priority, "edge", ++card->edges);
    }
    CUresult result = card_leave(card, CUDA_SUCCESS);
    return result || is_dropped ? result : queue(stream, &work);
}

API CUresult cuEventCreate(CUevent *event, unsigned flags) {
    struct card *card;
    CUresult result = card_enter(&card);
    (void)flags;
    if (!result) {
        *event = calloc(1, sizeof(struct event));
        result = *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    return card_leave(card, result);
}

API CUresult cuEventDestroy_v2(CUevent event) {
    struct card *card;
    CUresult result = card_enter(&card);
    if (card) {
        streams_run(&card->streams, NULL, NULL);
    }
    free(event);
    return card_leave(card, result);
}

API CUresult cuEventRecord(CUevent event, CUstream stream) {
    struct event *recorded = (struct event *)event;
    struct card *card;
    CUresult result = card_enter(&card);
    struct stream *known = result ? NULL : card_stream(card, stream);
    recorded->captured = known ? known->captured : NULL;
    if (recorded->captured) {
        recorded->joins = known;
        recorded->mark = known->queued;
    }
    result = card_leave(card, result);
    if (result || recorded->captured) {
        return result;
    }
    struct work work = {.kind = WORK_RECORD, .event = recorded, .ticket = ++recorded->recorded};
    return queue(stream, &work);
}

API CUresult cuEventSynchronize(CUevent event) {
    struct card *card;
    CUresult result = card_enter_outside(&card);
    const struct event *awaited = (const struct event *)event;
    if (!result && awaited->captured) {
        result = CUDA_ERROR_CAPTURED_EVENT;
    }
    if (!result) {
        wait_for(card, awaited->done < awaited->recorded, NULL, awaited);
    }
    return card_leave(card, result);
}

API CUresult cuEventQuery(CUevent event) {
    struct card *card;
    CUresult result = card_enter(&card);
    const struct event *asked = (struct event *)event;
    bool is_done = asked->done >= asked->recorded;
    result = !result && asked->captured ? CUDA_ERROR_CAPTURED_EVENT : result;
    return card_leave(card, result ? result : is_done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent from, CUevent to) {
    struct card *card;
    CUresult result = card_enter(&card);
    const struct event *first = (struct event *)from, *last = (struct event *)to;
    bool is_done = first->recorded && last->recorded && first->done >= first->recorded && last->done >= last->recorded;
    *milliseconds = (float)(last->time - first->time);
    return card_leave(card, result ? result : is_done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

#undef cuEventElapsedTime
CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to); /* the name of a program for CUDA 12 */
API CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
    return cuEventElapsedTime_v2(milliseconds, from, to);
}

/* ---- libraries ---- */

static int queue_call(void *stream, const struct work *work) {
    struct card *card;
    CUresult result = card_enter(&card);
    struct stream *known = result ? NULL : card_stream(card, stream);
    if (!known || stream_queue(known, work)) {
        free(work->context);
        result = CUDA_ERROR_INVALID_HANDLE;
    } else if (work->kind == WORK_MEET) {
        streams_start_helper(&card->streams);
    }
    return card_leave(card, result) ? -1 : 0;
}

API void cuda_stand_in_trace(void *stream, const char *what, unsigned long number) {
    struct card *card;
    CUresult result = card_enter(&card);
    const struct stream *known = result ? NULL : card_stream(card, stream);
    if (known) {
        streams_trace(&card->streams, known->priority, what, number);
    }
    card_leave(card, result);
}

API const struct counts *cuda_stand_in_counts(void) {
    struct card *card;
    card_enter(&card);
    const struct counts *counts = card ? card->machine.counts : NULL;
    card_leave(card, CUDA_SUCCESS);
    return counts;
}

API int cuda_stand_in_queue(void *stream, void (*call)(struct machine *machine, void *context), void *context) {
    return queue_call(stream, &(struct work){.kind = WORK_CALL, .call = call, .context = context});
}

API bool cuda_stand_in_captures(void *stream) {
    struct card *card;
    CUresult result = card_enter(&card);
    const struct stream *known = result ? NULL : card_stream(card, stream);
    bool captures = known && known->captured;
    card_leave(card, CUDA_SUCCESS);
    return captures;
}

API int cuda_stand_in_meet(void *stream, const struct meeting *meeting, void *context) {
    return queue_call(stream, &(struct work){.kind = WORK_MEET, .meeting = *meeting, .context = context});
}
