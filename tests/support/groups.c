/* The main of a program of several groups (tests/programs.cmake): its only word names the group that runs. "groups.inc"
 * is a line GROUP(name) for each. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define GROUP(name) int name(void);
#include "groups.inc"
#undef GROUP

static const struct {
    const char *name;
    int (*run)(void);
} groups[] = {
#define GROUP(name) {#name, name},
#include "groups.inc"
};
enum { COUNT = sizeof groups / sizeof *groups };

int main(int count, char **words) {
    for (int i = 0; count == 2 && i < COUNT; i++) {
        if (!strcmp(words[1], groups[i].name)) {
            program_invocation_short_name = words[1]; /* which skipped tests tell */
            return groups[i].run();
        }
    }
    fprintf(stderr, "usage: %s GROUP\n", words[0]);
    for (int i = 0; i < COUNT; i++)
        fprintf(stderr, "  %s\n", groups[i].name);
    return 2;
}
