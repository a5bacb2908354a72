/* cambium chat: a conversation with a model in a terminal. */
#include "commands.h"
#include "line_editor.h"
#include "model_arguments.h"
#include "sampling_arguments.h"

#include "base/stop.h"
#include "jobs/chat.h"

#include <signal.h>
#include <unistd.h>

struct chat_command {
    struct job_model base;
    struct adapter_names names;
    const char *system, *chat_template;
    struct ask ask; /* an answer */
    double template_timeout;
    bool edits, keeps_history;
};

#define AT(field) offsetof(struct chat_command, field)
static const struct config_row rows[] = {
    MODEL_ROW(AT(base)),
    MODEL_ADAPTER_ROW(AT(base),
                      "adapters that answer from the start, from finetune or PEFT, or a directory of several; "
                      "all apply. NAME=DIR: an adapter for /adapter NAME"),
    ROW_TEXT("system", AT(system), "TEXT", "system message, before the first question"),
    ADAPTER_ROOT_ROW(AT(names)),
    TEMPERATURE_ROW(AT(ask.sampling), "0.7"),
    ROW_INT("max-new-tokens", AT(ask.max_tokens), "0", 0, 1e9,
            "maximum number of tokens in an answer; 0: as many as the context has room for"),
    TOP_P_ROW(AT(ask.sampling), "0.95"),
    TOP_K_ROW(AT(ask.sampling)),
    REPETITION_PENALTY_ROW(AT(ask.sampling)),
    SEED_ROW(AT(ask.sampling), "seed of the random draws; the same questions then get the same answers"),
    CHAT_TEMPLATE_ROW("chat-template", AT(chat_template), "messages",
                      "as the adapter's training had it, or the tokenizer's own"),
    ROW_BOOL("line-editor", AT(edits), "true",
             "edit questions and recall earlier ones with the arrow keys, where libedit is installed"),
    ROW_BOOL("history", AT(keeps_history), "true",
             "keep the lines for later conversations, in ~/.local/state/cambium/chat_history or in $XDG_STATE_HOME"),
    MODEL_DEVICE_ROW(AT(base)),
    MODEL_LOAD_IN_ROW(AT(base)),
    MODEL_PRECISION_ROW(AT(base)),
    MODEL_THREADS_ROW(AT(base)),
    RECEIPTS_ROW(AT(base.receipts)),
    MODEL_MAX_LEN_ROW(AT(base)),
    ADAPTER_MEMORY_ROW(AT(names)),
    MODEL_TOKENIZER_ROW(AT(base)),
    TEMPLATE_TIMEOUT_ROW("template-timeout", AT(template_timeout)),
};

static const struct config_command command = {
    .name = "chat",
    .synopsis = "cambium chat --model PATH [--adapter DIR] [--system TEXT] [OPTIONS]",
    .description =
        "Answers questions from a terminal, each with the conversation so far. Answers go to standard output as they "
        "are written. Reasoning before an answer is dim; unless standard output is a terminal, it goes to standard "
        "error. Ctrl-C ends an answer, and what was written of it stays in the conversation. Ctrl-D ends the "
        "conversation. A line that ends with \\ continues on the next one. Lines that begin with / are commands: /help "
        "lists them. Input that is not a terminal is one question.",
    .examples = "  cambium chat --model smollm2-135m-instruct\n"
                "  cambium chat --model out/gpt --adapter out/chat --system 'Answer in one sentence.'\n"
                "  cambium chat --model out/gpt --adapter-root adapters\n"
                "  echo 'What is a cambium?' | cambium chat --model out/gpt --temperature 0\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
};

/* ---- answers ---- */

/* Reasoning is dim at a terminal, and has marks elsewhere. Standard output gets it only if it is a terminal; otherwise
 * standard error does. */
struct shown {
    FILE *reasoning;
    bool is_dim, is_reasoning;
};

static int switch_reasoning(struct shown *shown) {
    static const char *const marks[2][2] = {{"\n</think>\n\n", "<think>\n"}, {"\x1b[22m\n\n", "\x1b[2m"}};
    shown->is_reasoning = !shown->is_reasoning;
    if (fputs(marks[shown->is_dim][shown->is_reasoning], shown->reasoning) < 0 || fflush(shown->reasoning))
        return status_fail_errno("cannot write the reasoning");
    return STATUS_OK;
}

static int print_text(void *context, const char *bytes, size_t length, bool is_reasoning) {
    struct shown *shown = context;
    if (is_reasoning != shown->is_reasoning)
        TRY(switch_reasoning(shown));
    return job_print_text(is_reasoning ? shown->reasoning : stdout, bytes, length);
}

