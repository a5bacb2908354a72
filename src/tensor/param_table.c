/* The rows that describe a model's parameters, and their initial values. */
#include "tensor/param_table.h"

#include <math.h>

void param_table_free(struct param_table *table) {
    free(table->rows);
    *table = (struct param_table){0};
}

int param_table_add(struct param_table *table, const struct param *row) {
    if (table->count == table->capacity) {
        int capacity = table->capacity ? table->capacity * 2 : 64;
        struct param *rows = realloc(table->rows, (size_t)capacity * sizeof *rows);
        TRY(status_allocated(rows));
        table->rows = rows;
        table->capacity = capacity;
    }
    table->rows[table->count] = *row;
    return table->count++;
}

int param_table_find(const struct param_table *table, const char *name, int near) {
    for (int i = 0; i < table->count; i++) {
        int at = (near + i) % table->count;
        if (!strcmp(table->rows[at].name, name))
            return at;
    }
    return PARAM_NONE;
}

int64_t param_table_elements(const struct param_table *table, bool only_trainable) {
    int64_t elements = 0;
    for (int i = 0; i < table->count; i++)
        if (table->rows[i].is_trainable || !only_trainable)
            elements += param_elements(&table->rows[i]);
    return elements;
}

/* Returns the key of a parameter's initial values, which depends on its name and not on its row. */
static uint64_t hash_name(const char *name) {
    return digest_bytes(DIGEST_START, name, strlen(name));
}

/* Draws elements 2i and 2i+1: Box-Muller on two of the four words of a counter. */
static void normal_pair(uint64_t seed, uint64_t name, uint64_t pair, float std, float out[2]) {
    struct philox r = philox(seed, (uint32_t)pair, (uint32_t)(pair >> 32) ^ (uint32_t)(name >> 32), (uint32_t)name,
                             (uint32_t)RNG_INIT << 24);
    float radius = std * sqrtf(-2 * logf((float)rng_unit(r.word[0])));
    float angle = 6.2831853f * (float)rng_unit(r.word[1]);
    out[0] = radius * cosf(angle);
    out[1] = radius * sinf(angle);
}

static float uniform(uint64_t seed, uint64_t name, uint64_t element, float bound) {
    struct philox r = philox(seed, (uint32_t)element, (uint32_t)(element >> 32) ^ (uint32_t)(name >> 32),
                             (uint32_t)name, (uint32_t)RNG_INIT << 24);
    return bound * (2 * (float)rng_unit(r.word[2]) - 1);
}

void param_initial_values(const struct param *row, uint64_t seed, int64_t first, int64_t count, float *out) {
    if (row->init == PARAM_INIT_UNIFORM) {
        uint64_t name = hash_name(row->name);
        for (int64_t i = 0; i < count; i++)
            out[i] = uniform(seed, name, (uint64_t)(first + i), row->init_std);
        return;
    }
    if (row->init != PARAM_INIT_NORMAL) {
        for (int64_t i = 0; i < count; i++)
            out[i] = row->init == PARAM_INIT_ONE ? 1.0f : 0.0f;
        return;
    }
    uint64_t name = hash_name(row->name);
    int64_t end = first + count, first_pair = first / 2, last_pair = (end + 1) / 2;
    /* It does not use OMP_NUM_THREADS, which may be more threads than can be started. */
#pragma omp parallel for num_threads(usable_cores()) schedule(static)
    for (int64_t pair = first_pair; pair < last_pair; pair++) {
        float value[2];
        normal_pair(seed, name, (uint64_t)pair, row->init_std, value);
        for (int64_t j = 0; j < 2; j++)
            if (pair * 2 + j >= first && pair * 2 + j < end)
                out[pair * 2 + j - first] = value[j];
    }
}
