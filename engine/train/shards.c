#include "engine/train/shards.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"

#include <stdlib.h>

enum {
    ALIGN = 16,  /* floats: 64 bytes, as optim.h */
    BLOCK = 256, /* parameters with a common scale of 8-bit moments */
};

void shards_add(struct shards *s, const struct shard_unit *u)
{
    struct shard_unit *last = s->n_units ? &s->unit[s->n_units - 1] : NULL;
    if (last && s->n < u->from) { /* padding after matrices */
        last->n += u->from - s->n;
        s->n_f32 += u->from - s->n;
    }
    s->n = u->from + u->n;
    *(u->is_8bit ? &s->n_8bit : &s->n_f32) += u->n;
    if (last && last->from + last->n == u->from && last->group == u->group && last->decay == u->decay &&
        last->is_8bit == u->is_8bit && last->whole == u->whole && last->layer == u->layer && !u->matrix &&
        !last->matrix) {
        last->n += u->n;
        return;
    }
    mem_grow(&s->unit, &s->cap_units, s->n_units + 1, sizeof *s->unit);
    s->unit[s->n_units++] = *u;
}

size_t shards_slice(const struct shards *s, const struct shard_unit *u, int i)
{
    size_t align = u->is_8bit ? BLOCK : ALIGN, slices = (size_t)s->slices, each = (u->n + slices - 1) / slices;
    size_t at = (each + align - 1) / align * align * (size_t)i;
    return at < u->n && i < s->slices ? at : u->n;
}

size_t shards_part(const struct shards *s, const struct shard_unit *u, int part)
{
    if (u->owner >= 0) return part > u->owner ? u->n : 0;
    return shards_slice(s, u, part * (s->slices / s->parts));
}

int shards_owner(const struct shards *s, const struct shard_unit *u, int slice)
{
    return u->owner >= 0 ? u->owner : slice / (s->slices / s->parts);
}

static size_t own_of(const struct shards *s, const struct shard_unit *u)
{
    return shards_part(s, u, s->part + 1) - shards_part(s, u, s->part);
}

/* Each matrix of Muon to the rank that has the fewest floats of them so far. */
static void give_matrices(struct shards *s)
{
    size_t *load = mem_array((size_t)s->parts, sizeof *load);
    for (size_t i = 0; i < s->n_units; i++) {
        int least = 0;
        s->unit[i].owner = -1;
        if (!s->unit[i].matrix || !s->divided) continue;
        for (int r = 1; r < s->parts; r++)
            if (load[r] < load[least]) least = r;
        load[least] += s->unit[i].n;
        s->unit[i].owner = least;
    }
    free(load);
}

/* One after the other from `at` on.  @return the floats that the layer's gradients take. */
static size_t place_layer(struct shards *s, int layer, size_t at)
{
    size_t used = 0;
    for (size_t i = 0; i < s->n_units; i++) {
        if (s->unit[i].layer != layer) continue;
        s->unit[i].grads_at = at + used;
        used += s->unit[i].n;
    }
    return used;
}

/* The gradients of a pass: layers with even numbers use one place, those with odd numbers another, and what belongs to
 * no layer has its own. */
static void place_grads(struct shards *s)
{
    size_t most[2] = {0};
    int layers = 0;
    for (size_t i = 0; i < s->n_units; i++)
        if (s->unit[i].layer >= layers) layers = s->unit[i].layer + 1;
    for (int l = 0; l < layers; l++) {
        size_t used = place_layer(s, l, 0);
        if (used > most[l % 2]) most[l % 2] = used;
    }
    for (size_t i = 0; i < s->n_units; i++)
        if (s->unit[i].layer >= 0 && s->unit[i].layer % 2) s->unit[i].grads_at += most[0];
    s->pass = most[0] + most[1] + place_layer(s, -1, most[0] + most[1]);
}

/* What is gathered of a layer. */
static void place_layers(struct shards *s)
{
    int layers = 0;
    for (size_t i = 0; i < s->n_units; i++)
        if (s->unit[i].layer >= layers) layers = s->unit[i].layer + 1;
    size_t *used = mem_array((size_t)layers, sizeof *used);
    for (size_t i = 0; i < s->n_units; i++) {
        struct shard_unit *u = &s->unit[i];
        if (u->whole || u->layer < 0) continue;
        u->layer_at = used[u->layer];
        used[u->layer] += u->n;
        if (used[u->layer] > s->layer) s->layer = used[u->layer];
    }
    free(used);
}

