/* A model divided over ranks, so that every result has the bits that one rank computes.
 *
 * By outputs (tensor parallelism): each rank has a range of the outputs of every matrix, and so of the heads, with their
 * keys and values.  The inputs of a matrix are whole on every rank, and its outputs are exchanged before the next one
 * needs them.  So no sum is divided.  By layers (pipeline parallelism): stages.h.  By both: a group of ranks has some
 * layers, and each of its ranks a range of their outputs.
 *
 * What is small stays whole on every rank: norms, routers, tables of embeddings as floats.  The vocabulary is divided:
 * the head, and a quantised table of embeddings; logits are whole on rank 0 alone.
 *
 * Rank 0 leads (shard_lead.h), the others follow (shard_follow.h).  On each rank, by the thread that uses the model. */
#ifndef TANDEM_ENGINE_MODEL_SHARD_H
#define TANDEM_ENGINE_MODEL_SHARD_H

#include "engine/model/config.h"
#include "engine/model/tensors.h"
#include "kernels/comm.h"
#include "kernels/ops.h"

#include <stdbool.h>
#include <stddef.h>

struct weights;

struct shard {
    struct comm *comm;  /* the caller's, of two ranks or more */
    struct comm *group; /* of it the ranks that have parts of the same layers */
    int stages, stage;  /* groups, of as many ranks each, and the number of this one */
    int first, end;     /* its layers: first .. end - 1 */
    int most_layers;    /* of a stage */
    struct model_config whole;
    /* on the host, (ranks, at most block_floats) each: what the ranks exchange, and what goes to a device that does not
     * use the host's memory (else NULL) */
    float *blocks, *rows;
    size_t block_floats;
    bool dry; /* ops are only counted (dev_ops.reserve): nothing is exchanged */

    /* The devices exchange (kernels/comm_device.h), and the arrays above are NULL. */
    bool on_device;
    char how[COMM_WHY_BYTES + 32]; /* "between the devices by NCCL 2.28.9", "through the host's memory: ..." */
    /* on the device: (T) number of the rank's part of each row among all ranks' parts, and of the part of the rank that
     * has the row's token; (T, ranks C) the rows of all ranks, NULL where shard_join_rows is not called */
    int32_t *own_part, *token_part;
    float *wide;
    bool no_replay; /* on rank 0: for good */
    bool replays;   /* the step, on every rank: rank 0 says it (dev_ops.replay) */
};

/* stages: into how many ranges the layers are divided; 0 or 1: every rank has a part of each.  NULL and *e
 * (ERR_UNSUPPORTED): the model cannot be divided over so many ranks. */
struct shard *shard_open(struct comm *, int stages, const struct model_config *whole, struct err *e);
void shard_close(struct shard *); /* NULL is allowed */
/* The sizes of what this rank has: heads, widths of feed-forwards, vocabulary.  s NULL: `whole`. */
void shard_config(const struct shard *, const struct model_config *whole, struct model_config *own);

static inline bool shard_leads(const struct shard *s)
{
    return !s || comm_rank(s->comm) == 0;
}

/* Whether the rank has something of the layer, and of what belongs to none: embeddings, last norm, head. */
static inline bool shard_has_layer(const struct shard *s, int layer)
{
    return !s || (layer >= s->first && layer < s->end);
}

static inline bool shard_has_ends(const struct shard *s)
{
    return !s || s->stage == 0;
}

/* Whether it has a part of the outputs alone. */
static inline bool shard_by_outputs(const struct shard *s)
{
    return s && comm_ranks(s->group) > 1;
}

static inline bool shard_by_layers(const struct shard *s)
{
    return s && s->stages > 1;
}

/* ---- whose outputs are whose ---------------------------------------------------------------------------------------
 */

/* Outputs [from, from + n) of the whole are [at, at + n) of the rank's. */
struct shard_piece {
    int from, n, at;
};
enum { SHARD_PIECES = 3 };

/* The rank's outputs of a GEMM, in pieces: of q, k and v, or of gate and up.  Of GEMM_LM_HEAD the layer is ignored.
 * @return their number; 0: every rank has all, as of a router, and of an adapter of the embedding table */
int shard_pieces(const struct shard *, int layer, enum layer_gemm, struct shard_piece out[SHARD_PIECES]);
/* The rows of stack number i (tensors.h) likewise. */
int shard_stack_pieces(const struct shard *, int i, struct shard_piece out[SHARD_PIECES]);
/* Leaves of a vector (weights.h: `layer` and `field` of its first slot) what is this rank's.  @return its floats */
size_t shard_vector(const struct shard *, const struct vector_slot *, float *v, size_t floats);

/* ---- exchanging
 * ------------------------------------------------------------------------------------------------------
 */

/* Each rank calls it, with devices that are alike: where these can exchange by themselves, they do from now on. */
void shard_open_device(struct shard *, struct dev *);
/* Floats of a rank's part at most, and tokens of a step; shard_join_rows is called for rows of `wide` floats, 0: is
 * not. *bytes grows by what the device has for it.  @return false: no memory */
bool shard_reserve(struct shard *, struct dev *, size_t floats, int tokens, int wide, size_t *bytes);
void shard_release(struct shard *, struct dev *); /* what shard_reserve allocated there */
/* Whether steps may be replayed: on all ranks alike, where rank 0 says it.  s NULL: there is one rank */
bool shard_may_replay(const struct shard *);
/* Whether the ranks still hear each other; the step fails where they do not.  After a failure of an op the exchanges go
 * on, with values that nobody uses, since the other ranks take part in them. */
bool shard_fine(struct shard *, struct dev *, const char *op);
/* whole (T, n ranks), its rows adjacent: the ranks' parts (T, n), each in its columns, on every rank. */
void shard_join(struct shard *, struct dev *, struct mat part, struct mat whole);
/* The other way: part becomes this rank's columns of whole. */
void shard_take(struct shard *, struct dev *, struct mat whole, struct mat part);
/* Logits: whole (R, V) on rank 0, from parts (R, the rank's).  On the others only `part` is read. */
void shard_collect(struct shard *, struct dev *, struct mat part, struct mat whole);
/* Before a step with shard_join_rows, which may be replayed: ids (T) are in host memory. */
void shard_send_ids(struct shard *, struct dev *, const int32_t *ids, int n);
/* Rows (T, C) of tokens, of each of which one rank has the row: that of the vocabulary's part it is in.  ids as in
 * shard_send_ids. */
void shard_join_rows(struct shard *, struct dev *, const int32_t *ids, struct mat rows);
/* The vocabulary of a rank of the group: its first token and their number. */
struct shard_piece shard_vocab(const struct shard *, int rank);

/* @return 0, or the same error on every rank: they do not compute alike, or have other models. */
int shard_check_alike(struct shard *, const struct dev *, const struct weights *, struct err *e);
/* ranks_agree, and *n becomes the least of all ranks'. */
int shard_agree_least(struct comm *, int rc, int *n, struct err *e);

#endif
