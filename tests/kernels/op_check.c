/* Comparison with the reference, gradients by finite differences, and equality over thread counts. */
#include "op_cases-internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const levels[] = {"v2", "v3", "v4", "v4bf16", "v4amx"};
enum { LEVELS = 4, SAMPLED_ELEMENTS = 12, ORDERS = 6, ORDERS_LONG = 20 };

/* Opens a device on which cases are checked. */
static int open_scene(struct op_scene *scene, const char *backend, int threads) {
    *scene = (struct op_scene){.backend = backend};
    int status = device_open(backend, DEVICE_FIRST, threads, &scene->device);
    if (!status)
        status = stream_open(scene->device, &scene->stream);
    scene->exec.stream = scene->stream;
    return status;
}

static void close_scene(struct op_scene *scene) {
    stream_close(scene->stream);
    device_close(scene->device);
}

int op_scene_enter(struct op_scene *scene, struct op_run *run) {
    const struct op_kind *kind = run->op_case->kind;
    size_t bytes = kind->workspace ? kind->workspace(run, scene->ops, scene->device) : 0;
    int status = device_alloc(scene->device, bytes + OP_GUARD, &scene->workspace);
    if (status)
        return status;
    unsigned char guard[OP_GUARD];
    memset(guard, 0xff, sizeof guard);
    status = stream_copy_to_device(scene->stream, (char *)scene->workspace + bytes, guard, sizeof guard);
    scene->exec = (struct exec){.stream = scene->stream, .workspace = scene->workspace, .workspace_bytes = bytes};
    if (!status && kind->prepare)
        status = kind->prepare(run, scene->ops, &scene->exec);
    int waited = stream_wait(scene->stream); /* for the guard's bytes */
    return status ? status : waited;
}

int op_scene_leave(struct op_scene *scene, struct op_run *run) {
    const struct op_kind *kind = run->op_case->kind;
    unsigned char guard[OP_GUARD];
    int status =
        stream_copy_to_host(scene->stream, guard, (char *)scene->workspace + scene->exec.workspace_bytes, sizeof guard);
    if (!status)
        status = stream_wait(scene->stream);
    for (int i = 0; i < OP_GUARD && !status; i++)
        if (guard[i] != 0xff)
            status = status_fail(STATUS_INVALID, "byte %d after the workspace of %zu was written", i,
                                 scene->exec.workspace_bytes);
    if (kind->release)
        kind->release(run, scene->device);
    device_free(scene->device, scene->workspace);
    scene->workspace = scene->exec.workspace = NULL;
    scene->exec.workspace_bytes = 0;
    return status;
}

/* Guards, gaps and inputs still hold what they held. */
static int check_untouched(const struct op_tensor *t, const unsigned char *image) {
    size_t size = dtype_bytes(t->type), row = (size_t)t->stride * size;
    for (size_t i = 0; i < t->image_bytes; i++) {
        if (image[i] == t->image[i])
            continue;
        size_t at = i - OP_GUARD;
        bool is_inside = i >= OP_GUARD && at < op_tensor_span(t) && at % row < (size_t)t->cols * size;
        if (!is_inside)
            return status_fail(STATUS_INVALID, "%s: byte %lld outside its elements was written", t->name,
                               (long long)i - OP_GUARD);
        if (t->role == OP_IN)
            return status_fail(STATUS_INVALID, "%s[%zu,%zu], an input, was changed", t->name, at / row,
                               at % row / size);
    }
    return STATUS_OK;
}

static double rounding(enum dtype type) {
    return type == DTYPE_BF16 ? 0x1p-8 : type == DTYPE_F32 ? 0x1p-24 : type == DTYPE_F64 ? 0x1p-53 : 0;
}

