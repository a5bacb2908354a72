/* oneDNN's matmul primitives by form. Making a primitive costs more than running a small one, so each is made once per
 * device and kept with its memory objects. Only the pointers change from call to call. A lock per device makes calls
 * from several threads take turns: the products of a device use all its threads anyway.
 *
 * oneDNN 2.6 runs on the number of threads that OpenMP would give the caller. It also sizes its scratchpad by that
 * number when the primitive is made. Both times, this file sets the number to the device's. */
#include "cpu/gemm-internal.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

enum { SLOTS = 512, SLOTS_USED = 384 /* beyond this many forms the cache starts over */ };
enum { MEMORY_A, MEMORY_B, MEMORY_BIAS, MEMORY_C, MEMORY_SCRATCHPAD, MEMORIES };

struct entry {
    struct gemm_form form;
    bool is_used;
    dnnl_primitive_t primitive; /* NULL: oneDNN does not have the form */
    size_t scratchpad_bytes;
    dnnl_memory_t memory[MEMORIES];
    dnnl_exec_arg_t arguments[MEMORIES];
    int argument_count;
};

struct gemm_cache {
    pthread_mutex_t lock;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int used;
    struct entry slot[SLOTS];
};

int gemm_cache_open(struct gemm_cache **out) {
    struct gemm_cache *cache = *out = calloc(1, sizeof *cache);
    TRY(status_allocated(cache));
    pthread_mutex_init(&cache->lock, NULL);
    if (dnnl_engine_create(&cache->engine, dnnl_cpu, 0) || dnnl_stream_create(&cache->stream, cache->engine, 0)) {
        gemm_cache_close(cache);
        *out = NULL;
        return status_fail(STATUS_UNSUPPORTED, "oneDNN cannot use this processor");
    }
    return STATUS_OK;
}

static void clear(struct gemm_cache *cache) {
    for (int i = 0; i < SLOTS; i++) {
        struct entry *entry = &cache->slot[i];
        for (int j = 0; j < MEMORIES; j++)
            dnnl_memory_destroy(entry->memory[j]);
        dnnl_primitive_destroy(entry->primitive);
        *entry = (struct entry){0};
    }
    cache->used = 0;
}

void gemm_cache_close(struct gemm_cache *cache) {
    if (!cache)
        return;
    clear(cache);
    dnnl_stream_destroy(cache->stream);
    dnnl_engine_destroy(cache->engine);
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}

static dnnl_data_type_t dnnl_type(int type) {
    return type == DTYPE_BF16 ? dnnl_bf16 : dnnl_f32;
}

static dnnl_status_t matrix(dnnl_memory_desc_t *desc, int64_t rows, int64_t cols, int64_t stride, bool is_transposed,
                            int type) {
    dnnl_dims_t dims = {rows, cols};
    dnnl_dims_t strides = {is_transposed ? 1 : stride, is_transposed ? stride : 1};
    return dnnl_memory_desc_init_by_strides(desc, 2, dims, dnnl_type(type), strides);
}

static dnnl_status_t make_attributes(const struct gemm_form *form, dnnl_primitive_attr_t *attributes) {
    dnnl_status_t failed = dnnl_primitive_attr_create(attributes);
    if (!failed)
        failed = dnnl_primitive_attr_set_scratchpad_mode(*attributes, dnnl_scratchpad_mode_user);
    if (!failed)
        failed = dnnl_primitive_attr_set_fpmath_mode(*attributes, dnnl_fpmath_mode_strict);
    if (!failed && form->scale != 1)
        failed = dnnl_primitive_attr_set_output_scales(*attributes, 1, 0, &form->scale);
    if (!failed && form->accumulate) {
        dnnl_post_ops_t sum = NULL;
        failed = dnnl_post_ops_create(&sum);
        if (!failed)
            failed = dnnl_post_ops_append_sum(sum, 1.0f);
        if (!failed)
            failed = dnnl_primitive_attr_set_post_ops(*attributes, sum);
        dnnl_post_ops_destroy(sum);
    }
    return failed;
}

static dnnl_status_t make_description(struct gemm_cache *cache, const struct gemm_form *form,
                                      dnnl_memory_desc_t desc[MEMORIES], dnnl_primitive_desc_t *out) {
    dnnl_dims_t bias_dims = {1, form->n};
    dnnl_matmul_desc_t product;
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_status_t failed = matrix(&desc[MEMORY_A], form->m, form->k, form->lda, form->a_transposed, form->type);
    if (!failed)
        failed = matrix(&desc[MEMORY_B], form->k, form->n, form->ldb, form->b_transposed, form->type);
    if (!failed)
        failed = matrix(&desc[MEMORY_C], form->m, form->n, form->ldc, false, form->c_type);
    if (!failed)
        failed = dnnl_memory_desc_init_by_tag(&desc[MEMORY_BIAS], 2, bias_dims, dnnl_type(form->type), dnnl_ab);
    if (!failed)
        failed = dnnl_matmul_desc_init(&product, &desc[MEMORY_A], &desc[MEMORY_B],
                                       form->has_bias ? &desc[MEMORY_BIAS] : NULL, &desc[MEMORY_C]);
    if (!failed)
        failed = make_attributes(form, &attributes);
    if (!failed)
        failed = dnnl_primitive_desc_create(out, &product, attributes, cache->engine, NULL);
    dnnl_primitive_attr_destroy(attributes);
    return failed;
}

