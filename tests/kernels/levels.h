/* A check of the operations at every level of instructions that this machine has. */
#pragma once

#include "kernels/ops.h"
#include "support/test.h"

struct scene {
    struct exec exec;
    const struct ops *ops;
};

static inline void every_level(void (*check)(const struct scene *scene)) {
    struct device *device;
    struct scene scene = {0};
    static const char *const levels[] = {"v2", "v3", "v4", "v4bf16", "v4amx"};
    test_ok(device_open("cpu", DEVICE_FIRST, 2, &device));
    test_ok(stream_open(device, &scene.exec.stream));
    scene.exec.workspace_bytes = 1 << 20;
    test_ok(device_alloc(device, scene.exec.workspace_bytes, &scene.exec.workspace));
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if ((scene.ops = ops_for_level(device, levels[i])))
            check(&scene);
    device_free(device, scene.exec.workspace);
    stream_close(scene.exec.stream);
    device_close(device);
}
