/* Encoding a text on one thread, and learning a vocabulary from it, in turn with tiktoken and tokenizers if the Python
 * has them. The ceiling is that thread's streaming read, which no tokenizer approaches. */
#include "bench.h"
#include "peer.h"

#include "pretrained/pretrained.h"
#include "text/text.h"

enum { LEARNED = 8192, PEERS = 2 };
static const char *const peer_names[PEERS] = {"tiktoken", "tokenizers"};

struct measurement {
    const struct bench_options *options;
    struct tokenizer *tokenizer;
    struct device *device;
    struct strbuf text;
    struct token_buffer ids;
    size_t peak;
    struct bench_ceiling before, after;
    struct bench_peer *process; /* of the peers; NULL: no Python */
    json_t *versions;           /* by name; null: not installed */
    double *seconds, *learning; /* [steps] ours */
    double *peer_seconds[PEERS], *peer_learning;
    double peer_tokens[PEERS];
    int64_t learned;
};

/* ---- ours ---- */

/* Encodes with a new encoder, whose word cache is empty. */
static int encode_once(struct measurement *m, double *seconds) {
    struct tokenizer_encoder *encoder = NULL;
    m->ids.count = 0;
    double start = clock_seconds();
    int status = tokenizer_encoder_new(m->tokenizer, &encoder);
    THEN(status, tokenizer_encode(encoder, strbuf_text(&m->text), m->text.length, TOKENIZER_PLAIN, &m->ids));
    tokenizer_encoder_free(encoder);
    *seconds = clock_seconds() - start;
    return status;
}

static int learn_once(struct measurement *m, double *seconds) {
    const struct tokenizer_training training = {
        .inputs = &m->options->input, .input_count = 1, .vocab_size = LEARNED, .threads = 1};
    struct tokenizer *learned = NULL;
    double start = clock_seconds();
    int status = tokenizer_train(&training, &learned);
    *seconds = clock_seconds() - start;
    if (!status)
        m->learned = tokenizer_vocab_size(learned);
    tokenizer_close(learned);
    return status;
}

/* ---- theirs ---- */

static bool has_peer(const struct measurement *m, int peer) {
    return json_is_string(json_object_get(m->versions, peer_names[peer]));
}

/* Without such a Python, or with one that cannot run, there are no peers. */
static int open_peers(struct measurement *m) {
    const struct bench_options *o = m->options;
    const char *const arguments[] = {o->tokenizer, o->input, NULL};
    int status = bench_peer_open(o->peer_python, bench_peer_tokenizer, arguments, &m->process, &m->versions);
    if (status && status != STATUS_MEMORY) {
        log_info("no peers: %s", status_text());
        status = STATUS_OK;
    }
    for (int i = 0; i < PEERS && !status; i++) { /* their word caches are already filled, unlike ours */
        json_t *answer = NULL;
        if (!has_peer(m, i))
            continue;
        status = bench_peer_ask(m->process, peer_names[i], "tokens", &answer);
        m->peer_tokens[i] = json_number_value(json_object_get(answer, "tokens"));
        json_decref(answer);
    }
    return status;
}

static int take_turns(struct measurement *m, int64_t i) {
    char word[32];
    snprintf(word, sizeof word, "train %d", LEARNED);
    json_t *line = json_pack("{s:I}", "step", (json_int_t)i + 1);
    int status = encode_once(m, &m->seconds[i]);
    if (!status)
        json_object_set_new(line, "seconds", json_real(m->seconds[i]));
    for (int p = 0; p < PEERS && !status; p++) {
        char key[32];
        if (!has_peer(m, p))
            continue;
        status = bench_peer_number(m->process, peer_names[p], "seconds", &m->peer_seconds[p][i]);
        snprintf(key, sizeof key, "%s_seconds", peer_names[p]);
        json_object_set_new(line, key, json_real(m->peer_seconds[p][i]));
    }
    THEN(status, learn_once(m, &m->learning[i]));
    if (!status)
        json_object_set_new(line, "train_seconds", json_real(m->learning[i]));
    if (!status && has_peer(m, 1)) {
        status = bench_peer_number(m->process, word, "seconds", &m->peer_learning[i]);
        json_object_set_new(line, "tokenizers_train_seconds", json_real(m->peer_learning[i]));
    }
    if (!status)
        return bench_print(line);
    json_decref(line);
    return status;
}

