/* How the optimizer's arrays are divided over ranks (ZeRO, Rajbhandari and others, 2020, arXiv:1910.02054).
 *
 * The flat array of all parameters is a sequence of units: what one group has in one piece, or a matrix of Muon.  A
 * unit is cut into as many slices as a step has slots (grad_slots.h), at the same places on any number of ranks; of S
 * slices and N ranks a rank owns S / N in a row, of a matrix of Muon all or none.  The owner keeps their moments, their
 * values and, from stage 2 on, their gradients, in arrays that have its own slices alone, in the flat order.
 *
 * With one part all is owned, and these arrays are the flat ones.  Pure; any thread. */
#ifndef TANDEM_ENGINE_TRAIN_SHARDS_H
#define TANDEM_ENGINE_TRAIN_SHARDS_H

#include <stdbool.h>
#include <stddef.h>

/* Numbers of floats, or of moments of either kind. */
struct shard_unit {
    size_t from, n; /* in the flat array, padding included */
    size_t moments; /* its first among all moments of its kind */
    size_t group;   /* of the optimizer */
    bool decay, is_8bit;
    bool matrix; /* of Muon: one rank has all of it */
    bool whole;  /* each rank also has all its values, since the model reads them in place */
    int layer;   /* its gradients are complete when this layer's backward pass is; -1: at the end of the pass */
    /* set by shards_divide */
    int owner;                 /* of a matrix; else -1 */
    size_t own, own_moments;   /* this rank's slices in its arrays of values; among its moments of the kind */
    size_t whole_at, grads_at; /* in the array of whole units; in the gradients of a pass, at stage 2 */
    size_t layer_at;           /* at stage 3, in what is gathered of its layer, which has all units but whole ones */
};

/* A stretch of an array in a checkpoint, which one rank owns.  Bytes. */
struct shard_extent {
    size_t at, bytes; /* in the checkpoint's array */
    size_t own;       /* in the owner's; known to it alone */
    int owner;
};

struct shard_extents {
    struct shard_extent *v;
    size_t n, cap;
};

enum { SHARD_VALUES, SHARD_MOMENTS, SHARD_ARRAYS };

struct shards {
    struct shard_unit *unit;
    size_t n_units, cap_units;
    int slices, parts, part; /* of a unit; ranks that own some; this one */
    bool divided;            /* parts > 1 */
    bool grads;              /* divided at stage 2: gradients are, too */
    bool values;             /* divided at stage 3: so is what the model reads of the layers, but for whole units */
    size_t n, n_f32, n_8bit; /* floats of the flat array; moments of either kind */
    size_t own, own_f32, own_8bit;
    size_t whole; /* floats of the whole units */
    size_t pass;  /* floats of the gradients of a pass, at stage 2: two layers', and those of no layer */
    size_t layer; /* floats that are gathered of a layer at most, at stage 3 */
    struct shard_extents extents[SHARD_ARRAYS]; /* where it is divided */
};

/* Appends a unit, or continues the last one with it where that may be.  Floats left out between the two belong to the
 * last one. */
void shards_add(struct shards *, const struct shard_unit *);
/* slices: a multiple of parts.  stage: 0 .. 3; 0, or one part: all is owned. */
void shards_divide(struct shards *, int stage, int slices, int parts, int part);
void shards_free(struct shards *);

/* Where slice i of a unit begins, from its start on; of i = slices: its end. */
size_t shards_slice(const struct shards *, const struct shard_unit *, int i);
/* The same of a rank's slices: from shards_part(s, u, r) to shards_part(s, u, r + 1). */
size_t shards_part(const struct shards *, const struct shard_unit *, int part);
int shards_owner(const struct shards *, const struct shard_unit *, int slice);
/* Whether its values are gathered with their layer's, when that is used. */
static inline bool shards_by_layer(const struct shards *s, const struct shard_unit *u)
{
    return s->values && !u->whole && u->layer >= 0;
}
/* The unit that has this float of the flat array. */
struct shard_unit *shards_at(const struct shards *, size_t at);
/* The first extent that ends after byte `at`. */
size_t shards_extent(const struct shard_extents *, size_t at);

#endif
