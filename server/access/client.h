/* Client identity: whom a request is counted for when clients share the queue, the thread pool and the engine.
 *
 * A client is its API key (by name) or, without keys, the address it connects from: one IPv4 address, or one /64 of
 * IPv6, which is what a single subscriber gets.  Everything behind one proxy is one client, unless it has keys. */
#ifndef TANDEM_SERVER_ACCESS_CLIENT_H
#define TANDEM_SERVER_ACCESS_CLIENT_H

#include <stdint.h>

struct http_req;
struct sockaddr;

enum { CLIENT_ADDRESS = 48, CLIENT_NAME = 80 };

/* "192.0.2.7", "2001:db8:0:1::/64"; "" for anything else.  An IPv4 address mapped to IPv6 is the IPv4 address. */
void client_address(const struct sockaddr *, char out[static CLIENT_ADDRESS]);

/* "key NAME" or "address ADDRESS": a key cannot take the name of an address. */
void client_name(const struct http_req *, char out[static CLIENT_NAME]);

/* A number for the name, never 0, which stands for the daemon itself.  It differs from process to process, so that
 * nobody can choose addresses that share a number with another client. */
uint64_t client_id(const struct http_req *);
uint64_t client_id_of(const char *name);

#endif
