/* Images on all ranks: one rank reads an adapter's files, once; the others get the bytes. */
#include "engine-internal.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 256 << 10 };

int64_t engine_piece_bytes(void) {
    return PIECE_BYTES;
}

static int agree(const struct engine *engine, int status) {
    return engine->holders ? comm_agree(engine->holders, status) : status;
}

/* One adapter's bytes into an image; its number, the same on all ranks, or why not: then no rank has it. */
static int make_image(struct engine *engine, const struct peft_bytes *bytes, int status) {
    struct peft_files *files = NULL;
    if (!status)
        status = peft_files_open_bytes(bytes, 1, &files);
    if (!status && !engine->options.random && engine_is_leader(engine))
        status = peft_files_check_base(files, engine->directory);
    status = agree(engine, status); /* what follows may sum over ranks */
    int image = status ? status : peft_bank_load(engine->bank, files, 0);
    if (!status)
        status = agree(engine, image < 0 ? image : STATUS_OK);
    if (status && image >= 0)
        peft_bank_drop(engine->bank, image);
    peft_files_close(files);
    return status ? status : image;
}

/* ---- at the opening ---- */

static int share(struct engine *engine, void *data, int64_t count, enum dtype dtype) {
    struct comm_data moved = {.send = data, .receive = data, .count = count, .dtype = dtype};
    return engine->options.world ? comm_broadcast(engine->options.world, &moved, 0) : STATUS_OK;
}

/* From the first rank of the world to all. */
static int share_bytes(struct engine *engine, struct peft_bytes *bytes) {
    bool is_first = !engine->options.world || engine->options.world->rank == 0;
    int64_t lengths[2] = {(int64_t)bytes->length, is_first ? (int64_t)strlen(bytes->directory) + 1 : 0};
    int status = share(engine, lengths, 2, DTYPE_I64);
    if (!status && !is_first) {
        *bytes = (struct peft_bytes){
            .directory = malloc((size_t)lengths[1]), .data = malloc((size_t)lengths[0]), .length = (size_t)lengths[0]};
        if (!bytes->directory || !bytes->data)
            status = status_fail(STATUS_MEMORY, "out of memory");
    }
    if (engine->options.world)
        status = comm_agree(engine->options.world, status);
    if (!status)
        status = share(engine, bytes->directory, lengths[1], DTYPE_U8);
    return status ? status : share(engine, bytes->data, lengths[0], DTYPE_U8);
}

struct found {
    char **names; /* [name_count] of the first rank */
    size_t name_count, count;
    struct peft_bytes *bytes; /* [count] */
};

/* The first rank of the world finds and reads; *count is the same on all. */
static int find_adapters(struct engine *engine, struct found *found) {
    const struct engine_options *o = &engine->options;
    bool is_first = !o->world || o->world->rank == 0;
    int status = is_first ? peft_find(o->adapters, o->adapter_count, &found->names, &found->name_count) : STATUS_OK;
    found->count = found->name_count;
    if (!status && found->count > PEFT_SLOT_IMAGES)
        status =
            status_fail(STATUS_USAGE, "%zu adapters for one text: expected at most %d", found->count, PEFT_SLOT_IMAGES);
    if (o->world)
        status = comm_agree(o->world, status);
    int64_t count = (int64_t)found->count;
    if (!status)
        status = share(engine, &count, 1, DTYPE_I64);
    found->count = status ? 0 : (size_t)count;
    found->bytes = calloc(found->count + 1, sizeof *found->bytes);
    if (!status && !found->bytes)
        status = status_fail(STATUS_MEMORY, "out of memory");
    for (size_t i = 0; i < found->count && is_first && !status; i++)
        status = peft_bytes_read(found->names[i], ENGINE_ADAPTER_BYTES, &found->bytes[i]);
    if (o->world)
        status = comm_agree(o->world, status);
    for (size_t i = 0; i < found->count && !status; i++)
        status = share_bytes(engine, &found->bytes[i]);
    return status;
}

static void forget_found(struct found *found) {
    for (size_t i = 0; found->bytes && i < found->count; i++)
        peft_bytes_free(&found->bytes[i]);
    free(found->bytes);
    if (found->names)
        file_list_free(found->names, found->name_count);
}

