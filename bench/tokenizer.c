/* Encoding a text on one thread. */
#include "bench.h"

#include "text/text.h"

#include <stdlib.h>

int bench_tokenizer(const struct bench_options *options) {
    if (!options->tokenizer || !options->input)
        return status_fail(STATUS_USAGE, "bench tokenizer wants --tokenizer DIR and --input FILE");
    struct tokenizer *tokenizer = NULL;
    struct strbuf text = STRBUF_INIT;
    struct token_buffer ids = TOKEN_BUFFER_INIT;
    double *seconds = calloc((size_t)options->steps, sizeof *seconds);
    int status = seconds ? tokenizer_open(options->tokenizer, &tokenizer) : status_fail(STATUS_MEMORY, "out of memory");
    if (!status)
        status = file_read(options->input, (size_t)1 << 30, &text);
    for (int64_t i = 0; i < options->steps && !status; i++) {
        struct tokenizer_encoder *encoder = NULL; /* a new one each time: its word cache starts empty */
        ids.count = 0;
        double start = clock_seconds();
        status = tokenizer_encoder_new(tokenizer, &encoder);
        if (!status)
            status = tokenizer_encode(encoder, strbuf_text(&text), text.length, TOKENIZER_PLAIN, &ids);
        tokenizer_encoder_free(encoder);
        seconds[i] = clock_seconds() - start;
        if (!status)
            status = bench_print(json_pack("{s:I, s:f}", "step", (json_int_t)i + 1, "seconds", seconds[i]));
    }
    if (!status) {
        double median = bench_median(seconds, options->steps);
        status = bench_print(json_pack("{s:s, s:f, s:f, s:f, s:I, s:I}", "bench", "tokenizer", "seconds", median,
                                       "bytes_per_s", (double)text.length / median, "tokens_per_s",
                                       (double)ids.count / median, "tokens", (json_int_t)ids.count, "peak_rss_bytes",
                                       (json_int_t)bench_peak_rss()));
    }
    token_buffer_free(&ids);
    strbuf_free(&text);
    tokenizer_close(tokenizer);
    free(seconds);
    return status;
}
