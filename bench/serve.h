/* Measuring a server with clients of its own kind: another process, asked over sockets as by anybody.
 *
 * serve.c has the scenarios' table and the summary, serve_load.c rounds of texts, serve_gaps.c gaps between tokens
 * while other things happen, serve_quiet.c what costs no steps, serve_files.c models and adapters as files, process.c
 * the programs that are started, client.h who asks. */
#ifndef CAMBIUM_BENCH_SERVE_H
#define CAMBIUM_BENCH_SERVE_H

#include "client.h"
#include "engine.h"
#include "process.h"

#include <limits.h>

struct bench_serve_options {
    struct bench_options engine; /* model (NULL: not given), device, threads, precision (-1: the files'), peft */
    const char *url;             /* a server that runs; NULL: one is started */
    const char *const *words;    /* options of `cambium serve` that are passed on, [word_count] */
    int word_count, ranks;
    int protocol;                                                    /* enum client_protocol */
    int scenario;                                                    /* of bench_scenarios */
    int64_t streams, requests, input_len, output_len, shared_prefix; /* 0: what the scenario takes */
    struct config_list adapters;                                     /* a number, directories, or at a URL names */
    bool is_mixed;  /* adapters of all kinds in turn, not of the method alone */
    double seconds; /* of bench_idle */
};

extern const char *const bench_scenarios[], *const bench_protocols[];

int bench_serve(const struct bench_serve_options *options);

/* ---- for scenarios ---- */

/* What the measured texts were. */
struct serve_tally {
    struct bench_series ttft, tpot, itl, e2el; /* seconds */
    int64_t completed, in, out;
    double duration; /* seconds in which they were asked */
    bool has_failed; /* no memory for a number */
};

enum { SERVE_TEXT_CLASSES = 2 /* of gaps */, SERVE_NO_CLASS = -1, SERVE_SERVERS = 2 };

struct serve_bench {
    const struct bench_serve_options *options;
    struct engine_bench engine; /* config, directory of files, figures */
    struct bench_options engine_options;
    char model[PATH_MAX]; /* that is served */
    struct event_base *base;
    struct program *program[SERVE_SERVERS]; /* none at a URL */
    int ranks;                              /* of the first */
    struct client *client[SERVE_SERVERS], *control;
    int64_t streams, requests, in, out;
    int64_t adapter_count;
    const char **adapters; /* [adapter_count] names */
    char *names;           /* that are ours */
    uint64_t texts;        /* so far: each has its own number, and so its own tokens */
    bool is_measured;      /* what comes now goes into the tally */
    int gap_class;
    struct bench_series gaps[SERVE_TEXT_CLASSES];
    struct serve_tally tally;
    json_t *found; /* keys of the scenario */
};

/* A text and its prompt. */
struct serve_text {
    struct client_text text;
    struct serve_bench *bench;
    int32_t *prompt;
    bool is_measured, has_gaps;
};

/* ---- rounds: serve_load.c ---- */

/* Asks for a text whose prompt has random tokens: `shared` of them those of text number `beginning`, the rest fresh. */
struct serve_ask {
    struct client *client;
    const char *adapter; /* NULL: the base */
    int64_t shared, in, out;
    uint64_t beginning;
    bool has_gaps;
};
int serve_text_ask(struct serve_bench *bench, const struct serve_ask *ask, struct serve_text *text);
/* Ends with it, whether it is done or not; a measured one that is goes into the tally. */
void serve_text_free(struct serve_text *text);
/* `count` texts at once: the seconds from the first request to the last token. Text i is on adapters[i], or the base.
 */
struct serve_round {
    struct client *client;
    int64_t count, in, out;
    const char *const *adapters; /* NULL: the base */
};
int serve_round(struct serve_bench *bench, const struct serve_round *round, double *seconds);
/* The time to the first token of one text alone. */
int serve_first_token(struct serve_bench *bench, const struct serve_ask *ask, double *seconds);

int serve_scenario_streams(struct serve_bench *bench);
int serve_scenario_prefix(struct serve_bench *bench);
int serve_scenario_bank(struct serve_bench *bench);
int serve_scenario_pipeline(struct serve_bench *bench);

/* ---- gaps: serve_gaps.c ---- */

int serve_scenario_long_prompt(struct serve_bench *bench);
int serve_scenario_swap(struct serve_bench *bench);

/* ---- beside steps: serve_quiet.c ---- */

int serve_scenario_health(struct serve_bench *bench);
int serve_scenario_idle(struct serve_bench *bench);

/* ---- files and programs: serve_files.c ---- */

/* A model of random weights where none is given, adapters where the scenario takes some, and their names. */
int serve_files_write(struct serve_bench *bench);
/* Starts server `number` with the options, these words behind them, and all adapters, and opens its client. */
int serve_start(struct serve_bench *bench, int number, const char *const *more);

#endif
