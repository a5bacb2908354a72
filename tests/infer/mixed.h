/* Random requests to a real engine, and all that came back of each: texts of every kind of adapter, alone and stacked,
 * of many lengths, with every sampling option. */
#pragma once

#include "infer/adapters.h"
#include "infer/slots.h"
#include "stacks.h"

enum { MIXED_PROMPT = 20, MIXED_TOKENS = 10, MIXED_CHOICES = 2, MIXED_TOP = 3, MIXED_NAMES = 15 };

static const char *const mixed_names[MIXED_NAMES] = {"lora",
                                                     "lora_all_linear",
                                                     "lora_patterns",
                                                     "lora_head",
                                                     "rslora",
                                                     "dora",
                                                     "dora_all_linear",
                                                     "ia3",
                                                     "prompt",
                                                     "ia3_inputs",
                                                     "ptuning_mlp",
                                                     "adapter_par_bn",
                                                     "adapter_seq_bn",
                                                     "adapter_double_seq_bn",
                                                     "prefix"};

/* On the backend late each operation is a system call or two: fewer requests, and one rank alone. */
static inline bool mixed_is_slow(void) {
    return test_device() && !strcmp(test_device(), "late");
}

static inline void mixed_directory(const char *name, char path[512]) {
    snprintf(path, 512, TEST_DATA "/peft/%s/%s", stacks_root, name);
}

struct written {
    int32_t token, top[MIXED_TOP];
    float logprob, top_logprob[MIXED_TOP];
};

/* Everything that must not depend on what else runs. */
struct answer {
    int64_t prompt_count, counts[MIXED_CHOICES];
    struct written prompt[MIXED_PROMPT], text[MIXED_CHOICES][MIXED_TOKENS];
    enum scheduler_end ends[MIXED_CHOICES];
};

struct mixed {
    int number;
    int name_count;
    const char *names[PEFT_SLOT_IMAGES];
    int32_t prompt[MIXED_PROMPT], stop_ids[2], end_ids[1];
    struct logit_bias bias[3];
    struct scheduler_request request;
    struct adapters *adapters;
    uint64_t generations[PEFT_SLOT_IMAGES];
    int slot;
    uint64_t id;
    int64_t cached;
    struct answer answer;
    bool is_done;
};

static inline uint32_t mixed_word(int number, uint32_t which) {
    return philox(7, (uint32_t)number, which, 0, (uint32_t)RNG_TEST << 24).word[0];
}

static inline struct written written_of(const struct scheduler_token *token) {
    struct written written;
    memset(&written, 0, sizeof written);
    written.token = token->token;
    written.logprob = token->logprob;
    for (int i = 0; i < token->top_count; i++) {
        written.top[i] = token->top_token[i];
        written.top_logprob[i] = token->top_logprob[i];
    }
    return written;
}

static inline void mixed_start(void *context, int64_t cached) {
    struct mixed *mixed = context;
    mixed->cached = cached;
}

static inline bool mixed_token(void *context, int64_t choice, const struct scheduler_token *token) {
    struct mixed *mixed = context;
    mixed->answer.text[choice][mixed->answer.counts[choice]++] = written_of(token);
    return false;
}

static inline void mixed_prompt(void *context, int64_t index, const struct scheduler_token *token) {
    struct mixed *mixed = context;
    mixed->answer.prompt[index] = written_of(token);
    mixed->answer.prompt_count++;
}

static inline void mixed_end(void *context, int64_t choice, enum scheduler_end reason) {
    struct mixed *mixed = context;
    mixed->answer.ends[choice] = reason;
}

static inline void mixed_done(void *context) {
    struct mixed *mixed = context;
    mixed->is_done = true;
    test_ok(adapters_give(mixed->adapters, mixed->slot));
}

static inline void mixed_sampling(struct mixed *mixed) {
    int n = mixed->number;
    struct scheduler_request *r = &mixed->request;
    r->sampling = (struct sampling){.temperature = mixed_word(n, 20) % 4 ? 0.3 + mixed_word(n, 21) % 12 / 10.0 : 0,
                                    .top_p = mixed_word(n, 22) % 2 ? 1 : 0.5 + mixed_word(n, 23) % 5 / 10.0,
                                    .min_p = mixed_word(n, 24) % 3 ? 0 : 0.05,
                                    .top_k = mixed_word(n, 25) % 2 ? 0 : 1 + mixed_word(n, 26) % 20,
                                    .repetition_penalty = mixed_word(n, 27) % 2 ? 1 : 1.3,
                                    .presence_penalty = mixed_word(n, 28) % 3 ? 0 : 0.7,
                                    .frequency_penalty = mixed_word(n, 29) % 3 ? 0 : 0.4,
                                    .seed = mixed_word(n, 30)};
    for (int i = 0; i < 3; i++)
        mixed->bias[i] = (struct logit_bias){(int32_t)(mixed_word(n, 31 + (uint32_t)i) % V), i == 2 ? -INFINITY : 2.5f};
    r->bias = mixed->bias;
    r->bias_count = mixed_word(n, 34) % 3 ? 0 : 3;
    mixed->end_ids[0] = (int32_t)(mixed_word(n, 35) % V);
    mixed->stop_ids[0] = (int32_t)(mixed_word(n, 36) % V);
    mixed->stop_ids[1] = (int32_t)(mixed_word(n, 37) % V);
    r->end_ids = mixed->end_ids;
    r->stop_ids = mixed->stop_ids;
    r->end_count = mixed_word(n, 38) % 2;
    r->stop_count = mixed_word(n, 39) % 3;
    r->min_tokens = mixed_word(n, 40) % 4;
    r->ignore_eos = mixed_word(n, 41) % 2;
}

