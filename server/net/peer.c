#include "server/net/peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

void peer_address(const struct sockaddr *from, char out[static PEER_ADDRESS])
{
    out[0] = 0;
    if (from->sa_family == AF_INET) {
        inet_ntop(AF_INET, &((const struct sockaddr_in *)from)->sin_addr, out, PEER_ADDRESS);
    } else if (from->sa_family == AF_INET6) {
        struct in6_addr a = ((const struct sockaddr_in6 *)from)->sin6_addr;
        if (IN6_IS_ADDR_V4MAPPED(&a)) {
            inet_ntop(AF_INET, a.s6_addr + 12, out, PEER_ADDRESS);
        } else {
            char net[INET6_ADDRSTRLEN] = "";
            memset(a.s6_addr + 8, 0, 8);
            inet_ntop(AF_INET6, &a, net, sizeof net);
            snprintf(out, PEER_ADDRESS, "%.43s/64", net);
        }
    }
}
