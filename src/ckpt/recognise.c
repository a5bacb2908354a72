/* Directories of other systems are recognised by the names of their files. */
#include "exchange.h"

#include "ckpt-internal.h"

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

int explain_other_system(int status, const char *directory) {
    bool is_sharded;
    bool is_dcp = exchange_is_dcp(directory);
    if (!is_dcp && !(exchange_has_safetensors(directory, &is_sharded) && is_sharded))
        return status;
    return status_fail(STATUS_INVALID,
                       "%s is %s: make a model directory of it first (cambium convert --from %s --to model --output "
                       "DIR)",
                       directory, is_dcp ? "a distributed checkpoint of PyTorch" : "the parts that ranks have written",
                       directory);
}
