/* A build without tests has no backend for them. */
#include "backend.h"

const struct backend *const backend_for_tests = NULL;
