/* Modules, their kernels, and launches, alone and in graphs. */
#include "cuda/card.h"
#include "cuda/fatbin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct function {
    struct ptx_module *ptx;
    struct ptx_kernel *kernel;
    int most_dynamic; /* bytes of shared memory that a launch may ask for; below 0: what there is without asking */
    struct function *next;
};

/* A text that was loaded, and what is decoded of it. It is kept for the next module of that text. */
struct image {
    struct ptx_module *ptx;
    int users; /* modules */
    struct image *next;
};

struct module {
    struct image *image;
    struct function *functions;
};

/* ---- modules and launches ---- */

static int place(void *context, struct ptx_variable *variable) {
    struct card *card = context;
    variable->address = memory_alloc(&card->machine, variable->bytes ? variable->bytes : 1);
    return variable->address ? memory_write(&card->machine, variable->address, variable->values, variable->bytes) : -1;
}

/* The image of this text, or NULL. Modules share one, unless they have variables: those get their first values. */
static struct image *find_image(struct card *card, const char *text, size_t length) {
    struct image *image = card->images;
    while (image && ((size_t)(image->ptx->end - image->ptx->text) != length ||
                     memcmp(image->ptx->text, text, length) != 0 || (image->users && image->ptx->variables))) {
        image = image->next;
    }
    for (const struct ptx_variable *v = image ? image->ptx->variables : NULL; v; v = v->next) {
        memory_write(&card->machine, v->address, v->values, v->bytes);
    }
    return image;
}

static struct image *make_image(struct card *card, const char *text, size_t length, char *message) {
    struct image *image = calloc(1, sizeof *image);
    if (image && ptx_open("module", text, length, place, card, &image->ptx, message)) {
        free(image);
        return NULL;
    }
    if (image) {
        image->next = card->images;
        card->images = image;
    }
    return image;
}

static CUresult decoded(int status, const char *message) {
    if (status) {
        fprintf(stderr, "cuda stand-in: %s\n", message);
    }
    return status ? CUDA_ERROR_INVALID_PTX : CUDA_SUCCESS;
}

static CUresult load(struct card *card, const char *text, size_t length, struct module **out) {
    char message[PTX_MESSAGE] = "out of memory";
    struct image *image = find_image(card, text, length);
    struct module *module = calloc(1, sizeof *module);
    image = image || !module ? image : make_image(card, text, length, message);
    if (!image || !module) {
        free(module);
        return decoded(-1, message);
    }
    image->users++;
    module->image = image;
    *out = module;
    return CUDA_SUCCESS;
}

/* Decodes a kernel that is used for the first time: a program loads all of them, and uses a few. */
static CUresult prepare(const struct function *function) {
    char message[PTX_MESSAGE];
    return decoded(ptx_decode(function->ptx, function->kernel, message), message);
}

static int most_dynamic(const struct function *function) {
    return function->most_dynamic >= 0 ? function->most_dynamic : PLAIN_SHARED - (int)function->kernel->shared_bytes;
}

API CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    struct card *card;
    CUresult result = card_enter(&card);
    const char *text;
    size_t length;
    struct module *loaded = NULL;
    if (!result) {
        result = fatbin_ptx(image, CAPABILITY, &text, &length) ? CUDA_ERROR_NO_BINARY_FOR_GPU
                                                               : load(card, text, length, &loaded);
    }
    if (!result) {
        *module = (CUmodule)loaded;
    }
    return card_leave(card, result);
}

API CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    return cuModuleLoadData(module, image);
}

API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    struct card *card;
    CUresult result = card_enter(&card);
    struct module *loaded = (struct module *)module;
    struct ptx_kernel *kernel = result ? NULL : ptx_kernel_find(loaded->image->ptx, name);
    struct function *found = kernel ? calloc(1, sizeof *found) : NULL;
    if (!result && !found) {
        result = kernel ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_NOT_FOUND;
    } else if (!result) {
        *found = (struct function){
            .ptx = loaded->image->ptx, .kernel = kernel, .most_dynamic = -1, .next = loaded->functions};
        loaded->functions = found;
        *function = (CUfunction)found;
    }
    return card_leave(card, result);
}

API CUresult cuModuleUnload(CUmodule module) {
    struct card *card;
    CUresult result = card_enter(&card);
    struct module *loaded = (struct module *)module;
    if (card) {
        streams_run(&card->streams, NULL, NULL);
    }
    while (loaded->functions) {
        struct function *function = loaded->functions;
        loaded->functions = function->next;
        free(function);
    }
    loaded->image->users--;
    free(loaded);
    return card_leave(card, result);
}

void modules_forget(struct card *card) {
    while (card->images) {
        struct image *image = card->images;
        card->images = image->next;
        ptx_close(image->ptx);
        free(image);
    }
}

API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    struct card *card;
    CUresult result = card_enter(&card);
    struct function *set = (struct function *)function;
    result = result ? result : prepare(set);
    if (!result && attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        bool fits = value >= 0 && (uint32_t)value + set->kernel->shared_bytes <= MOST_SHARED;
        result = fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        set->most_dynamic = fits ? value : set->most_dynamic;
    }
    return card_leave(card, result);
}

