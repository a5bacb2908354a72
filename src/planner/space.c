/* Enumerates layouts. */
#include "planner/space.h"

#include "parallel/pipeline.h"
#include "planner/sizes.h"

enum { MOST_MICRO_BATCH = 16, LARGE_VOCABULARY = 128000 };

struct listing {
    const struct search *search;
    int ranks;
    int64_t layers;
    bool is_2022; /* the stack that trains is that of 2022 */
    int (*add)(void *context, const struct candidate *candidate);
    void *context;
    int status;
};

static void add(struct listing *listing, const struct candidate *candidate) {
    struct candidate fp8 = *candidate;
    fp8.is_fp8 = true;
    if (!listing->status)
        listing->status = listing->add(listing->context, candidate);
    if (!listing->status && listing->search->also_fp8)
        listing->status = listing->add(listing->context, &fp8);
}

/* ---- all ---- */

/* Adds candidates in which a part of the micro batches recomputes half of a chunk's layers, and the others all. */
static void add_partial(struct listing *listing, struct candidate candidate, int held, int chunk_layers) {
    candidate.block = chunk_layers / 2;
    for (int quarter = 1; quarter < 4 && candidate.block > 0; quarter++) {
        int before = candidate.partial;
        candidate.partial = held * quarter / 4;
        if (candidate.partial > before)
            add(listing, &candidate);
    }
}

static void add_recomputations(struct listing *listing, struct candidate candidate, int held) {
    int ends = candidate.counts_embedding + candidate.counts_loss;
    int chunk_layers = (int)((listing->layers + ends) / (candidate.pipeline * candidate.chunks));
    for (int how = 0; how < SPACE_RECOMPUTES; how++) {
        candidate.recompute = (enum space_recompute)how;
        candidate.block = 0;
        if (listing->is_2022 ? how >= SPACE_NORMS && how <= SPACE_SELECTIVE : how == SPACE_ATTENTION)
            continue;
        if (how != SPACE_BLOCK) {
            add(listing, &candidate);
            continue;
        }
        for (int quarter = 1, before = 0; quarter < 4; quarter++) {
            candidate.block = chunk_layers * quarter / 4;
            if (candidate.block > before && candidate.block < chunk_layers)
                add(listing, &candidate);
            before = candidate.block;
        }
        if (!listing->is_2022)
            add_partial(listing, candidate, held, chunk_layers);
    }
}

/* Returns how many micro batches the first stage holds at once. */
static int held_at_once(const struct listing *listing, const struct candidate *candidate, int data) {
    int64_t samples = (int64_t)candidate->micro_batch * data;
    const struct pipeline_shape shape = {
        .stages = candidate->pipeline,
        .chunks = candidate->chunks,
        .micro_batches = (int)(listing->search->base.train.global_batch_size / samples),
        .group_size = candidate->pipeline,
    };
    int held;
    return pipeline_stashes(&shape, 0, &held) ? 0 : held;
}

static void add_flags(struct listing *listing, struct candidate candidate) {
    int data = listing->ranks / (candidate.tensor * candidate.pipeline);
    int held = candidate.pipeline > 1 ? held_at_once(listing, &candidate, data) : 1;
    for (int sequence = 0; sequence < (candidate.tensor > 1 ? 2 : 1); sequence++)
        for (int sharding = 0; sharding <= (data > 1 && !listing->is_2022 ? SHARDING_OPTIM_GRADS_PARAMS : 0);
             sharding++) {
            candidate.is_sequence = sequence;
            candidate.sharding = (enum sharding)sharding;
            add_recomputations(listing, candidate, held);
        }
}

