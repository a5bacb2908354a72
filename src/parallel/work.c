/* The list of a rank's work. */
#include "parallel/work.h"

static bool is_alike(const struct work_item *a, const struct work_item *b) {
    return a->phase == b->phase && a->part == b->part && a->chunk == b->chunk && a->group == b->group &&
           a->ranks == b->ranks && a->scratch == b->scratch && !a->count == !b->count &&
           !memcmp(&a->work, &b->work, sizeof a->work) && a->op == b->op && a->message == b->message;
}

/* Joins the last item with an equal one. It does so when the next is added, since work_also_reads may change the last.
 */
static void join_last(struct work_list *list) {
    const struct work_item *last = &list->items[list->count - 1];
    for (int i = list->count - 2; i >= 0; i--)
        if (is_alike(&list->items[i], last)) {
            list->items[i].count += last->count;
            list->count--;
            return;
        }
}

int work_note(struct work_list *list, const struct work_item *item) {
    if (list->count)
        join_last(list);
    if (list->count == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 64;
        struct work_item *items = realloc(list->items, (size_t)capacity * sizeof *items);
        TRY(status_allocated(items));
        list->items = items;
        list->capacity = capacity;
    }
    struct work_item *last = &list->items[list->count++];
    *last = *item;
    last->part = list->part;
    last->chunk = list->chunk;
    last->count = list->unsure ? 0 : item->count;
    return STATUS_OK;
}

void work_also_reads(struct work_list *list, int64_t elements, enum dtype type) {
    struct op_work *work = &list->items[list->count - 1].work;
    double bytes = (double)elements * (double)dtype_bytes(type);
    work->weights += (double)elements;
    work->lasting += bytes;
    work->bytes += bytes;
}

void work_free(struct work_list *list) {
    free(list->items);
    *list = (struct work_list){0};
}

size_t work_scratch(const struct work_list *list) {
    size_t most = 0;
    for (int i = 0; i < list->count; i++)
        most = list->items[i].scratch > most ? list->items[i].scratch : most;
    return most;
}

struct work_sum work_sum(const struct work_list *list, enum work_part part) {
    struct work_sum sum = {0};
    for (int i = 0; i < list->count; i++) {
        const struct work_item *item = &list->items[i];
        double count = item->part == part && item->group == RANK_ALONE ? (double)item->count : 0;
        sum.flops += count * item->work.flops;
        sum.bytes += count * item->work.bytes;
        sum.lasting += count * item->work.lasting;
    }
    return sum;
}

double work_model_flops(const struct work_list *list, enum work_part part) {
    double flops = 0;
    for (int i = 0; i < list->count; i++) {
        const struct op_work *work = &list->items[i].work;
        if (list->items[i].part == part)
            flops += (double)list->items[i].count *
                     (work->weights > 0 ? 2 * work->weights * (double)work->shape[0] : work->flops);
    }
    return flops;
}
