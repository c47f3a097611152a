/* The driver of lora: x a^T as dot products of long rows, which read a in its own layout; then the block kernel of
 * float weights over panels of b, packed in a worker's scratch. Each row has one order of operations, whatever its
 * group; parts that overlap are added in order. */
#include "kernels/cpu/cpu.h"

enum { RANKS = 8, DOT_ROWS = 16, ROWS = 96, COLUMNS = 512, TILE_FLOATS = 2 * PAIR * PAIR };

struct chunk { /* work item of a task: rows of a group by some of the parts */
    const struct lora_group *group;
    int part, n_parts;
    int row, rows;    /* relative to the group's first */
    int first, count; /* ranks of the part, or columns; for several parts: all */
    size_t xa;        /* offset of the (rows, r) matrix of the group's first part */
};

struct lora_run {
    struct cpu_dev *d;
    const struct lora_args *a;
    const struct chunk *chunk;
    float *xa;
};

static const struct lora_part *part_of(const struct chunk *p, int i)
{
    return p->group->part + p->part + i;
}

static struct mat rows_of(const struct mat *m, int row, int rows)
{
    struct mat r = *m;
    r.p = mat_row(m, row);
    r.rows = rows;
    return r;
}

static void down_task(void *ctx, int task, int worker)
{
    const struct lora_run *r = ctx;
    const struct chunk *p = r->chunk + task;
    const struct lora_part *part = part_of(p, 0);
    int K = r->a->x.cols;
    struct mat c = {r->xa + p->xa + (size_t)p->row * (size_t)part->r + p->first, DT_F32, p->rows, p->count, part->r};
    r->d->isa->gemm.dot(c, rows_of(&r->a->x, p->group->row0 + p->row, p->rows), part->a + (size_t)p->first * (size_t)K,
                        K, 1, false);
}

/* Columns first .. first + count of one part. */
static void up_part(const struct lora_run *r, const struct chunk *p, const struct lora_part *part, const float *xa,
                    int first, int count, float *tile)
{
    const struct isa *isa = r->d->isa;
    int most = isa->block_rows[DT_F32];
    struct mat b = {(void *)(uintptr_t)part->b, DT_F32, part->n, part->r, part->r};
    struct weight w = {.t = DT_F32,
                       .rows = PAIR,
                       .cols = part->r,
                       .pairs = 1,
                       .k_pad = part->r,
                       .pair_bytes = (size_t)part->r * PAIR * sizeof(float),
                       .data = (uint8_t *)(tile + TILE_FLOATS)};
    struct lin_job j = {
        .w = &w,
        .y = rows_of(&r->a->y, p->group->row0 + p->row, p->rows),
        .x = {(void *)(uintptr_t)(xa + (size_t)p->row * (size_t)part->r), DT_F32, p->rows, part->r, part->r},
        .into = true,
        .accumulate = true,
        .alpha = part->scale,
        .n_blocks = (p->rows + most - 1) / most,
        .skip = -1};
    float *y = j.y.p;
    for (int n = first; n < first + count; n += PAIR) {
        isa->gemm.panel_of(w.data, false, &b, true, n, 0, part->r, tile);
        j.y.p = y + part->col + n;
        j.y.cols = part->n - n;
        isa->linear[DT_F32](&j, 0, j.n_blocks, 0, 1);
    }
}

static void up_task(void *ctx, int task, int worker)
{
    const struct lora_run *r = ctx;
    const struct chunk *p = r->chunk + task;
    const float *xa = r->xa + p->xa;
    for (int i = 0; i < p->n_parts; i++) {
        const struct lora_part *part = part_of(p, i);
        bool all = p->n_parts > 1;
        up_part(r, p, part, xa, all ? 0 : p->first, all ? part->n : p->count, r->d->worker[worker].p);
        xa += (size_t)p->group->rows * (size_t)part->r;
    }
}

/* Whether two parts of a group share columns. */
static bool parts_overlap(const struct lora_group *g)
{
    for (const struct lora_part *p = g->part; p < g->part + g->n_parts; p++)
        for (const struct lora_part *o = g->part; o < p; o++)
            if (p->col < o->col + o->n && o->col < p->col + p->n) return true;
    return false;
}

struct count {
    int down, up;
    size_t xa;
    double down_ns, up_ns;
    int rank; /* the largest */
};

/* Lists the work items of the tasks (NULL: only counts them). */
static struct count list_chunks(const struct lora_args *a, struct chunk *down, struct chunk *up)
{
    struct count c = {0};
    for (const struct lora_group *g = a->group; g < a->group + a->n_groups; g++) {
        bool overlap = parts_overlap(g);
        for (int row = 0; overlap && row < g->rows; row += ROWS, c.up++) {
            int rows = g->rows - row < ROWS ? g->rows - row : ROWS;
            if (up) up[c.up] = (struct chunk){g, 0, g->n_parts, row, rows, 0, 0, c.xa};
        }
        for (int i = 0; i < g->n_parts; i++) {
            const struct lora_part *p = g->part + i;
            for (int row = 0; row < g->rows; row += DOT_ROWS)
                for (int r = 0; r < p->r; r += RANKS, c.down++) {
                    int rows = g->rows - row < DOT_ROWS ? g->rows - row : DOT_ROWS;
                    int ranks = p->r - r < RANKS ? p->r - r : RANKS;
                    if (down) down[c.down] = (struct chunk){g, i, 1, row, rows, r, ranks, c.xa};
                }
            for (int row = 0; !overlap && row < g->rows; row += ROWS)
                for (int n = 0; n < p->n; n += COLUMNS, c.up++) {
                    int rows = g->rows - row < ROWS ? g->rows - row : ROWS;
                    int columns = p->n - n < COLUMNS ? p->n - n : COLUMNS;
                    if (up) up[c.up] = (struct chunk){g, i, 1, row, rows, n, columns, c.xa};
                }
            c.xa += (size_t)g->rows * (size_t)p->r;
            c.down_ns += (double)(g->rows + 4) * p->r * a->x.cols / 24;
            c.up_ns += (double)(g->rows + 4) * p->r * p->n / 24;
            if (p->r > c.rank) c.rank = p->r;
        }
    }
    return c;
}

static void run_chunks(struct lora_run *r, pool_fn *fn, const struct chunk *chunks, int n, double ns)
{
    for (int i = 0; i < n; i += POOL_TASKS_MAX) {
        r->chunk = chunks + i;
        cpu_run(r->d, fn, r, n - i < POOL_TASKS_MAX ? n - i : POOL_TASKS_MAX, ns);
    }
}

void cpu_lora(struct dev *head, const struct lora_args *a)
{
    struct cpu_dev *d = cpu_of(head);
    struct count c = list_chunks(a, NULL, NULL);
    size_t chunks = (size_t)(c.down + c.up) * sizeof(struct chunk);
    size_t worker = (TILE_FLOATS + (size_t)c.rank * PAIR) * sizeof(float);
    if (!c.up) return;
    struct chunk *down = scratch_get(&d->panels, chunks);
    struct lora_run r = {.d = d, .a = a, .xa = scratch_get(&d->transposed, c.xa * sizeof(float))};
    bool fits = down && r.xa;
    for (int i = 0; i < head->threads; i++) fits = fits && scratch_get(d->worker + i, worker);
    if (!fits) {
        dev_fail(head, "lora", "out of memory");
        return;
    }
    list_chunks(a, down, down + c.down);
    run_chunks(&r, down_task, down, c.down, c.down_ns);
    run_chunks(&r, up_task, down + c.down, c.up, c.up_ns);
}
