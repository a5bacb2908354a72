/* Compares ranks' calls over the host channel, in builds that check (CAMBIUM_CHECK_CALLS). */
#include "comm-internal.h"

/* A call as the ranks compare it. */
struct words {
    int64_t kind, op, peer, count, dtype;
};

static struct words words_of(const struct comm_call *call) {
    return (struct words){.kind = call->kind,
                          .op = call->op,
                          .peer = call->peer,
                          .count = call->data.count,
                          .dtype = (int64_t)call->data.dtype};
}

static struct comm_call call_of(const struct words *words) {
    return (struct comm_call){.kind = (enum comm_kind)words->kind,
                              .op = (enum comm_op)words->op,
                              .peer = (int)words->peer,
                              .data = {.count = words->count, .dtype = (enum dtype)words->dtype}};
}

static int fail(int rank, const struct comm_call *call, int other, const struct comm_call *theirs) {
    char texts[2][COMM_TEXT_BYTES];
    comm_describe(call, texts[0]);
    comm_describe(theirs, texts[1]);
    return status_fail(STATUS_INVALID, "different calls: rank %d %s, rank %d %s", rank, texts[0], other, texts[1]);
}

/* All ranks find the first one whose call is not rank 0's. */
static int check_collective(struct comm *comm, const struct comm_call *call) {
    struct words mine = words_of(call), *all = calloc((size_t)comm->size, sizeof *all);
    TRY(status_allocated(all));
    struct comm_data data = {.send = &mine, .receive = all, .count = sizeof mine, .dtype = DTYPE_U8};
    int status = comm_all_gather(comm, &data);
    struct comm_call first = call_of(&all[0]);
    for (int r = 1; r < comm->size && !status; r++) {
        struct comm_call theirs = call_of(&all[r]);
        if (!comm_calls_agree(&first, &theirs))
            status = fail(0, &first, r, &theirs);
    }
    free(all);
    return status;
}

/* It travels beside a message, and tells the receiver how the sender calls it. */
struct note {
    struct words words;
    struct comm_request request;
};

static int start_note(struct comm *comm, const struct comm_call *call, struct note *note) {
    struct comm_data data = {
        .send = &note->words, .receive = &note->words, .count = sizeof note->words, .dtype = DTYPE_U8};
    note->words = words_of(call);
    return call->kind == COMM_SEND ? comm_send_start(comm, &data, call->peer, &note->request)
                                   : comm_receive_start(comm, &data, call->peer, &note->request);
}

/* Counts the notes that have come, in *come. */
static int finish_note(struct comm *comm, const struct comm_call *call, struct note *note, size_t *come) {
    int status = comm_wait(&note->request);
    *come += !status;
    struct comm_call theirs = call_of(&note->words);
    bool agrees =
        call->kind == COMM_SEND || (theirs.data.count == call->data.count && theirs.data.dtype == call->data.dtype);
    return status || agrees ? status : fail(comm->rank, call, call->peer, &theirs);
}

/* Every message has a note, and the receiver compares it. */
static int check_messages(struct comm *comm, const struct comm_request *first) {
    size_t count = 0, i = 0, come = 0;
    for (const struct comm_request *at = first; at; at = at->next)
        count++;
    struct note *notes = calloc(count, sizeof *notes);
    int status = status_allocated(notes);
    for (const struct comm_request *at = first; at && !status; at = at->next)
        status = start_note(comm, &at->call, &notes[i++]);
    i = 0;
    for (const struct comm_request *at = first; at && !status; at = at->next)
        status = finish_note(comm, &at->call, &notes[i++], &come);
    if (come == count) /* else calls of the host channel may still use them: the run is over */
        free(notes);
    return status;
}

int comm_check_calls(struct comm *comm, const struct comm_request *first) {
    bool is_message = first->call.kind == COMM_SEND || first->call.kind == COMM_RECEIVE;
    return is_message ? check_messages(comm, first) : check_collective(comm, &first->call);
}
