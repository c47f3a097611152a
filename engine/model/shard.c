#include "engine/model/shard.h"

#include "engine/base/fnv.h"
#include "engine/base/mem.h"
#include "engine/model/ranks_agree.h"
#include "engine/model/stages.h"
#include "engine/model/weights.h"
#include "kernels/comm_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static int check(const char *what, int n, int ranks, struct err *e)
{
    if (n % ranks == 0) return 0;
    return err_set(e, ERR_UNSUPPORTED, "%d %s cannot be divided over %d ranks: the number of ranks has to divide it", n,
                   what, ranks);
}

static int check_all(const struct model_config *c, int ranks, struct err *e)
{
    int rc = check("heads of keys and values", c->kv_heads, ranks, e);
    if (!rc) rc = check("heads", c->heads, ranks, e);
    if (!rc) rc = check("features", c->hidden, ranks, e);
    for (int i = 0; i < c->layers && !rc; i++) {
        const struct block *b = model_block(c, i);
        rc = check("features of the feed-forward", b->inter, ranks, e);
        if (!rc && b->experts.count) rc = check("features of an expert", b->experts.inter, ranks, e);
    }
    if (!rc && c->vocab < ranks) rc = err_set(e, ERR_UNSUPPORTED, "there are more ranks than tokens");
    return rc;
}

static int divide_layers(struct shard *s, struct err *e)
{
    int *from = mem_array((size_t)s->stages + 1, sizeof *from), rc = stages_divide(&s->whole, s->stages, from, e);
    s->first = from[s->stage];
    s->end = from[s->stage + 1];
    for (int i = 0; i < s->stages; i++)
        if (from[i + 1] - from[i] > s->most_layers) s->most_layers = from[i + 1] - from[i];
    free(from);
    return rc;
}

struct shard *shard_open(struct comm *comm, int stages, const struct model_config *whole, struct err *e)
{
    int ranks = comm_ranks(comm), rank = comm_rank(comm);
    if (stages < 1) stages = 1;
    if (ranks % stages) {
        err_set(e, ERR_UNSUPPORTED, "%d ranks cannot be divided into %d stages of as many each", ranks, stages);
        return NULL;
    }
    int each = ranks / stages;
    struct shard *s = mem_zalloc(sizeof *s);
    s->comm = comm;
    s->stages = stages;
    s->stage = rank / each;
    s->whole = *whole;
    if (divide_layers(s, e) || check_all(whole, each, e)) {
        free(s);
        return NULL;
    }
    if ((s->group = comm_group(comm, s->stage * each, each))) return s;
    err_set(e, ERR_NOMEM, "no memory for a group of %d ranks", each);
    free(s);
    return NULL;
}

void shard_close(struct shard *s)
{
    if (!s) return;
    comm_group_close(s->group);
    free(s->blocks);
    free(s->rows);
    free(s);
}

struct shard_piece shard_vocab(const struct shard *s, int rank)
{
    int64_t ranks = comm_ranks(s->group), vocab = s->whole.vocab;
    int from = (int)(vocab * rank / ranks), end = (int)(vocab * (rank + 1) / ranks);
    return (struct shard_piece){from, end - from, 0};
}

