/* Opens libnccl.so.2 at run time. If that fails, one line says why, and how to run without it. */
#include "nccl-internal.h"

#include "comm/comm.h"

#include "base/base.h"
#include "base/library.h"

static int check(const struct nccl_library *library, const char *missing) {
    int version = 0;
    if (library->version && (library->version(&version) || version < NCCL_OLDEST))
        return status_fail(STATUS_UNSUPPORTED, "NCCL is too old: libnccl.so.2 is %d.%d, and the program needs 2.18: %s",
                           version / 10000, version / 100 % 100, COMM_WITHOUT_NCCL);
    if (missing)
        return status_fail(STATUS_UNSUPPORTED, "libnccl.so.2 has no function %s: %s", missing, COMM_WITHOUT_NCCL);
    return STATUS_OK;
}

int nccl_library_open(struct nccl_library *library) {
    *library = (struct nccl_library){.library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL)};
    if (!library->library)
        return status_fail(STATUS_UNSUPPORTED, "no NCCL, which sums over several GPUs: %s: %s", dlerror(),
                           COMM_WITHOUT_NCCL);
    const char *missing = NULL; /* the first function that the library lacks */
#define FIND(member, result, name, parameters)                                                                         \
    missing = library_find(library->library, #name, &library->member, missing);
    NCCL_FUNCTIONS(FIND)
#undef FIND
    int status = check(library, missing);
    if (status)
        nccl_library_close(library);
    return status;
}

void nccl_library_close(struct nccl_library *library) {
    if (library->library)
        dlclose(library->library);
    *library = (struct nccl_library){0};
}
