/* Upper, title and lower case of characters, as Python has them. */
#pragma once

#include <stdint.h>

enum unicode_case { UNICODE_TO_UPPER, UNICODE_TO_TITLE, UNICODE_TO_LOWER, UNICODE_CASES };

/* Puts the character's other case into `to`: one to three characters, then zeros. A character without that case stays.
 */
void unicode_change_case(uint32_t point, enum unicode_case which, uint32_t to[3]);
