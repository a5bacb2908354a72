/* Reading an adapter's files, which is the same whoever wants them and needs no engine. */
#include "adapters.h"

#include <string.h>

int adapter_files_find(const char *directory, char **found) {
    char **all;
    size_t count;
    *found = NULL;
    int status = peft_find(&directory, 1, &all, &count);
    if (!status && count != 1)
        status = status_fail(STATUS_INVALID, "%s holds %zu adapters: each of them needs a name of its own", directory,
                             count);
    if (!status) {
        *found = strdup(all[0]);
        status = *found ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    }
    file_list_free(all, count);
    return status;
}

static int digest(int status, struct adapter_files *files) {
    if (!status)
        status = peft_bytes_digest(&files->bytes, files->digest);
    if (status)
        adapter_files_free(files);
    return status;
}

int adapter_files_read(const struct peft_place *place, const struct peft_limits *limits, struct adapter_files *files) {
    *files = (struct adapter_files){0};
    return digest(peft_bytes_read_at(place, limits, &files->bytes), files);
}

void adapter_files_free(struct adapter_files *files) {
    peft_bytes_free(&files->bytes);
    *files = (struct adapter_files){0};
}
