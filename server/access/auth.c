/* The check of a request's key (auth.h), on its head alone.
 *
 * A key comes as `Authorization: Bearer KEY` (OpenAI's and Hugging Face's clients, the console) or as `X-Api-Key: KEY`;
 * never in the path, which is logged.  Tinker's client takes only keys that begin with "tml-", and sends tml-KEY.  A
 * wrong key and a revoked one get the same answer, which does not reveal that a leaked key was once valid.  Paths that
 * do not exist require a key like all others. */
#include "server/access/auth.h"

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "server/access/credentials.h"
#include "server/access/keys.h"
#include "server/access/origin.h"
#include "server/console/console.h"

#include <string.h>
#include <strings.h>
#include <time.h>

/* @return the key text that the client sent; NULL: none. */
static const char *presented(const struct http_req *req)
{
    const char *text = http_header(req, "Authorization");
    if (text && strncasecmp(text, "Bearer ", 7) == 0) {
        text += 7;
        text += strspn(text, " ");
    } else {
        text = http_header(req, "X-Api-Key");
    }
    if (text && strncmp(text, "tml-tdm_", 8) == 0) text += 4;
    return text && *text ? text : NULL;
}

/* @return false when the route is open to all. */
static bool role_needed(const struct http_req *req, enum key_role *role)
{
    *role = KEY_USER;
    if (!req->route) return req->method != HTTP_M_OPTIONS; /* a CORS preflight is sent without a key */
    switch (req->route->role) {
    case ROUTE_OPEN: return false;
    case ROUTE_PAGE: return !console_accepts(http_header(req, "Accept"));
    case ROUTE_USER: return true;
    case ROUTE_TRAIN: *role = KEY_TRAIN; return true;
    default: *role = KEY_ADMIN; return true;
    }
}

/* Logs at most one line per second, so that guessing keys cannot fill the disk. */
static void log_refused(struct credentials *c, const struct http_req *req, const char *why, const struct key *key)
{
    uint64_t now = clock_now();
    c->refused_unlogged++;
    if (c->refused_logged && now - c->refused_logged < 1000000000u) return;
    log_warn("request refused reason=%s route=%s key=%s refused=%u", why, req->route ? req->route->path : "none",
             key ? key->name : "-", c->refused_unlogged);
    c->refused_logged = now;
    c->refused_unlogged = 0;
}

static bool reply_unauthorized(struct credentials *c, struct http_req *req, enum key_verdict verdict, bool missing)
{
    metrics_reject(c->metrics, REJECT_UNAUTHORIZED);
    http_set_header(req, "WWW-Authenticate",
                    missing ? "Bearer realm=\"tandem\"" : "Bearer realm=\"tandem\", error=\"invalid_token\"");
    http_reply_error(req, 401, "invalid_api_key", "%s",
                     missing ? "an API key is needed; send it as the header \"Authorization: Bearer KEY\""
                     : verdict == KEY_EXPIRED ? "the API key has expired"
                                              : "the API key is not known here");
    return false;
}

static bool reply_forbidden(struct credentials *c, struct http_req *req, enum key_role needed, enum key_role has)
{
    metrics_reject(c->metrics, REJECT_FORBIDDEN);
    http_set_header(req, "WWW-Authenticate", "Bearer realm=\"tandem\", error=\"insufficient_scope\"");
    http_reply_error(req, 403, "insufficient_permissions", "this needs an API key with the role %s; this one's is %s",
                     key_roles[needed], key_roles[has]);
    return false;
}

/* Without keys, access depends on the client's address, and any page that a browser shows can send requests from that
 * address.  With keys, a page has access only if it was given one.  Requests that change nothing are permitted: without
 * CORS headers the page cannot read the answer. */
static bool page_permits(struct credentials *c, struct http_req *req)
{
    if (req->method == HTTP_M_GET || req->method == HTTP_M_HEAD || req->method == HTTP_M_OPTIONS) return true;
    const char *origin = http_header(req, "Origin");
    if (!origin_is_foreign(http_header(req, "Sec-Fetch-Site"), origin, http_header(req, "Host"), c->set->cors_origin))
        return true;
    log_refused(c, req, "foreign_page", NULL);
    metrics_reject(c->metrics, REJECT_FORBIDDEN);
    http_reply_error(req, 403, "insufficient_permissions",
                     "pages of %.200s may not call this server: it would have to be started with --cors-origin, or "
                     "with --api-keys",
                     origin ? origin : "another origin");
    return false;
}

/* DNS rebinding (origin.h).  With keys every page needs one anyway, and a TLS certificate already binds the name, so in
 * these cases Host is checked only when --allowed-hosts is set.  Routes that are open to all (probes) are answered
 * under any name. */
static bool host_permits(struct credentials *c, struct http_req *req)
{
    const struct settings *set = c->set;
    const char *host = http_header(req, "Host");
    struct origin_names names = {.listen = set->host, .allowed = set->allowed_hosts, .local = !set->allow_open};
    if ((c->keys || c->tls) && !*set->allowed_hosts) return true;
    if (req->route && req->route->role == ROUTE_OPEN) return true;
    if (origin_host_known(host, &names)) return true;
    log_refused(c, req, "unknown_host", NULL);
    metrics_reject(c->metrics, REJECT_FORBIDDEN);
    http_reply_error(
        req, 403, "insufficient_permissions",
        "this server is not called %.200s: use its address, or start it with --allowed-hosts and that name", host);
    return false;
}

bool auth_permits(void *arg, struct http_req *req)
{
    static const char *const why[] = {[KEY_WRONG] = "wrong_key", [KEY_REVOKED] = "revoked", [KEY_EXPIRED] = "expired"};
    struct credentials *c = arg;
    enum key_role needed;
    if (!host_permits(c, req)) return false;
    if (!c->keys) return page_permits(c, req);
    if (!role_needed(req, &needed)) return true;
    const char *text = presented(req);
    if (!text) {
        log_refused(c, req, "no_key", NULL);
        return reply_unauthorized(c, req, KEY_WRONG, true);
    }
    enum key_verdict verdict = keys_check(c->keys, text, (int64_t)time(NULL), &req->key);
    if (verdict != KEY_GOOD) {
        log_refused(c, req, why[verdict], req->key);
        return reply_unauthorized(c, req, verdict, false);
    }
    if (req->key->role >= needed) return true;
    log_refused(c, req, "role", req->key);
    return reply_forbidden(c, req, needed, req->key->role);
}
