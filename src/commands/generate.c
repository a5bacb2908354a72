/* cambium generate: writes text with a trained model. */
#include "batch_arguments.h"
#include "commands.h"
#include "model_arguments.h"

#include "base/json.h"
#include "base/utf8.h"
#include "config/run.h"
#include "infer/generate.h"
#include "jobs/requests.h"
#include "text/chat.h"
#include "text/prompt.h"

#include <stdlib.h>
#include <string.h>

enum { PREFILL_ROWS = 512, MESSAGES_BYTES = 1 << 26 };

struct generate_command {
    struct job_model base;
    const char *prompt, *messages;
    const char *chat_template;
    struct config_list prompt_tokens, stop;
    int64_t max_new_tokens, top_k, num_samples, seed;
    double temperature, top_p, repetition_penalty, template_timeout;
    bool stream, echo, json, ignore_eos;
    /* of --requests */
    struct requests_options requests;
    struct adapter_names names;
    struct batch_arguments batch;
    bool is_watching; /* signals only request a stop: base/stop.h */
};

#define AT(field) offsetof(struct generate_command, field)
static const struct config_row rows[] = {
    MODEL_ROW(AT(base)),
    MODEL_ADAPTER_ROW(AT(base)),
    {.path = "prompt",
     .type = CONFIG_STRING,
     .offset = AT(prompt),
     .metavar = "TEXT",
     .help = "text to continue; - reads standard input"},
    {.path = "messages",
     .type = CONFIG_STRING,
     .offset = AT(messages),
     .metavar = "FILE",
     .is_path = true,
     .help = "messages to answer, a JSON list of {\"role\", \"content\"}, or an object {\"messages\", \"tools\", "
             "\"documents\", \"chat_template_kwargs\"}; - reads standard input"},
    {.path = "chat-template",
     .type = CONFIG_STRING,
     .offset = AT(chat_template),
     .default_text = "auto",
     .metavar = "NAME|FILE",
     .help = "how messages become text: " CHAT_TEMPLATE_CHOICES
             " in Jinja; auto: as the adapter's training had it, or the tokenizer's own"},
    {.path = "prompt-tokens",
     .type = CONFIG_LIST,
     .offset = AT(prompt_tokens),
     .metavar = "ID...",
     .help = "token ids to continue, instead of a text: the output is token ids as well"},
    TEMPLATE_TIMEOUT_ROW("template-timeout", AT(template_timeout)),
    MODEL_TOKENIZER_ROW(AT(base)),
    {.path = "max-new-tokens",
     .type = CONFIG_INT,
     .offset = AT(max_new_tokens),
     .default_text = "128",
     .minimum = 1,
     .maximum = 1e9,
     .help = "most tokens to generate"},
    {.path = "temperature",
     .type = CONFIG_FLOAT,
     .offset = AT(temperature),
     .default_text = "0.8",
     .minimum = 0,
     .maximum = 100,
     .help = "0 takes the likeliest token"},
    {.path = "top-k",
     .type = CONFIG_INT,
     .offset = AT(top_k),
     .default_text = "0",
     .minimum = 0,
     .maximum = 1e9,
     .help = "draw from the k likeliest tokens; 0 is off"},
    {.path = "top-p",
     .type = CONFIG_FLOAT,
     .offset = AT(top_p),
     .default_text = "1",
     .minimum = 1e-6,
     .maximum = 1,
     .help = "draw from the likeliest tokens whose probabilities reach p"},
    {.path = "repetition-penalty",
     .type = CONFIG_FLOAT,
     .offset = AT(repetition_penalty),
     .default_text = "1",
     .minimum = 0.01,
     .maximum = 100,
     .help = "divides the logits of tokens that the text has; 1 is off"},
    {.path = "stop",
     .type = CONFIG_LIST,
     .offset = AT(stop),
     .metavar = "TEXT...",
     .help = "end before any of these strings"},
    {.path = "seed",
     .type = CONFIG_INT,
     .offset = AT(seed),
     .default_text = "0",
     .minimum = 0,
     .maximum = 9e18,
     .help = "of the random draws; --requests: that lines without a seed take theirs from"},
    {.path = "num-samples",
     .type = CONFIG_INT,
     .offset = AT(num_samples),
     .default_text = "1",
     .minimum = 1,
     .maximum = 256,
     .help = "completions to generate"},
    {.path = "ignore-eos", .type = CONFIG_BOOL, .offset = AT(ignore_eos), .help = "continue after an end-of-text"},
    {.path = "stream",
     .type = CONFIG_BOOL,
     .offset = AT(stream),
     .help = "print the text as it is generated (one sample)"},
    {.path = "echo", .type = CONFIG_BOOL, .offset = AT(echo), .help = "print the prompt before each text"},
    {.path = "json",
     .type = CONFIG_BOOL,
     .offset = AT(json),
     .help = "one JSON object a text: index, text (null without a tokenizer), tokens, finish_reason (stop or length)"},
    {.path = "requests",
     .type = CONFIG_STRING,
     .offset = AT(requests.input),
     .metavar = "FILE.jsonl",
     .is_path = true,
     .help = "requests, a JSON object a line, answered by a line each, many at once; - reads standard input"},
    {.path = "output",
     .type = CONFIG_STRING,
     .offset = AT(requests.output),
     .metavar = "FILE.jsonl",
     .is_path = true,
     .help = "--requests: a new file for the answers, in the order of the requests; standard output when not given"},
    {.path = "resume",
     .type = CONFIG_BOOL,
     .offset = AT(requests.resumes),
     .help = "--requests: resume after the answers that the output has"},
    MODEL_NAME_ROW(AT(base),
                   "--requests: names of the base, which a request may give as its model; the directory's name "
                   "when not given"),
    ADAPTER_ROOT_ROW(AT(names)),
    ADAPTER_MEMORY_ROW(AT(names)),
    BATCH_ROWS(AT(batch), "--requests: ", "4G",
               "for keys and values, on each rank; no more than all texts can fill is taken"),
    MODEL_PRECISION_ROW(AT(base)),
    MODEL_DEVICE_ROW(AT(base)),
    MODEL_MAX_LEN_ROW(AT(base)),
    MODEL_THREADS_ROW(AT(base)),
    MODEL_RANKS_ROW(AT(base)),
    MODEL_LAYOUT_ROWS(AT(base)),
};

