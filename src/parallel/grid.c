/* Places and groups of ranks on the grid. */
#include "parallel/grid.h"

int rank_grid_size(const struct rank_grid *grid) {
    return grid->tensor * grid->context * grid->expert * grid->data * grid->pipeline;
}

struct rank_grid rank_grid_place(const struct rank_grid *grid, int rank) {
    struct rank_grid place;
    place.tensor = rank % grid->tensor;
    rank /= grid->tensor;
    place.context = rank % grid->context;
    rank /= grid->context;
    place.expert = rank % grid->expert;
    rank /= grid->expert;
    place.data = rank % grid->data;
    place.pipeline = rank / grid->data;
    return place;
}

int rank_grid_rank(const struct rank_grid *grid, const struct rank_grid *place) {
    int rank = place->pipeline;
    rank = rank * grid->data + place->data;
    rank = rank * grid->expert + place->expert;
    rank = rank * grid->context + place->context;
    return rank * grid->tensor + place->tensor;
}

enum { AXES = 5 };

static void axes_of(const struct rank_grid *grid, int sizes[AXES]) {
    sizes[0] = grid->tensor;
    sizes[1] = grid->context;
    sizes[2] = grid->expert;
    sizes[3] = grid->data;
    sizes[4] = grid->pipeline;
}

int rank_grid_group_size(const struct rank_grid *grid, unsigned axes) {
    int sizes[AXES], count = 1;
    axes_of(grid, sizes);
    for (int axis = 0; axis < AXES; axis++)
        if (axes & 1u << axis)
            count *= sizes[axis];
    return count;
}

int rank_grid_group(const struct rank_grid *grid, unsigned axes, int rank, int *ranks) {
    int sizes[AXES], places[AXES], count = 1, stride = 1;
    struct rank_grid place = rank_grid_place(grid, rank);
    axes_of(grid, sizes);
    axes_of(&place, places);
    ranks[0] = rank;
    for (int axis = 0; axis < AXES; stride *= sizes[axis++]) {
        if (!(axes & 1u << axis))
            continue;
        /* Repeats the ranks at place 0 of this axis for each further place. */
        for (int i = 0; i < count; i++)
            ranks[i] -= places[axis] * stride;
        for (int i = count; i < count * sizes[axis]; i++)
            ranks[i] = ranks[i - count] + stride;
        count *= sizes[axis];
    }
    return count;
}

int rank_grid_embedding_group(const struct rank_grid *grid, int rank, int ranks[2]) {
    struct rank_grid place = rank_grid_place(grid, rank);
    int last = grid->pipeline - 1;
    if (place.pipeline != 0 && place.pipeline != last)
        return 0;
    place.pipeline = 0;
    ranks[0] = rank_grid_rank(grid, &place);
    if (last == 0)
        return 1;
    place.pipeline = last;
    ranks[1] = rank_grid_rank(grid, &place);
    return 2;
}

int rank_grid_fill(struct rank_grid *grid, int ranks) {
    const struct {
        const char *name;
        int size;
    } axes[] = {
        {"tensor_model_parallel_size", grid->tensor},
        {"pipeline_model_parallel_size", grid->pipeline},
        {"context_parallel_size", grid->context},
        {"expert_model_parallel_size", grid->expert},
    };
    struct strbuf text = STRBUF_INIT;
    int64_t asked = 1;
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
        if (axes[i].size == 1 && i > 1)
            continue;
        strbuf_format(&text, "%sparallel.%s %d", i ? " x " : "", axes[i].name, axes[i].size);
        asked *= axes[i].size; /* each at most 65536: four of them overflow only beyond any number of ranks */
        if (asked > INT32_MAX)
            break;
    }
    int status = strbuf_status(&text);
    if (!status && asked > ranks)
        status = status_fail(STATUS_USAGE, "%s needs %lld ranks, and there are %d: start %lld, or take smaller sizes",
                             strbuf_text(&text), (long long)asked, ranks, (long long)asked);
    else if (!status && ranks % asked)
        status = status_fail(STATUS_USAGE, "%s is %lld, which does not divide the %d ranks: start %lld or %lld",
                             strbuf_text(&text), (long long)asked, ranks, (long long)(ranks - ranks % asked),
                             (long long)(ranks - ranks % asked + asked));
    else if (!status)
        grid->data = (int)(ranks / asked);
    strbuf_free(&text);
    return status;
}
