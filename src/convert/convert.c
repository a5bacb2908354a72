/* Which conversion a request asks for. */
#include "convert-internal.h"

/* Refuses options that this conversion would ignore. */
static int check_options(const struct convert_request *request, bool is_file) {
    bool is_model = request->to != CONVERT_TENSORS && request->to != CONVERT_DCP;
    bool is_sharded = request->to == CONVERT_MODEL || request->to == CONVERT_TENSORS;
    bool is_torch = request->to == CONVERT_DCP || request->to == CONVERT_MEGATRON;
    const char *unused = is_file && request->to != CONVERT_MODEL                  ? "to (a GGUF file becomes a model)"
                         : request->config && (is_file || !is_model)              ? "config"
                         : request->tokenizer && (is_file || !is_model)           ? "tokenizer"
                         : request->prefix && (is_file || !is_model)              ? "prefix"
                         : request->type && !is_model                             ? "dtype"
                         : request->files > 1 && !is_torch                        ? "files"
                         : request->max_shard_bytes && !is_sharded                ? "max-shard-size"
                         : request->tensor > 1 && request->to != CONVERT_MEGATRON ? "tensor"
                         : request->type == CONVERT_Q8_0 && request->to != CONVERT_GGUF ? "dtype=q8_0"
                                                                                        : NULL;
    return unused ? status_fail(STATUS_USAGE, "this conversion does not take --%s", unused) : STATUS_OK;
}

int convert(const struct convert_request *request) {
    bool is_file = file_exists(request->from) && !file_is_directory(request->from);
    int status = check_options(request, is_file);
    if (status || is_file)
        return status ? status : gguf_to_model(request);
    struct source source;
    status = source_open(request->from, &source);
    if (!status)
        log_info("%s: %s, %zu tensors with %.1f million numbers", source.directory, source.kind,
                 ckpt_count(source.tensors), (double)ckpt_elements(source.tensors) / 1e6);
    if (!status && (request->to == CONVERT_TENSORS || request->to == CONVERT_DCP)) /* the others check as they read */
        status = ckpt_check_finite(source.tensors);
    if (!status && request->to == CONVERT_TENSORS)
        status = exchange_write_tensors(request->output, source.tensors, request->max_shard_bytes);
    else if (!status && request->to == CONVERT_DCP)
        status = write_dcp(request, &source);
    else if (!status && request->to == CONVERT_MEGATRON)
        status = write_megatron(request, &source);
    else if (!status && request->to == CONVERT_GGUF)
        status = write_gguf(request, &source);
    else if (!status)
        status = write_model(request, &source);
    source_close(&source);
    return status;
}
