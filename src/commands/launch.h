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

/* Joins the other processes, if a launcher started several. Standard output of all but the first goes nowhere, and
 * they are quiet. */
int launch_begin(struct launch *launch);

/* For a run that answers: the processes watch each other until launch_end, and all end when one dies or is stopped.
 * Next after launch_begin; launch_agree follows. */
int launch_watch(const struct launch *launch);

/* The number of ranks: of the launch, or `asked` threads (0: not asked), else 1. */
int launch_ranks(const struct launch *launch, int64_t asked, int *ranks);

/* Whether all processes have come as far as this: the first one whose status is none of success says why, and all get
 * its status. */
int launch_agree(struct launch *launch, int status);

/* Begins the list of what the processes of a launch must have in common: the program itself, --help and the rows of the
 * command. Without a launch the list stays empty: threads have one of everything. */
int launch_facts(const struct launch *launch, const struct config_command *command, const void *values, bool is_help,
                 struct facts *facts);
/* Whether the processes have the same facts; says what is not the same. */
int launch_same(struct launch *launch, const struct facts *facts);

/* Runs `function` as every rank of this process. Where it fails, it calls launch_abort before it gives back memory that
 * others may be reading. */
int launch_run(const struct launch *launch, int ranks, int (*function)(struct comm *world, void *context),
               void *context);

/* A rank's failure ends the run; one that only heard of another's leaves it to that one to say so. */
void launch_abort(struct comm *world, int status);

/* Leaves the launch; the exit status of the process. Of a failure that one process says, that one alone fails. */
int launch_end(struct launch *launch, int status);

/* The row of --ranks: an int64_t of the command's struct, 0 when not given. */
#define RANKS_ROW(at, help_)                                                                                           \
    {                                                                                                                  \
        .path = "ranks", .type = CONFIG_INT, .offset = (at), .minimum = 1, .maximum = 65536, .help = help_,            \
        .may_differ = true /* each of them is compared with the launch */                                              \
    }

#endif
