/* The queue of spans and its thread: every span is counted once, and a collector that says nothing holds nobody up. */
#include "support/test.h"

#include "serve/otlp.h"

#include "base/base.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SPANS = 300, ADDERS = 3 };
static const char span[] = "{\"name\":\"a\"}";

/* A socket of loopback that listens, and the endpoint that names it. */
static int listen_somewhere(char endpoint[64]) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(listener >= 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, bytes), 0);
    assert_int_equal(listen(listener, 8), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &bytes), 0);
    snprintf(endpoint, 64, "http://127.0.0.1:%d", ntohs(address.sin_port));
    return listener;
}

/* Answers requests until the listener is shut down; each is read to the end of its JSON. */
static void *collect(void *context) {
    static const char answer[] = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
    int listener = *(int *)context;
    for (int peer; (peer = accept(listener, NULL, NULL)) >= 0; close(peer)) {
        char bytes[4096];
        size_t kept = 0;
        for (ssize_t count; (count = read(peer, bytes + kept, sizeof bytes - kept)) > 0;) {
            kept += (size_t)count;
            if (kept >= 6 && !memcmp(bytes + kept - 6, "]}]}]}", 6))
                break;
            if (kept > 6) { /* the end is all that is looked for */
                memmove(bytes, bytes + kept - 6, 6);
                kept = 6;
            }
        }
        if (write(peer, answer, sizeof answer - 1) < 0)
            break;
    }
    return NULL;
}

static void *add_spans(void *context) {
    for (int i = 0; i < SPANS; i++)
        otlp_add(context, span, sizeof span - 1);
    return NULL;
}

static void every_span_is_sent_once(void **state) {
    (void)state;
    char endpoint[64];
    struct otlp *otlp;
    pthread_t collector, adders[ADDERS];
    uint64_t sent = 0, dropped = 0;
    int listener = listen_somewhere(endpoint);
    assert_int_equal(pthread_create(&collector, NULL, collect, &listener), 0);
    test_ok(otlp_open(endpoint, "1", &otlp));
    for (int i = 0; i < ADDERS; i++)
        assert_int_equal(pthread_create(&adders[i], NULL, add_spans, otlp), 0);
    for (int i = 0; i < ADDERS; i++)
        pthread_join(adders[i], NULL);
    otlp_drop(otlp);
    for (int tries = 0; tries < 3000 && sent + dropped < SPANS * ADDERS + 1; tries++) {
        usleep(10000);
        otlp_counts(otlp, &sent, &dropped);
    }
    assert_int_equal(sent, SPANS * ADDERS);
    assert_int_equal(dropped, 1);
    otlp_add(otlp, span, sizeof span - 1); /* and what waits goes out at the end */
    otlp_close(otlp);
    shutdown(listener, SHUT_RDWR);
    pthread_join(collector, NULL);
    close(listener);
}

static void what_does_not_fit_is_dropped_at_once(void **state) {
    (void)state;
    char endpoint[64];
    struct otlp *otlp;
    uint64_t sent, dropped;
    int listener = listen_somewhere(endpoint); /* which nobody accepts from */
    test_ok(otlp_open(endpoint, "1", &otlp));
    for (int i = 0; i < 2 * OTLP_QUEUE_SPANS; i++)
        otlp_add(otlp, span, sizeof span - 1);
    otlp_counts(otlp, &sent, &dropped);
    assert_int_equal(sent, 0);
    assert_in_range(dropped, OTLP_QUEUE_SPANS - 512, OTLP_QUEUE_SPANS); /* a batch may be under way */
    static char large[OTLP_QUEUE_BYTES + 1];
    otlp_add(otlp, large, sizeof large);
    uint64_t before = dropped;
    otlp_counts(otlp, &sent, &dropped);
    assert_int_equal(dropped, before + 1);
    otlp_close(otlp); /* the thread is left alone where it has not ended */
    close(listener);
    otlp_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_span_is_sent_once),
        cmocka_unit_test(what_does_not_fit_is_dropped_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
