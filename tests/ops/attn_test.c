/* Tests of rope_kv and attn: against ref over all cache types and ragged batches, and that a prompt gives the same bits
 * however it is cut, whoever shares the batch, on any number of threads and at any level. */
#include "tests/ops/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct shape {
    int heads, kv_heads, head_dim, rot, window;
    float softcap;
    bool sinks;
};

enum { MAX_POS = 1300 };

/* A device with a cache, rotation tables, sinks, and sequences with shuffled pages. */
struct bed {
    struct dev *d;
    struct shape s;
    enum dtype t;
    struct kv *kv;
    int layers, pages, free_page;
    bool rounds; /* of rope_kv */
    int *page_order;
    float *cos, *sin, *tables, *sinks;
};

/* With a cache of int8 the rotation tables are not aligned to more than a float. */
static struct bed bed_open(struct dev *d, struct shape s, enum dtype t, int pages, uint64_t seed)
{
    struct bed b = {.d = d, .s = s, .t = t, .layers = 2, .pages = pages};
    int half = s.rot / 2 > 0 ? s.rot / 2 : 1;
    size_t all = (size_t)MAX_POS * half, first = t == DT_I8;
    float *c = malloc((first + 2 * all) * sizeof *c), *n = c + first + all;
    if (!c) abort();
    if (first) c[0] = 0;
    for (int p = 0; p < MAX_POS; p++)
        for (int i = 0; i < half; i++) {
            double angle = p * pow(10000, -2.0 * i / (2 * half));
            c[first + (size_t)p * half + i] = (float)cos(angle);
            n[(size_t)p * half + i] = (float)sin(angle);
        }
    b.tables = put(d, c, (first + 2 * all) * sizeof *c);
    b.cos = b.tables + first;
    b.sin = b.cos + all;
    free(c);
    if (s.sinks) { /* about the scores, below and above them all, below what counts */
        static const float some[] = {0.7f, -3, 6, -200};
        float sinks[32];
        for (int h = 0; h < 32; h++) sinks[h] = some[h % 4] + 0.01f * (float)h;
        b.sinks = put(d, sinks, (size_t)s.heads * sizeof *sinks);
    }
    b.kv = d->ops->kv_open(d, &(struct kv_shape){b.layers, pages, s.kv_heads, s.head_dim, t});
    b.page_order = malloc((size_t)pages * sizeof(int));
    if (!b.kv || !b.page_order) abort();
    random_seed(seed);
    for (int i = 0; i < pages; i++) b.page_order[i] = i;
    for (int i = pages - 1; i > 0; i--) {
        int j = random_below(i + 1), t1 = b.page_order[i];
        b.page_order[i] = b.page_order[j];
        b.page_order[j] = t1;
    }
    return b;
}

static void bed_close(struct bed *b)
{
    b->d->ops->kv_close(b->d, b->kv);
    b->d->ops->free(b->d, b->tables);
    if (b->sinks) b->d->ops->free(b->d, b->sinks);
    free(b->page_order);
}

/* One sequence: qkv (len, width) of all its tokens, how many were fed, the outputs (len, heads * head_dim) and lse
 * (len, heads). */
struct seq {
    float *qkv, *out, *lse;
    int len, fed, n_pages;
    int32_t pages[MAX_POS / KV_PAGE + 1];
};

static int width_of(const struct shape *s)
{
    return (s->heads + 2 * s->kv_heads) * s->head_dim;
}

static struct seq seq_make(const struct shape *s, int len, uint64_t seed)
{
    struct seq q = {.len = len};
    random_seed(seed);
    q.qkv = random_floats((size_t)len * width_of(s), 1);
    q.out = calloc((size_t)len * s->heads * s->head_dim, 4);
    q.lse = calloc((size_t)len * s->heads, 4);
    return q;
}

static void seq_free(struct seq *q)
{
    free(q->qkv), free(q->out), free(q->lse);
}

