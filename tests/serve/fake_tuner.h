/* A tuner in the place of the engine's: its model predicts the next token by a bias of each token, whatever came
 * before. It answers asks when the test says so. A test program has it once. */
#pragma once

#include "support/test.h"

#include "serve/tuning.h"

#include "train/loss.h"

#include "base/base.h"
#include "base/strbuf.h"

#include <math.h>

enum { TUNER_VOCAB = 50, TUNER_MOST = 16 /* rows of a sample that fit its memory */ };

struct tuning_run {
    float bias[TUNER_VOCAB];
    double gradient[TUNER_VOCAB];
    bool has_gradients;
    int passes, updates;
    struct tuning_update last;
};

static STAILQ_HEAD(, tuning_ask) tuner_asks = STAILQ_HEAD_INITIALIZER(tuner_asks);
static char tuner_log[256]; /* what was done: a letter for each ask */
static int tuner_runs;

static double tuner_logprob(const struct tuning_run *run, int32_t label) {
    double sum = 0;
    for (int i = 0; i < TUNER_VOCAB; i++)
        sum += exp((double)run->bias[i]);
    return (double)run->bias[label] - log(sum);
}

static void tuner_backward(struct tuning_run *run, int32_t label, double gradient) {
    for (int i = 0; i < TUNER_VOCAB; i++)
        run->gradient[i] += gradient * ((i == label) - exp(tuner_logprob(run, i)));
}

static int tuner_pass(struct tuning_run *run, struct tuning_pass *pass) {
    struct gpt_batch batch;
    TRY(gpt_batch_init(&batch, 1, TUNER_MOST));
    if (!pass->is_forward_only && !pass->adds_gradients)
        memset(run->gradient, 0, sizeof run->gradient);
    double loss = 0;
    for (int64_t k = pass->first; k < pass->first + pass->batches; k++) {
        test_ok(pass->source->read(pass->source, &batch, &(struct train_samples){.first = k}));
        for (int64_t s = 0; s < batch.segments; s++) {
            float values[TUNER_MOST];
            int64_t first = batch.segment_start[s], count = batch.segment_start[s + 1] - first;
            struct loss_segment segment = {.count = count, .values = values};
            struct loss_figures figures = {0};
            for (int64_t i = 0; i < count; i++)
                values[i] = (float)tuner_logprob(run, batch.labels[first + i]);
            pass->source->fill(pass->source, &batch, s, &segment);
            pass->loss->run(&pass->loss_options, 0, &segment, &figures);
            for (int64_t i = 0; i < count && !pass->is_forward_only; i++)
                tuner_backward(run, batch.labels[first + i], (double)values[i]);
            loss += figures.loss;
        }
    }
    gpt_batch_free(&batch);
    run->passes++;
    run->has_gradients |= !pass->is_forward_only;
    pass->result.loss = loss / (double)pass->batches;
    return isfinite(loss) ? STATUS_OK : status_fail(STATUS_INVALID, "the loss or the gradient norm is not finite");
}

/* Plain descent: what is asked for is what is tested, not AdamW. */
static void tuner_update(struct tuning_run *run, struct tuning_update *update) {
    double norm = 0;
    for (int i = 0; i < TUNER_VOCAB; i++) {
        norm += run->gradient[i] * run->gradient[i];
        run->bias[i] -= (float)(update->lr * run->gradient[i]);
    }
    run->has_gradients = false;
    run->updates++;
    run->last = *update;
    update->result.grad_norm = sqrt(norm);
}

