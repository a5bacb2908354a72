/* Recorded steps: any row of one may have any adapters that its level knows. Each row has its own segment in every
 * list, without a table where the list's method does not change the row. So the operations are the same in each step,
 * and only arrays of the device differ.
 *
 * Operations that change no row still cost a launch, and the products of scaled inputs read the base's weights.
 * Therefore there are levels: most steps have one LoRA or IA3 a row. */
#include "bank-internal.h"

static const struct bank_level levels[] = {
    {.rounds = 0},
    {.rounds = 1},
    {.rounds = 1, .has_halves = true, .has_head = true},
    {.rounds = 2, .has_halves = true, .has_head = true},
    {.rounds = PEFT_SLOT_IMAGES, .has_halves = true, .has_head = true},
    {.rounds = PEFT_SLOT_IMAGES, .has_halves = true, .has_head = true, .has_inputs = true},
};
static const struct bank_level each = {.rounds = 1, .has_halves = true, .has_head = true, .has_inputs = true};
enum { LEVELS = sizeof levels / sizeof *levels - 1 };
_Static_assert((int)LEVELS <= (int)HOOK_LEVELS_MOST, "a record of the model for each level");

/* That many rows with the widest inner product of a recorded step fill the scratch. */
enum { SCRATCH_ROWS = 512, COLUMNS_MULTIPLE = 64 };

static bool changes_halves(const struct peft_method *method) {
    return method->sites() & (peft_site_bit(ATTACH_AFTER_ATTENTION, HOOK_BEFORE_ACTIVATION) |
                              peft_site_bit(ATTACH_AFTER_MLP, HOOK_BEFORE_ACTIVATION));
}

static const struct bank_level *level_at(int level) {
    return level == HOOK_LEVEL_EACH ? &each : &levels[level];
}

/* True when a recorded step of the level has the operations of a method in a round. */
static bool has_method(const struct bank_level *level, int round, int type) {
    const struct peft_method *method = peft_method(type);
    return method->forward && round < level->rounds && (level->has_halves || !changes_halves(method));
}

/* Ratios scale outputs only in the first round: their adapter is the only one of its slot at these sites. */
static bool has_list(const struct peft_bank *bank, int level, int round, int type) {
    const struct bank_list *list = &bank->lists[round][type];
    return has_method(level_at(level), round, type) && list->columns <= bank->columns_by_row &&
           (level_at(level)->has_inputs || !list->has_inputs) &&
           (level_at(level)->has_head || !list->sites[bank->layers]) &&
           (round == 0 || !(list->has_ratios || list->has_inputs));
}

static int level_of(const void *self) {
    const struct peft_bank *bank = self;
    int level = 0;
    for (int round = 0; round < PEFT_SLOT_IMAGES && bank->is_active; round++)
        for (int type = 0; type < PEFT_TYPE_COUNT; type++)
            while (bank->lists[round][type].count && level <= LEVELS && !has_list(bank, level, round, type))
                level++;
    return level;
}

/* ---- the arrays ---- */

/* Adds the numbers of the rows whose image has what `reads` asks for, and -1 for the others. */
static const int32_t *add_index(struct upload *upload, const struct bank_list *list, int64_t rows,
                                bool (*reads)(const struct peft_image *image)) {
    int32_t *index = upload_take(upload, (size_t)rows * sizeof *index);
    for (int64_t i = 0; i < rows; i++)
        index[i] = -1;
    for (int64_t i = 0; i < list->count; i++)
        for (int64_t row = list->rows[i].first_row; row < list->rows[i].first_row + list->rows[i].rows; row++)
            index[row] = reads(list->rows[i].image) ? (int32_t)row : -1;
    return upload_place(upload, index);
}

static bool reads_half(const struct peft_image *image) {
    return image->reads_half;
}

static bool reads_stream(const struct peft_image *image) {
    return image->reads_stream;
}

static bool scales_input(const struct peft_image *image) {
    return image->scaled_input != NULL;
}

static void add_segments(struct upload *upload, struct bank_list *list, int64_t rows) {
    struct group_segment *segments = upload_take(upload, (size_t)rows * sizeof *segments);
    for (int64_t i = 0; i < rows; i++)
        segments[i] = (struct group_segment){.first_row = i, .rows = 1};
    for (int64_t i = 0; i < list->count; i++)
        for (int64_t k = 0; k < list->rows[i].rows; k++)
            segments[list->rows[i].first_row + k].entries = list->rows[i].image->device_entries;
    list->segments = list->listed = list->wanted = upload_place(upload, segments);
}

static void add_by_row(void *self, struct upload *upload, int level, int64_t rows) {
    struct peft_bank *bank = self;
    for (int round = 0; round < PEFT_SLOT_IMAGES; round++)
        for (int type = 0; type < PEFT_TYPE_COUNT; type++) {
            struct bank_list *list = &bank->lists[round][type];
            if (!has_method(level_at(level), round, type))
                continue;
            add_segments(upload, list, rows);
            if (level_at(level)->has_inputs && round == 0)
                list->row_index = add_index(upload, list, rows, scales_input);
            if (!changes_halves(peft_method(type)))
                continue;
            list->half_index = add_index(upload, list, rows, reads_half);
            list->stream_index = add_index(upload, list, rows, reads_stream);
        }
}

static void act_by_row(void *self, int level, int64_t rows) {
    struct peft_bank *bank = self;
    bank->is_active = bank->is_by_row = level > 0;
    for (int round = 0; round < PEFT_SLOT_IMAGES; round++)
        for (int type = 0; type < PEFT_TYPE_COUNT; type++) {
            struct bank_list *list = &bank->lists[round][type];
            bool is_there = has_method(level_at(level), round, type);
            list->count = list->total = is_there ? rows : 0;
            list->columns = bank->columns_by_row;
            list->has_norm = true;
            list->has_ratios = round == 0;
            list->has_inputs = round == 0 && level_at(level)->has_inputs;
            for (int64_t layer = 0; layer < bank->layers; layer++)
                list->sites[layer] = is_there ? peft_method(type)->sites() : 0;
            list->sites[bank->layers] = is_there && level_at(level)->has_head ? peft_method(type)->sites() : 0;
        }
}

/* ---- opening ---- */

/* A recorded step has no more rows than sequences. */
size_t bank_recorded_bytes(const struct peft_bank *bank) {
    int64_t rows =
        bank->model.infer.max_sequences < bank->model.max_rows ? bank->model.infer.max_sequences : bank->model.max_rows;
    struct arena arena = ARENA_PLAN;
    for (int i = 0; i < BANK_LISTS; i++) {
        arena_take(&arena, (size_t)rows * sizeof(struct group_segment));
        for (int index = 0; index < 3; index++)
            arena_take(&arena, (size_t)rows * sizeof(int32_t));
    }
    return arena.used;
}

void bank_set_levels(struct peft_bank *bank) {
    bank->columns_by_row =
        (int64_t)(bank->scratch_bytes / sizeof(float)) / SCRATCH_ROWS / COLUMNS_MULTIPLE * COLUMNS_MULTIPLE;
    bank->hooks.upload.levels = LEVELS;
    bank->hooks.upload.level = level_of;
    bank->hooks.upload.add_by_row = add_by_row;
    bank->hooks.upload.act_by_row = act_by_row;
}
