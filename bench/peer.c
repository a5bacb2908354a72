#include "peer.h"

#include "base/base.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_ARGUMENTS = 8 };

struct bench_peer {
    const char *python;
    pid_t pid;
    int socket;
    FILE *answers;
};

extern char **environ;

static int start(struct bench_peer *peer, const char *script, const char *const *arguments) {
    const char *words[MOST_ARGUMENTS + 4] = {peer->python, "-c", script};
    int ends[2];
    for (int i = 0; i < MOST_ARGUMENTS && arguments[i]; i++)
        words[3 + i] = arguments[i];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
        return status_fail_errno("cannot open a socket");
    peer->socket = ends[0];
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none; /* it handles its signals, where this thread holds them back */
    sigemptyset(&none);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigmask(&attributes, &none);
    int error = posix_spawn_file_actions_init(&actions);
    if (!error)
        error = posix_spawn_file_actions_adddup2(&actions, ends[1], 0);
    if (!error)
        error = posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    if (!error)
        error = posix_spawnp(&peer->pid, peer->python, &actions, &attributes, (char *const *)words, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    close(ends[1]);
    if (error) {
        peer->pid = 0;
        return status_fail(error == ENOENT ? STATUS_NOT_FOUND : STATUS_IO, "cannot start %s: %s", peer->python,
                           strerror(error));
    }
    peer->answers = fdopen(ends[0], "r");
    return peer->answers ? STATUS_OK : status_fail_errno("cannot read from %s", peer->python);
}

static int read_answer(struct bench_peer *peer, json_t **answer) {
    json_t *object = json_loadf(peer->answers, JSON_DISABLE_EOF_CHECK, NULL);
    const char *error = json_string_value(json_object_get(object, "error"));
    int status = STATUS_OK;
    if (!json_is_object(object))
        status = status_fail(STATUS_IO, "%s ended without an answer", peer->python);
    else if (error)
        status = status_fail(STATUS_IO, "%s: %s", peer->python, error);
    if (status)
        json_decref(object);
    *answer = status ? NULL : object;
    return status;
}

int bench_peer_open(const char *python, const char *script, const char *const *arguments, struct bench_peer **out,
                    json_t **hello) {
    struct bench_peer *peer = *out = calloc(1, sizeof *peer);
    *hello = NULL;
    TRY(status_allocated(peer));
    *peer = (struct bench_peer){.python = python, .socket = -1};
    int status = start(peer, script, arguments);
    THEN(status, read_answer(peer, hello));
    if (status) {
        bench_peer_close(peer);
        *out = NULL;
    }
    return status;
}

int bench_peer_ask(struct bench_peer *peer, const char *word, const char *key, json_t **answer) {
    char line[64];
    int length = snprintf(line, sizeof line, "%s\n", word);
    *answer = NULL;
    if (send(peer->socket, line, (size_t)length, MSG_NOSIGNAL) != length)
        return status_fail(STATUS_IO, "%s has ended", peer->python);
    int status = read_answer(peer, answer);
    if (!status && !(json_number_value(json_object_get(*answer, key)) > 0))
        status = status_fail(STATUS_IO, "%s: an answer without \"%s\"", peer->python, key);
    return status;
}

int bench_peer_number(struct bench_peer *peer, const char *word, const char *key, double *number) {
    json_t *answer;
    int status = bench_peer_ask(peer, word, key, &answer);
    *number = json_number_value(json_object_get(answer, key));
    json_decref(answer);
    return status;
}

void bench_peer_close(struct bench_peer *peer) {
    if (!peer)
        return;
    if (peer->pid > 0) { /* done first: a peer whose socket closes during an answer ends with a traceback */
        kill(peer->pid, SIGTERM);
        waitpid(peer->pid, NULL, 0);
    }
    if (peer->answers)
        fclose(peer->answers);
    else if (peer->socket >= 0)
        close(peer->socket);
    free(peer);
}
