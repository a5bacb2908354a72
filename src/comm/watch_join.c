/* The connections of the watch of ranks.
 *
 * Rank 0 listens on one port of all its addresses until all ranks have connected. The others do not know which of the
 * addresses they can reach (a bridge of containers has the same one on many hosts), so they try all at once. Rank 0
 * greets each connection with its word. A rank answers the first connection that greets it, and no other, with the
 * others' word and its number. */
#include "watch-internal.h"

#include "base/base.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 1024, ADDRESSES_TEXT = 512 };

union any_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static socklen_t fill(union any_address *at, const struct watch_address *from, uint16_t port) {
    *at = (union any_address){.v6 = {0}};
    if (from->family == AF_INET6) {
        at->v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port)};
        memcpy(&at->v6.sin6_addr, from->bytes, sizeof at->v6.sin6_addr);
        return sizeof at->v6;
    }
    at->v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
    memcpy(&at->v4.sin_addr, from->bytes, sizeof at->v4.sin_addr);
    return sizeof at->v4;
}

static void shut(int *fd) {
    close(*fd);
    *fd = -1;
}

/* Single bytes must be sent at once. */
static void set_options(int fd) {
    int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

/* ---- rank 0 ---- */

/* Adds an address at which this or another host may reach rank 0, unless it is valid only on one link. */
static void add_address(const struct sockaddr *from, unsigned flags, struct watch_card *card) {
    const union any_address *address = (const union any_address *)from;
    if (!from || !(flags & IFF_UP) || card->address_count == WATCH_ADDRESSES)
        return;
    struct watch_address *at = &card->addresses[card->address_count];
    if (from->sa_family == AF_INET)
        memcpy(at->bytes, &address->v4.sin_addr, sizeof address->v4.sin_addr);
    else if (from->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&address->v6.sin6_addr))
        memcpy(at->bytes, &address->v6.sin6_addr, sizeof address->v6.sin6_addr);
    else
        return;
    at->family = from->sa_family;
    card->address_count++;
}

static int list_addresses(struct watch_card *card) {
    struct ifaddrs *all;
    if (getifaddrs(&all))
        return status_fail_errno("cannot list this host's addresses");
    for (const struct ifaddrs *one = all; one; one = one->ifa_next)
        add_address(one->ifa_addr, one->ifa_flags, card);
    freeifaddrs(all);
    return STATUS_OK;
}

