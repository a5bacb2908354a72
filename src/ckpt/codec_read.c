/* Rectangles of a linear in few bits: codes (codec_codes.c), scales and zeros by group, and the order of inputs. Only
 * codec_read_values makes numbers of them, a few rows at a time. */
#include "codec-internal.h"

#include "base/smaller.h"
#include "ckpt/pieces.h"

enum { PIECE_BYTES = 1 << 18 /* of codes that are read at once */, FLAT_CODES = 1 << 17, ORDER_GROUP = 32 };

/* ---- codes ---- */

/* Refuses the two codes of E4M3 that are no numbers. */
static int check_numbers(const struct codec_linear *linear, const uint8_t *codes, int64_t count) {
    int found = 0;
    if (linear->encoding.codes != CODES_E4M3)
        return STATUS_OK;
#pragma omp parallel for simd num_threads(usable_cores()) schedule(static) reduction(| : found) if (count > PIECE_BYTES)
    for (int64_t i = 0; i < count; i++)
        found |= (codes[i] & 0x7f) == 0x7f;
    return found ? codec_fail(linear, 0, "has a number that is nan: %s", "finite numbers were expected") : STATUS_OK;
}

/* A rectangle of a flat weight, whose rows go to `out`, `stride` apart. */
struct flat_rows {
    const struct codec_linear *linear;
    const struct codec_rect *rect;
    int64_t stride;
    uint8_t *out;
};

/* Reads codes of rows [row, row + count), one after the other. */
static int read_flat(const void *context, int64_t row, int64_t count) {
    const struct flat_rows *flat = context;
    int64_t first = (flat->rect->row + row) * flat->linear->columns + flat->rect->column;
    const struct codec_rect rect = {0, 1, first, count * flat->rect->columns};
    return codec_read_codes(&flat->linear->codes, &rect, 0, 1, flat->out + row * flat->stride);
}

/* Reads all rows. Threads share them. */
static int read_flat_rows(const struct codec_linear *linear, const struct codec_rect *rect, int64_t stride,
                          uint8_t *out) {
    bool is_whole = rect->columns == linear->columns && stride == rect->columns;
    int64_t at_once = is_whole ? FLAT_CODES / rect->columns + 1 : 1; /* rows without gaps between them */
    const struct flat_rows flat = {linear, rect, stride, out};
    return ckpt_read_pieces(rect->rows, at_once, read_flat, &flat);
}

/* Reads codes in the order of the inputs: out[rows, columns], rows `stride` apart. */
static int read_rows(const struct codec_linear *linear, const struct codec_rect *rect, int64_t stride, uint8_t *out) {
    const struct codec_rect turned = {rect->column, rect->columns, rect->row, rect->rows};
    int status = linear->is_turned ? codec_read_codes(&linear->codes, &turned, 1, stride, out)
                 : linear->is_flat ? read_flat_rows(linear, rect, stride, out)
                                   : codec_read_codes(&linear->codes, rect, stride, 1, out);
    return status ? status : check_numbers(linear, out, rect->rows * stride);
}

/* ---- the order of inputs ---- */

/* A run of a rectangle's inputs that have one group, among those sorted by group. */
struct run {
    int64_t at, group, count;
};

/* Steps to the next run with inputs of the rectangle; begin with a zeroed run. Returns false at the end. */
static bool next_run(const struct codec_linear *linear, const struct codec_rect *rect, struct run *run) {
    run->count = 0;
    while (run->at < linear->columns && !run->count) {
        run->group = linear->group_of[linear->by_group[run->at]];
        for (; run->at < linear->columns && linear->group_of[linear->by_group[run->at]] == run->group; run->at++) {
            int64_t input = linear->by_group[run->at] - rect->column;
            run->count += input >= 0 && input < rect->columns;
        }
    }
    return run->count > 0;
}

static int64_t padded(int64_t count, int64_t group) {
    return (count + group - 1) / group * group;
}

