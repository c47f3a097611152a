#include "loadtest/fetch.h"

#include "engine/base/check.h"

#include <string.h>

static void on_body(struct call *call, const char *p, size_t n)
{
    struct fetch *f = call->user;
    if (f->body.len + n <= FETCH_MAX)
        buf_append(&f->body, p, n);
    else
        f->call.status = 0;
}

static void on_end(struct call *call, enum call_end end)
{
    struct fetch *f = call->user;
    f->busy = false;
    f->done(f, end == CALL_WHOLE ? call->status : 0);
}

void fetch_start(struct fetch *f, struct client *client, const struct target *t, const char *method, const char *path,
                 const char *body)
{
    CHECK(!f->busy);
    struct buf request = {0};
    api_put_call(&request, t, method, path, body, body ? strlen(body) : 0);
    buf_clear(&f->body);
    f->busy = true;
    f->call = (struct call){.on_body = on_body, .on_end = on_end, .user = f};
    client_send(client, &f->call, &request);
}

void fetch_free(struct fetch *f)
{
    client_drop(&f->call);
    buf_free(&f->body);
    f->busy = false;
}
