#include "engine/serve/events.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* first the fields that readers see, then the buffers behind them */
struct batch_mem {
    struct event_batch b;
    struct buf text;
    struct top_token *top;
    float *values;
    size_t cap_v, n_top, cap_top, n_values, cap_values;
};

static struct batch_mem *mem_of(struct event_batch *b)
{
    return (struct batch_mem *)b;
}

void events_init(struct events *v)
{
    *v = (struct events){0};
    v->posted_end = &v->posted;
    pthread_mutex_init(&v->lock, NULL);
}

static void free_list(struct event_batch *b)
{
    while (b) {
        struct event_batch *next = b->next;
        buf_free(&mem_of(b)->text);
        free(mem_of(b)->top);
        free(mem_of(b)->values);
        free(b->v);
        free(b);
        b = next;
    }
}

void events_free(struct events *v)
{
    free_list(v->posted);
    free_list(v->spare);
    free_list(v->open);
    pthread_mutex_destroy(&v->lock);
}

static struct batch_mem *open_batch(struct events *v)
{
    if (v->open) return mem_of(v->open);
    pthread_mutex_lock(&v->lock);
    struct event_batch *b = v->spare;
    if (b) v->spare = b->next;
    pthread_mutex_unlock(&v->lock);
    if (!b) b = mem_zalloc(sizeof(struct batch_mem));
    b->next = NULL;
    b->n = 0;
    buf_clear(&mem_of(b)->text);
    mem_of(b)->n_top = mem_of(b)->n_values = 0;
    v->open = b;
    return mem_of(b);
}

struct buf *events_text(struct events *v)
{
    return &open_batch(v)->text;
}

uint32_t events_top(struct events *v, const struct top_token *top, int n)
{
    struct batch_mem *m = open_batch(v);
    mem_grow(&m->top, &m->cap_top, m->n_top + (size_t)n, sizeof *top);
    if (n) memcpy(m->top + m->n_top, top, (size_t)n * sizeof *top);
    m->n_top += (size_t)n;
    return (uint32_t)(m->n_top - (size_t)n);
}

float *events_values(struct events *v, int n, uint32_t *at)
{
    struct batch_mem *m = open_batch(v);
    mem_grow(&m->values, &m->cap_values, m->n_values + (size_t)n, sizeof *m->values);
    *at = (uint32_t)m->n_values;
    m->n_values += (size_t)n;
    return m->values + *at;
}

void events_add(struct events *v, const struct event *e)
{
    struct batch_mem *m = open_batch(v);
    mem_grow(&m->b.v, &m->cap_v, (size_t)m->b.n + 1, sizeof *e);
    m->b.v[m->b.n++] = *e;
}

struct event *events_last(struct events *v)
{
    CHECK(v->open && v->open->n > 0);
    return &v->open->v[v->open->n - 1];
}

void events_post(struct events *v)
{
    struct event_batch *b = v->open;
    if (!b || b->n == 0) return;
    b->text = mem_of(b)->text.data ? mem_of(b)->text.data : "";
    b->top = mem_of(b)->top;
    b->values = mem_of(b)->values;
    v->open = NULL;
    pthread_mutex_lock(&v->lock);
    bool first = v->posted == NULL;
    *v->posted_end = b;
    v->posted_end = &b->next;
    pthread_mutex_unlock(&v->lock);
    if (first && v->notify) v->notify(v->arg);
}

struct event_batch *events_take(struct events *v)
{
    pthread_mutex_lock(&v->lock);
    struct event_batch *b = v->posted;
    v->posted = NULL;
    v->posted_end = &v->posted;
    pthread_mutex_unlock(&v->lock);
    return b;
}

void events_return(struct events *v, struct event_batch *b)
{
    if (!b) return;
    struct event_batch *last = b;
    while (last->next) last = last->next;
    pthread_mutex_lock(&v->lock);
    last->next = v->spare;
    v->spare = b;
    pthread_mutex_unlock(&v->lock);
}
