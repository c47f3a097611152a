#include "engine/model/step_batch.h"

#include "engine/base/check.h"
#include "engine/base/err.h"
#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { PAD_LEN = 64 }; /* context of a padding row, at most */

/* The arrays are contiguous in one block, with the same layout on host and device, so that one copy uploads a step. */
static void layout(struct step_batch *b, int32_t *base)
{
    b->id = base;
    b->pos = b->id + b->max_tokens;
    b->slot = b->pos + b->max_tokens;
    b->type = b->slot + b->max_tokens;
    b->q_start = b->type + b->max_tokens;
    b->kv_len = b->q_start + b->max_seqs + 1;
    b->row = b->kv_len + b->max_seqs;
    b->pages = b->row + b->max_rows;
}

static size_t fixed_ints(const struct step_batch *b)
{
    return 4 * (size_t)b->max_tokens + 2 * (size_t)b->max_seqs + 1 + (size_t)b->max_rows;
}

size_t step_batch_bytes(int max_tokens, int max_seqs, int max_rows, int max_pages)
{
    struct step_batch b = {.max_tokens = max_tokens, .max_seqs = max_seqs, .max_rows = max_rows};
    return (fixed_ints(&b) + (size_t)max_seqs * (size_t)max_pages) * sizeof(int32_t);
}

int step_batch_open(struct step_batch *b, struct dev *d, int max_tokens, int max_seqs, int max_rows, int max_pages)
{
    *b = (struct step_batch){
        .max_tokens = max_tokens, .max_seqs = max_seqs, .max_rows = max_rows, .max_pages = max_pages, .pad_page = -1};
    size_t n = fixed_ints(b) + (size_t)max_seqs * (size_t)max_pages;
    b->host = mem_array(n, sizeof *b->host);
    int32_t *base = d->ops->alloc(d, n * sizeof *base);
    if (!base) {
        free(b->host);
        *b = (struct step_batch){0};
        return ERR_NOMEM;
    }
    layout(b, base);
    b->group = mem_array((size_t)max_seqs, sizeof *b->group);
    b->lora = mem_array((size_t)max_seqs, sizeof *b->lora);
    return 0;
}

int step_batch_sized(struct step_batch *b, struct dev *d, int max_tokens, int max_seqs, int max_rows, int max_pages)
{
    if (b->id && b->max_tokens == max_tokens && b->max_seqs == max_seqs && b->max_rows == max_rows &&
        b->max_pages == max_pages)
        return 0;
    if (b->id) step_batch_close(b, d);
    return step_batch_open(b, d, max_tokens, max_seqs, max_rows, max_pages);
}

void step_batch_close(struct step_batch *b, struct dev *d)
{
    if (b->id) d->ops->free(d, b->id);
    free(b->host);
    free(b->group);
    free(b->lora);
    *b = (struct step_batch){0};
}

static void add_rows(struct step_batch *b, const struct lora_weights *w, int row0, int rows, int out0, int outs)
{
    struct step_batch_group *last = b->n_groups ? &b->group[b->n_groups - 1] : NULL;
    if (!w) return;
    if (last && last->lora == w && last->row0 + last->rows == row0)
        last->rows += rows, last->outs += outs;
    else
        b->group[b->n_groups++] = (struct step_batch_group){row0, rows, w, out0, outs};
}

static int widest(const struct step_batch_seq *v, int n)
{
    int most = 1;
    for (int i = 0; i < n; i++)
        if (v[i].n_pages > most) most = v[i].n_pages;
    return most;
}

/* Rounds up to a power of two: a captured step can be replayed as long as only the contents of the arrays change. */
static int rounded(int ld, int max)
{
    int n = PAGES_LD_MIN;
    while (n < ld) n *= 2;
    return n < max ? n : max;
}

int step_batch_padded(int n, int max)
{
    int unit = n <= 64 ? 8 : n <= 128 ? 16 : n <= 256 ? 32 : 64;
    int to = n <= 2 ? n : n <= 4 ? 4 : (n + unit - 1) / unit * unit;
    return to < max ? to : max;
}

int step_batch_pad_pages(int max_seqs)
{
    int most = 0;
    for (int n = 1; n <= max_seqs; n++) {
        int more = step_batch_padded(n, max_seqs) - n;
        most = more > most ? more : most;
    }
    return (most + KV_PAGE - 1) / KV_PAGE;
}