/* In arrays of own slices units are aligned, as they are in the flat one. */
static size_t aligned(const struct shards *s, size_t at)
{
    return s->divided ? (at + ALIGN - 1) / ALIGN * ALIGN : at;
}

static void place(struct shards *s)
{
    for (size_t i = 0; i < s->n_units; i++) {
        struct shard_unit *u = &s->unit[i];
        size_t n = own_of(s, u), *moments = u->is_8bit ? &s->own_8bit : &s->own_f32;
        u->own = aligned(s, s->own);
        u->own_moments = u->is_8bit ? *moments : aligned(s, *moments);
        u->whole_at = s->whole;
        s->own = u->own + n;
        *moments = u->own_moments + n;
        if (u->whole) s->whole += u->n;
    }
}

static void extend(struct shard_extents *x, struct shard_extent e)
{
    if (!e.bytes) return;
    mem_grow(&x->v, &x->cap, x->n + 1, sizeof *x->v);
    x->v[x->n++] = e;
}

/* The parts of the units, of those in 8 bits or the others (-1: all), that have `bytes` for `per` of them. */
static void extend_all(const struct shards *s, int array, int is_8bit, size_t base, size_t own_base, size_t bytes,
                       size_t per, struct shard_extents *x)
{
    for (size_t i = 0; i < s->n_units; i++) {
        const struct shard_unit *u = &s->unit[i];
        if (is_8bit >= 0 && u->is_8bit != is_8bit) continue;
        size_t first = array == SHARD_VALUES ? u->from : u->moments;
        size_t own = array == SHARD_VALUES ? u->own : u->own_moments;
        for (int r = 0; r < s->parts; r++) {
            size_t at = shards_part(s, u, r), n = shards_part(s, u, r + 1) - at;
            extend(x, (struct shard_extent){.at = base + (first + at) / per * bytes,
                                            .bytes = (n + per - 1) / per * bytes,
                                            .own = own_base + own / per * bytes,
                                            .owner = r});
        }
    }
}

void shards_divide(struct shards *s, int stage, int slices, int parts, int part)
{
    CHECK(parts > 0 && slices % parts == 0);
    s->divided = stage > 0 && parts > 1;
    s->grads = s->divided && stage > 1;
    s->values = s->divided && stage > 2;
    s->slices = slices;
    s->parts = s->divided ? parts : 1;
    s->part = s->divided ? part : 0;
    give_matrices(s);
    place(s);
    s->own = aligned(s, s->own);
    s->own_f32 = aligned(s, s->own_f32);
    place_grads(s);
    if (s->values) place_layers(s);
    if (!s->divided) return;
    struct shard_extents *m = &s->extents[SHARD_MOMENTS];
    extend_all(s, SHARD_VALUES, -1, 0, 0, sizeof(float), 1, &s->extents[SHARD_VALUES]);
    extend_all(s, SHARD_MOMENTS, false, 0, 0, sizeof(float), 1, m);
    extend_all(s, SHARD_MOMENTS, true, s->n_f32 * sizeof(float), s->own_f32 * sizeof(float), 1, 1, m);
    extend_all(s, SHARD_MOMENTS, true, s->n_f32 * sizeof(float) + s->n_8bit, s->own_f32 * sizeof(float) + s->own_8bit,
               sizeof(float), BLOCK, m);
}

void shards_free(struct shards *s)
{
    for (int i = 0; i < SHARD_ARRAYS; i++) free(s->extents[i].v);
    free(s->unit);
    *s = (struct shards){0};
}

struct shard_unit *shards_at(const struct shards *s, size_t at)
{
    size_t low = 0, high = s->n_units;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        *(s->unit[middle].from <= at ? &low : &high) = middle;
    }
    return &s->unit[low];
}

size_t shards_extent(const struct shard_extents *x, size_t at)
{
    size_t low = 0, high = x->n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (x->v[middle].at + x->v[middle].bytes <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
