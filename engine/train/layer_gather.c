#include "engine/train/layer_gather.h"

void layer_gather_open(struct layer_gather *g, struct exchanger *x)
{
    g->exchanger = x;
    g->there = g->coming = -1;
}

static void wait(struct layer_gather *g)
{
    if (g->coming >= 0 && g->exchanger) exchanger_wait(g->exchanger, g->which);
}

static void start(struct layer_gather *g, int layer)
{
    wait(g);
    if (g->begin) g->begin(g->arg, layer);
    g->coming = layer;
    if (g->exchanger)
        g->which = exchanger_start(g->exchanger, g->fetch, g->arg, layer);
    else
        g->fetch(g->arg, layer);
}

void layer_gather_use(struct layer_gather *g, int layer, int next)
{
    if (g->there != layer) {
        if (g->coming != layer) start(g, layer);
        wait(g);
        g->install(g->arg, layer);
        g->there = layer;
        g->coming = -1;
    }
    if (next >= 0 && next != layer && next != g->coming) start(g, next);
}

void layer_gather_forget(struct layer_gather *g)
{
    wait(g);
    g->there = g->coming = -1;
}
