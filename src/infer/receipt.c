/* Golden texts through the engine, and what their log-probabilities prove. peft/receipt.h has the format. */
#include "engine-internal.h"

#include "kernels/algorithms.h"

#include <math.h>
#include <openssl/evp.h>

const char *const receipt_words[RECEIPT_WORDS] = {"none", "exact", "agrees", "refused"};

/* ---- golden texts ---- */

/* Pages of golden texts are shared with no other sequence. */
static const uint64_t golden_salt = UINT64_MAX;

/* The texts as rows of steps. */
struct golden_run {
    struct engine *engine;
    struct receipt_text *texts;
    int text_count;
    bool is_base;         /* the results are base_logprobs */
    bool hashes;          /* the rows of log-probabilities */
    int64_t most, wanted; /* limits of a step */
    struct engine_row *rows;
    struct engine_result *results;
    struct place { /* of each row */
        int text, token;
    } * places;
    float *logits; /* [wanted, V] */
    EVP_MD_CTX *digests[RECEIPT_TEXTS];
    int64_t count, wanting; /* rows of the step so far */
};

/* The natural log-probabilities of a row, in place of its logits: each differs from the label's, which the device
 * computed, as the logits do. */
static void log_softmax(float *row, int64_t vocab, int32_t label, float logprob) {
    double shift = (double)logprob - (double)row[label];
    for (int64_t j = 0; j < vocab; j++)
        row[j] = (float)((double)row[j] + shift);
}

static int take_results(struct golden_run *run) {
    int64_t V = engine_config(run->engine)->vocab_size, number = 0;
    bool has_rows = run->hashes && model_gives_results(run->engine->runner) && run->wanting;
    TRY(has_rows ? model_step_logits(run->engine->runner, run->wanting, run->logits) : STATUS_OK);
    for (int64_t i = 0; i < run->count; i++) {
        if (!run->rows[i].wants_logits)
            continue;
        struct receipt_text *text = &run->texts[run->places[i].text];
        float *row = run->logits + number++ * V, *logprobs = run->is_base ? text->base_logprobs : text->logprobs;
        int token = run->places[i].token;
        if (token < RECEIPT_TOKENS)
            logprobs[token] = run->results[i].label_logprob;
        if (!has_rows || token == 0)
            continue;
        log_softmax(row, V, run->rows[i].label, run->results[i].label_logprob);
        EVP_DigestUpdate(run->digests[run->places[i].text], row, (size_t)V * sizeof *row);
    }
    return STATUS_OK;
}

static int flush(struct golden_run *run) {
    if (!run->count)
        return STATUS_OK;
    TRY(engine_step_between(run->engine, run->rows, run->count, run->results));
    TRY(take_results(run));
    run->count = run->wanting = 0;
    return STATUS_OK;
}

/* Adds a row, after which token number `next` of the text is expected; -1: nothing is. */
static int add_row(struct golden_run *run, int sequence, int text, int32_t token, int next) {
    static const struct sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    if (run->count == run->most || (next >= 0 && run->wanting == run->wanted))
        TRY(flush(run));
    int32_t label = next < 0 ? -1 : receipt_label(&run->texts[text], next);
    run->places[run->count] = (struct place){.text = text, .token = next};
    run->rows[run->count++] = (struct engine_row){.token = token,
                                                  .sequence = sequence,
                                                  .wants_logits = next >= 0,
                                                  .label = label,
                                                  .sampling = next >= 0 ? &greedy : NULL};
    run->wanting += next >= 0;
    return STATUS_OK;
}

static int add_text(struct golden_run *run, int slot, int sequence, int text) {
    int64_t virtual_tokens = engine_slot_virtual_tokens(run->engine, slot);
    bool predicts = engine_slot_predicts_first(run->engine, slot);
    int status = STATUS_OK;
    for (int64_t i = 0; i < virtual_tokens && !status; i++)
        status = add_row(run, sequence, text, ENGINE_VIRTUAL_TOKEN, predicts && i + 1 == virtual_tokens ? 0 : -1);
    for (int i = 0; i < RECEIPT_TOKENS && !status; i++)
        status = add_row(run, sequence, text, run->texts[text].tokens[i], i + 1);
    return status;
}

