/* Arrays that grow: see grow.h. */
#include "grow.h"

#include "status.h"

#include <stdint.h>
#include <stdlib.h>

void *array_grow(void *array, size_t *capacity, size_t needed, size_t element) {
    if (needed <= *capacity)
        return array;
    size_t wanted = *capacity * 2 > needed ? *capacity * 2 : needed < 64 ? 64 : needed;
    void *grown = wanted <= SIZE_MAX / element ? realloc(array, wanted * element) : NULL;
    if (grown)
        *capacity = wanted;
    else
        status_fail(STATUS_MEMORY, "out of memory for %zu elements of %zu bytes", wanted, element);
    return grown;
}
