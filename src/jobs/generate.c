/* Opens the model, makes the prompt's ids on the first rank, and generates. */
#include "generate.h"

#include "infer/slots.h"
#include "pretrained/pretrained.h"

enum { PREFILL_ROWS = 512, MESSAGES_BYTES = 1 << 26 };

/* A rank. */
struct run {
    const struct generate_job *job;
    struct comm *world;
    bool is_first;
    struct job_memory memory;
    struct engine *engine;
    struct tokenizer *tokenizer;
    struct chat_template *template; /* renders messages; NULL: none */
    struct generate_prompt prompt;  /* first rank only */
};

/* ---- the prompt ---- */

/* Parses ids: "1 2 3", "1,2,3" and 1 2 3 are equal. */
static int parse_ids(const struct config_list *words, struct token_buffer *ids) {
    static const char separators[] = ", \t\n";
    for (size_t i = 0; i < words->count; i++) {
        const char *at = words->items[i];
        while (*(at += strspn(at, separators))) {
            size_t length = strcspn(at, separators);
            int64_t id = 0;
            for (size_t d = 0; d < length && id >= 0; d++)
                id = at[d] >= '0' && at[d] <= '9' && id <= INT32_MAX ? id * 10 + (at[d] - '0') : -1;
            if (id < 0 || id > INT32_MAX)
                return status_fail(STATUS_USAGE, "--prompt-tokens: '%.*s' is not a token id",
                                   length < 40 ? (int)length : 40, at);
            TRY(token_buffer_add(ids, (int32_t)id));
            at += length;
        }
    }
    return ids->count ? STATUS_OK : status_fail(STATUS_USAGE, "--prompt-tokens: at least one token id was expected");
}

static int encode_prompt(struct run *run) {
    const struct strbuf *text = &run->prompt.text;
    struct tokenizer_encoder *encoder;
    int status = tokenizer_encoder_new(run->tokenizer, &encoder);
    THEN(status, prompt_encode_text(run->tokenizer, encoder, strbuf_text(text), text->length,
                                    special_tokens_flag(run->job->special_tokens), &run->prompt.ids));
    tokenizer_encoder_free(encoder);
    return status;
}

/* ---- messages ---- */

/* Renders messages as a prompt for an answer. */
static int render(struct run *run, const char *tokenizer, struct chat_request *request) {
    struct tokenizer_encoder *encoder = NULL;
    request->tokenizer = run->tokenizer;
    const struct model_text_ends ends = engine_text_ends(run->engine, run->tokenizer);
    const struct prompt_room room = prompt_room_of(run->tokenizer, engine_max_positions(run->engine));
    request->eos = model_first_eos(&ends);
    int status = job_template_of(run->job->model, run->job->chat_template, tokenizer, &run->template);
    THEN(status, tokenizer_encoder_new(run->tokenizer, &encoder));
    THEN(status, prompt_encode_messages(request, encoder, run->template, &room, &run->prompt.text, &run->prompt.ids));
    tokenizer_encoder_free(encoder);
    return status;
}

static int read_messages(struct run *run, const char *tokenizer) {
    const char *file = run->job->messages;
    bool is_input = !strcmp(file, "-");
    struct strbuf text = STRBUF_INIT;
    struct chat_request request = {.seconds = run->job->template_timeout};
    json_t *root = NULL;
    int status = is_input ? job_read_input(&text) : file_read(file, MESSAGES_BYTES, &text);
    if (status && !is_input && !file_exists(file))
        return status_fail(
            STATUS_NOT_FOUND,
            "there is no file '%.100s': --messages takes a file; a text comes through a pipe (echo TEXT | "
            "cambium generate ... --messages -)",
            file);
    if (!status)
        status =
            chat_read_request(strbuf_text(&text), text.length, is_input ? "standard input" : file, &root, &request);
    THEN(status, render(run, tokenizer, &request));
    json_decref(root);
    strbuf_free(&text);
    return status;
}

