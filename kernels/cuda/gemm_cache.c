/* Products of cuBLASLt. The library has matrices by columns: C' = op(B)' op(A)' is the product of ours by rows, so its
 * first matrix is our B, and its rows are our columns.
 *
 * One set of descriptors serves all products of a device, under a lock, so that no call allocates. */
#include "cuda/gemm-internal.h"

#include <math.h>

enum { PLANS = 4096, WAYS = 8, LARGE_WORKSPACE = 32 << 20, SMALL_WORKSPACE = 4 << 20 };

/* One algorithm for all numbers of rows is the first of these proposals for INVARIANT_ROWS that takes one row and
 * MANY_ROWS. */
enum { INVARIANT_ROWS = 64, MANY_ROWS = 8192, INVARIANT_PROPOSALS = 16 };

/* The time of an algorithm is the best of MEASURED_RUNS after a first run. */
enum { MEASURED_RUNS = 5, MEASURED_PROPOSALS = 32 };

struct plan {
    struct gemm_form form; /* m is 0: the place is free */
    bool is_missing;       /* the library has no algorithm for it */
    struct cublaslt_algorithm algorithm;
};

struct cuda_gemm_cache {
    pthread_mutex_t lock;
    struct cublaslt library;
    struct cublasLtContext *context;
    struct cublaslt_operation *operation;
    struct cublaslt_layout *a, *b, *c;
    struct cublaslt_preference *preference;
    bool has_invariance;         /* the library has its own batch invariance */
    char name[32];               /* and version */
    int proposals;               /* that a new form measures; 0: none */
    struct gemm_choices choices; /* measured, or taken from a file */
    struct plan plans[PLANS];
};

size_t gemm_library_bytes(const struct device *device) {
    return cuda(device)->architecture >= 90 ? LARGE_WORKSPACE : SMALL_WORKSPACE;
}

/* As cuda_check, for a status of the library. */
static int check(struct device *device, unsigned status, const char *what) {
    const struct cublaslt *library = &cuda(device)->gemm_cache->library;
    return status ? cuda_fail(device, what, library->status_text(status), status) : STATUS_OK;
}

/* ---- opening ---- */

static int make_descriptors(struct device *device) {
    struct cuda_gemm_cache *cache = cuda(device)->gemm_cache;
    const struct cublaslt *library = &cache->library;
    uint64_t bytes = gemm_library_bytes(device);
    unsigned status = library->create(&cache->context);
    THEN(status, library->operation_create(&cache->operation, CUBLASLT_COMPUTE_FP32, CUBLASLT_FP32));
    THEN(status, library->layout_create(&cache->a, CUBLASLT_FP32, 1, 1, 1));
    THEN(status, library->layout_create(&cache->b, CUBLASLT_FP32, 1, 1, 1));
    THEN(status, library->layout_create(&cache->c, CUBLASLT_FP32, 1, 1, 1));
    THEN(status, library->preference_create(&cache->preference));
    THEN(status, library->preference_set(cache->preference, CUBLASLT_MOST_WORKSPACE, &bytes, sizeof bytes));
    return check(device, status, "opening cuBLASLt");
}

int cuda_gemm_cache_open(struct device *device) {
    struct cuda_gemm_cache *cache = calloc(1, sizeof *cache);
    TRY(status_allocated(cache));
    pthread_mutex_init(&cache->lock, NULL);
    cuda(device)->gemm_cache = cache;
    TRY(cublaslt_open(&cache->library));
    cache->has_invariance = cache->library.version() >= CUBLASLT_HAS_INVARIANCE;
    cublaslt_name(&cache->library, cache->name, sizeof cache->name);
    return make_descriptors(device);
}

