/* Any bytes as a configuration file: an error with its place, or values that the dump carries over unchanged. */
#include "base/base.h"
#include "config/run.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct options {
    struct run_config run;
    const char *config;
};

static int read_bytes(const void *bytes, size_t size, struct options *options, struct config **config, char **dump) {
    static const struct config_row rows[] = {
        {.path = "config", .type = CONFIG_STRING, .offset = offsetof(struct options, config), .help = "YAML file"},
    };
    const struct config_command command = {.name = "fuzz",
                                           .synopsis = "fuzz",
                                           .rows = rows,
                                           .row_count = 1,
                                           .section_rows = run_rows,
                                           .section_row_count = run_row_count,
                                           .config_flag = "config"};
    int descriptor = memfd_create("yaml", 0);
    if (descriptor < 0 || file_write_all(descriptor, bytes, size, "memfd"))
        exit(1);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    char *argv[] = {"--config", path};
    bool is_answered;
    int status = config_parse(&command, 2, argv, options, config, &is_answered);
    close(descriptor);
    *dump = NULL;
    if (!status) {
        size_t length;
        FILE *out = open_memstream(dump, &length);
        config_dump(&command, options, out);
        fclose(out);
    }
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct options options = {0}, again = {0};
    struct config *config, *config_again;
    char *dump, *dump_again;
    if (read_bytes(data, size, &options, &config, &dump))
        return 0;
    if (read_bytes(dump, strlen(dump), &again, &config_again, &dump_again) || strcmp(dump, dump_again)) {
        fprintf(stderr, "the dump does not read back: %s\n%s", status_text(), dump);
        abort();
    }
    run_config_resolve(&options.run);
    free(dump);
    free(dump_again);
    config_free(config);
    config_free(config_again);
    return 0;
}