/* All groups are whole, the last one excepted, or all are padded to a multiple of a smaller group. */
static void describe_order(const struct codec_linear *linear, const struct codec_rect *rect,
                           struct encoded_part *part) {
    int64_t group = linear->encoding.group, positions = 0;
    bool is_whole = true, was_short = false;
    for (struct run run = {0}; next_run(linear, rect, &run);) {
        is_whole &= !was_short && run.count <= group;
        was_short = run.count < group;
        positions += padded(run.count, ORDER_GROUP);
    }
    part->has_order = true;
    part->positions = is_whole ? rect->columns : positions;
    part->encoding.group = is_whole ? (int32_t)group : ORDER_GROUP;
}

void codec_describe(const struct codec_linear *linear, const struct codec_rect *rect, struct encoded_part *part) {
    *part = (struct encoded_part){.rows = rect->rows, .positions = rect->columns, .encoding = linear->encoding};
    if (linear->by_group) {
        describe_order(linear, rect, part);
        return;
    }
    if (linear->is_flat) /* the next row begins inside a group */
        encoding_cut(&part->encoding, linear->columns, 0);
    encoding_cut(&part->encoding, rect->column, rect->columns);
}

/* Writes the file's group of each local group, and the inputs in their order. */
static void place_groups(const struct codec_linear *linear, const struct codec_rect *rect,
                         const struct encoded_rows *to, int32_t *groups) {
    int64_t group = to->encoding.group, at = 0;
    if (!linear->by_group) {
        for (int64_t i = 0; i < encoded_groups(&to->encoding, to->positions); i++)
            groups[i] = (int32_t)((rect->column + i * group) / linear->encoding.group);
        return;
    }
    bool is_padded = to->positions != rect->columns || group != linear->encoding.group;
    for (int64_t i = 0; i < to->positions; i++)
        to->order[i] = -1;
    for (struct run run = {0}; next_run(linear, rect, &run);) {
        int64_t end = at + (is_padded ? padded(run.count, group) : run.count);
        int64_t from = run.at;
        for (int64_t left = run.count; left > 0;) { /* the run's inputs, from its last one on */
            int64_t input = linear->by_group[--from] - rect->column;
            if (input >= 0 && input < rect->columns)
                to->order[at + --left] = (int32_t)input;
        }
        for (int64_t i = (at + group - 1) / group; i * group < end; i++)
            groups[i] = (int32_t)run.group;
        at = end;
    }
}

/* Reads codes and moves them to their positions. A row has a code of 0 at its end, for positions without an input. */
static int read_sorted(const struct codec_linear *linear, const struct codec_rect *rect,
                       const struct encoded_rows *to) {
    int64_t stride = rect->columns + 1;
    uint8_t *natural = calloc((size_t)(rect->rows * stride), 1);
    int32_t *from = malloc((size_t)to->positions * sizeof *from);
    int status = status_allocated(natural && from);
    THEN(status, read_rows(linear, rect, stride, natural));
    for (int64_t p = 0; p < to->positions && !status; p++)
        from[p] = to->order[p] < 0 ? (int32_t)rect->columns : to->order[p];
#pragma omp parallel for num_threads(usable_cores()) schedule(static)
    for (int64_t r = 0; r < (status ? 0 : rect->rows); r++) {
        const uint8_t *row = natural + r * stride;
        uint8_t *out = to->codes + r * to->positions;
        for (int64_t p = 0; p < to->positions; p++)
            out[p] = row[from[p]];
    }
    free(natural);
    free(from);
    return status;
}

/* ---- scales and zeros ---- */

static int read_numbers(const struct codec_linear *linear, int64_t first, int64_t count, void *out) {
    const struct tensor_entry *from = &linear->parts[linear->scales];
    int (*read)(const struct codec_linear *, int64_t, int64_t, void *) = linear->codec->read_scales;
    TRY(read ? read(linear, first, count, out)
             : safetensors_read(from->file, from->tensor, first, count, from->tensor->dtype, out));
    int64_t at = dtype_find_not_finite(linear->encoding.scale_type, out, count);
    return at < 0 ? STATUS_OK
                  : codec_fail(linear, linear->scales, "has a scale that is not finite: element %lld",
                               (long long)(first + at));
}