/* Runs texts [first, end) in sequences that are open together. */
static int run_texts(struct golden_run *run, int slot, int first, int *end) {
    int sequences[RECEIPT_TEXTS], count = 0, status = STATUS_OK;
    int64_t pages = engine_pages_of(engine_slot_virtual_tokens(run->engine, slot) + RECEIPT_TOKENS);
    const struct sequence_beginning beginning = {.slot = slot, .salt = golden_salt};
    const struct kv_pool *pool = &run->engine->leader->pool;
    for (*end = first; *end < run->text_count && kv_pool_available(pool) >= (count + 1) * pages; ++*end) {
        int sequence = engine_sequence_open(run->engine, &beginning, NULL);
        if (sequence < 0)
            break;
        sequences[count++] = sequence;
    }
    if (!count && pages > pool->count)
        return status_fail(STATUS_INVALID, "a golden text takes %lld pages, and the KV cache has %lld",
                           (long long)pages, (long long)pool->count);
    if (!count)
        return status_fail(STATUS_MEMORY, "completions use the memory that replaying an adapter's receipt needs");
    for (int i = 0; i < count && !status; i++)
        status = add_text(run, slot, sequences[i], first + i);
    THEN(status, flush(run));
    for (int i = 0; i < count; i++)
        engine_sequence_close(run->engine, sequences[i]);
    return status;
}

static int open_run(struct golden_run *run) {
    struct engine *engine = run->engine;
    run->most = engine_max_rows(engine);
    run->wanted = model_step_logit_rows(engine->runner);
    int64_t rows = run->most < run->wanted ? run->most : run->wanted;
    rows = rows < RECEIPT_TEXTS * (RECEIPT_TOKENS + 1) ? rows : RECEIPT_TEXTS * (RECEIPT_TOKENS + 1);
    run->wanted = rows;
    run->rows = calloc((size_t)run->most, sizeof *run->rows);
    run->results = calloc((size_t)run->most, sizeof *run->results);
    run->places = calloc((size_t)run->most, sizeof *run->places);
    run->logits = malloc((size_t)(rows * engine_config(engine)->vocab_size) * sizeof(float));
    bool is_allocated = run->rows && run->results && run->places && run->logits;
    for (int t = 0; t < RECEIPT_TEXTS; t++) {
        run->digests[t] = EVP_MD_CTX_new();
        is_allocated = is_allocated && run->digests[t] && EVP_DigestInit_ex(run->digests[t], EVP_sha256(), NULL);
    }
    return status_allocated(is_allocated);
}

static void write_digits(EVP_MD_CTX *digest, char digits[PEFT_SHA256_BYTES]) {
    unsigned char number[EVP_MAX_MD_SIZE];
    if (EVP_DigestFinal_ex(digest, number, NULL))
        for (int i = 0; i < (PEFT_SHA256_BYTES - 1) / 2; i++)
            snprintf(digits + 2 * i, 3, "%02x", number[i]);
}

static void close_run(struct golden_run *run) {
    for (int t = 0; t < RECEIPT_TEXTS; t++) {
        if (run->hashes && run->digests[t] && model_gives_results(run->engine->runner))
            write_digits(run->digests[t], run->texts[t].rows_sha256);
        EVP_MD_CTX_free(run->digests[t]);
    }
    free(run->rows);
    free(run->results);
    free(run->places);
    free(run->logits);
}

