/* cambium generate: writes text with a trained model. */
#include "batch_arguments.h"
#include "commands.h"
#include "grammar_arguments.h"
#include "model_arguments.h"
#include "sampling_arguments.h"

#include "config/run.h"
#include "jobs/generate.h"
#include "jobs/requests.h"
#include "openai/json_out.h"

struct generate_command {
    struct job_model base; /* first, for model_facts */
    const char *prompt, *messages;
    const char *chat_template;
    int special_tokens; /* enum special_tokens */
    struct config_list prompt_tokens, stop;
    struct ask ask;
    double template_timeout;
    bool stream, echo, json;
    /* of --requests */
    struct requests_options requests;
    struct adapter_names names;
    struct batch_arguments batch;
    bool cache_is_given;
    bool is_watching; /* signals only request a stop: base/stop.h */
};

#define AT(field) offsetof(struct generate_command, field)
static const struct config_row rows[] = {
    MODEL_ROW(AT(base)),
    ROW_TEXT("prompt", AT(prompt), "TEXT", "text to continue; - reads standard input"),
    ROW_PATH("messages", AT(messages), "FILE",
             "messages to answer: plain text of one user, a JSON list of {\"role\", \"content\"}, or an object "
             "{\"messages\", \"tools\", \"documents\", \"chat_template_kwargs\"}; - reads standard input"),
    ROW_PATH("requests", AT(requests.input), "FILE.jsonl",
             "file of requests, one JSON object per line, or one of OpenAI's batches; answers many at once, with a "
             "line each; - reads standard input"),
    MODEL_ADAPTER_ROW(AT(base), MODEL_ADAPTER_OR_NAMED),
    ROW_INT("max-new-tokens", AT(ask.max_tokens), "128", 1, 1e9, "maximum number of tokens to generate"),
    TEMPERATURE_ROW(AT(ask.sampling), "0.8"),
    TOP_P_ROW(AT(ask.sampling), "1"),
    TOP_K_ROW(AT(ask.sampling)),
    SEED_ROW(AT(ask.sampling), "seed of the random draws; --requests: lines without a seed derive theirs from it"),
    ROW_LIST("stop", AT(stop), "TEXT...", "end before any of these strings"),
    ROW_BOOL("stream", AT(stream), NULL, "print the completion as it is generated (one sample)"),
    ROW_INT("num-samples", AT(ask.choices), "1", 1, 256, "completions to generate"),
    ROW_BOOL("json", AT(json), NULL,
             "print a JSON object for each completion: index, text (null without a tokenizer), tokens, finish_reason "
             "(stop or length)"),
    ROW_BOOL("echo", AT(echo), NULL, "print the prompt before each completion"),
    REPETITION_PENALTY_ROW(AT(ask.sampling)),
    ROW_BOOL("ignore-eos", AT(ask.ignore_eos), NULL, "continue after an end-of-text"),
    CHAT_TEMPLATE_ROW("chat-template", AT(chat_template), "messages",
                      "as the adapter's training had it, or the tokenizer's own"),
    SPECIAL_TOKENS_ROW("special-tokens", AT(special_tokens),
                       "the text of --prompt, and in those lines of --requests that have no parse_special"),
    ROW_PATH("output", AT(requests.output), "FILE.jsonl",
             "--requests: a new file for the answers, in the order of the requests; standard output when not given"),
    ROW_BOOL("resume", AT(requests.resumes), NULL, "--requests: resume after the answers that the output has"),
    ADAPTER_ROOT_ROW(AT(names)),
    MODEL_DEVICE_ROW(AT(base)),
    MODEL_GRAPHS_ROW(AT(base)),
    MODEL_COMPUTE_ROWS(AT(base)),
    MODEL_MAX_LEN_ROW(AT(base)),
    BATCH_ROWS(AT(batch), "--requests: ", "4G",
               "memory for keys and values on each rank, at most as much as all completions can fill; by default nine "
               "tenths of what a GPU has left beside the model"),
    ADAPTER_MEMORY_ROW(AT(names)),
    MODEL_NAME_ROW(AT(base),
                   "--requests: names of the base, which a request may give as its model; the directory's name "
                   "when not given"),
    MODEL_TOKENIZER_ROW(AT(base)),
    ROW_LIST("prompt-tokens", AT(prompt_tokens), "ID...",
             "token ids to continue, instead of a text: the output is token ids as well"),
    TEMPLATE_TIMEOUT_ROW("template-timeout", AT(template_timeout)),
    CALLS_ROWS(AT(requests.tool_format), AT(requests.reasoning), "--requests: "),
    GRAMMAR_ROWS(AT(requests.grammars), "--requests: "),
    MODEL_RANKS_ROW(AT(base)),
    MODEL_LAYOUT_ROWS(AT(base)),
};

