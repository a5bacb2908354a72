/* Checkpoints know no layout. Ranks of any grid write the same bytes together, and read what any other grid wrote. A
 * failure of one rank is a failure of all, and leaves nothing. Ranks are threads. */
#include "parallel/rank.h"
#include "support/device.h"
#include "tiny_gpt2.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOMENTS = 2, ARRAYS = 1 + MOMENTS, MOST_RANKS = 16, UNTOUCHED = 0xaa };

/* The failure of one rank. */
enum fault {
    FAULT_NONE,
    FAULT_GET,      /* a value cannot be fetched */
    FAULT_LOST,     /* the rank leaves the run while the others write */
    FAULT_KILL,     /* the process dies */
    FAULT_HOLE,     /* it leaves out what nobody else writes */
    FAULT_DOUBLE,   /* it writes copies that another rank writes too */
    FAULT_CONFUSED, /* it takes itself for another rank */
    FAULT_TABLE,    /* its table has another name for a tensor */
};

/* Data shared by all ranks of a test. */
struct run {
    struct param_table table;
    struct rank_grid grid;
    enum dtype dtype;        /* of the weights */
    const char *from, *root; /* loads the checkpoint `from` and saves under `root`; NULL: does not */
    int64_t iteration, max_shard_bytes;
    bool is_background;
    enum fault fault;
    int fault_rank, fault_call; /* at which call for values */
    int status[MOST_RANKS];     /* of the save */
    char text[MOST_RANKS][512];
};

/* One rank's weights and optimizer, of which it holds a data-parallel shard. */
struct part {
    struct run *run;
    struct comm *world;
    struct rank_grid place;
    struct param_table table;
    struct device *device;
    struct stream *stream;
    struct param_store store;
    bool is_held[TINY_MAX], leaves[TINY_MAX];
    struct param_range ranges[ARRAYS];
    struct ckpt_flat flats[ARRAYS];
    struct ckpt_array arrays[ARRAYS];
    int calls;
};

static uint32_t word_of(int array, int param, int64_t row, int64_t column) {
    return philox((uint64_t)array, (uint32_t)param, (uint32_t)row, (uint32_t)column, (uint32_t)RNG_TEST << 24).word[0];
}

/* GPT-2 with a vocabulary that divides by no number of ranks, sharded as the model's. */
static struct param_table make_table(int64_t vocabulary) {
    static const struct {
        const char *name;
        enum param_shard shard;
    } shards[] = {{"embedding.word", PARAM_SHARD_AXIS0},   {"c_attn.weight", PARAM_SHARD_AXIS0},
                  {"c_attn.bias", PARAM_SHARD_AXIS0},      {"attn.c_proj.weight", PARAM_SHARD_AXIS1},
                  {"c_fc.weight", PARAM_SHARD_AXIS0},      {"c_fc.bias", PARAM_SHARD_AXIS0},
                  {"mlp.c_proj.weight", PARAM_SHARD_AXIS1}};
    struct param_table table = tiny_table(true);
    table.rows[0].shape[0] = table.rows[0].slices[0].rows = table.rows[0].slices[0].file_rows = vocabulary;
    for (int i = 0; i < table.count; i++)
        for (size_t s = 0; s < sizeof shards / sizeof *shards; s++)
            if (strstr(table.rows[i].name, shards[s].name))
                table.rows[i].shard = shards[s].shard;
    return table;
}

/* ---- one rank ---- */

/* Fails a call on command, or the whole process. */
static int count_call(struct part *part) {
    const struct run *run = part->run;
    if (run->fault >= FAULT_GET && run->fault <= FAULT_KILL && part->world->rank == run->fault_rank &&
        ++part->calls == run->fault_call) {
        if (run->fault == FAULT_KILL)
            kill(getpid(), SIGKILL);
        if (run->fault == FAULT_LOST)
            comm_abort(part->world, "the machine burns");
        return status_fail(STATUS_IO, "the device was lost");
    }
    return STATUS_OK;
}

static int part_get(void *context, const struct ckpt_block *block, void *values) {
    struct part *part = context;
    int status = count_call(part);
    return status ? status : ckpt_flat_array(&part->flats[0], "", false).get(&part->flats[0], block, values);
}

