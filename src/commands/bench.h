/* Shared by the files of the command bench. */
#pragma once

#include "config/config.h"

/* Returns the rows of the sections `peft` and, with has_layouts, `parallel`, for a struct that begins with a struct
 * bench_options. The caller frees them; NULL: no memory. */
struct config_row *bench_section_rows(bool has_layouts, size_t *count);
/* Runs `cambium bench serve`; argv[0] is the first word after "serve". Returns the process's exit status. */
int bench_serve_command(int argc, char **argv);
