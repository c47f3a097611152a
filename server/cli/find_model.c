#include "server/cli/find_model.h"

#include "engine/base/mem.h"
#include "engine/model/options.h"
#include "server/cli/cmd.h"

#include <stdlib.h>

/* ---- what --model names ------------------------------------------------------------------------------------------ */

static int find_adapter(char **dir, const struct hub *h, struct err *e)
{
    struct hub adapters = *h;
    struct hub_found f = {0};
    if (!*dir) return 0;
    adapters.wants = HUB_ADAPTER;
    if (hub_resolve(&adapters, *dir, &f, e)) return e->code;
    free(*dir);
    *dir = f.path;
    f.path = NULL;
    hub_found_free(&f);
    return 0;
}

int cmd_find_model(struct settings *s, const struct hub *h, struct err *e)
{
    struct hub models = *h;
    struct hub_found f = {0};
    models.wants = HUB_MODEL;
    if (settings_given(s, "model")) { /* the default is a path */
        if (hub_resolve(&models, s->model, &f, e)) return e->code;
        s->model_dir = f.path;
        s->model_name = f.name;
    }
    if (s->draft_model && *s->draft_model) {
        if (hub_resolve(&models, s->draft_model, &f, e)) {
            err_prefix(e, "draft-model");
            return e->code;
        }
        s->draft_dir = f.path;
        free(f.name);
    }
    int rc = find_adapter(&s->adapter, h, e);
    if (!rc) rc = find_adapter(&s->from, h, e);
    s->adapter_dirs.v = mem_array((size_t)s->eval_adapters.n + 1, sizeof *s->adapter_dirs.v);
    for (int i = 0; i < s->eval_adapters.n && !rc; i++) {
        char **dir = &s->adapter_dirs.v[s->adapter_dirs.n++];
        *dir = mem_strdup(s->eval_adapters.v[i]);
        rc = find_adapter(dir, h, e);
    }
    return rc;
}

/* ---- a download in the foreground -------------------------------------------------------------------------------- */

static atomic_bool stop; /* lock-free: a signal handler sets it */

static void on_stop(int number)
{
    (void)number;
    atomic_store(&stop, true);
}

void hub_session_open(struct hub_session *c)
{
    struct sigaction sa = {.sa_handler = on_stop};
    *c = (struct hub_session){0};
    hub_open(&c->hub);
    c->hub.report = hub_print_progress;
    c->hub.report_arg = &c->printer;
    c->hub.stop = &stop;
    c->hub.check = model_worth_loading;
    sigaction(SIGINT, &sa, &c->was_int);
    sigaction(SIGTERM, &sa, &c->was_term);
}

int hub_session_close(struct hub_session *c, int rc, const struct err *e)
{
    sigaction(SIGINT, &c->was_int, NULL);
    sigaction(SIGTERM, &c->was_term, NULL);
    hub_close(&c->hub);
    if (!rc && !stop) return 0;
    hub_print_end(&c->printer);
    if (rc) cmd_fail(e);
    return stop ? EXIT_STOPPED : 1;
}
