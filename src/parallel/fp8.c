/* Casts the operands of a linear to FP8. */
#include "parallel/fp8.h"

struct matrix_view fp8_view(const struct fp8_linear *fp8, enum fp8_operand operand, const struct matrix_view *matrix) {
    const struct fp8_tensor *tensor = &fp8->tensor[operand];
    struct matrix_view view = matrix_plain(tensor->type, tensor->values, matrix->rows, matrix->columns);
    view.form = MATRIX_FP8;
    view.scale = tensor->inverse;
    return view;
}

struct fp8_output fp8_output_of(const struct fp8_linear *fp8, struct fp8_cast_of cast) {
    const struct fp8_tensor *tensor = &fp8->tensor[cast.operand];
    return (struct fp8_output){.type = tensor->type,
                               .copies = cast.copies,
                               .scale = tensor->scale,
                               .inverse = tensor->inverse,
                               .amax = cast.measures ? tensor->amax : NULL,
                               .y = tensor->values};
}

int fp8_cast(struct rank *rank, const struct fp8_linear *fp8, struct fp8_cast_of cast, struct matrix_view *matrix) {
    struct fp8_cast call = {.rows = matrix->rows,
                            .cols = matrix->columns,
                            .stride = matrix->stride,
                            .x = matrix->data,
                            .to = fp8_output_of(fp8, cast)};
    *matrix = fp8_view(fp8, cast.operand, matrix);
    return rank_run(rank, PHASE_GEMM, fp8_cast, &call);
}

/* Plans the cast of a weight that is kept: once for a global batch. */
static int plan_weight(struct rank *rank, const struct fp8_linear *fp8, struct matrix_view *weight) {
    enum work_part part = rank->work.part;
    struct matrix_view cast = *weight;
    *weight = fp8_view(fp8, FP8_WEIGHT, weight);
    if (part != WORK_FORWARD)
        return STATUS_OK;
    rank->work.part = WORK_GRADIENTS;
    int status = fp8_cast(rank, fp8, (struct fp8_cast_of){.operand = FP8_WEIGHT, .measures = true}, &cast);
    rank->work.part = part;
    return status;
}

int fp8_cast_weight(struct rank *rank, struct fp8_linear *fp8, bool measures, struct matrix_view *weight) {
    enum fp8_weight_state wanted = measures ? FP8_WEIGHT_MEASURED : FP8_WEIGHT_CAST;
    if (rank->is_planning && fp8->keeps_weight)
        return plan_weight(rank, fp8, weight);
    if (fp8->keeps_weight && fp8->weight >= wanted) {
        *weight = fp8_view(fp8, FP8_WEIGHT, weight);
        return STATUS_OK;
    }
    fp8->weight = wanted;
    return fp8_cast(rank, fp8, (struct fp8_cast_of){.operand = FP8_WEIGHT, .measures = measures}, weight);
}