static const struct config_command command = {
    .name = "generate",
    .synopsis = "cambium generate --model DIR --prompt TEXT | --messages FILE | --requests FILE.jsonl [OPTIONS]",
    .description = "Writes text with a trained model, to standard output. Equal seeds give equal texts. Several ranks, "
                   "threads or processes of mpirun or srun, hold the model together and write the same text.",
    .examples =
        "  cambium generate --model out/gpt --prompt 'The meaning of life' --stream\n"
        "  cambium generate --model out/gpt --prompt 'Once' --temperature 0 --max-new-tokens 20\n"
        "  echo 'Once upon' | cambium generate --model out/gpt --prompt - --num-samples 3 --json\n"
        "  cambium generate --model out/gpt --adapter out/chat --messages talk.json --stream\n"
        "  cambium generate --model out/gpt --adapter-root adapters --requests in.jsonl --output out.jsonl\n"
        "  mpirun -n 2 cambium generate --model out/gpt --prompt Once --parallel.tensor_model_parallel_size=2\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
    .positional_offset = SIZE_MAX,
};

/* True when completions are printed as text, not only as ids. */
static bool has_text(const struct generate_command *c) {
    return c->prompt || c->messages;
}

/* ---- the prompt ---- */

static int read_input(struct strbuf *text) {
    char buffer[1 << 16];
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, stdin)) > 0;)
        strbuf_add(text, buffer, n);
    if (ferror(stdin))
        return status_fail_errno("cannot read standard input");
    if (text->length && text->data[text->length - 1] == '\n')
        text->data[--text->length] = 0;
    return strbuf_status(text);
}

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
            int status = token_buffer_add(ids, (int32_t)id);
            if (status)
                return status;
            at += length;
        }
    }
    return ids->count ? STATUS_OK : status_fail(STATUS_USAGE, "--prompt-tokens: at least one token id was expected");
}

