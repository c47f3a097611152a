/* The route table.  Pure; owns nothing.
 *
 * An exact path goes before one with a parameter ("/train/{id}"), that before a prefix ("/files/" and a star), a longer
 * prefix before a shorter one.  GET routes answer
 * HEAD; OPTIONS is answered for every path that has any route. */
#include "server/net/route.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const char *const method_names[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"};

enum { PARAM_MAX = sizeof((struct route_match *)0)->param - 1 };

/* "/train/{id}/events": copies the segment at the braces to param.  @return whether the rest is equal. */
static bool path_param(const char *pattern, const char *path, char *param)
{
    const char *open = strchr(pattern, '{'), *close = open ? strchr(open, '}') : NULL;
    if (!close || strncmp(pattern, path, (size_t)(open - pattern)) != 0) return false;
    path += open - pattern;
    size_t n = strcspn(path, "/");
    if (n == 0 || n > PARAM_MAX || strcmp(close + 1, path + n) != 0) return false;
    memcpy(param, path, n);
    param[n] = 0;
    return true;
}

/* @return how well the route's path matches: 0 not at all, otherwise higher is better. */
static size_t path_fit(const char *pattern, const char *path, char *param)
{
    size_t n = strlen(pattern);
    if (n && pattern[n - 1] == '*') return strncmp(pattern, path, n - 1) == 0 ? n : 0;
    if (strcmp(pattern, path) == 0) return SIZE_MAX;
    return path_param(pattern, path, param) ? SIZE_MAX / 2 : 0;
}

static void allow_add(struct route_match *m, enum http_method method)
{
    const char *name = method_names[method];
    size_t used = strlen(m->allow);
    /* No method name is contained in another. */
    if (!strstr(m->allow, name)) snprintf(m->allow + used, sizeof m->allow - used, "%s%s", used ? ", " : "", name);
}

void route_find(const struct http_route *routes, int n, enum http_method method, const char *path,
                struct route_match *out)
{
    *out = (struct route_match){.status = 404};
    bool everything = strcmp(path, "*") == 0 && method == HTTP_M_OPTIONS;
    enum http_method wanted = method == HTTP_M_HEAD ? HTTP_M_GET : method;
    size_t best = 0;
    for (int i = 0; i < n; i++) {
        char param[sizeof out->param] = "";
        size_t fit = path_fit(routes[i].path, path, param);
        if ((!fit && !everything) || routes[i].method >= HTTP_M_OTHER) continue;
        allow_add(out, routes[i].method);
        if (routes[i].method == HTTP_M_GET) allow_add(out, HTTP_M_HEAD);
        if (routes[i].method == wanted && fit > best) {
            best = fit;
            out->route = &routes[i];
            memcpy(out->param, param, sizeof param);
        }
    }
    if (out->allow[0]) {
        allow_add(out, HTTP_M_OPTIONS);
        out->status = out->route ? 200 : method == HTTP_M_OPTIONS ? 204 : 405;
    }
}

bool route_near(const struct http_route *routes, int n, const char *path, char *out, size_t size)
{
    static const char lead[] = "/v1";
    struct route_match match;
    bool below = strncmp(path, "/v1/", 4) == 0;
    int used = snprintf(out, size, "%s%s", below ? "" : lead, below ? path + sizeof lead - 1 : path);
    if (used < 0 || (size_t)used >= size) return false;
    route_find(routes, n, HTTP_M_OTHER, out, &match);
    return match.status != 404 && out[1];
}
