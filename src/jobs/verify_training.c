/* The forward that trains, for texts without labels. */
#include "verify-internal.h"

#include "parallel/algorithms.h"
#include "parallel/connect.h"
#include "pretrained/encodings.h"

enum { BATCH_ROWS = 512 }; /* of texts that share a batch */

/* A base, and the stack of adapters on it. */
struct trained {
    struct verify *verify;
    struct pretrained files;
    struct pretrained_encodings encodings;
    struct device *device;
    bool is_connected;
    struct rank_site site;
    struct rank rank;
    struct peft_files *adapters; /* NULL: the base itself trains */
    struct peft *peft;
    struct base *base;
    struct training_runner *runner;
    int64_t first_position, virtual_tokens; /* before the first row; rows before the first token */
    int64_t max_rows;
};

static int open_device(struct trained *t) {
    const struct job_model *model = t->verify->job->model;
    struct comm *world = t->verify->world;
    struct rank_site *site = &t->site;
    *site = (struct rank_site){.threads = (int)model->threads, .is_first_on_host = true, .is_first_in_process = true};
    int status = world->size > 1 ? rank_site_find(world, (int)model->threads, site) : STATUS_OK;
    THEN(status, device_open(model->device, rank_site_device(site, model->device), site->threads, &t->device));
    TRY(comm_agree(world, status));
    if (world->size > 1) {
        status = rank_connect(world, t->device, (enum collectives)model->collectives, 0);
        t->is_connected = !status;
        TRY(comm_agree(world, status));
    }
    TRY(algorithms_take(world->size > 1 ? world : NULL, t->device, model->gemm_algorithms));
    TRY(world->size > 1 ? rank_open(&t->rank, &model->grid, world, t->device, 0)
                        : rank_open_single(&t->rank, t->device, 0));
    if (model->batch_invariant == 1)
        rank_make_batch_invariant(&t->rank);
    return model->precision - 1 == PRECISION_TF32 ? rank_use_tf32(&t->rank) : STATUS_OK;
}

/* Opens the adapters' files, and refuses a text that has no place in the model's positions beside virtual tokens. */
static int open_files(struct trained *t) {
    struct verify *v = t->verify;
    const struct config_list *list = &v->job->model->adapters;
    int64_t positions = model_positions(&t->files.config);
    TRY(list->count ? peft_files_open(list->items, list->count, false, &t->adapters) : STATUS_OK);
    for (int i = 0; t->adapters && i < peft_files_count(t->adapters); i++) {
        t->virtual_tokens += peft_config_virtual_tokens(&peft_files_configs(t->adapters)[i]);
        t->first_position += peft_config_prefix_tokens(&peft_files_configs(t->adapters)[i]);
    }
    v->before = t->first_position + t->virtual_tokens;
    for (int64_t i = 0; i < v->count; i++)
        if (v->texts[i].count + v->before > positions)
            return status_fail(STATUS_INVALID, "text %lld has %lld tokens%s: the model has %lld positions",
                               (long long)i, (long long)(v->texts[i].count + v->before),
                               v->before ? " with its virtual tokens" : "", (long long)positions);
    return STATUS_OK;
}

static int open_stack(struct trained *t, const struct model_options *options) {
    const struct peft_options stack = {.adapters = peft_files_configs(t->adapters),
                                       .count = peft_files_count(t->adapters),
                                       .model = options,
                                       .directory = t->files.directory,
                                       .trains = true,
                                       .takes_tables = true};
    int status = peft_open(&stack, &t->rank, &t->peft);
    return status ? peft_explain_base(status, t->adapters, t->files.directory) : STATUS_OK;
}

static int sketch(struct trained *t, struct model_plan *plan) {
    struct verify *v = t->verify;
    int precision = v->job->model->precision - 1;
    int64_t rows = v->longest + t->virtual_tokens;
    struct model_options options = {
        .base.config = t->files.config,
        .base.dtype = precision >= 0 ? precision_dtype(precision) : pretrained_auto_dtype(&t->encodings),
        .base.trains = !t->adapters,
        .max_rows = rows < BATCH_ROWS ? BATCH_ROWS : rows,
    };
    t->max_rows = options.max_rows;
    v->precision = precision == PRECISION_TF32 ? "tf32" : options.base.dtype == DTYPE_BF16 ? "bf16" : "fp32";
    if (pretrained_describes(&t->encodings)) {
        options.base.encodings = pretrained_describes(&t->encodings);
        options.base.storage = &storage_packed;
        options.base.trains = false;
    }
    TRY(base_sketch(&options.base, &t->rank, plan, &t->base));
    TRY(t->adapters ? open_stack(t, &options) : STATUS_OK);
    options.hooks = t->peft ? peft_hooks(t->peft) : NULL;
    return training_sketch(&options, t->base, plan, &t->runner);
}

