/* Opens, reloads and closes the daemon's keys and certificate (credentials.h). */
#include "server/access/credentials.h"

#include "engine/base/log.h"
#include "server/access/auth.h"
#include "server/access/keys.h"
#include "server/net/tls.h"

int credentials_open(struct credentials *c, const struct settings *set, struct metrics *metrics, struct err *e)
{
    *c = (struct credentials){.set = set, .metrics = metrics};
    if (!*set->tls_cert != !*set->tls_key)
        return err_set(e, ERR_INVALID, "--tls-cert and --tls-key belong together: the %s is missing",
                       *set->tls_cert ? "key" : "certificate");
    if (*set->tls_cert && !(c->tls = tls_open(set->tls_cert, set->tls_key, e))) return e->code;
    if (!*set->api_keys) return 0;
    if (!(c->keys = keys_open(set->api_keys, e))) return err_prefix(e, "--api-keys");
    if (!keys_count(c->keys)) /* not treated as "no file", which would disable authentication */
        log_warn(
            "there is no good key in the file: every request is refused until there is one (tandem key new) file=%s",
            set->api_keys);
    return 0;
}

void credentials_config(struct credentials *c, struct http_server_config *http)
{
    http->permit = auth_permits;
    http->permit_arg = c;
    http->release_key = key_release;
    http->tls = c->tls;
    http->local_only = !c->keys && !c->set->allow_open;
}

static void reload_keys(struct credentials *c)
{
    struct err e = {0};
    if (keys_reload(c->keys, &e))
        log_error("the API keys stay as they were: %s", e.msg);
    else
        log_info("API keys read again keys=%zu", keys_count(c->keys));
}

static void reload_tls(struct credentials *c)
{
    struct err e = {0};
    if (tls_reload(c->tls, &e))
        log_error("the certificate stays as it was: %s", e.msg);
    else
        log_info("certificate read again expires=%s", tls_expires(c->tls));
}

void credentials_reload(struct credentials *c)
{
    if (c->keys) reload_keys(c);
    if (c->tls) reload_tls(c);
}

void credentials_close(struct credentials *c)
{
    keys_close(c->keys);
    tls_close(c->tls);
    c->keys = NULL;
    c->tls = NULL;
}
