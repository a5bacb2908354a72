/* The CPU as a backend: memory, streams that run at once, and the choice of the widest table that the processor has. */
#include "cpu/cpu-internal.h"

#include <omp.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { HUGE_PAGE = 2 << 20, BLOCK_HEADER = 64 };
enum { MOST_THREADS = 256 }; /* unless there are more cores; more threads would only wait for each other */

/* The header before each block, from which cpu_free finds the mapping. */
struct block {
    void *mapping;
    size_t bytes;
};

/* Asks Linux for AMX's registers, which a process may not use before. */
static bool may_use_tiles(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18 };
    return __builtin_cpu_supports("amx-bf16") && !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA);
}

static bool level_runs_here(const char *level) {
    __builtin_cpu_init();
    if (!strcmp(level, "v2"))
        return true;
    bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
              __builtin_cpu_supports("avx512cd");
    if (!strcmp(level, "v3"))
        return v3;
    if (!strcmp(level, "v4"))
        return v4;
    bool v4bf16 = v4 && __builtin_cpu_supports("avx512bf16");
    if (!strcmp(level, "v4bf16"))
        return v4bf16;
    return !strcmp(level, "v4amx") && v4bf16 && may_use_tiles();
}

static const struct {
    const char *level, *instructions;
    const struct ops *ops;
} levels[] = {
#ifdef CAMBIUM_HAS_v4amx
    {"v4amx", "amx_bf16", &cpu_ops_v4amx},
#endif
#ifdef CAMBIUM_HAS_v4bf16
    {"v4bf16", "avx512_bf16", &cpu_ops_v4bf16},
#endif
#ifdef CAMBIUM_HAS_v4
    {"v4", "avx512", &cpu_ops_v4},
#endif
    {"v3", "avx2", &cpu_ops_v3},
#ifdef CAMBIUM_HAS_v2
    {"v2", "sse4.2", &cpu_ops_v2},
#endif
};

static const struct ops *cpu_ops_for_level(const struct device *device, const char *level) {
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (!strcmp(levels[i].level, level) && level_runs_here(level))
            return levels[i].ops;
    return NULL;
}

/* Returns the number of threads: `asked`, or the cores if that is 0, but at most the sensible number and what OpenMP
 * gives. Its environment may allow fewer (OMP_THREAD_LIMIT, OMP_MAX_ACTIVE_LEVELS). oneDNN would then skip the work of
 * the missing threads. */
static int find_threads(int asked) {
    int cores = usable_cores(), most = cores > MOST_THREADS ? cores : MOST_THREADS;
    int wanted = asked > 0 ? asked : cores, threads = wanted < most ? wanted : most, given = threads;
    omp_set_dynamic(0);
#pragma omp parallel num_threads(threads)
#pragma omp master
    given = omp_get_num_threads();
    return given;
}

/* It starts no threads, and reads OpenMP's limits instead. */
static int cpu_sketch(const struct device_facts *facts, struct device **out) {
    struct cpu_device *cpu = calloc(1, sizeof *cpu);
    int most = omp_get_max_active_levels() > 0 ? omp_get_thread_limit() : 1;
    TRY(status_allocated(cpu));
    struct device *device = &cpu->device;
    device->backend = &backend_cpu;
    device->is_batch_invariant = true;
    cpu->is_elsewhere = facts->is_elsewhere;
    int wanted = facts->threads > 0 ? facts->threads : usable_cores();
    device->threads = wanted < most ? wanted : most;
    for (size_t i = 0; !device->ops; i++)
        if (level_runs_here(levels[i].level)) {
            device->ops = levels[i].ops;
            snprintf(device->description, sizeof device->description, "cpu, %d thread%s, %s", device->threads,
                     device->threads == 1 ? "" : "s", levels[i].instructions);
        }
    int status = gemm_cache_open(&cpu->gemms);
    if (status) {
        free(cpu);
        return status;
    }
    *out = device;
    return STATUS_OK;
}

static int cpu_open(int number, int threads, struct device **out) {
    int status = cpu_sketch(&(const struct device_facts){.threads = find_threads(threads)}, out);
    TRY(status);
    struct cpu_device *cpu = (struct cpu_device *)*out;
    cpu->has_team = true;
    waits_begin(&cpu->team, (*out)->threads);
    return STATUS_OK;
}

static void cpu_close(struct device *device) {
    struct cpu_device *cpu = (struct cpu_device *)device;
    if (cpu->has_team)
        waits_end(&cpu->team);
    gemm_cache_close(cpu_gemms(device));
    free(device);
}

