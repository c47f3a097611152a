#include "engine/batch.h"

#include "engine/base/check.h"
#include "engine/base/err.h"
#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* The arrays lie one after the other in one block, on the host and on the device alike, so that one copy moves a step.
 */
static void layout(struct batch *b, int32_t *base)
{
    b->id = base;
    b->pos = b->id + b->max_tokens;
    b->slot = b->pos + b->max_tokens;
    b->q_start = b->slot + b->max_tokens;
    b->kv_len = b->q_start + b->max_seqs + 1;
    b->row = b->kv_len + b->max_seqs;
    b->pages = b->row + b->max_rows;
}

static size_t fixed_ints(const struct batch *b)
{
    return 3 * (size_t)b->max_tokens + 2 * (size_t)b->max_seqs + 1 + (size_t)b->max_rows;
}

size_t batch_bytes(int max_tokens, int max_seqs, int max_rows, int max_pages)
{
    struct batch b = {.max_tokens = max_tokens, .max_seqs = max_seqs, .max_rows = max_rows};
    return (fixed_ints(&b) + (size_t)max_seqs * (size_t)max_pages) * sizeof(int32_t);
}

int batch_open(struct batch *b, struct dev *d, int max_tokens, int max_seqs, int max_rows, int max_pages)
{
    *b = (struct batch){.max_tokens = max_tokens, .max_seqs = max_seqs, .max_rows = max_rows, .max_pages = max_pages};
    size_t n = fixed_ints(b) + (size_t)max_seqs * (size_t)max_pages;
    b->host = mem_array(n, sizeof *b->host);
    int32_t *base = d->ops->alloc(d, n * sizeof *base);
    if (!base) {
        free(b->host);
        *b = (struct batch){0};
        return ERR_NOMEM;
    }
    layout(b, base);
    b->group = mem_array((size_t)max_seqs, sizeof *b->group);
    b->lora = mem_array((size_t)max_seqs, sizeof *b->lora);
    return 0;
}

void batch_close(struct batch *b, struct dev *d)
{
    if (b->id) d->ops->free(d, b->id);
    free(b->host);
    free(b->group);
    free(b->lora);
    *b = (struct batch){0};
}

static void add_rows(struct batch *b, const struct lora_weights *w, int row0, int rows)
{
    struct batch_group *last = b->n_groups ? &b->group[b->n_groups - 1] : NULL;
    if (!w) return;
    if (last && last->lora == w && last->row0 + last->rows == row0)
        last->rows += rows;
    else
        b->group[b->n_groups++] = (struct batch_group){row0, rows, w};
}

static int widest(const struct plan *p)
{
    int most = 1;
    for (int i = 0; i < p->n; i++)
        if (p->v[i].seq->n_pages > most) most = p->v[i].seq->n_pages;
    return most;
}

/* To a power of two: a step is replayed for as long as nothing about it changes but what the arrays hold. */
static int rounded(int ld, int max)
{
    int n = 8;
    while (n < ld) n *= 2;
    return n < max ? n : max;
}

void batch_build(struct batch *b, struct dev *d, const struct plan *p)
{
    struct batch h = *b; /* the same arrays, on the host */
    layout(&h, b->host);
    CHECK(p->n_tokens <= b->max_tokens && p->n <= b->max_seqs && p->n_rows <= b->max_rows);
    int t = 0, r = 0, most = 0, ld = d->ops->replay ? rounded(widest(p), b->max_pages) : widest(p);
    CHECK(ld <= b->max_pages);
    b->n_groups = 0;
    for (int i = 0; i < p->n; i++) {
        const struct plan_item *it = &p->v[i];
        const struct seq *s = it->seq;
        add_rows(b, s->lora, t, it->n);
        most = it->n > most ? it->n : most;
        h.q_start[i] = t;
        h.kv_len[i] = it->start + it->n;
        memcpy(h.pages + (size_t)i * (size_t)ld, s->pages, (size_t)s->n_pages * sizeof *s->pages);
        memset(h.pages + (size_t)i * (size_t)ld + s->n_pages, 0, (size_t)(ld - s->n_pages) * sizeof *s->pages);
        for (int k = 0; k < it->n; k++, t++) {
            int pos = it->start + k;
            h.id[t] = s->tokens[pos];
            h.pos[t] = pos;
            h.slot[t] = s->pages[pos / KV_PAGE] * KV_PAGE + pos % KV_PAGE;
            if (k >= it->n - it->rows) h.row[r++] = t;
        }
    }
    h.q_start[p->n] = t;
    b->n_tokens = t;
    b->n_seqs = p->n;
    b->n_rows = r;
    b->pages_ld = ld;
    b->most_rows = most;
    d->ops->upload(d, b->id, b->host, (fixed_ints(b) + (size_t)p->n * (size_t)ld) * sizeof *b->host);
}

int batch_lora(const struct batch *b, int layer, enum product product, int row0, int rows)
{
    int n = 0;
    for (int i = 0; i < b->n_groups; i++) {
        const struct batch_group *g = &b->group[i];
        const struct lora_product *p = &g->lora->layer[layer][product];
        int from = g->row0 > row0 ? g->row0 : row0, end = g->row0 + g->rows;
        if (end > row0 + rows) end = row0 + rows;
        if (p->n && from < end) b->lora[n++] = (struct lora_group){from - row0, end - from, p->n, p->part};
    }
    return n;
}

int batch_run(const struct batch *b, int layer, enum product product, int row, bool *changed)
{
    int end = row;
    for (int i = 0; i < b->n_groups; i++) {
        const struct batch_group *g = &b->group[i];
        if (!g->lora->layer[layer][product].n || g->row0 + g->rows <= row) continue;
        if (g->row0 > end) { /* rows between are left alone */
            *changed = end > row;
            return end > row ? end : g->row0;
        }
        end = g->row0 + g->rows;
    }
    *changed = end > row;
    return end > row ? end : b->n_tokens;
}