size_t step_batch_ints(const struct step_batch *b)
{
    return fixed_ints(b) + (size_t)b->n_seqs * (size_t)b->pages_ld;
}

void step_batch_send(struct step_batch *b, struct dev *d)
{
    d->ops->upload(d, b->id, b->host, step_batch_ints(b) * sizeof *b->host);
}

/* Writes the page table row of sequence `seq` of the step. */
static void put_pages(int32_t *pages, int seq, int ld, const int32_t *of, int n)
{
    int32_t *to = pages + (size_t)seq * (size_t)ld;
    memcpy(to, of, (size_t)n * sizeof *to);
    memset(to + n, 0, (size_t)(ld - n) * sizeof *to);
}

/* Appends padding rows, whose results are not used.  Each recomputes a token of the first sequence, an early one so
 * that attention reads little, and writes its key and value to its own slot.  It is a token of the text and not one
 * without context, since the activations of the latter are often far larger than all others and could alone force the
 * GEMMs onto a slower path. */
static void pad(struct step_batch *b, struct step_batch *h, const struct step_batch_seq *s)
{
    int32_t token = h->kv_len[0] < PAD_LEN ? h->kv_len[0] : PAD_LEN;
    int n = step_batch_padded(b->n_seqs, b->max_seqs), rows = step_batch_padded(b->n_rows, b->max_seqs);
    if (b->n_rows == 0) rows = 0;
    for (int i = b->n_seqs; i < n; i++) {
        h->id[i] = s->tokens[token - 1];
        h->pos[i] = token - 1;
        h->type[i] = 0;
        h->slot[i] = b->pad_page * KV_PAGE + i - b->n_seqs;
        h->q_start[i + 1] = i + 1;
        h->kv_len[i] = token;
        put_pages(h->pages, i, b->pages_ld, s->pages, s->n_pages);
    }
    for (int r = b->n_rows; r < rows; r++) h->row[r] = 0;
    b->n_tokens = b->n_seqs = n;
    b->n_rows = rows;
}

void step_batch_build(struct step_batch *b, struct dev *d, const struct step_batch_seq *v, int n)
{
    struct step_batch h = *b; /* the same layout, on the host */
    layout(&h, b->host);
    int t = 0, r = 0, most = 0, ld = d->ops->replay ? rounded(widest(v, n), b->max_pages) : widest(v, n);
    CHECK(n <= b->max_seqs && ld <= b->max_pages);
    b->n_groups = 0;
    for (int i = 0; i < n; i++) {
        const struct step_batch_seq *s = &v[i];
        CHECK(s->n <= b->max_tokens - t && s->rows <= b->max_rows - r);
        add_rows(b, s->lora, t, s->n, r, s->rows);
        most = s->n > most ? s->n : most;
        h.q_start[i] = t;
        h.kv_len[i] = s->start + s->n;
        put_pages(h.pages, i, ld, s->pages, s->n_pages);
        for (int k = 0; k < s->n; k++, t++) {
            int pos = s->start + k;
            h.id[t] = s->tokens[pos];
            h.pos[t] = s->rope_row + pos;
            h.type[t] = s->types ? s->types[pos] : 0;
            h.slot[t] = s->pages[pos / KV_PAGE] * KV_PAGE + pos % KV_PAGE;
            if (k >= s->n - s->rows) h.row[r++] = t;
        }
    }
    h.q_start[n] = t;
    b->n_tokens = t;
    b->n_seqs = n;
    b->n_rows = r;
    b->pages_ld = ld;
    b->most_rows = most;
    if (b->pad_page >= 0 && d->ops->replay && step_batch_decodes(b)) pad(b, &h, v);
    step_batch_send(b, d);
}

void step_batch_blank(struct step_batch *b, struct dev *d, int n, int pages_ld)
{
    struct step_batch h = *b;
    layout(&h, b->host);
    CHECK(n <= b->max_tokens && n <= b->max_seqs && n <= b->max_rows && pages_ld <= b->max_pages);
    for (int i = 0; i < n; i++) {
        int32_t page = i / KV_PAGE;
        h.id[i] = h.pos[i] = h.type[i] = 0;
        h.slot[i] = h.row[i] = h.q_start[i] = i;
        h.kv_len[i] = 1;
        put_pages(h.pages, i, pages_ld, &page, 1);
    }
    h.q_start[n] = n;
    b->n_tokens = b->n_seqs = b->n_rows = n;
    b->pages_ld = pages_ld;
    b->most_rows = 1;
    b->n_groups = 0;
    step_batch_send(b, d);
}