/* Feeds the next n[i] tokens of each sequence in one batch: rope_kv, then attn, in layer 1. */
static void feed(struct bed *b, struct seq *const *seqs, const int *n, int n_seqs)
{
    struct dev *d = b->d;
    int W = width_of(&b->s), H = b->s.heads, O = H * b->s.head_dim, T = 0, ld = 0, most = 0;
    int32_t q_start[8] = {0}, kv_len[8];
    for (int i = 0; i < n_seqs; i++) {
        T += n[i];
        most = n[i] > most ? n[i] : most;
        q_start[i + 1] = T;
        kv_len[i] = seqs[i]->fed + n[i];
        for (; seqs[i]->n_pages * KV_PAGE < kv_len[i]; seqs[i]->n_pages++)
            seqs[i]->pages[seqs[i]->n_pages] = b->page_order[b->free_page++];
        ld = seqs[i]->n_pages > ld ? seqs[i]->n_pages : ld;
    }
    float *x = malloc((size_t)T * W * 4);
    int32_t *pos = malloc((size_t)T * 4), *slot = malloc((size_t)T * 4), *pages = calloc((size_t)n_seqs * ld + 1, 4);
    for (int i = 0, t = 0; i < n_seqs; i++) {
        memcpy(pages + i * ld, seqs[i]->pages, (size_t)seqs[i]->n_pages * 4);
        for (int k = 0; k < n[i]; k++, t++) {
            pos[t] = seqs[i]->fed + k;
            slot[t] = seqs[i]->pages[pos[t] / KV_PAGE] * KV_PAGE + pos[t] % KV_PAGE;
            memcpy(x + (size_t)t * W, seqs[i]->qkv + (size_t)pos[t] * W, (size_t)W * 4);
        }
    }
    float *dx = put(d, x, (size_t)T * W * 4), *out = put(d, NULL, (size_t)T * O * 4);
    float *lse = put(d, NULL, (size_t)T * H * 4);
    int32_t *dpos = put(d, pos, (size_t)T * 4), *dslot = put(d, slot, (size_t)T * 4);
    int32_t *dstart = put(d, q_start, sizeof q_start), *dlen = put(d, kv_len, sizeof kv_len);
    int32_t *dpages = put(d, pages, ((size_t)n_seqs * ld + 1) * 4);
    struct mat qkv = mat_f32(dx, T, W);
    op_rope_kv(d, (struct rope_kv_args){qkv, b->s.heads, b->s.kv_heads, b->s.head_dim, b->s.rot, b->cos, b->sin, dpos,
                                        dslot, b->kv, 1, b->rounds});
    op_attn(d, (struct attn_args){mat_f32(out, T, O), qkv, b->s.heads, b->s.kv_heads, b->s.head_dim, b->s.window,
                                  1 / sqrtf((float)b->s.head_dim), n_seqs, dstart, dlen, dpages, ld, b->kv, 1,
                                  T % 2 ? most : 0, b->s.softcap, b->sinks, mat_f32(lse, T, H)});
    check_device("rope_kv + attn", d);
    float *rotated = get(d, dx, (size_t)T * W), *host = get(d, out, (size_t)T * O);
    float *sums = get(d, lse, (size_t)T * H);
    for (int i = 0; i < n_seqs; i++) {
        memcpy(seqs[i]->out + (size_t)seqs[i]->fed * O, host + (size_t)q_start[i] * O, (size_t)n[i] * O * 4);
        memcpy(seqs[i]->qkv + (size_t)seqs[i]->fed * W, rotated + (size_t)q_start[i] * W, (size_t)n[i] * W * 4);
        memcpy(seqs[i]->lse + (size_t)seqs[i]->fed * H, sums + (size_t)q_start[i] * H, (size_t)n[i] * H * 4);
        seqs[i]->fed += n[i];
    }
    void *all[] = {dx, out, lse, dpos, dslot, dstart, dlen, dpages};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) d->ops->free(d, all[i]);
    free(x), free(pos), free(slot), free(pages), free(rotated), free(host), free(sums);
}

