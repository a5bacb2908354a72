/* Arrays that grow: twice as long each time, so that adding n elements copies at most 2n. */
#pragma once

#include <stddef.h>

/* Makes room in an array for `needed` elements of `element` bytes (at least one). `array` is the address of the pointer
 * to it, which changes where *capacity does not suffice. STATUS_MEMORY; the array is then as it was. */
int array_reserve(void *array, size_t *capacity, size_t needed, size_t element);
