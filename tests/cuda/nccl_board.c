#include "cuda/nccl_board.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A rank's part of the memory; pages that nobody touches cost nothing. */
#define PART_BYTES  (UINT64_C(256) << 20)
#define BOARD_BYTES (sizeof(struct board) + BOARD_RANKS * PART_BYTES)

enum { REPORT_STATUS = 90 };

struct where {
    int process, file;
};

void board_end(const char *format, ...) {
    char text[BOARD_RANKS * 2 * BOARD_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "nccl stand-in: %s\n", text);
    fflush(NULL);
    _exit(REPORT_STATUS);
}

/* ---- memory ---- */

static struct board *map(int file) {
    void *memory = mmap(NULL, BOARD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

int board_make(char id[128]) {
    struct where where = {.process = getpid(), .file = memfd_create("nccl stand-in", MFD_CLOEXEC)};
    if (where.file < 0 || ftruncate(where.file, (off_t)BOARD_BYTES)) {
        return -1;
    }
    struct board *board = map(where.file);
    pthread_mutexattr_t attributes;
    if (!board) {
        return -1;
    }
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&board->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    board->progress = 1;
    board->group_count = 1;
    board_close(board);
    memset(id, 0, 128);
    memcpy(id, &where, sizeof where);
    return 0;
}

struct board *board_open(const char id[128]) {
    struct where where;
    char path[64];
    memcpy(&where, id, sizeof where);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", where.process, where.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    struct board *board = file < 0 ? NULL : map(file);
    if (file >= 0) {
        close(file);
    }
    return board;
}

void board_close(struct board *board) {
    munmap(board, BOARD_BYTES);
}

void board_lock(struct board *board) {
    if (pthread_mutex_lock(&board->lock) == EOWNERDEAD) {
        pthread_mutex_consistent(&board->lock); /* a process was killed here: its rank just never comes */
    }
}

void board_unlock(struct board *board) {
    pthread_mutex_unlock(&board->lock);
}

/* ---- posts ---- */

struct board_post *board_post(struct board *board, int rank, uint64_t bytes) {
    struct board_rank *own = &board->ranks[rank];
    struct board_post *free_post = NULL;
    bool has_live = false;
    for (int i = 0; i < BOARD_POSTS; i++) {
        has_live = has_live || own->posts[i].is_live;
        free_post = own->posts[i].is_live ? free_post : &own->posts[i];
    }
    own->head = has_live ? own->head : 0;
    if (!free_post || own->head + bytes > PART_BYTES) {
        return NULL;
    }
    *free_post = (struct board_post){.is_live = true, .at = own->head, .bytes = bytes};
    own->head += (bytes + 63) / 64 * 64;
    return free_post;
}

char *board_data(struct board *board, int rank, const struct board_post *post) {
    return (char *)(board + 1) + PART_BYTES * (uint64_t)rank + post->at;
}

struct board_post *board_find(struct board *board, int group, int rank, uint64_t number, int peer) {
    struct board_rank *other = &board->ranks[rank];
    for (int i = 0; i < BOARD_POSTS; i++) {
        struct board_post *post = &other->posts[i];
        bool is_message = post->call.kind == BOARD_SEND;
        if (post->is_live && post->group == group && post->number == number && is_message == (peer >= 0) &&
            (!is_message || post->call.peer == peer)) {
            return post;
        }
    }
    return NULL;
}

/* ---- groups ---- */

struct board_split *board_split(struct board *board, int group, uint64_t number) {
    for (int i = 0; i < board->split_count; i++) {
        if (board->splits[i].group == group && board->splits[i].number == number) {
            return &board->splits[i];
        }
    }
    if (board->split_count == BOARD_SPLITS) {
        board_end("there are more splits than it has room for");
    }
    struct board_split *split = &board->splits[board->split_count++];
    *split = (struct board_split){.group = group, .number = number};
    return split;
}

/* The rank of a color that comes first by key, then by rank, among those that are in no group yet; -1: none. */
static int next_of_color(const struct board_split *split, int size, int color) {
    int first = -1;
    for (int r = 0; r < size; r++) {
        bool is_left = split->color[r] == color && split->made[r] < 0;
        first = is_left && (first < 0 || split->key[r] < split->key[first]) ? r : first;
    }
    return first;
}

void board_make_groups(struct board *board, struct board_split *split) {
    const struct board_group *old = &board->groups[split->group];
    for (int r = 0; r < old->size; r++) {
        split->made[r] = -1;
    }
    for (int r = 0; r < old->size; r++) {
        if (split->color[r] < 0 || split->made[r] >= 0) {
            continue;
        }
        if (board->group_count == BOARD_GROUPS) {
            board_end("there are more communicators than it has room for");
        }
        int number = board->group_count++;
        struct board_group *group = &board->groups[number];
        group->size = 0;
        for (int member; (member = next_of_color(split, old->size, split->color[r])) >= 0;) {
            group->rank[group->size++] = old->rank[member];
            split->made[member] = number;
        }
    }
}

/* ---- reports ---- */

uint64_t board_type_bytes(uint32_t type) {
    static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type < sizeof bytes ? bytes[type] : 0;
}

void board_describe(const struct board_call *call, char text[BOARD_TEXT]) {
    static const char *const kinds[] = {"all-reduce", "reduce-scatter", "all-gather", "broadcast", "send", "receive"};
    static const char *const types[] = {"int8",    "uint8",   "int32",   "uint32",   "int64", "uint64",
                                        "float16", "float32", "float64", "bfloat16", "e4m3",  "e5m2"};
    char more[48] = "";
    if (call->kind <= BOARD_REDUCE_SCATTER) {
        snprintf(more, sizeof more, call->op == 0 ? " (sum)" : " (operation %u)", call->op);
    } else if (call->kind >= BOARD_BROADCAST) {
        snprintf(more, sizeof more, call->kind == BOARD_SEND ? " to %d" : " from %d", call->peer);
    }
    snprintf(text, BOARD_TEXT, "%s of %llu %s%s", kinds[call->kind], (unsigned long long)call->count,
             call->type < sizeof types / sizeof *types ? types[call->type] : "unknown", more);
}

/* Ranks that stand and wait for each other. A rank proceeds as soon as one of its streams does, and a stream as soon as
 * none of those that it waits for is missing. */
static uint32_t find_circle(const struct board *board) {
    uint32_t circle = 0, before;
    for (int r = 0; r < board->groups[0].size; r++) {
        const struct board_rank *rank = &board->ranks[r];
        circle |= rank->stands && rank->looked_at == board->progress ? UINT32_C(1) << r : 0;
    }
    do {
        before = circle;
        for (int r = 0; r < board->groups[0].size; r++) {
            for (int i = 0; i < board->ranks[r].wait_count; i++) {
                circle &= board->ranks[r].waits[i].ranks & before ? ~UINT32_C(0) : ~(UINT32_C(1) << r);
            }
        }
    } while (circle != before);
    return circle;
}

void board_stand(struct board *board, int rank) {
    struct board_rank *own = &board->ranks[rank];
    char report[BOARD_RANKS * BOARD_TEXT * 2];
    size_t used = 0;
    own->stands = own->looked_at == board->progress && own->wait_count > 0;
    own->looked_at = board->progress;
    uint32_t circle = find_circle(board);
    for (int r = 0; r < board->groups[0].size && circle; r++) {
        if (circle >> r & 1) {
            used += (size_t)snprintf(report + used, sizeof report - used, "%s rank %d stands at %s", used ? ";" : "", r,
                                     board->ranks[r].waits[0].call);
        }
    }
    if (circle) {
        board_end("ranks wait for each other:%s", report);
    }
}