static int encode_prompt(const struct tokenizer *tokenizer, const struct strbuf *text, struct token_buffer *ids) {
    struct tokenizer_encoder *encoder;
    int status = tokenizer_encoder_new(tokenizer, &encoder);
    if (!status)
        status = prompt_encode_text(tokenizer, encoder, strbuf_text(text), text->length, ids);
    tokenizer_encoder_free(encoder);
    return status;
}

/* ---- the output ---- */

/* The state of printing completions. */
struct output {
    const struct generate_command *command;
    const struct strbuf *prompt;
    const struct token_buffer *ids; /* of the prompt */
    bool has_tokenizer;
};

static int print_part(void *context, int64_t sample, const char *bytes, size_t length) {
    (void)sample;
    (void)context;
    if (fwrite(bytes, 1, length, stdout) != length || fflush(stdout))
        return status_fail_errno("cannot write to standard output");
    return STATUS_OK;
}

static json_t *ids_json(const struct token_buffer *ids) {
    json_t *array = json_array();
    for (size_t i = 0; i < ids->count; i++)
        json_array_append_new(array, json_integer(ids->ids[i]));
    return array;
}

static int print_json(const struct output *o, const struct generated *text, int64_t index) {
    struct strbuf bytes = STRBUF_INIT, characters = STRBUF_INIT;
    if (o->command->echo)
        strbuf_add(&bytes, strbuf_text(o->prompt), o->prompt->length);
    strbuf_add(&bytes, strbuf_text(&text->text), text->text.length);
    utf8_add_repaired(&characters, strbuf_text(&bytes), bytes.length); /* JSON needs valid UTF-8 */
    json_begin();
    json_t *string = o->has_tokenizer ? json_stringn(strbuf_text(&characters), characters.length) : json_null();
    json_t *object =
        json_pack("{s:I, s:o, s:o, s:s}", "index", (json_int_t)index, "text", string, "tokens", ids_json(&text->tokens),
                  "finish_reason", text->reason == FINISH_STOP ? "stop" : "length");
    char *line;
    int status = json_end(object, JSON_COMPACT, &line);
    if (strbuf_status(&bytes) || strbuf_status(&characters))
        status = STATUS_MEMORY;
    if (!status)
        printf("%s\n", line);
    free(line);
    strbuf_free(&bytes);
    strbuf_free(&characters);
    return status;
}

static void print_ids(const struct token_buffer *ids, const char *before) {
    for (size_t i = 0; i < ids->count; i++)
        printf("%s%d", i ? " " : before, ids->ids[i]);
}

static void print_plain(const struct output *o, const struct generated *text) {
    if (has_text(o->command)) {
        if (o->command->echo)
            fwrite(strbuf_text(o->prompt), 1, o->prompt->length, stdout);
        fwrite(strbuf_text(&text->text), 1, text->text.length, stdout);
    } else {
        if (o->command->echo)
            print_ids(o->ids, "");
        print_ids(&text->tokens, o->command->echo ? " " : "");
    }
    printf("\n");
}

static int print_texts(const struct output *o, const struct generated *texts) {
    const struct generate_command *c = o->command;
    int status = STATUS_OK;
    for (int64_t i = 0; i < c->num_samples && !status; i++) {
        if (c->json)
            status = print_json(o, &texts[i], i);
        else if (c->stream)
            printf("\n");
        else {
            if (i > 0)
                printf("----\n");
            print_plain(o, &texts[i]);
        }
    }
    if (!status && (fflush(stdout) || ferror(stdout)))
        status = status_fail_errno("cannot write to standard output");
    return status;
}

/* ---- the run ---- */

/* A rank. */
struct run {
    const struct generate_command *command;
    struct comm *world;
    bool is_first;
    struct engine *engine;
    struct tokenizer *tokenizer;
    struct chat_template *template; /* renders messages; NULL: none */
    struct strbuf prompt;           /* first rank only */
    struct token_buffer ids;
};

