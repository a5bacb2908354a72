/* Batch invariance of a rank, and files of algorithms, in JSON:
 *
 *     {"device": "cuda, NVIDIA H200, sm_90, 132 multiprocessors", "library": "cuBLASLt 13.1.0",
 *      "products": [{"product": "16384 x 2304 x 768, ...", "algorithm": "0123...", "seconds": 1e-4,
 *                    "first_seconds": 1.1e-4}]}
 *
 * The backend makes the texts of products and algorithms. "seconds" are of the algorithm, and "first_seconds" of the
 * one that the library proposes first; nothing reads them. */
#include "parallel/algorithms.h"

#include "base/json.h"
#include "kernels/algorithms.h"

enum { FILE_BYTES = 16 << 20 };

/* ---- batch invariance ---- */

/* A library of collectives may cut an array among ranks. Then an element's place decides the order of its sum, which
 * matters from three ranks on. */
void rank_make_batch_invariant(struct rank *rank) {
    device_make_batch_invariant(rank->device);
    if (rank->tensor && rank->tensor->size > 2)
        comm_request_order(rank->tensor);
}

/* ---- writing ---- */

static json_t *describe(const struct device *device) {
    struct device_algorithm algorithm;
    json_t *products = json_array();
    for (int i = 0; device_algorithm_at(device, i, &algorithm); i++)
        json_array_append_new(products, json_pack("{s:s, s:s, s:f, s:f}", "product", algorithm.product, "algorithm",
                                                  algorithm.algorithm, "seconds", algorithm.seconds, "first_seconds",
                                                  algorithm.first_seconds));
    return json_pack("{s:s, s:s, s:o}", "device", device_description(device), "library", device_library(device),
                     "products", products);
}

int algorithms_write(const struct device *device, const char *path) {
    struct strbuf out = STRBUF_INIT;
    char *text;
    json_begin();
    TRY(json_end(describe(device), JSON_INDENT(1), &text));
    strbuf_add_text(&out, text);
    strbuf_add_char(&out, '\n');
    free(text);
    int status = strbuf_status(&out);
    THEN(status, file_write_atomic(path, out.data, out.length));
    strbuf_free(&out);
    return status;
}

/* ---- reading ---- */

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* Copies a text; one that does not fit counts as missing. */
static void copy(char *to, size_t bytes, const char *from) {
    snprintf(to, bytes, "%s", strlen(from) < bytes ? from : "");
}

/* Checks that the file is of this GPU and library. */
static int check_owner(const json_t *root, const struct device *device, const char *path) {
    const struct {
        const char *key, *ours;
    } rows[] = {{"device", device_description(device)}, {"library", device_library(device)}};
    for (int i = 0; i < 2; i++) {
        const char *theirs = text_of(root, rows[i].key);
        if (!*theirs)
            return status_fail(STATUS_INVALID, "--gemm-algorithms %s: it has no \"%s\"", path, rows[i].key);
        if (strcmp(theirs, rows[i].ours))
            return status_fail(STATUS_INVALID,
                               "--gemm-algorithms %s: it is of %s, and this is %s: measure this one with cambium bench "
                               "gemm --tune",
                               path, theirs, rows[i].ours);
    }
    return STATUS_OK;
}

static int take_products(const json_t *products, struct device *device) {
    size_t count = json_array_size(products), i;
    struct device_algorithm *all = calloc(count + 1, sizeof *all);
    const json_t *product;
    TRY(status_allocated(all));
    json_array_foreach(products, i, product) {
        copy(all[i].product, sizeof all[i].product, text_of(product, "product"));
        copy(all[i].algorithm, sizeof all[i].algorithm, text_of(product, "algorithm"));
        all[i].seconds = json_number_value(json_object_get(product, "seconds"));
        all[i].first_seconds = json_number_value(json_object_get(product, "first_seconds"));
    }
    int status = device_take_algorithms(device, all, (int)count);
    free(all);
    return status;
}

static int take_text(const struct strbuf *text, struct device *device, const char *path) {
    json_error_t error;
    json_t *root;
    int status = json_read(strbuf_text(text), text->length, JSON_REJECT_DUPLICATES, &root, &error);
    if (status == STATUS_INVALID)
        return status_fail(STATUS_INVALID, "--gemm-algorithms %s:%d: %s", path, error.line, error.text);
    THEN(status, check_owner(root, device, path));
    const json_t *products = json_object_get(root, "products");
    if (!status && !json_is_array(products))
        status = status_fail(STATUS_INVALID, "--gemm-algorithms %s: it has no list \"products\"", path);
    else if (!status) {
        status = take_products(products, device);
        status = status ? status_wrap(status, "--gemm-algorithms %s", path) : STATUS_OK;
    }
    json_decref(root);
    return status;
}

/* Gives the first rank's text to all. */
static int share(struct comm *world, struct strbuf *text) {
    int64_t bytes = (int64_t)text->length;
    struct comm_data size = {.send = &bytes, .receive = &bytes, .count = 1, .dtype = DTYPE_I64};
    TRY(comm_broadcast(world, &size, 0));
    int reserved = comm_agree(world, world->rank ? strbuf_reserve(text, (size_t)bytes) : STATUS_OK);
    if (reserved)
        return reserved;
    struct comm_data data = {.send = text->data, .receive = text->data, .count = bytes, .dtype = DTYPE_U8};
    text->length = (size_t)bytes;
    return bytes ? comm_broadcast(world, &data, 0) : STATUS_OK;
}

int algorithms_take(struct comm *world, struct device *device, const char *path) {
    struct strbuf text = STRBUF_INIT;
    bool is_shared = world && world->size > 1;
    if (!path)
        return STATUS_OK;
    int status = device_library(device)
                     ? STATUS_OK
                     : status_fail(STATUS_UNSUPPORTED, "--gemm-algorithms: products on %s have no choice of algorithms",
                                   device_facts(device).kind);
    THEN_IF(status, (!world || world->rank == 0), file_read(path, FILE_BYTES, &text));
    if (is_shared)
        status = comm_agree(world, status);
    THEN_IF(status, is_shared, share(world, &text));
    if (!status) {
        status = take_text(&text, device, path);
        if (is_shared)
            status = comm_agree(world, status);
    }
    strbuf_free(&text);
    return status;
}
