/* One direction of an LSTM layer, for encoders of a few dozen steps. All threads share the recurrent product of a step;
 * one of them computes each row or column of the weight. */
#include "cpu/level/rows.h"

#include <math.h>

enum { COLUMNS = 64 }; /* of the weight, which a thread takes at a time in the backward */

/* Step `number` of the recurrence, and the step before it; -1: the state is zero. */
static int64_t step_at(const struct lstm *a, int64_t number) {
    return a->is_reverse ? a->steps - 1 - number : number;
}

static int64_t step_before(const struct lstm *a, int64_t number) {
    return number ? step_at(a, number - 1) : -1;
}

static float *row_of(float *rows, int64_t step, int64_t stride) {
    return step < 0 ? NULL : rows + step * stride;
}

/* sums[4H] += bias + weight state. */
static void add_recurrent(const struct exec *exec, const struct lstm *a, const float *state, float *sums) {
    int64_t H = a->hidden;
#pragma omp parallel for num_threads(threads_for(exec, 4 * H * H)) schedule(static)
    for (int64_t r = 0; r < 4 * H; r++) {
        float sum = 0;
        if (state) {
#pragma omp simd reduction(+ : sum)
            for (int64_t j = 0; j < H; j++)
                sum += a->weight[r * H + j] * state[j];
        }
        sums[r] += a->bias[r] + sum;
    }
}

int LEVEL(cpu_lstm_forward)(const struct exec *exec, const struct lstm *a) {
    int64_t H = a->hidden;
    for (int64_t number = 0; number < a->steps; number++) {
        int64_t step = step_at(a, number), before = step_before(a, number);
        float *gates = row_of(a->gates, step, 4 * H), *cell = row_of(a->cells, step, H);
        float *y = row_of(a->y, step, a->y_stride);
        const float *cell_before = row_of(a->cells, before, H);
        add_recurrent(exec, a, row_of(a->y, before, a->y_stride), gates);
        for (int64_t j = 0; j < H; j++) {
            float in = vsigmoid(gates[j]), forget = vsigmoid(gates[H + j]), out = vsigmoid(gates[3 * H + j]);
            float candidate = tanhf(gates[2 * H + j]);
            cell[j] = in * candidate + (cell_before ? forget * cell_before[j] : 0.0f);
            y[j] = out * tanhf(cell[j]);
            gates[j] = in;
            gates[H + j] = forget;
            gates[2 * H + j] = candidate;
            gates[3 * H + j] = out;
        }
    }
    return STATUS_OK;
}

size_t LEVEL(cpu_lstm_backward_workspace)(struct device *device, const struct lstm *a) {
    return 2 * (size_t)a->hidden * sizeof(float);
}

/* dstate[H] = weight' dsums[4H]. */
static void recurrent_back(const struct exec *exec, const struct lstm *a, const float *dsums, float *dstate) {
    int64_t H = a->hidden;
#pragma omp parallel for num_threads(threads_for(exec, 4 * H * H)) schedule(static)
    for (int64_t first = 0; first < H; first += COLUMNS) {
        int64_t end = first + COLUMNS < H ? first + COLUMNS : H;
        for (int64_t j = first; j < end; j++)
            dstate[j] = 0;
        for (int64_t r = 0; r < 4 * H; r++) {
#pragma omp simd
            for (int64_t j = first; j < end; j++)
                dstate[j] += a->weight[r * H + j] * dsums[r];
        }
    }
}

int LEVEL(cpu_lstm_backward)(const struct exec *exec, const struct lstm *a) {
    int64_t H = a->hidden;
    float *dstate = exec->workspace, *dcell = dstate + H;
    memset(dstate, 0, 2 * (size_t)H * sizeof *dstate);
    for (int64_t number = a->steps - 1; number >= 0; number--) {
        int64_t step = step_at(a, number), before = step_before(a, number);
        float *gates = row_of(a->gates, step, 4 * H);
        const float *cell = row_of(a->cells, step, H), *cell_before = row_of(a->cells, before, H);
        const float *dy = a->dy + step * a->y_stride;
        for (int64_t j = 0; j < H; j++) {
            float in = gates[j], forget = gates[H + j], candidate = gates[2 * H + j], out = gates[3 * H + j];
            float t = tanhf(cell[j]), dh = dy[j] + dstate[j], dc = dcell[j] + dh * out * (1.0f - t) * (1.0f + t);
            dcell[j] = dc * forget;
            gates[j] = dc * candidate * in * (1.0f - in);
            gates[H + j] = cell_before ? dc * cell_before[j] * forget * (1.0f - forget) : 0.0f;
            gates[2 * H + j] = dc * in * (1.0f - candidate) * (1.0f + candidate);
            gates[3 * H + j] = dh * t * out * (1.0f - out);
        }
        recurrent_back(exec, a, gates, dstate);
    }
    return STATUS_OK;
}
