/* The loans of a store: loans.c counts them where the build asks for it (CAMBIUM_COUNT_LOANS), no_loans.c does nothing.
 * A program that does not give back what it borrows works until weights move; where loans are counted it is stopped. */
#ifndef CAMBIUM_TENSOR_LOANS_INTERNAL_H
#define CAMBIUM_TENSOR_LOANS_INTERNAL_H

#include "tensor/tensor.h"

/* NULL where they are not counted. */
int loans_open(struct param_loans **loans, const struct param_table *table);
/* No loan is open any more. */
void loans_close(struct param_loans *loans);
/* One that writes is the only one of its parameter. */
void loans_lend(struct param_loans *loans, int id, bool to_write);
void loans_return(struct param_loans *loans, int id);
/* While it travels there is no loan of it. */
void loans_travel(struct param_loans *loans, int id, bool travels);
void loans_check(const struct param_loans *loans, const char *after);

#endif
