#include "line_history.h"

#include "base/base.h"
#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BYTES_MOST = 1 << 26, OWNER_ALONE = S_IRUSR | S_IWUSR };

/* Writes the directory of the program's state, as the XDG Base Directory Specification has it. */
static int find_directory(char out[PATH_MAX]) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (state && *state == '/')
        return file_join(out, PATH_MAX, state, "cambium");
    if (home && *home == '/')
        return file_join(out, PATH_MAX, home, ".local/state/cambium");
    return status_fail(STATUS_NOT_FOUND, "neither XDG_STATE_HOME nor HOME is the path of a directory");
}

/* Opens the file to append to it; -1: it cannot be, or is no regular file. */
static int open_to_append(const char *path) {
    struct stat facts;
    int descriptor = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, OWNER_ALONE);
    if (descriptor >= 0 && !fstat(descriptor, &facts) && S_ISREG(facts.st_mode) && !fchmod(descriptor, OWNER_ALONE))
        return descriptor;
    if (descriptor >= 0)
        close(descriptor);
    return -1;
}

/* Replaces the file by `text`. */
static void replace(const char *path, const char *text) {
    struct file_writer writer;
    if (file_writer_open(&writer, path))
        return;
    if (fchmod(fileno(writer.stream), OWNER_ALONE))
        file_writer_abort(&writer);
    else {
        fputs(text, writer.stream);
        file_writer_commit(&writer);
    }
}

static size_t count_lines(const char *text) {
    size_t count = 0;
    for (const char *end; (end = strchr(text, '\n')); text = end + 1)
        count++;
    return count;
}

static char *skip_lines(char *text, size_t count) {
    for (; count; count--)
        text = strchr(text, '\n') + 1;
    return text;
}

void line_history_open(struct line_history *history, const char *name, size_t most,
                       void (*recall)(void *context, const char *line), void *context) {
    char directory[PATH_MAX], *rest = NULL;
    struct strbuf text = STRBUF_INIT;
    int descriptor = -1;
    *history->path = '\0';
    if (!find_directory(directory) && !file_make_directories(directory) &&
        !file_join(history->path, sizeof history->path, directory, name))
        descriptor = open_to_append(history->path);
    if (descriptor < 0) {
        *history->path = '\0';
        return;
    }
    close(descriptor);
    if (!file_read(history->path, BYTES_MOST, &text) && text.length) {
        size_t count = count_lines(text.data);
        char *last = skip_lines(text.data, count > most ? count - most : 0);
        if (count > 2 * most)
            replace(history->path, last);
        for (char *line = strtok_r(last, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
            recall(context, line);
    }
    strbuf_free(&text);
}

void line_history_add(const struct line_history *history, const char *line) {
    struct strbuf text = STRBUF_INIT;
    int descriptor = *history->path ? open_to_append(history->path) : -1;
    if (descriptor < 0)
        return;
    strbuf_format(&text, "%s\n", line);
    file_write_all(descriptor, strbuf_text(&text), text.length, history->path); /* in one call, beside other programs */
    strbuf_free(&text);
    close(descriptor);
}
