/* The smaller and the larger of two numbers. */
#pragma once

#include <stdint.h>

/* Returns the smaller one. */
static inline int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Returns the larger one. */
static inline int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}
