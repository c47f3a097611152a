/* Request ids and traceparent: parsing only, any thread. */
#include "server/net/request_id.h"

#include "engine/base/clock.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

bool request_id_valid(const char *s)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:/+=@~-";
    size_t n = strspn(s, allowed);
    return n > 0 && n <= REQUEST_ID_MAX && s[n] == 0;
}

void request_id_make(char out[REQUEST_ID_MAX + 1])
{
    static _Atomic uint64_t count;
    uint64_t v[2];
    if (getrandom(v, sizeof v, GRND_NONBLOCK) != sizeof v) { /* early at boot: unique, if not secret */
        v[0] = clock_unix();
        v[1] = atomic_fetch_add(&count, 1);
    }
    snprintf(out, REQUEST_ID_MAX + 1, "%016llx%016llx", (unsigned long long)v[0], (unsigned long long)v[1]);
}

/* @return whether s is n lower-case hex digits, not all 0 unless `zeros`, followed by `end`. */
static bool hex_field(const char *s, size_t n, bool zeros, char end)
{
    size_t digits = strspn(s, "0123456789abcdef");
    return digits == n && (s[n] == end || (end == 0 && s[n] == '-')) && (zeros || strspn(s, "0") != n);
}

bool trace_parent_parse(const char *s, struct trace_parent *out)
{
    *out = (struct trace_parent){0};
    if (!s || !hex_field(s, 2, true, '-') || strncmp(s, "ff", 2) == 0) return false;
    if (!hex_field(s + 3, 32, false, '-') || !hex_field(s + 36, 16, false, '-') || !hex_field(s + 53, 2, true, 0))
        return false;
    if (strncmp(s, "00", 2) == 0 && s[55]) return false; /* version 00 has no further fields */
    memcpy(out->trace_id, s + 3, 32);
    memcpy(out->span_id, s + 36, 16);
    out->sampled = strchr("13579bdf", s[54]) != NULL;
    return true;
}
