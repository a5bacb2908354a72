/* Between merge.c and the methods that are changes of the base's projections. Rows and columns are those of the
 * projection, a range of the rows of the base's parameter; a parameter of the stack is told by its id. Changes of one
 * weight apply in the order in which they are added; changes of columns come last, as the activations before the weight
 * are scaled before any method sees them. */
#ifndef CAMBIUM_PEFT_MERGE_INTERNAL_H
#define CAMBIUM_PEFT_MERGE_INTERNAL_H

#include "method-internal.h"

/* The weight += scale B A. */
int merge_add_product(struct merge *merge, int64_t layer, const struct model_projection *projection, int a, int b,
                      float scale);
/* The rows of the weight, or of the bias, where the base has one, times the parameter's elements. */
int merge_scale_rows(struct merge *merge, int64_t layer, const struct model_projection *projection, bool is_bias,
                     int id);
/* The columns of the weight times them. */
int merge_scale_columns(struct merge *merge, int64_t layer, const struct model_projection *projection, int id);
/* The rows of the weight, changed so far, to these norms. */
int merge_set_norms(struct merge *merge, int64_t layer, const struct model_projection *projection, int id);

#endif
