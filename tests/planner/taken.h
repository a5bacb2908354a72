/* Counts the device memory that each rank's thread holds, by the parts of a training plan. The linker puts the
 * functions below in the place of the real ones (tests/CMakeLists.txt). They tell a part by the function that allocates
 * it. */
#pragma once

#include "model/model.h"
#include "optim/optim.h"
#include "parallel/pipeline.h"
#include "tensor/tensor.h"
#include "train/train.h"

#include <stdlib.h>
#include <string.h>

/* No function that allocates is of PART_OTHER. */
enum part { PART_OTHER, PART_WEIGHTS, PART_GRADIENTS, PART_OPTIMIZER, PART_ACTIVATIONS, PART_WORKSPACE, PARTS };

enum { TAKEN_MOST = 256 };
struct taken {
    enum part part; /* of what is allocated next */
    struct taken_block {
        void *memory;
        size_t bytes;
        enum part part;
    } blocks[TAKEN_MOST];
    int count;
};
static _Thread_local struct taken taken;

static size_t taken_bytes(enum part part) {
    size_t bytes = 0;
    for (int i = 0; i < taken.count; i++)
        bytes += taken.blocks[i].part == part ? taken.blocks[i].bytes : 0;
    return bytes;
}

static int take(int status, void *const *memory, size_t bytes) {
    if (status)
        return status;
    if (taken.count == TAKEN_MOST)
        abort();
    taken.blocks[taken.count++] = (struct taken_block){*memory, bytes, taken.part};
    return STATUS_OK;
}

/* Gives the thread's part back to the caller of a function that has ended. */
static int end_part(enum part before, int status) {
    taken.part = before;
    return status;
}

#define COUNTED(result, name, ...)                                                                                     \
    result __real_##name(__VA_ARGS__);                                                                                 \
    result __wrap_##name(__VA_ARGS__);                                                                                 \
    result __wrap_##name(__VA_ARGS__)

/* Ends a function: what the call allocates is of that part. */
#define IN_PART(which, call)                                                                                           \
    enum part before = taken.part;                                                                                     \
    taken.part = which;                                                                                                \
    return end_part(before, call)

COUNTED(int, device_alloc, struct device *device, size_t bytes, void **memory) {
    return take(__real_device_alloc(device, bytes, memory), memory, bytes);
}

COUNTED(int, device_alloc_zeroed, struct device *device, size_t bytes, void **memory) {
    return take(__real_device_alloc_zeroed(device, bytes, memory), memory, bytes);
}

COUNTED(void, device_free, struct device *device, void *memory) {
    for (int i = 0; memory && i < taken.count; i++)
        if (taken.blocks[i].memory == memory) {
            taken.count--;
            memmove(&taken.blocks[i], &taken.blocks[i + 1], (size_t)(taken.count - i) * sizeof *taken.blocks);
            break;
        }
    __real_device_free(device, memory);
}

/* A store takes its weights first, and its gradients from the block on in which they begin. */
COUNTED(int, param_store_open, struct param_store *store, const struct param_fill *fill) {
    enum part before = taken.part;
    int first = taken.count, ranges = 0;
    taken.part = PART_WEIGHTS;
    int status = __real_param_store_open(store, fill);
    if (status || !store->has_gradients)
        return end_part(before, status);
    const char *gradients = param_ranges(store, PARAM_GRADIENTS, &ranges)->data;
    bool has_begun = false;
    for (int i = first; i < taken.count; i++) {
        const char *block = taken.blocks[i].memory;
        has_begun |= gradients >= block && gradients < block + taken.blocks[i].bytes;
        if (has_begun)
            taken.blocks[i].part = PART_GRADIENTS;
    }
    return end_part(before, status);
}

COUNTED(int, training_allocate, struct training_runner *training) {
    IN_PART(PART_ACTIVATIONS, __real_training_allocate(training));
}

/* The weights that are kept in FP8. */
COUNTED(int, fp8_open, struct training_runner *training) {
    IN_PART(PART_WEIGHTS, __real_fp8_open(training));
}

COUNTED(int, rank_allocate_workspace, struct rank *rank) {
    IN_PART(PART_WORKSPACE, __real_rank_allocate_workspace(rank));
}

COUNTED(int, pipeline_open, struct pipeline *pipeline, struct rank *rank, const struct pipeline_shape *shape,
        int64_t elements, enum dtype dtype) {
    IN_PART(PART_ACTIVATIONS, __real_pipeline_open(pipeline, rank, shape, elements, dtype));
}

/* The memory of an adapter besides its values. */
COUNTED(int, train_load_base, struct trainer *trainer) {
    IN_PART(PART_ACTIVATIONS, __real_train_load_base(trainer));
}

COUNTED(int, optimizer_open, struct optimizer *optimizer, const struct optimizer_options *options,
        struct gradient_sync *sync) {
    IN_PART(PART_OPTIMIZER, __real_optimizer_open(optimizer, options, sync));
}
