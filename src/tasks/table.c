/* The tasks. A new one is a row here and a function that builds its texts. */
#include "tasks-internal.h"

const char *const task_metric_names[TASK_METRICS] = {
    "acc", "acc_norm", "perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte", "exact_match"};

enum {
    ACC = 1 << TASK_ACC,
    BOTH_ACC = ACC | 1 << TASK_ACC_NORM,
    ENDING = ACC | 1 << TASK_PERPLEXITY,
    ROLLING = 1 << TASK_WORD_PERPLEXITY | 1 << TASK_BYTE_PERPLEXITY | 1 << TASK_BITS_PER_BYTE,
};

const struct task task_list[] = {
    {"hellaswag", TASK_CHOICE, BOTH_ACC, build_hellaswag},
    {"lambada_openai", TASK_ENDING, ENDING, build_lambada},
    {"lambada_standard", TASK_ENDING, ENDING, build_lambada},
    {"wikitext", TASK_ROLLING, ROLLING, build_wikitext},
    {"piqa", TASK_CHOICE, BOTH_ACC, build_piqa},
    {"winogrande", TASK_CHOICE, ACC, build_winogrande},
    {"boolq", TASK_CHOICE, ACC, build_boolq},
    {"arc_easy", TASK_CHOICE, BOTH_ACC, build_arc},
    {"arc_challenge", TASK_CHOICE, BOTH_ACC, build_arc},
    {"race", TASK_CHOICE, ACC, build_race},
    {"choice", TASK_CHOICE, BOTH_ACC, build_choice},
    {"text", TASK_ROLLING, ROLLING, build_text},
    {"generate", TASK_GENERATE, 1 << TASK_EXACT_MATCH, build_generate},
};
const int task_count = sizeof task_list / sizeof *task_list;

const struct task *task_find(const char *name, size_t length) {
    for (int i = 0; i < task_count; i++)
        if (strlen(task_list[i].name) == length && !memcmp(task_list[i].name, name, length))
            return &task_list[i];
    return NULL;
}
