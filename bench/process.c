/* Programs that a benchmark starts: pipes, waiting, and their figures in /proc. */
#include "process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NO_PROGRAM = 127, MOST_ERRORS = 1 << 20 };

struct program {
    pid_t pid; /* 0: has ended */
    int status;
    FILE *output, *errors;
    char *line;
    size_t room;
};

int program_start(const char *const *words, struct program **out) {
    struct program *program = *out = calloc(1, sizeof *program);
    int ends[2];
    TRY(status_allocated(program));
    if (pipe2(ends, O_CLOEXEC)) {
        free(program);
        *out = NULL;
        return status_fail_errno("cannot open a pipe");
    }
    program->output = fdopen(ends[0], "r");
    program->errors = tmpfile();
    fflush(NULL);
    pid_t parent = getpid();
    program->pid = program->output && program->errors ? fork() : -1;
    if (program->pid == 0) {
        /* Runs in the child, between fork and exec. */
        signal(SIGPIPE, SIG_DFL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent && dup2(ends[1], STDOUT_FILENO) >= 0 &&
            dup2(fileno(program->errors), STDERR_FILENO) >= 0)
            execvp(words[0], (char *const *)words);
        _exit(NO_PROGRAM);
    }
    close(ends[1]);
    if (program->pid > 0)
        return STATUS_OK;
    int status = status_fail_errno("cannot start %s", words[0]);
    program->pid = 0;
    if (!program->output)
        close(ends[0]);
    program_close(program);
    *out = NULL;
    return status;
}

const char *program_line(struct program *program) {
    ssize_t length = getline(&program->line, &program->room, program->output);
    if (length <= 0)
        return NULL;
    if (program->line[length - 1] == '\n')
        program->line[length - 1] = 0;
    return program->line;
}

int program_errors(struct program *program, struct strbuf *text) {
    char part[4096];
    ssize_t count;
    off_t at = 0;
    while (at < MOST_ERRORS && (count = pread(fileno(program->errors), part, sizeof part, at)) > 0) {
        strbuf_add(text, part, (size_t)count);
        at += count;
    }
    return strbuf_status(text);
}

int program_id(const struct program *program) {
    return program->pid;
}

int64_t program_peak(const struct program *program) {
    char path[64];
    struct strbuf text = STRBUF_INIT;
    long long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", program->pid);
    const char *found = file_read(path, 1 << 16, &text) ? NULL : strstr(strbuf_text(&text), "VmHWM:");
    if (!found || sscanf(found, "VmHWM: %lld kB", &kib) != 1)
        kib = 0;
    strbuf_free(&text);
    return kib * 1024;
}

int program_end(struct program *program, bool terminates) {
    if (!program->pid)
        return program->status;
    if (terminates)
        kill(program->pid, SIGTERM);
    int ending;
    while (waitpid(program->pid, &ending, 0) < 0 && errno == EINTR)
        ;
    program->pid = 0;
    program->status = WIFEXITED(ending) ? WEXITSTATUS(ending) : 128 + WTERMSIG(ending);
    return program->status;
}

void program_close(struct program *program) {
    if (!program)
        return;
    if (program->pid) {
        kill(program->pid, SIGKILL);
        program_end(program, false);
    }
    if (program->output)
        fclose(program->output);
    if (program->errors)
        fclose(program->errors);
    free(program->line);
    free(program);
}

/* ---- threads ---- */

/* Reads a thread's time on a core from its schedstat. A thread that has just ended has none: returns false. */
static bool read_thread(int id, const char *thread, char name[32], double *seconds) {
    char path[300];
    unsigned long long nanoseconds = 0;
    bool has_both = false;
    snprintf(path, sizeof path, "/proc/%d/task/%s/comm", id, thread);
    FILE *file = fopen(path, "re");
    if (file) {
        has_both = fgets(name, 32, file) != NULL;
        fclose(file);
    }
    snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", id, thread);
    file = fopen(path, "re");
    if (file) {
        has_both &= fscanf(file, "%llu", &nanoseconds) == 1;
        fclose(file);
    }
    *seconds = 1e-9 * (double)nanoseconds;
    return has_both && file;
}

int program_read_ranks(int id, double *seconds, int ranks) {
    char path[64], name[32];
    snprintf(path, sizeof path, "/proc/%d/task", id);
    DIR *threads = opendir(path);
    if (!threads)
        return status_fail_errno("cannot read %s", path);
    memset(seconds, 0, (size_t)ranks * sizeof *seconds);
    for (const struct dirent *entry; (entry = readdir(threads));) {
        double taken;
        int rank = 0;
        if (entry->d_name[0] == '.' || !read_thread(id, entry->d_name, name, &taken))
            continue;
        if (sscanf(name, "rank %d", &rank) != 1 || rank < 0 || rank >= ranks)
            rank = 0;
        seconds[rank] += taken;
    }
    closedir(threads);
    return STATUS_OK;
}