void shard_config(const struct shard *s, const struct model_config *whole, struct model_config *own)
{
    *own = *whole;
    if (!s) return;
    int ranks = comm_ranks(s->group);
    own->heads /= ranks;
    own->kv_heads /= ranks;
    own->inter /= ranks;
    own->vocab = shard_vocab(s, comm_rank(s->group)).n;
    for (int i = 0; i < BLOCKS_MAX; i++) {
        own->block[i].inter /= ranks;
        own->block[i].experts.inter /= ranks;
    }
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

/* The rank's part of each of several sections of the outputs. */
static int cut(const struct shard *s, const int *sections, int n, struct shard_piece *out)
{
    int ranks = comm_ranks(s->group), rank = comm_rank(s->group);
    for (int i = 0, from = 0, at = 0; i < n; i++) {
        int each = sections[i] / ranks;
        out[i] = (struct shard_piece){from + rank * each, each, at};
        from += sections[i];
        at += each;
    }
    return n;
}

int shard_pieces(const struct shard *s, int layer, enum layer_gemm gemm, struct shard_piece out[SHARD_PIECES])
{
    const struct model_config *c = &s->whole;
    const struct block *b = model_block(c, layer);
    int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    if (!shard_by_outputs(s)) return 0;
    switch (gemm) {
    case GEMM_QKV: return cut(s, (int[]){q, kv, kv}, 3, out);
    case GEMM_UP: return cut(s, (int[]){b->inter, b->inter}, b->gated ? 2 : 1, out);
    case GEMM_EXPERT_UP: return cut(s, (int[]){b->experts.inter, b->experts.inter}, 2, out);
    case GEMM_O:
    case GEMM_DOWN:
    case GEMM_EXPERT_DOWN: return cut(s, &c->hidden, 1, out);
    case GEMM_LM_HEAD: out[0] = shard_vocab(s, comm_rank(s->group)); return 1;
    default: return 0;
    }
}

int shard_stack_pieces(const struct shard *s, int i, struct shard_piece out[SHARD_PIECES])
{
    struct expert_stack x = tensors_expert_stack(&s->whole, i);
    if (x.layer >= 0 && x.gemm == EXPERT_ROUTER) return 0;
    if (x.layer >= 0) return shard_pieces(s, x.layer, x.gemm == EXPERT_UP ? GEMM_EXPERT_UP : GEMM_EXPERT_DOWN, out);
    if (i < s->whole.layers * LAYER_GEMMS)
        return shard_pieces(s, i / LAYER_GEMMS, (enum layer_gemm)(i % LAYER_GEMMS), out);
    return shard_pieces(s, 0, GEMM_LM_HEAD, out); /* the table of embeddings has the rows of the head */
}

/* Leaves the pieces of each of `copies` vectors of n floats. */
static size_t keep(float *v, size_t floats, size_t copies, const struct shard_piece *p, int pieces)
{
    size_t n = floats / copies, to = 0;
    for (size_t k = 0; k < copies; k++)
        for (int i = 0; i < pieces; i++) {
            memmove(v + to, v + k * n + (size_t)p[i].from, (size_t)p[i].n * sizeof *v);
            to += (size_t)p[i].n;
        }
    return to;
}

#define FIELD(f) offsetof(struct layer_weights, f)

size_t shard_vector(const struct shard *s, const struct vector_slot *slot, float *v, size_t floats)
{
    static const struct {
        size_t field;
        enum layer_gemm gemm;
    } outputs[] = {{FIELD(qkv_b), GEMM_QKV},
                   {FIELD(o_b), GEMM_O},
                   {FIELD(up_b), GEMM_UP},
                   {FIELD(down_b), GEMM_DOWN},
                   {FIELD(expert_up_b), GEMM_EXPERT_UP},
                   {FIELD(expert_down_b), GEMM_EXPERT_DOWN}};
    const struct model_config *c = &s->whole;
    struct shard_piece p[SHARD_PIECES];
    if (!shard_by_outputs(s)) return floats;
    if (slot->layer < 0) {
        if (slot->field != offsetof(struct weights, head_b)) return floats;
        return keep(v, floats, 1, p, shard_pieces(s, 0, GEMM_LM_HEAD, p));
    }
    const struct block *b = model_block(c, slot->layer);
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        bool experts = outputs[i].gemm == GEMM_EXPERT_UP || outputs[i].gemm == GEMM_EXPERT_DOWN;
        if (slot->field != outputs[i].field) continue;
        int pieces = shard_pieces(s, slot->layer, outputs[i].gemm, p);
        return keep(v, floats, experts ? (size_t)b->experts.count : 1, p, pieces);
    }
    bool heads = slot->field == FIELD(sinks), apart = b->qk_norm == QK_NORM_APART;
    bool q = slot->field == FIELD(q_norm) || slot->field == FIELD(q_norm_b);
    bool k = slot->field == FIELD(k_norm) || slot->field == FIELD(k_norm_b);
    if (!heads && !(apart && (q || k))) return floats;
    int all = (int)floats;
    return keep(v, floats, 1, p, cut(s, &all, 1, p));
}

/* ---- exchanging -------------------------------------------------------------------------------------------------- */

void shard_open_device(struct shard *s, struct dev *d)
{
    char why[COMM_WHY_BYTES] = "";
    if (d->ops->host_memory) return;
    if (shard_by_outputs(s)) s->on_device = comm_device_open(s->group, d, why);
    if (s->on_device)
        snprintf(s->how, sizeof s->how, "between the devices by %s", comm_device_name(d));
    else
        snprintf(s->how, sizeof s->how, "through the host's memory%s%s", *why ? ": " : "", why);
}

bool shard_may_replay(const struct shard *s)
{
    return !s || (s->on_device && !s->no_replay && !shard_by_layers(s));
}

/* The indices of the ranks' parts do not change; those of tokens come with each step. */
static bool reserve_on_device(struct shard *s, struct dev *d, int tokens, int wide, size_t *bytes)
{
    int ranks = comm_ranks(s->group), rank = comm_rank(s->group);
    size_t n = (size_t)tokens, indices = n * sizeof *s->own_part;
    size_t rows = n * (size_t)ranks * (size_t)wide * sizeof *s->wide;
    int32_t *own = mem_array(n, sizeof *own);
    for (int t = 0; t < tokens; t++) own[t] = t * ranks + rank;
    shard_release(s, d);
    s->own_part = d->ops->alloc(d, indices);
    s->token_part = d->ops->alloc(d, indices);
    s->wide = wide ? d->ops->alloc(d, rows) : NULL;
    if (s->own_part) d->ops->upload(d, s->own_part, own, indices);
    free(own);
    *bytes += 2 * indices + rows;
    return s->own_part && s->token_part && (s->wide || !wide);
}