void cuda_gemm_cache_close(struct device *device) {
    struct cuda_gemm_cache *cache = cuda(device)->gemm_cache;
    static const char what[] = "closing cuBLASLt";
    if (!cache)
        return;
    const struct cublaslt *library = &cache->library;
    if (cache->preference)
        check(device, library->preference_destroy(cache->preference), what);
    struct cublaslt_layout *const layouts[] = {cache->a, cache->b, cache->c};
    for (int i = 0; i < 3; i++)
        if (layouts[i])
            check(device, library->layout_destroy(layouts[i]), what);
    if (cache->operation)
        check(device, library->operation_destroy(cache->operation), what);
    if (cache->context)
        check(device, library->destroy(cache->context), what);
    cublaslt_close(&cache->library);
    gemm_choices_free(&cache->choices);
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}

/* ---- descriptors ---- */

/* Describes rows of `columns` elements. */
static unsigned set_layout(const struct cublaslt *library, struct cublaslt_layout *layout, uint8_t type, int64_t rows,
                           int64_t columns, int64_t stride) {
    static const uint32_t types[DTYPE_COUNT] = {[DTYPE_F32] = CUBLASLT_FP32,
                                                [DTYPE_BF16] = CUBLASLT_BF16,
                                                [DTYPE_E4M3] = CUBLASLT_E4M3,
                                                [DTYPE_E5M2] = CUBLASLT_E5M2};
    uint32_t element = types[type];
    uint64_t height = (uint64_t)columns, width = (uint64_t)rows;
    unsigned status = library->layout_set(layout, CUBLASLT_LAYOUT_TYPE, &element, sizeof element);
    THEN(status, library->layout_set(layout, CUBLASLT_LAYOUT_ROWS, &height, sizeof height));
    THEN(status, library->layout_set(layout, CUBLASLT_LAYOUT_COLUMNS, &width, sizeof width));
    return status ? status : library->layout_set(layout, CUBLASLT_LAYOUT_STRIDE, &stride, sizeof stride);
}

static unsigned set_layouts(const struct cuda_gemm_cache *cache, const struct gemm_form *form) {
    const struct cublaslt *library = &cache->library;
    bool a_transposed = form->a_transposed, b_transposed = form->b_transposed;
    unsigned status = set_layout(library, cache->a, form->b_type, b_transposed ? form->n : form->k,
                                 b_transposed ? form->k : form->n, form->ldb);
    THEN(status, set_layout(library, cache->b, form->type, a_transposed ? form->k : form->m,
                            a_transposed ? form->m : form->k, form->lda));
    return status ? status : set_layout(library, cache->c, form->c_type, form->m, form->n, form->ldc);
}

/* The library's flag for a form. */
static uint32_t invariance_of(const struct gemm_form *form) {
    int bytes = form->a_alignment | form->b_alignment | form->c_alignment, least = bytes & -bytes;
    return !form->is_batch_invariant ? CUBLASLT_INVARIANCE_UNSET
           : least >= 16             ? CUBLASLT_INVARIANT_16_BYTES
           : least >= 8              ? CUBLASLT_INVARIANT_8_BYTES
           : least >= 4              ? CUBLASLT_INVARIANT_4_BYTES
                                     : CUBLASLT_INVARIANT_2_BYTES;
}