static int check_tensor(const struct op_run *run, int index, struct stream *stream) {
    const struct op_tensor *t = &run->tensor[index];
    unsigned char *image = malloc(t->image_bytes);
    if (!image)
        return status_fail(STATUS_MEMORY, "out of memory for tensor %s", t->name);
    int status = stream_copy_to_host(stream, image, t->block, t->image_bytes);
    if (!status)
        status = stream_wait(stream);
    if (!status)
        status = check_untouched(t, image);
    free(image);
    if (status || t->role == OP_IN)
        return status;
    double *got, largest = 0;
    status = op_run_read(run, index, stream, &got);
    if (status)
        return status;
    for (int64_t i = 0; i < t->rows * t->cols; i++)
        largest = fmax(largest, fabs(t->expected[i]));
    for (int64_t i = 0; i < t->rows * t->cols && !status; i++) {
        double want = t->expected[i] + (t->role == OP_ADDED ? t->value[i] : 0);
        double allowed = rounding(t->type) * fabs(want) + (t->type == DTYPE_I32 ? 0 : t->bound * largest);
        /* Infinities of the same sign agree (log of nothing). */
        if (got[i] != want && !(fabs(got[i] - want) <= allowed))
            status = status_fail(STATUS_INVALID, "%s[%lld,%lld] is %.9g, expected %.9g within %.2g", t->name,
                                 (long long)(i / t->cols), (long long)(i % t->cols), got[i], want, allowed);
    }
    free(got);
    return status;
}

static bool run_supports(const struct op_run *run, const struct op_scene *scene) {
    const struct op_kind *kind = run->op_case->kind;
    return !kind->supports || kind->supports(run, scene->ops, scene->device);
}

/* One call on fresh tensors. */
static int call_once(struct op_scene *scene, struct op_run *run) {
    int status = op_run_reset(run, scene->stream);
    if (status)
        return status;
    status = op_scene_enter(scene, run);
    if (!status)
        status = run->op_case->kind->call(run, scene->ops, &scene->exec);
    int waited = stream_wait(scene->stream);
    status = status ? status : waited;
    int left = op_scene_leave(scene, run);
    return status ? status : left;
}

/* A call that the device lacks is refused in its preparation, at once, or by the wait. Errors stay on a device
 * (backend.h), so the call has one of its own. */
static int check_refusal(const struct op_scene *scene, const struct op_run *run) {
    struct op_scene other;
    struct op_run own = {0};
    int status = open_scene(&other, scene->backend, 2);
    other.ops = scene->ops;
    if (!status)
        status = op_run_open(&own, run->op_case, other.device, other.stream);
    if (!status) {
        int called = op_scene_enter(&other, &own);
        called = called ? called : own.op_case->kind->call(&own, other.ops, &other.exec);
        int waited = stream_wait(other.stream);
        op_scene_leave(&other, &own);
        if ((called ? called : waited) != STATUS_UNSUPPORTED)
            status =
                status_fail(STATUS_INVALID, "not supported, but the call returned %d, and the wait %d", called, waited);
    }
    op_run_close(&own, other.device);
    close_scene(&other);
    return status;
}

static int check_case_reference(struct op_scene *scene, struct op_run *run) {
    if (!run_supports(run, scene))
        return check_refusal(scene, run);
    int status = call_once(scene, run);
    for (int i = 0; i < OP_TENSORS && !status; i++)
        if (run->tensor[i].role)
            status = check_tensor(run, i, scene->stream);
    return status;
}

static int check_element(struct op_run *run, int gradient, int64_t at, double got, double largest) {
    struct op_tensor *t = &run->tensor[run->tensor[gradient].gradient_of - 1];
    const struct op_tensor *g = &run->tensor[gradient];
    double kept = t->value[at], step = 1e-4 * fmax(fabs(kept), 1e-1);
    t->value[at] = kept + step;
    double above = run->op_case->kind->loss(run);
    t->value[at] = kept - step;
    double below = run->op_case->kind->loss(run);
    t->value[at] = kept;
    /* Central differences leave step^2 of the third derivative, and the roundings of the two sums. */
    double want = (above - below) / (2 * step);
    double noise = 0x1p-50 * (fabs(above) + fabs(below)) / step;
    double allowed = rounding(g->type) * fabs(want) + (g->bound + 2e-6) * largest + noise;
    if (!(fabs(got - want) <= allowed))
        return status_fail(STATUS_INVALID, "%s[%lld,%lld] is %.9g, finite differences give %.9g within %.2g", g->name,
                           (long long)(at / g->cols), (long long)(at % g->cols), got, want, allowed);
    return STATUS_OK;
}

