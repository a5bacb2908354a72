/* How a command becomes ranks: the processes of mpirun or srun, or threads of this one.
 *
 * Each process parses the same command line. What can be found wrong before a rank runs is agreed on, so that it is
 * said once; results and --help are the first process's. */
#ifndef CAMBIUM_COMMANDS_LAUNCH_H
#define CAMBIUM_COMMANDS_LAUNCH_H

#include "comm/comm.h"
#include "config/config.h"

struct launch {
    struct comm *world; /* of the launcher's processes; NULL: this process alone */
    bool is_first;
    bool is_told;   /* a failure that some process says, or has said */
    bool is_teller; /* that process is this one */
};

/* A command that runs on ranks, as its parts of the sequence that launch_command runs. Functions may be NULL but for
 * `run`; each gets the context, and returns a status. */
struct launch_steps {
    const struct config_command *command;
    void *values;      /* of the command's rows */
    bool is_alone;     /* it never joins a launcher's processes */
    bool watches;      /* the processes watch each other from the start: all end when one dies or is stopped */
    bool may_disagree; /* its processes need not have the same program, rows and files */
    /* At each process, unless --help was given: checks the options and finds the ranks. */
    int (*prepare)(const struct launch *launch, const struct config *config, void *context);
    /* At each process of a launcher: lists what all of them must have in common beyond the program and the rows. */
    int (*add_facts)(void *context, struct facts *facts);
    /* At each process, when all have come as far as this: calls launch_run. */
    int (*run)(struct launch *launch, void *context);
    /* At each process, whether it ran or not, while the values of the rows still live. */
    void (*close)(void *context);
};

/* Joins the launcher's processes, parses the words and runs the steps. A failure before `run` is said once, by the
 * first process that has it. Returns the process's exit status. */
int launch_command(const struct launch_steps *steps, int argc, char **argv, void *context);

/* ---- for steps ---- */

/* The number of ranks: of the launch, or `asked` threads (0: not asked), else 1. STATUS_USAGE where they differ. */
int launch_ranks(const struct launch *launch, int64_t asked, int *ranks);
/* Whether all processes have come as far as this: the first one whose status is none of success says why, and all get
 * its status. */
int launch_agree(struct launch *launch, int status);
/* Runs `function` as every rank of this process. Where it fails, it calls comm_fail before it gives back memory that
 * others may be reading. */
int launch_run(const struct launch *launch, int ranks, int (*function)(struct comm *world, void *context),
               void *context);

/* The exit status of a process for a status; prints the error text when there is one. */
int command_exit_status(int status);

/* The row of --ranks: an int64_t of the command's struct, 0 when not given. */
#define RANKS_ROW(at, help_)                                                                                           \
    {                                                                                                                  \
        .path = "ranks", .type = CONFIG_INT, .offset = (at), .minimum = 1, .maximum = 65536, .help = help_,            \
        .may_differ = true /* each of them is compared with the launch */                                              \
    }

#endif