/* Reads the prompt on the first rank, and checks that the model can continue it. */
static int read_prompt(struct run *run, const char *tokenizer) {
    const struct generate_job *job = run->job;
    int status = STATUS_OK;
    if (job->text && !strcmp(job->text, "-"))
        status = job_read_input(&run->prompt.text);
    else if (job->text)
        strbuf_add_text(&run->prompt.text, job->text);
    THEN(status, job->messages ? read_messages(run, tokenizer)
                 : job->text   ? encode_prompt(run)
                               : parse_ids(&job->ids, &run->prompt.ids));
    const struct generate_options options = {.prompt = run->prompt.ids.ids,
                                             .prompt_length = (int64_t)run->prompt.ids.count,
                                             .slot = engine_opened_slot(run->engine)};
    return status ? status : generate_check(run->engine, &options);
}

/* ---- the completions ---- */

static int write_texts(struct run *run) {
    const struct generate_job *job = run->job;
    const struct model_text_ends text = engine_text_ends(run->engine, run->tokenizer);
    struct ask_ends ends = {0};
    struct generated *texts = calloc((size_t)job->ask->choices, sizeof *texts);
    TRY(status_allocated(texts));
    const struct generate_options options = {.prompt = run->prompt.ids.ids,
                                             .prompt_length = (int64_t)run->prompt.ids.count,
                                             .slot = engine_opened_slot(run->engine),
                                             .ask = job->ask,
                                             .ends = &ends,
                                             .on_text = job->on_text,
                                             .context = job->context};
    int status = ask_ends_open(job->ask,
                               &(struct ask_model){.tokenizer = run->tokenizer,
                                                   .text = &text,
                                                   .vocab = engine_config(run->engine)->vocab_size,
                                                   .template = run->template,
                                                   .template_seconds = job->template_timeout},
                               &ends);
    THEN(status, job->on_prompt(job->context, &run->prompt));
    THEN(status, generate(run->engine, run->tokenizer, &options, texts));
    THEN(status, job->on_end(job->context, &run->prompt, texts));
    for (int64_t i = 0; i < job->ask->choices; i++)
        generated_free(&texts[i]);
    ask_ends_close(&ends);
    free(texts);
    return status;
}

/* ---- the run ---- */

static int open_run(struct run *run) {
    const struct generate_job *job = run->job;
    const char *tokenizer = job->model->tokenizer;
    const struct engine_options options = {.max_rows =
                                               PREFILL_ROWS > job->ask->choices ? PREFILL_ROWS : job->ask->choices,
                                           .max_logit_rows = job->ask->choices,
                                           .max_sequences = job->ask->choices};
    int status = job_model_open(job->model, run->world, options, &run->memory, &run->engine);
    TRY(status);
    const char *directory = tokenizer ? tokenizer : engine_directory(run->engine);
    if (job->text || job->messages || tokenizer || pretrained_has_tokenizer(directory))
        status = pretrained_open_tokenizer(directory, &run->tokenizer);
    run->prompt.has_tokenizer = run->tokenizer != NULL;
    if (!status && job->ask->stop_count && !run->tokenizer)
        status = status_fail(STATUS_USAGE, "--stop needs a tokenizer, and %s has none", directory);
    THEN_IF(status, run->is_first, read_prompt(run, directory));
    return comm_agree(run->world, status);
}

int generate_job_run(struct comm *world, void *context) {
    struct run run = {
        .job = context,
        .world = world,
        .is_first = world->rank == 0,
        .memory.help = "a smaller --max-model-len or --precision, " JOB_MEMORY_RANKS,
        .prompt = {.text = STRBUF_INIT, .ids = TOKEN_BUFFER_INIT},
    };
    log_quiet(!run.is_first);
    int status = open_run(&run);
    THEN(status, run.is_first ? write_texts(&run) : engine_follow(run.engine));
    THEN(status, engine_end(run.engine));
    THEN(status, job_memory_tell(world, &run.memory));
    if (status)
        comm_fail(world, status);
    token_buffer_free(&run.prompt.ids);
    strbuf_free(&run.prompt.text);
    chat_template_close(run.template);
    tokenizer_close(run.tokenizer);
    engine_close(run.engine);
    return status;
}