/* Computes the log-probabilities of the tokens of texts [count] with a slot; -1: those of the base. */
static int run_golden(struct engine *engine, int slot, bool hashes, int count, struct receipt_text *texts) {
    struct golden_run run = {
        .engine = engine, .texts = texts, .text_count = count, .is_base = slot < 0, .hashes = hashes};
    int status = open_run(&run);
    for (int t = 0; t < count; t++) {
        (slot < 0 ? texts[t].base_logprobs : texts[t].logprobs)[0] = NAN;
        if (slot >= 0)
            *texts[t].rows_sha256 = 0;
    }
    for (int t = 0; t < count && !status;)
        status = run_texts(&run, slot, t, &t);
    close_run(&run);
    return status;
}

static bool has_same_tokens(const struct receipt_text *a, const struct receipt_text *b) {
    bool is_same = true;
    for (int t = 0; t < RECEIPT_TEXTS; t++)
        is_same = is_same && !memcmp(a[t].tokens, b[t].tokens, sizeof a[t].tokens);
    return is_same;
}

/* The same with the adapter of an image for the first `count` texts, and without it for all. What the base says is
 * computed once for an engine. */
static int run_both(struct engine *engine, int image, bool hashes, int count,
                    struct receipt_text texts[RECEIPT_TEXTS]) {
    struct engine_leader *leader = engine->leader;
    int slot, status = STATUS_OK;
    for (int t = 0; t < RECEIPT_TEXTS; t++)
        TRY(engine_check_tokens(engine, -1, "a golden text of ", texts[t].tokens, RECEIPT_TOKENS));
    if (!leader->base || !has_same_tokens(leader->base, texts)) {
        TRY(run_golden(engine, -1, false, RECEIPT_TEXTS, texts));
        leader->base = leader->base ? leader->base : calloc(RECEIPT_TEXTS, sizeof *leader->base);
        TRY(status_allocated(leader->base));
        memcpy(leader->base, texts, RECEIPT_TEXTS * sizeof *texts);
    }
    for (int t = 0; t < RECEIPT_TEXTS; t++)
        memcpy(texts[t].base_logprobs, leader->base[t].base_logprobs, sizeof texts[t].base_logprobs);
    TRY(engine_slot_open(engine, &image, 1, &slot));
    status = engine_check_tokens(engine, slot, "a golden text of ", texts[0].tokens, RECEIPT_TOKENS);
    THEN(status, run_golden(engine, slot, hashes, count, texts));
    engine_slot_close(engine, slot);
    return status;
}

int receipt_take_rows(struct receipt_text *text, bool is_base, int count, int64_t vocab, const float *label_logprobs,
                      float *rows) {
    float *logprobs = is_base ? text->base_logprobs : text->logprobs;
    EVP_MD_CTX *digest = EVP_MD_CTX_new();
    int status = status_allocated(digest && EVP_DigestInit_ex(digest, EVP_sha256(), NULL));
    logprobs[0] = NAN;
    for (int i = 0, token = RECEIPT_TOKENS + 1 - count; i < count && !status; i++, token++) {
        float *row = rows + i * vocab;
        if (token < RECEIPT_TOKENS)
            logprobs[token] = label_logprobs[i];
        if (is_base || token == 0)
            continue;
        log_softmax(row, vocab, receipt_label(text, token), label_logprobs[i]);
        EVP_DigestUpdate(digest, row, (size_t)vocab * sizeof *row);
    }
    if (!status && !is_base)
        write_digits(digest, text->rows_sha256);
    EVP_MD_CTX_free(digest);
    return status;
}

/* ---- this run ---- */