/* ---- the summary ---- */

static json_t *describe_peer(struct measurement *m, int p, double ours) {
    if (!has_peer(m, p))
        return json_null();
    double seconds = bench_median(m->peer_seconds[p], m->options->steps);
    return json_pack("{s:O, s:f, s:f, s:I, s:f}", "version", json_object_get(m->versions, peer_names[p]), "seconds",
                     seconds, "bytes_per_s", (double)m->text.length / seconds, "tokens", (json_int_t)m->peer_tokens[p],
                     "our_speed_over_it", seconds / ours);
}

static json_t *describe_learning(struct measurement *m) {
    double seconds = bench_median(m->learning, m->options->steps);
    json_t *object = json_pack("{s:I, s:f, s:f}", "vocab_size", (json_int_t)m->learned, "seconds", seconds,
                               "bytes_per_s", (double)m->text.length / seconds);
    double theirs = has_peer(m, 1) ? bench_median(m->peer_learning, m->options->steps) : 0;
    json_object_set_new(object, "tokenizers_seconds", theirs > 0 ? json_real(theirs) : json_null());
    json_object_set_new(object, "our_speed_over_tokenizers", theirs > 0 ? json_real(theirs / seconds) : json_null());
    return object;
}

static int print_summary(struct measurement *m) {
    double median = bench_median(m->seconds, m->options->steps), speed = (double)m->text.length / median;
    double ceiling = bench_mean(m->before, m->after).read;
    json_t *object =
        json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:I, s:I}", "bench", "tokenizer", "seconds", median, "tokens_per_s",
                  (double)m->ids.count / median, "bytes_per_s", speed, "ceiling", ceiling, "ratio", speed / ceiling,
                  "tokens", (json_int_t)m->ids.count, "peak_rss_bytes", (json_int_t)m->peak);
    for (int p = 0; p < PEERS; p++)
        json_object_set_new(object, peer_names[p], describe_peer(m, p, median));
    json_object_set_new(object, "train", describe_learning(m));
    return bench_print(object);
}

/* ---- all of it ---- */

static int measure(struct measurement *m) {
    double unused;
    double **arrays[] = {&m->seconds, &m->learning, &m->peer_seconds[0], &m->peer_seconds[1], &m->peer_learning};
    bool has_all = true;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        *arrays[i] = calloc((size_t)m->options->steps, sizeof(double));
        has_all = has_all && *arrays[i];
    }
    int status = status_allocated(has_all);
    THEN(status, encode_once(m, &unused));
    m->peak = memory_peak(); /* the ceiling's memory is not the tokenizer's */
    THEN(status, open_peers(m));
    THEN(status, bench_measure_ceiling(m->device, DTYPE_F32, false, &m->before));
    for (int64_t i = 0; i < m->options->steps && !status; i++)
        status = take_turns(m, i);
    THEN(status, bench_measure_ceiling(m->device, DTYPE_F32, false, &m->after));
    return status ? status : print_summary(m);
}

int bench_tokenizer(const struct bench_options *options) {
    if (!options->tokenizer || !options->input)
        return status_fail(STATUS_USAGE, "bench tokenizer wants --tokenizer DIR and --input FILE");
    struct measurement m = {.options = options, .text = STRBUF_INIT, .ids = TOKEN_BUFFER_INIT};
    int status = pretrained_open_tokenizer(options->tokenizer, &m.tokenizer);
    THEN(status, file_read(options->input, (size_t)1 << 30, &m.text));
    THEN(status, device_open(m.options->device, DEVICE_FIRST, 1, &m.device));
    THEN(status, measure(&m));
    bench_peer_close(m.process);
    json_decref(m.versions);
    free(m.seconds);
    free(m.learning);
    free(m.peer_learning);
    for (int p = 0; p < PEERS; p++)
        free(m.peer_seconds[p]);
    device_close(m.device);
    token_buffer_free(&m.ids);
    strbuf_free(&m.text);
    tokenizer_close(m.tokenizer);
    return status;
}
