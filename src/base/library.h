/* Functions of libraries that are opened at run time. */
#pragma once

#include <dlfcn.h>
#include <string.h>

/* Stores the address of a library's function at `member`, a pointer to a function; NULL if the library lacks it.
 * Returns the name of the first function that is missing: `missing` if it is not NULL, else this one's or NULL. */
static inline const char *library_find(void *library, const char *name, void *member, const char *missing) {
    void *function = dlsym(library, name);
    memcpy(member, &function, sizeof function);
    return missing || function ? missing : name;
}
