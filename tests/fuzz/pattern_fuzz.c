/* Any bytes as a pattern of ECMA-262: refused with one line, or a language whose texts can be followed. */
#include "grammar_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    grammar_fuzz_one(GRAMMAR_REGEX, data, size);
    return 0;
}
