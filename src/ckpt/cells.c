/* Assigns elements to chunks. Every rank lists the rectangles that it owns, and all ranks get all lists. Each computes
 * what it gives and what it takes, in the same order on both sides. Several ranks may have the same numbers. A chunk's
 * writer then uses the copy in its memory, if it has one. Otherwise it takes the copy at the writer's position within
 * the other group, so the copies share the sending. */
#include "save-internal.h"

#include "base/smaller.h"

/* A rectangle of a slice, in the parameter's rows and columns. */
struct listed {
    int64_t plan, piece, row, rows, column, columns;
};
enum { LISTED_WORDS = sizeof(struct listed) / sizeof(int64_t) };

struct lists {
    const struct write_plan *plans;
    int plan_count, array_count, ranks, self;
    struct listed *mine; /* including those of copies */
    int64_t mine_count;
    struct listed *all; /* [ranks][most]: those of owners */
    int64_t most;
    int64_t *heads; /* [ranks][1 + array_count]: the length of a rank's list, and of each array the owner */
    int *places;    /* [array_count][ranks]: the index among the copies of its owner */
    int *members;   /* [array_count][ranks]: copies of the same owner are adjacent */
    int *first;     /* [array_count][ranks]: start of an owner's copies */
    int *how_many;  /* [array_count][ranks]: of an owner */
};

/* Numbers the arrays of all plans in a row: the weights, then the optimizer's. */
static int array_of(const struct lists *lists, const struct listed *rect) {
    int before = 0;
    for (int p = 0; p < rect->plan; p++)
        before += lists->plans[p].request.array_count;
    return before + lists->plans[rect->plan].pieces[rect->piece].array;
}

static int64_t owner_of(const struct lists *lists, int rank, int array) {
    return lists->heads[(int64_t)rank * (1 + lists->array_count) + 1 + array];
}

/* ---- the lists ---- */

static int list_own(struct lists *lists) {
    size_t capacity = 0;
    for (int p = 0; p < lists->plan_count; p++)
        for (int i = 0; i < lists->plans[p].piece_count; i++) {
            const struct write_plan *plan = &lists->plans[p];
            const struct write_piece *piece = &plan->pieces[i];
            const struct param *param = &plan->request.table->rows[piece->param];
            struct ckpt_block rects[CKPT_MAX_RECTS];
            int count = slice_rects(&plan->request.arrays[piece->array], param, &param->slices[piece->slice],
                                    piece->param, rects);
            TRY(array_reserve(&lists->mine, &capacity, (size_t)(lists->mine_count + count), sizeof *lists->mine));
            for (int r = 0; r < count; r++)
                lists->mine[lists->mine_count++] = (struct listed){.plan = p,
                                                                   .piece = i,
                                                                   .row = rects[r].row,
                                                                   .rows = rects[r].rows,
                                                                   .column = rects[r].column,
                                                                   .columns = rects[r].columns};
        }
    return STATUS_OK;
}

static void note_owners(const struct lists *lists, int64_t *head) {
    for (int p = 0, a = 0; p < lists->plan_count; p++)
        for (int i = 0; i < lists->plans[p].request.array_count; i++, a++) {
            const struct ckpt_array *array = &lists->plans[p].request.arrays[i];
            head[1 + a] = array->is_copy ? array->copy_of : lists->self;
        }
}

/* Exchanges the lengths of the ranks' lists, and the owners of arrays. *mine: the rectangles of this rank's list that
 * it owns. */
static int exchange_heads(struct lists *lists, struct comm *world, struct listed **mine) {
    int64_t words = 1 + lists->array_count, *head = lists->heads + lists->self * words;
    *mine = calloc((size_t)lists->mine_count + 1, sizeof **mine);
    TRY(together_agree(world, *mine ? STATUS_OK : status_no_memory()));
    note_owners(lists, head);
    for (int64_t i = 0; i < lists->mine_count; i++)
        if (head[1 + array_of(lists, &lists->mine[i])] == lists->self)
            (*mine)[head[0]++] = lists->mine[i];
    struct comm_data data = {.send = head, .receive = lists->heads, .count = words, .dtype = DTYPE_I64};
    int status = world ? comm_all_gather(world, &data) : STATUS_OK;
    for (int r = 0; r < lists->ranks && !status; r++)
        if (lists->heads[r * words] > lists->most)
            lists->most = lists->heads[r * words];
    return status;
}

/* Sends every rank's list to every rank. */
static int exchange_lists(struct lists *lists, struct comm *world) {
    struct listed *mine;
    int status = exchange_heads(lists, world, &mine);
    if (!status) {
        lists->all = calloc((size_t)(lists->most * lists->ranks) + 1, sizeof *lists->all);
        status = together_agree(world, lists->all ? STATUS_OK : status_no_memory());
    }
    if (!status)
        memcpy(lists->all + lists->self * lists->most, mine,
               (size_t)lists->heads[lists->self * (1 + lists->array_count)] * sizeof *mine);
    free(mine);
    if (status || !world)
        return status;
    struct comm_data data = {.send = lists->all + lists->self * lists->most,
                             .receive = lists->all,
                             .count = lists->most * LISTED_WORDS,
                             .dtype = DTYPE_I64};
    return comm_all_gather(world, &data);
}

