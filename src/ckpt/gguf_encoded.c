/* Quantised tensors of GGUF files in their bits: rows of codes and scales, as an encoded matrix takes them. Rows that
 * lie together are read at once, and whole rows are taken apart in place. */
#include "gguf-internal.h"

#include "base/smaller.h"

bool gguf_describe(const struct gguf_tensor *tensor, int64_t column, int64_t columns, struct encoding *encoding) {
    *encoding = tensor->type->encoding;
    if (encoding->codes == CODES_NONE || columns <= 0)
        return false;
    encoding_cut(encoding, column, columns);
    return true;
}

/* Returns row `row` of encoded rows. */
static struct encoded_rows row_of(const struct encoded_rows *rows, int64_t row) {
    int64_t groups = row * encoded_groups(&rows->encoding, rows->positions);
    int64_t blocks = row * encoded_blocks(&rows->encoding, rows->positions);
    size_t width = dtype_bytes(rows->encoding.scale_type);
    struct encoded_rows one = *rows;
    one.rows = 1;
    one.codes += row * rows->positions;
    one.scales = (char *)rows->scales + (size_t)groups * width;
    one.shifts = rows->shifts ? (char *)rows->shifts + (size_t)groups * width : NULL;
    one.block_scales = rows->block_scales ? rows->block_scales + blocks : NULL;
    one.block_offsets = rows->block_offsets ? rows->block_offsets + blocks : NULL;
    return one;
}

/* Copies positions of a row, from `column` on, to another, whose groups and blocks divide its own. */
static void copy_cut(const struct encoded_rows *from, int64_t column, const struct encoded_rows *to) {
    const struct encoding *e = &to->encoding;
    size_t width = dtype_bytes(e->scale_type);
    int64_t own_block = (int64_t)from->encoding.group * from->encoding.groups_of_block;
    memcpy(to->codes, from->codes + column, (size_t)to->positions);
    for (int64_t g = 0; g < encoded_groups(e, to->positions); g++) {
        size_t at = (size_t)((column + g * e->group) / from->encoding.group) * width;
        memcpy((char *)to->scales + (size_t)g * width, (const char *)from->scales + at, width);
        if (to->shifts)
            memcpy((char *)to->shifts + (size_t)g * width, (const char *)from->shifts + at, width);
    }
    for (int64_t b = 0; b < encoded_blocks(e, to->positions); b++) {
        int64_t at = (column + b * e->groups_of_block * e->group) / own_block;
        to->block_scales[b] = from->block_scales[at];
        if (to->block_offsets)
            to->block_offsets[b] = from->block_offsets[at];
    }
}

/* Returns the first block of a row with a scale that is not finite, or -1. */
static int64_t find_bad_block(const struct encoded_rows *row, int64_t blocks) {
    const uint16_t *scales = row->block_scales ? row->block_scales : row->scales;
    const uint16_t *shifts = row->block_scales ? row->block_offsets : row->shifts;
    int bad = 0;
    for (int64_t i = 0; i < blocks; i++)
        bad |= (scales[i] & 0x7c00) == 0x7c00;
    for (int64_t i = 0; i < blocks && shifts; i++)
        bad |= (shifts[i] & 0x7c00) == 0x7c00;
    for (int64_t i = 0; i < blocks && bad; i++)
        if ((scales[i] & 0x7c00) == 0x7c00 || (shifts && (shifts[i] & 0x7c00) == 0x7c00))
            return i;
    return -1;
}

/* Memory for rows of a file, and for one of them whose columns are cut. */
struct reading {
    const struct gguf_tensor *tensor;
    int64_t column, blocks, line; /* the cut's first column, its blocks, and the bytes of a row of the file */
    bool is_cut;
    struct encoded_rows whole; /* the blocks of a cut */
};

static int take_row(const struct reading *r, const unsigned char *bytes, int64_t file_row, struct encoded_rows to) {
    const struct gguf_type *type = r->tensor->type;
    int64_t first = r->column / type->elements;
    const struct encoded_rows *taken = r->is_cut ? &r->whole : &to;
    type->take(bytes + first * type->bytes, r->blocks, taken);
    int64_t bad = find_bad_block(taken, r->blocks);
    if (bad >= 0)
        return status_fail(STATUS_INVALID, "%s: tensor '%s': element %lld has a scale that is not finite",
                           r->tensor->part->path, r->tensor->name,
                           (long long)((file_row * (r->line / type->bytes) + first + bad) * type->elements));
    if (r->is_cut)
        copy_cut(taken, r->column - first * type->elements, &to);
    return STATUS_OK;
}

int gguf_read_encoded(const struct gguf_tensor *tensor, const struct gguf_rows *from, const struct encoded_rows *to) {
    const struct gguf_type *type = tensor->type;
    int64_t columns = tensor->shape[tensor->dims - 1], first = from->rows[0], end = from->rows[0] + 1;
    struct reading r = {.tensor = tensor, .column = from->column, .line = columns / type->elements * type->bytes};
    r.blocks = (from->column + to->positions - 1) / type->elements - from->column / type->elements + 1;
    r.is_cut = !encoding_equals(&to->encoding, &type->encoding) || r.blocks * type->elements != to->positions;
    const struct encoded_part whole = {.rows = 1, .positions = r.blocks * type->elements, .encoding = type->encoding};
    for (int64_t i = 1; i < from->count; i++) {
        first = smaller(first, from->rows[i]);
        end = from->rows[i] < end ? end : from->rows[i] + 1;
    }
    size_t room = encoded_rows_bytes(&whole), bytes = (size_t)((end - first) * r.line);
    char *memory = malloc(room + bytes);
    TRY(status_allocated(memory));
    unsigned char *lines = (unsigned char *)memory + room;
    int status =
        file_pread_all(tensor->part->descriptor, lines, bytes, tensor->start + first * r.line, tensor->part->path);
    r.whole = encoded_rows_place(&whole, memory);
    for (int64_t i = 0; i < from->count && !status; i++)
        status = take_row(&r, lines + (from->rows[i] - first) * r.line, from->rows[i], row_of(to, from->first + i));
    free(memory);
    return status;
}
