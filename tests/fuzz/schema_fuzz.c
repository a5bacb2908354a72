/* Any bytes as a JSON schema: refused with one line, or rules whose texts can be followed. */
#include "grammar_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    grammar_fuzz_one(GRAMMAR_JSON_SCHEMA, data, size);
    return 0;
}