static bool is_interrupted(void *context) {
    return stop_requested() != 0;
}

/* Prints the answer to a question, and a line end after it. */
static int ask(struct conversation *conversation, const struct strbuf *question, enum finish_reason *reason) {
    struct shown shown = {.reasoning = isatty(STDOUT_FILENO) ? stdout : stderr};
    const struct conversation_output output = {
        .on_text = print_text, .is_interrupted = is_interrupted, .context = &shown};
    shown.is_dim = isatty(fileno(shown.reasoning));
    int status = conversation_ask(conversation, strbuf_text(question), question->length, &output, reason);
    if (shown.is_reasoning)
        switch_reasoning(&shown);
    return status ? status : job_print("\n", 1);
}

/* ---- commands of the conversation ---- */

enum { WORDS_MAX = 8 };
struct slash_line {
    struct conversation *conversation;
    char *words[WORDS_MAX]; /* [count] after the command's name */
    int count;
    bool is_last; /* ends the conversation */
};

static int show_adapters(struct slash_line *line) {
    const char *name;
    bool is_used;
    int number = 0;
    for (; conversation_adapter(line->conversation, number, &name, &is_used); number++)
        fprintf(stderr, "%s %s\n", is_used ? "*" : " ", name);
    if (!number)
        fprintf(stderr, "no adapter has a name: /adapter DIR takes one from its directory\n");
    return STATUS_OK;
}

static int choose_adapters(struct slash_line *line) {
    bool is_base = line->count == 1 && !strcmp(line->words[0], "-");
    return line->count
               ? conversation_use(line->conversation, (const char *const *)line->words, is_base ? 0 : line->count)
               : show_adapters(line);
}

static int reset(struct slash_line *line) {
    conversation_reset(line->conversation);
    return STATUS_OK;
}

static int save(struct slash_line *line) {
    return line->count == 1 ? conversation_save(line->conversation, line->words[0])
                            : status_fail(STATUS_USAGE, "/save needs the name of a file");
}

static int quit(struct slash_line *line) {
    line->is_last = true;
    return STATUS_OK;
}

static int show_help(struct slash_line *line);
static const struct {
    const char *name, *words, *help;
    int (*run)(struct slash_line *line);
    int most; /* words */
} slash_commands[] = {
    {"adapter", "[NAME...]", "answer with these adapters, by name or directory; -: with none; no name: list them",
     choose_adapters, PEFT_SLOT_IMAGES},
    {"reset", "", "forget the conversation", reset, 0},
    {"save", "FILE", "write the conversation to a new file, as a row for finetune --data", save, 1},
    {"help", "", "list these commands", show_help, 0},
    {"quit", "", "end the conversation, as Ctrl-D does", quit, 0},
};
enum { SLASH_COUNT = sizeof slash_commands / sizeof *slash_commands };

static int show_help(struct slash_line *line) {
    for (int i = 0; i < SLASH_COUNT; i++)
        fprintf(stderr, "/%-8s%-10s %s\n", slash_commands[i].name, slash_commands[i].words, slash_commands[i].help);
    return STATUS_OK;
}

static int fail_unknown(const char *name) {
    const char *names[SLASH_COUNT];
    for (int i = 0; i < SLASH_COUNT; i++)
        names[i] = slash_commands[i].name;
    const char *nearest = config_nearest(name, names, SLASH_COUNT);
    return status_fail(STATUS_USAGE,
                       "there is no command /%s%s%s%s; /help lists them, and a question may begin with a "
                       "blank",
                       name, nearest ? " (did you mean /" : "", nearest ? nearest : "", nearest ? "?)" : "");
}

/* Runs the command in `text`, which is cut into words. */
static int run_slash(struct slash_line *line, char *text) {
    char *rest = NULL, *name = strtok_r(text + 1, " \t", &rest);
    name = name ? name : "";
    for (char *word; line->count < WORDS_MAX && (word = strtok_r(NULL, " \t", &rest));)
        line->words[line->count++] = word;
    for (int i = 0; i < SLASH_COUNT; i++)
        if (!strcmp(name, slash_commands[i].name))
            return line->count > slash_commands[i].most
                       ? status_fail(STATUS_USAGE, "/%s takes %s", name,
                                     slash_commands[i].most ? slash_commands[i].words : "no word")
                       : slash_commands[i].run(line);
    return fail_unknown(name);
}

/* ---- the conversation ---- */

