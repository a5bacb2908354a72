/* Codes of 4 or 8 bits from packed units. Threads share the lines of a rectangle. Whole units are taken apart in
 * loops for each way in which codes may lie; those at the edges of a rectangle code by code. */
#include "codec-internal.h"

#include "ckpt/pieces.h"

enum { PIECE_BYTES = 1 << 16 /* of packed codes that are read at once */, TILE = 16, SQUARE = 8 };

/* Lines of a tensor: along axis 1 a line is a row, and along axis 0 a row of units with several rows. */
struct lines {
    const struct codec_codes *codes;
    const struct codec_rect *rect;
    int64_t row_step, column_step;
    uint8_t *out;
    int per_unit;
    int64_t start, stride, bytes; /* of the first line in the tensor, from line to line, of a line's part */
    int64_t first_unit;           /* along the axis */
};

/* Returns the first code of unit `u` of line `i`, along the axis; below 0: the rectangle begins inside the unit. */
static int64_t place_of(const struct lines *l, int64_t i, int64_t u) {
    return l->codes->axis ? (l->first_unit + u) * l->per_unit - l->rect->column
                          : (l->first_unit + i) * l->per_unit - l->rect->row;
}

/* Returns the codes of a unit as bytes, in the order of their bits. */
static inline uint64_t spread(const struct codec_codes *c, const char *at) {
    uint32_t unit = 0;
    if (c->unit_bytes == sizeof unit)
        memcpy(&unit, at, sizeof unit);
    else
        unit = (unsigned char)*at;
    uint64_t codes = unit + c->added;
    if (c->bits == 4) {
        codes = (codes | codes << 16) & 0x0000ffff0000ffffu;
        codes = (codes | codes << 8) & 0x00ff00ff00ff00ffu;
        codes = (codes | codes << 4) & 0x0f0f0f0f0f0f0f0fu;
    }
    return codes ^ c->flipped * 0x0101010101010101u;
}

/* Unpacks what the rectangle has of any unit. */
static void unpack_unit(const struct lines *l, const char *line, int64_t i, int64_t u) {
    const struct codec_codes *c = l->codes;
    int64_t first = place_of(l, i, u), limit = c->axis ? l->rect->columns : l->rect->rows;
    int64_t step = c->axis ? l->column_step : l->row_step;
    uint8_t *out = l->out + (c->axis ? i * l->row_step : u * l->column_step);
    uint64_t codes = spread(c, line + u * c->unit_bytes);
    for (int64_t t = first < 0 ? -first : 0; t < l->per_unit && first + t < limit; t++)
        out[(first + t) * step] = (uint8_t)(codes >> 8 * (c->places ? c->places[t] : t));
}

static inline void unpack_halves(const uint8_t *bytes, int64_t count, int first_shift, uint8_t *out) {
    for (int64_t i = 0; i < count; i++) {
        out[2 * i] = bytes[i] >> first_shift & 15;
        out[2 * i + 1] = bytes[i] >> (4 - first_shift) & 15;
    }
}

/* Unpacks bytes of codes that lie together, in the order of their bits, or of bytes with the upper half first. */
static void unpack_bytes(const struct codec_codes *c, const void *bytes, int64_t count, uint8_t *restrict out) {
    const uint8_t *from = bytes;
    if (c->bits == 8)
        for (int64_t i = 0; i < count; i++)
            out[i] = from[i] ^ c->flipped;
    else if (c->places)
        unpack_halves(from, count, 4, out);
    else
        unpack_halves(from, count, 0, out);
}

/* Unpacks lines whose codes stay neighbours: only the units at both ends may be partly outside the rectangle. */
static void unpack_rows(const struct lines *l, const char *piece, int64_t first, int64_t count) {
    const struct codec_codes *c = l->codes;
    int64_t units = l->bytes / c->unit_bytes, begin = place_of(l, 0, 0) < 0;
    int64_t end = place_of(l, 0, units) > l->rect->columns ? units - 1 : units;
    for (int64_t i = 0; i < count; i++) {
        const char *line = piece + i * l->bytes;
        if (begin)
            unpack_unit(l, line, first + i, 0);
        if (end > begin)
            unpack_bytes(c, line + begin * c->unit_bytes, (end - begin) * c->unit_bytes,
                         l->out + (first + i) * l->row_step + place_of(l, 0, begin));
        for (int64_t u = end > begin ? end : begin; u < units; u++)
            unpack_unit(l, line, first + i, u);
    }
}

/* Unpacks units with several rows, which are neighbours in `out`: tile by tile, so that what is written stays in the
 * processor's cache. */
static void unpack_columns(const struct lines *l, const char *piece, int64_t first, int64_t count) {
    const struct codec_codes *c = l->codes;
    int64_t units = l->bytes / c->unit_bytes;
    for (int64_t tile = 0; tile < units; tile += TILE)
        for (int64_t i = first; i < first + count; i++) {
            const char *line = piece + (i - first) * l->bytes;
            int64_t at = place_of(l, i, 0);
            bool is_whole = at >= 0 && at + l->per_unit <= l->rect->rows;
            for (int64_t u = tile; u < tile + TILE && u < units; u++) {
                uint64_t codes = spread(c, line + u * c->unit_bytes);
                uint8_t *out = l->out + u * l->column_step + at;
                if (!is_whole)
                    unpack_unit(l, line, i, u);
                else if (c->bits == 4)
                    memcpy(out, &codes, 8);
                else
                    memcpy(out, &codes, 4);
            }
        }
}

