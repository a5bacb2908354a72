/* The watch of ranks: several in this process, which report what they find instead of ending it, and ranks played by
 * the test itself over plain sockets. */
#include "comm/watch.h"

#include "support/test.h"

#include "base/base.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 4 };
static const double seconds = 1, beat = 0.25;

/* The report of a rank's watch. */
struct report {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int count, rank;
    bool has_line;
    char line[128];
};

static void take(void *context, int rank, const char *line) {
    struct report *report = context;
    pthread_mutex_lock(&report->lock);
    report->count++;
    report->rank = rank;
    report->has_line = line != NULL;
    snprintf(report->line, sizeof report->line, "%s", line ? line : "");
    pthread_cond_broadcast(&report->changed);
    pthread_mutex_unlock(&report->lock);
}

/* Waits for at most `most` seconds; returns whether there is a report. */
static bool has_report(struct report *report, double most) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    int64_t nanoseconds = end.tv_nsec + (int64_t)(most * 1e9);
    end.tv_sec += nanoseconds / 1000000000;
    end.tv_nsec = nanoseconds % 1000000000;
    pthread_mutex_lock(&report->lock);
    while (!report->count && !pthread_cond_timedwait(&report->changed, &report->lock, &end))
        ;
    bool is_there = report->count > 0;
    pthread_mutex_unlock(&report->lock);
    return is_there;
}

static void expect_report(struct report *report, double most, const char *line) {
    assert_true(has_report(report, most));
    assert_int_equal(report->count, 1);
    assert_int_equal(report->has_line, line != NULL);
    if (line)
        assert_string_equal(report->line, line);
}

static void rest(double time) {
    clock_nanosleep(CLOCK_MONOTONIC, 0,
                    &(struct timespec){.tv_sec = (time_t)time, .tv_nsec = (long)((time - (double)(time_t)time) * 1e9)},
                    NULL);
}

struct world {
    struct watch_card card;
    struct watch *watches[RANKS]; /* NULL: a rank that the test plays */
    int sockets[RANKS];           /* of those; -1: none */
    struct report reports[RANKS];
};

static struct watch_options options_of(struct world *world, int rank) {
    return (struct watch_options){
        .rank = rank, .size = RANKS, .seconds = seconds, .on_end = take, .context = &world->reports[rank]};
}

static void lead(struct world *world) {
    memset(world, 0, sizeof *world);
    for (int r = 0; r < RANKS; r++) {
        world->sockets[r] = -1;
        pthread_mutex_init(&world->reports[r].lock, NULL);
        pthread_cond_init(&world->reports[r].changed, NULL);
    }
    struct watch_options options = options_of(world, 0);
    test_ok(watch_lead(&options, &world->card, &world->watches[0]));
}

static void join(struct world *world, int rank) {
    struct watch_options options = options_of(world, rank);
    test_ok(watch_join(&options, &world->card, &world->watches[rank]));
}

static int reach(const struct world *world) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(world->card.port)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

/* Connects as a rank does: reads the greeting, then sends the others' word and the rank. */
static void play(struct world *world, int rank) {
    unsigned char greeting[WATCH_WORD_BYTES];
    int32_t number = rank;
    int fd = world->sockets[rank] = reach(world);
    assert_int_equal(recv(fd, greeting, sizeof greeting, MSG_WAITALL), sizeof greeting);
    assert_memory_equal(greeting, world->card.leaders_word, sizeof greeting);
    assert_int_equal(send(fd, world->card.others_word, WATCH_WORD_BYTES, 0), WATCH_WORD_BYTES);
    assert_int_equal(send(fd, &number, sizeof number, 0), sizeof number);
}

static void say(const struct world *world, int rank, char sign) {
    assert_int_equal(send(world->sockets[rank], &sign, 1, 0), 1);
}

static void close_world(struct world *world) {
    for (int r = 0; r < RANKS; r++) {
        watch_close(world->watches[r]);
        if (world->sockets[r] >= 0)
            close(world->sockets[r]);
        pthread_mutex_destroy(&world->reports[r].lock);
        pthread_cond_destroy(&world->reports[r].changed);
    }
}

static void expect_silence(struct world *world) {
    for (int r = 0; r < RANKS; r++)
        assert_false(has_report(&world->reports[r], 0));
}

/* ---- promises ---- */

static void ranks_that_live_are_not_reported(void **state) {
    (void)state;
    struct world world;
    lead(&world);
    for (int r = 1; r < RANKS; r++)
        join(&world, r);
    rest(seconds + beat);
    watch_close(world.watches[2]); /* in any order */
    world.watches[2] = NULL;
    rest(seconds + beat);
    watch_close(world.watches[0]);
    world.watches[0] = NULL;
    rest(seconds + beat);
    expect_silence(&world);
    close_world(&world);
}

