/* The subcommands of cambium verify. Each returns the process's exit status: 0 where all is equal, 1 for a difference
 * or a failure, 2 for bad usage. */
#pragma once

/* In each, argv[0] is the first word after the subcommand's name. */
int verify_serving_command(int argc, char **argv);
int verify_layout_command(int argc, char **argv);
