/* Opens cuBLASLt at run time. If that fails, one line says why. */
#include "cuda/cublaslt.h"

#include "base/base.h"
#include "base/library.h"

enum { MAJOR = 10000, MINOR = 100 }; /* a version is the sum of these times its numbers, and the patch level */

static const struct {
    const char *name;
    size_t major;
} libraries[] = {{"libcublasLt.so.13", 13}, {"libcublasLt.so.12", 12}};
enum { LIBRARIES = sizeof libraries / sizeof *libraries };

/* Finds all functions. Returns the name of the first one that the library lacks, or NULL. */
static const char *find_functions(struct cublaslt *library) {
    const char *missing = NULL;
#define FIND(member, result, name, parameters)                                                                         \
    missing = library_find(library->library, #name, &library->member, missing);
    CUBLASLT_FUNCTIONS(FIND)
#undef FIND
    return missing;
}

static int check_version(const struct cublaslt *library, int index) {
    size_t version = library->version();
    if (version / MAJOR == libraries[index].major)
        return STATUS_OK;
    return status_fail(STATUS_UNSUPPORTED, "--device cuda: %s has version %zu.%zu, and the program needs %zu",
                       libraries[index].name, version / MAJOR, version % MAJOR / MINOR, libraries[index].major);
}

int cublaslt_open(struct cublaslt *library) {
    char why[256] = "";
    int index = 0;
    *library = (struct cublaslt){0};
    for (; index < LIBRARIES && !library->library; index++) {
        library->library = dlopen(libraries[index].name, RTLD_NOW | RTLD_LOCAL);
        if (!library->library && !*why)
            snprintf(why, sizeof why, "%s", dlerror());
    }
    if (!library->library)
        return status_fail(STATUS_UNSUPPORTED, "--device cuda: no cuBLASLt: %s", why);
    index--;
    const char *missing = find_functions(library);
    int status = library->version ? check_version(library, index) : STATUS_OK;
    if (!status && missing)
        status =
            status_fail(STATUS_UNSUPPORTED, "--device cuda: %s has no function %s", libraries[index].name, missing);
    if (status)
        cublaslt_close(library);
    return status;
}

void cublaslt_name(const struct cublaslt *library, char *text, size_t bytes) {
    size_t version = library->version();
    snprintf(text, bytes, "cuBLASLt %zu.%zu.%zu", version / MAJOR, version % MAJOR / MINOR, version % MINOR);
}

void cublaslt_close(struct cublaslt *library) {
    if (library->library)
        dlclose(library->library);
    *library = (struct cublaslt){0};
}
