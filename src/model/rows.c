/* The rows of a batch, or of a step of inference, on their way to the device. */
#include "model-internal.h"

void *upload_add_padded(struct upload *upload, const void *from, int64_t count, int64_t padded, const void *pad,
                        size_t width) {
    char *taken = upload_take(upload, (size_t)padded * width);
    if (count)
        memcpy(taken, from, (size_t)count * width);
    for (int64_t i = count; i < padded; i++)
        memcpy(taken + (size_t)i * width, pad, width);
    return upload_place(upload, taken);
}

static int64_t longest_segment(const struct host_rows *rows) {
    int64_t longest = 0;
    for (int64_t i = 0; i < rows->segments; i++) {
        int64_t length = rows->segment_start[i + 1] - rows->segment_start[i];
        longest = length > longest ? length : longest;
    }
    return longest;
}

static void *add_ids(struct upload *upload, const void *from, const struct host_rows *rows, int32_t pad) {
    return upload_add_padded(upload, from, rows->rows, rows->padded, &pad, sizeof pad);
}

void rows_upload(struct upload *upload, const struct host_rows *from, struct device_rows *to) {
    to->rows = from->padded;
    to->segments = from->segments;
    to->longest = longest_segment(from);
    to->tokens = add_ids(upload, from->tokens, from, 0);
    to->positions = add_ids(upload, from->positions, from, 0);
    if (from->segments) {
        to->segment_start =
            upload_add(upload, from->segment_start, (size_t)(from->segments + 1) * sizeof *from->segment_start);
        to->sample = add_ids(upload, from->sample, from, 0);
        to->token = add_ids(upload, from->token, from, 0);
    } else {
        to->sequence = add_ids(upload, from->sequence, from, -1);
        to->cached = add_ids(upload, from->cached, from, -1);
        to->place = add_ids(upload, from->place, from, -1);
    }
}