static int part_queue(void *context, const struct ckpt_block *block, const struct ckpt_target *target) {
    struct part *part = context;
    int status = count_call(part);
    return status ? status : ckpt_flat_array(&part->flats[0], "", false).queue(&part->flats[0], block, target);
}

static int part_rects(void *context, int param, struct ckpt_block *rects) {
    struct part *part = context;
    return ckpt_flat_array(&part->flats[0], "", false).rects(&part->flats[0], param, rects);
}

static void hold(struct part *part) {
    const struct rank_grid *grid = &part->run->grid, *place = &part->place;
    int last = grid->pipeline - 1;
    for (int i = 0; i < part->table.count; i++)
        part->is_held[i] = i * grid->pipeline / part->table.count == place->pipeline;
    if (place->pipeline == last) /* tied embeddings: the last stage has them too */
        part->is_held[0] = true;
    part->leaves[0] = last > 0 && place->pipeline == last;
}

static size_t flat_bytes(const struct ckpt_flat *flat) {
    return (size_t)flat->ranges[0].count * dtype_bytes(flat->dtype);
}

static int spoil(struct part *part, const struct ckpt_flat *flat) {
    void *values = malloc(flat_bytes(flat));
    assert_non_null(values);
    memset(values, UNTOUCHED, flat_bytes(flat));
    int status = test_write(part->stream, flat->ranges[0].data, values, flat_bytes(flat));
    free(values);
    return status;
}

static int part_open(struct part *part, struct run *run, struct comm *world) {
    static const char *const prefixes[ARRAYS] = {"", "exp_avg.", "exp_avg_sq."};
    const struct rank_grid *grid = &run->grid;
    bool is_confused = run->fault == FAULT_CONFUSED && world->rank == run->fault_rank;
    *part = (struct part){.run = run, .world = world, .table = run->table};
    part->place = rank_grid_place(grid, is_confused ? 0 : world->rank);
    hold(part);
    struct param_part of = {.tensor = part->place.tensor, .tensors = grid->tensor, .is_held = part->is_held};
    struct param_store_options options = {.table = &part->table, .part = &of, .dtype = run->dtype};
    int status = device_open(test_device(), DEVICE_FIRST, 1, &part->device);
    options.device = part->device;
    if (!status)
        status = stream_open(part->device, &part->stream);
    if (!status)
        status = param_store_sketch(&part->store, &options);
    for (int a = 0; a < ARRAYS && !status; a++) {
        struct ckpt_flat *flat = &part->flats[a];
        struct param_range *range = &part->ranges[a];
        int64_t elements = part->store.map.flat_elements;
        *range = (struct param_range){.count = elements, .type = a ? DTYPE_F32 : run->dtype};
        if (a) { /* a shard ends anywhere, also inside a row */
            range->first = param_share(elements, part->place.data, grid->data);
            range->count = param_share(elements, part->place.data + 1, grid->data) - range->first;
        }
        *flat = (struct ckpt_flat){
            .map = &part->store.map, .stream = part->stream, .ranges = range, .count = 1, .dtype = range->type};
        status = device_alloc(part->device, flat_bytes(flat), &range->data);
        if (!status)
            status = spoil(part, flat);
        part->arrays[a] = ckpt_flat_array(flat, prefixes[a], false);
    }
    return status;
}

static void part_close(struct part *part) {
    for (int a = 0; a < ARRAYS; a++)
        device_free(part->device, part->ranges[a].data);
    param_store_close(&part->store);
    if (part->stream)
        stream_close(part->stream);
    if (part->device)
        device_close(part->device);
}

