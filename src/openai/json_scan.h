/* Follows a JSON text byte by byte in constant memory, and finds its end or its first mistake. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { JSON_SCAN_DEPTH = 64 };

struct json_scan {
    uint64_t objects; /* bit i: the level i is an object, else a list */
    uint8_t depth, state, count;
};
enum json_scan_result {
    JSON_SCAN_MORE,
    JSON_SCAN_ENDS,  /* the value is complete with this byte */
    JSON_SCAN_ENDED, /* a number was complete before this byte, which is not part of it */
    JSON_SCAN_FAILS, /* no JSON, or nested too deep */
};
/* Starts zeroed, before a value and the white space in front of it. It accepts any bytes from 0x20 on in strings. */
enum json_scan_result json_scan_next(struct json_scan *scan, uint8_t byte);
/* True when a number stands there that may end. */
bool json_scan_is_number(const struct json_scan *scan);
