/* Keys and certificate of a daemon, opened, read again, closed (credentials.h). */
#include "server/access/credentials.h"

#include "engine/base/log.h"
#include "server/access/auth.h"
#include "server/access/keys.h"
#include "server/net/tls.h"

int credentials_open(struct app *app, struct err *e)
{
    const struct settings *set = app->set;
    if (!*set->tls_cert != !*set->tls_key)
        return err_set(e, ERR_INVALID, "--tls-cert and --tls-key belong together: the %s is missing",
                       *set->tls_cert ? "key" : "certificate");
    if (*set->tls_cert && !(app->tls = tls_open(set->tls_cert, set->tls_key, e))) return e->code;
    if (!*set->api_keys) return 0;
    if (!(app->keys = keys_open(set->api_keys, e))) return err_prefix(e, "--api-keys");
    if (!keys_count(app->keys)) /* not the same as no file: that would open to all what was meant to be shut */
        log_warn(
            "there is no good key in the file: every request is refused until there is one (tandem key new) file=%s",
            set->api_keys);
    return 0;
}

void credentials_config(const struct app *app, struct http_server_config *c)
{
    c->permit = auth_permits;
    c->release_key = key_release;
    c->tls = app->tls;
    c->local_only = !app->keys && !app->set->allow_open;
}

static void reload_keys(struct app *app)
{
    struct err e = {0};
    if (keys_reload(app->keys, &e))
        log_error("the API keys stay as they were: %s", e.msg);
    else
        log_info("API keys read again keys=%zu", keys_count(app->keys));
}

static void reload_tls(struct app *app)
{
    struct err e = {0};
    if (tls_reload(app->tls, &e))
        log_error("the certificate stays as it was: %s", e.msg);
    else
        log_info("certificate read again expires=%s", tls_expires(app->tls));
}

void credentials_reload(struct app *app)
{
    if (app->keys) reload_keys(app);
    if (app->tls) reload_tls(app);
}

void credentials_close(struct app *app)
{
    keys_close(app->keys);
    tls_close(app->tls);
    app->keys = NULL;
    app->tls = NULL;
}