/* Opens one listening socket for IPv6 and IPv4, or only for IPv4 if the host has nothing else. */
static int open_door(struct watch *watch, uint16_t *port) {
    union any_address at = {.v6 = {.sin6_family = AF_INET6}};
    socklen_t length = sizeof at.v6;
    int no = 0;
    watch->listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (watch->listener >= 0) {
        setsockopt(watch->listener, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
        if (bind(watch->listener, &at.any, length))
            shut(&watch->listener);
    }
    if (watch->listener < 0) {
        at = (union any_address){.v4 = {.sin_family = AF_INET}};
        length = sizeof at.v4;
        watch->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (watch->listener < 0 || bind(watch->listener, &at.any, length))
            return status_fail_errno("cannot listen for the other ranks");
    }
    if (listen(watch->listener, BACKLOG) || getsockname(watch->listener, &at.any, &length))
        return status_fail_errno("cannot listen for the other ranks");
    *port = ntohs(at.any.sa_family == AF_INET6 ? at.v6.sin6_port : at.v4.sin_port);
    return STATUS_OK;
}

int watch_listen(struct watch *watch, struct watch_card *card) {
    int status = list_addresses(card);
    THEN(status, open_door(watch, &card->port));
    if (!status && (getrandom(watch->leaders_word, WATCH_WORD_BYTES, 0) != WATCH_WORD_BYTES ||
                    getrandom(watch->others_word, WATCH_WORD_BYTES, 0) != WATCH_WORD_BYTES))
        status = status_fail_errno("cannot draw random bytes");
    memcpy(card->leaders_word, watch->leaders_word, WATCH_WORD_BYTES);
    memcpy(card->others_word, watch->others_word, WATCH_WORD_BYTES);
    return status;
}

void watch_accept(struct watch *watch) {
    for (int i = 0; i < WATCH_GUESTS; i++) {
        struct watch_guest *guest = &watch->guests[i];
        if (guest->fd >= 0)
            continue;
        int fd = accept4(watch->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        *guest = (struct watch_guest){.fd = fd};
        set_options(fd);
        if (send(fd, watch->leaders_word, WATCH_WORD_BYTES, MSG_NOSIGNAL | MSG_DONTWAIT) != WATCH_WORD_BYTES)
            shut(&guest->fd);
    }
}

void watch_hear_guest(struct watch *watch, struct watch_guest *guest) {
    char *at = (char *)&guest->hello + guest->received;
    ssize_t count = recv(guest->fd, at, sizeof guest->hello - guest->received, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    guest->received += count > 0 ? (size_t)count : 0;
    if (count > 0 && guest->received < sizeof guest->hello)
        return;
    const struct watch_hello *hello = &guest->hello;
    bool is_rank = count > 0 && !memcmp(hello->word, watch->others_word, WATCH_WORD_BYTES) && hello->rank > 0 &&
                   hello->rank < watch->peer_count && watch->peers[hello->rank].state == PEER_AWAITED;
    if (is_rank) { /* member by member: other threads read its signs */
        struct watch_peer *peer = &watch->peers[hello->rank];
        peer->state = PEER_HERE;
        peer->fd = guest->fd;
        peer->silent = 0;
    } else {
        close(guest->fd);
    }
    guest->fd = -1;
}

void watch_close_door(struct watch *watch) {
    if (watch->listener < 0)
        return;
    for (int r = 0; r < watch->peer_count; r++)
        if (watch->peers[r].state == PEER_AWAITED)
            return;
    shut(&watch->listener);
    for (int i = 0; i < WATCH_GUESTS; i++)
        if (watch->guests[i].fd >= 0)
            shut(&watch->guests[i].fd);
}

/* ---- the others ---- */

struct attempt {
    int fd; /* -1: none, or it failed */
    size_t received;
    unsigned char word[WATCH_WORD_BYTES];
};

/* Reads the greeting. Returns true if it is rank 0's. */
static bool is_greeted(struct attempt *attempt, const struct watch_card *card) {
    ssize_t count =
        recv(attempt->fd, attempt->word + attempt->received, WATCH_WORD_BYTES - attempt->received, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    attempt->received += count > 0 ? (size_t)count : 0;
    if (count > 0 && attempt->received < WATCH_WORD_BYTES)
        return false;
    if (count > 0 && !memcmp(attempt->word, card->leaders_word, WATCH_WORD_BYTES))
        return true;
    shut(&attempt->fd);
    return false;
}

/* Returns the first connection that rank 0 greets, or -1. */
static int find_leader(struct attempt *attempts, int count, const struct watch_card *card, double seconds) {
    struct pollfd polled[WATCH_ADDRESSES];
    double end = clock_seconds() + seconds;
    for (int pending = 1; pending;) {
        int wait = (int)((end - clock_seconds()) * 1000);
        pending = 0;
        for (int i = 0; i < count; i++) {
            polled[i] = (struct pollfd){.fd = attempts[i].fd, .events = POLLIN};
            pending += attempts[i].fd >= 0;
        }
        if (wait <= 0 || (pending && poll(polled, (nfds_t)count, wait) < 0 && errno != EINTR))
            return -1;
        for (int i = 0; i < count; i++)
            if (attempts[i].fd >= 0 && polled[i].revents && is_greeted(&attempts[i], card))
                return i;
    }
    return -1;
}

static int fail_to_reach(const struct watch *watch, const struct watch_card *card) {
    char text[ADDRESSES_TEXT] = "", one[INET6_ADDRSTRLEN];
    size_t used = 0;
    for (int i = 0; i < card->address_count && used + sizeof one + 2 < sizeof text; i++)
        if (inet_ntop(card->addresses[i].family, card->addresses[i].bytes, one, sizeof one))
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", used ? ", " : "", one);
    return status_fail(STATUS_IO,
                       "rank %d cannot reach rank 0 over TCP, port %d of %s: the ranks watch each other there",
                       watch->options.rank, card->port, used ? text : "no address");
}

int watch_connect(struct watch *watch, const struct watch_card *card, double seconds) {
    struct attempt attempts[WATCH_ADDRESSES];
    struct watch_hello hello = {.rank = watch->options.rank};
    int count = card->address_count < WATCH_ADDRESSES ? card->address_count : WATCH_ADDRESSES;
    memcpy(hello.word, card->others_word, WATCH_WORD_BYTES);
    memset(attempts, 0, sizeof attempts);
    for (int i = 0; i < count; i++) {
        union any_address at;
        socklen_t length = fill(&at, &card->addresses[i], card->port);
        attempts[i].fd = socket(card->addresses[i].family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (attempts[i].fd >= 0 && connect(attempts[i].fd, &at.any, length) && errno != EINPROGRESS)
            shut(&attempts[i].fd);
    }
    int found = find_leader(attempts, count, card, seconds);
    for (int i = 0; i < count; i++)
        if (i != found && attempts[i].fd >= 0)
            close(attempts[i].fd);
    if (found < 0)
        return fail_to_reach(watch, card);
    watch->peers[0] = (struct watch_peer){.state = PEER_HERE, .fd = attempts[found].fd};
    set_options(watch->peers[0].fd);
    if (send(watch->peers[0].fd, &hello, sizeof hello, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof hello)
        return fail_to_reach(watch, card);
    return STATUS_OK;
}