static int check_case_gradients(struct op_scene *scene, struct op_run *run) {
    if (!run->op_case->kind->loss || !run_supports(run, scene))
        return STATUS_OK;
    int status = call_once(scene, run);
    for (int g = 0; g < OP_TENSORS && !status; g++) {
        const struct op_tensor *t = &run->tensor[g];
        if (!t->role || !t->gradient_of)
            continue;
        double *got, largest = 0;
        status = op_run_read(run, g, scene->stream, &got);
        if (status)
            return status;
        int64_t count = t->rows * t->cols;
        for (int64_t i = 0; i < count; i++) {
            got[i] -= t->role == OP_ADDED ? t->value[i] : 0;
            largest = fmax(largest, fabs(got[i]));
        }
        /* A value that existed before an addition costs one more rounding of its own size. */
        double before = 0;
        for (int64_t i = 0; t->role == OP_ADDED && i < count; i++)
            before = fmax(before, fabs(t->value[i]));
        for (int i = 0; i < SAMPLED_ELEMENTS && count > 0 && !status; i++) {
            int64_t at =
                (int64_t)(philox(7, (uint32_t)i, (uint32_t)g, 0, (uint32_t)RNG_TEST << 24).word[0] % (uint64_t)count);
            status = check_element(run, g, at, got[at], largest + before);
        }
        free(got);
    }
    return status;
}

/* The tensors of a call as raw bytes, one after the other; NULL without memory. */
static unsigned char *snapshot(const struct op_run *run, struct stream *stream, size_t *bytes) {
    *bytes = 0;
    for (int i = 0; i < OP_TENSORS; i++)
        *bytes += run->tensor[i].role ? run->tensor[i].image_bytes : 0;
    unsigned char *all = malloc(*bytes), *at = all;
    for (int i = 0; i < OP_TENSORS && all; i++) {
        const struct op_tensor *t = &run->tensor[i];
        if (!t->role)
            continue;
        stream_copy_to_host(stream, at, t->block, t->image_bytes);
        at += t->image_bytes;
    }
    stream_wait(stream);
    return all;
}

static int check_case_threads(struct op_scene *scene, struct op_run *run) {
    unsigned char *first = NULL;
    size_t bytes = 0;
    int status = STATUS_OK;
    if (!run_supports(run, scene))
        return STATUS_OK;
    for (int threads = 1; threads <= 3 && !status; threads++) {
        struct op_scene other;
        struct op_run own = {0};
        status = open_scene(&other, scene->backend, threads);
        other.ops = scene->ops;
        if (!status)
            status = op_run_open(&own, run->op_case, other.device, other.stream);
        if (!status)
            status = call_once(&other, &own);
        unsigned char *now = status ? NULL : snapshot(&own, other.stream, &bytes);
        if (!status && !now)
            status = status_fail(STATUS_MEMORY, "out of memory");
        if (!status && first && memcmp(first, now, bytes))
            status = status_fail(STATUS_INVALID, "%d threads give other bits than one", threads);
        if (first)
            free(now);
        else
            first = now;
        op_run_close(&own, other.device);
        close_scene(&other);
    }
    free(first);
    return status;
}

/* The table of a level of instructions, or at the first the only one of a device without levels; or NULL. */
static const struct ops *table_at(const struct device *device, int level) {
    const struct ops *ops = ops_for_level(device, levels[level]);
    return ops || level > 0 || ops_for_level(device, levels[0]) ? ops : ops_for(device);
}