/* Of [a, a + n) what is in [from, end), as an offset from `from`.  @return its length */
static int overlap(int a, int n, int from, int end, int *at)
{
    int begin = a > from ? a : from, stop = a + n < end ? a + n : end;
    *at = begin - from;
    return stop > begin ? stop - begin : 0;
}

void step_batch_rows(const struct step_batch *b, struct dev *d, int row, int n, struct step_batch *to)
{
    struct step_batch from = *b, h = *to;
    size_t rows = (size_t)n, ld = (size_t)b->pages_ld;
    CHECK(n > 0 && row >= 0 && row + n <= b->n_tokens && b->max_tokens == to->max_tokens);
    layout(&from, b->host);
    layout(&h, to->host);
    memcpy(h.id, from.id + row, rows * sizeof *h.id);
    memcpy(h.pos, from.pos + row, rows * sizeof *h.pos);
    memcpy(h.slot, from.slot + row, rows * sizeof *h.slot);
    memcpy(h.type, from.type + row, rows * sizeof *h.type);
    to->n_seqs = to->most_rows = to->n_groups = to->n_rows = 0;
    for (int i = 0; i < b->n_seqs; i++) {
        int at, end = from.q_start[i + 1], k = overlap(from.q_start[i], end - from.q_start[i], row, row + n, &at);
        if (!k) continue;
        h.q_start[to->n_seqs] = at;
        h.kv_len[to->n_seqs] = from.kv_len[i] - (end - row - at - k);
        memcpy(h.pages + (size_t)to->n_seqs * ld, from.pages + (size_t)i * ld, ld * sizeof *h.pages);
        to->most_rows = k > to->most_rows ? k : to->most_rows;
        to->n_seqs++;
    }
    h.q_start[to->n_seqs] = n;
    for (int i = 0; i < b->n_groups; i++) {
        int at, k = overlap(b->group[i].row0, b->group[i].rows, row, row + n, &at);
        if (k) to->group[to->n_groups++] = (struct step_batch_group){at, k, b->group[i].lora, 0, 0};
    }
    to->n_tokens = n;
    to->pages_ld = b->pages_ld;
    step_batch_send(to, d);
}

bool step_batch_decodes(const struct step_batch *b)
{
    return b->n_tokens == b->n_seqs && !b->n_groups;
}

int step_batch_lora(const struct step_batch *b, int layer, enum layer_gemm gemm, int row0, int rows)
{
    int n = 0;
    for (int i = 0; i < b->n_groups; i++) {
        const struct step_batch_group *g = &b->group[i];
        const struct lora_gemm *p = &g->lora->layer[layer][gemm];
        int from = g->row0 > row0 ? g->row0 : row0, end = g->row0 + g->rows;
        if (end > row0 + rows) end = row0 + rows;
        if (p->n && from < end) b->lora[n++] = (struct lora_group){from - row0, end - from, p->n, p->part};
    }
    return n;
}

int step_batch_lora_head(const struct step_batch *b)
{
    int n = 0;
    for (int i = 0; i < b->n_groups; i++) {
        const struct step_batch_group *g = &b->group[i];
        const struct lora_gemm *p = &g->lora->layer[0][GEMM_LM_HEAD];
        if (p->n && g->outs) b->lora[n++] = (struct lora_group){g->out0, g->outs, p->n, p->part};
    }
    return n;
}

int step_batch_run(const struct step_batch *b, int layer, enum layer_gemm gemm, int row, bool *changed)
{
    int end = row;
    for (int i = 0; i < b->n_groups; i++) {
        const struct step_batch_group *g = &b->group[i];
        if (!g->lora->layer[layer][gemm].n || g->row0 + g->rows <= row) continue;
        if (g->row0 > end) { /* no adapter changes the rows in between */
            *changed = end > row;
            return end > row ? end : g->row0;
        }
        end = g->row0 + g->rows;
    }
    *changed = end > row;
    return end > row ? end : b->n_tokens;
}
