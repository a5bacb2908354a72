/* The subcommands of cambium plan, one file each. argv[0] is the first word after the subcommand's name. Each returns
 * the exit status. */
#pragma once

#include "base/base.h"
#include "base/json.h"
#include "planner/walk.h"

/* cambium plan train: layouts for a cluster. */
int plan_train_command(int argc, char **argv);
/* cambium plan serve: layouts that serve a model. */
int plan_serve_command(int argc, char **argv);
/* cambium plan walk: a schedule in time. */
int plan_walk_command(int argc, char **argv);
/* cambium plan fit: constants from measured times. */
int plan_fit_command(int argc, char **argv);
/* cambium plan calibrate: a cluster file of this machine. */
int plan_calibrate_command(int argc, char **argv);

/* Writes a text that was made with this status, if it is STATUS_OK, and frees it. Returns the first failure. */
int plan_write_made(const char *path, int status, struct strbuf *text);
/* True when output to this path goes to standard output. */
static inline bool plan_is_output(const char *path) {
    return path && !strcmp(path, "-");
}
/* Writes JSON, whose reference it takes, to such a file; it ends a json_begin. STATUS_IO, STATUS_MEMORY. */
int plan_write_json(const char *path, json_t *json);
/* Writes a schedule to each of the two files that is not NULL: as an image, and as Chrome's trace events. STATUS_IO,
 * STATUS_MEMORY. */
int plan_write_timelines(const char *svg, const char *trace, const struct walk *walk);
/* Reads "1,2.5": numbers from 0 to 1e9, at most `most` of them. Sets *count. STATUS_USAGE, in which `option` names the
 * option. */
int plan_read_numbers(const char *option, const char *text, double *numbers, int most, int *count);

/* Rows of options that several subcommands have. The value's offset is `at`. */
#define PLAN_CLUSTER_ROW(at, help_) ROW_TEXT("cluster", (at), "NAME|FILE", help_, .is_required = true)
#define PLAN_MEMORY_SHARE_ROW(at)                                                                                      \
    ROW_FLOAT("memory-share", (at), "0.92", 0.01, 1, "the share of a device's memory that a layout may take")
