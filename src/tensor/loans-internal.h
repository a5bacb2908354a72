/* The open loans of a store. loans.c counts them in builds with CAMBIUM_COUNT_LOANS; no_loans.c does nothing. A program
 * that does not return a loan works until weights move. With counting, it is stopped at once. */
#pragma once

#include "tensor/tensor.h"

/* Opens the counts of a table's parameters; *loans is NULL if they are not counted. STATUS_MEMORY. */
int loans_open(struct param_loans **loans, const struct param_table *table);
/* Frees the counts. No loan is open. */
void loans_close(struct param_loans *loans);
/* Counts a loan. A loan to write must be the only one of its parameter. */
void loans_lend(struct param_loans *loans, int id, bool to_write);
/* Ends a loan, which must be open. */
void loans_return(struct param_loans *loans, int id);
/* Marks a parameter as travelling or not. It may not be lent while it travels. */
void loans_travel(struct param_loans *loans, int id, bool travels);
/* Marks the parameters of a unit as absent or present. They may not be lent while they are absent. */
void loans_set_absent(struct param_loans *loans, int unit, bool is_absent);
/* Stops the program if a loan is open; `after` names the moment. */
void loans_check(const struct param_loans *loans, const char *after);
