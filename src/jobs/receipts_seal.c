/* The receipts of a run's saves: golden texts run through the forward that trains, which is the engine's. A save gets
 * its receipts before it appears. */
#include "receipts.h"

#include "infer/receipt.h"
#include "log_sum.h"

enum { ROWS = RECEIPT_TOKENS + 1 };

/* The receipts of a save, on the first rank. */
struct seal {
    int count;
    const struct peft_config *configs; /* [count] */
    struct receipt *receipts;          /* [count] */
    json_t *base;
};

static void end(void *context) {
    struct seal *seal = context;
    json_decref(seal->base);
    free(seal->receipts);
    free(seal);
}

/* ---- numbers ---- */

/* A save that begins, on one rank. */
struct making {
    struct receipts_maker *maker;
    struct trainer *trainer;
    struct receipt_text golden[RECEIPT_TEXTS]; /* the tokens */
    float *logits;                             /* [texts, ROWS, vocab] */
    int64_t vocab;
    bool is_first;
};

/* Sets the numbers of all texts from the logits, on the first rank. */
static int take(struct making *m, bool is_base, int count, struct receipt_text *golden) {
    int64_t tensor = trainer_rank(m->trainer)->grid.tensor;
    for (int t = 0; t < RECEIPT_TEXTS; t++) {
        float *rows = m->logits + t * count * m->vocab, logprobs[ROWS];
        for (int i = 0; i < count; i++) {
            float *row = rows + i * m->vocab;
            struct log_sum sum;
            TRY(log_sum_of(&m->maker->host_rank, row, m->vocab, tensor, &sum));
            logprobs[i] = log_sum_logprob(&sum, row[receipt_label(&golden[t], ROWS - count + i)]);
        }
        TRY(receipt_take_rows(&golden[t], is_base, count, m->vocab, logprobs, rows));
    }
    return STATUS_OK;
}

/* Runs the texts with one adapter of the stack, or without any (NULL). */
static int run(struct making *m, const struct peft_config *config, const struct hook_table *hooks,
               struct receipt_text *golden) {
    int32_t ids[RECEIPT_TEXTS][RECEIPT_TOKENS];
    for (int t = 0; t < RECEIPT_TEXTS; t++)
        memcpy(ids[t], m->golden[t].tokens, sizeof ids[t]);
    const struct train_texts texts = {.hooks = hooks,
                                      .count = RECEIPT_TEXTS,
                                      .tokens = RECEIPT_TOKENS,
                                      .ids = ids[0],
                                      .virtual_tokens = config ? peft_config_virtual_tokens(config) : 0,
                                      .first_position = config ? peft_config_prefix_tokens(config) : 0,
                                      .logits = m->logits};
    TRY(trainer_logits(m->trainer, &texts));
    return m->is_first ? take(m, !config, RECEIPT_TOKENS + (texts.virtual_tokens > 0), golden) : STATUS_OK;
}

/* ---- a save ---- */

/* Opens what all saves share, on the first rank. */
static int open_maker(struct receipts_maker *maker) {
    TRY(device_open(NULL, DEVICE_FIRST, 1, &maker->host));
    TRY(rank_open_single(&maker->host_rank, maker->host, 0));
    return receipt_describe_base(maker->run->model_directory, &maker->base);
}

void receipts_maker_close(struct receipts_maker *maker) {
    json_decref(maker->base);
    if (maker->host_rank.device)
        rank_close(&maker->host_rank);
    device_close(maker->host);
}

static int make_seal(const struct making *m, struct seal **out) {
    const struct receipts_maker *maker = m->maker;
    enum precision precision = maker->run->config.train.precision;
    struct seal *seal = *out = calloc(1, sizeof *seal);
    TRY(status_allocated(seal));
    *seal = (struct seal){.count = maker->count, .configs = maker->configs, .base = json_incref(maker->base)};
    seal->receipts = calloc((size_t)maker->count, sizeof *seal->receipts);
    TRY(status_allocated(seal->receipts));
    for (int i = 0; i < maker->count; i++) {
        receipt_describe_run(trainer_rank(m->trainer), precision_names[precision], &seal->receipts[i]);
        memcpy(seal->receipts[i].golden, maker->golden, sizeof maker->golden);
    }
    return STATUS_OK;
}

