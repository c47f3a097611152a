#include "server/ops/device_watch.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "server/bridge/bridge.h"
#include "server/ops/nvml.h"

#include <stdlib.h>

struct device_watch {
    struct bridge *bridge;
    struct nvml *nvml;           /* NULL: no devices, or not searched yet */
    struct nvml *found;          /* owned by the pool thread until after_open */
    struct device_sample latest; /* owned by the loop */
    struct device_sample sample; /* owned by the pool thread while querying */
    bool querying;
    void (*done)(void *);
    void *arg;
};

static void work_open(void *arg)
{
    struct device_watch *w = arg;
    w->found = nvml_open(NULL);
}

static void after_open(void *arg)
{
    struct device_watch *w = arg;
    w->nvml = w->found;
}

struct device_watch *device_watch_open(struct bridge *bridge)
{
    struct device_watch *w = mem_zalloc(sizeof *w);
    w->bridge = bridge;
    bridge_work(bridge, 0, work_open, after_open, w);
    return w;
}

void device_watch_close(struct device_watch *w)
{
    if (!w) return;
    nvml_close(w->nvml);
    free(w);
}

bool device_watch_idle(const struct device_watch *w)
{
    return w && w->nvml && !w->querying;
}

static void work_query(void *arg)
{
    struct device_watch *w = arg;
    nvml_sample(w->nvml, &w->sample);
}

static void after_query(void *arg)
{
    struct device_watch *w = arg;
    w->querying = false;
    w->latest = w->sample;
    w->done(w->arg);
}

void device_watch_query(struct device_watch *w, void (*done)(void *), void *arg)
{
    CHECK(device_watch_idle(w));
    w->done = done;
    w->arg = arg;
    w->querying = true;
    w->sample = (struct device_sample){0};
    bridge_work(w->bridge, 0, work_query, after_query, w);
}

const struct device_sample *device_watch_sample(const struct device_watch *w)
{
    return w && w->nvml ? &w->latest : NULL;
}