static int check_case(const struct op_case *c, struct op_scene *scene,
                      int (*check)(struct op_scene *scene, struct op_run *run), bool needs_reference) {
    struct op_run run = {0};
    char text[200];
    op_case_text(c, text, sizeof text);
    int status = op_run_open(&run, c, scene->device, scene->stream);
    if (status)
        return status_wrap(status, "%s", text);
    if (needs_reference)
        c->kind->reference(&run);
    for (int i = 0; i < LEVELS && !status; i++) {
        scene->ops = table_at(scene->device, i);
        if (scene->ops)
            status = check(scene, &run);
        if (status)
            status = status_wrap(status, "%s, level %s", text, levels[i]);
    }
    op_run_close(&run, scene->device);
    return status;
}

static int check_family(const struct op_family *family, const char *backend, bool is_long,
                        int (*check)(struct op_scene *scene, struct op_run *run), bool needs_reference) {
    struct op_scene scene;
    int status = open_scene(&scene, backend, 2);
    for (int i = 0; i < family->count && !status; i++) {
        enum op_use use = family->cases[i].use;
        if (use & OP_TEST || (is_long && use & OP_LONG))
            status = check_case(&family->cases[i], &scene, check, needs_reference);
    }
    close_scene(&scene);
    return status;
}

int op_check_reference(const struct op_family *family, const char *backend, bool is_long) {
    return check_family(family, backend, is_long, check_case_reference, true);
}

/* Calls give the same bits. A stand-in for a GPU runs the blocks and warps of each one in another order. */
static int check_case_calls(struct op_scene *scene, struct op_run *run, int count) {
    unsigned char *first = NULL;
    size_t bytes = 0;
    int status = STATUS_OK;
    for (int i = 0; i < count && !status && run_supports(run, scene); i++) {
        status = call_once(scene, run);
        unsigned char *now = status ? NULL : snapshot(run, scene->stream, &bytes);
        if (!status && !now)
            status = status_fail(STATUS_MEMORY, "out of memory");
        if (!status && first && memcmp(first, now, bytes))
            status = status_fail(STATUS_INVALID, "call %d gives other bits", i + 1);
        if (first)
            free(now);
        else
            first = now;
    }
    free(first);
    return status;
}

static int check_case_orders(struct op_scene *scene, struct op_run *run) {
    return check_case_calls(scene, run, ORDERS);
}

static int check_case_orders_long(struct op_scene *scene, struct op_run *run) {
    return check_case_calls(scene, run, ORDERS_LONG);
}

int op_check_gradients(const struct op_family *family, const char *backend, bool is_long) {
    return check_family(family, backend, is_long, check_case_gradients, false);
}

int op_check_threads(const struct op_family *family, const char *backend, bool is_long) {
    bool is_card = !strncmp(backend, "cuda", strlen("cuda"));
    return check_family(family, backend, is_long,
                        !is_card  ? check_case_threads
                        : is_long ? check_case_orders_long
                                  : check_case_orders,
                        false);
}

/* The reference, the gradients, and the same bits again. */
static int check_case_whole(struct op_scene *scene, struct op_run *run) {
    int status = check_case_reference(scene, run);
    if (!status)
        status = check_case_gradients(scene, run);
    return status ? status : check_case_calls(scene, run, 3);
}

int op_check_each(const char *backend, bool (*chooses)(const struct op_case *op_case, const void *context),
                  int (*report)(const struct op_case *op_case, int status, void *context), void *context) {
    struct op_scene scene;
    int status = open_scene(&scene, backend, 2);
    for (int f = 0; op_family_at(f) && !status; f++)
        for (int i = 0; i < op_family_at(f)->count && !status; i++) {
            const struct op_case *op_case = &op_family_at(f)->cases[i];
            if (op_case->use & OP_TEST && chooses(op_case, context))
                status = report(op_case, check_case(op_case, &scene, check_case_whole, true), context);
        }
    close_scene(&scene);
    return status;
}