void shard_release(struct shard *s, struct dev *d)
{
    void *v[] = {s->own_part, s->token_part, s->wide};
    for (size_t i = 0; i < sizeof v / sizeof *v; i++)
        if (v[i]) d->ops->free(d, v[i]);
    s->own_part = s->token_part = NULL;
    s->wide = NULL;
}

bool shard_reserve(struct shard *s, struct dev *d, size_t floats, int tokens, int wide, size_t *on_device)
{
    if (s->on_device && !reserve_on_device(s, d, tokens, wide, on_device)) return false;
    if (s->on_device && !shard_by_layers(s)) return true;
    size_t bytes = (size_t)comm_ranks(s->group) * floats * sizeof *s->blocks;
    free(s->blocks);
    free(s->rows);
    s->block_floats = floats;
    s->blocks = mem_try_alloc(bytes);
    s->rows = d->ops->host_memory ? NULL : mem_try_alloc(bytes);
    return s->blocks && (s->rows || d->ops->host_memory);
}

bool shard_fine(struct shard *s, struct dev *d, const char *op)
{
    const char *why = comm_error(s->group);
    if (why) dev_fail(d, op, "%s", why);
    return !why;
}

/* The floats of m on the host, rows adjacent. */
static const float *from_device(struct dev *d, struct mat m, float *to)
{
    size_t n = (size_t)m.cols, ld = (size_t)m.ld;
    bool adjacent = m.cols == m.ld;
    if (adjacent && d->ops->host_memory) return m.p;
    if (adjacent) d->ops->download(d, to, m.p, (size_t)m.rows * n * sizeof *to);
    for (size_t t = 0; t < (size_t)m.rows && !adjacent; t++)
        d->ops->download(d, to + t * n, (float *)m.p + t * ld, n * sizeof *to);
    d->ops->finish(d);
    return to;
}

/* Where rows of n floats are put together for m, and how they get there. */
static float *rows_for(const struct shard *s, struct mat m)
{
    return s->rows ? s->rows : m.p;
}

static void to_device(const struct shard *s, struct dev *d, struct mat m, size_t rows)
{
    if (s->rows) d->ops->upload(d, m.p, s->rows, rows * (size_t)m.cols * sizeof *s->rows);
}

void shard_join(struct shard *s, struct dev *d, struct mat part, struct mat whole)
{
    size_t ranks = (size_t)comm_ranks(s->group), rows = (size_t)part.rows, n = (size_t)part.cols;
    if (s->on_device) {
        comm_device_join(d, part, whole);
        return;
    }
    float *own = s->blocks + (size_t)comm_rank(s->group) * rows * n, *to = rows_for(s, whole);
    if (s->dry) return;
    comm_all_gather(s->group, from_device(d, part, own), rows == 1 ? to : s->blocks, rows * n * sizeof *own);
    if (!shard_fine(s, d, "all-gather")) return;
    for (size_t t = 0; t < rows && rows > 1; t++)
        for (size_t r = 0; r < ranks; r++)
            memcpy(to + (t * ranks + r) * n, s->blocks + (r * rows + t) * n, n * sizeof *to);
    to_device(s, d, whole, rows);
}

void shard_take(struct shard *s, struct dev *d, struct mat whole, struct mat part)
{
    size_t rank = (size_t)comm_rank(s->group), n = (size_t)part.cols, ld = (size_t)part.ld;
    if (s->on_device) {
        struct mat parts = mat_f32(whole.p, whole.rows * comm_ranks(s->group), part.cols);
        op_rows(d, (struct rows_args){part, parts, s->own_part});
        return;
    }
    if (s->dry) return;
    whole.p = (float *)whole.p + rank * n;
    whole.cols = part.cols;
    const float *from = from_device(d, whole, s->blocks);
    for (size_t t = 0; t < (size_t)part.rows; t++)
        d->ops->upload(d, (float *)part.p + t * ld, from + t * n, n * sizeof *from);
}

