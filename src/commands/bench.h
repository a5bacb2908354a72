/* Shared by the files of the command bench. */
#ifndef CAMBIUM_COMMANDS_BENCH_H
#define CAMBIUM_COMMANDS_BENCH_H

#include "config/config.h"

/* The keys of `peft`, and where a benchmark has layouts those of `parallel`, for values that begin with a struct
 * bench_options. The caller frees them; NULL: no memory. */
struct config_row *bench_section_rows(bool has_layouts, size_t *count);
/* argv[0] is the first word after "serve". */
int bench_serve_command(int argc, char **argv);

#endif