/* Calls visit() for each element of a parameter that an array of this rank has; `values` are the array's. */
static int each_of_param(struct part *part, int a, int p, char *values,
                         int (*visit)(void *at, uint32_t word, size_t width)) {
    const struct ckpt_flat *flat = &part->flats[a];
    size_t width = dtype_bytes(flat->dtype);
    struct param_rect rects[PARAM_MAX_SLICES];
    int count = param_part_rects(&part->store.map.part, &part->table, p, rects);
    for (int i = 0; i < count; i++)
        for (int64_t r = 0; r < rects[i].rows; r++)
            for (int64_t c = 0; c < rects[i].columns; c++) {
                int64_t at = part->store.map.places[p].offset + (rects[i].local_row + r) * rects[i].columns + c -
                             flat->ranges[0].first;
                if (at < 0 || at >= flat->ranges[0].count)
                    continue;
                uint32_t word = word_of(a, p, rects[i].row + r, rects[i].column + c);
                if (visit(values + (size_t)at * width, word, width))
                    return status_fail(STATUS_INVALID, "rank %d array %d: row %lld column %lld of %s is wrong",
                                       part->world->rank, a, (long long)(rects[i].row + r),
                                       (long long)(rects[i].column + c), part->table.rows[p].name);
            }
    return STATUS_OK;
}

/* The same for all parameters; what visit() changes is changed on the device. */
static int each_element(struct part *part, int a, int (*visit)(void *at, uint32_t word, size_t width)) {
    const struct ckpt_flat *flat = &part->flats[a];
    char *values = test_copy(part->stream, flat->ranges[0].data, flat_bytes(flat));
    int status = STATUS_OK;
    for (int p = 0; p < part->table.count && !status; p++)
        status = each_of_param(part, a, p, values, visit);
    int written = test_write(part->stream, flat->ranges[0].data, values, flat_bytes(flat));
    free(values);
    return status ? status : written;
}

static int set(void *at, uint32_t word, size_t width) {
    memcpy(at, &word, width);
    return 0;
}

static int compare_and_forget(void *at, uint32_t word, size_t width) {
    int difference = memcmp(at, &word, width);
    memset(at, UNTOUCHED, width);
    return difference;
}

/* Every element is as it was saved; what is no element was not touched. */
static int part_check(struct part *part) {
    int status = STATUS_OK;
    for (int a = 0; a < ARRAYS && !status; a++) {
        const struct ckpt_flat *flat = &part->flats[a];
        status = each_element(part, a, compare_and_forget);
        unsigned char *memory = test_copy(part->stream, flat->ranges[0].data, flat_bytes(flat));
        for (size_t i = 0; i < flat_bytes(flat) && !status; i++)
            if (memory[i] != UNTOUCHED)
                status = status_fail(STATUS_INVALID, "rank %d array %d: a gap was written", part->world->rank, a);
        free(memory);
    }
    return status;
}

static int part_load(struct part *part) {
    struct ckpt_tensors *tensors;
    int status = ckpt_open_model(part->run->from, &tensors);
    if (status)
        return status;
    status = ckpt_read(tensors, &part->table, part->arrays, 1);
    ckpt_close(tensors);
    if (!status)
        status = ckpt_open_optimizer(part->run->from, &tensors);
    if (status)
        return status;
    status = ckpt_read(tensors, &part->table, part->arrays + 1, MOMENTS);
    ckpt_close(tensors);
    return status;
}

/* Changes of the memory right after the save began must not matter. */
static int save_beside(struct part *part, const struct ckpt_save *save) {
    struct ckpt_saver *saver;
    int status = ckpt_saver_open(save, true, &saver);
    if (status)
        return status;
    for (int round = 0; round < 2 && !status; round++) { /* the second replaces the first */
        status = ckpt_saver_begin(saver, save->iteration, save->state_text);
        if (!status && round == 0)
            status = ckpt_saver_wait(saver);
    }
    for (int a = 0; a < ARRAYS && !status; a++)
        status = spoil(part, &part->flats[a]);
    if (!status)
        status = ckpt_saver_wait(saver);
    ckpt_saver_close(saver);
    return status;
}