/* The ends of a completion: tokens, stop strings and the end of a turn. */
struct ends {
    struct prompt_ends prompt;
    const char **stop; /* [stop_count] */
    size_t stop_count;
};

static int find_ends(const struct run *run, struct ends *ends) {
    const struct generate_command *c = run->command;
    *ends = (struct ends){.stop = calloc(c->stop.count + 1, sizeof *ends->stop), .stop_count = c->stop.count};
    if (!ends->stop)
        return status_fail(STATUS_MEMORY, "out of memory");
    for (size_t i = 0; i < c->stop.count; i++)
        ends->stop[i] = c->stop.items[i];
    struct model_text_ends text = engine_text_ends(run->engine, run->tokenizer);
    int status = c->ignore_eos ? STATUS_OK
                               : prompt_ends_find(run->tokenizer, text.eos, text.count, run->template,
                                                  c->template_timeout, &ends->prompt);
    if (*ends->prompt.turn_end)
        ends->stop[ends->stop_count++] = ends->prompt.turn_end;
    if (status)
        free(ends->stop);
    return status;
}

static int write_texts(struct run *run) {
    const struct generate_command *c = run->command;
    struct ends ends;
    struct generated *texts = calloc((size_t)c->num_samples, sizeof *texts);
    int status = texts ? find_ends(run, &ends) : status_fail(STATUS_MEMORY, "out of memory");
    if (status) {
        free(texts);
        return status;
    }
    struct generate_options options = {
        .prompt = run->ids.ids,
        .prompt_length = (int64_t)run->ids.count,
        .max_new_tokens = c->max_new_tokens,
        .samples = c->num_samples,
        .sampling = {.temperature = c->temperature,
                     .top_p = c->top_p,
                     .repetition_penalty = c->repetition_penalty,
                     .top_k = c->top_k,
                     .seed = (uint64_t)c->seed},
        .stop = ends.stop,
        .stop_count = ends.stop_count,
        .end_ids = ends.prompt.ids,
        .end_count = ends.prompt.count,
        .on_text = c->stream ? print_part : NULL,
    };
    if (c->stream && c->echo)
        status = print_part(NULL, 0, strbuf_text(&run->prompt), run->prompt.length);
    if (!status)
        status = generate(run->engine, run->tokenizer, &options, texts);
    if (!status)
        status = print_texts(&(struct output){c, &run->prompt, &run->ids, run->tokenizer != NULL}, texts);
    for (int64_t i = 0; i < c->num_samples; i++)
        generated_free(&texts[i]);
    free(ends.stop);
    free(texts);
    return status;
}

/* ---- messages ---- */

/* Finds the chat template: the option's; else that of the first adapter that has one; else the tokenizer's. */
static int find_template(struct run *run, const char *tokenizer) {
    const struct config_list *adapters = &run->command->base.adapters;
    struct chat_template **template = &run->template;
    char **found;
    size_t count;
    int status = chat_template_open_option(run->command->chat_template, template);
    if (status || *template)
        return status;
    status = peft_find(adapters->items, adapters->count, &found, &count);
    for (size_t i = 0; i < count && !status && !*template; i++)
        status = peft_chat_template(found[i], template);
    file_list_free(found, count);
    if (status || *template)
        return status;
    struct tokenizer_files files;
    status = tokenizer_files_read(tokenizer, &files);
    if (!status)
        status = chat_template_of_tokenizer(&files, template);
    tokenizer_files_free(&files);
    return status;
}

/* Renders messages as a prompt for an answer. */
static int render(struct run *run, const char *tokenizer, struct chat_request *request) {
    struct tokenizer_encoder *encoder = NULL;
    request->tokenizer = run->tokenizer;
    const struct model_text_ends ends = engine_text_ends(run->engine, run->tokenizer);
    const struct prompt_room room = prompt_room_of(run->tokenizer, engine_max_positions(run->engine));
    request->eos = model_first_eos(&ends);
    int status = find_template(run, tokenizer);
    if (!status)
        status = tokenizer_encoder_new(run->tokenizer, &encoder);
    if (!status)
        status = prompt_encode_messages(request, encoder, run->template, &room, &run->prompt, &run->ids);
    tokenizer_encoder_free(encoder);
    return status;
}

