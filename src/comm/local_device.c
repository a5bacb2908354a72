/* The device channel of threads that share a GPU. A member marks by an event where its buffers are ready, and starts
 * the call on the host. The last one to start finds all buffers there, and queues the work for all (local_card.c). Each
 * member then makes its stream wait for its own event, which the work has moved to its end. The host waits for no
 * device, and no byte goes through it. */
#include "local-internal.h"

static struct local_card *card_of(const struct comm *comm) {
    return comm->device_state;
}

/* ---- events ---- */

/* Opens an event. There is room to give it back. */
static int open_event(struct local_card *card, struct event **event) {
    struct event **more = realloc(card->unused, (size_t)(card->room + 1) * sizeof *more);
    TRY(status_allocated(more));
    card->unused = more;
    int status = event_open(card->device, event);
    card->room += !status;
    return status;
}

static int take_event(struct local_card *card, struct event **event) {
    if (!card->unused_count)
        return open_event(card, event);
    *event = card->unused[--card->unused_count];
    return STATUS_OK;
}

static void forget(struct comm_request *request) {
    struct local_card *card = card_of(request->comm);
    card->unused[card->unused_count++] = request->kept;
    request->kept = NULL;
}

/* ---- the channel ---- */

static int start(struct comm *comm, struct comm_request *request) {
    struct event *event;
    TRY(take_event(card_of(comm), &event));
    request->kept = event;
    int status = event_record(event, request->call.data.stream);
    THEN(status, local_start(comm, request));
    if (status)
        forget(request);
    return status;
}

static int wait(struct comm *comm, struct comm_request *request, struct stream *stream) {
    int status = local_finish(comm, request);
    THEN(status, stream_wait_event(stream, request->kept));
    forget(request);
    return status;
}

static int open_card(struct comm *group, struct device *device) {
    struct local_card *card = calloc(1, sizeof *card);
    TRY(status_allocated(card));
    card->device = device;
    group->device_state = card;
    return STATUS_OK;
}

static int join(struct comm *parent, const int *ranks, struct comm *group) {
    return group ? open_card(group, card_of(parent)->device) : STATUS_OK;
}

/* Other members may still wait for events of the work that this one has queued. */
static void leave(struct comm *group) {
    struct local_card *card = card_of(group);
    if (!card)
        return;
    if (card->stream)
        stream_wait(card->stream);
    for (int i = 0; i < card->unused_count; i++)
        event_close(card->unused[i]);
    stream_close(card->stream);
    free(card->unused);
    free(card);
}

const struct comm_device_channel comm_device_local_card = {.name = "on a GPU",
                                                           .is_ordered = true,
                                                           .start = start,
                                                           .wait = wait,
                                                           .forget = forget,
                                                           .join = join,
                                                           .leave = leave};

int local_use_device(struct comm *comm, struct device *device) {
    int64_t mine = device_card(device), cards[REDUCE_MOST];
    if (comm->device != &comm_device_over_host && comm->device != &comm_device_local_card)
        return STATUS_OK; /* its own channel */
    comm_leave_device_channel(comm);
    if (comm->size > REDUCE_MOST)
        return STATUS_OK;
    int status = comm_all_gather(comm, &(const struct comm_data){&mine, cards, 1, DTYPE_I64, NULL});
    bool is_one = !status && mine >= 0;
    for (int m = 0; m < comm->size && is_one; m++)
        is_one = cards[m] == mine;
    if (status || !is_one)
        return status;
    comm->device = &comm_device_local_card;
    return open_card(comm, device);
}