static int part_save(struct part *part) {
    struct run *run = part->run;
    bool is_faulty = part->world->rank == run->fault_rank;
    for (int a = 0; a < ARRAYS; a++) {
        part->flats[a].leaves_copies = !(is_faulty && run->fault == FAULT_DOUBLE);
        part->flats[a].leaves = part->leaves;
    }
    struct rank_grid first = part->place;
    first.data = 0;
    part->flats[0].is_copy = part->place.data > 0 || (is_faulty && run->fault == FAULT_HOLE);
    part->flats[0].copy_of = is_faulty && run->fault == FAULT_HOLE ? 0 : rank_grid_rank(&run->grid, &first);
    struct ckpt_array weights = ckpt_flat_array(&part->flats[0], "", false);
    weights.rects = part_rects;
    weights.get = weights.get ? part_get : NULL;
    weights.queue = weights.queue ? part_queue : NULL;
    weights.context = part;
    bool is_alone = part->world->size == 1 && run->iteration % 2; /* no world is a world of one */
    bool is_first = part->world->rank == 0;                       /* texts are the first rank's */
    struct ckpt_save save = {.root = run->root,
                             .iteration = run->iteration,
                             .model = {.table = &part->table,
                                       .weights = &weights,
                                       .config_text = is_first ? "{\"model_type\": \"gpt2\"}\n" : NULL,
                                       .max_shard_bytes = run->max_shard_bytes,
                                       .world = is_alone ? NULL : part->world},
                             .optimizer = part->arrays + 1,
                             .optimizer_count = MOMENTS,
                             .state_text = is_first ? "{}\n" : NULL,
                             .keep_last = 2,
                             .ours_until = INT64_MAX};
    return run->is_background ? save_beside(part, &save) : ckpt_save(&save);
}

static int rename_a_tensor(struct part *part) {
    struct param *rows = malloc((size_t)part->table.count * sizeof *rows);
    if (!rows)
        return status_fail(STATUS_MEMORY, "out of memory");
    memcpy(rows, part->table.rows, (size_t)part->table.count * sizeof *rows);
    memcpy(rows[1].slices[0].name, "wpf", 3);
    part->table.rows = rows;
    return STATUS_OK;
}

/* Loads, checks and saves; notes the result of the save. The run itself continues: a failed save leaves a world that
 * works. */
static int run_rank(struct comm *world, void *context) {
    struct run *run = context;
    struct part part;
    int status = part_open(&part, run, world);
    if (!status && run->from) {
        status = part_load(&part);
        if (!status)
            status = part_check(&part);
    }
    for (int a = 0; a < ARRAYS && !status; a++)
        status = each_element(&part, a, set);
    bool has_own_table = run->fault == FAULT_TABLE && world->rank == run->fault_rank;
    if (!status && has_own_table)
        status = rename_a_tensor(&part);
    if (!status && run->root) {
        run->status[world->rank] = part_save(&part);
        snprintf(run->text[world->rank], sizeof run->text[0], "%s", status_text());
        if (run->fault != FAULT_LOST)
            status = comm_barrier(world);
    }
    if (has_own_table)
        free(part.table.rows);
    part_close(&part);
    return status;
}

/* ---- runs ---- */

static struct run make_run(int tensors, int data, int stages) {
    return (struct run){.table = make_table(TINY_V + 1), .grid = {tensors, 1, 1, data, stages}, .dtype = DTYPE_F32};
}

static void launch(struct run *run) {
    test_ok(comm_local_run(rank_grid_size(&run->grid), run_rank, run));
}

static void assert_saved(const struct run *run) {
    for (int r = 0; r < rank_grid_size(&run->grid); r++)
        if (run->status[r])
            fail_msg("rank %d: %s", r, run->text[r]);
}

static char *checkpoint_path(const char *root, int64_t iteration) {
    char name[32];
    snprintf(name, sizeof name, "iter_%07lld", (long long)iteration);
    return tiny_path(root, name);
}

/* Checks that both directories have the same names and contents. */
static void assert_same_directories(const char *a, const char *b) {
    char **names, **others;
    size_t count, other_count;
    test_ok(file_list(a, &names, &count));
    test_ok(file_list(b, &others, &other_count));
    assert_int_equal(count, other_count);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(names[i], others[i]);
        assert_same_files(a, b, names[i]);
    }
    file_list_free(names, count);
    file_list_free(others, other_count);
}

