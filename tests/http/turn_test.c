/* How much the transport reads and writes in one turn of the loop, and in which order. Clients of a unix socket have
 * sent everything before the first turn, so all of them can be read at any time. */
#include "support/test.h"

#include "http/listen.h"

#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    CLIENTS = 64,
    BODY = 100000,     /* bytes of a request's body, and of a long answer's */
    SLICE = 16 << 10,  /* of a connection, then the next */
    TURN = 256 << 10,  /* of all connections */
    SHORT = 500,       /* short requests at a time */
    MOST_SHORT = 128,  /* of them in a turn: each costs 2 KiB or more */
    PIPELINED = 32,    /* short requests that a client sends at once */
    MOST_TURNS = 10000 /* a test that needs more has failed */
};

struct client {
    int fd;
    size_t bytes; /* of its body, read so far */
    bool is_whole;
};

struct crowd {
    struct event_base *base;
    struct transport *transport;
    struct client clients[CLIENTS];
    size_t bytes; /* of all bodies */
    int greeted;  /* short requests */
    char *directory;
};

static void on_body(struct exchange *exchange, const unsigned char *bytes, size_t length) {
    (void)bytes;
    ((struct client *)exchange->context)->bytes += length;
}

static void on_end(struct exchange *exchange) {
    ((struct client *)exchange->context)->is_whole = true;
}

static const struct exchange_handler bodies = {.on_body = on_body, .on_end = on_end};

static const char body[BODY];

/* POST /N has the body of client N, GET / is the short request, and GET /long has a long answer. */
static void route(void *router, struct exchange *exchange) {
    struct crowd *crowd = router;
    if (!strcmp(exchange->head.method, "POST")) {
        exchange->handler = &bodies;
        exchange->context = &crowd->clients[atoi(exchange->head.path + 1)];
        return;
    }
    if (!strcmp(exchange->head.path, "/long")) {
        exchange_answer(exchange, 200, "text/plain", body, sizeof body);
        return;
    }
    crowd->greeted++;
    exchange_answer(exchange, 200, "text/plain", "hello", 5);
}

static void refuse(struct strbuf *text, int status, const char *problem) {
    (void)text;
    fail_msg("refused with %d: %s", status, problem);
}

static int connect_to(const struct crowd *crowd) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0), bytes = 4 * BODY;
    snprintf(address.sun_path, sizeof address.sun_path, "%s/socket", crowd->directory);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static void send_whole(int fd, const char *bytes, size_t length) {
    assert_int_equal(send(fd, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL), length);
}

static void send_body(const struct crowd *crowd, int number) {
    char head[100];
    int length =
        snprintf(head, sizeof head, "POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", number, BODY);
    send_whole(crowd->clients[number].fd, head, (size_t)length);
    send_whole(crowd->clients[number].fd, body, sizeof body);
}

static int open_transport(void **state) {
    struct crowd *crowd = *state = calloc(1, sizeof *crowd);
    char where[200];
    crowd->base = event_base_new();
    crowd->directory = test_directory();
    const struct transport_options options = {
        .base = crowd->base,
        .limits = {.connections = 1024,
                   .streams = 100,
                   .header_bytes = 16384,
                   .headers = 100,
                   .body_bytes = 8 << 20,
                   .stream_window = 256 << 10,
                   .connection_window = 4 << 20,
                   .output_bytes = 64 << 10,
                   .stream_output_bytes = 256 << 10,
                   .header_timeout = 600,
                   .idle_timeout = 600,
                   .write_timeout = 600,
                   .glitches = 1000,
                   .glitches_per_s = 100,
                   .resets = 1000,
                   .resets_per_s = 200,
                   .requests_per_connection = 1000},
        .route = route,
        .refuse = refuse,
        .router = crowd,
    };
    test_ok(transport_open(&options, &crowd->transport));
    snprintf(where, sizeof where, "unix:%s/socket", crowd->directory);
    test_ok(transport_bind(crowd->transport, LISTENER_DATA, where));
    test_ok(transport_accept(crowd->transport));
    for (int i = 0; i < CLIENTS; i++)
        crowd->clients[i].fd = -1;
    return 0;
}

static int open_crowd(void **state) {
    open_transport(state);
    struct crowd *crowd = *state;
    for (int i = 0; i < CLIENTS; i++)
        crowd->clients[i].fd = connect_to(crowd);
    return 0;
}

static int open_bodies(void **state) {
    open_crowd(state);
    for (int i = 0; i < CLIENTS; i++)
        send_body(*state, i);
    return 0;
}

static int close_crowd(void **state) {
    struct crowd *crowd = *state;
    transport_close(crowd->transport);
    event_base_free(crowd->base);
    for (int i = 0; i < CLIENTS; i++)
        if (crowd->clients[i].fd >= 0)
            close(crowd->clients[i].fd);
    free(crowd->directory);
    free(crowd);
    return 0;
}

/* Returns the bytes of bodies that a turn of the loop has read. */
static size_t turn(struct crowd *crowd) {
    size_t before = crowd->bytes;
    assert_int_equal(event_base_loop(crowd->base, EVLOOP_ONCE), 0);
    crowd->bytes = 0;
    for (int i = 0; i < CLIENTS; i++)
        crowd->bytes += crowd->clients[i].bytes;
    return crowd->bytes - before;
}