/* Reads a question: lines that end with \ continue on the next. */
static int read_question(struct line_editor *editor, struct strbuf *question, enum line_event *event) {
    struct strbuf line = STRBUF_INIT;
    bool continues = false;
    int status;
    strbuf_clear(question);
    do {
        status = line_editor_read(editor, !continues, &line, event);
        continues = !status && *event == LINE_TYPED && line.length && line.data[line.length - 1] == '\\';
        strbuf_add(question, strbuf_text(&line), line.length - continues);
        if (continues)
            strbuf_add_char(question, '\n');
        if (!status && *event == LINE_TYPED && line.length)
            line_editor_remember(editor, line.data);
    } while (continues);
    strbuf_free(&line);
    return status ? status : strbuf_status(question);
}

/* Returns the status of a failure that ends the conversation; reports any other. */
static int survive(int status) {
    bool is_fatal = status == STATUS_MEMORY || status == STATUS_PEER || ferror(stdout);
    if (status && !is_fatal)
        log_error("%s", status_text());
    return is_fatal ? status : STATUS_OK;
}

/* Answers one line. */
static int answer_line(struct conversation *conversation, struct strbuf *line, bool *is_last) {
    enum finish_reason reason = FINISH_STOP;
    if (*strbuf_text(line) == '/') {
        struct slash_line command_line = {.conversation = conversation};
        int status = run_slash(&command_line, line->data);
        *is_last = command_line.is_last;
        return survive(status);
    }
    if (!strbuf_text(line)[strspn(strbuf_text(line), " \t\n")])
        return STATUS_OK;
    int status = ask(conversation, line, &reason);
    if (reason == FINISH_LENGTH && !status)
        log_info("the answer ends here: --max-new-tokens, or the end of the context");
    *is_last = stop_requested() == SIGTERM;
    if (!*is_last)
        stop_take();
    return survive(status);
}

static int talk_at_terminal(const struct chat_command *c, struct conversation *conversation) {
    struct strbuf line = STRBUF_INIT;
    struct line_editor *editor;
    bool is_last = false;
    int status = line_editor_open(c->edits, c->keeps_history ? "chat_history" : NULL, &editor);
    if (!status)
        log_info("Ctrl-C ends an answer, Ctrl-D the conversation; /help lists the commands");
    while (!status && !is_last) {
        enum line_event event;
        status = read_question(editor, &line, &event);
        if (!status && event == LINE_TYPED)
            status = answer_line(conversation, &line, &is_last);
        else if (!status)
            fputs("\n", stderr);
        is_last |= event == LINE_END;
    }
    line_editor_close(editor);
    strbuf_free(&line);
    return status;
}

/* Answers standard input, which is one question. */
static int answer_input(struct conversation *conversation) {
    struct strbuf question = STRBUF_INIT;
    enum finish_reason reason;
    int status = job_read_input(&question);
    stop_watch_begin(); /* until then, SIGTERM ends the program at once */
    THEN_IF(status, !question.length, status_fail(STATUS_INVALID, "standard input has no question"));
    THEN(status, ask(conversation, &question, &reason));
    if (!status && reason == FINISH_INTERRUPTED)
        status = status_fail(STATUS_INTERRUPTED, "interrupted by %s", stop_name(stop_requested()));
    stop_watch_end();
    strbuf_free(&question);
    return status;
}

static int talk(void *context, struct conversation *conversation) {
    const struct chat_command *c = context;
    if (!isatty(STDIN_FILENO))
        return answer_input(conversation);
    stop_watch_begin();
    int status = talk_at_terminal(c, conversation);
    stop_watch_end();
    return status;
}

/* ---- the run ---- */

static int prepare(const struct launch *launch, const struct config *config, void *context) {
    struct chat_command *c = context;
    c->names.memory_is_given = config_is_given(config, "adapter-memory");
    c->base.tensor = c->base.pipeline = 1;
    if (!c->ask.max_tokens)
        c->ask.max_tokens = -1;
    int status = adapter_names_take(&c->base.adapters, &c->names);
    return status ? status : model_grid(&c->base, launch, false);
}

static int run(struct launch *launch, void *context) {
    struct chat_command *c = context;
    struct chat_job job = {.model = &c->base,
                           .names = &c->names,
                           .system = c->system,
                           .chat_template = c->chat_template,
                           .template_timeout = c->template_timeout,
                           .ask = &c->ask,
                           .talk = talk,
                           .context = c};
    return launch_run(launch, 1, chat_job_run, &job);
}

int command_chat(int argc, char **argv) {
    struct chat_command values = {0};
    ask_begin(&values.ask);
    const struct launch_steps steps = {
        .command = &command, .values = &values, .is_alone = true, .prepare = prepare, .run = run};
    return launch_command(&steps, argc, argv, &values);
}
