/* Quantised tensors of GGUF files in their bits: rows of codes and scales, as an encoded matrix takes them. */
#include "gguf-internal.h"

#include "base/smaller.h"

bool gguf_describe(const struct gguf_tensor *tensor, int64_t column, int64_t columns, struct encoding *encoding) {
    *encoding = tensor->type->encoding;
    if (encoding->codes == CODES_NONE || columns <= 0)
        return false;
    encoding_cut(encoding, column, columns);
    return true;
}

/* Copies what a block, whose first element is position `start` of a row, has of the row. */
static void copy_block(const struct gguf_type *type, const struct gguf_block *block, int64_t start, int64_t row,
                       const struct encoded_rows *to) {
    int64_t from = larger(start, 0), end = smaller(start + type->elements, to->positions);
    int64_t group = to->encoding.group, of_block = to->encoding.groups_of_block, own = type->encoding.group;
    int64_t groups = row * encoded_groups(&to->encoding, to->positions);
    memcpy(to->codes + row * to->positions + from, block->codes + (from - start), (size_t)(end - from));
    for (int64_t g = (from + group - 1) / group; g * group < end; g++) {
        int64_t at = (g * group - start) / own;
        if (!of_block) {
            ((uint16_t *)to->scales)[groups + g] = block->scale;
            if (to->shifts)
                ((uint16_t *)to->shifts)[groups + g] = block->shift;
            continue;
        }
        ((uint8_t *)to->scales)[groups + g] = block->scales[at];
        if (to->shifts)
            ((uint8_t *)to->shifts)[groups + g] = block->shifts[at];
        int64_t place = row * encoded_blocks(&to->encoding, to->positions) + g / of_block;
        to->block_scales[place] = block->scale;
        if (to->block_offsets)
            to->block_offsets[place] = block->shift;
    }
}

int gguf_read_encoded(const struct gguf_tensor *tensor, int64_t first, int64_t row, const struct encoded_rows *to) {
    const struct gguf_type *type = tensor->type;
    int64_t block = first / type->elements, count = (first + to->positions - 1) / type->elements + 1 - block;
    unsigned char *bytes = malloc((size_t)(count * type->bytes) + 1);
    int status = status_allocated(bytes);
    THEN(status, file_pread_all(tensor->part->descriptor, bytes, (size_t)(count * type->bytes),
                                tensor->start + block * type->bytes, tensor->part->path));
    for (int64_t i = 0; i < count && !status; i++) {
        struct gguf_block taken = {0};
        type->take(bytes + i * type->bytes, &taken);
        if (dtype_find_not_finite(DTYPE_F16, (uint16_t[]){taken.scale, taken.shift}, 2) >= 0)
            status = status_fail(STATUS_INVALID, "%s: tensor '%s': element %lld has a scale that is not finite",
                                 tensor->part->path, tensor->name, (long long)((block + i) * type->elements));
        else
            copy_block(type, &taken, (block + i) * type->elements - first, row, to);
    }
    free(bytes);
    return status;
}
