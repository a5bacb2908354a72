/* Messages between the leader and the ranks that follow it: plans to them, results from them.
 *
 * The leader starts sends without waiting, in a ring, so a stage can work on one plan while the next is being sent. One
 * rank returns results, only to the leader. The leader posts the receive before it sends the plan. */
#include "engine-internal.h"

static struct comm_data data_of(const void *send, void *receive, size_t bytes) {
    return (struct comm_data){.send = send, .receive = receive, .count = (int64_t)bytes, .dtype = DTYPE_U8};
}

/* ---- the leader ---- */

static int followers(const struct engine *engine) {
    return engine->shared->holder_count - 1;
}

/* The rank that gives results: the first tensor rank of the last stage. */
static int drawing_holder(const struct engine *engine) {
    return (engine->shared->rank.grid.pipeline - 1) * engine->shared->rank.grid.tensor;
}

/* Returns the bytes of a step's masks. */
static size_t mask_bytes(const struct engine *engine, int64_t masks) {
    return (size_t)(masks * engine->mask_words) * sizeof(uint32_t);
}

/* Returns the bytes of the leader's block for a plan of `bytes`, and for masks where another rank draws. */
static size_t block_bytes(const struct engine *engine, size_t bytes) {
    bytes += drawing_holder(engine) ? mask_bytes(engine, engine->max_masks) : 0;
    return (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

size_t engine_link_bytes(const struct engine *engine) {
    size_t bytes = plan_block_bytes(&engine->most);
    bytes = engine_leads(engine) ? block_bytes(engine, bytes) : bytes;
    return followers(engine) == 0 ? 0 : engine_leads(engine) ? (size_t)engine_flights(engine) * bytes : bytes;
}

static int open_messages(struct engine *engine, size_t bytes) {
    struct engine_leader *leader = engine->leader;
    leader->messages = calloc((size_t)engine_flights(engine), sizeof *leader->messages);
    for (int i = 0; i < engine_flights(engine) && leader->messages; i++) {
        struct plan_message *message = &leader->messages[i];
        message->block = aligned_alloc(ARENA_ALIGNMENT, block_bytes(engine, bytes));
        message->sent = calloc(2 * (size_t)followers(engine), sizeof *message->sent);
        TRY(status_allocated(message->block && message->sent));
        message->masks = (char *)message->block + bytes;
    }
    return status_allocated(leader->messages);
}

static void close_messages(struct engine *engine) {
    struct engine_leader *leader = engine->leader;
    for (int i = 0; leader->messages && i < engine_flights(engine); i++) {
        struct plan_message *message = &leader->messages[i];
        for (int k = 0; message->sent && k < 2 * followers(engine); k++)
            comm_forget(&message->sent[k]);
        comm_forget(&message->masks_sent);
        free(message->block);
        free(message->sent);
    }
    free(leader->messages);
    leader->messages = NULL;
}

int engine_open_link(void *self) {
    struct engine *engine = self;
    size_t bytes = plan_block_bytes(&engine->most);
    if (!engine->shared->holders)
        return STATUS_OK;
    if (engine->leader) {
        int status = open_messages(engine, bytes);
        if (status)
            close_messages(engine);
        return status;
    }
    engine->follower->received = aligned_alloc(ARENA_ALIGNMENT, bytes);
    return status_allocated(engine->follower->received);
}

void engine_close_link(void *self) {
    struct engine *engine = self;
    if (engine->leader) {
        close_messages(engine);
        return;
    }
    free(engine->follower->received);
    engine->follower->received = NULL;
}

static int wait_for(struct engine *engine, struct plan_message *message) {
    int status = STATUS_OK;
    for (int i = 0; i < 2 * followers(engine) && !status; i++)
        status = comm_wait(&message->sent[i]);
    return status ? status : comm_wait(&message->masks_sent);
}

int engine_send_plan(struct engine *engine, const struct plan *plan) {
    if (!engine->shared->holders)
        return STATUS_OK;
    struct engine_leader *leader = engine->leader;
    struct plan_message *message = &leader->messages[leader->plan_number % engine_flights(engine)];
    int status = wait_for(engine, message);
    TRY(status);
    message->header = plan->header;
    message->header.base = engine - engine->shared->bases;
    message->header.number = leader->plan_number++;
    plan_pack(plan, message->block);
    struct comm_data header = data_of(&message->header, NULL, sizeof message->header);
    struct comm_data block = data_of(message->block, NULL, plan_block_bytes(&plan->header.counts));
    for (int i = 0; i < followers(engine) && !status; i++) {
        status = comm_send_start(engine->shared->holders, &header, i + 1, &message->sent[2 * i]);
        if (!status && block.count)
            status = comm_send_start(engine->shared->holders, &block, i + 1, &message->sent[2 * i + 1]);
    }
    return status;
}

int engine_send_masks(struct engine *engine) {
    struct engine_leader *leader = engine->leader;
    struct plan_message *message = &leader->messages[(leader->plan_number - 1) % engine_flights(engine)];
    TRY(engine_fill_masks(engine, message->masks));
    struct comm_data data = data_of(message->masks, NULL, mask_bytes(engine, message->header.masks));
    return comm_send_start(engine->shared->holders, &data, drawing_holder(engine), &message->masks_sent);
}

int engine_receive_masks(void *self, uint32_t *masks) {
    struct engine *engine = self;
    struct comm_data data = data_of(NULL, masks, mask_bytes(engine, engine->follower->masks));
    return comm_receive(engine->shared->holders, &data, 0);
}

int engine_expect_results(struct engine *engine, struct flight *flight) {
    struct comm_data data = data_of(NULL, flight->results, model_results_bytes(flight->wanted, flight->has_top));
    return comm_receive_start(engine->shared->holders, &data, drawing_holder(engine), &flight->arriving);
}

/* Waits until all that a base has sent, plans and rows, has arrived. */
static int end_base(struct engine *engine) {
    const struct engine_leader *leader = engine->leader;
    int status = STATUS_OK;
    for (int i = 0; leader && leader->messages && i < engine_flights(engine) && !status; i++)
        status = wait_for(engine, &leader->messages[i]);
    return status ? status : model_infer_end(engine->runner);
}

static int end_bases(struct engine_shared *shared) {
    int status = STATUS_OK;
    for (int i = 0; i < shared->count; i++)
        THEN(status, end_base(&shared->bases[i]));
    return status;
}

int engine_end(struct engine *engine) {
    struct engine_leader *leader = engine->leader;
    struct plan plan = {.header = {.kind = PLAN_END}};
    int status = leader && !leader->has_ended ? engine_send_plan(engine, &plan) : STATUS_OK;
    if (leader)
        leader->has_ended = true;
    return status ? status : end_bases(engine->shared);
}

struct comm_signs engine_signs_of(const struct engine *engine, int rank) {
    const struct comm *world = engine->options.world;
    return world ? comm_signs_of(world, rank) : (struct comm_signs){0};
}

/* ---- the followers ---- */

static int send_results(struct engine *engine, const struct plan *plan) {
    int64_t wanted = plan->header.counts.logit_rows;
    size_t bytes = model_results_bytes(wanted, plan->header.has_top);
    struct comm_data data = data_of(engine->follower->results, NULL, bytes);
    return wanted ? comm_send(engine->shared->holders, &data, 0) : STATUS_OK;
}

/* Receives a plan; *engine is its base. */
static int receive_plan(struct engine_shared *shared, struct plan *plan, struct engine **engine) {
    struct plan_header *h = &plan->header;
    struct comm_data header = data_of(NULL, h, sizeof *h);
    TRY(comm_receive_patient(shared->holders, &header, 0));
    if (h->base < 0 || h->base >= shared->count)
        return status_fail(STATUS_INVALID, "plan %lld is of base %lld: its ranks do not run one program",
                           (long long)h->number, (long long)h->base);
    *engine = &shared->bases[h->base];
    void *received = (*engine)->follower->received;
    TRY(plan_check(h, &(*engine)->most, (*engine)->max_masks));
    (*engine)->follower->masks = h->masks;
    plan_place(plan, &h->counts, received);
    struct comm_data block = data_of(NULL, received, plan_block_bytes(&h->counts));
    return block.count ? comm_receive(shared->holders, &block, 0) : STATUS_OK;
}

static int follow(struct engine *engine, const struct plan *plan) {
    struct model_step_result made;
    switch ((enum plan_kind)plan->header.kind) {
    case PLAN_STEP:
        made = model_results_at(engine->follower->results, plan->header.counts.logit_rows);
        double start = clock_seconds();
        int status = engine_run_plan(engine, plan);
        if (!status && plan->header.counts.rows && model_gives_results(engine->runner)) {
            status = model_infer_results(engine->runner, &made);
            THEN(status, send_results(engine, plan));
        }
        engine_load_beside(engine, clock_seconds() - start);
        return status;
    case PLAN_BYTES:
        return engine_take_bytes(engine, plan);
    case PLAN_LOAD:
        return engine_make_image(engine);
    case PLAN_DROP:
        return engine_forget_image(engine, plan->header.image);
    case PLAN_TUNE:
        return engine_tune(engine, &plan->header);
    case PLAN_END:
        return end_bases(engine->shared);
    }
    return status_fail(STATUS_INVALID, "plan %lld is of no kind", (long long)plan->header.number);
}

int engine_follow(struct engine *engine) {
    struct plan plan = {.header = {.kind = PLAN_STEP}};
    struct engine *base = engine;
    int status = STATUS_OK;
    while (engine->follower && plan.header.kind != PLAN_END && !status) {
        status = receive_plan(engine->shared, &plan, &base);
        THEN(status, follow(base, &plan));
    }
    return status;
}