static void a_dead_rank_is_named_at_once_by_one(void **state) {
    (void)state;
    struct world world;
    lead(&world);
    join(&world, 1);
    join(&world, 2);
    play(&world, 3);
    say(&world, 3, 'b');
    rest(beat);
    close(world.sockets[3]);
    world.sockets[3] = -1;
    expect_report(&world.reports[0], 10, "rank 3 has died");
    expect_report(&world.reports[1], 10, NULL);
    expect_report(&world.reports[2], 10, NULL);
    close_world(&world);
}

/* Speaks as `rank` for longer than the timeout. False where the machine held this thread up for so long that the others
 * may rightly call the rank silent. `spoken` is when it spoke last. */
static bool keep_speaking(const struct world *world, int rank, double *spoken) {
    double now = *spoken = clock_seconds();
    for (double end = now + 1.5 * seconds; now < end && now - *spoken < seconds / 2; now = clock_seconds()) {
        *spoken = now;
        say(world, rank, 'b');
        rest(beat);
    }
    return now - *spoken < seconds / 2;
}

static void a_silent_rank_is_named_after_the_timeout(void **state) {
    (void)state;
    struct world world;
    bool has_spoken = false;
    double spoken = 0;
    for (int attempt = 0; !has_spoken && attempt < 20; attempt++) {
        if (attempt > 0)
            close_world(&world);
        lead(&world);
        join(&world, 1);
        join(&world, 2);
        play(&world, 3);
        has_spoken = keep_speaking(&world, 3, &spoken);
    }
    assert_true(has_spoken);
    expect_silence(&world); /* as long as it speaks, nothing happens */
    expect_report(&world.reports[0], 10, "rank 3 has not been heard of for 1 s");
    assert_int_equal(world.reports[0].rank, 3);
    assert_true(clock_seconds() - spoken > seconds - 2 * beat);
    expect_report(&world.reports[2], 10, NULL);
    close_world(&world);
}

static void rank_0_knows_whose_thread_gives_signs(void **state) {
    (void)state;
    struct world world;
    uint64_t none, some;
    lead(&world);
    for (int r = 1; r < RANKS; r++)
        join(&world, r);
    for (double end = clock_seconds() + seconds + beat; clock_seconds() < end; rest(beat / 4))
        watch_give_sign(world.watches[2]);
    expect_silence(&world);
    for (int r = 0; r < RANKS; r++) {
        uint64_t count = 99;
        assert_true(watch_signs_of(world.watches[0], r, &count));
        assert_int_equal(count > 0, r == 2);
    }
    assert_true(watch_signs_of(world.watches[2], 2, &some) && some > 0);
    assert_true(watch_signs_of(world.watches[2], 0, &none) && none == 0);
    assert_false(watch_signs_of(world.watches[2], 1, &none));
    close_world(&world);
}

static void a_rank_that_never_comes_is_named(void **state) {
    (void)state;
    struct world world;
    lead(&world);
    join(&world, 1);
    join(&world, 3);
    expect_report(&world.reports[0], 10, "rank 2 has not been heard of for 1 s");
    expect_report(&world.reports[3], 10, NULL);
    close_world(&world);
}

/* A leader that the test plays. */
static void open_leader(struct world *world, int *listener) {
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t length = sizeof at;
    lead(world);
    watch_close(world->watches[0]);
    world->watches[0] = NULL;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(*listener, (const struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(*listener, RANKS), 0);
    assert_int_equal(getsockname(*listener, (struct sockaddr *)&at, &length), 0);
    world->card.port = ntohs(at.sin_port);
}

struct joining {
    struct world *world;
    int rank, status;
    char text[256];
};

static void *join_thread(void *context) {
    struct joining *joining = context;
    struct watch_options options = options_of(joining->world, joining->rank);
    joining->status = watch_join(&options, &joining->world->card, &joining->world->watches[joining->rank]);
    snprintf(joining->text, sizeof joining->text, "%s", joining->status ? status_text() : "");
    return NULL;
}

/* Lets a rank join the leader that the test plays; its end of the connection. */
static int let_in(struct world *world, int listener, int rank) {
    struct joining joining = {.world = world, .rank = rank};
    unsigned char hello[WATCH_WORD_BYTES + sizeof(int32_t)];
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, join_thread, &joining), 0);
    int fd = accept(listener, NULL, NULL);
    assert_int_equal(send(fd, world->card.leaders_word, WATCH_WORD_BYTES, 0), WATCH_WORD_BYTES);
    assert_int_equal(recv(fd, hello, sizeof hello, MSG_WAITALL), sizeof hello);
    pthread_join(thread, NULL);
    assert_int_equal(joining.status, STATUS_OK);
    return fd;
}

