/* Printable characters, by the categories of libutf8proc. */
#include "unicode.h"

#include <utf8proc.h>

bool unicode_is_printable(uint32_t point) {
    static const unsigned without = 1u << UTF8PROC_CATEGORY_CN | 1u << UTF8PROC_CATEGORY_CC |
                                    1u << UTF8PROC_CATEGORY_CF | 1u << UTF8PROC_CATEGORY_CS |
                                    1u << UTF8PROC_CATEGORY_CO | 1u << UTF8PROC_CATEGORY_ZL |
                                    1u << UTF8PROC_CATEGORY_ZP | 1u << UTF8PROC_CATEGORY_ZS;
    return point == ' ' || !(without >> utf8proc_category((utf8proc_int32_t)point) & 1);
}
