/* The peak memory of a process with an engine, compared with the engine's plan. */
#include "engine.h"
#include "infer/slots.h"

#include <sys/mman.h>

struct trial {
    struct engine_bench *bench;
    bool has_adapter;
    size_t planned; /* reported by the other process */
};

/* Texts that fill the whole cache. */
static int fill(const void *context) {
    struct trial *trial = *(struct trial *const *)context;
    struct engine_bench *bench = trial->bench;
    struct engine *engine = NULL;
    struct engine_group group = {0};
    int slots[ENGINE_TEXTS];
    int64_t pages = (bench->in + bench->out + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    char path[96];
    const char *adapter = path;
    engine_adapters_path(bench, ADAPTER_LARGE, path);
    struct engine_options options = {.max_sequences = ENGINE_TEXTS,
                                     .cache_tokens = ENGINE_TEXTS * pages * KV_PAGE_TOKENS,
                                     .adapters = &adapter,
                                     .adapter_count = trial->has_adapter};
    int status = engine_bench_open(bench, options, &engine);
    for (int k = 0; k < ENGINE_TEXTS && !status; k++)
        slots[k] = engine_opened_slot(engine);
    THEN(status, engine_group_open(&group, engine, slots, ENGINE_TEXTS, bench->in));
    double unused;
    for (int64_t i = 0; i < bench->out && !status; i++)
        status = engine_group_step(&group, &unused);
    trial->planned = status ? 0 : engine_planned_bytes(engine);
    engine_group_close(&group);
    engine_close(engine);
    return status;
}

int engine_figure_memory(struct engine_bench *bench, json_t **figure) {
    struct trial *trial = mmap(NULL, sizeof *trial, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (trial == MAP_FAILED)
        return status_fail_errno("cannot share memory with a process");
    *trial = (struct trial){.bench = bench, .has_adapter = bench->variant};
    size_t peak;
    int status = bench_peak_of(fill, &trial, &peak);
    if (!status)
        *figure =
            json_pack("{s:s, s:f, s:I, s:I}", "figure", bench->figure, "ratio", (double)peak / (double)trial->planned,
                      "peak_rss_bytes", (json_int_t)peak, "planned_bytes", (json_int_t)trial->planned);
    munmap(trial, sizeof *trial);
    return status ? status : bench_print(json_incref(*figure));
}