/* Loses the leader of ranks 1 and 2: it closes its connections, or says nothing more. Rank 2 may report it no earlier
 * than `least` seconds from now: by then the launcher has ended it. */
static void lose_leader(bool is_dead, const char *line, double least) {
    struct world world;
    int listener, fds[2];
    open_leader(&world, &listener);
    double start = clock_seconds();
    for (int i = 0; i < 2; i++)
        fds[i] = let_in(&world, listener, 1 + i);
    for (int i = 0; i < 2 && is_dead; i++)
        close(fds[i]);
    expect_report(&world.reports[1], 10, line);
    expect_report(&world.reports[2], 10, line);
    assert_true(clock_seconds() - start > least - beat);
    for (int i = 0; i < 2 && !is_dead; i++)
        close(fds[i]);
    close(listener);
    close_world(&world);
}

static void rank_1_names_a_lost_leader_a_timeout_before_the_others(void **state) {
    (void)state;
    lose_leader(true, "rank 0 has died", seconds);
    lose_leader(false, "rank 0 has not been heard of for 1 s", 2 * seconds);
}

/* A rank that fails says so itself: nobody says that it died. */
static void a_failure_that_is_reported_is_not_reported_again(void **state) {
    (void)state;
    for (int failed = 0; failed < 2; failed++) {
        struct world world;
        lead(&world);
        for (int r = 1; r < RANKS; r++)
            join(&world, r);
        rest(beat);
        watch_fail(world.watches[failed]);
        for (int r = 0; r < RANKS; r++)
            if (r != failed)
                expect_report(&world.reports[r], 10, NULL);
        assert_false(has_report(&world.reports[failed], 0));
        close_world(&world);
    }
}

/* A connection without the words does not become a rank, and strangers keep no rank out. */
static void strangers_stay_outside(void **state) {
    (void)state;
    enum { STRANGERS = 100 };
    struct world world;
    int strangers[STRANGERS];
    unsigned char wrong[WATCH_WORD_BYTES + sizeof(int32_t)] = {0};
    lead(&world);
    for (int i = 0; i < STRANGERS; i++) {
        strangers[i] = reach(&world);
        if (i % 2)
            wrong[WATCH_WORD_BYTES] = 3;
        assert_int_equal(send(strangers[i], wrong, sizeof wrong, MSG_NOSIGNAL), sizeof wrong);
    }
    for (int r = 1; r < RANKS; r++)
        join(&world, r);
    for (int i = 0; i < STRANGERS; i++) {
        char byte;
        while (recv(strangers[i], &byte, 1, 0) > 0)
            ;
        close(strangers[i]);
    }
    rest(seconds + beat);
    expect_silence(&world);
    close_world(&world);
}

/* A rank answers only a greeting with rank 0's word. */
static void a_rank_joins_rank_0_alone(void **state) {
    (void)state;
    struct world world;
    int listener;
    char bytes[64] = {0};
    open_leader(&world, &listener);
    struct joining joining = {.world = &world, .rank = 2};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, join_thread, &joining), 0);
    int fd = accept(listener, NULL, NULL);
    assert_int_equal(send(fd, bytes, WATCH_WORD_BYTES, 0), WATCH_WORD_BYTES);
    assert_true(recv(fd, bytes, sizeof bytes, 0) <= 0);
    pthread_join(thread, NULL);
    assert_int_equal(joining.status, STATUS_IO);
    assert_non_null(strstr(joining.text, "rank 2 cannot reach rank 0 over TCP, port "));
    assert_null(world.watches[2]);
    close(fd);
    close(listener);
    close_world(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_live_are_not_reported),
        cmocka_unit_test(a_dead_rank_is_named_at_once_by_one),
        cmocka_unit_test(a_silent_rank_is_named_after_the_timeout),
        cmocka_unit_test(rank_0_knows_whose_thread_gives_signs),
        cmocka_unit_test(a_rank_that_never_comes_is_named),
        cmocka_unit_test(rank_1_names_a_lost_leader_a_timeout_before_the_others),
        cmocka_unit_test(a_failure_that_is_reported_is_not_reported_again),
        cmocka_unit_test(strangers_stay_outside),
        cmocka_unit_test(a_rank_joins_rank_0_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