static const struct listed *next_of_array(const struct lists *lists, const struct listed *list, int64_t count,
                                          int64_t *at, int array) {
    while (*at < count && array_of(lists, &list[*at]) != array)
        ++*at;
    return *at < count ? &list[(*at)++] : NULL;
}

/* Checks that a copy has the same rectangles as its owner. */
static int check_copies(const struct lists *lists) {
    for (int a = 0; a < lists->array_count; a++) {
        int64_t owner = owner_of(lists, lists->self, a), mine = 0, theirs = 0;
        bool is_same = owner >= 0 && owner < lists->ranks && owner_of(lists, (int)owner, a) == owner;
        while (is_same && owner != lists->self) {
            int64_t count = lists->heads[owner * (1 + lists->array_count)];
            const struct listed *x = next_of_array(lists, lists->mine, lists->mine_count, &mine, a);
            const struct listed *y = next_of_array(lists, lists->all + owner * lists->most, count, &theirs, a);
            if (!x && !y)
                break;
            is_same = x && y && !memcmp(x, y, sizeof *x);
        }
        if (!is_same)
            return status_fail(STATUS_INVALID, "what rank %d would write as a copy of rank %lld's is none", lists->self,
                               (long long)owner);
    }
    return STATUS_OK;
}

/* Finds which ranks have copies of which numbers. */
static int find_copies(struct lists *lists) {
    size_t size = (size_t)lists->array_count * (size_t)lists->ranks;
    lists->places = calloc(4 * size, sizeof *lists->places);
    TRY(status_allocated(lists->places));
    lists->members = lists->places + size;
    lists->first = lists->members + size;
    lists->how_many = lists->first + size;
    for (int a = 0; a < lists->array_count; a++) {
        int *members = lists->members + a * lists->ranks, *first = lists->first + a * lists->ranks;
        int *how_many = lists->how_many + a * lists->ranks, *places = lists->places + a * lists->ranks;
        for (int r = 0; r < lists->ranks; r++)
            places[r] = how_many[owner_of(lists, r, a)]++;
        for (int r = 1; r < lists->ranks; r++)
            first[r] = first[r - 1] + how_many[r - 1];
        for (int r = 0; r < lists->ranks; r++)
            members[first[owner_of(lists, r, a)] + places[r]] = r;
    }
    return STATUS_OK;
}

/* Returns the rank that gives the writer `to` the numbers of `owner` in an array. */
static int giver(const struct lists *lists, int array, int64_t owner, int to) {
    int at = array * lists->ranks;
    if (owner_of(lists, to, array) == owner)
        return to;
    int place = lists->places[at + to] % lists->how_many[at + owner];
    return lists->members[at + lists->first[at + owner] + place];
}

/* ---- cells ---- */

/* Adds the common part of both rectangles. */
static int add_cell(struct save_cells *cells, const struct save_cell *cell, int64_t row, int64_t rows, int64_t column,
                    int64_t columns) {
    struct save_cell part = *cell;
    part.row = larger(cell->row, row);
    part.rows = smaller(cell->row + cell->rows, row + rows) - part.row;
    part.column = larger(cell->column, column);
    part.columns = smaller(cell->column + cell->columns, column + columns) - part.column;
    if (part.rows <= 0 || part.columns <= 0)
        return STATUS_OK;
    TRY(array_reserve(&cells->items, &cells->capacity, (size_t)cells->count + 1, sizeof *cells->items));
    cells->items[cells->count++] = part;
    return STATUS_OK;
}

/* Adds the elements of a rectangle that are in a chunk: the end of a row, whole rows, the start of a row. */
static int add_chunk(struct save_cells *cells, const struct save_files *files, const struct file_tensor *tensor,
                     struct save_cell cell, int64_t chunk) {
    const struct save_file *file = &files->items[tensor->file];
    int64_t width = (int64_t)dtype_bytes(tensor->dtype), begin = chunk * files->chunk_bytes;
    int64_t line = tensor->dims == 2 ? tensor->shape[1] : 1;
    int64_t end = smaller(begin + files->chunk_bytes, file->bytes);
    int64_t first = larger(begin - tensor->start, 0) / width,
            last = smaller(end - tensor->start, tensor->bytes) / width;
    int64_t row = first / line, row_end = last / line, from = first % line, to = last % line;
    int64_t known = cells->count;
    int status;
    if (row == row_end) {
        status = add_cell(cells, &cell, row, 1, from, to - from);
    } else {
        status = add_cell(cells, &cell, row, from > 0, from, line - from);
        row += from > 0;
        THEN(status, add_cell(cells, &cell, row, row_end - row, 0, line));
        THEN(status, add_cell(cells, &cell, row_end, to > 0, 0, to));
    }
    for (; known < cells->count; known++) {
        struct save_cell *added = &cells->items[known];
        added->at = tensor->start + (added->row * line + added->column) * width - begin;
    }
    return status;
}