void shard_collect(struct shard *s, struct dev *d, struct mat part, struct mat whole)
{
    size_t rows = (size_t)part.rows, vocab = (size_t)s->whole.vocab;
    if (s->on_device) {
        comm_device_collect(d, part, mat_f32(whole.p, part.rows, s->whole.vocab));
        return;
    }
    if (s->dry) return;
    if (comm_rank(s->group)) {
        comm_send(s->group, from_device(d, part, s->blocks), rows * (size_t)part.cols * sizeof(float), 0);
        shard_fine(s, d, "send");
        return;
    }
    float *to = rows_for(s, whole);
    for (int r = 0; r < comm_ranks(s->group); r++) {
        struct shard_piece p = shard_vocab(s, r);
        size_t n = (size_t)p.n;
        const float *from = s->blocks;
        if (r)
            comm_receive(s->group, s->blocks, rows * n * sizeof *s->blocks, r);
        else
            from = from_device(d, part, s->blocks);
        if (!shard_fine(s, d, "receive")) return;
        for (size_t t = 0; t < rows; t++) memcpy(to + t * vocab + (size_t)p.from, from + t * n, n * sizeof *to);
    }
    to_device(s, d, whole, rows);
}

/* Puts those of the rows whose tokens are a rank's side by side into `block`, or back.  @return their number */
static size_t rows_of(struct shard_piece p, const int32_t *ids, struct mat rows, float *v, float *block, bool back)
{
    size_t n = (size_t)rows.cols, k = 0;
    for (size_t t = 0; t < (size_t)rows.rows; t++) {
        if (ids[t] < p.from || ids[t] >= p.from + p.n) continue;
        if (back)
            memcpy(v + t * n, block + k * n, n * sizeof *v);
        else
            memcpy(block + k * n, v + t * n, n * sizeof *v);
        k++;
    }
    return k;
}

void shard_send_ids(struct shard *s, struct dev *d, const int32_t *ids, int n)
{
    if (!s->on_device) return;
    int ranks = comm_ranks(s->group);
    int32_t *part = mem_array((size_t)n, sizeof *part);
    for (int t = 0; t < n; t++) {
        int r = 0;
        for (struct shard_piece p = shard_vocab(s, r); ids[t] >= p.from + p.n && r < ranks - 1;)
            p = shard_vocab(s, ++r);
        part[t] = t * ranks + r;
    }
    d->ops->upload(d, s->token_part, part, (size_t)n * sizeof *part);
    free(part);
}

/* Through the host each rank sends its rows alone.  On the device it sends all, since the sizes of what is exchanged
 * must not depend on the tokens where a step is replayed. */
void shard_join_rows(struct shard *s, struct dev *d, const int32_t *ids, struct mat rows)
{
    if (s->on_device) {
        int ranks = comm_ranks(s->group);
        comm_device_join(d, rows, mat_f32(s->wide, rows.rows, ranks * rows.cols));
        op_rows(d, (struct rows_args){rows, mat_f32(s->wide, ranks * rows.rows, rows.cols), s->token_part});
        return;
    }
    if (s->dry) return;
    float *v = rows_for(s, rows);
    if (s->rows) from_device(d, rows, s->rows);
    for (int r = 0; r < comm_ranks(s->group); r++) {
        struct shard_piece p = shard_vocab(s, r);
        bool own = r == comm_rank(s->group);
        size_t n = rows_of(p, ids, rows, v, s->blocks, false);
        if (!n) continue;
        comm_broadcast(s->group, s->blocks, n * (size_t)rows.cols * sizeof *s->blocks, r);
        if (!shard_fine(s, d, "broadcast")) return;
        if (!own) rows_of(p, ids, rows, v, s->blocks, true);
    }
    to_device(s, d, rows, (size_t)rows.rows);
}

/* Names, shapes, and some bytes of each tensor. */
static uint64_t hash_of(const struct tensor_source *f)
{
    enum { SOME = 64 };
    uint64_t hash = FNV1A_START;
    for (size_t i = 0; i < tensor_source_count(f); i++) {
        const struct tensor *t = tensor_source_at(f, i);
        hash = fnv1a(hash, t->name, strlen(t->name) + 1);
        hash = fnv1a(hash, t->dims, (size_t)t->n_dims * sizeof *t->dims);
        hash = fnv1a(hash, &t->type, sizeof t->type);
        if (t->data) hash = fnv1a(hash, t->data, t->bytes < SOME ? t->bytes : SOME);
    }
    return hash;
}

int shard_check_alike(struct shard *s, const struct dev *d, const struct weights *w, struct err *e)
{
    static const char other[] = "has read another model than rank 0, or other types of weights";
    struct rank_kind own = rank_kind_of(d);
    own.work[0] = hash_of(w->file);
    own.work[1] = shard_by_layers(s) ? 0 : (uint64_t)w->type; /* it may differ between layers */
    return ranks_compare(s->comm, &own, (const char *const[]){other, other}, e);
}

int shard_agree_least(struct comm *c, int rc, int *n, struct err *e)
{
    int all[COMM_RANKS_MAX] = {0};
    comm_all_gather(c, n, all, sizeof *n);
    for (int r = 0; r < comm_ranks(c); r++) *n = all[r] < *n ? all[r] : *n;
    return ranks_agree(c, rc, e);
}
