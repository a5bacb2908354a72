/* Between the pages of plans. */
#pragma once

#include "planner/page.h"

enum { PAGE_WIDTH = 640, PAGE_HEIGHT = 300, PAGE_MARGIN = 62 }; /* of a picture */

/* Adds everything up to the title, as a heading too. The title has no signs of markup. */
void page_begin(const char *title, struct strbuf *out);
/* Adds text that may have signs of markup. */
void page_add_escaped(struct strbuf *out, const char *text);
/* Adds what `print` writes, as it is. STATUS_MEMORY. */
int page_add_printed(struct strbuf *out, void (*print)(const void *context, FILE *out), const void *context);