API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    struct card *card;
    CUresult result = card_enter(&card);
    const struct function *asked = (struct function *)function;
    bool is_known = true;
    result = result ? result : prepare(asked);
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = (int)asked->kernel->shared_bytes;
        break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        *value = (int)asked->kernel->local_bytes;
        break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = most_dynamic(asked);
        break;
    default:
        is_known = false;
    }
    return card_leave(card, result ? result : is_known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

/* The parameters as the kernel has them, from one pointer each; NULL where there is no memory. */
static void *gather(const struct ptx_kernel *kernel, void **arguments) {
    char *params = calloc(1, kernel->param_bytes + 1);
    for (size_t p = 0; params && p < kernel->param_count; p++) {
        memcpy(params + kernel->params[p].at, arguments[p], kernel->params[p].bytes);
    }
    return params;
}

API CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
                            void **arguments, void **extra) {
    struct card *card;
    CUresult result = card_enter(&card);
    const struct function *launched = (struct function *)function;
    bool is_valid = !extra && grid_x && grid_y && grid_z && block_x && block_y && block_z && block_z <= 64 &&
                    grid_y <= 65535 && grid_z <= 65535 && (uint64_t)block_x * block_y * block_z <= LAUNCH_MOST_THREADS;
    result = result ? result : prepare(launched);
    if (!result && (!is_valid || (int64_t)shared_bytes > most_dynamic(launched))) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (!result && card_fails(card, CALL_BUS)) {
        machine_fail(&card->machine, "GPU %d has left the bus", card->slot);
    } else if (!result) {
        struct work work = {.kind = WORK_LAUNCH,
                            .fails = card_fails(card, CALL_LAUNCH),
                            .launch = {.kernel = launched->kernel,
                                       .grid = {grid_x, grid_y, grid_z},
                                       .block = {block_x, block_y, block_z},
                                       .dynamic_shared = shared_bytes,
                                       .params = gather(launched->kernel, arguments)}};
        struct stream *known = card_stream(card, stream);
        card->outside += known && !known->captured;
        if (!known || !work.launch.params || stream_queue(known, &work)) {
            free((void *)work.launch.params);
            result = known ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_HANDLE;
        }
    }
    return card_leave(card, result);
}

/* A launch that may begin early begins in its turn here: the one attribute that the program sets. */
API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *attribute = &config->attrs[i];
        if (attribute->id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION ||
            attribute->value.programmaticStreamSerializationAllowed != 1) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return cuLaunchKernel(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                          config->blockDimY, config->blockDimZ, config->sharedMemBytes, config->hStream, arguments,
                          extra);
}

/* ---- graphs ---- */

API CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    struct card *card;
    CUresult result = card_enter(&card);
    struct stream *captured = result ? NULL : card_stream(card, stream);
    result = result || captured ? result : CUDA_ERROR_INVALID_HANDLE;
    if (!result && (captured->captured || !stream || mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    struct graph *graph = result ? NULL : calloc(1, sizeof *graph);
    if (graph) {
        graph->last = &graph->first;
        captured->captured = graph;
        card_captures++;
    }
    return card_leave(card, result || graph ? result : CUDA_ERROR_OUT_OF_MEMORY);
}

API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    struct card *card;
    CUresult result = card_enter(&card);
    struct stream *captured = result ? NULL : card_stream(card, stream);
    result = result || captured ? result : CUDA_ERROR_INVALID_HANDLE;
    if (!result && !captured->captured) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    }
    if (!result) {
        *graph = (CUgraph)captured->captured;
        result = stream_end_capture(captured) ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        card_captures--;
    }
    if (result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED) {
        graph_free((struct graph *)*graph);
        *graph = NULL;
    }
    return card_leave(card, result);
}

/* The instance takes the graph's work, so a graph makes one instance. */
API CUresult cuGraphInstantiateWithFlags(CUgraphExec *instance, CUgraph graph, unsigned long long flags) {
    struct card *card;
    CUresult result = card_enter_outside(&card);
    struct graph *from = (struct graph *)graph;
    struct graph *to = result || flags ? NULL : calloc(1, sizeof *to);
    if (!result && !to) {
        result = flags ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!result) {
        to->first = from->first;
        from->first = NULL;
        *instance = (CUgraphExec)to;
    }
    return card_leave(card, result);
}

API CUresult cuGraphDestroy(CUgraph graph) {
    struct card *card;
    CUresult result = card_enter(&card);
    graph_free((struct graph *)graph);
    return card_leave(card, result);
}

API CUresult cuGraphLaunch(CUgraphExec instance, CUstream stream) {
    struct card *card;
    CUresult result = card_enter(&card);
    struct stream *known = result ? NULL : card_stream(card, stream);
    result = result || known ? result : CUDA_ERROR_INVALID_HANDLE;
    if (!result && known->captured) {
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* the driver would make a child of it */
    }
    if (!result) {
        card->graph_launches++;
    }
    if (!result && stream_queue_graph(known, (const struct graph *)instance)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return card_leave(card, result);
}

API CUresult cuGraphExecDestroy(CUgraphExec instance) {
    struct card *card;
    CUresult result = card_enter(&card);
    if (card) {
        streams_run(&card->streams, NULL, NULL);
    }
    graph_free((struct graph *)instance);
    return card_leave(card, result);
}