static void assert_only(const char *root, const char *expected) {
    char **names;
    size_t count;
    struct strbuf text = STRBUF_INIT;
    test_ok(file_list(root, &names, &count));
    for (size_t i = 0; i < count; i++)
        strbuf_format(&text, "%s ", names[i]);
    assert_string_equal(strbuf_text(&text), expected);
    strbuf_free(&text);
    file_list_free(names, count);
}

/* Writes the reference of one rank without any layout: whole arrays in plain memory. */
static void save_reference(const struct run *run, const char *root) {
    static const char *const prefixes[ARRAYS] = {"", "exp_avg.", "exp_avg_sq."};
    struct tiny_array values[ARRAYS];
    struct ckpt_array arrays[ARRAYS];
    for (int a = 0; a < ARRAYS; a++) {
        values[a] = tiny_array(&run->table, a ? DTYPE_F32 : run->dtype);
        arrays[a] = tiny_as_array(&values[a], prefixes[a]);
        size_t width = dtype_bytes(values[a].dtype);
        for (int p = 0; p < run->table.count; p++)
            for (int64_t i = 0, columns = run->table.rows[p].shape[1]; i < run->table.rows[p].shape[0] * columns; i++) {
                uint32_t word = word_of(a, p, i / columns, i % columns);
                memcpy(values[a].memory + (size_t)(values[a].offset[p] + i) * width, &word, width);
            }
    }
    struct ckpt_save save = {.root = root,
                             .model = {.table = &run->table,
                                       .weights = arrays,
                                       .config_text = "{\"model_type\": \"gpt2\"}\n",
                                       .max_shard_bytes = run->max_shard_bytes},
                             .optimizer = arrays + 1,
                             .optimizer_count = MOMENTS,
                             .state_text = "{}\n"};
    test_ok(ckpt_save(&save));
    for (int a = 0; a < ARRAYS; a++)
        free(values[a].memory);
}

/* A chain: each layout loads what the one before it saved. */
static void check_chain(enum dtype dtype, int64_t max_shard_bytes, bool is_background) {
    static const int layouts[][3] = {{1, 1, 1}, {2, 1, 1}, {4, 1, 1}, {1, 2, 1}, {4, 2, 1}, {1, 3, 1},
                                     {2, 2, 1}, {1, 4, 1}, {2, 3, 1}, {4, 3, 1}, {2, 4, 1}, {4, 4, 1},
                                     {3, 1, 1}, {1, 1, 2}, {1, 2, 4}, {2, 2, 2}, {4, 1, 3}, {1, 1, 1}};
    struct run run = make_run(1, 1, 1);
    char *root = test_directory(), *reference = tiny_path(root, "reference"), *save = tiny_path(root, "save");
    run.dtype = dtype;
    run.max_shard_bytes = max_shard_bytes;
    run.is_background = is_background;
    run.root = save;
    save_reference(&run, reference);
    char *expected = checkpoint_path(reference, 0), *from = strdup(expected);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        run.grid = (struct rank_grid){layouts[i][0], 1, 1, layouts[i][1], layouts[i][2]};
        run.from = from;
        run.iteration = (int64_t)i + 1;
        launch(&run);
        assert_saved(&run);
        free(from);
        from = checkpoint_path(save, run.iteration);
        assert_same_directories(expected, from);
    }
    assert_only(save, "iter_0000017 iter_0000018 "); /* older ones are pruned */
    free(run.table.rows);
    free(from);
    free(expected);
    free(save);
    free(reference);
    free(root);
}

static void any_layout_loads_any_and_writes_the_same_bytes(void **state) {
    (void)state;
    check_chain(DTYPE_F32, 0, false);
}

static void so_in_shards_of_bounded_size(void **state) {
    (void)state;
    check_chain(DTYPE_BF16, 2500, false);
}

static void so_beside_the_training(void **state) {
    (void)state;
    check_chain(DTYPE_F32, 0, true);
    check_chain(DTYPE_BF16, 2500, true);
}

