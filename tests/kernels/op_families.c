/* The families, a line each: add yours here. */
#include "op_cases.h"

static const struct op_family *const families[] = {
    &gemm_family,   &attention_family, &paged_family,      &norm_family,    &pointwise_family,
    &ends_family,   &optimizer_family, &adapter_family,    &lstm_family,    &grouped_family,
    &rotary_family, &fp8_family,       &fp8_result_family, &encoded_family, NULL,
};

const struct op_family *op_family_at(int index) {
    return families[index];
}
