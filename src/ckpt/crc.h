/* The CRC-32 of zips. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Returns the CRC of bytes that follow others, whose CRC is `crc`; 0: nothing comes before them. */
uint32_t crc_add(uint32_t crc, const void *bytes, size_t length);