/* Matrices, plain and transposed, cut along either axis. */
static void check_matrices(int64_t rows, int64_t columns, int tensors, int data) {
    char *root = test_directory(), *reference = tiny_path(root, "reference"), *save = tiny_path(root, "save");
    struct run run = make_run(1, 1, 1);
    run.table.count = 0;
    run.root = save;
    for (int i = 0; i < 4; i++) {
        char name[PARAM_NAME_BYTES];
        snprintf(name, sizeof name, "matrix.%d", i);
        tiny_add(&run.table, name, 2, rows, columns, name, i / 2)->shard =
            i % 2 ? PARAM_SHARD_AXIS1 : PARAM_SHARD_AXIS0;
    }
    save_reference(&run, reference);
    char *expected = checkpoint_path(reference, 0), *saved = checkpoint_path(save, 0);
    run.grid = (struct rank_grid){tensors, 1, 1, data, 1};
    run.from = expected;
    launch(&run);
    assert_saved(&run);
    assert_same_directories(expected, saved);
    free(run.table.rows);
    free(expected);
    free(saved);
    free(reference);
    free(save);
    free(root);
}

/* Parts of more than one block: rectangles are walked inside the rank's rows, or columns. */
static void large_parts_are_written_in_blocks(void **state) {
    (void)state;
    enum { SIDE = 1500 };
    _Static_assert(SIDE * SIDE / 2 > CKPT_BLOCK_ELEMENTS, "one block would do");
    check_matrices(SIDE, SIDE, 2, 1);
}

static void a_shard_may_lie_inside_a_row(void **state) {
    (void)state;
    check_matrices(1, 1000, 1, 16);
    check_matrices(3, 1500, 2, 8);
}

/* ---- failures ---- */

/* Rank `cause` failed by itself with `part` in its text, the others heard of it. */
static void assert_failed_by(const struct run *run, int cause, int status, const char *part) {
    for (int r = 0; r < rank_grid_size(&run->grid); r++) {
        char heard[64];
        snprintf(heard, sizeof heard, "was not saved: rank %d failed: ", cause);
        if (run->status[r] != (r == cause ? status : STATUS_PEER) || !strstr(run->text[r], part) ||
            !strstr(run->text[r], r == cause ? "was not saved: " : heard))
            fail_msg("rank %d: status %d, '%s'", r, run->status[r], run->text[r]);
    }
}

static void a_failure_of_one_rank_is_one_of_all(void **state) {
    (void)state;
    struct run run = make_run(2, 2, 1);
    char *root = test_directory();
    run.root = root;
    run.iteration = 1;
    launch(&run);
    assert_saved(&run);
    run.fault = FAULT_GET;
    for (int i = 0; i < 3; i++) {
        run.fault_rank = i % 2; /* the ranks that write weights */
        run.fault_call = i == 2 ? 20 : 1;
        run.iteration = 1 + i; /* also in place of the one that is there */
        launch(&run);
        assert_failed_by(&run, run.fault_rank, STATUS_IO, "the device was lost");
        assert_only(root, "iter_0000001 ");
    }
    run.fault = FAULT_NONE;
    launch(&run);
    assert_saved(&run);
    assert_only(root, "iter_0000001 iter_0000003 ");
    free(run.table.rows);
    free(root);
}

static void a_directory_that_cannot_be_made_fails_all(void **state) {
    (void)state;
    struct run run = make_run(2, 2, 1);
    char *directory = test_directory(), *file = tiny_path(directory, "file"), *below = tiny_path(file, "save"),
         *locked = tiny_path(directory, "locked");
    tiny_write(directory, "file", "x", 1);
    run.root = below;
    launch(&run);
    assert_failed_by(&run, 0, STATUS_IO, "Not a directory");
    test_ok(file_make_directories(locked));
    assert_int_equal(chmod(locked, 0555), 0);
    run.root = locked;
    if (geteuid() != 0) { /* root may write anywhere */
        launch(&run);
        assert_failed_by(&run, 0, STATUS_IO, "Permission denied");
    }
    assert_only(locked, "");
    free(run.table.rows);
    free(locked);
    free(below);
    free(file);
    free(directory);
}

