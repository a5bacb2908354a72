/* The common start of every cmocka test: the includes in cmocka's order, temporary directories, and the comparisons
 * used with the tests' bounds. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef main /* the name by which a program of several groups calls this one (tests/programs.cmake) */
int main(void);
#endif

/* Fails the test with the thread's error text when `status` is not 0. */
void test_ok(int status);
/* Fails the test unless `status` is `expected` and the error text contains `part`. */
void test_fails(int status, int expected, const char *part);

/* A fresh directory for one test program, removed at exit; each call gives a new one. The caller frees the path. */
char *test_directory(void);

/* The largest |a - b| over the largest |b|, of n numbers; infinite when a number is not finite. */
double test_max_error(const float *a, const double *b, size_t n);

/* Skips the test that it stands in, and leaves the line "skipped: PROGRAM.TEST: REASON" for whoever lists what was not
 * tested. */
#define test_skip(reason) (test_tell_skip(__func__, (reason)), skip())
void test_tell_skip(const char *test, const char *reason);

/* Ends the program unless the next call comes within `seconds` (0: none need come). Ranks that wait for each other for
 * ever must fail soon. */
void test_ends_within(unsigned seconds);

/* Whether the whole suite is wanted (CAMBIUM_TEST_LONG=1) instead of its fixed-seed part. */
bool test_is_long(void);

/* The backend that tests open (CAMBIUM_TEST_DEVICE; "cpu" when not set). */
const char *test_device(void);