/* Scales of some rows and groups of a file, in the order of the file. */
struct grid {
    int64_t row, rows, group, groups; /* rows: those that share a scale count once */
    char *values;
    size_t width;
};

static int read_grid(const struct codec_linear *linear, const struct grid *grid) {
    int64_t all_rows = (linear->rows + linear->scale_rows - 1) / linear->scale_rows;
    bool is_turned = linear->is_turned;
    int64_t stride = is_turned ? all_rows : linear->groups, lines = is_turned ? grid->groups : grid->rows;
    int64_t line = is_turned ? grid->rows : grid->groups;
    int64_t start = is_turned ? grid->group * stride + grid->row : grid->row * stride + grid->group;
    if (line == stride) { /* without gaps */
        line *= lines;
        lines = 1;
    }
    for (int64_t i = 0; i < lines; i++)
        TRY(read_numbers(linear, start + i * stride, line, grid->values + (size_t)(i * line) * grid->width));
    return STATUS_OK;
}

static const char *grid_at(const struct codec_linear *linear, const struct grid *grid, int64_t row, int64_t group) {
    int64_t i = row / linear->scale_rows - grid->row, j = group - grid->group;
    return grid->values + (size_t)(linear->is_turned ? j * grid->rows + i : i * grid->groups + j) * grid->width;
}

static int read_scales(const struct codec_linear *linear, const struct codec_rect *rect, const struct grid *span,
                       const int32_t *groups, const struct encoded_rows *to) {
    int64_t count = encoded_groups(&to->encoding, to->positions), end = rect->row + rect->rows;
    struct grid grid = *span;
    grid.row = rect->row / linear->scale_rows;
    grid.rows = (end - 1) / linear->scale_rows - grid.row + 1;
    grid.width = dtype_bytes(to->encoding.scale_type);
    grid.values = malloc((size_t)(grid.rows * grid.groups) * grid.width);
    int status = status_allocated(grid.values);
    THEN(status, read_grid(linear, &grid));
#pragma omp parallel for num_threads(usable_cores()) schedule(static) if (rect->rows * count > PIECE_BYTES / 16)
    for (int64_t r = 0; r < (status ? 0 : rect->rows); r++)
        for (int64_t g = 0; g < count; g++)
            memcpy((char *)to->scales + (size_t)(r * count + g) * grid.width,
                   grid_at(linear, &grid, rect->row + r, groups[g]), grid.width);
    free(grid.values);
    return status;
}

/* The same where groups run across rows. */
static int read_flat_scales(const struct codec_linear *linear, const struct codec_rect *rect,
                            const struct encoded_rows *to) {
    int64_t count = encoded_groups(&to->encoding, to->positions), group = linear->encoding.group;
    int64_t first = (rect->row * linear->columns + rect->column) / group;
    int64_t last = ((rect->row + rect->rows - 1) * linear->columns + rect->column + rect->columns - 1) / group;
    size_t width = dtype_bytes(to->encoding.scale_type);
    char *values = malloc((size_t)(last - first + 1) * width);
    int status = status_allocated(values);
    THEN(status, read_numbers(linear, first, last - first + 1, values));
#pragma omp parallel for num_threads(usable_cores()) schedule(static) if (rect->rows * count > PIECE_BYTES / 16)
    for (int64_t r = 0; r < (status ? 0 : rect->rows); r++)
        for (int64_t g = 0; g < count; g++) {
            int64_t element = (rect->row + r) * linear->columns + rect->column + g * to->encoding.group;
            memcpy((char *)to->scales + (size_t)(r * count + g) * width,
                   values + (size_t)(element / group - first) * width, width);
        }
    free(values);
    return status;
}

