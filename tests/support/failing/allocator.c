/* The family of malloc, with a call that fails. Only some calls count: the program's own, and those of the libraries
 * that report a failure to us (jansson, libyaml, protobuf-c, zlib and libevent), recognised by the caller's address.
 * Others end the process instead, and are left alone. These are oneDNN (C++, whose exceptions would pass through C),
 * libgomp, Open MPI, nghttp2 (1.52 fails an assertion when its queue of frames cannot grow) and libc's own inside.
 * Where our code calls a function of libc that allocates, that call fails as a whole.
 *
 * Linked into a test program it does nothing before failing_start(); preloaded, it reads its environment. It can print
 * the place of the failure (CAMBIUM_FAIL_TRACE=1); addr2line gives the lines. */
#include "support/failing.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <regex.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_RANGES = 32 };
static struct { uintptr_t start, end; } ranges[MAX_RANGES]; /* of code whose allocations fail */
static int range_count;
static atomic_bool is_on;
static atomic_long calls, mapped_bytes;
static long failing;

static int add_ranges(struct dl_phdr_info *object, size_t size, void *context) {
    static const char *const libraries[] = {"", "libjansson.", "libyaml", "libprotobuf-c.", "libz.", "libevent_core-"};
    const char *slash = strrchr(object->dlpi_name, '/'), *name = slash ? slash + 1 : object->dlpi_name;
    bool is_ours = false;
    (void)size, (void)context;
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++)
        is_ours |= i ? !strncmp(name, libraries[i], strlen(libraries[i])) : !*name && object->dlpi_phnum > 4;
    for (int i = 0; is_ours && i < object->dlpi_phnum && range_count < MAX_RANGES; i++)
        if (object->dlpi_phdr[i].p_type == PT_LOAD && object->dlpi_phdr[i].p_flags & PF_X) {
            ranges[range_count].start = object->dlpi_addr + object->dlpi_phdr[i].p_vaddr;
            ranges[range_count].end = ranges[range_count].start + object->dlpi_phdr[i].p_memsz;
            range_count++;
        }
    return 0;
}

static void show_failure(long n) {
    void *frames[24];
    char line[64];
    int length = snprintf(line, sizeof line, "allocation %ld fails:\n", n);
    if (write(STDERR_FILENO, line, (size_t)length) == length)
        backtrace_symbols_fd(frames, backtrace(frames, 24), STDERR_FILENO);
}

/* Whether the calls from `caller` count, now. */
static bool counts(const void *caller) {
    if (!atomic_load_explicit(&is_on, memory_order_acquire))
        return false;
    int i = 0;
    while (i < range_count && ((uintptr_t)caller < ranges[i].start || (uintptr_t)caller >= ranges[i].end))
        i++;
    return i < range_count;
}

/* Whether the call from `caller` is the one to fail. */
static bool fails(const void *caller) {
    if (!counts(caller) || atomic_fetch_add(&calls, 1) + 1 != failing)
        return false;
    if (getenv("CAMBIUM_FAIL_TRACE"))
        show_failure(failing);
    errno = ENOMEM;
    return true;
}

void failing_start(long n) {
    atomic_store(&is_on, false);
    if (range_count == 0)
        dl_iterate_phdr(add_ranges, NULL);
    atomic_store(&calls, 0);
    failing = n;
    atomic_store_explicit(&is_on, true, memory_order_release);
}

long failing_stop(void) {
    atomic_store(&is_on, false);
    return atomic_load(&calls);
}

void failing_pause(bool is_paused) {
    atomic_store_explicit(&is_on, !is_paused, memory_order_release);
}

long failing_mapped(void) {
    return atomic_load(&mapped_bytes);
}

__attribute__((constructor)) static void start_preloaded(void) {
    const char *n = getenv("CAMBIUM_FAIL_ALLOCATION");
    if (n)
        failing_start(atol(n));
}

__attribute__((destructor)) static void report_preloaded(void) {
    const char *path = getenv("CAMBIUM_FAIL_REPORT");
    char line[32];
    int length = snprintf(line, sizeof line, "%ld\n", failing_stop());
    int descriptor = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : -1;
    if (descriptor >= 0) {
        if (write(descriptor, line, (size_t)length) != length)
            perror(path);
        close(descriptor);
    }
}

/* next(NAME) is the function that the program would have called without this file. */
#define next(name)                                                                                                     \
    ({                                                                                                                 \
        static _Atomic(typeof(&(name))) found;                                                                         \
        if (!atomic_load(&found))                                                                                      \
            atomic_store(&found, (typeof(&(name)))dlsym(RTLD_NEXT, #name));                                            \
        atomic_load(&found);                                                                                           \
    })
#define CALLER __builtin_return_address(0)

void *malloc(size_t bytes) {
    return fails(CALLER) ? NULL : next(malloc)(bytes);
}

void *calloc(size_t count, size_t bytes) {
    return fails(CALLER) ? NULL : next(calloc)(count, bytes);
}

void *realloc(void *memory, size_t bytes) {
    return fails(CALLER) ? NULL : next(realloc)(memory, bytes);
}

void *reallocarray(void *memory, size_t count, size_t bytes) {
    return fails(CALLER) ? NULL : next(reallocarray)(memory, count, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
    return fails(CALLER) ? NULL : next(aligned_alloc)(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes) {
    return fails(CALLER) ? ENOMEM : next(posix_memalign)(memory, alignment, bytes);
}

char *strdup(const char *text) {
    return fails(CALLER) ? NULL : next(strdup)(text);
}

char *strndup(const char *text, size_t length) {
    return fails(CALLER) ? NULL : next(strndup)(text, length);
}

int vasprintf(char **text, const char *format, va_list arguments) {
    return fails(CALLER) ? -1 : next(vasprintf)(text, format, arguments);
}

int asprintf(char **text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = fails(CALLER) ? -1 : next(vasprintf)(text, format, arguments);
    va_end(arguments);
    return length;
}

void *mmap(void *address, size_t bytes, int protection, int flags, int descriptor, off_t offset) {
    bool is_ours = counts(CALLER);
    void *memory = fails(CALLER) ? MAP_FAILED : next(mmap)(address, bytes, protection, flags, descriptor, offset);
    if (is_ours && memory != MAP_FAILED)
        atomic_fetch_add(&mapped_bytes, (long)bytes);
    return memory;
}

int munmap(void *memory, size_t bytes) {
    if (counts(CALLER))
        atomic_fetch_sub(&mapped_bytes, (long)bytes);
    return next(munmap)(memory, bytes);
}

FILE *fopen(const char *path, const char *mode) {
    return fails(CALLER) ? NULL : next(fopen)(path, mode);
}

DIR *opendir(const char *path) {
    return fails(CALLER) ? NULL : next(opendir)(path);
}

char *realpath(const char *path, char *resolved) {
    return fails(CALLER) ? NULL : next(realpath)(path, resolved);
}

ssize_t getline(char **line, size_t *capacity, FILE *stream) {
    return fails(CALLER) ? -1 : next(getline)(line, capacity, stream);
}

int regcomp(regex_t *compiled, const char *pattern, int flags) {
    return fails(CALLER) ? REG_ESPACE : next(regcomp)(compiled, pattern, flags);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context) {
    return fails(CALLER) ? EAGAIN : next(pthread_create)(thread, attributes, run, context);
}
