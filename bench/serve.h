/* Measuring a server with clients like real ones: another process, asked over sockets.
 *
 * The file serve.c has the table of scenarios and the summary, serve_load.c rounds of texts, and serve_gaps.c gaps
 * between tokens during other work. The file serve_quiet.c measures what takes no steps, serve_files.c handles models
 * and adapters as files, process.c starts programs, and client.h is the client. */
#pragma once

#include "client.h"
#include "engine.h"
#include "process.h"

struct bench_serve_options {
    struct bench_options engine; /* model (NULL: not given), device, threads, precision (-1: the files'), peft */
    const char *url;             /* a running server; NULL: start one */
    const char *const *words;    /* further options of `cambium serve`, [word_count] */
    int word_count, ranks;
    int protocol;                                                    /* enum client_protocol */
    int scenario;                                                    /* of bench_scenarios */
    int64_t streams, requests, input_len, output_len, shared_prefix; /* 0: the scenario's default */
    struct config_list adapters; /* a number, directories, or names for a server at a URL */
    bool is_mixed;               /* adapters of all kinds in turn, not only of the method */
    double seconds;              /* of bench_idle */
};

extern const char *const bench_scenarios[], *const bench_protocols[];

/* Runs the scenario of the options. */
int bench_serve(const struct bench_serve_options *options);

/* ---- for scenarios ---- */

/* The results of the measured texts. */
struct serve_tally {
    struct bench_series ttft, tpot, itl, e2el; /* seconds */
    int64_t completed, in, out;
    double duration; /* seconds of the measurement */
    bool has_failed; /* no memory for a number */
};

enum { SERVE_TEXT_CLASSES = 2 /* of gaps */, SERVE_NO_CLASS = -1, SERVE_SERVERS = 2 };

struct serve_bench {
    const struct bench_serve_options *options;
    struct engine_bench engine; /* config, directory of files, figures */
    struct bench_options engine_options;
    char model[PATH_MAX]; /* of the server */
    struct event_base *base;
    struct program *program[SERVE_SERVERS]; /* none for a server at a URL */
    int ranks;                              /* of the first */
    struct client *client[SERVE_SERVERS], *control;
    int64_t streams, requests, in, out;
    int64_t adapter_count;
    const char **adapters; /* [adapter_count] names */
    char *names;           /* memory of names made here */
    uint64_t texts;        /* so far; the number of a text determines its tokens */
    bool is_measured;      /* texts count in the tally from now on */
    int gap_class;
    struct bench_series gaps[SERVE_TEXT_CLASSES];
    struct serve_tally tally;
    json_t *found; /* the scenario's keys */
};

/* A text and its prompt. */
struct serve_text {
    struct client_text text;
    struct serve_bench *bench;
    int32_t *prompt;
    bool is_measured, has_gaps;
};

/* ---- rounds: serve_load.c ---- */

/* Sends a text whose prompt has random tokens, of which `shared` are those of text number `beginning`. */
struct serve_ask {
    struct client *client;
    const char *adapter; /* NULL: the base */
    int64_t shared, in, out;
    uint64_t beginning;
    bool has_gaps;
};
/* STATUS_MEMORY, and the errors of client_ask. */
int serve_text_ask(struct serve_bench *bench, const struct serve_ask *ask, struct serve_text *text);
/* Frees a text, done or not; a measured one that is done counts in the tally. */
void serve_text_free(struct serve_text *text);
/* Measures `count` texts at once: the seconds from the first request to the last token. Text i is on adapters[i], or on
 * the base. */
struct serve_round {
    struct client *client;
    int64_t count, in, out;
    const char *const *adapters; /* NULL: the base */
};
/* STATUS_IO, STATUS_MEMORY. */
int serve_round(struct serve_bench *bench, const struct serve_round *round, double *seconds);
/* Measures the time to the first token of a single text. */
int serve_first_token(struct serve_bench *bench, const struct serve_ask *ask, double *seconds);

/* Each scenario measures: of rounds, of gaps (serve_gaps.c), and beside steps (serve_quiet.c). */
typedef int serve_scenario(struct serve_bench *bench);
serve_scenario serve_scenario_streams, serve_scenario_prefix, serve_scenario_bank, serve_scenario_pipeline,
    serve_scenario_long_prompt, serve_scenario_swap, serve_scenario_health, serve_scenario_idle;

/* ---- files and programs: serve_files.c ---- */

/* Writes a model of random weights when none is given, and adapters when the scenario needs some, with their names. */
int serve_files_write(struct serve_bench *bench);
/* Starts server `number` with the options, then `more` words, and all adapters, and opens its client. */
int serve_start(struct serve_bench *bench, int number, const char *const *more);
