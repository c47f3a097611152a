/* Evaluates the headers by which browsers identify the requesting page (origin.h): Origin of Fetch and Sec-Fetch-Site
 * of Fetch Metadata, which a page cannot set itself, and Host. */
#include "server/access/origin.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

/* @return whether origin is http://HOST with the request's Host.  The scheme may differ: a proxy may terminate
 * HTTPS. */
static bool same_host(const char *origin, const char *host)
{
    const char *authority = strstr(origin, "://");
    return authority && host && strcasecmp(authority + 3, host) == 0;
}

bool origin_is_foreign(const char *fetch_site, const char *origin, const char *host, const char *allowed)
{
    if (allowed && (strcmp(allowed, "*") == 0 || (origin && *allowed && strcmp(allowed, origin) == 0))) return false;
    if (fetch_site) return strcmp(fetch_site, "same-origin") != 0 && strcmp(fetch_site, "none") != 0;
    return origin && !same_host(origin, host); /* "null" is a page with an opaque origin */
}

/* ---- Host ------------------------------------------------------------------------------------------------------- */

/* Extracts the host of "HOST", "HOST:PORT" or "[ADDRESS]:PORT", without brackets, port and final dot.  @return false
 * when malformed. */
static bool host_name(const char *host, char out[static ORIGIN_HOST_MAX])
{
    bool bracket = *host == '[';
    host += bracket;
    size_t n = strcspn(host, bracket ? "]" : ":");
    const char *rest = host + n + (bracket && host[n] == ']');
    if (n && host[n - 1] == '.') n--;
    if (!n || n >= ORIGIN_HOST_MAX || (bracket && host[strcspn(host, "]")] != ']')) return false;
    if (*rest && (*rest != ':' || rest[1 + strspn(rest + 1, "0123456789")])) return false;
    memcpy(out, host, n);
    out[n] = 0;
    return true;
}

static bool is_address(const char *name)
{
    struct in_addr v4;
    struct in6_addr v6;
    char plain[ORIGIN_HOST_MAX];
    size_t n = strcspn(name, "%"); /* fe80::1%eth0 */
    memcpy(plain, name, n);
    plain[n] = 0;
    return inet_pton(AF_INET, name, &v4) == 1 || inet_pton(AF_INET6, plain, &v6) == 1;
}

/* @return whether `name` is `domain`, or below it where `domain` begins with a dot. */
static bool is_below(const char *name, const char *domain, size_t len)
{
    size_t n = strlen(name);
    if (*domain != '.') return n == len && strncasecmp(name, domain, len) == 0;
    return n > len && strncasecmp(name + n - len, domain, len) == 0;
}

static bool is_listed(const char *name, const char *list)
{
    for (size_t len; list && *list; list += len + (list[len] == ',')) {
        list += strspn(list, " ");
        len = strcspn(list, ",");
        size_t used = len;
        while (used && list[used - 1] == ' ') used--;
        if ((used == 1 && *list == '*') || (used && is_below(name, list, used))) return true;
    }
    return false;
}

/* @return whether an attacker cannot register the name in public DNS: a single label (a Kubernetes or compose service,
 * a name in /etc/hosts) or a domain reserved for private use (RFC 6761, 6762, 8375; ICANN's .internal; .svc of
 * Kubernetes). */
static bool is_private(const char *name)
{
    return !strchr(name, '.') || is_listed(name, ".local,.internal,.home.arpa,.svc");
}

bool origin_host_known(const char *host, const struct origin_names *names)
{
    char name[ORIGIN_HOST_MAX];
    if (!host || is_listed("", names->allowed)) return true;
    if (!host_name(host, name)) return false;
    if (is_address(name) || is_listed(name, "localhost,.localhost") || is_listed(name, names->allowed)) return true;
    if (names->listen && strcasecmp(name, names->listen) == 0) return true;
    return !names->local && is_private(name);
}