static unsigned set_operation(const struct cuda_gemm_cache *cache, const struct gemm_form *form,
                              const struct gemm_pointers *pointers) {
    const struct cublaslt *library = &cache->library;
    const int32_t a = form->b_transposed ? CUBLASLT_TRANSPOSED : CUBLASLT_PLAIN;
    const int32_t b = form->a_transposed ? CUBLASLT_TRANSPOSED : CUBLASLT_PLAIN;
    const uint32_t epilogue = form->epilogue;
    const int32_t compute = form->is_tf32 ? CUBLASLT_COMPUTE_TF32 : CUBLASLT_COMPUTE_FP32;
    const int8_t fast = (int8_t)form->is_fast;
    const uint32_t invariance = invariance_of(form);
    const int32_t multiprocessors = form->multiprocessors;
    const struct {
        unsigned attribute;
        const void *value;
        size_t bytes;
    } rows[] = {{CUBLASLT_OPERATION_A, &a, sizeof a},
                {CUBLASLT_OPERATION_B, &b, sizeof b},
                {CUBLASLT_OPERATION_COMPUTE, &compute, sizeof compute},
                {CUBLASLT_OPERATION_EPILOGUE, &epilogue, sizeof epilogue},
                {CUBLASLT_OPERATION_BIAS, &pointers->bias, sizeof pointers->bias},
                {CUBLASLT_OPERATION_AUX, &pointers->aux, sizeof pointers->aux},
                {CUBLASLT_OPERATION_AUX_STRIDE, &form->ldc, sizeof form->ldc},
                {CUBLASLT_OPERATION_A_SCALE, &pointers->b_scale, sizeof pointers->b_scale},
                {CUBLASLT_OPERATION_B_SCALE, &pointers->a_scale, sizeof pointers->a_scale},
                {CUBLASLT_OPERATION_MULTIPROCESSORS, &multiprocessors, sizeof multiprocessors},
                {CUBLASLT_OPERATION_FAST, &fast, sizeof fast}};
    unsigned status = CUBLASLT_SUCCESS;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && !status; i++)
        status = library->operation_set(cache->operation, rows[i].attribute, rows[i].value, rows[i].bytes);
    if (!status && cache->has_invariance)
        status =
            library->operation_set(cache->operation, CUBLASLT_OPERATION_INVARIANCE, &invariance, sizeof invariance);
    return status;
}

/* The library takes 256 bytes for granted where nothing is said about alignment. Where nothing is said about partial
 * sums, it may round them to C's type, or add them in C. */
static unsigned set_limits(const struct cuda_gemm_cache *cache, const struct gemm_form *form) {
    const struct {
        unsigned attribute;
        uint32_t value;
    } rows[] = {{CUBLASLT_REDUCTIONS, form->is_one_pass ? 0 : CUBLASLT_REDUCE_IN_FP32},
                {CUBLASLT_ALIGNMENT_A, form->b_alignment},
                {CUBLASLT_ALIGNMENT_B, form->a_alignment},
                {CUBLASLT_ALIGNMENT_C, form->c_alignment},
                {CUBLASLT_ALIGNMENT_D, form->c_alignment}};
    unsigned status = CUBLASLT_SUCCESS;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && !status; i++)
        status =
            cache->library.preference_set(cache->preference, rows[i].attribute, &rows[i].value, sizeof rows[i].value);
    return status;
}

static int describe(struct device *device, const struct gemm_form *form, const struct gemm_pointers *pointers) {
    const struct cuda_gemm_cache *cache = cuda(device)->gemm_cache;
    unsigned status = set_layouts(cache, form);
    THEN(status, set_operation(cache, form, pointers));
    return check(device, status, "describing a product");
}

/* ---- plans ---- */

/* Returns the form's plan, or the place for it: a free one, or that of the form which is forgotten for it. */
static struct plan *place_of(struct cuda_gemm_cache *cache, const struct gemm_form *form) {
    const unsigned char *bytes = (const void *)form;
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < sizeof *form; i++)
        hash = (hash ^ bytes[i]) * 16777619u;
    for (uint32_t i = 0; i < WAYS; i++) {
        struct plan *plan = &cache->plans[(hash + i) % PLANS];
        if (plan->form.m == 0 || !memcmp(&plan->form, form, sizeof *form))
            return plan;
    }
    return &cache->plans[(hash + hash / PLANS % WAYS) % PLANS];
}

/* Asks the library for at most `most` algorithms. The form is described. */
static int propose(struct device *device, const struct gemm_form *form, int most, struct cublaslt_result *found,
                   int *count) {
    const struct cuda_gemm_cache *cache = cuda(device)->gemm_cache;
    *count = 0;
    TRY(check(device, set_limits(cache, form), "describing a product"));
    unsigned answer = cache->library.propose(cache->context, cache->operation, cache->a, cache->b, cache->c, cache->c,
                                             cache->preference, most, found, count);
    if (answer == CUBLASLT_NOT_SUPPORTED)
        *count = 0;
    return answer && answer != CUBLASLT_NOT_SUPPORTED ? check(device, answer, "finding an algorithm for a product")
                                                      : STATUS_OK;
}

