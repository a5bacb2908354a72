/* Runs a command as ranks: the processes of mpirun or srun, or threads of this process.
 *
 * Each process parses the same command line. The processes agree on failures before a rank runs, so that an error is
 * printed once. Only the first process prints results, --help and --version. */
#pragma once

#include "comm/comm.h"
#include "config/config.h"

struct launch {
    struct comm *world; /* the launcher's processes; NULL: only this process */
    bool is_first;
    bool is_reported; /* a process has printed the failure */
    bool is_reporter; /* this process has */
};

/* A command that runs on ranks: its functions in the sequence of launch_command. Only `run` is required. Each gets the
 * context and returns a status. */
struct launch_steps {
    const struct config_command *command;
    void *values;      /* the struct of the command's rows */
    bool is_alone;     /* never joins a launcher's processes */
    bool watches;      /* processes watch each other from the start: all end when one dies or is stopped */
    bool may_disagree; /* processes may have different programs, options and files */
    /* Checks the options and finds the ranks. Called at each process, unless --help or --version was given. */
    int (*prepare)(const struct launch *launch, const struct config *config, void *context);
    /* Lists what all processes must have in common besides the program and the options. Called at each process of a
     * launcher. */
    int (*add_facts)(void *context, struct facts *facts);
    /* Calls launch_run. Called at each process, when all have reached this point. */
    int (*run)(struct launch *launch, void *context);
    /* Frees the context's members. Called at each process in any case, while the values of the options are valid. */
    void (*close)(void *context);
};

/* Joins the launcher's processes, parses the command line and runs the steps. The first process with a failure before
 * `run` prints it. Returns the process's exit status. */
int launch_command(const struct launch_steps *steps, int argc, char **argv, void *context);

/* ---- for steps ---- */

/* Sets *ranks to the processes of the launch, or to `asked` threads (0: not given), else to 1. STATUS_USAGE when both
 * are given and differ. */
int launch_ranks(const struct launch *launch, int64_t asked, int *ranks);
/* Checks that no process has a failure `status`. The first process with one prints its error, and all return its
 * status. */
int launch_agree(struct launch *launch, int status);
/* Lets processes watch each other from now on: all end when one dies or is stopped. All call it together, and
 * launch_agree afterwards. The errors of comm_watch. */
int launch_watch(const struct launch *launch);
/* Runs `function` as every rank of this process and returns the first failure. A failing `function` calls comm_fail
 * before it frees memory that other ranks may read. */
int launch_run(const struct launch *launch, int ranks, int (*function)(struct comm *world, void *context),
               void *context);

/* Returns the exit status for a status, after printing the error text of a failure. */
int command_exit_status(int status);
/* Runs a command without ranks: parses its options into `values`, and calls `run` unless --help or --version was given.
 * Returns the exit status. */
int command_run(const struct config_command *command, int argc, char **argv, void *values,
                int (*run)(const void *values, const struct config *given));

/* The row of --ranks, whose value is an int64_t at offset `at`; 0 when not given. */
#define RANKS_ROW(at, help_)                                                                                           \
    {                                                                                                                  \
        .path = "ranks", .type = CONFIG_INT, .offset = (at), .minimum = 1, .maximum = 65536, .help = help_,            \
        .may_differ = true /* each is compared with the launch instead */                                              \
    }
