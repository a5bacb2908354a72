/* Runs tables of opening steps, forward and in reverse. */
#include "base/opening.h"

static void *next_of(const struct opening *opening, const struct opening_step *step, void *object) {
    return step->is_shared || !opening->next ? NULL : opening->next(object);
}

/* Closes a step of the objects before `end`; NULL: of all. */
static void close_step(const struct opening *opening, const struct opening_step *step, void *self, const void *end) {
    for (void *object = self; object != end && step->close; object = next_of(opening, step, object))
        step->close(object);
}

static void close_first(const struct opening *opening, size_t count, void *self) {
    while (count-- > 0)
        close_step(opening, &opening->steps[count], self, NULL);
}

/* Opens all objects of a step, or none, and agrees after each. A rank that failed before, at object *at, only agrees.
 */
static int run_step(const struct opening *opening, const struct opening_step *step, int status, void *self, void **at) {
    bool meets = step->agrees && opening->agree, has_failed = status;
    for (void *object = self; object; object = next_of(opening, step, object)) {
        bool is_open = !status && !(status = step->open(*at = object));
        if (meets)
            status = opening->agree(*at, status);
        if (status && !has_failed)
            close_step(opening, step, self, is_open ? next_of(opening, step, object) : object);
        if (status)
            return status;
    }
    return 0;
}

int opening_run(const struct opening *opening, void *self) {
    size_t opened = 0;
    int status = 0;
    void *at = self;
    for (size_t i = 0; i < opening->count; i++) {
        const struct opening_step *step = &opening->steps[i];
        status = run_step(opening, step, status, self, &at);
        if (!status)
            opened++;
        else if (step->agrees && opening->agree)
            break;
    }
    if (status)
        close_first(opening, opened, self);
    return status;
}

void opening_undo(const struct opening *opening, void *self) {
    close_first(opening, opening->count, self);
}
