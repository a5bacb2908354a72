/* Device memory, which the host may neither read nor write: by copies that have arrived when these return. */
#pragma once

#include "base/rng.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "support/test.h"

static inline int test_read(struct stream *stream, void *host, const void *device, size_t bytes) {
    int status = stream_copy_to_host(stream, host, device, bytes), waited = stream_wait(stream);
    return status ? status : waited;
}

static inline int test_write(struct stream *stream, void *device, const void *host, size_t bytes) {
    int status = stream_copy_to_device(stream, device, host, bytes), waited = stream_wait(stream);
    return status ? status : waited;
}

/* Returns true if the tests' device trains in bf16: not every processor does. */
static inline bool test_has_bf16(void) {
    struct device *device;
    struct matrix_view matrix = matrix_plain(DTYPE_BF16, NULL, 8, 8);
    struct gemm gemm = {.a = matrix, .b = matrix, .c = matrix};
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &device));
    bool has = ops_for(device)->gemm_supports(device, &gemm);
    device_close(device);
    return has;
}

/* Skips a test that trains in bf16, or in FP8, which a processor computes with products in bf16. */
#define test_skip_without_bf16()                                                                                       \
    do {                                                                                                               \
        if (!test_has_bf16())                                                                                          \
            test_skip("no bf16 products on this processor");                                                           \
    } while (0)

/* Returns device memory with random numbers from `low` to `high`, in fp32 or bf16; the caller's to free. */
static inline void *test_upload_random(struct device *device, struct stream *stream, enum dtype type, int64_t count,
                                       uint32_t key, double low, double high) {
    float *values = malloc((size_t)count * sizeof *values);
    void *memory;
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++) {
        uint32_t word = philox(key, (uint32_t)i, 0, 0, (uint32_t)RNG_TEST << 24).word[0];
        values[i] = (float)(low + (high - low) * rng_unit(word));
    }
    for (int64_t i = 0; i < count && type == DTYPE_BF16; i++)
        ((uint16_t *)values)[i] = bf16_from_float(values[i]);
    test_ok(device_alloc(device, (size_t)count * dtype_bytes(type), &memory));
    test_ok(test_write(stream, memory, values, (size_t)count * dtype_bytes(type)));
    free(values);
    return memory;
}

/* A copy in host memory, the caller's to free. */
static inline void *test_copy(struct stream *stream, const void *device, size_t bytes) {
    void *host = malloc(bytes);
    assert_non_null(host);
    test_ok(test_read(stream, host, device, bytes));
    return host;
}