/* Request `number` for texts of the base, or of up to three adapters. */
static inline void mixed_make(struct mixed *mixed, int number) {
    *mixed = (struct mixed){.number = number};
    mixed->name_count = mixed_word(number, 0) % 6 == 0
                            ? 0
                            : 1 + (int)(mixed_word(number, 1) % 4 == 0) + (int)(mixed_word(number, 2) % 8 == 0);
    for (int i = 0; i < mixed->name_count; i++)
        mixed->names[i] = mixed_names[mixed_word(number, 3 + (uint32_t)i) % MIXED_NAMES];
    mixed_sampling(mixed);
    struct scheduler_request *r = &mixed->request;
    r->prompt = mixed->prompt;
    r->prompt_length = 1 + mixed_word(number, 10) % 8 + (mixed_word(number, 11) % 2 ? 0 : 12);
    bool is_shared = mixed_word(number, 12) % 3 == 0; /* with others: found in the cache */
    for (int64_t i = 0; i < r->prompt_length; i++)
        mixed->prompt[i] = token_at(is_shared ? 1 : number % 40, i);
    r->max_tokens = mixed_word(number, 13) % 8;
    r->choices = 1 + mixed_word(number, 14) % MIXED_CHOICES;
    r->top_count = (int32_t)(mixed_word(number, 15) % 4);
    r->wants_prompt_logprobs = mixed_word(number, 16) % 4 == 0;
    r->prompt_top_count = (int32_t)(mixed_word(number, 17) % 4);
    r->priority = (int32_t)(mixed_word(number, 18) % 3);
    r->client = mixed_word(number, 19) % 3;
    r->calls = (struct scheduler_calls){mixed_start, mixed_token, mixed_prompt, mixed_end, mixed_done};
}

/* Its slot: false where its adapters cannot be together, or leave it no room, or have none now. */
static inline bool mixed_take(struct mixed *mixed, struct engine *engine, struct adapters *adapters) {
    mixed->adapters = adapters;
    int status = adapters_take(adapters, mixed->names, mixed->name_count, &mixed->slot, mixed->generations);
    if (status && status != STATUS_USAGE && status != STATUS_MEMORY)
        fail_msg("request %d: %s", mixed->number, status_text());
    if (status)
        return false;
    struct scheduler_request *r = &mixed->request;
    r->slot = mixed->slot;
    r->virtual_tokens = engine_slot_virtual_tokens(engine, mixed->slot);
    r->virtual_tokens_predict = engine_slot_predicts_first(engine, mixed->slot);
    int64_t room = POSITIONS + 1 - r->virtual_tokens - r->prompt_length;
    if (room < 1) {
        test_ok(adapters_give(adapters, mixed->slot));
        return false;
    }
    r->max_tokens = r->max_tokens < room ? r->max_tokens : room;
    return true;
}

static inline void mixed_submit(struct mixed *mixed, struct scheduler *scheduler) {
    uint64_t number;
    enum scheduler_refusal refusal;
    mixed->request.context = mixed;
    test_ok(scheduler_submit(scheduler, &mixed->request, &number, &refusal));
    mixed->id = number;
}

static inline void mixed_run(struct scheduler *scheduler) {
    int status = 1;
    while (status > 0)
        status = scheduler_step(scheduler);
    test_ok(status);
}

static inline void mixed_add_all(struct adapters *adapters) {
    for (int i = 0; i < MIXED_NAMES; i++) {
        char path[512];
        mixed_directory(mixed_names[i], path);
        test_ok(adapters_add(adapters, mixed_names[i], path));
    }
}

static inline void mixed_compare(const struct mixed *ours, const struct mixed *expected, const char *how) {
    const struct answer *a = &ours->answer, *b = &expected->answer;
    if (memcmp(a, b, sizeof *a) == 0)
        return;
    for (int c = 0; c < MIXED_CHOICES; c++)
        for (int64_t i = 0; i < MIXED_TOKENS; i++)
            if (memcmp(&a->text[c][i], &b->text[c][i], sizeof a->text[c][i]))
                fail_msg("%s: request %d, choice %d, token %lld: %d (%.9g), alone %d (%.9g)", how, ours->number, c,
                         (long long)i, a->text[c][i].token, (double)a->text[c][i].logprob, b->text[c][i].token,
                         (double)b->text[c][i].logprob);
    for (int64_t i = 0; i < MIXED_PROMPT; i++)
        if (memcmp(&a->prompt[i], &b->prompt[i], sizeof a->prompt[i]))
            fail_msg("%s: request %d, prompt token %lld: %.9g, alone %.9g", how, ours->number, (long long)i,
                     (double)a->prompt[i].logprob, (double)b->prompt[i].logprob);
    fail_msg("%s: request %d: other counts or ends than alone", how, ours->number);
}