/* Returns true if the library can run the algorithm for a form, which it then has described. */
static bool takes(struct device *device, const struct gemm_form *form, const struct cublaslt_algorithm *algorithm) {
    const struct cuda_gemm_cache *cache = cuda(device)->gemm_cache;
    struct cublaslt_result result = {.workspace_bytes = 0};
    return !set_layouts(cache, form) &&
           !cache->library.check(cache->context, cache->operation, cache->a, cache->b, cache->c, cache->c, algorithm,
                                 &result) &&
           result.workspace_bytes <= gemm_library_bytes(device);
}

/* Stores the algorithm that was chosen for the form, or else the first one that the library proposes. The form is
 * described. */
static int find_first(struct device *device, const struct gemm_form *form, struct plan *plan) {
    const struct gemm_choice *choice = gemm_choices_find(&cuda(device)->gemm_cache->choices, form);
    struct cublaslt_result found = {.state = CUBLASLT_NOT_SUPPORTED};
    if (choice) {
        *plan = (struct plan){.form = *form, .algorithm = choice->algorithm};
        return STATUS_OK;
    }
    int count;
    TRY(propose(device, form, 1, &found, &count));
    *plan = (struct plan){.form = *form, .algorithm = found.algorithm};
    plan->is_missing = count < 1 || found.state != CUBLASLT_SUCCESS;
    return STATUS_OK;
}

/* Stores the first proposal that takes every number of rows. */
static int find_for_all_rows(struct device *device, const struct gemm_form *form, struct plan *plan) {
    const struct cuda_gemm_cache *cache = cuda(device)->gemm_cache;
    struct cublaslt_result found[INVARIANT_PROPOSALS];
    struct gemm_form one = *form, many = *form;
    int count;
    one.m = 1;
    many.m = MANY_ROWS;
    TRY(check(device, set_layouts(cache, form), "describing a product"));
    TRY(propose(device, form, INVARIANT_PROPOSALS, found, &count));
    *plan = (struct plan){.form = *form, .is_missing = true};
    for (int i = 0; i < count && plan->is_missing; i++) {
        plan->algorithm = found[i].algorithm;
        plan->is_missing = found[i].state != CUBLASLT_SUCCESS || !takes(device, &one, &plan->algorithm) ||
                           !takes(device, &many, &plan->algorithm);
    }
    return STATUS_OK;
}

static bool is_of(const struct plan *plan, const struct gemm_form *form) {
    return plan->form.m && !memcmp(&plan->form, form, sizeof *form);
}

/* Stores the algorithm that all numbers of rows have, if the library can run it for this one. */
static int find_invariant(struct device *device, const struct gemm_form *form, struct plan *plan) {
    struct gemm_form all = *form; /* of which the library is asked, for all numbers of rows and all strides of C */
    all.m = INVARIANT_ROWS;
    all.ldc = form->n;
    struct plan *first = place_of(cuda(device)->gemm_cache, &all);
    TRY(is_of(first, &all) ? STATUS_OK : find_for_all_rows(device, &all, first));
    const struct plan found = *first; /* both may have one place */
    *plan = (struct plan){.form = *form, .algorithm = found.algorithm};
    plan->is_missing = found.is_missing || !takes(device, form, &found.algorithm);
    return check(device, set_layouts(cuda(device)->gemm_cache, form), "describing a product");
}

/* Describes the form, and finds its plan. The lock is held. */
static int prepare(struct device *device, const struct gemm_form *form, const struct gemm_pointers *pointers,
                   struct plan **plan) {
    *plan = place_of(cuda(device)->gemm_cache, form);
    int status = device_status(device);
    THEN(status, cuda_enter(device));
    THEN(status, describe(device, form, pointers));
    if (status || is_of(*plan, form))
        return status;
    bool is_one = form->is_batch_invariant && !cuda(device)->gemm_cache->has_invariance;
    return is_one ? find_invariant(device, form, *plan) : find_first(device, form, *plan);
}

