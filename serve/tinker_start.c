/* Opening Tinker's API in a server. The options of a run are those that `cambium finetune` makes of words; its data
 * come later, so a single row stands for them. */
#include "tinker-internal.h"

#include "jobs-internal.h"

#include "base/base.h"

#define ROWS_FILE ".rows.jsonl"
static const char row[] = "{\"prompt\":\"a\",\"completion\":\"b\"}\n";
enum { WORD_BYTES = PATH_MAX + 64, WORDS_MOST = 24 };

struct described {
    struct tinker_described shown; /* the first */
    struct tuning_run_options options;
    const struct jobs_maker *maker;
    struct jobs_run *made;
};

static void free_described(struct tinker_described *shown) {
    struct described *described = (struct described *)shown;
    if (!described)
        return;
    described->maker->free(described->made);
    free(described);
}

/* The modules that train, as PEFT's regular expression for their whole names. */
static void add_targets(const struct tinker_shape *shape, struct strbuf *out) {
    const char *const parts[] = {shape->trains_attention ? ".*attn\\.[^.]*(proj|attn)" : NULL,
                                 shape->trains_mlp ? ".*mlp\\.[^.]*(proj|fc)" : NULL,
                                 shape->trains_head ? "[^.]*head" : NULL};
    const char *before = "";
    strbuf_add_text(out, "--peft.target_modules=");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i]) {
            strbuf_format(out, "%s%s", before, parts[i]);
            before = "|";
        }
}

/* Makes the words of finetune, each in its own buffer. Returns their number. */
static int make_words(const struct server *server, const struct tinker_shape *shape, int64_t longest,
                      struct strbuf words[WORDS_MOST]) {
    const struct serve_options *options = server->options;
    const char *root = options->tuning_root;
    int count = 0;
    for (size_t i = 0; i < options->tuning_word_count; i++)
        strbuf_add_text(&words[count++], options->tuning_words[i]);
    strbuf_add_text(&words[count++], "--peft");
    strbuf_add_text(&words[count++], peft_method_names[0]);
    strbuf_format(&words[count++], "--peft.r=%lld", (long long)shape->rank);
    strbuf_format(&words[count++], "--peft.lora_alpha=%d", TINKER_ALPHA);
    add_targets(shape, &words[count++]);
    strbuf_format(&words[count++], "--train.seed=%u", (unsigned)shape->seed);
    strbuf_format(&words[count++], "--train.global_batch_size=1");
    strbuf_format(&words[count++], "--data.seq_length=%lld", (long long)longest);
    strbuf_format(&words[count++], "--optim.clip_grad=0");
    strbuf_add_text(&words[count++], "--data");
    strbuf_format(&words[count++], "%s/" ROWS_FILE, root);
    strbuf_format(&words[count++], "--output=%s/.none", root);
    return count;
}

static int describe(const struct server *server, const struct tinker_shape *shape, int64_t longest,
                    struct tinker_described **made) {
    struct strbuf words[WORDS_MOST] = {0};
    char *texts[WORDS_MOST];
    struct described *described = calloc(1, sizeof *described);
    TRY(status_allocated(described));
    int count = make_words(server, shape, longest, words), status = STATUS_OK;
    for (int i = 0; i < count; i++) {
        status = words[i].failed ? status_no_memory() : status;
        texts[i] = words[i].data;
    }
    described->shown = (struct tinker_described){.options = &described->options, .free = free_described};
    described->maker = server->options->jobs_maker;
    THEN(status, described->maker->make(texts, count, &described->made));
    for (int i = 0; i < count; i++)
        strbuf_free(&words[i]);
    if (status) {
        free(described);
        return status;
    }
    described->options = (struct tuning_run_options){.config = &described->made->run->config,
                                                     .adapters = described->made->adapters,
                                                     .adapter_count = described->made->adapter_count,
                                                     .texts = described->made->texts,
                                                     .text_count = described->made->text_count,
                                                     .loss = loss_of_tokens("cross_entropy")};
    *made = &described->shown;
    return STATUS_OK;
}

int tinker_start(struct server *server, const char *tokenizer_id) {
    char root[PATH_MAX], path[PATH_MAX];
    TRY(file_join(root, sizeof root, server->options->tuning_root, "runs"));
    TRY(file_join(path, sizeof path, server->options->tuning_root, ROWS_FILE));
    TRY(file_make_directories(root));
    TRY(file_write_atomic(path, row, sizeof row - 1));
    return tinker_open(&(struct tinker_options){.server = server,
                                                .root = root,
                                                .tokenizer_id = tokenizer_id,
                                                .worker = server->jobs->worker,
                                                .describe = describe,
                                                .hold_seconds = 20,
                                                .silence_seconds = 120,
                                                .keep_seconds = 300},
                       &server->tinker);
}
