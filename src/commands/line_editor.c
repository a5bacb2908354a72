/* Lines of a terminal. The functions and numbers of libedit are those of its public header; see editline(3). */
#include "line_editor.h"
#include "line_history.h"

#include <dlfcn.h>
#include <errno.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>
#include <wchar.h>

#define FIRST_PROMPT "> "
#define NEXT_PROMPT  ". " /* of a line that continues the one before */
enum { HISTORY_LINES = 1000, WAIT_MILLISECONDS = 100 };

/* Operations of el_set() and of history(). */
enum { EL_PROMPT = 0, EL_EDITOR = 2, EL_BIND = 4, EL_SETTY = 8, EL_HIST = 10, EL_GETCFN = 13 };
enum { H_SETSIZE = 1, H_ENTER = 10 };
struct history_event {
    int number;
    const char *text;
};

/* The functions of libedit, FUNCTION(member, name, type of the result, arguments). Their objects are opaque. */
#define LIBEDIT_FUNCTIONS(FUNCTION)                                                                                    \
    FUNCTION(init, el_init, void *, (const char *program, FILE *in, FILE *out, FILE *error))                           \
    FUNCTION(end, el_end, void, (void *el))                                                                            \
    FUNCTION(set, el_set, int, (void *el, int operation, ...))                                                         \
    FUNCTION(gets, el_gets, const char *, (void *el, int *count))                                                      \
    FUNCTION(resize, el_resize, void, (void *el))                                                                      \
    FUNCTION(history_init, history_init, void *, (void))                                                               \
    FUNCTION(history_end, history_end, void, (void *history))                                                          \
    FUNCTION(history, history, int, (void *history, struct history_event *event, int operation, ...))
#define MEMBER(member, name, result, arguments) result(*member) arguments;
struct libedit {
    void *library; /* of dlopen; NULL: not installed */
    LIBEDIT_FUNCTIONS(MEMBER)
};
#undef MEMBER

struct line_editor {
    struct libedit libedit;
    void *el, *history; /* of libedit; NULL: lines come as the terminal gives them */
    locale_t locale;    /* UTF-8, for libedit */
    FILE *out;          /* shows prompts: standard output, or standard error if that is no terminal */
    struct line_history kept;
    char bytes[4096];
    size_t start, end; /* of the bytes that were read and not yet used, without libedit */
};

/* ---- input ---- */

/* Waits for input: LINE_TYPED. It also looks for signals now and then, because another thread may have handled one. */
static enum line_event wait_for_input(void) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    for (;;) {
        int signal_number = stop_requested();
        if (signal_number == SIGTERM)
            return LINE_END;
        if (signal_number) {
            stop_take();
            return LINE_DROPPED;
        }
        if (poll(&input, 1, WAIT_MILLISECONDS) > 0)
            return LINE_TYPED;
    }
}

static ssize_t read_input(void *bytes, size_t size) {
    ssize_t count;
    do
        count = read(STDIN_FILENO, bytes, size);
    while (count < 0 && errno == EINTR);
    return count;
}

/* ---- libedit calls these ---- */

/* Reads the next character. Returns 1, or 0 at the end. A signal of Ctrl-C becomes that character. */
static int read_character(void *el, wchar_t *character) {
    mbstate_t state = {0};
    for (;;) {
        char byte;
        enum line_event event = wait_for_input();
        *character = 3;
        if (event == LINE_DROPPED)
            return 1;
        if (event == LINE_END || read_input(&byte, 1) <= 0)
            return 0;
        size_t used = mbrtowc(character, &byte, 1, &state);
        if (used <= 1)
            return 1;
        if (used == (size_t)-1)
            state = (mbstate_t){0}; /* no UTF-8: skip the byte */
    }
}

static char *show_prompt(void *el) {
    return (char *)FIRST_PROMPT;
}

static char *show_next_prompt(void *el) {
    return (char *)NEXT_PROMPT;
}

/* ---- opening ---- */