void receipt_describe_run(const struct rank *rank, const char *precision, struct receipt *receipt) {
    const char *text = device_description(rank->device), *of_gpu = strstr(text, "sm_"), *of_cpu = strrchr(text, ' ');
    const char *level = of_gpu ? of_gpu : of_cpu ? of_cpu + 1 : text;
    struct receipt_run *run = &receipt->run;
    *run = (struct receipt_run){.tensor_parallel = rank->grid.tensor,
                                .batch_invariant = device_is_batch_invariant(rank->device)};
    snprintf(run->precision, sizeof run->precision, "%s", precision);
    snprintf(run->device, sizeof run->device, "%.*s", (int)strcspn(text, ", :"), text);
    snprintf(run->level, sizeof run->level, "%.*s", (int)strcspn(level, ","), level);
    snprintf(receipt->version, sizeof receipt->version, "%s", CAMBIUM_VERSION);
    snprintf(receipt->commit, sizeof receipt->commit, "%s", CAMBIUM_COMMIT);
}

/* ---- comparing ---- */

struct comparison {
    const struct receipt *receipt;
    struct receipt here;
    bool is_same_run, may_differ; /* may_differ: another run or program, or a device whose sums vary */
    double bound;                 /* of the root of the mean square */
};

static bool is_same_run(const struct receipt_run *a, const struct receipt_run *b) {
    return !strcmp(a->precision, b->precision) && !strcmp(a->device, b->device) && !strcmp(a->level, b->level) &&
           a->tensor_parallel == b->tensor_parallel && a->batch_invariant == b->batch_invariant;
}

static bool is_fp32(const struct receipt_run *run) {
    return !strcmp(run->precision, "fp32");
}

/* Returns a difference, where both sides predict the token; NaN counts as infinite. */
static double difference(float a, float b) {
    if (isnan(a) && isnan(b))
        return 0;
    return isnan(a) || isnan(b) ? INFINITY : fabs((double)a - (double)b);
}

/* Returns the root of the mean square over all tokens that are predicted, and the largest difference. */
static double rms(const struct receipt_text *a, const struct receipt_text *b, bool of_base, double *largest) {
    double sum = 0;
    int count = 0;
    *largest = 0;
    for (int t = 0; t < RECEIPT_TEXTS; t++)
        for (int i = 0; i < RECEIPT_TOKENS; i++) {
            float x = of_base ? a[t].base_logprobs[i] : a[t].logprobs[i];
            float y = of_base ? b[t].base_logprobs[i] : b[t].logprobs[i];
            double d = difference(x, y);
            sum += d * d;
            count += !isnan(x);
            *largest = d > *largest ? d : *largest;
        }
    return count ? sqrt(sum / count) : 0;
}

/* Returns how far the adapter moves the base in the receipt. */
static double effect(const struct receipt_text *texts) {
    double sum = 0;
    int count = 0;
    for (int t = 0; t < RECEIPT_TEXTS; t++)
        for (int i = 1; i < RECEIPT_TOKENS; i++, count++) {
            double d = difference(texts[t].logprobs[i], texts[t].base_logprobs[i]);
            sum += d * d;
        }
    return sqrt(sum / count);
}

static bool has_same_rows(const struct receipt_text *a, const struct receipt_text *b) {
    for (int t = 0; t < RECEIPT_TEXTS; t++)
        if (*a[t].rows_sha256 && *b[t].rows_sha256 && strcmp(a[t].rows_sha256, b[t].rows_sha256) != 0)
            return false;
    return true;
}

/* Names the token with the largest difference of log-probability, or the text whose rows differ. */
static int fail_token(const struct comparison *c, const char *directory, bool of_base) {
    const struct receipt_text *there = c->receipt->golden, *here = c->here.golden;
    double largest = 0;
    int text = 0, token = -1;
    for (int t = 0; t < RECEIPT_TEXTS; t++)
        for (int i = 0; i < RECEIPT_TOKENS; i++) {
            double d = of_base ? difference(there[t].base_logprobs[i], here[t].base_logprobs[i])
                               : difference(there[t].logprobs[i], here[t].logprobs[i]);
            if (d > largest) {
                largest = d;
                text = t;
                token = i;
            }
        }
    for (int t = 0; t < RECEIPT_TEXTS && token < 0; t++)
        text = strcmp(there[t].rows_sha256, here[t].rows_sha256) ? t : text;
    if (token < 0)
        return status_fail(STATUS_INVALID,
                           "%s: golden text %d: rows_sha256 is not the one in its receipt (%.8s, not %.8s)", directory,
                           text, here[text].rows_sha256, there[text].rows_sha256);
    return status_fail(STATUS_INVALID,
                       "%s: golden text %d, token %d: the log-probability%s is %a, and %a in its receipt", directory,
                       text, token, of_base ? " of the base" : "",
                       (double)(of_base ? here[text].base_logprobs : here[text].logprobs)[token],
                       (double)(of_base ? there[text].base_logprobs : there[text].logprobs)[token]);
}