static dnnl_status_t make_entry(struct gemm_cache *cache, struct entry *entry) {
    static const int argument[MEMORIES] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST,
                                           DNNL_ARG_SCRATCHPAD};
    dnnl_memory_desc_t desc[MEMORIES];
    dnnl_primitive_desc_t description = NULL;
    dnnl_status_t failed = make_description(cache, &entry->form, desc, &description);
    if (!failed) {
        desc[MEMORY_SCRATCHPAD] = *dnnl_primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0);
        entry->scratchpad_bytes = dnnl_memory_desc_get_size(&desc[MEMORY_SCRATCHPAD]);
        failed = dnnl_primitive_create(&entry->primitive, description);
    }
    for (int i = 0; i < MEMORIES && !failed; i++) {
        if ((i == MEMORY_BIAS && !entry->form.has_bias) || (i == MEMORY_SCRATCHPAD && !entry->scratchpad_bytes))
            continue;
        failed = dnnl_memory_create(&entry->memory[i], &desc[i], cache->engine, DNNL_MEMORY_NONE);
        entry->arguments[entry->argument_count++] = (dnnl_exec_arg_t){argument[i], entry->memory[i]};
    }
    dnnl_primitive_desc_destroy(description);
    return failed;
}

static uint64_t hash(const struct gemm_form *form) {
    uint64_t words[sizeof *form / 8], value = 0xcbf29ce484222325u;
    memcpy(words, form, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        value = (value ^ words[i]) * 0x9e3779b97f4a7c15u, value ^= value >> 29;
    return value;
}

/* Returns the form's entry, and makes it at the first call. The caller holds the lock and has set the thread count. */
static struct entry *find(struct gemm_cache *cache, const struct gemm_form *form) {
    uint64_t at = hash(form) % SLOTS;
    for (; cache->slot[at].is_used; at = (at + 1) % SLOTS)
        if (!memcmp(&cache->slot[at].form, form, sizeof *form))
            return &cache->slot[at];
    if (cache->used == SLOTS_USED) {
        clear(cache);
        at = hash(form) % SLOTS;
    }
    struct entry *entry = &cache->slot[at];
    entry->form = *form;
    entry->is_used = true;
    cache->used++;
    if (make_entry(cache, entry)) {
        dnnl_primitive_destroy(entry->primitive);
        entry->primitive = NULL;
        entry->scratchpad_bytes = 0;
    }
    return entry;
}

/* Takes the lock, and sets the caller's thread count to the device's. Returns the count before that. */
static int enter(struct device *device) {
    pthread_mutex_lock(&cpu_gemms(device)->lock);
    int threads = omp_get_max_threads();
    omp_set_dynamic(0); /* oneDNN would skip the work of missing threads */
    if (threads != device->threads)
        omp_set_num_threads(device->threads);
    return threads;
}

static void leave(struct device *device, int threads) {
    if (threads != device->threads)
        omp_set_num_threads(threads);
    pthread_mutex_unlock(&cpu_gemms(device)->lock);
}

bool gemm_cache_has(struct device *device, const struct gemm_form *form) {
    int threads = enter(device);
    bool has = find(cpu_gemms(device), form)->primitive;
    leave(device, threads);
    return has;
}

size_t gemm_cache_scratchpad(struct device *device, const struct gemm_form *form) {
    int threads = enter(device);
    size_t bytes = find(cpu_gemms(device), form)->scratchpad_bytes;
    leave(device, threads);
    return bytes;
}

static int run(struct gemm_cache *cache, const struct gemm_form *form, const struct gemm_pointers *p) {
    void *const data[MEMORIES] = {(void *)p->a, (void *)p->b, (void *)p->bias, p->c, p->scratchpad};
    struct entry *entry = find(cache, form);
    if (!entry->primitive)
        return status_fail(STATUS_UNSUPPORTED, "oneDNN has no %s product of %lld x %lld x %lld on this processor",
                           dtype_name((enum dtype)form->type), (long long)form->m, (long long)form->n,
                           (long long)form->k);
    dnnl_status_t failed = dnnl_success;
    for (int i = 0; i < MEMORIES && !failed; i++)
        if (entry->memory[i])
            failed = dnnl_memory_set_data_handle(entry->memory[i], data[i]);
    if (!failed)
        failed = dnnl_primitive_execute(entry->primitive, cache->stream, entry->argument_count, entry->arguments);
    if (!failed)
        failed = dnnl_stream_wait(cache->stream);
    if (failed)
        return status_fail(STATUS_UNSUPPORTED, "oneDNN failed (%d) in a product of %lld x %lld x %lld", (int)failed,
                           (long long)form->m, (long long)form->n, (long long)form->k);
    return STATUS_OK;
}

int gemm_cache_run(struct device *device, const struct gemm_form *form, const struct gemm_pointers *pointers) {
    int threads = enter(device);
    int status = run(cpu_gemms(device), form, pointers);
    leave(device, threads);
    return status;
}
