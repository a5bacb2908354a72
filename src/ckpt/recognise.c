/* Directories of other systems are recognised by the names of their files. */
#include "exchange.h"

#include "ckpt-internal.h"

#include <strings.h>

bool exchange_is_dcp(const char *directory) {
    char path[PATH_MAX];
    return !file_join(path, sizeof path, directory, DCP_LIST_FILE) && file_exists(path);
}

bool exchange_is_safetensors(const char *name) {
    size_t length = strlen(name);
    return length > 12 && !strcmp(name + length - 12, ".safetensors") && *name != '.';
}

bool exchange_has_safetensors(const char *directory, bool *is_sharded) {
    char **names;
    size_t count;
    bool is_there = false;
    *is_sharded = false;
    if (!file_is_directory(directory) || file_list(directory, &names, &count))
        return false;
    for (size_t i = 0; i < count; i++) {
        is_there |= exchange_is_safetensors(names[i]);
        *is_sharded |= exchange_is_safetensors(names[i]) && !strncmp(names[i], "shard-", 6);
    }
    file_list_free(names, count);
    return is_there;
}

/* Names the first GGUF file of a directory, if it holds any. */
static int explain_gguf(int status, const char *directory) {
    char **names;
    size_t count, i = 0;
    if (!file_is_directory(directory))
        return status;
    TRY(file_list(directory, &names, &count));
    for (size_t length; i < count; i++)
        if ((length = strlen(names[i])) > 5 && !strcasecmp(names[i] + length - 5, ".gguf"))
            break;
    if (i < count)
        status = status_fail(status, "%s is not a model directory, but it holds a GGUF file: name %s/%s", directory,
                             directory, names[i]);
    file_list_free(names, count);
    return status;
}

int explain_other_system(int status, const char *directory) {
    bool is_sharded;
    bool is_dcp = exchange_is_dcp(directory);
    if (!is_dcp && !(exchange_has_safetensors(directory, &is_sharded) && is_sharded))
        return explain_gguf(status, directory);
    return status_fail(STATUS_INVALID,
                       "%s is %s: make a model directory of it first (cambium convert --from %s --to model --output "
                       "DIR)",
                       directory, is_dcp ? "a distributed checkpoint of PyTorch" : "the parts that ranks have written",
                       directory);
}
