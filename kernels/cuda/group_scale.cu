/* Columns scaled by a vector of each row's adapter. A block works on one row: its threads look for the row's segment,
 * which only the device knows. */
#include "cuda/groups.cuh"

template <class X, class Y, int WIDTH>
static __device__ void scale_row(const struct group_scale &a, const struct group_entry &e, const X *x, Y *y) {
    for (int64_t j = WIDTH * (int64_t)threadIdx.x; j < e.n; j += WIDTH * (int64_t)blockDim.x) {
        values<WIDTH> value = read_values<WIDTH>(x + j), scale = read_any<WIDTH>(e.data, j, e.type), fixed = {};
        bool is_fixed = e.bias && !a.is_difference;
        if (is_fixed)
            fixed = read_any<WIDTH>(e.bias, j, e.bias_type);
        pack<Y, WIDTH> to;
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            float rest = scale.at[k] - 1.0f;
            from_float(is_fixed          ? value.at[k] + (value.at[k] - fixed.at[k]) * rest
                       : a.is_difference ? value.at[k] * rest
                                         : value.at[k] * scale.at[k],
                       to.at[k]);
        }
        *(pack<Y, WIDTH> *)(y + j) = to;
    }
}

template <class X, class Y> static __device__ void every_row(const struct group_scale &a) {
    for (int64_t row = a.first_row + blockIdx.x; row < a.first_row + a.rows; row += gridDim.x) {
        const struct group_entry *e = entry_of(a, row);
        if (!e)
            continue;
        const X *x = (const X *)a.x + (row - a.x_row) * a.ldx + e->first_column;
        Y *y = (Y *)a.y + (row - a.y_row) * a.ldy + e->first_column;
        if (e->n % 4 == 0 && is_aligned(x) && is_aligned(y) && is_aligned(e->data) && is_aligned(e->bias))
            scale_row<X, Y, 4>(a, *e, x, y);
        else
            scale_row<X, Y, 1>(a, *e, x, y);
    }
}

extern "C" __global__ void __launch_bounds__(128) group_scale_fp32(struct group_scale a) {
    if (a.y_type == DTYPE_F32)
        every_row<float, float>(a);
    else
        every_row<float, bf16>(a);
}
extern "C" __global__ void __launch_bounds__(128) group_scale_bf16(struct group_scale a) {
    if (a.y_type == DTYPE_F32)
        every_row<bf16, float>(a);
    else
        every_row<bf16, bf16>(a);
}