/* Refuses a plan beyond this host's memory. */
static int check_memory(struct trained *t, const struct model_plan *plan) {
    struct verify *v = t->verify;
    const struct param_store *adapters = t->peft ? peft_store(t->peft) : NULL;
    size_t device = plan->weights + plan->gradients + plan->activations + work_scratch(&t->rank.work);
    if (adapters)
        device += param_weight_bytes(adapters) + param_gradient_bytes(adapters) + peft_device_bytes(t->peft);
    size_t own = v->numbers + plan->transfers + (size_t)(t->max_rows * v->vocab) * sizeof(float) +
                 (device_uses_host_memory(v->job->model->device) ? device : 0);
    int64_t bytes = (int64_t)(own + (t->site.is_first_in_process ? memory_of_program(own) : 0));
    TRY(rank_site_sum(v->world, &t->site, &bytes, 1));
    v->planned = (size_t)bytes;
    const struct memory_limit limit = memory_limit_find("");
    return memory_check(v->planned, &limit, "shorter texts (--input), a smaller --precision, or " JOB_MEMORY_RANKS);
}

static int load(struct trained *t) {
    struct param_store *store = base_store(t->base);
    if (pretrained_describes(&t->encodings))
        return pretrained_load(&t->encodings, t->base, t->rank.exec.stream, true);
    struct ckpt_flat flat = ckpt_flat_weights(store, t->rank.exec.stream);
    flat.threads = device_threads(t->device);
    struct ckpt_array array = ckpt_flat_array(&flat, "", false);
    array.must_be_finite = array.heeds_stop = true;
    return ckpt_read(t->files.tensors, store->map.table, &array, 1);
}

static int open_trained(struct trained *t) {
    struct comm *world = t->verify->world;
    int status = open_files(t);
    TRY(comm_agree(world, status));
    struct model_plan plan = {0};
    status = open_device(t);
    THEN(status, sketch(t, &plan));
    status = comm_agree(world, status);
    THEN(status, comm_agree(world, check_memory(t, &plan)));
    THEN(status, base_allocate(t->base));
    THEN(status, training_allocate(t->runner));
    THEN(status, rank_allocate_workspace(&t->rank));
    THEN(status, load(t));
    TRY(comm_agree(world, status)); /* the next steps may sum over ranks */
    if (!t->peft)
        return STATUS_OK;
    TRY(peft_allocate(t->peft));
    peft_set_base(t->peft, base_store(t->base));
    TRY(peft_load(t->peft, t->adapters));
    return peft_begin(t->peft);
}

static void close_trained(struct trained *t) {
    training_close(t->runner);
    peft_close(t->peft);
    peft_files_close(t->adapters);
    base_close(t->base);
    if (t->rank.device)
        rank_close(&t->rank);
    if (t->is_connected)
        rank_disconnect(t->verify->world);
    device_close(t->device);
}

/* ---- batches ---- */

/* A batch of whole texts, and the logits of its rows. */
struct batch {
    int64_t rows;
    int32_t *tokens, *positions, *zeros; /* [max_rows] */
    float *weights;                      /* [max_rows] zero */
    int64_t *starts;                     /* [texts + 1] */
    float *logits;                       /* [max_rows, vocab] */
};

static int batch_open(const struct trained *t, struct batch *b) {
    size_t rows = (size_t)t->max_rows;
    *b = (struct batch){.tokens = calloc(rows, sizeof *b->tokens),
                        .positions = calloc(rows, sizeof *b->positions),
                        .zeros = calloc(rows, sizeof *b->zeros),
                        .weights = calloc(rows, sizeof *b->weights),
                        .starts = calloc((size_t)t->verify->count + 1, sizeof *b->starts),
                        .logits = malloc(rows * (size_t)t->verify->vocab * sizeof *b->logits)};
    return status_allocated(b->tokens && b->positions && b->zeros && b->weights && b->starts && b->logits);
}

