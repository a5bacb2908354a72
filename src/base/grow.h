/* Arrays that grow: twice as long each time, so that adding n elements copies at most 2n. */
#ifndef CAMBIUM_BASE_GROW_H
#define CAMBIUM_BASE_GROW_H

#include <stddef.h>

/* Returns an array with room for `needed` elements of `element` bytes (at least one): `array` itself where *capacity
 * suffices, else a longer one in its place. Returns NULL without memory, with the error text set (STATUS_MEMORY) and
 * `array` as it was. */
void *array_grow(void *array, size_t *capacity, size_t needed, size_t element);

#endif
