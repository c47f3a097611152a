#include "server/api/model_finder.h"

#include "engine/base/check.h"
#include "engine/base/crash.h"
#include "engine/base/mem.h"
#include "server/api/app.h"

#include <stdlib.h>
#include <uv.h>

struct finder {
    struct app *app;
    struct served_model *model;
    model_find_fn *find;
    model_found_fn *found;
    void (*closed)(void *);
    void *arg;
    uv_thread_t thread;
    uv_async_t over;
    char *dir; /* set by the thread */
    struct err e;
};

static void work(void *arg)
{
    struct finder *f = arg;
    crash_thread_begin();
    f->dir = f->find(f->app, f->model, &f->e);
    crash_thread_end();
    uv_async_send(&f->over);
}

static void on_closed(uv_handle_t *h)
{
    struct finder *f = h->data;
    f->closed(f->arg);
    free(f);
}

static void end(struct finder *f)
{
    f->found(f->arg, f->model, f->dir, &f->e);
    uv_close((uv_handle_t *)&f->over, on_closed);
}

static void on_over(uv_async_t *h)
{
    struct finder *f = h->data;
    uv_thread_join(&f->thread);
    end(f);
}

void model_finder_begin(struct app *app, struct served_model *m, model_find_fn *find, model_found_fn *found,
                        void (*closed)(void *arg), void *arg)
{
    struct finder *f = mem_zalloc(sizeof *f);
    *f = (struct finder){.app = app, .model = m, .find = find, .found = found, .closed = closed, .arg = arg};
    CHECK(uv_async_init(app->loop, &f->over, on_over) == 0);
    f->over.data = f;
    int rc = uv_thread_create(&f->thread, work, f);
    if (!rc) return;
    err_set(&f->e, ERR_NOMEM, MODEL_NO_THREAD, uv_strerror(rc));
    end(f);
}
