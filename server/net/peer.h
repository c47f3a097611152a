/* The address that a connection comes from, as text: one IPv4 address, or one /64 of IPv6, which is what a single
 * subscriber gets. */
#ifndef TANDEM_SERVER_NET_PEER_H
#define TANDEM_SERVER_NET_PEER_H

struct sockaddr;

enum { PEER_ADDRESS = 48 };

/* "192.0.2.7", "2001:db8:0:1::/64"; "" for anything else.  An IPv4 address mapped to IPv6 is the IPv4 address. */
void peer_address(const struct sockaddr *, char out[static PEER_ADDRESS]);

#endif
