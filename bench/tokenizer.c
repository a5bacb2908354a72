/* Encoding a text on one thread; the ceiling is that thread's streaming read, which no tokenizer comes near. */
#include "bench.h"

#include "text/text.h"

#include <stdlib.h>

/* With a new encoder, whose word cache is empty. */
static int encode_once(const struct tokenizer *tokenizer, const struct strbuf *text, struct token_buffer *ids,
                       double *seconds) {
    struct tokenizer_encoder *encoder = NULL;
    ids->count = 0;
    double start = clock_seconds();
    int status = tokenizer_encoder_new(tokenizer, &encoder);
    if (!status)
        status = tokenizer_encode(encoder, strbuf_text(text), text->length, TOKENIZER_PLAIN, ids);
    tokenizer_encoder_free(encoder);
    *seconds = clock_seconds() - start;
    return status;
}

static int measure(const struct bench_options *options, const struct tokenizer *tokenizer, struct device *device,
                   const struct strbuf *text, struct token_buffer *ids) {
    double *seconds = calloc((size_t)options->steps, sizeof *seconds), unused;
    struct bench_ceiling before, after;
    int status = seconds ? encode_once(tokenizer, text, ids, &unused) : status_fail(STATUS_MEMORY, "out of memory");
    size_t peak = memory_peak(); /* the ceiling's memory is not the tokenizer's */
    if (!status)
        status = bench_measure_ceiling(device, DTYPE_F32, &before);
    for (int64_t i = 0; i < options->steps && !status; i++) {
        status = encode_once(tokenizer, text, ids, &seconds[i]);
        if (!status)
            status = bench_print(json_pack("{s:I, s:f}", "step", (json_int_t)i + 1, "seconds", seconds[i]));
    }
    if (!status)
        status = bench_measure_ceiling(device, DTYPE_F32, &after);
    if (!status) {
        double median = bench_median(seconds, options->steps), speed = (double)text->length / median;
        double ceiling = bench_mean(before, after).read;
        status = bench_print(json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:I, s:I}", "bench", "tokenizer", "seconds",
                                       median, "tokens_per_s", (double)ids->count / median, "bytes_per_s", speed,
                                       "ceiling", ceiling, "ratio", speed / ceiling, "tokens", (json_int_t)ids->count,
                                       "peak_rss_bytes", (json_int_t)peak));
    }
    free(seconds);
    return status;
}

int bench_tokenizer(const struct bench_options *options) {
    if (!options->tokenizer || !options->input)
        return status_fail(STATUS_USAGE, "bench tokenizer wants --tokenizer DIR and --input FILE");
    struct tokenizer *tokenizer = NULL;
    struct device *device = NULL;
    struct strbuf text = STRBUF_INIT;
    struct token_buffer ids = TOKEN_BUFFER_INIT;
    int status = tokenizer_open(options->tokenizer, &tokenizer);
    if (!status)
        status = file_read(options->input, (size_t)1 << 30, &text);
    if (!status)
        status = device_open("cpu", 0, 1, &device);
    if (!status)
        status = measure(options, tokenizer, device, &text, &ids);
    device_close(device);
    token_buffer_free(&ids);
    strbuf_free(&text);
    tokenizer_close(tokenizer);
    return status;
}
