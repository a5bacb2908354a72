/* The machine's ceilings, measured: plain matrix products and a streaming read. */
#include "cpu/cpu-internal.h"

#include <math.h>

/* The products of a GPT-2 124M block at 1,024 rows, which take most of a training step. */
static const struct {
    int64_t m, n, k;
    bool a_transposed, b_transposed, is_weight_gradient;
} products[] = {
    {1024, 3072, 768, false, true, false},  /* forward */
    {1024, 768, 3072, false, false, false}, /* input gradient */
    {3072, 768, 1024, true, false, true},   /* weight gradient */
};
enum { PRODUCTS = sizeof products / sizeof *products, MATRIX_ELEMENTS = 1024 * 3072 };

/* Fills a matrix with copies of one block of random numbers: drawing all of them would take longer than the products.
 */
static void fill(void *matrix, enum dtype dtype) {
    enum { DRAWN = 16384 };
    _Static_assert(MATRIX_ELEMENTS % DRAWN == 0, "whole blocks");
    for (int64_t i = 0; i < DRAWN; i++) {
        float value = (float)rng_unit(philox(1, (uint32_t)i, 0, 0, (uint32_t)RNG_TEST << 24).word[0]) - 0.5f;
        if (dtype == DTYPE_BF16)
            ((uint16_t *)matrix)[i] = bf16_from_float(value);
        else
            ((float *)matrix)[i] = value;
    }
    size_t bytes = DRAWN * dtype_bytes(dtype);
    for (size_t block = 1; block < MATRIX_ELEMENTS / DRAWN; block++)
        memcpy((char *)matrix + block * bytes, matrix, bytes);
}

static struct gemm product_call(int index, enum dtype dtype, const void *a, const void *b, void *c) {
    int64_t m = products[index].m, n = products[index].n, k = products[index].k;
    bool a_transposed = products[index].a_transposed, b_transposed = products[index].b_transposed;
    return (struct gemm){
        .a = a_transposed ? matrix_plain(dtype, a, k, m) : matrix_plain(dtype, a, m, k),
        .a_transposed = a_transposed,
        .b = b_transposed ? matrix_plain(dtype, b, n, k) : matrix_plain(dtype, b, k, n),
        .b_transposed = b_transposed,
        .c = matrix_plain(products[index].is_weight_gradient ? DTYPE_F32 : dtype, c, m, n),
    };
}

/* Stores the best time of each product. They run in turn until `end`, each at least twice. */
static int time_products(struct device *device, const struct exec *exec, enum dtype dtype, double end,
                         void *const memory[3], double best[PRODUCTS]) {
    for (int i = 0; i < PRODUCTS; i++)
        best[i] = INFINITY;
    double began = clock_seconds(), now = began;
    /* Starts no round that would end late. */
    for (int round = 0; round < 2 || now + (now - began) / round < end; round++, now = clock_seconds())
        for (int i = 0; i < PRODUCTS; i++) {
            struct gemm call = product_call(i, dtype, memory[0], memory[1], memory[2]);
            double start = clock_seconds();
            TRY(device->ops->gemm(exec, &call));
            TRY(stream_wait(exec->stream));
            best[i] = fmin(best[i], clock_seconds() - start);
        }
    return STATUS_OK;
}

int cpu_measure_gemm(struct device *device, enum dtype dtype, bool is_tf32, double max_seconds, double *flops) {
    double end = clock_seconds() + max_seconds;
    void *memory[4] = {0};
    struct exec exec = {0};
    double best[PRODUCTS], seconds = 0, work = 0;
    *flops = 0;
    if (is_tf32)
        return status_fail(STATUS_UNSUPPORTED, "no TF32 on cpu");
    int status = stream_open(device, &exec.stream);
    for (int i = 0; i < 3 && !status; i++)
        status = device_alloc(device, MATRIX_ELEMENTS * (i < 2 ? dtype_bytes(dtype) : sizeof(float)), &memory[i]);
    for (int i = 0; i < PRODUCTS && !status; i++) {
        struct gemm call = product_call(i, dtype, memory[0], memory[1], memory[2]);
        size_t bytes = device->ops->gemm_workspace(device, &call);
        exec.workspace_bytes = bytes > exec.workspace_bytes ? bytes : exec.workspace_bytes;
    }
    THEN_IF(status, exec.workspace_bytes, device_alloc(device, exec.workspace_bytes, &memory[3]));
    exec.workspace = memory[3];
    if (!status) {
        fill(memory[0], dtype);
        fill(memory[1], dtype);
        status = time_products(device, &exec, dtype, end, memory, best);
    }
    for (int i = 0; i < PRODUCTS && !status; i++) {
        seconds += best[i];
        work += 2.0 * (double)products[i].m * (double)products[i].n * (double)products[i].k;
    }
    if (!status)
        *flops = work / seconds;
    for (int i = 0; i < 4; i++)
        device_free(device, memory[i]);
    if (exec.stream)
        stream_close(exec.stream);
    return status;
}

int cpu_time_read(struct device *device, size_t bytes, void **memory, double *seconds) {
    int64_t count = (int64_t)(bytes / sizeof(uint64_t));
    bool is_fresh = !*memory;
    TRY(is_fresh ? device_alloc(device, bytes, memory) : STATUS_OK);
    uint64_t *words = *memory, sum = 0;
    /* Writes all pages: untouched ones would all map to one page of zeros. */
#pragma omp parallel for num_threads(device->threads) schedule(static) if (is_fresh)
    for (int64_t i = 0; i < (is_fresh ? count : 0); i++)
        words[i] = (uint64_t)i;
    double start = clock_seconds();
#pragma omp parallel for simd num_threads(device->threads) schedule(static) reduction(+ : sum)
    for (int64_t i = 0; i < count; i++)
        sum += words[i];
    *seconds = clock_seconds() - start;
    words[0] += sum & 1; /* so that the sum is computed */
    return STATUS_OK;
}