static void batch_close(struct batch *b) {
    free(b->tokens);
    free(b->positions);
    free(b->zeros);
    free(b->weights);
    free(b->starts);
    free(b->logits);
}

static void batch_add(const struct trained *t, struct batch *b, const struct verify_text *text, int64_t segment) {
    int64_t rows = t->virtual_tokens + text->count;
    b->starts[segment] = b->rows;
    for (int64_t i = 0; i < rows; i++, b->rows++) {
        b->tokens[b->rows] =
            i < t->virtual_tokens ? (int32_t)(t->verify->vocab + i) : text->tokens[i - t->virtual_tokens];
        b->positions[b->rows] = (int32_t)(t->first_position + i);
    }
    b->starts[segment + 1] = b->rows;
}

/* Computes the log-probabilities of texts first .. end - 1 as one batch, on the first rank. */
static int run_batch(struct trained *t, struct batch *b, int64_t first, int64_t end) {
    struct verify *v = t->verify;
    b->rows = 0;
    for (int64_t i = first; i < end; i++)
        batch_add(t, b, &v->texts[i], i - first);
    const struct model_batch batch = {.rows = b->rows,
                                      .tokens = b->tokens,
                                      .positions = b->positions,
                                      .sample = (const uint32_t *)b->zeros,
                                      .token = (const uint32_t *)b->zeros,
                                      .segments = end - first,
                                      .segment_start = b->starts,
                                      .labels = b->zeros,
                                      .loss_weight = b->weights};
    int64_t elements = b->rows * v->vocab;
    for (int64_t i = 0; i < elements && v->tensor > 1; i++)
        b->logits[i] = 0; /* each rank sets its columns, and the sum joins them */
    TRY(model_logits(t->runner, &batch, b->logits));
    struct comm_data all = {.send = b->logits, .receive = b->logits, .count = elements, .dtype = DTYPE_F32};
    TRY(v->tensor > 1 ? comm_all_reduce(v->world, &all, COMM_SUM) : STATUS_OK);
    TRY(stop_check("while the trainer's forward ran"));
    return v->is_first ? verify_normalise(v, b->logits, b->rows) : STATUS_OK;
}

/* Runs all texts in batches of at most `most` texts. Rows become the reference, or are compared with it. */
static int run_texts(struct trained *t, struct batch *b, int64_t most, struct verify_path *path) {
    struct verify *v = t->verify;
    for (int64_t first = 0, end; first < v->count; first = end) {
        int64_t rows = 0;
        for (end = first; end < v->count && end - first < most; end++) {
            rows += t->virtual_tokens + v->texts[end].count;
            if (rows > t->max_rows)
                break;
        }
        TRY(run_batch(t, b, first, end));
        for (int64_t i = first; i < end && v->is_first; i++)
            for (int64_t k = 0; k < v->texts[i].count; k++) {
                const float *row = b->logits + (b->starts[i - first] + t->virtual_tokens + k) * v->vocab;
                if (path)
                    verify_compare(v, path, i, k, row);
                else
                    memcpy(verify_reference(v, i, k), row, (size_t)v->vocab * sizeof *row);
                TRY(path ? STATUS_OK : verify_dump_row(v->dump, VERIFY_TRAINING, i, k, row));
            }
    }
    return STATUS_OK;
}

int verify_training(struct verify *v) {
    struct trained t = {.verify = v};
    struct batch b = {0};
    struct verify_path path = {.name = "training"};
    int status = pretrained_open(v->job->model->model, v->world, &t.files);
    THEN(status, pretrained_encodings_open(&t.files, v->job->model->load_in, &t.encodings));
    THEN(status, open_trained(&t));
    THEN(status, batch_open(&t, &b));
    THEN(status, run_texts(&t, &b, 1, NULL));
    THEN(status, run_texts(&t, &b, v->count, &path));
    if (status)
        comm_fail(v->world, status); /* the others no longer touch this rank's memory */
    batch_close(&b);
    close_trained(&t);
    pretrained_encodings_close(&t.encodings);
    pretrained_close(&t.files);
    return status ? status : verify_tell(v, &path);
}
