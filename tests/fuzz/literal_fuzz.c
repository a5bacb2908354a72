/* Fuzz target: literals of Python. Any text gives a value that JSON can hold, or one refusal. */
#include "tasks/tasks.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *value;
    int status = python_literal_read((const char *)data, size, &value);
    if (status ? status != STATUS_INVALID || value : !value)
        abort();
    json_decref(value);
    return 0;
}
