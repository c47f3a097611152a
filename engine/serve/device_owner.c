#include "engine/serve/device_owner.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/train/scheduler_gate.h"
#include "kernels/ops.h"

#include <stdlib.h>

struct device_owner {
    struct dev_ops ops;
    const struct dev_ops *own;
    struct dev *d;
    struct scheduler_gate *gate;
};

/* Stored and not derived from d->ops, which others (a trace, a test) may have replaced in turn. */
static const struct dev_ops *inner_ops(struct dev *d)
{
    const struct device_owner *w = d->watch;
    bool caller_has_the_device = scheduler_gate_permits(w->gate);
    CHECK(caller_has_the_device);
    return w->own;
}

#define X(op)                                                                                                          \
    static void watch_##op(struct dev *d, const struct op##_args *a)                                                   \
    {                                                                                                                  \
        inner_ops(d)->op(d, a);                                                                                        \
    }
OPS(X)
#undef X

static struct weight *watch_weight_pack(struct dev *d, const struct weight_src *parts, int n)
{
    return inner_ops(d)->weight_pack(d, parts, n);
}

static void watch_weight_free(struct dev *d, struct weight *w)
{
    inner_ops(d)->weight_free(d, w);
}

static void watch_weight_update(struct dev *d, struct weight *w, const struct weight_src *parts, int n, int chunk,
                                int chunks)
{
    inner_ops(d)->weight_update(d, w, parts, n, chunk, chunks);
}

static struct weight *watch_weight_open(struct dev *d, const struct weight_src *shape, const void *packed, size_t bytes)
{
    return inner_ops(d)->weight_open(d, shape, packed, bytes);
}

static struct kv *watch_kv_open(struct dev *d, const struct kv_shape *s)
{
    return inner_ops(d)->kv_open(d, s);
}

static void watch_kv_close(struct dev *d, struct kv *kv)
{
    inner_ops(d)->kv_close(d, kv);
}

static void watch_kv_save(struct dev *d, const struct kv *kv, int page, void *host)
{
    inner_ops(d)->kv_save(d, kv, page, host);
}

static void watch_kv_load(struct dev *d, struct kv *kv, int page, const void *host)
{
    inner_ops(d)->kv_load(d, kv, page, host);
}

static void *watch_alloc(struct dev *d, size_t bytes)
{
    return inner_ops(d)->alloc(d, bytes);
}

static void watch_free(struct dev *d, void *p)
{
    inner_ops(d)->free(d, p);
}

static void *watch_alloc_host(struct dev *d, size_t bytes)
{
    return inner_ops(d)->alloc_host(d, bytes);
}

static void watch_free_host(struct dev *d, void *p)
{
    inner_ops(d)->free_host(d, p);
}

static void watch_upload(struct dev *d, void *device, const void *host, size_t bytes)
{
    inner_ops(d)->upload(d, device, host, bytes);
}

static void watch_download(struct dev *d, void *host, const void *device, size_t bytes)
{
    inner_ops(d)->download(d, host, device, bytes);
}

static void watch_on_threads(struct dev *d, void (*fn)(void *, int), void *ctx)
{
    inner_ops(d)->on_threads(d, fn, ctx);
}

static int watch_pin(struct dev *d, const int *cpus, int n)
{
    return inner_ops(d)->pin(d, cpus, n);
}

static int watch_finish(struct dev *d)
{
    return inner_ops(d)->finish(d);
}

static void watch_zero(struct dev *d, void *p, size_t bytes)
{
    inner_ops(d)->zero(d, p, bytes);
}

static int watch_reserve(struct dev *d, void (*fn)(void *), void *ctx)
{
    return inner_ops(d)->reserve(d, fn, ctx);
}

static void watch_replay(struct dev *d, uint64_t key, void (*fn)(void *), void *ctx)
{
    inner_ops(d)->replay(d, key, fn, ctx);
}

static void watch_hold(struct dev *d)
{
    inner_ops(d)->hold(d);
}

static void watch_trim(struct dev *d)
{
    inner_ops(d)->trim(d);
}

struct device_owner *device_owner_new(struct dev *d, struct scheduler_gate *gate)
{
    struct device_owner *w = mem_zalloc(sizeof *w);
    *w = (struct device_owner){.ops = *d->ops, .own = d->ops, .d = d, .gate = gate};
    /* ops that the device lacks stay NULL */
#define X(f) w->ops.f = w->own->f ? watch_##f : NULL;
    OPS(X)
    X(weight_pack)
    X(weight_free)
    X(weight_update)
    X(weight_open)
    X(kv_open)
    X(kv_close)
    X(kv_save)
    X(kv_load)
    X(alloc)
    X(free)
    X(alloc_host)
    X(free_host)
    X(upload)
    X(download)
    X(on_threads)
    X(pin)
    X(finish)
    X(zero)
    X(reserve)
    X(replay)
    X(hold)
    X(trim)
#undef X
    d->watch = w;
    d->ops = &w->ops;
    return w;
}

void device_owner_free(struct device_owner *w)
{
    if (!w) return;
    w->d->ops = w->own;
    w->d->watch = NULL;
    free(w);
}
