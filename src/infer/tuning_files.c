/* The files of a tuning run, in memory: those that it starts from, and those of a snapshot. */
#include "tuning-internal.h"

#include "infer/images.h"
#include "infer/receipt.h"

/* ---- the start ---- */

static int load_values(struct tuning_run *run, const struct ckpt_array *arrays) {
    struct ckpt_array values = optimizer_master_array(arrays);
    struct peft_files *files = NULL;
    int status = peft_files_open_bytes(run->start, (size_t)run->opening.start_count, &files);
    THEN(status, peft_read(run->lent.model.tuner.self, files, &values));
    peft_files_close(files);
    return status;
}

static int load_state(struct tuning_run *run, const struct ckpt_array *arrays, bool *has_master) {
    struct ckpt_tensors *tensors = NULL;
    int status = ckpt_open_adapter_bytes("state", "optimizer.safetensors", run->state, (size_t)run->opening.state_bytes,
                                         &tensors);
    THEN(status, optimizer_arrays_read(&run->lent.stepper, arrays, tensors, has_master));
    ckpt_close(tensors);
    return status;
}

int tuning_load(struct tuning_run *run) {
    struct optimizer_arrays *opened = NULL;
    const struct ckpt_array *arrays;
    bool has_master = false;
    if (!run->opening.start_count && !run->opening.state_bytes)
        return STATUS_OK;
    int status = optimizer_arrays_open(&run->lent.stepper, false, &opened, &arrays);
    THEN_IF(status, run->opening.state_bytes, load_state(run, arrays, &has_master));
    THEN_IF(status, run->opening.start_count && !has_master, load_values(run, arrays));
    optimizer_arrays_close(opened);
    TRY(tuning_agree(run->engine, status));
    return optimizer_round_weights(&run->lent.stepper.optimizer);
}

/* ---- a snapshot ---- */

/* Returns the name of a file within the directory of adapter `index`; NULL: it is not one of its. */
static const char *name_within(const struct tuning_run *run, int index, const char *path) {
    const char *method = peft_method_names[run->configs[index].type];
    size_t length = strlen(method);
    if (run->opening.adapter_count == 1)
        return path;
    return !strncmp(path, method, length) && path[length] == '/' ? path + length + 1 : NULL;
}

/* The tensors of all parts. */
struct part_files {
    struct ckpt_part parts[CKPT_MAX_PARTS];
    char *data[CKPT_MAX_PARTS];
    size_t length[CKPT_MAX_PARTS];
    int count;
};

static int write_parts(struct tuning_run *run, const struct ckpt_array *arrays, struct part_files *files) {
    struct ckpt_array values = optimizer_master_array(arrays);
    void *peft = run->lent.model.tuner.self;
    TRY(run->tuner.parts(peft, &values, files->parts, &files->count));
    TRY(run->tuner.refresh(peft));
    for (int i = 0; i < files->count; i++) {
        const struct ckpt_part *part = &files->parts[i];
        const struct ckpt_image image = {.name = part->name,
                                         .table = part->table,
                                         .arrays = part->weights,
                                         .array_count = 1,
                                         .world = run->engine->shared->holders};
        TRY(ckpt_write_image(&image, &files->data[i], &files->length[i]));
    }
    return STATUS_OK;
}

static int make_block(const struct peft_member *members, int count, struct adapter_files *files) {
    int status = peft_bytes_make("a tuning run", members, count, &files->bytes);
    files->bytes.fits_base = true;
    THEN(status, peft_bytes_digest(&files->bytes, files->digest));
    return status ? status : receipt_compare(&files->bytes);
}