/* Fresh pages are always zero. */
static int cpu_alloc(struct device *device, size_t bytes, bool is_zeroed, void **memory) {
    *memory = NULL;
    /* Large blocks start at a huge page, less the header before them. */
    size_t slack = bytes >= HUGE_PAGE ? HUGE_PAGE : 4096;
    size_t total = bytes + slack + BLOCK_HEADER;
    void *mapping =
        total < bytes ? MAP_FAILED : mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED)
        return status_fail(STATUS_MEMORY, "cannot allocate %.1f MB", (double)bytes / 1e6);
    uintptr_t start = ((uintptr_t)mapping + BLOCK_HEADER + slack - 1) / slack * slack;
    if (bytes >= HUGE_PAGE)
        madvise((void *)start, bytes, MADV_HUGEPAGE);
    struct block *block = (struct block *)(start - BLOCK_HEADER);
    *block = (struct block){.mapping = mapping, .bytes = total};
    *memory = (void *)start;
    return STATUS_OK;
}

static void cpu_free(struct device *device, void *memory) {
    struct block block = *(struct block *)((char *)memory - BLOCK_HEADER);
    munmap(block.mapping, block.bytes);
}

/* This does not use malloc, which would keep a freed block in the arena of a rank's thread. */
static int cpu_host_alloc(struct device *device, size_t bytes, void **memory) {
    return cpu_alloc(device, bytes, true, memory);
}

/* The head's rows are few enough for the caches. For fewer gradients than a bucket's, starting a sum over ranks takes
 * longer than the sum. */
const struct ops_sizes *cpu_sizes(struct device *device) {
    static const struct ops_sizes sizes = {.head_rows = 512,
                                           .head_rows_multiple = 64,
                                           .step_rows = 64,
                                           .bank_scratch_bytes = 4 << 20,
                                           .bucket_elements = 1 << 14};
    return &sizes;
}

int64_t cpu_kv_page_elements(struct device *device, int kv_heads, int head_size, enum dtype type) {
    return 2 * (int64_t)kv_heads * KV_PAGE_TOKENS * head_size;
}

static int cpu_stream_open(struct device *device, struct stream **stream) {
    *stream = malloc(sizeof **stream);
    TRY(status_allocated(*stream));
    **stream = (struct stream){.device = device};
    return STATUS_OK;
}

static void cpu_stream_close(struct stream *stream) {
    free(stream);
}

static int cpu_stream_wait(struct stream *stream) {
    return STATUS_OK;
}

static int cpu_copy(struct stream *stream, const struct copy_call *copy) {
    bool is_one = copy->rows == 1 || (copy->to_stride == copy->bytes && copy->from_stride == copy->bytes);
    if (is_one)
        memcpy(copy->to, copy->from, copy->rows * copy->bytes);
    for (size_t i = 0; i < copy->rows && !is_one; i++)
        memcpy((char *)copy->to + i * copy->to_stride, (const char *)copy->from + i * copy->from_stride, copy->bytes);
    return STATUS_OK;
}

static int cpu_zero(struct stream *stream, void *memory, size_t bytes) {
    memset(memory, 0, bytes);
    return STATUS_OK;
}

/* Calls run when they are queued, so an event has nothing to wait for. */
struct cpu_event {
    struct event event;
    double recorded; /* as clock_seconds */
};

static int cpu_event_open(struct device *device, struct event **event) {
    struct cpu_event *own = calloc(1, sizeof *own);
    *event = NULL;
    TRY(status_allocated(own));
    *event = &own->event;
    own->event.device = device;
    return STATUS_OK;
}

static void cpu_event_close(struct event *event) {
    free(event);
}

static int cpu_event_record(struct event *event, struct stream *stream) {
    ((struct cpu_event *)event)->recorded = clock_seconds();
    return STATUS_OK;
}

static int cpu_event_wait(struct event *event) {
    return STATUS_OK;
}

static int cpu_event_seconds(const struct event *from, const struct event *to, double *seconds) {
    *seconds = ((const struct cpu_event *)to)->recorded - ((const struct cpu_event *)from)->recorded;
    return STATUS_OK;
}

/* There is nothing to wait for: all work has run when its call returns. */
static int cpu_stream_wait_event(struct stream *stream, struct event *event) {
    return STATUS_OK;
}

const struct backend backend_cpu = {
    .name = "cpu",
    .host_reads_memory = true,
    .open = cpu_open,
    .sketch = cpu_sketch,
    .close = cpu_close,
    .ops_for_level = cpu_ops_for_level,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .host_alloc = cpu_host_alloc,
    .host_free = cpu_free,
    .measure_gemm = cpu_measure_gemm,
    .time_read = cpu_time_read,
    .stream_open = cpu_stream_open,
    .stream_close = cpu_stream_close,
    .stream_wait = cpu_stream_wait,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .event_open = cpu_event_open,
    .event_close = cpu_event_close,
    .event_record = cpu_event_record,
    .event_wait = cpu_event_wait,
    .event_seconds = cpu_event_seconds,
    .stream_wait_event = cpu_stream_wait_event,
};
