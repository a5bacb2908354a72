/* Runs tables of opening steps, forward and in reverse. */
#include "base/opening.h"

static void close_first(const struct opening *opening, size_t count, void *self) {
    while (count-- > 0)
        if (opening->steps[count].close)
            opening->steps[count].close(self);
}

int opening_run(const struct opening *opening, void *self) {
    size_t opened = 0;
    int status = 0;
    for (size_t i = 0; i < opening->count; i++) {
        const struct opening_step *step = &opening->steps[i];
        if (!status && !(status = step->open(self)))
            opened++;
        bool meets = step->agrees && opening->agree;
        if (meets)
            status = opening->agree(self, status);
        if (meets && status)
            break;
    }
    if (status)
        close_first(opening, opened, self);
    return status;
}

void opening_undo(const struct opening *opening, void *self) {
    close_first(opening, opening->count, self);
}