static int make_files(const struct tuning_run *run, int index, const struct part_files *parts,
                      struct adapter_files *files) {
    enum { MOST = CKPT_MAX_PARTS + PEFT_TEXTS };
    struct peft_member members[MOST];
    char names[CKPT_MAX_PARTS][96];
    const char *name;
    int count = 0;
    for (int i = 0; i < parts->count; i++)
        if ((name = name_within(run, index, parts->parts[i].name))) {
            snprintf(names[i], sizeof names[i], "%s.safetensors", name);
            members[count++] = (struct peft_member){names[i], parts->data[i], parts->length[i]};
        }
    for (int i = 0; i < run->text_count && count < MOST; i++)
        if ((name = name_within(run, index, run->texts[i].name)))
            members[count++] = (struct peft_member){name, run->texts[i].text, strlen(run->texts[i].text)};
    return make_block(members, count, files);
}

static int write_state(struct tuning_run *run, const struct ckpt_array *arrays, struct tuning_snapshot *snapshot) {
    const struct ckpt_image image = {.name = "optimizer",
                                     .table = stepper_state_table(&run->lent.stepper),
                                     .arrays = arrays,
                                     .array_count = OPTIMIZER_ARRAYS,
                                     .world = run->engine->shared->holders};
    char *data;
    TRY(ckpt_write_image(&image, &data, &snapshot->state_bytes));
    snapshot->state = data;
    return STATUS_OK;
}

int tuning_make_snapshot(struct tuning_run *run, struct tuning_snapshot *snapshot) {
    struct optimizer_arrays *opened = NULL;
    const struct ckpt_array *arrays;
    struct part_files parts = {0};
    int status = tuning_share(run->engine, &snapshot->wants_state, sizeof snapshot->wants_state);
    THEN(status, optimizer_arrays_open(&run->lent.stepper, true, &opened, &arrays));
    THEN(status, write_parts(run, arrays, &parts));
    for (; snapshot->count < run->opening.adapter_count && run->engine->leader && !status; snapshot->count++)
        status = make_files(run, snapshot->count, &parts, &snapshot->files[snapshot->count]);
    THEN_IF(status, snapshot->wants_state, write_state(run, arrays, snapshot));
    optimizer_arrays_close(opened);
    for (int i = 0; i < parts.count; i++)
        free(parts.data[i]);
    if (!status && run->engine->leader)
        return STATUS_OK;
    for (int i = 0; i < PEFT_MAX_STACK; i++)
        adapter_files_free(&snapshot->files[i]);
    free(snapshot->state);
    snapshot->state = NULL;
    snapshot->count = 0;
    return status;
}

/* ---- receipts ---- */

/* The adapter runs as an image for a while, as one that clients name. */
static int make_receipt(struct engine *engine, const struct peft_bytes *bytes, json_t *base, char **text) {
    int image = engine_image_load(engine, bytes);
    if (image < 0)
        return image;
    int status = engine_make_receipt(engine, bytes, image, base, text);
    int dropped = engine_image_drop(engine, image);
    return status ? status : dropped;
}

static int add_receipt(struct engine *engine, json_t *base, struct adapter_files *files) {
    enum { MOST = CKPT_MAX_PARTS + PEFT_TEXTS };
    struct adapter_files made = {0};
    struct peft_member members[MOST + 1];
    char *text = NULL;
    int count = 0, status = make_receipt(engine, &files->bytes, base, &text);
    while (count < MOST && peft_bytes_file(&files->bytes, count, &members[count]))
        count++;
    if (!status) {
        members[count++] = (struct peft_member){PEFT_RECEIPT_FILE, text, strlen(text)};
        status = make_block(members, count, &made);
    }
    free(text);
    if (!status) {
        adapter_files_free(files);
        *files = made;
    }
    return status;
}

int tuning_add_receipts(struct tuning_run *run, struct tuning_snapshot *snapshot) {
    int status = STATUS_OK;
    for (int i = 0; i < snapshot->count && !status; i++) {
        status = engine_bank(run->engine) ? add_receipt(run->engine, snapshot->base, &snapshot->files[i]) : STATUS_OK;
        if (status == STATUS_INVALID || status == STATUS_MEMORY) {
            log_warning("no receipt for a tuned adapter: %s", status_text());
            status = STATUS_OK;
        }
    }
    return status;
}
