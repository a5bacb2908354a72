/* A model opened for a test: device, rank and model, with weights from a directory or given initial values. */
#ifndef CAMBIUM_TESTS_MODEL_SUPPORT_H
#define CAMBIUM_TESTS_MODEL_SUPPORT_H

#include "ckpt/ckpt.h"
#include "model/model.h"
#include "support/test.h"

struct test_model {
    struct device *device;
    struct rank rank;
    struct model *model;
};

static inline void test_model_open(struct test_model *t, struct model_options options) {
    test_ok(device_open(test_device(), 0, 2, &t->device));
    test_ok(rank_open_single(&t->rank, t->device, 1));
    test_ok(model_open(&options, &t->rank, false, NULL, &t->model));
}

static inline void test_model_close(struct test_model *t) {
    model_close(t->model);
    rank_close(&t->rank);
    device_close(t->device);
}

static inline struct model_config test_read_config(const char *directory) {
    struct strbuf text = STRBUF_INIT;
    struct model_config config;
    enum dtype dtype;
    int32_t eos;
    test_ok(ckpt_read_config(directory, &text));
    test_ok(model_read_config(strbuf_text(&text), directory, &config, &dtype, &eos));
    strbuf_free(&text);
    return config;
}

static inline void test_model_load(struct test_model *t, const char *directory) {
    struct param_store *store = model_store(t->model);
    struct ckpt_tensors *tensors;
    test_ok(ckpt_open_model(directory, &tensors));
    struct ckpt_flat flat = {
        .store = store, .stream = t->rank.exec.stream, .memory = store->weights, .dtype = store->dtype};
    struct ckpt_array array = ckpt_flat_array(&flat, "", false);
    test_ok(ckpt_read(tensors, store->table, &array, 1));
    ckpt_close(tensors);
}

/* A weight or gradient of a parameter, by our name. */
static inline float *test_weight(struct test_model *t, const char *name) {
    struct param_store *store = model_store(t->model);
    int id = param_table_find(store->table, name, 0);
    assert_true(id >= 0);
    return (float *)store->weights + store->offset[id];
}
static inline float *test_gradient(struct test_model *t, const char *name) {
    struct param_store *store = model_store(t->model);
    return param_gradient(store, param_table_find(store->table, name, 0));
}

#endif
