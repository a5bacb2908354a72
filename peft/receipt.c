/* The format of receipts: reading, writing, and the digests that they hold. Nothing in a file is trusted: what is read
 * is checked once, here. src/infer/receipt.c computes the log-probabilities and compares them. */
#include "receipt.h"
#include "bytes-internal.h"

#include "pretrained/pretrained.h"

#include <math.h>
#include <openssl/evp.h>

enum { VERSION = 1, PIECE = 1 << 20, SEED = 0x676f6c64 };

/* ---- digests ---- */

static void write_digits(EVP_MD_CTX *context, char digest[PEFT_SHA256_BYTES]) {
    unsigned char number[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    EVP_DigestFinal_ex(context, number, &length);
    for (unsigned i = 0; i < length && 2 * i + 2 < PEFT_SHA256_BYTES; i++)
        snprintf(digest + (size_t)2 * i, 3, "%02x", number[i]);
}

static int begin_digest(EVP_MD_CTX **context) {
    *context = EVP_MD_CTX_new();
    return status_allocated(*context && EVP_DigestInit_ex(*context, EVP_sha256(), NULL));
}

int peft_sha256(const void *bytes, size_t length, char digest[PEFT_SHA256_BYTES]) {
    EVP_MD_CTX *context;
    int status = begin_digest(&context);
    *digest = 0;
    if (!status) {
        EVP_DigestUpdate(context, bytes, length);
        write_digits(context, digest);
    }
    EVP_MD_CTX_free(context);
    return status;
}

static int digest_tensor(const struct ckpt_tensors *tensors, size_t index, char digest[PEFT_SHA256_BYTES]) {
    int64_t bytes = ckpt_tensor_at(tensors, index)->bytes;
    EVP_MD_CTX *context;
    char *piece = malloc(PIECE);
    int status = begin_digest(&context);
    THEN(status, status_allocated(piece));
    for (int64_t at = 0; at < bytes && !status; at += PIECE) {
        int64_t length = bytes - at < PIECE ? bytes - at : PIECE;
        status = ckpt_read_bytes(tensors, index, at, length, piece);
        if (!status)
            EVP_DigestUpdate(context, piece, (size_t)length);
    }
    if (!status)
        write_digits(context, digest);
    EVP_MD_CTX_free(context);
    free(piece);
    return status;
}

/* True when a receipt describes the tensor so. */
static bool is_described(const json_t *described, const struct safetensor *tensor, const char *digest) {
    const char *type = json_string_value(json_object_get(described, "dtype"));
    const char *sha256 = json_string_value(json_object_get(described, "sha256"));
    const json_t *shape = json_object_get(described, "shape");
    bool is_same = type && sha256 && !strcmp(type, tensor->type) && !strcmp(sha256, digest) &&
                   json_array_size(shape) == (size_t)tensor->dims;
    for (int i = 0; i < tensor->dims && is_same; i++)
        is_same = json_integer_value(json_array_get(shape, (size_t)i)) == tensor->shape[i];
    return is_same;
}

/* Describes a tensor as receipts do; NULL when it cannot be read, or without memory. */
static json_t *describe_tensor(const struct ckpt_tensors *tensors, size_t index, int *status) {
    const struct safetensor *tensor = ckpt_tensor_at(tensors, index);
    char digest[PEFT_SHA256_BYTES] = "";
    json_t *shape = json_array();
    *status = digest_tensor(tensors, index, digest);
    for (int i = 0; i < tensor->dims; i++)
        THEN_IF(*status, json_array_append_new(shape, json_integer(tensor->shape[i])), status_no_memory());
    return json_pack("{s:s, s:o, s:s}", "dtype", tensor->type, "shape", shape, "sha256", digest);
}

static int describe_tensors(const struct ckpt_tensors *tensors, json_t *object) {
    int status = STATUS_OK;
    for (size_t i = 0; i < ckpt_count(tensors) && !status; i++) {
        json_t *described = describe_tensor(tensors, i, &status);
        int is_lost = json_object_set_new(object, ckpt_tensor_at(tensors, i)->name, described);
        THEN_IF(status, is_lost, status_no_memory());
    }
    return status;
}

/* Compares tensors with their descriptions. *first is the name of the first that differs, or is only on one side; it
 * lives as long as both. */
static int compare_tensors(const struct ckpt_tensors *tensors, const json_t *described, const char **first,
                           size_t *differing) {
    const char *name;
    json_t *value;
    int status = STATUS_OK;
    *first = NULL;
    *differing = 0;
    for (size_t i = 0; i < ckpt_count(tensors) && !status; i++) {
        const struct safetensor *tensor = ckpt_tensor_at(tensors, i);
        char digest[PEFT_SHA256_BYTES];
        status = digest_tensor(tensors, i, digest);
        if (!status && !is_described(json_object_get(described, tensor->name), tensor, digest) && (*differing)++ == 0)
            *first = tensor->name;
    }
    json_object_foreach((json_t *)described, name,
                        value) if (!ckpt_has_tensor(tensors, name) && (*differing)++ == 0) *first = name;
    return status;
}

/* ---- golden tokens ---- */

void receipt_draw(int64_t vocab, struct receipt_text golden[RECEIPT_TEXTS]) {
    for (uint32_t t = 0; t < RECEIPT_TEXTS; t++)
        for (uint32_t i = 0; i < RECEIPT_TOKENS; i++)
            golden[t].tokens[i] = (int32_t)(philox(SEED, t, i, 0, 0).word[0] % (uint64_t)vocab);
}

/* ---- reading ---- */

/* A place in the file, for messages: "DIR/cambium_receipt.json". */
static int fail(const char *path, const char *key, const char *expected) {
    return status_fail(STATUS_INVALID, "%s: the receipt is damaged: \"%s\": expected %s", path, key, expected);
}

static int take_word(const json_t *object, const char *key, const char *path, char *out, size_t bytes) {
    const char *text = json_string_value(json_object_get(object, key));
    if (!text || strlen(text) >= bytes)
        return fail(path, key, "a short text");
    snprintf(out, bytes, "%s", text);
    return STATUS_OK;
}

/* Takes a hexadecimal float32, or null if it may be missing. */
static int take_logprob(const json_t *value, bool may_lack, const char *path, const char *key, float *out) {
    const char *text = json_string_value(value);
    char *end = NULL;
    *out = NAN;
    if (json_is_null(value) && may_lack)
        return STATUS_OK;
    bool is_number = text && text[strspn(text, "-")] == '0' && strpbrk(text, "xX");
    double number = is_number ? strtod(text, &end) : 0;
    *out = (float)number;
    return is_number && !*end && isfinite(number) && (double)*out == number
               ? STATUS_OK
               : fail(path, key, "16 hexadecimal floats, of which the first may be null");
}

static int take_logprobs(const json_t *object, const char *key, const char *path, float out[RECEIPT_TOKENS]) {
    const json_t *list = json_object_get(object, key);
    int status = json_array_size(list) == RECEIPT_TOKENS ? STATUS_OK : fail(path, key, "16 hexadecimal floats");
    for (size_t i = 0; i < RECEIPT_TOKENS && !status; i++)
        status = take_logprob(json_array_get(list, i), i == 0, path, key, &out[i]);
    return status;
}

static bool is_digest(const char *text) {
    return strlen(text) == PEFT_SHA256_BYTES - 1 && text[strspn(text, "0123456789abcdef")] == 0;
}

static int take_text(const json_t *object, const char *path, struct receipt_text *text) {
    const json_t *tokens = json_object_get(object, "tokens");
    if (json_array_size(tokens) != RECEIPT_TOKENS)
        return fail(path, "tokens", "16 ids");
    for (size_t i = 0; i < RECEIPT_TOKENS; i++) {
        const json_t *id = json_array_get(tokens, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
            return fail(path, "tokens", "16 ids");
        text->tokens[i] = (int32_t)json_integer_value(id);
    }
    TRY(take_logprobs(object, "logprobs", path, text->logprobs));
    TRY(take_logprobs(object, "base_logprobs", path, text->base_logprobs));
    TRY(take_word(object, "rows_sha256", path, text->rows_sha256, sizeof text->rows_sha256));
    return is_digest(text->rows_sha256) ? STATUS_OK : fail(path, "rows_sha256", "a SHA-256");
}

static int take_run(const json_t *run, const char *path, struct receipt_run *out) {
    const json_t *tensor = json_object_get(run, "tensor_parallel"),
                 *invariant = json_object_get(run, "batch_invariant");
    TRY(take_word(run, "precision", path, out->precision, sizeof out->precision));
    TRY(take_word(run, "device", path, out->device, sizeof out->device));
    TRY(take_word(run, "level", path, out->level, sizeof out->level));
    if (!json_is_integer(tensor) || json_integer_value(tensor) < 1)
        return fail(path, "tensor_parallel", "a number of ranks");
    if (!json_is_boolean(invariant))
        return fail(path, "batch_invariant", "true or false");
    out->tensor_parallel = json_integer_value(tensor);
    out->batch_invariant = json_is_true(invariant);
    return STATUS_OK;
}

/* Checks the form of a list of tensors. */
static int check_tensors(json_t *owner, const char *path, const char *key) {
    const char *name;
    json_t *tensor, *tensors = json_object_get(owner, "tensors");
    if (!json_object_size(tensors))
        return fail(path, key, "an object with \"tensors\"");
    json_object_foreach(tensors, name, tensor) {
        const char *digest = json_string_value(json_object_get(tensor, "sha256"));
        if (!digest || !is_digest(digest) || !json_is_string(json_object_get(tensor, "dtype")) ||
            !json_is_array(json_object_get(tensor, "shape")))
            return fail(path, name, "\"dtype\", \"shape\" and \"sha256\" of a tensor");
    }
    return STATUS_OK;
}

static int take_all(const json_t *root, const char *path, struct receipt *receipt) {
    const json_t *version = json_object_get(root, "version"), *program = json_object_get(root, "program");
    const json_t *golden = json_object_get(root, "golden");
    json_t *base = json_object_get(root, "base"), *adapter = json_object_get(root, "adapter");
    if (!json_is_integer(version) || json_integer_value(version) < 1)
        return fail(path, "version", "1");
    if (json_integer_value(version) > VERSION)
        return status_fail(STATUS_INVALID, "%s: a receipt of version %lld: this program reads version %d", path,
                           (long long)json_integer_value(version), VERSION);
    TRY(take_word(program, "version", path, receipt->version, sizeof receipt->version));
    TRY(take_word(program, "commit", path, receipt->commit, sizeof receipt->commit));
    TRY(take_run(json_object_get(root, "run"), path, &receipt->run));
    if (base && !json_is_null(base))
        TRY(check_tensors(base, path, "base"));
    TRY(check_tensors(adapter, path, "adapter"));
    if (!json_is_object(json_object_get(adapter, "config")))
        return fail(path, "config", "an object");
    if (json_array_size(golden) != RECEIPT_TEXTS)
        return fail(path, "golden", "4 texts");
    for (size_t t = 0; t < RECEIPT_TEXTS; t++)
        TRY(take_text(json_array_get(golden, t), path, &receipt->golden[t]));
    return STATUS_OK;
}

int receipt_read(const struct peft_bytes *bytes, bool *is_there, struct receipt *receipt) {
    const char *data;
    size_t length;
    char path[PATH_MAX];
    json_error_t error;
    *receipt = (struct receipt){0};
    *is_there = peft_bytes_find(bytes, PEFT_RECEIPT_FILE, &data, &length);
    int status = file_join(path, sizeof path, bytes->directory, PEFT_RECEIPT_FILE);
    if (status || !*is_there)
        return status;
    status = json_read(data, length, JSON_REJECT_DUPLICATES, &receipt->root, &error);
    if (status == STATUS_INVALID)
        status_fail(status, "%s: the receipt is damaged: line %d: %s", path, error.line, error.text);
    if (!status && !json_is_object(receipt->root))
        status = status_fail(STATUS_INVALID, "%s: the receipt is damaged: expected a JSON object", path);
    THEN(status, take_all(receipt->root, path, receipt));
    if (status)
        receipt_free(receipt);
    return status;
}

void receipt_free(struct receipt *receipt) {
    json_decref(receipt->root);
    receipt->root = NULL;
}

/* ---- comparing ---- */

static int read_config(const struct peft_bytes *bytes, json_t **config) {
    const char *data;
    size_t length;
    json_error_t error;
    *config = NULL;
    if (!peft_bytes_find(bytes, PEFT_CONFIG_FILE, &data, &length))
        return status_fail(STATUS_INVALID, "%s has no " PEFT_CONFIG_FILE, bytes->directory);
    int status = json_read(data, length, 0, config, &error);
    return status == STATUS_INVALID
               ? status_fail(status, "%s/" PEFT_CONFIG_FILE ": line %d: %s", bytes->directory, error.line, error.text)
               : status;
}

/* Returns the first key in `from` whose value in `to` is another; NULL: none. */
static const char *find_key(json_t *from, const json_t *to) {
    const char *key;
    json_t *value;
    json_object_foreach(from, key, value) if (!json_equal(value, json_object_get(to, key))) return key;
    return NULL;
}

static int check_config(const json_t *expected, const struct peft_bytes *bytes) {
    json_t *present;
    int status = read_config(bytes, &present);
    const char *key = status ? NULL : find_key((json_t *)expected, present);
    if (!status && !key)
        key = find_key(present, expected);
    if (key)
        status = status_fail(STATUS_INVALID, "%s: \"%s\" of " PEFT_CONFIG_FILE " is not the one in its receipt",
                             bytes->directory, key);
    json_decref(present);
    return status;
}

int receipt_check_adapter(const struct receipt *receipt, const struct peft_bytes *bytes) {
    if (bytes->is_compared)
        return bytes->difference ? status_fail(STATUS_INVALID, "%s", bytes->difference) : STATUS_OK;
    const json_t *adapter = json_object_get(receipt->root, "adapter");
    struct peft_files *files;
    const char *first = NULL;
    size_t count = 0;
    int status = peft_files_open_bytes(bytes, 1, &files);
    THEN(status, compare_tensors(peft_files_tensors(files, 0), json_object_get(adapter, "tensors"), &first, &count));
    if (!status && count)
        status = ckpt_check_finite(peft_files_tensors(files, 0)); /* this names the damage better */
    if (!status && count)
        status =
            status_fail(STATUS_INVALID, "%s: tensor '%s' of the adapter is not the one in its receipt (%zu differ)",
                        bytes->directory, first, count);
    peft_files_close(files);
    return status ? status : check_config(json_object_get(adapter, "config"), bytes);
}

int receipt_compare(struct peft_bytes *bytes) {
    struct receipt receipt;
    bool is_there;
    int status = receipt_read(bytes, &is_there, &receipt);
    if (status || !is_there)
        return status == STATUS_INVALID ? STATUS_OK : status;
    status = receipt_check_adapter(&receipt, bytes);
    receipt_free(&receipt);
    bytes->is_compared = !status || status == STATUS_INVALID;
    if (status != STATUS_INVALID)
        return status;
    bytes->difference = strdup(status_text());
    return status_allocated(bytes->difference);
}

int receipt_check_base(const struct receipt *receipt, const char *directory, const char *model) {
    const json_t *described = json_object_get(json_object_get(receipt->root, "base"), "tensors");
    struct pretrained base;
    const char *first = NULL;
    size_t count = 0;
    if (!described)
        return STATUS_OK;
    int status = pretrained_open(model, NULL, &base);
    THEN(status, compare_tensors(base.tensors, described, &first, &count));
    if (!status && count)
        status = status_fail(STATUS_INVALID,
                             "%s: tensor '%s' of the base %s is not the one in its receipt (%zu of %zu differ)",
                             directory, first, model, count, json_object_size(described));
    pretrained_close(&base);
    return status;
}

/* ---- writing ---- */

static json_t *list_logprobs(const float logprobs[RECEIPT_TOKENS]) {
    json_t *list = json_array();
    for (int i = 0; i < RECEIPT_TOKENS; i++) {
        char text[32];
        snprintf(text, sizeof text, "%a", (double)logprobs[i]);
        json_array_append_new(list, isnan(logprobs[i]) ? json_null() : json_string(text));
    }
    return list;
}

static json_t *list_golden(const struct receipt *receipt) {
    json_t *golden = json_array();
    for (int t = 0; t < RECEIPT_TEXTS; t++) {
        const struct receipt_text *text = &receipt->golden[t];
        json_t *tokens = json_array();
        for (int i = 0; i < RECEIPT_TOKENS; i++)
            json_array_append_new(tokens, json_integer(text->tokens[i]));
        json_array_append_new(golden, json_pack("{s:o, s:o, s:o, s:s}", "tokens", tokens, "logprobs",
                                                list_logprobs(text->logprobs), "base_logprobs",
                                                list_logprobs(text->base_logprobs), "rows_sha256", text->rows_sha256));
    }
    return golden;
}

/* Digests a tokenizer's contents; "" when the model has none. */
static int digest_tokenizer(const char *model, char digest[PEFT_SHA256_BYTES]) {
    struct tokenizer_files files;
    TRY(pretrained_read_tokenizer(model, &files));
    struct strbuf *text = &files.texts[files.is_there[TOKENIZER_JSON] ? TOKENIZER_JSON : TOKENIZER_VOCAB];
    const struct strbuf *merges = &files.texts[TOKENIZER_MERGES];
    if (!files.is_there[TOKENIZER_JSON])
        strbuf_add(text, strbuf_text(merges), merges->length);
    *digest = 0;
    int status = strbuf_status(text);
    if (!files.is_there[TOKENIZER_JSON] && files.is_there[TOKENIZER_VOCAB] != files.is_there[TOKENIZER_MERGES])
        status = status_fail(STATUS_INVALID, "%s: of %s and %s only one is there", model,
                             tokenizer_file_names[TOKENIZER_VOCAB], tokenizer_file_names[TOKENIZER_MERGES]);
    THEN_IF(status, text->length, peft_sha256(strbuf_text(text), text->length, digest));
    tokenizer_files_free(&files);
    return status;
}

static json_t *describe_run(const struct receipt_run *run) {
    return json_pack("{s:s, s:s, s:s, s:I, s:b}", "precision", run->precision, "device", run->device, "level",
                     run->level, "tensor_parallel", (json_int_t)run->tensor_parallel, "batch_invariant",
                     (int)run->batch_invariant);
}

int receipt_describe_base(const char *model, json_t **out) {
    char config[PEFT_SHA256_BYTES], tokenizer[PEFT_SHA256_BYTES];
    struct pretrained base;
    json_t *tensors = json_object();
    int status = pretrained_open(model, NULL, &base);
    THEN(status, peft_sha256(strbuf_text(&base.config_text), base.config_text.length, config));
    THEN(status, digest_tokenizer(model, tokenizer));
    THEN(status, describe_tensors(base.tensors, tensors));
    pretrained_close(&base);
    *out = status ? NULL
                  : json_pack("{s:{s:s, s:s, s:O}, s:o}", "base", "name", model, "config_sha256", config, "tensors",
                              tensors, "tokenizer", *tokenizer ? json_pack("{s:s}", "sha256", tokenizer) : json_null());
    json_decref(tensors);
    return status ? status : status_allocated(*out);
}

int receipt_write(const struct receipt *receipt, const struct peft_bytes *bytes, json_t *base, char **text) {
    char created[32];
    struct peft_files *files = NULL;
    struct tm utc;
    time_t now = time(NULL);
    json_t *tensors, *config = NULL;
    strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    *text = NULL;
    int status = peft_files_open_bytes(bytes, 1, &files);
    json_begin();
    tensors = json_object();
    THEN(status, describe_tensors(peft_files_tensors(files, 0), tensors));
    THEN(status, read_config(bytes, &config));
    if (!status) {
        json_t *root = json_pack("{s:i, s:{s:s, s:s, s:s}, s:s}", "version", VERSION, "program", "name", "cambium",
                                 "version", receipt->version, "commit", receipt->commit, "created", created);
        json_object_update(root, base);
        json_object_set_new(root, "adapter",
                            json_pack("{s:s, s:O, s:O}", "method", peft_method_names[peft_files_configs(files)->type],
                                      "tensors", tensors, "config", config));
        json_object_set_new(root, "run", describe_run(&receipt->run));
        json_object_set_new(root, "golden", list_golden(receipt));
        status = json_end(root, JSON_INDENT(1), text);
    }
    json_decref(config);
    json_decref(tensors);
    peft_files_close(files);
    return status;
}

int receipt_fail_none(const char *directory) {
    return status_fail(STATUS_INVALID, "%s has no receipt, and --receipts require demands one", directory);
}

int receipt_check_file(const struct peft_files *files, int index, bool *is_there, struct receipt *receipt) {
    struct peft_bytes bytes;
    TRY(peft_bytes_read(peft_files_directory(files, index), SIZE_MAX, &bytes));
    int status = receipt_read(&bytes, is_there, receipt);
    if (!status && *is_there) {
        status = receipt_check_adapter(receipt, &bytes);
        receipt_free(receipt);
    }
    peft_bytes_free(&bytes);
    return status;
}
