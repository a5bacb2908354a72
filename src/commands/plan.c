/* cambium plan WHAT: computes what a cluster would do, without the cluster. */
#include "plan.h"
#include "commands.h"
#include "launch.h"

#include "config/config.h"
#include "planner/cluster.h"
#include "planner/picture.h"

#include <math.h>

/* Writes a text to a file, which appears whole; "-" is standard output. STATUS_IO, STATUS_MEMORY. */
static int plan_write(const char *path, const struct strbuf *text) {
    TRY(strbuf_status(text));
    if (strcmp(path, "-"))
        return file_write_atomic(path, strbuf_text(text), text->length);
    bool is_written = fwrite(strbuf_text(text), 1, text->length, stdout) == text->length && !fflush(stdout);
    return is_written ? STATUS_OK : status_fail_errno("cannot write to standard output");
}

int plan_write_made(const char *path, int status, struct strbuf *text) {
    THEN(status, plan_write(path, text));
    strbuf_free(text);
    return status;
}

int plan_write_json(const char *path, json_t *json) {
    char *text;
    struct strbuf out = STRBUF_INIT;
    int status = json_end(json, JSON_INDENT(1) | JSON_REAL_PRECISION(12), &text);
    strbuf_format(&out, "%s\n", text ? text : "");
    free(text);
    return plan_write_made(path, status, &out);
}

int plan_write_timelines(const char *svg, const char *trace, const struct walk *walk) {
    struct strbuf picture = STRBUF_INIT, events = STRBUF_INIT;
    int status = svg ? plan_write_made(svg, picture_timeline(walk, &picture), &picture) : STATUS_OK;
    return !status && trace ? plan_write_made(trace, picture_trace(walk, &events), &events) : status;
}

int plan_read_numbers(const char *option, const char *text, double *numbers, int most, int *count) {
    const double most_value = 1e9; /* sums of them are finite */
    *count = 0;
    for (const char *at = text;; at++) {
        char *end;
        double value = strtod(at, &end);
        if (end == at || (*end && *end != ',') || !(value >= 0 && value <= most_value))
            return status_fail(STATUS_USAGE, "--%s %s: expected numbers from 0 to %g with commas between them", option,
                               text, most_value);
        if (*count == most)
            return status_fail(STATUS_USAGE, "--%s %s: more than %d numbers", option, text, most);
        numbers[(*count)++] = value;
        if (!*end)
            return STATUS_OK;
        at = end;
    }
}

/* ---- plan show ---- */

struct show_options {
    struct config_list words;
};

static int show(const void *values, const struct config *given) {
    const struct show_options *options = values;
    struct cluster cluster;
    if (options->words.count != 1)
        return status_fail(STATUS_USAGE, "plan show needs the name of a shipped cluster, or a file");
    int status = cluster_open(options->words.items[0], &cluster);
    THEN(status, plan_write("-", &cluster.text));
    cluster_close(&cluster);
    return status;
}

/* cambium plan show: a cluster file. */
static int plan_show_command(int argc, char **argv) {
    static const struct config_command command = {
        .name = "plan show",
        .synopsis = "cambium plan show NAME|FILE",
        .description =
            "Checks a cluster file and prints it as it is. Shipped clusters are azure-a100-80gb-2022, a100-80gb, h100 "
            "and h200; a printed one, changed, is the beginning of a file for another cluster. docs/planning.md "
            "describes the keys.",
        .examples = "  cambium plan show h100 > ours.yaml\n"
                    "  cambium plan show ours.yaml\n",
        .takes_words = true,
        .words_offset = offsetof(struct show_options, words),
    };
    return command_run(&command, argc, argv, &(struct show_options){0}, show);
}

/* ---- all of them ---- */

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} plans[] = {
    {"train", plan_train_command, "find the fastest layouts that train a model"},
    {"serve", plan_serve_command, "find the layouts that serve a model"},
    {"walk", plan_walk_command, "walk a pipeline's schedule in time"},
    {"fit", plan_fit_command, "fit constants to measured times"},
    {"calibrate", plan_calibrate_command, "measure this machine"},
    {"show", plan_show_command, "check a cluster file"},
};
enum { PLAN_COUNT = sizeof plans / sizeof *plans };

static int print_help(void) {
    printf("usage: cambium plan ");
    for (int i = 0; i < PLAN_COUNT; i++)
        printf("%s%s", i ? "|" : "", plans[i].name);
    printf(" [OPTIONS]\n\nComputes what a cluster would do, without the cluster.\n\n");
    for (int i = 0; i < PLAN_COUNT; i++)
        printf("'cambium plan %s --help' explains how to %s.\n\n", plans[i].name, plans[i].summary);
    printf("options:\n"
           "  --help                              print this text (also -h)\n"
           "  --version                           print the version (also -V)\n\n"
           "examples:\n"
           "  cambium plan walk --stages 4 --micro-batches 8\n"
           "  cambium plan show h100\n");
    bool is_written = !fflush(stdout) && !ferror(stdout);
    return is_written ? STATUS_OK : status_fail_errno("cannot write to standard output");
}

/* Refuses a word that is no plan. */
static int fail_unknown(const char *word) {
    struct strbuf all = STRBUF_INIT;
    const char *names[PLAN_COUNT];
    for (int i = 0; i < PLAN_COUNT; i++) {
        names[i] = plans[i].name;
        strbuf_format(&all, "%s%s", i ? ", " : "", names[i]);
    }
    const char *nearest = word ? config_nearest(word, names, PLAN_COUNT) : NULL;
    int status = strbuf_status(&all);
    if (!status && word && *word == '-')
        status = status_fail(STATUS_USAGE, "unknown option %s; 'cambium plan --help' explains the words", word);
    else if (!status)
        status = status_fail(STATUS_USAGE, "plan needs one of %s%s%s%s; 'cambium plan --help' explains them",
                             strbuf_text(&all), nearest ? " (did you mean " : "", nearest ? nearest : "",
                             nearest ? "?)" : "");
    strbuf_free(&all);
    return status;
}

int command_plan(int argc, char **argv) {
    const char *word = argc > 0 ? argv[0] : NULL;
    for (int i = 0; i < PLAN_COUNT; i++)
        if (word && !strcmp(word, plans[i].name))
            return plans[i].run(argc - 1, argv + 1);
    if (word && (!strcmp(word, "--help") || !strcmp(word, "-h")))
        return command_exit_status(print_help());
    if (word && (!strcmp(word, "--version") || !strcmp(word, "-V"))) {
        config_print_version(stdout);
        return command_exit_status(STATUS_OK);
    }
    return command_exit_status(fail_unknown(word));
}
