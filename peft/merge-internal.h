/* Shared by merge.c and the methods that change the base's projections. Rows and columns are those of the projection,
 * which is a range of the rows of the base's parameter. A parameter of the stack is given by its id. Changes of one
 * weight apply in the order in which they are added. Changes of columns come last, because the activations before the
 * weight are scaled before any method sees them. Functions fail with STATUS_MEMORY, STATUS_IO or the device's
 * errors. */
#pragma once

#include "method-internal.h"

/* Adds scale B A to the weight. */
int merge_add_product(struct merge *merge, int64_t layer, const struct model_projection *projection, int a, int b,
                      float scale);
/* Multiplies the rows of the weight, or of the bias if the base has one, by the parameter's elements. */
int merge_scale_rows(struct merge *merge, int64_t layer, const struct model_projection *projection, bool is_bias,
                     int id);
/* Multiplies the columns of the weight by the parameter's elements. */
int merge_scale_columns(struct merge *merge, int64_t layer, const struct model_projection *projection, int id);
/* Scales the rows of the weight, as changed so far, to norms that are the parameter's elements. */
int merge_set_norms(struct merge *merge, int64_t layer, const struct model_projection *projection, int id);
