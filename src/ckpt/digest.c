/* Tells one model's files from another's, at the cost of a few reads. */
#include "codec-internal.h"

enum { PLACES = 16, RUN = 64 };

static int mix_values(uint64_t *hash, const struct tensor_entry *entry) {
    const struct safetensor *tensor = entry->tensor;
    char values[RUN * sizeof(double)];
    int64_t last = tensor->elements > RUN ? tensor->elements - RUN : 0;
    int64_t run = tensor->elements < RUN ? tensor->elements : RUN;
    for (int i = 0; i < PLACES && tensor->dtype != DTYPE_COUNT; i++) {
        int64_t at = last / (PLACES - 1) * i;
        TRY(safetensors_read(entry->file, tensor, at, run, tensor->dtype, values));
        *hash = digest_bytes(*hash, values, (size_t)run * dtype_bytes(tensor->dtype));
    }
    return STATUS_OK;
}

static int mix_entry(uint64_t *hash, const struct tensor_entry *entry) {
    const struct safetensor *tensor = entry->tensor;
    *hash = digest_bytes(*hash, tensor->name, strlen(tensor->name) + 1);
    *hash = digest_bytes(*hash, tensor->type, strlen(tensor->type) + 1);
    *hash = digest_bytes(*hash, tensor->shape, (size_t)tensor->dims * sizeof *tensor->shape);
    return mix_values(hash, entry);
}

int ckpt_digest(const struct ckpt_tensors *tensors, uint64_t *digest) {
    const struct codec_set *set = tensors->codecs;
    int status = STATUS_OK;
    *digest = DIGEST_START;
    for (size_t i = 0; i < tensors->count && !status; i++)
        if (!codec_of(tensors, &tensors->entries[i]))
            status = mix_entry(digest, &tensors->entries[i]);
    for (size_t i = 0; set && i < set->part_count && !status; i++) /* weights in few bits: as they are stored */
        status = mix_entry(digest, &set->parts[i]);
    return status;
}
