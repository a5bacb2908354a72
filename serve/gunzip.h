/* Unpacks gzip within a limit that applies while bytes come out. Any thread. */
#pragma once

#include "base/strbuf.h"

#include <stddef.h>
#include <stdint.h>

enum gunzip { GUNZIP_WHOLE, GUNZIP_TOO_LARGE, GUNZIP_BAD, GUNZIP_MEMORY };

/* Appends the unpacked bytes to `out`: one stream of gzip with nothing after it. GUNZIP_TOO_LARGE: more than `limit`
 * bytes. After a failure `out` holds the bytes up to it. */
enum gunzip gunzip(const void *bytes, size_t length, uint64_t limit, struct strbuf *out);
/* Replaces the bytes by the unpacked ones. After a failure they are unchanged. */
enum gunzip gunzip_replace(struct strbuf *bytes, uint64_t limit);
