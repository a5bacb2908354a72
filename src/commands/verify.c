/* cambium verify serving|layout: proves on this machine that numbers which must be equal are equal. */
#include "verify.h"
#include "commands.h"
#include "launch.h"

#include "config/config.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} proofs[] = {
    {"serving", verify_serving_command},
    {"layout", verify_layout_command},
};

int command_verify(int argc, char **argv) {
    const char *word = argc > 0 ? argv[0] : "";
    for (size_t i = 0; i < sizeof proofs / sizeof *proofs; i++)
        if (!strcmp(word, proofs[i].name))
            return proofs[i].run(argc - 1, argv + 1);
    bool is_option = *word == '-';
    return is_option ? proofs[0].run(argc, argv)
                     : command_exit_status(status_fail(STATUS_USAGE,
                                                       "unknown command 'verify%s%s' (expected 'cambium "
                                                       "verify serving' or 'cambium verify layout')",
                                                       *word ? " " : "", word));
}
