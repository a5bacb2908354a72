/* The base room: helpers that every room may use. Nothing here knows what a tensor or a model is.
 *
 * Each header below opens with its own contract. Readers of JSON and of characters include json.h and utf8.h
 * themselves. The C library's everyday headers come with this one, so files that include it do not repeat them. Any
 * thread may call any function here, on objects of its own. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"   /* pieces of one block, sized before the run */
#include "clock.h"   /* time */
#include "cores.h"   /* processors */
#include "digest.h"  /* digests of contents */
#include "dtype.h"   /* element types; bf16 and fp16 in software */
#include "facts.h"   /* facts that all ranks must share */
#include "file.h"    /* whole reads, atomic writes, directories */
#include "grow.h"    /* arrays that grow */
#include "lock.h"    /* locks against other processes */
#include "log.h"     /* messages and progress on standard error */
#include "memory.h"  /* memory of the process and of the host */
#include "rng.h"     /* the counter-based generator */
#include "staging.h" /* directories and groups of files that appear whole */
#include "status.h"  /* status codes and the thread's error text */
#include "stop.h"    /* signals that request a stop */
#include "strbuf.h"  /* a growing string */