static const enum dtype kv_types[] = {DT_F32, DT_F16, DT_BF16, DT_I8};

static const struct shape shapes[] = {{1, 1, 1, 0, 0},    {2, 1, 8, 8, 0},    {4, 2, 16, 8, 5},    {7, 1, 17, 16, 0},
                                      {3, 3, 20, 20, 16}, {14, 2, 64, 64, 0}, {8, 2, 32, 0, 33},   {6, 2, 48, 24, 17},
                                      {20, 1, 80, 80, 0}, {2, 1, 96, 64, 18}, {4, 2, 128, 128, 9}, {2, 1, 256, 64, 0},
                                      {2, 2, 300, 0, 21}};

/* below most scores, about them, and far above; one for each kernel's size of head */
static const struct shape capped[] = {{2, 1, 8, 8, 0, 0.3f},    {7, 1, 17, 16, 0, 1},  {3, 3, 20, 20, 16, 50},
                                      {14, 2, 64, 64, 0, 1.5f}, {2, 1, 112, 64, 9, 2}, {4, 2, 128, 128, 0, 0.5f},
                                      {8, 4, 256, 256, 5, 3},   {2, 2, 300, 0, 21, 1}};

/* with sinks; likewise, and groups of more heads than a tile has rows */
static const struct shape sunk[] = {{1, 1, 1, 0, 0, 0, true},     {7, 1, 17, 16, 5, 0, true},
                                    {16, 2, 64, 64, 0, 0, true},  {16, 2, 64, 64, 18, 0, true},
                                    {20, 1, 80, 80, 0, 0, true},  {4, 2, 128, 128, 9, 1.5f, true},
                                    {4, 2, 256, 256, 0, 0, true}, {5, 5, 300, 0, 21, 0, true}};

/* Three sequences in one ragged batch, after an earlier batch that left them at different lengths. */
static void ragged_case(struct dev *dev, struct dev *ref, struct shape s, enum dtype t, bool check_out)
{
    static const int first[3] = {5, 16, 0}, second[3] = {30, 1, 17};
    if (case_left_out()) return;
    struct dev *devs[2] = {dev, ref};
    struct seq seqs[2][3];
    int W = width_of(&s), O = s.heads * s.head_dim;
    char label[LABEL];
    for (int i = 0; i < 2; i++) {
        struct bed b = bed_open(devs[i], s, t, 9, 5);
        struct seq *list[3];
        for (int k = 0; k < 3; k++) {
            seqs[i][k] = seq_make(&s, first[k] + second[k], 50 + (uint64_t)k);
            list[k] = &seqs[i][k];
        }
        feed(&b, list, first, 3);
        feed(&b, list, second, 3);
        bed_close(&b);
    }
    /* int8: a last-bit difference after rotation may move a value by one step of the cache */
    struct tolerance tol = {3e-5, 3e-5, 1e-10};
    if (t != DT_F32) tol = t == DT_I8 ? (struct tolerance){0.05, 0.02, 2e-5} : (struct tolerance){8e-3, 8e-3, 1e-6};
    /* bf16: softmax weights are rounded, each by up to 2^-9 of itself (see attn_args): an error of 2^-9 / sqrt(3) on
     * average, twice where few weights make the sum */
    if (t == DT_BF16) tol.nmse = 4 * 0x1p-18 / 3;
    for (int k = 0; k < 3; k++) {
        snprintf(label, sizeof label, "%s %s heads %d/%d dim %d rot %d window %d softcap %g sinks %d sequence %d",
                 check_out ? "attn" : "rope", dtype_name(t), s.heads, s.kv_heads, s.head_dim, s.rot, s.window,
                 (double)s.softcap, s.sinks, k);
        size_t len = (size_t)seqs[0][k].len;
        if (check_out) {
            compare(label, seqs[0][k].out, seqs[1][k].out, len * O, tol);
            compare(label, seqs[0][k].lse, seqs[1][k].lse, len * s.heads, tol);
        } else {
            compare(label, seqs[0][k].qkv, seqs[1][k].qkv, len * W, (struct tolerance){1e-6, 1e-6, 1e-12});
        }
        for (int i = 0; i < 2; i++) seq_free(&seqs[i][k]);
    }
}