static int read_zeros(const struct codec_linear *linear, const struct codec_rect *rect, const struct grid *span,
                      const int32_t *groups, const struct encoded_rows *to) {
    int64_t count = encoded_groups(&to->encoding, to->positions), n = span->groups;
    const struct codec_rect plain = {rect->row, rect->rows, span->group, n};
    const struct codec_rect turned = {span->group, n, rect->row, rect->rows};
    uint8_t *zeros = malloc((size_t)(rect->rows * n));
    int status = status_allocated(zeros);
    THEN(status, linear->is_turned ? codec_read_codes(&linear->zeros, &turned, 1, n, zeros)
                                   : codec_read_codes(&linear->zeros, &plain, n, 1, zeros));
#pragma omp parallel for num_threads(usable_cores()) schedule(static) if (rect->rows * count > PIECE_BYTES / 16)
    for (int64_t r = 0; r < (status ? 0 : rect->rows); r++)
        for (int64_t g = 0; g < count; g++)
            ((uint8_t *)to->shifts)[r * count + g] = zeros[r * n + groups[g] - span->group];
    free(zeros);
    return status;
}

/* ---- rectangles ---- */

int codec_read(const struct codec_linear *linear, const struct codec_rect *rect, const struct encoded_rows *to) {
    if (rect->rows <= 0 || rect->columns <= 0)
        return STATUS_OK;
    int64_t count = encoded_groups(&to->encoding, to->positions);
    int32_t *groups = calloc((size_t)count, sizeof *groups);
    TRY(status_allocated(groups));
    place_groups(linear, rect, to, groups);
    struct grid span = {.group = groups[0]};
    for (int64_t g = 0; g < count; g++) /* they ascend */
        span.groups = groups[g] - span.group + 1;
    int status = linear->by_group ? read_sorted(linear, rect, to) : read_rows(linear, rect, to->positions, to->codes);
    THEN(status, linear->is_flat ? read_flat_scales(linear, rect, to) : read_scales(linear, rect, &span, groups, to));
    THEN_IF(status, to->encoding.shift == ENCODED_ZEROS, read_zeros(linear, rect, &span, groups, to));
    free(groups);
    return status;
}

int codec_read_values(const struct codec_linear *linear, const struct codec_rect *rect, enum dtype dtype, void *out) {
    struct codec_rect piece = *rect;
    struct encoded_part part;
    codec_describe(linear, rect, &part);
    piece.rows = smaller(rect->rows, PIECE_BYTES / (part.positions + 1) + 1);
    part.rows = piece.rows;
    size_t bytes = encoded_rows_bytes(&part), line = (size_t)rect->columns * sizeof(float);
    char *memory = malloc(bytes + (size_t)piece.rows * line);
    int status = status_allocated(memory);
    for (; piece.row < rect->row + rect->rows && !status; piece.row += piece.rows) {
        part.rows = piece.rows = smaller(piece.rows, rect->row + rect->rows - piece.row);
        struct encoded_rows rows = encoded_rows_place(&part, memory);
        char *values = memory + bytes,
             *to = (char *)out + (size_t)((piece.row - rect->row) * rect->columns) * dtype_bytes(dtype);
        status = codec_read(linear, &piece, &rows);
        if (status)
            break;
#pragma omp parallel for num_threads(usable_cores()) schedule(static) if (piece.rows * rect->columns > PIECE_BYTES / 4)
        for (int64_t r = 0; r < piece.rows; r++) {
            float *row = (float *)(values + (size_t)r * line);
            encoded_row_values(&rows, r, row);
            uint16_t *half = (uint16_t *)to + r * rect->columns;
            for (int64_t i = 0; i < rect->columns && dtype != DTYPE_F32; i++)
                half[i] = dtype == DTYPE_BF16 ? bf16_from_float(row[i]) : f16_from_float(row[i]);
            if (dtype == DTYPE_F32)
                memcpy(to + (size_t)r * line, row, line);
        }
        if (dtype_find_not_finite(dtype, to, piece.rows * rect->columns) >= 0)
            status = codec_fail(linear, linear->scales, "makes a weight of %s that is not finite", linear->name);
    }
    free(memory);
    return status;
}