/* True when each adapter's texts fit into the trainer's batches and the model's positions, and the host sums logits as
 * the device does. */
static bool fits(const struct receipts_maker *maker, struct trainer *trainer) {
    int64_t positions = model_positions(&maker->run->config.model);
    bool does = device_host_reads(trainer_rank(trainer)->device);
    for (int i = 0; i < maker->count; i++) {
        int64_t rows = RECEIPT_TOKENS + peft_config_virtual_tokens(&maker->configs[i]);
        does = does && trainer_takes_texts(trainer, rows) &&
               rows + peft_config_prefix_tokens(&maker->configs[i]) <= positions;
    }
    return does;
}

static int begin(void *context, struct trainer *trainer, void **out) {
    struct receipts_maker *maker = context;
    struct comm *world = trainer_rank(trainer)->world;
    struct making m = {
        .maker = maker, .trainer = trainer, .vocab = maker->run->config.model.vocab_size, .is_first = world->rank == 0};
    struct seal *seal = NULL;
    if (!fits(maker, trainer)) /* receipts_add writes them when the run has ended */
        return STATUS_OK;
    m.logits = malloc((size_t)(RECEIPT_TEXTS * ROWS * m.vocab) * sizeof *m.logits);
    int64_t is_new = m.is_first && !maker->base;
    receipt_draw(m.vocab, m.golden);
    int status = status_allocated(m.logits);
    THEN_IF(status, is_new, open_maker(maker));
    status = comm_agree(world, status);
    THEN(status, job_share(world, &is_new, 1, DTYPE_I64));
    if (!status && is_new && m.is_first)
        memcpy(maker->golden, m.golden, sizeof m.golden);
    THEN_IF(status, is_new, run(&m, NULL, NULL, maker->golden));
    THEN(status, comm_agree(world, m.is_first ? make_seal(&m, &seal) : STATUS_OK));
    for (int i = 0; i < maker->count && !status; i++) {
        struct hook_table hooks = {0};
        status = comm_agree(world, peft_hooks_of(trainer_tuner(trainer), i, &hooks));
        THEN(status, run(&m, &maker->configs[i], &hooks, seal ? seal->receipts[i].golden : NULL));
        hook_table_free(&hooks);
    }
    free(m.logits);
    if (status && seal)
        end(seal);
    else
        *out = seal;
    return status ? status_wrap(status, "receipts") : STATUS_OK;
}

static int write_receipt(const struct seal *seal, int number, const char *directory) {
    char path[PATH_MAX], *text = NULL;
    struct peft_bytes bytes;
    TRY(peft_bytes_read(directory, ENGINE_ADAPTER_BYTES, &bytes));
    int status = receipt_write(&seal->receipts[number], &bytes, seal->base, &text);
    THEN(status, file_join(path, sizeof path, directory, PEFT_RECEIPT_FILE));
    THEN(status, file_write_atomic(path, text, strlen(text)));
    free(text);
    peft_bytes_free(&bytes);
    return status;
}

static int write_all(void *context, const char *directory) {
    const struct seal *seal = context;
    int status = STATUS_OK;
    for (int i = 0; seal && i < seal->count && !status; i++) {
        char path[PATH_MAX];
        status = seal->count == 1 ? file_join(path, sizeof path, directory, ".")
                                  : file_join(path, sizeof path, directory, peft_method_names[seal->configs[i].type]);
        THEN(status, write_receipt(seal, i, path));
    }
    return status ? status_wrap(status, "receipts") : STATUS_OK;
}

struct tuner_seal receipts_seal(struct receipts_maker *maker) {
    int64_t vocab = maker->run->config.model.vocab_size;
    return (struct tuner_seal){.begin = begin,
                               .write = write_all,
                               .end = end,
                               .context = maker,
                               .bytes =
                                   2 * RECEIPT_TEXTS * ROWS * (size_t)vocab * sizeof(float)}; /* with those under way */
}