/* x (n) as a cache of type t holds it. */
static void round_head(float *x, int n, enum dtype t)
{
    float amax = 0;
    for (int i = 0; i < n; i++) amax = fmaxf(amax, fabsf(x[i]));
    for (int i = 0; i < n; i++)
        x[i] = t == DT_F32    ? x[i]
               : t == DT_BF16 ? bf16_to_f32(f32_to_bf16(x[i]))
               : t == DT_F16  ? f16_to_f32(f32_to_f16(x[i]))
                              : (float)(int)rintf(x[i] * (127.0f / amax)) * (amax / 127.0f);
}

/* With `rounds` the outputs keep their bits, and qkv holds the rotated q, k and v as they were read. */
static void rounds_case(struct dev *d, struct shape s, enum dtype t)
{
    static const int counts[2] = {21, 16};
    struct seq seqs[2][2];
    size_t W = (size_t)width_of(&s);
    char label[LABEL];
    for (int i = 0; i < 2; i++) {
        struct bed b = bed_open(d, s, t, 6, 3);
        struct seq *list[2];
        b.rounds = i;
        for (int k = 0; k < 2; k++) {
            seqs[i][k] = seq_make(&s, counts[k], 70 + (uint64_t)k);
            list[k] = &seqs[i][k];
        }
        feed(&b, list, counts, 2);
        bed_close(&b);
    }
    for (int k = 0; k < 2; k++) {
        size_t len = (size_t)counts[k], D = (size_t)s.head_dim, first = t == DT_BF16 ? 0 : (size_t)s.heads;
        snprintf(label, sizeof label, "rope_kv rounds to %s, heads %d/%d dim %d rot %d", dtype_name(t), s.heads,
                 s.kv_heads, s.head_dim, s.rot);
        compare_bits(label, seqs[1][k].out, seqs[0][k].out, len * (size_t)s.heads * D);
        compare_bits(label, seqs[1][k].lse, seqs[0][k].lse, len * (size_t)s.heads);
        for (size_t i = 0; i < len; i++)
            for (size_t h = first; h < W / D; h++) round_head(seqs[0][k].qkv + i * W + h * D, s.head_dim, t);
        compare_bits(label, seqs[1][k].qkv, seqs[0][k].qkv, len * W);
        for (int i = 0; i < 2; i++) seq_free(&seqs[i][k]);
    }
}

void test_rope_kv(struct dev *dev, struct dev *ref)
{
    size_t types = dev->ops->host_memory ? 4 : 1; /* what the cache holds is test_attn's */
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t k = 0; k < types; k++) ragged_case(dev, ref, shapes[i], kv_types[k], false);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += 3)
        for (size_t k = 0; k < 4; k++) {
            if (case_left_out()) continue;
            rounds_case(dev, shapes[i], kv_types[k]);
            rounds_case(ref, shapes[i], kv_types[k]);
        }
}

void test_attn(struct dev *dev, struct dev *ref)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t k = 0; k < 4; k++) ragged_case(dev, ref, shapes[i], kv_types[k], true);
    for (size_t i = 0; i < sizeof capped / sizeof *capped; i++)
        for (size_t k = 0; k < 4; k++) ragged_case(dev, ref, capped[i], kv_types[k], true);
    for (size_t i = 0; i < sizeof sunk / sizeof *sunk; i++)
        for (size_t k = 0; k < 4; k++) ragged_case(dev, ref, sunk[i], kv_types[k], true);
}

/* ---- the same bits ------------------------------------------------------------------------------------------- */

