/* Shared by the files of the harness. */
#pragma once

#include "op_cases.h"

enum { OP_GUARD = 256 }; /* bytes before and after a tensor */

double op_decode(enum dtype type, const void *at);
/* Bytes from the first element to the last, gaps included. */
size_t op_tensor_span(const struct op_tensor *tensor);

/* A device, a stream and the workspace that one call of a run wants, guarded. */
struct op_scene {
    const char *backend;
    struct device *device;
    struct stream *stream;
    const struct ops *ops;
    struct exec exec;
    void *workspace;
};
/* The workspace for `run` and the kind's prepare. */
int op_scene_enter(struct op_scene *scene, struct op_run *run);
/* STATUS_INVALID when the call wrote past its workspace. */
int op_scene_leave(struct op_scene *scene, struct op_run *run);