bool cuda_gemm_cache_has(struct device *device, const struct gemm_form *form, const struct gemm_pointers *pointers) {
    struct cuda_gemm_cache *cache = cuda(device)->gemm_cache;
    struct plan *plan;
    pthread_mutex_lock(&cache->lock);
    bool has = !prepare(device, form, pointers, &plan) && !plan->is_missing;
    pthread_mutex_unlock(&cache->lock);
    return has;
}

/* Queues the product that is described; returns the library's status. */
static unsigned multiply(const struct exec *exec, const struct gemm_pointers *pointers,
                         const struct cublaslt_algorithm *algorithm) {
    struct device *device = exec->stream->device;
    const struct cuda_gemm_cache *cache = cuda(device)->gemm_cache;
    const void *added = pointers->residual ? pointers->residual : pointers->c;
    ((struct cuda_stream *)exec->stream)->is_followed = false;
    return cache->library.multiply(cache->context, cache->operation, &pointers->alpha, pointers->b, cache->a,
                                   pointers->a, cache->b, &pointers->beta, added, cache->c, pointers->c, cache->c,
                                   algorithm, pointers->workspace, gemm_library_bytes(device),
                                   cuda_stream(exec->stream));
}

/* ---- measured algorithms ---- */

/* Stores the best time of an algorithm: INFINITY if the library refuses it after all. */
static int measure_one(const struct exec *exec, const struct gemm_pointers *pointers,
                       const struct cublaslt_algorithm *algorithm, struct event *const event[2], double *best) {
    int status = STATUS_OK;
    *best = INFINITY;
    for (int run = 0; run <= MEASURED_RUNS && !status; run++) {
        double seconds = INFINITY;
        status = event_record(event[0], exec->stream);
        if (!status && multiply(exec, pointers, algorithm))
            return STATUS_OK;
        THEN(status, event_record(event[1], exec->stream));
        THEN(status, event_wait(event[1]));
        THEN(status, event_seconds(event[0], event[1], &seconds));
        *best = run > 0 ? fmin(*best, seconds) : *best;
    }
    return status;
}

/* Measures the library's proposals for a form, and keeps the fastest. The form is described. */
static int measure_all(const struct exec *exec, const struct gemm_form *form, const struct gemm_pointers *pointers,
                       struct event *const event[2], struct gemm_choice *choice) {
    struct device *device = exec->stream->device;
    struct cublaslt_result found[MEASURED_PROPOSALS];
    int count, most = cuda(device)->gemm_cache->proposals;
    int status = propose(device, form, most < MEASURED_PROPOSALS ? most : MEASURED_PROPOSALS, found, &count);
    *choice = (struct gemm_choice){.form = *form, .seconds = INFINITY, .first_seconds = INFINITY};
    for (int i = 0; i < count && !status; i++) {
        double seconds = INFINITY;
        if (found[i].state == CUBLASLT_SUCCESS)
            status = measure_one(exec, pointers, &found[i].algorithm, event, &seconds);
        if (isinf(choice->first_seconds))
            choice->first_seconds = seconds;
        if (seconds < choice->seconds) {
            choice->seconds = seconds;
            choice->algorithm = found[i].algorithm;
        }
    }
    return status;
}

/* Gives a plan the fastest algorithm, measured with these pointers. */
static int measure(const struct exec *exec, const struct gemm_form *form, const struct gemm_pointers *pointers,
                   struct plan *plan) {
    struct device *device = exec->stream->device;
    struct event *event[2] = {NULL, NULL};
    struct gemm_choice choice = {.seconds = INFINITY};
    int status = STATUS_OK;
    for (int i = 0; i < 2 && !status; i++)
        status = event_open(device, &event[i]);
    THEN(status, measure_all(exec, form, pointers, event, &choice));
    for (int i = 0; i < 2; i++)
        event_close(event[i]);
    if (status || isinf(choice.seconds))
        return status;
    plan->algorithm = choice.algorithm;
    return gemm_choices_add(&cuda(device)->gemm_cache->choices, &choice);
}

