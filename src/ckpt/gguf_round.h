/* Rounding to the blocks of GGUF's types: 32 numbers, or 256 for the K types. */
#pragma once

#include "base/base.h"

/* Each writes a block; returns false when a scale is too large for its 16 bits. */
bool gguf_round_q8_0(const float *values, unsigned char *block);
bool gguf_round_q5_0(const float *values, unsigned char *block);
bool gguf_round_q4_0(const float *values, unsigned char *block);
bool gguf_round_q6_k(const float *values, unsigned char *block);
bool gguf_round_q4_k(const float *values, unsigned char *block);
