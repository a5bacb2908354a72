/* Writes events as TFRecords. */
#include "train/events.h"

#include "tensorboard.pb-c.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

enum { EVENT_BYTES = 1024, TFRECORD_HEAD = 12, TFRECORD_TAIL = 4 };

uint32_t events_crc32c(const void *bytes, size_t length) {
    const unsigned char *p = bytes;
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < length; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0x82f63b78u & (0u - (crc & 1)));
    }
    return ~crc;
}

uint32_t events_masked_crc32c(const void *bytes, size_t length) {
    uint32_t crc = events_crc32c(bytes, length);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static int write_event(struct event_file *events, Tensorboard__Event *event) {
    unsigned char record[TFRECORD_HEAD + EVENT_BYTES + TFRECORD_TAIL];
    event->wall_time = clock_wall_seconds();
    size_t packed = tensorboard__event__get_packed_size(event);
    assert(packed <= EVENT_BYTES);
    tensorboard__event__pack(event, record + TFRECORD_HEAD);
    uint64_t length = packed;
    memcpy(record, &length, sizeof length);
    uint32_t crc = events_masked_crc32c(record, sizeof length);
    memcpy(record + sizeof length, &crc, sizeof crc);
    crc = events_masked_crc32c(record + TFRECORD_HEAD, packed);
    memcpy(record + TFRECORD_HEAD + packed, &crc, sizeof crc);
    return file_write_all(events->descriptor, record, TFRECORD_HEAD + packed + TFRECORD_TAIL, events->path);
}

/* TensorBoard takes files with "tfevents" in their names, and reads them in the order of the names: time comes first.
 */
static int create(struct event_file *events, const char *directory) {
    char host[256] = "localhost";
    gethostname(host, sizeof host - 1);
    for (int serial = 0;; serial++) {
        int n = asprintf(&events->path, "%s/events.out.tfevents.%010lld.%s.%ld.%d", directory,
                         (long long)clock_wall_seconds(), host, (long)getpid(), serial);
        if (n < 0) {
            events->path = NULL;
            return status_no_memory();
        }
        events->descriptor = open(events->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (events->descriptor >= 0)
            return STATUS_OK;
        int status = errno == EEXIST ? STATUS_OK : status_fail_errno("cannot create %s", events->path);
        free(events->path);
        events->path = NULL;
        TRY(status);
    }
}

int events_open(struct event_file *events, const char *directory, int64_t first_step) {
    *events = (struct event_file){.descriptor = -1};
    int status = file_make_directories(directory);
    THEN(status, create(events, directory));
    if (status)
        return status_wrap(status, "log.tensorboard_dir");
    Tensorboard__Event version = TENSORBOARD__EVENT__INIT;
    version.what_case = TENSORBOARD__EVENT__WHAT_FILE_VERSION;
    version.file_version = (char[]){"brain.Event:2"};
    status = write_event(events, &version);
    Tensorboard__SessionLog start = TENSORBOARD__SESSION_LOG__INIT;
    start.status = TENSORBOARD__SESSION_LOG__SESSION_STATUS__START;
    Tensorboard__Event session = TENSORBOARD__EVENT__INIT;
    session.step = first_step;
    session.what_case = TENSORBOARD__EVENT__WHAT_SESSION_LOG;
    session.session_log = &start;
    THEN(status, write_event(events, &session));
    if (status)
        events_close(events);
    return status;
}

void events_close(struct event_file *events) {
    if (events->descriptor >= 0)
        close(events->descriptor);
    free(events->path);
    *events = (struct event_file){.descriptor = -1};
}

int events_write(struct event_file *events, int64_t step, const struct event_scalar *scalars, size_t count) {
    assert(count <= EVENTS_MAX_SCALARS);
    Tensorboard__Summary__Value values[EVENTS_MAX_SCALARS], *pointers[EVENTS_MAX_SCALARS];
    for (size_t i = 0; i < count; i++) {
        tensorboard__summary__value__init(&values[i]);
        values[i].tag = (char *)scalars[i].tag;
        values[i].value_case = TENSORBOARD__SUMMARY__VALUE__VALUE_SIMPLE_VALUE;
        values[i].simple_value = (float)scalars[i].value;
        pointers[i] = &values[i];
    }
    Tensorboard__Summary summary = TENSORBOARD__SUMMARY__INIT;
    summary.n_value = count;
    summary.value = pointers;
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
    event.step = step;
    event.what_case = TENSORBOARD__EVENT__WHAT_SUMMARY;
    event.summary = &summary;
    return write_event(events, &event);
}