/* Golden texts are noise, on which precisions may differ by more than the bound. If every tensor of the base is the one
 * in the receipt, the base's difference is that of the precisions, and the adapter's may be this many times as large.
 */
enum { PRECISION_FACTOR = 4 };

/* The base's numbers differ: refuses it, unless its tensors are those of the receipt and the run is another one. */
static int refuse_base(const struct engine *engine, const struct comparison *c, const struct peft_bytes *bytes) {
    bool is_known = json_is_object(json_object_get(c->receipt->root, "base")) && !engine->options.random;
    TRY(is_known ? receipt_check_base(c->receipt, bytes->directory, engine->directory) : STATUS_OK);
    TRY(receipt_check_adapter(c->receipt, bytes));
    return is_known && strcmp(c->receipt->run.precision, c->here.run.precision) != 0
               ? STATUS_OK
               : fail_token(c, bytes->directory, true);
}

static int compare(const struct engine *engine, struct comparison *c, const struct peft_bytes *bytes,
                   struct receipt_result *result) {
    const struct receipt_text *there = c->receipt->golden, *here = c->here.golden;
    double base_gap, e = effect(there), base = rms(there, here, true, &base_gap);
    double d = rms(there, here, false, &result->gap);
    bool is_exact = c->is_same_run && !base_gap && !result->gap && has_same_rows(there, here);
    if (c->may_differ ? !(base <= c->bound) : base_gap > 0)
        TRY(refuse_base(engine, c, bytes));
    TRY(receipt_check_adapter(c->receipt, bytes));
    double bound = base > c->bound ? PRECISION_FACTOR * base : c->bound;
    bool agrees = c->may_differ && d <= bound && (d <= e / 2 || e < bound);
    if (!is_exact && !agrees)
        return fail_token(c, bytes->directory, false);
    result->word = is_exact ? RECEIPT_EXACT : RECEIPT_AGREES;
    return STATUS_OK;
}

/* ---- without a receipt ---- */

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static bool changes_text(const struct receipt_text *text) {
    bool changes = false;
    for (int i = 1; i < RECEIPT_TOKENS; i++)
        changes = changes || difference(text->logprobs[i], text->base_logprobs[i]) > 0;
    return changes;
}

/* Warns by name. The first text was run: the others are where it does not change. */
static int check_other(struct engine *engine, const struct peft_bytes *bytes, int image, struct receipt_text *texts) {
    struct peft_files *files;
    bool changes = changes_text(texts);
    int status = peft_files_open_bytes(bytes, 1, &files);
    const char *base = status ? NULL : peft_files_configs(files)->base_name;
    if (base && strcmp(last_part(base), last_part(engine->directory)) != 0 && !engine->options.random)
        log_warning("base_name_differs: %s was trained on %s, and the base is %s", bytes->directory, base,
                    engine->directory);
    THEN_IF(status, !changes, run_both(engine, image, false, RECEIPT_TEXTS, texts));
    for (int t = 1; t < RECEIPT_TEXTS && !status; t++)
        changes = changes || changes_text(&texts[t]);
    if (!status && !changes)
        log_warning("adapter_changes_nothing: %s moves no log-probability of the golden texts", bytes->directory);
    peft_files_close(files);
    return status;
}