static void a_turn_does_not_grow_with_the_number_of_clients(void **state) {
    struct crowd *crowd = *state;
    int turns = 0;
    while (crowd->bytes < (size_t)CLIENTS * BODY) {
        assert_in_range(turn(crowd), 0, TURN);
        assert_true(++turns < MOST_TURNS);
    }
    turn(crowd);
    for (int i = 0; i < CLIENTS; i++)
        assert_true(crowd->clients[i].is_whole);
}

/* libevent reports more connections than 32 only in later turns, so the first may be a slice ahead of those. */
static void clients_take_turns(void **state) {
    struct crowd *crowd = *state;
    for (int turns = 0; crowd->bytes < (size_t)CLIENTS * BODY; turns++) {
        size_t least = BODY, most = 0;
        assert_true(turns < MOST_TURNS);
        turn(crowd);
        for (int i = 0; i < CLIENTS; i++) {
            size_t bytes = crowd->clients[i].bytes;
            least = bytes < least ? bytes : least;
            most = bytes > most ? bytes : most;
        }
        assert_true(most - least < 3 * SLICE);
    }
}

static const char get[] = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

static void a_short_request_waits_for_a_slice_of_each_client(void **state) {
    struct crowd *crowd = *state;
    for (int turns = 0; crowd->bytes < (size_t)CLIENTS * SLICE; turns++) {
        assert_true(turns < MOST_TURNS);
        turn(crowd);
    }
    int fd = connect_to(crowd);
    size_t before = crowd->bytes;
    send_whole(fd, get, sizeof get - 1);
    for (int turns = 0; !crowd->greeted; turns++) {
        assert_true(turns < MOST_TURNS);
        turn(crowd);
    }
    close(fd);
    assert_in_range(crowd->bytes - before, 0, CLIENTS * SLICE + 3 * TURN); /* three turns: accepted, reported, read */
}

static void short_requests_cost_more_than_their_bytes(void **state) {
    struct crowd *crowd = *state;
    int fds[SHORT];
    for (int i = 0; i < SHORT; i++)
        fds[i] = connect_to(crowd);
    for (int turns = 0; transport_connections(crowd->transport, LISTENER_DATA) < SHORT; turns++) {
        assert_true(turns < MOST_TURNS);
        turn(crowd);
    }
    for (int i = 0; i < SHORT; i++)
        send_whole(fds[i], get, sizeof get - 1);
    for (int turns = 0, before = 0; crowd->greeted < SHORT; turns++, before = crowd->greeted) {
        assert_true(turns < MOST_TURNS);
        turn(crowd);
        assert_in_range(crowd->greeted - before, 0, MOST_SHORT);
    }
    for (int i = 0; i < SHORT; i++)
        close(fds[i]);
}

static void requests_sent_at_once_are_counted_too(void **state) {
    struct crowd *crowd = *state;
    for (int i = 0; i < CLIENTS; i++)
        for (int j = 0; j < PIPELINED; j++)
            send_whole(crowd->clients[i].fd, get, sizeof get - 1);
    for (int turns = 0, before = 0; crowd->greeted < CLIENTS * PIPELINED; turns++, before = crowd->greeted) {
        assert_true(turns < MOST_TURNS);
        turn(crowd);
        /* The first of a client is counted when it is read, the next ones when the one before is answered. */
        assert_in_range(crowd->greeted - before, 0, 2 * MOST_SHORT + PIPELINED);
    }
}

/* Returns how many bytes have come to the clients, which read nothing. */
static size_t arrived(const struct crowd *crowd) {
    size_t bytes = 0;
    for (int i = 0; i < CLIENTS; i++) {
        int waiting = 0;
        assert_int_equal(ioctl(crowd->clients[i].fd, FIONREAD, &waiting), 0);
        bytes += (size_t)waiting;
    }
    return bytes;
}

static void answers_take_turns_as_well(void **state) {
    struct crowd *crowd = *state;
    static const char ask[] = "GET /long HTTP/1.1\r\nHost: a\r\n\r\n";
    for (int i = 0; i < CLIENTS; i++)
        send_whole(crowd->clients[i].fd, ask, sizeof ask - 1);
    size_t before = 0;
    for (int turns = 0; before < (size_t)CLIENTS * BODY; turns++) {
        assert_true(turns < MOST_TURNS);
        turn(crowd);
        size_t now = arrived(crowd);
        /* Those that waited since the last turn, and those just asked for; the last is written whole, with its head. */
        assert_in_range(now - before, 0, TURN + BODY + 1000);
        before = now;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_turn_does_not_grow_with_the_number_of_clients, open_bodies, close_crowd),
        cmocka_unit_test_setup_teardown(clients_take_turns, open_bodies, close_crowd),
        cmocka_unit_test_setup_teardown(a_short_request_waits_for_a_slice_of_each_client, open_bodies, close_crowd),
        cmocka_unit_test_setup_teardown(short_requests_cost_more_than_their_bytes, open_transport, close_crowd),
        cmocka_unit_test_setup_teardown(requests_sent_at_once_are_counted_too, open_crowd, close_crowd),
        cmocka_unit_test_setup_teardown(answers_take_turns_as_well, open_crowd, close_crowd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
