/* Arrays that grow: see grow.h. */
#include "grow.h"

#include "status.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int array_reserve(void *array, size_t *capacity, size_t needed, size_t element) {
    void *old;
    if (needed <= *capacity)
        return STATUS_OK;
    memcpy(&old, array, sizeof old); /* a pointer of any type */
    size_t wanted = *capacity * 2 > needed ? *capacity * 2 : needed < 64 ? 64 : needed;
    void *grown = wanted <= SIZE_MAX / element ? realloc(old, wanted * element) : NULL;
    if (!grown)
        return status_fail(STATUS_MEMORY, "out of memory for %zu elements of %zu bytes", wanted, element);
    memcpy(array, &grown, sizeof grown);
    *capacity = wanted;
    return STATUS_OK;
}