/* Adds even stages, also with ends that count as layers, and with a large vocabulary last stages with fewer layers. */
static void add_splits(struct listing *listing, struct candidate candidate) {
    int64_t layers = listing->layers, stages = candidate.pipeline;
    bool is_split = false;
    for (int ends = 0; ends < (stages > 1 && !listing->is_2022 ? 4 : 1); ends++) {
        candidate.counts_embedding = ends & 1;
        candidate.counts_loss = ends & 2;
        int64_t shares = layers + candidate.counts_embedding + candidate.counts_loss;
        for (int chunks = 1; shares % stages == 0 && chunks <= (stages > 1 && !listing->is_2022 ? shares / stages : 1);
             chunks++) {
            candidate.chunks = chunks;
            if (shares / stages % chunks == 0)
                add_flags(listing, candidate);
            is_split = true;
        }
    }
    candidate.counts_embedding = candidate.counts_loss = false;
    candidate.chunks = 1;
    for (int last = 1; stages > 1 && listing->search->base.model.vocab_size >= LARGE_VOCABULARY; last++) {
        candidate.last = last;
        if (last * stages >= layers)
            break;
        if ((layers - last) % (stages - 1) == 0)
            add_flags(listing, candidate);
        is_split |= (layers - last) % (stages - 1) == 0;
    }
    candidate.last = 0;
    if (!is_split)
        add(listing, &candidate); /* to be refused */
}

/* Adds one candidate, to be refused, for sizes that no split and no flags make possible. */
static void list_all(struct listing *listing) {
    const struct run_config *base = &listing->search->base;
    int most = (int)listing->search->cluster->per_node, batch = (int)base->train.global_batch_size;
    for (int tensor = 1; tensor <= most && tensor <= listing->ranks; tensor++)
        for (int stages = 1; listing->ranks % tensor == 0 && stages <= listing->layers; stages++)
            for (int micro = 1; listing->ranks / tensor % stages == 0 && micro <= MOST_MICRO_BATCH; micro++) {
                const struct candidate candidate = {
                    .tensor = tensor, .pipeline = stages, .micro_batch = micro, .chunks = 1};
                int64_t samples = (int64_t)micro * (listing->ranks / tensor / stages);
                bool divides = batch % samples == 0 && base->model.num_attention_heads % tensor == 0;
                if (divides)
                    add_splits(listing, candidate);
                else if (batch % micro == 0)
                    add(listing, &candidate);
            }
}

/* ---- hp-tool ---- */

/* Adds a candidate of a space that has no strategies itself, and perhaps the same one with sharded weights. */
static void add_sharded(struct listing *listing, struct candidate candidate) {
    add(listing, &candidate);
    if (!listing->search->also_fsdp || listing->ranks <= candidate.tensor * candidate.pipeline)
        return;
    candidate.sharding = SHARDING_OPTIM_GRADS_PARAMS;
    add(listing, &candidate);
}

static void add_of_tool(struct listing *listing, const struct size_grid *grid, struct candidate candidate) {
    candidate.chunks = 1;
    candidate.is_sequence = grid->is_large && candidate.tensor > 1;
    candidate.recompute = !grid->is_large ? SPACE_KEEP : listing->is_2022 ? SPACE_ATTENTION : SPACE_SELECTIVE;
    add_sharded(listing, candidate);
    for (int64_t block = 1; !grid->is_large && block <= listing->layers / candidate.pipeline; block++) {
        candidate.recompute = SPACE_BLOCK;
        candidate.block = (int)block;
        add_sharded(listing, candidate);
    }
}

static void list_tool(struct listing *listing) {
    struct size_grid grid;
    listing->status = size_grid(listing->search->billions, &grid);
    for (int t = 0; t < SIZES_MOST && grid.tensor[t] && !listing->status; t++)
        for (int stages = grid.least_pipeline; stages <= grid.most_pipeline; stages++)
            for (int m = 0; listing->layers % stages == 0 && m < SIZES_MOST && grid.micro_batch[m]; m++)
                add_of_tool(listing, &grid,
                            (struct candidate){
                                .tensor = grid.tensor[t], .pipeline = stages, .micro_batch = grid.micro_batch[m]});
}

