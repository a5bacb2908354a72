/* The ground floor: what every room may use. Nothing here knows what a tensor or a model is.
 *
 * Each header below opens with its own contract; json.h and utf8.h, for who reads JSON or characters, stand apart. All
 * of it is safe to call from any thread on objects of its own. */
#ifndef CAMBIUM_BASE_BASE_H
#define CAMBIUM_BASE_BASE_H

#include "arena.h"   /* pieces of one block, sized before the run */
#include "clock.h"   /* time */
#include "cores.h"   /* processors */
#include "digest.h"  /* what tells contents apart */
#include "dtype.h"   /* element types; bf16 and fp16 in software */
#include "facts.h"   /* what ranks must have alike */
#include "file.h"    /* whole reads, atomic writes, directories */
#include "grow.h"    /* arrays that grow */
#include "lock.h"    /* locks against other processes */
#include "log.h"     /* messages and progress on standard error */
#include "memory.h"  /* what the process has held, what the host has */
#include "rng.h"     /* the counter-based generator */
#include "staging.h" /* directories, and files together, that appear whole */
#include "status.h"  /* status codes and the thread's error text */
#include "strbuf.h"  /* a growing string */

#endif
