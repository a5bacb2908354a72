/* Which conversion a request asks for. */
#include "convert-internal.h"

#include "ckpt/codec.h"

/* Refuses options that this conversion would ignore. */
static int check_options(const struct convert_request *request, bool is_file) {
    bool is_model = request->to != CONVERT_TENSORS && request->to != CONVERT_DCP;
    bool is_sharded = request->to == CONVERT_MODEL || request->to == CONVERT_TENSORS;
    bool is_torch = request->to == CONVERT_DCP || request->to == CONVERT_MEGATRON;
    static const char *const rounded[] = {[CONVERT_Q8_0] = "dtype=q8_0",
                                          [CONVERT_Q5_0] = "dtype=q5_0",
                                          [CONVERT_Q4_0] = "dtype=q4_0",
                                          [CONVERT_Q6_K] = "dtype=q6_k",
                                          [CONVERT_Q4_K_M] = "dtype=q4_k_m"};
    const char *unused = request->config && (is_file || !is_model)                      ? "config"
                         : request->tokenizer && (is_file || !is_model)                 ? "tokenizer"
                         : request->prefix && (is_file || !is_model)                    ? "prefix"
                         : request->files > 1 && !is_torch                              ? "files"
                         : request->max_shard_bytes && !is_sharded                      ? "max-shard-size"
                         : request->tensor > 1 && request->to != CONVERT_MEGATRON       ? "tensor"
                         : request->type >= CONVERT_Q8_0 && request->to != CONVERT_GGUF ? rounded[request->type]
                                                                                        : NULL;
    return unused ? status_fail(STATUS_USAGE, "this conversion does not take --%s", unused) : STATUS_OK;
}

static int write_tensors(const struct convert_request *request, struct source *source) {
    if (source->file.tensors)
        return write_model(request, source);
    return exchange_write_tensors(&(struct exchange_files){
        .directory = request->output, .tensors = source->tensors, .max_shard_bytes = request->max_shard_bytes});
}

/* Gives weights in few bits the type of the request. Without such weights, tensors are copied as they are. */
static int choose_type(const struct convert_request *request, const struct source *source) {
    bool is_copied = request->to == CONVERT_TENSORS || request->to == CONVERT_DCP;
    if (is_copied && request->type && !ckpt_quantization(source->tensors)->method)
        return status_fail(STATUS_USAGE, "this conversion does not take --dtype");
    if (is_copied)
        ckpt_set_encoded_type(source->tensors, convert_dtype(request, false));
    return STATUS_OK;
}

int convert(const struct convert_request *request) {
    static const struct {
        int (*write)(const struct convert_request *request, struct source *source);
        bool checks_numbers; /* first; the others check as they read */
    } targets[] = {[CONVERT_MODEL] = {write_model, false},
                   [CONVERT_TENSORS] = {write_tensors, true},
                   [CONVERT_DCP] = {write_dcp, true},
                   [CONVERT_MEGATRON] = {write_megatron, false},
                   [CONVERT_GGUF] = {write_gguf, false}};
    struct source source;
    TRY(check_options(request, file_exists(request->from) && !file_is_directory(request->from)));
    int status = source_open(request->from, &source);
    bool is_file = source.file.tensors;
    if (!status && !is_file)
        log_info("%s: %s, %zu tensors with %.1f million numbers", source.directory, source.kind,
                 ckpt_count(source.tensors), (double)ckpt_elements(source.tensors) / 1e6);
    THEN_IF(status, !is_file, choose_type(request, &source));
    THEN_IF(status, targets[request->to].checks_numbers && !is_file, ckpt_check_finite(source.tensors));
    THEN(status, targets[request->to].write(request, &source));
    source_close(&source);
    return status;
}
