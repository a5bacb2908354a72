/* Hugging Face's transformers on the same shape, in turn with us: bench/peers/transformers.py. */
#include "transformers.h"

#include "model/model.h"

/* Describes the encoder of an adapter, which its files do not. */
static json_t *encoder_of(const struct peft_config *config) {
    json_t *keys = json_object();
    if (config && peft_config_prefix_tokens(config) && config->prefix_projection)
        json_object_set_new(keys, "prefix_projection", json_true());
    return keys;
}

static char *describe(const struct bench_transformers_task *task, const char *directory) {
    json_t *object = json_pack(
        "{s:s, s:s?, s:s, s:s, s:i, s:I, s:I, s:I, s:b, s:o}", "directory", directory, "device", task->device, "work",
        task->is_inference ? "infer"
        : task->adapter    ? "finetune"
                           : "train",
        "precision", precision_names[task->precision], "threads", (int)(task->threads ? task->threads : usable_cores()),
        "micro_batch_size", (json_int_t)task->micro_batch_size, "micro_batches", (json_int_t)task->micro_batches,
        "tokens", (json_int_t)task->tokens, "has_dropout", task->has_dropout, "encoder", encoder_of(task->adapter));
    char *text = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    return text;
}

/* Writes a file and frees `text`, which may be NULL. */
static int write_text(const char *directory, const char *name, char *text, int status) {
    char path[PATH_MAX];
    THEN(status, file_join(path, sizeof path, directory, name));
    THEN(status, file_write_atomic(path, text, strlen(text)));
    free(text);
    return status;
}

static int write_files(const struct bench_transformers_task *task, const char *directory) {
    char path[PATH_MAX], *text = NULL;
    int status = model_write_config(task->model, DTYPE_F32, &(const struct model_text_ends){0}, &text);
    status = write_text(directory, "config.json", text, status);
    if (status || !task->adapter)
        return status;
    status = file_join(path, sizeof path, directory, "peer");
    THEN(status, file_make_directories(path));
    text = NULL;
    THEN(status, peft_write_config(task->adapter, task->model, directory, &text));
    return write_text(directory, "peer/adapter_config.json", text, status);
}

int bench_transformers_open(const struct bench_transformers_task *task, const char *python, int64_t measured,
                            struct bench_transformers *peer) {
    char directory[BENCH_DIRECTORY_BYTES] = "", *described = NULL;
    *peer = (struct bench_transformers){0};
    int status = bench_make_directory(directory, "a peer's files");
    THEN(status, write_files(task, directory));
    peer->seconds = calloc((size_t)measured, sizeof *peer->seconds);
    THEN_IF(status, !peer->seconds || !(described = describe(task, directory)), status_no_memory());
    if (!status)
        status = bench_peer_open(python, bench_peer_transformers, (const char *const[]){described, NULL}, &peer->peer,
                                 &peer->versions);
    if (directory[0])
        file_remove_tree(directory);
    free(described);
    return status ? status_wrap(status, "--peer") : STATUS_OK;
}

int bench_transformers_warm_up(struct bench_transformers *peer, const char *word) {
    double unused;
    return peer->peer ? bench_peer_number(peer->peer, word, "seconds", &unused) : STATUS_OK;
}

int bench_transformers_measure(struct bench_transformers *peer, const char *word) {
    if (!peer->peer)
        return STATUS_OK;
    bench_pause();
    int status = bench_peer_number(peer->peer, word, "seconds", &peer->seconds[peer->measured++]);
    bench_pause();
    return status;
}

int bench_transformers_print(struct bench_transformers *peer, double ours, json_t *summary) {
    json_t *memory;
    if (!peer->peer)
        return bench_print(summary);
    int status = bench_peer_ask(peer->peer, "memory", "peak_rss_bytes", &memory);
    if (status) {
        json_decref(memory);
        json_decref(summary);
        return status;
    }
    double seconds = bench_median(peer->seconds, peer->measured);
    json_object_set_new(peer->versions, "seconds", json_real(seconds));
    json_object_update_new(peer->versions, memory);
    json_object_set(summary, "peer", peer->versions);
    json_object_set_new(summary, "our_speed_over_peer", json_real(seconds / ours));
    return bench_print(summary);
}

void bench_transformers_close(struct bench_transformers *peer) {
    bench_peer_close(peer->peer);
    free(peer->seconds);
    json_decref(peer->versions);
    *peer = (struct bench_transformers){0};
}
