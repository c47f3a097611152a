#include "server/access/client.h"

#include "engine/base/clock.h"
#include "server/access/keys.h"
#include "server/net/http.h"

#include <stdio.h>
#include <sys/random.h>

void client_name(const struct http_req *req, char out[static CLIENT_NAME])
{
    _Static_assert(CLIENT_NAME > KEY_NAME + sizeof "key ", "any key's name fits");
    if (req->key)
        snprintf(out, CLIENT_NAME, "key %.64s", req->key->name);
    else
        snprintf(out, CLIENT_NAME, "address %.47s", req->peer);
}

static uint64_t seed; /* loop thread only */

void client_set_seed(uint64_t s)
{
    seed = s;
}

uint64_t client_id_of(const char *name)
{
    if (!seed && getrandom(&seed, sizeof seed, GRND_NONBLOCK) != sizeof seed) seed = clock_unix();
    uint64_t h = seed |= 1;
    for (const char *p = name; *p; p++) { /* a step of splitmix64 for each byte */
        h = (h ^ (unsigned char)*p) * UINT64_C(0xbf58476d1ce4e5b9);
        h = (h ^ h >> 27) * UINT64_C(0x94d049bb133111eb);
        h ^= h >> 31;
    }
    return h ? h : 1;
}

uint64_t client_id(const struct http_req *req)
{
    char name[CLIENT_NAME];
    client_name(req, name);
    return client_id_of(name);
}
