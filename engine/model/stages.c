#include "engine/model/stages.h"

#include "engine/base/mem.h"

#include <stdlib.h>

/* ---- dividing ---------------------------------------------------------------------------------------------------- */

/* The weights of each layer to out (layers).  @return those of the head */
static uint64_t count_weights(const struct model_config *c, uint64_t *out)
{
    struct tensors t = tensors_of(c, NULL);
    uint64_t head = 0;
    for (int i = 0; i < tensors_stacks(c); i++) {
        struct stack m;
        struct expert_stack x = tensors_expert_stack(c, i);
        int layer = x.layer >= 0 ? x.layer : i / LAYER_GEMMS;
        tensors_stack(&t, i, &m);
        uint64_t n = m.n ? (uint64_t)m.rows * (uint64_t)m.cols : 0;
        if (layer < c->layers)
            out[layer] += n;
        else if (tensors_have_head(c) && i == c->layers * LAYER_GEMMS)
            head = n;
    }
    return head;
}

/* Gives each stage layers as long as it has at most `most` weights, but leaves one for each stage after it.
 * @return whether that is all of them */
static bool fill(const struct model_config *c, const uint64_t *layer, uint64_t head, int stages, uint64_t most,
                 int *from)
{
    int i = 0;
    for (int s = 0; s < stages; s++) {
        uint64_t n = (s ? 0 : head) + layer[i];
        from[s] = i++;
        while (i < c->layers - (stages - 1 - s) && n + layer[i] <= most) n += layer[i++];
    }
    from[stages] = i;
    return i == c->layers;
}

int stages_divide(const struct model_config *c, int stages, int *from, struct err *e)
{
    if (c->layers < stages)
        return err_set(e, ERR_UNSUPPORTED, "%d layers cannot be divided into %d stages: each has at least one",
                       c->layers, stages);
    uint64_t *layer = mem_array((size_t)c->layers, sizeof *layer), low = 0, high = 0;
    uint64_t head = count_weights(c, layer);
    high = head;
    for (int i = 0; i < c->layers; i++) high += layer[i];
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (fill(c, layer, head, stages, middle, from))
            high = middle;
        else
            low = middle + 1;
    }
    fill(c, layer, head, stages, low, from);
    free(layer);
    return 0;
}

/* ---- micro-batches ----------------------------------------------------------------------------------------------- */

enum {
    PART_ROWS = 64, /* fewer rows take about as long, since their weights are read all the same */
    PARTS = 4       /* for each stage: the time in which stages wait for their first rows is 1 / PARTS of a step */
};

int stages_parts(const struct shard *s, int rows)
{
    int most = PARTS * s->stages, n = rows / PART_ROWS;
    if (s->whole.encoder || s->dry || n < 1) return 1; /* the rows of a text of an encoder see all others */
    return n < most ? n : most;
}

int stages_part(int rows, int parts, int i)
{
    return (int)((int64_t)rows * i / parts);
}

/* ---- exchanging -------------------------------------------------------------------------------------------------- */

/* The rows that this rank of its stage sends or receives, in bytes; all of them begin at `at`. */
struct share {
    char *at;
    size_t from, end, row;
};

static struct share share_of(const struct shard *s, const struct dev *d, struct mat x)
{
    size_t ranks = (size_t)comm_ranks(s->group), rank = (size_t)comm_rank(s->group), rows = (size_t)x.rows;
    size_t row = (size_t)x.cols * sizeof *s->blocks;
    char *at = d->ops->host_memory ? x.p : (void *)s->blocks;
    return (struct share){at, rows * rank / ranks * row, rows * (rank + 1) / ranks * row, row};
}

/* The rank of the same place in a stage so many above. */
static int neighbour(const struct shard *s, int above)
{
    int ranks = comm_ranks(s->comm), each = comm_ranks(s->group);
    return (comm_rank(s->comm) + above * each + ranks) % ranks;
}

void stages_send(struct shard *s, struct dev *d, struct mat x)
{
    struct share own = share_of(s, d, x);
    if (s->dry) return;
    if (!d->ops->host_memory) {
        d->ops->download(d, own.at + own.from, (char *)x.p + own.from, own.end - own.from);
        d->ops->finish(d);
    }
    comm_send(s->comm, own.at + own.from, own.end - own.from, neighbour(s, 1));
    shard_fine(s, d, "send");
}

/* All rows of x to all ranks of the stage, each of which has its share. */
static void gather(struct shard *s, struct share own, size_t rows)
{
    int ranks = comm_ranks(s->group);
    size_t *from = mem_array((size_t)ranks + 1, sizeof *from);
    for (int r = 0; r <= ranks; r++) from[r] = rows * (size_t)r / (size_t)ranks * own.row;
    comm_gather_parts(s->group, own.at, from);
    free(from);
}

void stages_receive(struct shard *s, struct dev *d, struct mat x)
{
    struct share own = share_of(s, d, x);
    if (s->dry) return;
    comm_receive(s->comm, own.at + own.from, own.end - own.from, neighbour(s, -1));
    if (!shard_fine(s, d, "receive")) return;
    if (comm_ranks(s->group) > 1) gather(s, own, (size_t)x.rows);
    if (!shard_fine(s, d, "all-gather")) return;
    if (!d->ops->host_memory) d->ops->upload(d, x.p, own.at, (size_t)x.rows * own.row);
}