/* Transposes 8 x 8 bytes: in each step, rows and columns swap one bit of their numbers. */
static inline void transpose_bytes(uint64_t x[SQUARE]) {
    static const uint64_t masks[] = {0x00ff00ff00ff00ffu, 0x0000ffff0000ffffu, 0x00000000ffffffffu};
    for (int step = 0; step < 3; step++)
        for (int i = 0; i < SQUARE; i++) {
            int bit = 1 << step, shift = 8 * bit;
            if (i & bit)
                continue;
            uint64_t a = x[i], b = x[i + bit];
            x[i] = (a & masks[step]) | (b & masks[step]) << shift;
            x[i + bit] = (a >> shift & masks[step]) | (b & ~masks[step]);
        }
}

/* Unpacks units of 8 codes along the rows of a matrix that is turned: 8 lines of a unit are 8 codes of 8 rows. */
static void unpack_turned(const struct lines *l, const char *piece, int64_t first, int64_t count) {
    const struct codec_codes *c = l->codes;
    int64_t units = l->bytes / c->unit_bytes, squares = count / SQUARE * SQUARE;
    for (int64_t u = 0; u < units; u++) {
        int64_t at = place_of(l, 0, u);
        bool is_whole = at >= 0 && at + SQUARE <= l->rect->columns;
        for (int64_t i = 0; i < squares && is_whole; i += SQUARE) {
            uint64_t x[SQUARE];
            for (int j = 0; j < SQUARE; j++)
                x[j] = spread(c, piece + (i + j) * l->bytes + u * c->unit_bytes);
            transpose_bytes(x);
            for (int t = 0; t < SQUARE; t++)
                memcpy(l->out + (at + t) * l->column_step + first + i, &x[c->places ? c->places[t] : t], SQUARE);
        }
        for (int64_t i = is_whole ? squares : 0; i < count; i++)
            unpack_unit(l, piece + i * l->bytes, first + i, u);
    }
}

static void unpack_each(const struct lines *l, const char *piece, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        for (int64_t u = 0; u < l->bytes / l->codes->unit_bytes; u++)
            unpack_unit(l, piece + i * l->bytes, first + i, u);
}

static void unpack(const struct lines *l, const char *piece, int64_t first, int64_t count) {
    const struct codec_codes *c = l->codes;
    bool is_in_bytes = !c->added && (!c->places || (c->unit_bytes == 1 && c->bits == 4));
    if (c->axis && l->column_step == 1 && is_in_bytes)
        unpack_rows(l, piece, first, count);
    else if (!c->axis && l->row_step == 1 && !c->places && c->unit_bytes == 4)
        unpack_columns(l, piece, first, count);
    else if (c->axis && l->row_step == 1 && l->per_unit == SQUARE)
        unpack_turned(l, piece, first, count);
    else
        unpack_each(l, piece, first, count);
}

/* Reads and unpacks lines [first, first + count). */
static int read_lines(const void *context, int64_t first, int64_t count) {
    const struct lines *l = context;
    const struct tensor_entry *from = &l->codes->tensor;
    char *piece = malloc((size_t)(count * l->bytes) + 1);
    TRY(status_allocated(piece));
    int64_t at_once = l->bytes == l->stride ? count : 1; /* lines without gaps between them */
    int status = STATUS_OK;
    for (int64_t i = 0; i < count && !status; i += at_once)
        status = safetensors_read_bytes(from->file, from->tensor, l->start + (first + i) * l->stride,
                                        at_once * l->bytes, piece + i * l->bytes);
    if (!status)
        unpack(l, piece, first, count);
    free(piece);
    return status;
}

int codec_read_codes(const struct codec_codes *c, const struct codec_rect *rect, int64_t row_step, int64_t column_step,
                     uint8_t *out) {
    struct lines l = {c, rect, row_step, column_step, out, .per_unit = c->unit_bytes * 8 / c->bits};
    if (rect->rows <= 0 || rect->columns <= 0)
        return STATUS_OK;
    int64_t first = c->axis ? rect->column : rect->row, last = first + (c->axis ? rect->columns : rect->rows) - 1;
    int64_t units = last / l.per_unit - first / l.per_unit + 1;
    int64_t row_units = c->axis ? (c->shape[1] + l.per_unit - 1) / l.per_unit : c->shape[1];
    int64_t count = c->axis ? rect->rows : units;
    l.first_unit = first / l.per_unit;
    l.stride = row_units * c->unit_bytes;
    l.bytes = (c->axis ? units : rect->columns) * c->unit_bytes;
    l.start = c->axis ? rect->row * l.stride + l.first_unit * c->unit_bytes
                      : l.first_unit * l.stride + rect->column * c->unit_bytes;
    return ckpt_read_pieces(count, (PIECE_BYTES / l.bytes / SQUARE + 1) * SQUARE, read_lines, &l);
}