struct walk {
    const struct lists *lists;
    const struct save_files *files;
    struct save_cells *cells;
    bool is_taking; /* chunks of this rank that others give; else chunks of all ranks that this rank gives */
};

/* Walks the chunks that contain a rectangle of `owner` (or of its copies). */
static int walk_rect(const struct walk *walk, const struct listed *rect, int64_t owner) {
    const struct lists *lists = walk->lists;
    const struct write_plan *plan = &lists->plans[rect->plan];
    const struct write_piece *piece = &plan->pieces[rect->piece];
    const struct param_slice *slice = &plan->request.table->rows[piece->param].slices[piece->slice];
    const struct file_tensor *tensor = &plan->tensors[piece->tensor];
    const struct save_file *file = &walk->files->items[tensor->file];
    int64_t place = slice->file_start + rect->row - slice->row; /* along the axis of the slices */
    struct save_cell cell = {.plan = (int)rect->plan, .piece = (int)rect->piece};
    cell.row = slice->is_transposed ? rect->column : place;
    cell.rows = slice->is_transposed ? rect->columns : rect->rows;
    cell.column = slice->is_transposed ? place : rect->column;
    cell.columns = slice->is_transposed ? rect->rows : rect->columns;
    int64_t width = (int64_t)dtype_bytes(tensor->dtype), line = tensor->dims == 2 ? tensor->shape[1] : 1;
    int64_t first = (tensor->start + (cell.row * line + cell.column) * width) / walk->files->chunk_bytes;
    int64_t last = tensor->start + ((cell.row + cell.rows - 1) * line + cell.column + cell.columns) * width - 1;
    int64_t end = last / walk->files->chunk_bytes + 1;
    if (walk->is_taking) {
        int64_t mine, mine_end;
        save_file_chunks(walk->files, file, lists->self, &mine, &mine_end);
        first = larger(first, mine);
        end = smaller(end, mine_end);
    }
    int array = array_of(lists, rect), status = STATUS_OK;
    for (int64_t chunk = first; chunk < end && !status; chunk++) {
        int to = save_file_owner(walk->files, file, chunk, &cell.step), from = giver(lists, array, owner, to);
        if (walk->is_taking ? from == lists->self : from != lists->self)
            continue;
        cell.peer = walk->is_taking ? from : to;
        cell.shift = (to - from + lists->ranks) % lists->ranks;
        status = add_chunk(walk->cells, walk->files, tensor, cell, chunk);
    }
    return status;
}

static int compare_cells(const void *a, const void *b) {
    const struct save_cell *x = a, *y = b;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    if (x->shift != y->shift)
        return x->shift - y->shift;
    return (x->at > y->at) - (x->at < y->at);
}

static int make_cells(const struct lists *lists, const struct save_files *files, struct save_cells *gives,
                      struct save_cells *takes) {
    struct walk walk = {.lists = lists, .files = files, .cells = gives};
    int status = STATUS_OK;
    for (int64_t i = 0; i < lists->mine_count && !status; i++)
        status = walk_rect(&walk, &lists->mine[i], owner_of(lists, lists->self, array_of(lists, &lists->mine[i])));
    walk.cells = takes;
    walk.is_taking = true;
    for (int r = 0; r < lists->ranks; r++)
        for (int64_t i = 0; i < lists->heads[(int64_t)r * (1 + lists->array_count)] && !status; i++)
            status = walk_rect(&walk, &lists->all[r * lists->most + i], r);
    if (gives->count)
        qsort(gives->items, (size_t)gives->count, sizeof *gives->items, compare_cells);
    if (takes->count)
        qsort(takes->items, (size_t)takes->count, sizeof *takes->items, compare_cells);
    return status;
}

int save_cells_make(const struct write_plan *plans, int plan_count, const struct save_files *files, struct comm *world,
                    struct save_cells *gives, struct save_cells *takes) {
    struct lists lists = {
        .plans = plans, .plan_count = plan_count, .ranks = files->ranks, .self = world ? world->rank : 0};
    for (int p = 0; p < plan_count; p++)
        lists.array_count += plans[p].request.array_count;
    lists.heads = calloc((size_t)lists.ranks * (size_t)(1 + lists.array_count), sizeof *lists.heads);
    int status = lists.heads ? list_own(&lists) : status_no_memory();
    status = together_agree(world, status);
    THEN(status, exchange_lists(&lists, world));
    THEN(status, check_copies(&lists));
    status = together_agree(world, status); /* all ranks must treat a failed copy alike */
    THEN(status, find_copies(&lists));
    THEN(status, make_cells(&lists, files, gives, takes));
    free(lists.mine);
    free(lists.all);
    free(lists.heads);
    free(lists.places);
    return status;
}