/* Moves the sequence's first pages to others by way of host memory. */
static void move_pages(struct bed *b, struct seq *q)
{
    struct dev *d = b->d;
    struct kv_shape shape = {b->layers, 1, b->s.kv_heads, b->s.head_dim, b->t};
    void *page = malloc(d->ops->kv_page_bytes(&shape));
    if (!page) abort();
    for (int i = 0; i < q->n_pages && i < 8; i++) {
        int32_t to = b->page_order[b->free_page++];
        d->ops->kv_save(d, b->kv, q->pages[i], page);
        d->ops->finish(d);
        d->ops->kv_load(d, b->kv, to, page);
        q->pages[i] = to;
    }
    check_device("kv_save + kv_load", d);
    free(page);
}

/* Feeds `len` tokens of sequence A in the given chunks (0 ends the list; the rest goes one by one) while B and C come
 * and go in the same batches; with an even seed its pages move once.  Returns A's outputs. */
static float *chunk_run(struct dev *d, struct shape s, enum dtype t, int len, const int *chunks, uint64_t seed)
{
    struct bed b = bed_open(d, s, t, len / KV_PAGE + 30, seed);
    struct seq a = seq_make(&s, len, 99), other = seq_make(&s, 120, 98), third = seq_make(&s, 120, 97);
    bool moved = false;
    while (a.fed < len) {
        int n = *chunks ? *chunks++ : 1;
        n = n > len - a.fed ? len - a.fed : n;
        bool with_b = random_below(2) && other.fed + 3 < other.len,
             with_c = random_below(3) && third.fed + 9 < third.len;
        struct seq *list[3];
        int counts[3], k = 0;
        if (with_b) list[k] = &other, counts[k++] = 1 + random_below(3);
        list[k] = &a, counts[k++] = n;
        if (with_c) list[k] = &third, counts[k++] = random_below(9);
        feed(&b, list, counts, k);
        if (seed % 2 == 0 && !moved && (moved = a.fed > KV_PAGE)) move_pages(&b, &a);
    }
    bed_close(&b);
    seq_free(&other), seq_free(&third);
    free(a.qkv);
    free(a.lse);
    return a.out;
}

static void chunk_case(const char *const *levels, int n_levels, struct shape s, enum dtype t, int len,
                       const int (*chunks)[8], int n_chunks)
{
    float *want = NULL;
    size_t n = (size_t)len * s.heads * s.head_dim;
    for (int i = 0; i < 2 * n_levels; i++) {
        struct dev *d = open_checked(levels[i / 2], i % 2 ? 3 : 1);
        if (i % 2 && !d->ops->host_memory) { /* it has no threads to differ by */
            dev_close(d);
            continue;
        }
        for (int k = 0; k < n_chunks; k++) {
            char label[LABEL];
            float *got = chunk_run(d, s, t, len, chunks[k], 7 + (uint64_t)k);
            snprintf(label, sizeof label,
                     "attn %s %s threads %d, %d tokens dim %d window %d softcap %g sinks %d, chunks %d %d %d ...",
                     d->level, dtype_name(t), d->threads, len, s.head_dim, s.window, (double)s.softcap, s.sinks,
                     chunks[k][0], chunks[k][1], chunks[k][2]);
            if (want)
                compare_bits(label, got, want, n);
            else
                want = got, got = NULL;
            free(got);
        }
        dev_close(d);
    }
    free(want);
}

