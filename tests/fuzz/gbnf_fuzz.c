/* Any bytes as a grammar: refused with one line, or rules whose texts can be followed. */
#include "grammar_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    grammar_fuzz_one(GRAMMAR_GBNF, data, size);
    return 0;
}