static const char *name_of(const struct device *device) {
    return cuda(device)->gemm_cache ? cuda(device)->gemm_cache->name : NULL;
}

static int tune(struct device *device, int proposals) {
    struct cuda_gemm_cache *cache = cuda(device)->gemm_cache;
    pthread_mutex_lock(&cache->lock);
    cache->proposals = proposals;
    pthread_mutex_unlock(&cache->lock);
    return STATUS_OK;
}

static bool algorithm_at(const struct device *device, int number, struct device_algorithm *algorithm) {
    struct cuda_gemm_cache *cache = cuda(device)->gemm_cache;
    pthread_mutex_lock(&cache->lock);
    bool is_there = number < cache->choices.count;
    if (is_there)
        gemm_choice_write(&cache->choices.items[number], algorithm);
    pthread_mutex_unlock(&cache->lock);
    return is_there;
}

/* Adds a choice if the library can run it. Its vectors are somewhere. */
static int take_choice(struct device *device, const struct device_algorithm *text) {
    static const _Alignas(16) float somewhere[4];
    struct gemm_choices *choices = &cuda(device)->gemm_cache->choices;
    struct gemm_choice choice;
    TRY(gemm_choice_read(text, &choice));
    bool is_fp8 = choice.form.type == DTYPE_E4M3 || choice.form.type == DTYPE_E5M2;
    const float *scale = is_fp8 ? somewhere : NULL;
    const struct gemm_pointers pointers = {
        .bias = somewhere, .aux = (void *)(uintptr_t)somewhere, .a_scale = scale, .b_scale = scale};
    TRY(describe(device, &choice.form, &pointers));
    if (!takes(device, &choice.form, &choice.algorithm))
        return status_fail(STATUS_INVALID, "'%s': cuBLASLt refuses its algorithm", text->product);
    if (gemm_choices_find(choices, &choice.form))
        return status_fail(STATUS_INVALID, "'%s' is there twice", text->product);
    return gemm_choices_add(choices, &choice);
}

static int take(struct device *device, const struct device_algorithm *algorithms, int count) {
    struct cuda_gemm_cache *cache = cuda(device)->gemm_cache;
    int status = cuda_enter(device);
    pthread_mutex_lock(&cache->lock);
    for (int i = 0; i < count && !status; i++)
        status = take_choice(device, &algorithms[i]);
    memset(cache->plans, 0, sizeof cache->plans);
    pthread_mutex_unlock(&cache->lock);
    return status;
}

const struct algorithm_library algorithm_library_cuda = {
    .backend = &backend_cuda, .name = name_of, .tune = tune, .algorithm_at = algorithm_at, .take = take};

/* ---- products ---- */

int cuda_gemm_cache_run(const struct exec *exec, const struct gemm_form *form, const struct gemm_pointers *pointers) {
    struct device *device = exec->stream->device;
    struct cuda_gemm_cache *cache = cuda(device)->gemm_cache;
    struct plan *plan;
    pthread_mutex_lock(&cache->lock);
    int status = prepare(device, form, pointers, &plan);
    if (!status && plan->is_missing)
        status = status_fail(STATUS_UNSUPPORTED, "gemm: cuBLASLt has no %s product of %lld x %lld x %lld on this GPU%s",
                             dtype_name((enum dtype)form->type), (long long)form->m, (long long)form->n,
                             (long long)form->k, form->is_batch_invariant ? " that is batch-invariant" : "");
    if (!status && cache->proposals && !form->is_batch_invariant && !gemm_choices_find(&cache->choices, form))
        status = measure(exec, form, pointers, plan);
    THEN(status, check(device, multiply(exec, pointers, &plan->algorithm), "gemm"));
    pthread_mutex_unlock(&cache->lock);
    return status;
}
