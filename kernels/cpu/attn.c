/* The driver of attention.
 *
 * The work is divided into blocks of query rows (token, head) that share a KV head; each block walks the splits of
 * its context in order. When there are too few blocks for the threads (decoding a long context), each split of a
 * block becomes a task of its own, and the results are folded afterwards, in the same order and with the same
 * arithmetic. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

struct attn_run {
    const struct isa *isa;
    const struct attn_args *a;
    int *seq_unit; /* (n_seqs + 1) first unit of each sequence; a unit is a block of rows of one KV head */
    int units_per_task, splits, skip; /* skip: units between a task and the next one of the same thread */
    struct attn_part *parts;          /* (units, splits, attn_rows): only when splits are tasks */
};

/* Number of row blocks of one KV head of sequence s. */
static int seq_blocks(const struct attn_run *r, int s)
{
    int group = r->a->heads / r->a->kv_heads, rows = (r->a->q_start[s + 1] - r->a->q_start[s]) * group;
    return (rows + r->isa->attn_rows - 1) / r->isa->attn_rows;
}

static struct attn_block unit_block(const struct attn_run *r, int unit, int *last_pos)
{
    const struct attn_args *a = r->a;
    int low = 0, high = a->n_seqs; /* the last sequence whose first unit is <= unit */
    while (high - low > 1) {
        int mid = (low + high) / 2;
        *(r->seq_unit[mid] <= unit ? &low : &high) = mid;
    }
    int s = low, blocks = seq_blocks(r, s), n = a->q_start[s + 1] - a->q_start[s], group = a->heads / a->kv_heads;
    int kv_head = (unit - r->seq_unit[s]) / blocks, i = (unit - r->seq_unit[s]) % blocks;
    int row0 = (int)((int64_t)n * group * i / blocks), row1 = (int)((int64_t)n * group * (i + 1) / blocks);
    struct attn_block b = {.a = a,
                           .pages = a->pages + (size_t)s * a->pages_ld,
                           .kv_head = kv_head,
                           .group = group,
                           .token0 = a->q_start[s],
                           .pos0 = a->kv_len[s] - n,
                           .row0 = row0,
                           .n_rows = row1 - row0};
    *last_pos = b.pos0 + (row1 - 1) / group;
    return b;
}

static void block_finish(const struct attn_run *r, const struct attn_block *b, const struct attn_part *part)
{
    for (int i = 0; i < b->n_rows; i++) {
        int row = b->row0 + i, h = b->kv_head * b->group + row % b->group;
        int token = b->token0 + row / b->group;
        float *out = mat_row(&r->a->out, token) + (size_t)h * r->a->head_dim;
        float sum = r->isa->attn_finish(out, part + i, r->a->head_dim);
        if (r->a->lse.p) mat_row(&r->a->lse, token)[h] = (float)(M_LN2 * ((double)part[i].max + log2((double)sum)));
    }
}

/* Folds the parts of split `split` into the total; the first split is the total itself. */
static void block_fold(const struct attn_run *r, const struct attn_block *b, struct attn_part *total,
                       const struct attn_part *part)
{
    for (int i = 0; i < b->n_rows; i++) r->isa->attn_merge(total + i, part + i, r->a->kv->dim_pad);
}

static void attn_unit(const struct attn_run *r, int unit)
{
    struct attn_part total[ATTN_ROWS_MAX], part[ATTN_ROWS_MAX];
    int last, then_last, then = unit + 1;
    struct attn_block b = unit_block(r, unit, &last), next;
    if (then % r->units_per_task == 0) then += r->skip; /* tasks start in order, round robin over the threads */
    if (then < r->seq_unit[r->a->n_seqs]) {
        next = unit_block(r, then, &then_last);
        b.then = &next;
    }
    r->isa->attn_split(&b, 0, total);
    for (int split = 1; split <= last / (ATTN_SPLIT_PAGES * KV_PAGE); split++) {
        r->isa->attn_split(&b, split, part);
        block_fold(r, &b, total, part);
    }
    block_finish(r, &b, total);
}

static void attn_task(void *ctx, int task, int worker)
{
    const struct attn_run *r = ctx;
    int end = (task + 1) * r->units_per_task;
    for (int unit = task * r->units_per_task; unit < end && unit < r->seq_unit[r->a->n_seqs]; unit++)
        attn_unit(r, unit);
}

static void attn_split_task(void *ctx, int task, int worker)
{
    const struct attn_run *r = ctx;
    int last, split = task % r->splits;
    struct attn_block b = unit_block(r, task / r->splits, &last);
    if (split <= last / (ATTN_SPLIT_PAGES * KV_PAGE))
        r->isa->attn_split(&b, split, r->parts + (size_t)task * r->isa->attn_rows);
}

static void attn_fold_task(void *ctx, int unit, int worker)
{
    const struct attn_run *r = ctx;
    int last;
    struct attn_block b = unit_block(r, unit, &last);
    struct attn_part *total = r->parts + (size_t)unit * r->splits * r->isa->attn_rows;
    for (int split = 1; split <= last / (ATTN_SPLIT_PAGES * KV_PAGE); split++)
        block_fold(r, &b, total, total + (size_t)split * r->isa->attn_rows);
    block_finish(r, &b, total);
}

void cpu_attn(struct dev *head, const struct attn_args *a)
{
    struct cpu_dev *d = cpu_of(head);
    struct attn_run r = {.isa = d->isa, .a = a, .splits = 1};
    size_t index_bytes = ((size_t)a->n_seqs + 1) * sizeof(int);
    if (a->n_seqs == 0 || !(r.seq_unit = scratch_get(&d->attn, index_bytes))) {
        if (a->n_seqs) dev_fail(head, "attn", "out of memory");
        return;
    }
    double scores = 0;
    int units = 0, max_len = 1;
    for (int s = 0; s < a->n_seqs; s++) {
        int n = a->q_start[s + 1] - a->q_start[s];
        r.seq_unit[s] = units;
        units += seq_blocks(&r, s) * a->kv_heads;
        if (n && a->kv_len[s] > max_len) max_len = a->kv_len[s];
        scores += (double)n * (a->window && a->window < a->kv_len[s] ? a->window : a->kv_len[s]) * a->heads;
    }
    r.seq_unit[a->n_seqs] = units;
    double ns = scores * a->head_dim * 2 / 20;
    int splits = (max_len - 1) / (ATTN_SPLIT_PAGES * KV_PAGE) + 1;
    if (splits > 1 && head->threads > 1 && units < head->threads * 3 && units * splits <= POOL_TASKS_MAX) {
        size_t parts_at = (index_bytes + 63) / 64 * 64;
        size_t bytes = (size_t)units * splits * r.isa->attn_rows * sizeof(struct attn_part);
        char *p = scratch_get(&d->attn, parts_at + bytes);
        if (p) {
            int fill = 0;
            r.seq_unit = (int *)p;
            for (int s = 0; s < a->n_seqs; fill += seq_blocks(&r, s++) * a->kv_heads) r.seq_unit[s] = fill;
            r.seq_unit[a->n_seqs] = fill;
            r.parts = (struct attn_part *)(p + parts_at);
            r.splits = splits;
            cpu_run(d, attn_split_task, &r, units * splits, ns);
            cpu_run(d, attn_fold_task, &r, units, (double)units * splits * 100);
            return;
        }
        dev_fail(head, "attn", "out of memory");
        return;
    }
    r.units_per_task = 1 + units / (head->threads * 64);
    r.skip = r.units_per_task * (head->threads - 1);
    cpu_run(d, attn_task, &r, (units + r.units_per_task - 1) / r.units_per_task, ns);
}