static void elements_without_one_owner_are_refused_by_name(void **state) {
    (void)state;
    const struct {
        enum fault fault;
        int64_t vocabulary;
        const char *text;
    } cases[] = {
        {FAULT_HOLE, 41, "cannot write tensor transformer.wte.weight: it has 656 elements, and its owners have 320"},
        {FAULT_DOUBLE, 41, "cannot write tensor transformer.wpe.weight: it has 192 elements, and its owners have 384"},
        {FAULT_CONFUSED, 40,
         "cannot write tensor transformer.wte.weight: some of its elements have two owners and some have none"},
    };
    char *directory = test_directory(), *root = tiny_path(directory, "save");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct run run = make_run(2, 1, 1);
        free(run.table.rows);
        run.table = make_table(cases[i].vocabulary);
        run.root = root;
        run.fault = cases[i].fault;
        run.fault_rank = 1;
        launch(&run);
        for (int r = 0; r < 2; r++)
            if (run.status[r] != STATUS_INVALID || !strstr(run.text[r], cases[i].text))
                fail_msg("rank %d: status %d, '%s'", r, run.status[r], run.text[r]);
        assert_only(directory, "");
        free(run.table.rows);
    }
    free(root);
    free(directory);
}

static void ranks_with_other_tensors_are_refused(void **state) {
    (void)state;
    struct run run = make_run(2, 1, 1);
    char *root = test_directory();
    run.root = root;
    run.fault = FAULT_TABLE;
    run.fault_rank = 1;
    launch(&run);
    assert_failed_by(&run, 1, STATUS_INVALID, "its tensors are not those of rank 0");
    assert_only(root, "");
    free(run.table.rows);
    free(root);
}

static void a_rank_that_is_lost_leaves_nothing_and_nobody_waiting(void **state) {
    (void)state;
    struct run run = make_run(2, 2, 1);
    char *root = test_directory();
    run.root = root;
    run.iteration = 1;
    launch(&run);
    run.fault = FAULT_LOST;
    run.fault_rank = 1;
    run.fault_call = 3;
    run.iteration = 2;
    launch(&run);
    for (int r = 0; r < 4; r++)
        if (run.status[r] != (r == 1 ? STATUS_IO : STATUS_PEER) ||
            !strstr(run.text[r], r == 1 ? "the device was lost" : "rank 1 failed: the machine burns"))
            fail_msg("rank %d: status %d, '%s'", r, run.status[r], run.text[r]);
    assert_only(root, "iter_0000001 ");
    free(run.table.rows);
    free(root);
}

static void a_killed_process_leaves_the_last_whole_checkpoint(void **state) {
    (void)state;
    struct run run = make_run(2, 2, 1);
    char *root = test_directory(), *expected = tiny_path(root, "iter_0000001"), latest[4096];
    run.root = root;
    run.iteration = 1;
    launch(&run);
    assert_saved(&run);
    run.fault = FAULT_KILL;
    run.fault_call = 5;
    for (int i = 0; i < 4; i++) {
        run.fault_rank = i % 2;
        run.iteration = 1 + i / 2;
        pid_t child = fork();
        if (child == 0) {
            comm_local_run(4, run_rank, &run);
            _exit(0);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        test_ok(ckpt_latest(root, latest, sizeof latest, NULL));
        assert_string_equal(latest, expected);
    }
    run.fault = FAULT_NONE;
    run.from = expected; /* every value is still there */
    run.iteration = 3;
    launch(&run);
    assert_saved(&run);
    assert_only(root, "iter_0000001 iter_0000003 ");
    free(run.table.rows);
    free(expected);
    free(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_layout_loads_any_and_writes_the_same_bytes),
        cmocka_unit_test(so_in_shards_of_bounded_size),
        cmocka_unit_test(so_beside_the_training),
        cmocka_unit_test(large_parts_are_written_in_blocks),
        cmocka_unit_test(a_shard_may_lie_inside_a_row),
        cmocka_unit_test(a_failure_of_one_rank_is_one_of_all),
        cmocka_unit_test(a_directory_that_cannot_be_made_fails_all),
        cmocka_unit_test(elements_without_one_owner_are_refused_by_name),
        cmocka_unit_test(ranks_with_other_tensors_are_refused),
        cmocka_unit_test(a_rank_that_is_lost_leaves_nothing_and_nobody_waiting),
        cmocka_unit_test(a_killed_process_leaves_the_last_whole_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
