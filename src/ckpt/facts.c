/* Facts that ranks reading the same directory must share. */
#include "ckpt-internal.h"

static int add_file(const char *name, const char *directory, const char *file, struct facts *facts) {
    char path[PATH_MAX];
    int status = file_join(path, sizeof path, directory, file);
    return status ? status : facts_add_file(facts, name, path);
}

static int add_tensors(const char *name, const char *directory,
                       int (*open)(const char *directory, struct ckpt_tensors **tensors), struct facts *facts) {
    struct ckpt_tensors *tensors = NULL;
    uint64_t digest;
    int status = open(directory, &tensors);
    THEN(status, ckpt_digest(tensors, &digest));
    ckpt_close(tensors);
    return status ? status : facts_add_digest(facts, name, directory, digest);
}

int ckpt_adapter_facts(const char *directory, struct facts *facts) {
    int status = add_file("an adapter's adapter_config.json", directory, ADAPTER_FILE, facts);
    return status ? status : add_tensors("an adapter's weights", directory, ckpt_open_adapter, facts);
}

int ckpt_checkpoint_facts(const char *directory, struct facts *facts) {
    int status = add_file("the checkpoint's trainer_state.json", directory, STATE_FILE, facts);
    if (!status && directory_has_file(directory, CONFIG_FILE))
        status = add_tensors("the checkpoint's weights", directory, ckpt_open_model, facts);
    return status ? status : add_tensors("the checkpoint's optimizer", directory, ckpt_open_optimizer, facts);
}