int space_list(const struct search *search, int ranks, int (*add_)(void *context, const struct candidate *candidate),
               void *context) {
    struct listing listing = {.search = search,
                              .ranks = ranks,
                              .layers = search->base.model.num_layers,
                              .is_2022 = search->cluster->train == CLUSTER_TRAINS_MEGATRON_2022,
                              .add = add_,
                              .context = context};
    if (search->space == SEARCH_ALL)
        list_all(&listing);
    else if (search->space == SEARCH_HP_TOOL)
        list_tool(&listing);
    else
        add_sharded(&listing, space_of_run(&search->base));
    return listing.status;
}

/* ---- candidates as configurations ---- */

struct candidate space_of_run(const struct run_config *run) {
    return (struct candidate){.tensor = (int)run->parallel.tensor_model_parallel_size,
                              .pipeline = (int)run->parallel.pipeline_model_parallel_size,
                              .micro_batch = (int)run->train.micro_batch_size,
                              .sharding = run_sharding(run)};
}

void space_apply_also(const struct candidate *candidate, struct run_config *run) {
    if (candidate->is_fp8)
        run->train.precision = PRECISION_FP8;
    run->parallel.use_distributed_optimizer = candidate->sharding >= SHARDING_OPTIM;
    run->parallel.data_parallel_sharding_strategy = (int)candidate->sharding;
}

void space_apply(const struct candidate *candidate, struct run_config *run) {
    static const char *const names[] = {"layernorm", "mlp_act", "core_attn"};
    static const struct config_list modules[SPACE_RECOMPUTES] = {[SPACE_NORMS] = {(const char **)names, 1},
                                                                 [SPACE_ACTIVATIONS] = {(const char **)names + 1, 1},
                                                                 [SPACE_SELECTIVE] = {(const char **)names, 2},
                                                                 [SPACE_ATTENTION] = {(const char **)names + 2, 1}};
    bool is_selective = modules[candidate->recompute].count > 0;
    bool is_full = candidate->recompute == SPACE_BLOCK || candidate->recompute == SPACE_FULL;
    run->parallel.tensor_model_parallel_size = candidate->tensor;
    run->parallel.pipeline_model_parallel_size = candidate->pipeline;
    run->parallel.virtual_pipeline_model_parallel_size = candidate->chunks;
    run->parallel.decoder_first_pipeline_num_layers = 0;
    run->parallel.decoder_last_pipeline_num_layers = candidate->last;
    run->parallel.account_for_embedding_in_pipeline_split = candidate->counts_embedding;
    run->parallel.account_for_loss_in_pipeline_split = candidate->counts_loss;
    run->parallel.sequence_parallel = candidate->is_sequence;
    space_apply_also(candidate, run);
    run->train.micro_batch_size = candidate->micro_batch;
    run->parallel.recompute_granularity = is_full        ? GRANULARITY_FULL
                                          : is_selective ? GRANULARITY_SELECTIVE
                                                         : GRANULARITY_NONE;
    run->parallel.recompute_method = candidate->recompute == SPACE_BLOCK ? METHOD_BLOCK : METHOD_UNIFORM;
    run->parallel.recompute_num_layers = candidate->recompute == SPACE_BLOCK ? candidate->block : 1;
    run->parallel.recompute_modules = modules[candidate->recompute];
    run->parallel.num_microbatches_with_partial_activation_checkpoints = candidate->partial;
}

bool space_has_fixed(const struct search *search, const struct run_config *run) {
    char wanted[256], has[256];
    for (size_t k = 0; k < search->fixed_count; k++)
        for (size_t i = 0; i < run_row_count; i++) {
            if (strcmp(run_rows[i].path, search->fixed[k]))
                continue;
            config_value_text(&run_rows[i], (const char *)&search->base + run_rows[i].offset, wanted, sizeof wanted);
            config_value_text(&run_rows[i], (const char *)run + run_rows[i].offset, has, sizeof has);
            if (strcmp(wanted, has))
                return false;
        }
    return true;
}
