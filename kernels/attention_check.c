/* Checks of attention's arguments. */
#include "attention_check.h"

int attention_check(const struct attention *a) {
    if (a->type != DTYPE_F32 && a->type != DTYPE_BF16)
        return status_fail(STATUS_UNSUPPORTED, "attention in %s is not built (fp32 and bf16 are)", dtype_name(a->type));
    if (a->is_tf32 && a->type != DTYPE_F32)
        return status_fail(STATUS_UNSUPPORTED, "attention: TF32 is for fp32");
    if (a->heads < 1 || a->kv_heads < 1 || a->heads % a->kv_heads || a->head_size < 1)
        return status_fail(STATUS_INVALID, "attention of %d heads of size %d over %d key/value heads", a->heads,
                           a->head_size, a->kv_heads);
    if (a->window < 0 || (a->window && a->prefix))
        return status_fail(STATUS_INVALID, "attention over a window of %lld tokens after a prefix of %lld",
                           (long long)a->window, (long long)a->prefix);
    if (a->dropout.p < 0 || a->dropout.p >= 1)
        return status_fail(STATUS_INVALID, "attention dropout %g is not in [0, 1)", (double)a->dropout.p);
    return STATUS_OK;
}

int paged_attention_check(const struct paged_attention *a) {
    if (a->type != DTYPE_F32 && a->type != DTYPE_BF16)
        return status_fail(STATUS_UNSUPPORTED, "paged attention in %s is not built (fp32 and bf16 are)",
                           dtype_name(a->type));
    if (a->heads < 1 || a->kv_heads < 1 || a->heads % a->kv_heads || a->head_size < 1)
        return status_fail(STATUS_INVALID, "paged attention of %d heads of size %d over %d key/value heads", a->heads,
                           a->head_size, a->kv_heads);
    if (a->window < 0)
        return status_fail(STATUS_INVALID, "paged attention over a window of %lld tokens", (long long)a->window);
    return STATUS_OK;
}

int attention_check_workspace(const struct exec *exec, size_t needed, const char *operation) {
    if (needed && (!exec->workspace || exec->workspace_bytes < needed))
        return status_fail(STATUS_INVALID, "%s needs a workspace of %zu bytes, not %zu", operation, needed,
                           exec->workspace_bytes);
    return STATUS_OK;
}