/* The bias is the matrix A of a LoRA of rank 1. */
static int tuner_snapshot(const struct tuning_run *run, struct tuning_snapshot *snapshot) {
    static const char config[] = "{\"peft_type\":\"LORA\",\"r\":1,\"lora_alpha\":32,\"target_modules\":[\"c_attn\"],"
                                 "\"fan_in_fan_out\":true,\"task_type\":\"CAUSAL_LM\"}";
    static const char place[] = "base_model.model.transformer.h.0.attn.c_attn.lora_";
    struct strbuf file = STRBUF_INIT;
    char directory[] = "/tmp/fake_tuner.XXXXXX", path[64], header[512];
    float b[3] = {0};
    int length = snprintf(header, sizeof header,
                          "{\"%sA.weight\":{\"dtype\":\"F32\",\"shape\":[1,%d],\"data_offsets\":[0,%zu]},"
                          "\"%sB.weight\":{\"dtype\":\"F32\",\"shape\":[3,1],\"data_offsets\":[%zu,%zu]}}",
                          place, TUNER_VOCAB, sizeof run->bias, place, sizeof run->bias, sizeof run->bias + sizeof b);
    uint64_t padded = (uint64_t)(length + 7) / 8 * 8;
    strbuf_add(&file, &padded, sizeof padded);
    strbuf_add(&file, header, (size_t)length);
    while (file.length < 8 + padded)
        strbuf_add_char(&file, ' ');
    strbuf_add(&file, run->bias, sizeof run->bias);
    strbuf_add(&file, b, sizeof b);
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/adapter_config.json", directory);
    test_ok(file_write_atomic(path, config, strlen(config)));
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", directory);
    test_ok(file_write_atomic(path, file.data, file.length));
    strbuf_free(&file);
    int status = adapter_files_read(&(struct peft_place){.path = directory}, &(struct peft_limits){.bytes = 1 << 20},
                                    &snapshot->files[0]);
    test_ok(file_remove_tree(directory));
    snapshot->count = 1;
    if (snapshot->wants_state) {
        snapshot->state_bytes = sizeof run->updates;
        snapshot->state = malloc(snapshot->state_bytes);
        memcpy(snapshot->state, &run->updates, snapshot->state_bytes);
    }
    return status;
}

static void tuner_open(struct tuning_ask *ask) {
    struct tuning_run_options *open = &ask->open;
    open->bytes = 1000;
    if (open->config->data.seq_length > TUNER_MOST) {
        error_set(&ask->error, ERROR_ARGUMENT, NULL, "a run takes %zu bytes, and --tuning-memory leaves less",
                  open->bytes);
        return;
    }
    ask->run = calloc(1, sizeof *ask->run);
    tuner_runs++;
    if (open->start_count) {
        const struct peft_bytes *start = open->start;
        memcpy(ask->run->bias, (char *)start->data + start->length - sizeof(float) * (TUNER_VOCAB + 3),
               sizeof ask->run->bias);
    }
    if (open->state_bytes)
        memcpy(&ask->run->updates, open->state, open->state_bytes);
}

void driver_tune(struct driver *driver, struct tuning_ask *ask) {
    (void)driver;
    STAILQ_INSERT_TAIL(&tuner_asks, ask, all);
}

/* Does all asks; the driver is the loop. Returns whether there were any. */
static bool tuner_work(struct loop *loop) {
    bool has_worked = !STAILQ_EMPTY(&tuner_asks);
    for (struct tuning_ask *ask; (ask = STAILQ_FIRST(&tuner_asks));) {
        size_t length = strlen(tuner_log);
        int status = STATUS_OK;
        STAILQ_REMOVE_HEAD(&tuner_asks, all);
        assert_true(length + 1 < sizeof tuner_log);
        tuner_log[length] = "OPUSBC"[ask->kind];
        if (ask->is_unwanted)
            error_set(&ask->error, ERROR_CANCELLED, NULL, "the request was cancelled");
        else if (ask->kind == TUNING_OPEN)
            tuner_open(ask);
        else if (ask->kind == TUNING_PASS)
            status = tuner_pass(ask->run, &ask->pass);
        else if (ask->kind == TUNING_UPDATE)
            tuner_update(ask->run, &ask->update);
        else if (ask->kind == TUNING_SNAPSHOT)
            status = tuner_snapshot(ask->run, &ask->snapshot);
        if (ask->kind == TUNING_CLOSE) {
            free(ask->run);
            tuner_runs--;
        }
        if (status)
            error_of_status(&ask->error, ERROR_ARGUMENT, NULL);
        loop_post(loop, &ask->note);
    }
    return has_worked;
}