/* A sequence in pages whose earlier owner left NaNs and infinities there, and in a fresh cache: the same bits. */
static void leftovers_case(const char *level, struct shape s, enum dtype t)
{
    static const int all[] = {90}, first[] = {21}, then[] = {16};
    struct dev *d = open_checked(level, 1);
    struct seq before = seq_make(&s, *all, 41), seqs[2];
    char label[LABEL];
    for (int i = 0; i < *all * width_of(&s); i += 3) before.qkv[i] = i % 2 ? INFINITY : NAN;
    for (int i = 0; i < 2; i++) {
        struct bed b = bed_open(d, s, t, 7, 3);
        seqs[i] = seq_make(&s, *first + *then, 42);
        struct seq *old = &before, *list = &seqs[i];
        if (i) feed(&b, &old, all, 1);
        b.free_page = 0;
        feed(&b, &list, first, 1);
        feed(&b, &list, then, 1);
        bed_close(&b);
    }
    snprintf(label, sizeof label, "attn %s %s dim %d window %d in used pages", d->level, dtype_name(t), s.head_dim,
             s.window);
    compare_bits(label, seqs[1].out, seqs[0].out, (size_t)seqs[0].len * s.heads * s.head_dim);
    for (int i = 0; i < 2; i++) seq_free(&seqs[i]);
    seq_free(&before);
    dev_close(d);
}

/* On a device that is no cpu level: fewer cuts and shorter, since it may be slow to test on; and heads of every size
 * that its kernels have a way for. */
static void test_device_chunks(const char *const *name)
{
    static const int cuts[][8] = {{37}, {5, 16, 1, 15}, {30, 0}}, long_cuts[][8] = {{600}, {300, 5, 290}};
    static const struct shape some[] = {
        {14, 2, 64, 64, 0}, {4, 4, 20, 8, 7, 0, true}, {20, 1, 80, 16, 20}, {3, 1, 32, 8, 0, 1}};
    static const struct shape large[] = {{3, 1, 128, 16, 0}, {2, 1, 256, 16, 9}, {3, 1, 128, 16, 5, 1}};
    static const struct shape narrow[] = {
        {2, 1, 16, 16, 0, 0, true}, {2, 1, 16, 16, 300}, {2, 1, 16, 16, 0}, {2, 1, 16, 16, 300, 0, true}};
    for (size_t k = 0; k < 4; k++) {
        for (size_t i = 0; i < sizeof some / sizeof *some; i++) chunk_case(name, 1, some[i], kv_types[k], 37, cuts, 3);
        for (size_t i = 0; i < sizeof large / sizeof *large; i++)
            chunk_case(name, 1, large[i], kv_types[k], 37, cuts, 2);
        chunk_case(name, 1, narrow[k], kv_types[k], 600, long_cuts, 2);
    }
}

void test_chunks(const char *const *levels, int n_levels)
{
    struct dev *d = open_checked(levels[0], 1);
    bool device = !d->ops->host_memory;
    dev_close(d);
    if (device) {
        test_device_chunks(levels);
        return;
    }
    static const int cuts[][8] = {{37}, {5, 16, 1, 15}, {0}, {16, 16, 5}, {1, 35, 1}};
    static const struct shape mixed[] = {{14, 2, 64, 64, 0}, {4, 4, 20, 8, 7},       {6, 2, 16, 16, 20},
                                         {2, 1, 8, 4, 16},   {4, 2, 24, 8, 9, 0.7f}, {16, 2, 64, 64, 20, 0, true}};
    for (size_t i = 0; i < sizeof mixed / sizeof *mixed; i++)
        for (size_t k = 0; k < 4; k++) {
            chunk_case(levels, n_levels, mixed[i], kv_types[k], 37, cuts, 5);
            for (int l = 0; l < n_levels; l++) leftovers_case(levels[l], mixed[i], kv_types[k]);
        }
    /* past the fixed splits of the context: the last tokens one by one are cut by split on several threads */
    static const int long_cuts[][8] = {{1200}, {500, 20, 600, 75}, {1023, 2, 170}};
    static const struct shape narrow = {2, 1, 16, 16, 0}, with_sinks = {2, 1, 16, 16, 0, 0, true};
    static const struct shape windowed = {2, 1, 16, 16, 500, 0, true};
    chunk_case(levels, n_levels, narrow, DT_BF16, 1200, long_cuts, 3);
    chunk_case(levels, n_levels, with_sinks, DT_I8, 1200, long_cuts, 3);
    chunk_case(levels, n_levels, windowed, DT_F32, 1200, long_cuts, 3);
}