static const struct config_command command = {
    .name = "generate",
    .synopsis = "cambium generate --model PATH --prompt TEXT | --messages FILE | --requests FILE.jsonl [OPTIONS]",
    .description = "Generates text with a trained model and writes it to standard output. Equal seeds give equal "
                   "completions, on any "
                   "number of ranks. Ranks are threads, or processes of mpirun or srun, which share the model.",
    .examples =
        "  cambium generate --model out/gpt --prompt 'The meaning of life' --stream\n"
        "  cambium generate --model out/gpt --prompt 'Once' --temperature 0 --max-new-tokens 20\n"
        "  echo 'Once upon' | cambium generate --model out/gpt --prompt - --num-samples 3 --json\n"
        "  cambium generate --model out/gpt --adapter out/chat --messages talk.json --stream\n"
        "  echo 'What is a cambium?' | cambium generate --model out/chat --messages -\n"
        "  cambium generate --model out/gpt --adapter-root adapters --requests in.jsonl --output out.jsonl\n"
        "  mpirun -n 2 cambium generate --model out/gpt --prompt Once --parallel.tensor_model_parallel_size=2\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
};

/* True when completions are printed as text, not only as ids. */
static bool has_text(const struct generate_command *c) {
    return c->prompt || c->messages;
}

/* ---- the output ---- */

static int print_part(void *context, int64_t sample, const char *bytes, size_t length) {
    return job_print_text(stdout, bytes, length);
}

/* Prints what a stream begins with. */
static int print_prompt(void *context, const struct generate_prompt *prompt) {
    const struct generate_command *c = context;
    bool is_printed = c->stream && c->echo;
    return is_printed ? job_print_text(stdout, strbuf_text(&prompt->text), prompt->text.length) : STATUS_OK;
}

static int print_json(const struct generate_command *c, const struct generate_prompt *prompt,
                      const struct generated *text, int64_t index) {
    struct strbuf bytes = STRBUF_INIT, out = STRBUF_INIT;
    if (c->echo)
        strbuf_add(&bytes, strbuf_text(&prompt->text), prompt->text.length);
    strbuf_add(&bytes, strbuf_text(&text->text), text->text.length);
    strbuf_format(&out, "{\"index\":%lld,\"text\":", (long long)index);
    if (prompt->has_tokenizer)
        json_out_string(&out, strbuf_text(&bytes), bytes.length);
    else
        strbuf_add_text(&out, "null");
    strbuf_add_text(&out, ",\"tokens\":[");
    for (size_t i = 0; i < text->tokens.count; i++)
        strbuf_format(&out, i ? ",%d" : "%d", text->tokens.ids[i]);
    strbuf_format(&out, "],\"finish_reason\":\"%s\"}", text->reason == FINISH_STOP ? "stop" : "length");
    int status = strbuf_status(&bytes);
    THEN(status, strbuf_status(&out));
    if (!status)
        printf("%s\n", strbuf_text(&out));
    strbuf_free(&bytes);
    strbuf_free(&out);
    return status;
}

static void print_ids(const struct token_buffer *ids, const char *before) {
    for (size_t i = 0; i < ids->count; i++)
        printf("%s%d", i ? " " : before, ids->ids[i]);
}

static int print_plain(const struct generate_command *c, const struct generate_prompt *prompt,
                       const struct generated *text) {
    int status = STATUS_OK;
    if (has_text(c)) {
        if (c->echo)
            status = job_print_text(stdout, strbuf_text(&prompt->text), prompt->text.length);
        THEN(status, job_print_text(stdout, strbuf_text(&text->text), text->text.length));
    } else {
        if (c->echo)
            print_ids(&prompt->ids, "");
        print_ids(&text->tokens, c->echo ? " " : "");
    }
    printf("\n");
    return status;
}

static int print_texts(void *context, const struct generate_prompt *prompt, const struct generated *texts) {
    const struct generate_command *c = context;
    int status = STATUS_OK;
    for (int64_t i = 0; i < c->ask.choices && !status; i++) {
        if (c->json)
            status = print_json(c, prompt, &texts[i], i);
        else if (c->stream)
            printf("\n");
        else {
            if (i > 0)
                printf("----\n");
            status = print_plain(c, prompt, &texts[i]);
        }
    }
    THEN_IF(status, (fflush(stdout) || ferror(stdout)), status_fail_errno("cannot write to standard output"));
    return status;
}

/* ---- the options ---- */

/* Refuses options that the chosen form of input does not have. */
static int check_forms(const struct generate_command *c, const struct config *config) {
    static const char *const of_one[] = {
        "max-new-tokens", "temperature", "top-k", "top-p", "repetition-penalty", "stop", "num-samples",
        "ignore-eos",     "stream",      "echo",  "json"};
    static const char *const of_requests[] = {
        "model-name",       "output",          "resume",          "adapter-root", "adapter-memory", "max-batch-size",
        "max-batch-tokens", "prefill-stretch", "kv-cache-memory", "prefix-cache", "tool-format",    "reasoning"};
    for (size_t i = 0; c->requests.input && i < sizeof of_one / sizeof *of_one; i++)
        if (config_is_given(config, of_one[i]))
            return status_fail(STATUS_USAGE, "--%s is not for --requests: each line has its own values", of_one[i]);
    for (size_t i = 0; !c->requests.input && i < sizeof of_requests / sizeof *of_requests; i++)
        if (config_is_given(config, of_requests[i]))
            return status_fail(STATUS_USAGE, "--%s is for --requests", of_requests[i]);
    return STATUS_OK;
}

