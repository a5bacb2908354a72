/* Runs the schedules of all stages side by side, and notes the messages of one of them. */
#include "parallel/rounds.h"

#include "base/base.h"

enum { KINDS = 2 };

/* The messages of one kind that a stage receives. */
struct lane {
    int from;    /* the sending stage */
    int buffers; /* 0: nothing comes */
    int sent, delivered, used;
};

struct stage {
    struct pipeline_step *steps;
    int next; /* the step that it runs next */
    struct lane lanes[KINDS];
};

struct walk {
    const struct pipeline_shape *shape;
    int count; /* steps of each stage */
    int send_buffers;
    struct stage *stages;
};

static void close_walk(struct walk *walk) {
    for (int s = 0; walk->stages && s < walk->shape->stages; s++)
        free(walk->stages[s].steps);
    free(walk->stages);
}

static int open_walk(struct walk *walk) {
    int stages = walk->shape->stages;
    walk->stages = calloc((size_t)stages, sizeof *walk->stages);
    bool is_whole = walk->stages;
    for (int s = 0; is_whole && s < stages; s++) {
        struct stage *stage = &walk->stages[s];
        stage->steps = calloc((size_t)walk->count, sizeof *stage->steps);
        is_whole = stage->steps;
        for (int kind = 0; is_whole && kind < KINDS; kind++) {
            int before = kind == PIPELINE_FORWARD ? s - 1 : s + 1;
            stage->lanes[kind].buffers = pipeline_receive_buffers(walk->shape, s, (enum pipeline_step_kind)kind);
            stage->lanes[kind].from = (before + stages) % stages;
        }
        if (is_whole)
            pipeline_steps(walk->shape, s, stage->steps);
    }
    if (is_whole)
        return STATUS_OK;
    close_walk(walk);
    return status_no_memory();
}

/* Runs the next step of a stage, if its message has come and a buffer for its result is free. */
static bool run_step(struct walk *walk, struct stage *stage) {
    if (stage->next == walk->count)
        return false;
    const struct pipeline_step *step = &stage->steps[stage->next];
    struct lane *own = &stage->lanes[step->kind];
    bool receives = step->receive.stage != PIPELINE_NO_MESSAGE, sends = step->send.stage != PIPELINE_NO_MESSAGE;
    struct lane *theirs = sends ? &walk->stages[step->send.stage].lanes[step->kind] : NULL;
    if ((receives && step->receive.number >= own->delivered) ||
        (sends && step->send.number - walk->send_buffers >= theirs->delivered))
        return false;
    own->used += receives;
    if (sends)
        theirs->sent++;
    stage->next++;
    return true;
}

/* Delivers what a stage has a buffer for, and notes the ends of the stage `noted`. */
static bool deliver(struct walk *walk, int receiver, int round, int noted, struct pipeline_rounds *rounds) {
    bool has_any = false;
    for (int kind = 0; kind < KINDS; kind++) {
        struct lane *lane = &walk->stages[receiver].lanes[kind];
        for (; lane->delivered < lane->sent && lane->delivered - lane->used < lane->buffers; lane->delivered++) {
            bool is_receive = receiver == noted;
            if (is_receive || lane->from == noted)
                rounds->posts[rounds->count++] = (struct pipeline_post){.after = walk->stages[noted].next - 1,
                                                                        .round = round,
                                                                        .is_receive = is_receive,
                                                                        .kind = (enum pipeline_step_kind)kind,
                                                                        .number = lane->delivered};
            has_any = true;
        }
    }
    return has_any;
}

static int by_round(const void *a, const void *b) {
    const struct pipeline_post *x = a, *y = b;
    if (x->round != y->round)
        return x->round < y->round ? -1 : 1;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    return x->number != y->number ? (x->number < y->number ? -1 : 1) : (int)x->is_receive - (int)y->is_receive;
}

/* Runs all steps. They come to an end, because the buffers suffice (schedule.h). */
static void run(struct walk *walk, int stage, struct pipeline_rounds *rounds) {
    bool has_moved = true;
    for (int round = 0; has_moved; round++) {
        has_moved = false;
        for (int s = 0; s < walk->shape->stages; s++)
            has_moved |= run_step(walk, &walk->stages[s]);
        for (int s = 0; s < walk->shape->stages; s++)
            has_moved |= deliver(walk, s, round, stage, rounds);
    }
}

int pipeline_rounds_make(const struct pipeline_shape *shape, int stage, int send_buffers,
                         struct pipeline_rounds *rounds) {
    int count = pipeline_step_count(shape);
    struct walk walk = {.shape = shape, .count = count, .send_buffers = send_buffers};
    *rounds = (struct pipeline_rounds){0};
    int status = open_walk(&walk);
    TRY(status);
    rounds->posts = calloc(2 * (size_t)count, sizeof *rounds->posts); /* a step receives and sends one at most */
    if (rounds->posts)
        run(&walk, stage, rounds);
    else
        status = status_no_memory();
    if (!status)
        qsort(rounds->posts, (size_t)rounds->count, sizeof *rounds->posts, by_round);
    close_walk(&walk);
    return status;
}

void pipeline_rounds_free(struct pipeline_rounds *rounds) {
    free(rounds->posts);
    *rounds = (struct pipeline_rounds){0};
}
