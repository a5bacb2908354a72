/* Writes a model directory, or a checkpoint. */
#include "convert-internal.h"

#include "base/json_keys.h"

enum { ARRAYS = 4 };
static const char *const prefixes[ARRAYS] = {"", "master.", "exp_avg.", "exp_avg_sq."};

/* The weights, then what a trainer keeps of each of them. */
struct arrays {
    struct model_array reading[ARRAYS];
    struct ckpt_array read[ARRAYS], write[ARRAYS];
    int count;
};

static void make_arrays(const struct model_source *m, struct arrays *arrays) {
    for (int i = 0; i < ARRAYS; i++) {
        if (*prefixes[i] && (!m->state_text.length || !ckpt_has_prefix(m->source->tensors, prefixes[i])))
            continue;
        int k = arrays->count++;
        arrays->read[k] = (struct ckpt_array){
            .prefix = prefixes[i],
            .dtype = *prefixes[i] ? DTYPE_F32 : m->dtype,
            .must_be_finite = true,
            .is_as_in_files = m->form->is_as_in_files, /* source and output are files of the same form */
        };
        arrays->reading[k] = (struct model_array){.model = m, .array = arrays->read[k]};
        arrays->write[k] = (struct ckpt_array){.prefix = prefixes[i],
                                               .dtype = arrays->read[k].dtype,
                                               .is_as_in_files = arrays->read[k].is_as_in_files,
                                               .threads = usable_cores(),
                                               .get = model_array_get,
                                               .context = &arrays->reading[k]};
    }
}

static int find_iteration(const struct model_source *m, int64_t *iteration) {
    struct json_keys keys;
    int status = json_keys_open(&keys, strbuf_text(&m->state_text), "trainer_state.json", JSON_MUST_BE);
    if (!status) {
        json_keys_need(&keys, "iteration");
        *iteration = json_keys_integer(&keys, "iteration", 0, 0, INT64_MAX);
        status = keys.status;
    }
    json_keys_close(&keys);
    return status;
}

static int write(const struct convert_request *request, const struct model_source *m) {
    struct arrays arrays = {0};
    bool is_whole = request->to == CONVERT_MODEL; /* or only the tensors */
    make_arrays(m, &arrays);
    TRY(model_source_check(m, arrays.read, arrays.count));
    struct ckpt_model model = {.table = &m->table,
                               .weights = &arrays.write[0],
                               .config_text = is_whole ? strbuf_text(&m->config_text) : NULL,
                               .tokenizer = is_whole ? &m->tokenizer : NULL,
                               .max_shard_bytes = request->max_shard_bytes,
                               .threads = usable_cores()};
    if (arrays.count == 1)
        return ckpt_write_model(request->output, &model);
    struct ckpt_save save = {.root = request->output,
                             .model = model,
                             .optimizer = &arrays.write[1],
                             .optimizer_count = arrays.count - 1,
                             .state_text = strbuf_text(&m->state_text),
                             .ours_until = -1};
    int status = find_iteration(m, &save.iteration);
    return status ? status : ckpt_save(&save);
}

int write_model(const struct convert_request *request, struct source *source) {
    struct model_source model;
    int status = model_source_open(request, source, &model);
    THEN(status, write(request, &model));
    model_source_close(&model);
    return status;
}