/* Memory for what the options name, beside what they say. */
static int allocate(struct engine *engine, const struct found *found) {
    size_t bytes = engine->options.adapter_memory;
    int status = STATUS_OK;
    for (size_t i = 0; i < found->count && !status; i++) {
        struct peft_files *files;
        size_t one = 0;
        status = peft_files_open_bytes(&found->bytes[i], 1, &files);
        if (!status)
            status = peft_bank_image_bytes(engine->bank, peft_files_configs(files), &one);
        peft_files_close(files);
        bytes += one;
    }
    return status ? status : peft_bank_allocate(engine->bank, bytes);
}

int engine_open_images(struct engine *engine) {
    struct found found = {0};
    int images[PEFT_SLOT_IMAGES], status = STATUS_OK;
    engine->opened_slot = -1;
    if (!engine->bank)
        return STATUS_OK;
    peft_bank_set_base(engine->bank, model_store(engine->model));
    if (engine->options.adapter_count)
        status = find_adapters(engine, &found);
    if (!status)
        status = agree(engine, allocate(engine, &found));
    for (size_t i = 0; i < found.count && !status; i++) {
        images[i] = make_image(engine, &found.bytes[i], STATUS_OK);
        status = images[i] < 0 ? images[i] : STATUS_OK;
    }
    if (!status && found.count)
        status = engine_slot_open(engine, images, (int)found.count, &engine->opened_slot);
    forget_found(&found);
    return status;
}

/* ---- while the model is open ---- */

static int send_bytes(struct engine *engine, const struct peft_bytes *bytes) {
    struct plan plan = {.header = {.kind = PLAN_BYTES, .total = (int64_t)bytes->length}};
    int status = STATUS_OK;
    for (size_t done = 0; done < bytes->length && !status; done += PIECE_BYTES) {
        size_t left = bytes->length - done;
        plan.header.offset = (int64_t)done;
        plan.header.counts.bytes = left < PIECE_BYTES ? (int64_t)left : PIECE_BYTES;
        plan.bytes = (char *)bytes->data + done;
        status = engine_send_plan(engine, &plan);
    }
    return status;
}

int engine_image_load(struct engine *engine, const struct peft_bytes *bytes) {
    struct plan plan = {.header = {.kind = PLAN_LOAD}};
    if (!engine->bank)
        return status_fail(STATUS_UNSUPPORTED, "an engine that was opened without memory for adapters");
    int status = engine->holders ? send_bytes(engine, bytes) : STATUS_OK;
    if (!status)
        status = engine_send_plan(engine, &plan);
    return status ? status : make_image(engine, bytes, STATUS_OK);
}

size_t engine_adapter_bytes(const struct engine *engine) {
    return engine->bank ? peft_bank_used(engine->bank) : 0;
}

size_t engine_image_bytes(const struct engine *engine, int image) {
    return peft_bank_bytes_of(engine->bank, image);
}

int64_t engine_image_stem(const struct engine *engine, int image) {
    return peft_bank_prefix_tokens(engine->bank, image) + peft_bank_virtual_tokens(engine->bank, image);
}

int engine_image_drop(struct engine *engine, int image) {
    struct plan plan = {.header = {.kind = PLAN_DROP, .image = image}};
    engine_forget_slots(engine, image);
    int status = engine_send_plan(engine, &plan);
    return status ? status : engine_forget_image(engine, image);
}

int engine_forget_image(struct engine *engine, int image) {
    peft_bank_drop(engine->bank, image);
    return STATUS_OK;
}

/* A follower has as many bytes as the leader says there will be. */
int engine_take_bytes(struct engine *engine, const struct plan *plan) {
    const struct plan_header *h = &plan->header;
    struct peft_bytes *arriving = &engine->arriving;
    if (h->offset == 0) {
        peft_bytes_free(arriving);
        *arriving = (struct peft_bytes){
            .directory = strdup("an adapter"), .data = malloc((size_t)h->total), .length = (size_t)h->total};
    }
    bool fits = h->offset >= 0 && h->counts.bytes <= (int64_t)arriving->length - h->offset;
    if (arriving->data && fits) /* without memory the vote is against it */
        memcpy((char *)arriving->data + h->offset, plan->bytes, (size_t)h->counts.bytes);
    return STATUS_OK;
}

int engine_make_image(struct engine *engine) {
    bool has_all = engine->arriving.data && engine->arriving.directory;
    int status = has_all ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory for an adapter's files");
    int image = make_image(engine, &engine->arriving, status);
    peft_bytes_free(&engine->arriving);
    engine->arriving = (struct peft_bytes){0};
    (void)image; /* why there is none is the leader's to say */
    return STATUS_OK;
}
