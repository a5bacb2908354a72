/* Addresses of clients, as numbers and as text. */
#include "connection-internal.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

uint64_t address_number(const struct sockaddr_storage *address) {
    const struct in6_addr *six = &((const struct sockaddr_in6 *)address)->sin6_addr;
    bool is_mapped = address->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(six);
    uint64_t number = 1;
    if (address->ss_family == AF_INET)
        number = ((const struct sockaddr_in *)address)->sin_addr.s_addr;
    else if (address->ss_family == AF_INET6)
        memcpy(&number, six->s6_addr + (is_mapped ? 8 : 0), sizeof number);
    return number ? number : 1;
}

void address_text(const struct sockaddr_storage *address, bool has_port, char *text, size_t bytes) {
    char host[INET6_ADDRSTRLEN] = "";
    const struct sockaddr_in *four = (const struct sockaddr_in *)address;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;
    if (address->ss_family == AF_INET) {
        inet_ntop(AF_INET, &four->sin_addr, host, sizeof host);
        snprintf(text, bytes, has_port ? "%s:%d" : "%s", host, ntohs(four->sin_port));
    } else if (address->ss_family == AF_INET6) {
        inet_ntop(AF_INET6, &six->sin6_addr, host, sizeof host);
        snprintf(text, bytes, has_port ? "[%s]:%d" : "%s", host, ntohs(six->sin6_port));
    } else {
        snprintf(text, bytes, "unix");
    }
}