static int check_requests(struct generate_command *c, const struct config *config) {
    int status = adapter_names_take(&c->base.adapters, &c->names);
    THEN(status, adapter_memory_check(&c->names, config));
    if (!status && c->base.adapters.count)
        status = status_fail(STATUS_USAGE, "--adapter %s: requests name their adapters, so NAME=DIR was expected",
                             c->base.adapters.items[0]);
    THEN(status, batch_check(&c->batch));
    c->cache_is_given = config_is_given(config, "kv-cache-memory");
    grammar_choose_memory(&c->requests.grammars, config);
    if (!c->cache_is_given && !device_uses_host_memory(c->base.device))
        c->batch.kv_cache_memory = 0; /* the engine sees what is free */
    return status ? status : requests_check(&c->requests);
}

static int check(struct generate_command *c, const struct config *config) {
    static const char *const of_templates[] = {"chat-template", "template-timeout"};
    TRY(check_forms(c, config));
    if ((c->prompt != NULL) + (c->messages != NULL) + config_is_given(config, "prompt-tokens") +
            (c->requests.input != NULL) !=
        1)
        return status_fail(STATUS_USAGE, "generate needs --prompt TEXT, --messages FILE, --prompt-tokens ID... or "
                                         "--requests FILE");
    if (c->requests.input)
        return check_requests(c, config);
    for (size_t i = 0; !c->messages && i < sizeof of_templates / sizeof *of_templates; i++)
        if (config_is_given(config, of_templates[i]))
            return status_fail(STATUS_USAGE, "--%s is for --messages", of_templates[i]);
    if (!c->prompt && config_is_given(config, "special-tokens"))
        return status_fail(STATUS_USAGE, "--special-tokens is for --prompt and --requests: names in messages are text");
    if (c->stream && (c->json || c->ask.choices > 1))
        return status_fail(
            STATUS_USAGE,
            "--stream prints one completion as it is written: it cannot be combined with --json or --num-samples");
    if (!has_text(c) && c->stream)
        return status_fail(STATUS_USAGE,
                           "--stream works on text: it needs --prompt or --messages, not --prompt-tokens");
    int status = ask_take_stops(&c->ask, c->stop.items, c->stop.count);
    return status ? status_wrap(status == STATUS_INVALID ? STATUS_USAGE : status, "--stop") : STATUS_OK;
}

/* ---- the run ---- */

static int prepare(const struct launch *launch, const struct config *config, void *context) {
    struct generate_command *c = context;
    int status = check(c, config);
    if (!status && c->requests.input) {
        stop_watch_begin();
        c->is_watching = true;
    }
    return status ? status : model_grid(&c->base, launch, false);
}

static int answer_requests(struct launch *launch, struct generate_command *c) {
    struct requests_job job = {.model = &c->base,
                               .names = &c->names,
                               .engine = batch_engine_options(&c->batch, adapter_names_memory(&c->names)),
                               .cache_is_given = c->cache_is_given,
                               .options = c->requests};
    job.options.chat_template = c->chat_template;
    job.options.template_timeout = c->template_timeout;
    job.options.special_tokens = c->special_tokens;
    job.options.prefill_stretch = c->batch.prefill_stretch;
    job.options.seed = (int64_t)c->ask.sampling.seed;
    int status = launch_run(launch, rank_grid_size(&c->base.grid), requests_job_run, &job);
    return status ? status : requests_verdict(&c->requests, &job.result);
}

static int complete_prompt(struct launch *launch, struct generate_command *c) {
    struct generate_job job = {.model = &c->base,
                               .text = c->prompt,
                               .messages = c->messages,
                               .ids = c->prompt_tokens,
                               .special_tokens = c->special_tokens,
                               .chat_template = c->chat_template,
                               .template_timeout = c->template_timeout,
                               .ask = &c->ask,
                               .on_prompt = print_prompt,
                               .on_text = c->stream ? print_part : NULL,
                               .on_end = print_texts,
                               .context = c};
    return launch_run(launch, rank_grid_size(&c->base.grid), generate_job_run, &job);
}

static int run(struct launch *launch, void *context) {
    struct generate_command *c = context;
    return c->requests.input ? answer_requests(launch, c) : complete_prompt(launch, c);
}

int command_generate(int argc, char **argv) {
    struct generate_command values = {0};
    ask_begin(&values.ask);
    const struct launch_steps steps = {.command = &command,
                                       .values = &values,
                                       .watches = true,
                                       .prepare = prepare,
                                       .add_facts = model_facts,
                                       .run = run};
    int exit_status = launch_command(&steps, argc, argv, &values);
    ask_free(&values.ask);
    if (values.is_watching)
        stop_watch_end();
    return exit_status;
}