/* ---- the whole ---- */

static int replay(struct engine *engine, const struct peft_bytes *bytes, int image, const struct receipt *receipt,
                  bool is_there, struct receipt_result *result) {
    struct comparison c = {.receipt = receipt};
    receipt_describe_run(engine_rank(engine), engine_precision(engine), &c.here);
    if (is_there)
        memcpy(c.here.golden, receipt->golden, sizeof c.here.golden);
    else
        receipt_draw(engine_config(engine)->vocab_size, c.here.golden);
    c.is_same_run = is_there && is_same_run(&receipt->run, &c.here.run);
    int status = run_both(engine, image, c.is_same_run, is_there ? RECEIPT_TEXTS : 1, c.here.golden);
    if (status == STATUS_INVALID && is_there) /* the base cannot run the texts */
        return status_wrap(status, "%s: its receipt", bytes->directory);
    if (status == STATUS_INVALID) /* with its virtual tokens, no golden text fits into the positions */
        return STATUS_OK;
    if (status || !is_there)
        return status ? status : check_other(engine, bytes, image, c.here.golden);
    c.may_differ = !c.is_same_run || strcmp(receipt->version, c.here.version) != 0 ||
                   strcmp(receipt->commit, c.here.commit) != 0 || !c.here.run.batch_invariant;
    c.bound = is_fp32(&receipt->run) && is_fp32(&c.here.run) ? 2e-3 : 0.08;
    return compare(engine, &c, bytes, result);
}

int engine_replay(struct engine *engine, const struct peft_bytes *bytes, int image, struct receipt_result *result) {
    struct receipt receipt;
    bool is_there;
    *result = (struct receipt_result){0};
    if (engine->options.receipts == RECEIPTS_OFF)
        return STATUS_OK;
    struct peft_notes notes;
    TRY(peft_bytes_notes(bytes, &notes));
    TRY(receipt_read(bytes, &is_there, &receipt));
    /* A base in other bits, of which a warning tells, has other numbers. */
    bool has_same_bits = peft_quantization_equals(&notes.quantization, &engine->quantization);
    int status = is_there && !has_same_bits ? receipt_check_adapter(&receipt, bytes)
                 : is_there || engine->options.receipts != RECEIPTS_REQUIRE
                     ? replay(engine, bytes, image, &receipt, is_there, result)
                     : receipt_fail_none(bytes->directory);
    receipt_free(&receipt);
    return status;
}

int engine_replay_opened(struct engine *engine) {
    struct engine_leader *leader = engine->leader;
    int images[PEFT_SLOT_IMAGES], status = STATUS_OK;
    if (!engine->options.adapter_count || engine->options.receipts == RECEIPTS_OFF)
        return STATUS_OK;
    if (leader)
        engine_slot_images(engine, leader->opened_slot, images);
    for (size_t i = 0; leader && i < leader->opened_count; i++) {
        struct receipt_result result;
        THEN(status, engine_replay(engine, &leader->opened[i], images[i], &result));
        peft_bytes_free(&leader->opened[i]);
    }
    int ended = leader ? engine_end(engine) : engine_follow(engine);
    if (leader) {
        leader->has_ended = false; /* the other ranks follow again */
        leader->opened_count = 0;
    }
    status = status ? status : ended;
    return engine->options.world ? comm_agree(engine->options.world, status) : status;
}

int engine_make_receipt(struct engine *engine, const struct peft_bytes *bytes, int image, json_t *base, char **text) {
    struct receipt receipt = {0};
    receipt_describe_run(engine_rank(engine), engine_precision(engine), &receipt);
    receipt_draw(engine_config(engine)->vocab_size, receipt.golden);
    TRY(run_both(engine, image, true, RECEIPT_TEXTS, receipt.golden));
    return receipt_write(&receipt, bytes, base, text);
}