static int read_messages(struct run *run, const char *tokenizer) {
    const char *file = run->command->messages;
    bool is_input = !strcmp(file, "-");
    struct strbuf text = STRBUF_INIT;
    struct chat_request request = {.seconds = run->command->template_timeout};
    json_t *root = NULL;
    int status = is_input ? read_input(&text) : file_read(file, MESSAGES_BYTES, &text);
    if (!status)
        status =
            chat_read_request(strbuf_text(&text), text.length, is_input ? "standard input" : file, &root, &request);
    if (!status)
        status = render(run, tokenizer, &request);
    json_decref(root);
    strbuf_free(&text);
    return status;
}

/* Reads the prompt on the first rank, and checks that the model can continue it. */
static int read_prompt(struct run *run, const char *tokenizer) {
    const struct generate_command *c = run->command;
    int status = STATUS_OK;
    if (c->prompt && !strcmp(c->prompt, "-"))
        status = read_input(&run->prompt);
    else if (c->prompt)
        strbuf_add_text(&run->prompt, c->prompt);
    if (!status)
        status = c->messages ? read_messages(run, tokenizer)
                 : c->prompt ? encode_prompt(run->tokenizer, &run->prompt, &run->ids)
                             : parse_ids(&c->prompt_tokens, &run->ids);
    return status ? status : generate_check(run->engine, run->ids.ids, (int64_t)run->ids.count);
}

static struct engine_options choose_options(const struct generate_command *c) {
    return (struct engine_options){.max_rows = PREFILL_ROWS > c->num_samples ? PREFILL_ROWS : c->num_samples,
                                   .max_logit_rows = c->num_samples,
                                   .max_sequences = c->num_samples};
}

static int open_run(struct run *run) {
    const struct generate_command *c = run->command;
    struct engine_options options = choose_options(c);
    int status = job_model_open(&c->base, run->world, options, &run->engine);
    if (status)
        return status;
    const char *directory = c->base.tokenizer ? c->base.tokenizer : engine_directory(run->engine);
    if (has_text(c) || c->base.tokenizer || tokenizer_is_present(directory))
        status = tokenizer_open(directory, &run->tokenizer);
    if (!status && c->stop.count && !run->tokenizer)
        status = status_fail(STATUS_USAGE, "--stop needs a tokenizer, and %s has none", directory);
    if (!status && run->is_first)
        status = read_prompt(run, directory);
    return comm_agree(run->world, status);
}

static int run_rank(struct comm *world, void *context) {
    struct run run = {
        .command = context,
        .world = world,
        .is_first = world->rank == 0,
        .prompt = STRBUF_INIT,
        .ids = TOKEN_BUFFER_INIT,
    };
    log_quiet(!run.is_first);
    int status = open_run(&run);
    if (!status)
        status = run.is_first ? write_texts(&run) : engine_follow(run.engine);
    if (!status)
        status = engine_end(run.engine);
    if (status)
        comm_fail(world, status);
    token_buffer_free(&run.ids);
    strbuf_free(&run.prompt);
    chat_template_close(run.template);
    tokenizer_close(run.tokenizer);
    engine_close(run.engine);
    return status;
}

/* Refuses options that the chosen form of input does not have. */
static int check_forms(const struct generate_command *c, const struct config *config) {
    static const char *const of_one[] = {
        "max-new-tokens", "temperature", "top-k", "top-p", "repetition-penalty", "stop", "num-samples",
        "ignore-eos",     "stream",      "echo",  "json"};
    static const char *const of_requests[] = {
        "model-name",     "output",           "resume",          "adapter-root",    "adapter-memory",
        "max-batch-size", "max-batch-tokens", "prefill-stretch", "kv-cache-memory", "prefix-cache"};
    for (size_t i = 0; c->requests.input && i < sizeof of_one / sizeof *of_one; i++)
        if (config_is_given(config, of_one[i]))
            return status_fail(STATUS_USAGE, "--%s is not for --requests: each line has values of its own", of_one[i]);
    for (size_t i = 0; !c->requests.input && i < sizeof of_requests / sizeof *of_requests; i++)
        if (config_is_given(config, of_requests[i]))
            return status_fail(STATUS_USAGE, "--%s is for --requests", of_requests[i]);
    return STATUS_OK;
}