static bool find_functions(struct libedit *libedit) {
    bool is_complete = true;
    void *function;
#define FIND(member, name, result, arguments)                                                                          \
    function = dlsym(libedit->library, #name);                                                                         \
    memcpy(&libedit->member, &function, sizeof function);                                                              \
    is_complete &= function != NULL;
    LIBEDIT_FUNCTIONS(FIND)
#undef FIND
    return is_complete;
}

/* Prepares libedit. Ctrl-C clears the line. Ctrl-Z is no signal meanwhile, because libedit would not restore its
 * terminal afterwards. */
static bool prepare(struct line_editor *editor) {
    const struct libedit *libedit = &editor->libedit;
    struct history_event event;
    void *el = editor->el = libedit->init("cambium", stdin, editor->out, stderr);
    editor->history = libedit->history_init();
    if (!el || !editor->history)
        return false;
    libedit->history(editor->history, &event, H_SETSIZE, HISTORY_LINES);
    libedit->set(el, EL_HIST, libedit->history, editor->history);
    libedit->set(el, EL_GETCFN, read_character);
    return !libedit->set(el, EL_EDITOR, "emacs") && !libedit->set(el, EL_SETTY, "-d", "susp=", NULL) &&
           !libedit->set(el, EL_BIND, "^C", "ed-start-over", NULL);
}

static void close_libedit(struct line_editor *editor) {
    const struct libedit *libedit = &editor->libedit;
    if (editor->el)
        libedit->end(editor->el);
    if (editor->history)
        libedit->history_end(editor->history);
    if (libedit->library)
        dlclose(libedit->library);
    editor->el = editor->history = NULL;
    editor->libedit = (struct libedit){0};
}

/* Opens libedit, which then reads and shows UTF-8 whatever the environment's locale is. It stays loaded, because it
 * keeps the terminal's description for the life of the process. */
static void open_libedit(struct line_editor *editor) {
    editor->libedit.library = dlopen("libedit.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!editor->libedit.library)
        return;
    locale_t before = uselocale(editor->locale);
    if (!find_functions(&editor->libedit) || !prepare(editor))
        close_libedit(editor);
    uselocale(before);
}

/* Adds a line to the history of libedit. */
static void recall(void *context, const char *line) {
    struct line_editor *editor = context;
    struct history_event event;
    editor->libedit.history(editor->history, &event, H_ENTER, line);
}

int line_editor_open(bool edits, const char *history, struct line_editor **out) {
    struct line_editor *editor = *out = calloc(1, sizeof *editor);
    TRY(status_allocated(editor));
    editor->out = isatty(STDOUT_FILENO) ? stdout : stderr;
    editor->locale = edits ? newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0) : (locale_t)0;
    if (editor->locale)
        open_libedit(editor);
    if (editor->history && history)
        line_history_open(&editor->kept, history, HISTORY_LINES, recall, editor);
    return STATUS_OK;
}

void line_editor_close(struct line_editor *editor) {
    if (!editor)
        return;
    close_libedit(editor);
    if (editor->locale)
        freelocale(editor->locale);
    free(editor);
}

/* ---- lines ---- */

static enum line_event read_edited(struct line_editor *editor, bool is_first, struct strbuf *line) {
    const struct libedit *libedit = &editor->libedit;
    int count = 0;
    locale_t before = uselocale(editor->locale);
    libedit->resize(editor->el);
    libedit->set(editor->el, EL_PROMPT, is_first ? show_prompt : show_next_prompt);
    const char *text = libedit->gets(editor->el, &count);
    if (text && count > 0)
        strbuf_add(line, text, (size_t)count - (text[count - 1] == '\n'));
    uselocale(before);
    return text && count > 0 ? LINE_TYPED : LINE_END;
}

static int read_plain(struct line_editor *editor, struct strbuf *line, enum line_event *event) {
    for (;;) {
        char *from = editor->bytes + editor->start;
        char *end = memchr(from, '\n', editor->end - editor->start);
        size_t count = end ? (size_t)(end - from) : editor->end - editor->start;
        strbuf_add(line, from, count);
        editor->start += count + (end != NULL);
        if (end)
            return STATUS_OK;
        *event = wait_for_input();
        if (*event != LINE_TYPED)
            return STATUS_OK;
        ssize_t got = read_input(editor->bytes, sizeof editor->bytes);
        if (got < 0)
            return status_fail_errno("cannot read standard input");
        editor->start = 0;
        editor->end = (size_t)got;
        if (got == 0) {
            *event = line->length ? LINE_TYPED : LINE_END;
            return STATUS_OK;
        }
    }
}

int line_editor_read(struct line_editor *editor, bool is_first, struct strbuf *line, enum line_event *event) {
    int status = STATUS_OK;
    strbuf_clear(line);
    *event = LINE_TYPED;
    fflush(stdout);
    if (editor->el)
        *event = read_edited(editor, is_first, line);
    else {
        fputs(is_first ? FIRST_PROMPT : NEXT_PROMPT, editor->out);
        fflush(editor->out);
        status = read_plain(editor, line, event);
    }
    return status ? status : strbuf_status(line);
}

void line_editor_remember(struct line_editor *editor, const char *line) {
    if (!editor->history)
        return;
    recall(editor, line);
    line_history_add(&editor->kept, line);
}