static int check_requests(struct generate_command *c, const struct config *config) {
    int status = adapter_names_take(&c->base.adapters, &c->names);
    if (!status)
        status = adapter_memory_check(&c->names, config);
    if (!status && c->base.adapters.count)
        status = status_fail(STATUS_USAGE, "--adapter %s: requests name their adapters, so NAME=DIR was expected",
                             c->base.adapters.items[0]);
    if (!status)
        status = batch_check(&c->batch);
    return status ? status : requests_check(&c->requests);
}

static int check(struct generate_command *c, const struct config *config) {
    static const char *const of_templates[] = {"chat-template", "template-timeout"};
    int status = check_forms(c, config);
    if (status)
        return status;
    if ((c->prompt != NULL) + (c->messages != NULL) + config_is_given(config, "prompt-tokens") +
            (c->requests.input != NULL) !=
        1)
        return status_fail(STATUS_USAGE, "generate wants --prompt TEXT, --messages FILE, --prompt-tokens ID... or "
                                         "--requests FILE");
    if (c->requests.input)
        return check_requests(c, config);
    for (size_t i = 0; !c->messages && i < sizeof of_templates / sizeof *of_templates; i++)
        if (config_is_given(config, of_templates[i]))
            return status_fail(STATUS_USAGE, "--%s is for --messages", of_templates[i]);
    if (c->stream && (c->json || c->num_samples > 1))
        return status_fail(STATUS_USAGE,
                           "--stream prints one text as it is written: it cannot go with --json or --num-samples");
    if (!has_text(c) && c->stream)
        return status_fail(STATUS_USAGE,
                           "--stream works on text: it needs --prompt or --messages, not --prompt-tokens");
    status = generate_check_stops(c->stop.items, c->stop.count);
    return status ? status_wrap(status == STATUS_INVALID ? STATUS_USAGE : status, "--stop") : STATUS_OK;
}

static int prepare(const struct launch *launch, const struct config *config, void *context) {
    struct generate_command *c = context;
    int status = check(c, config);
    if (!status && c->requests.input) {
        stop_watch_begin();
        c->is_watching = true;
    }
    return status ? status : model_grid(&c->base, launch, false);
}

static int add_facts(void *context, struct facts *facts) {
    const struct generate_command *c = context;
    return model_facts(&c->base, facts);
}

static int answer_requests(struct launch *launch, struct generate_command *c) {
    struct requests_job job = {.model = &c->base,
                               .names = &c->names,
                               .engine = batch_engine_options(&c->batch, adapter_names_memory(&c->names)),
                               .options = c->requests};
    job.options.chat_template = c->chat_template;
    job.options.template_timeout = c->template_timeout;
    job.options.prefill_stretch = c->batch.prefill_stretch;
    job.options.seed = c->seed;
    int status = launch_run(launch, rank_grid_size(&c->base.grid), requests_job_run, &job);
    return status ? status : requests_verdict(&c->requests, &job.result);
}

static int run(struct launch *launch, void *context) {
    struct generate_command *c = context;
    return c->requests.input ? answer_requests(launch, c)
                             : launch_run(launch, rank_grid_size(&c->base.grid), run_rank, c);
}

int command_generate(int argc, char **argv) {
    struct generate_command values = {0};
    const struct launch_steps steps = {.command = &command,
                                       .values = &values,
                                       .watches = true,
                                       .prepare = prepare,
                                       .add_facts = add_facts,
                                       .run = run};
    int exit_status = launch_command(&steps, argc, argv, &values);
    if (values.is_watching)
        stop_watch_end();
    return exit_status;
}
